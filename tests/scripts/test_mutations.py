"""The list of mutants, and the tests that are asked about each."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="needs cosmic-ray")
from scripts.checks import mutants, mutations

ROOT = Path(__file__).resolve().parents[2]
SOURCE = '''"""A line | of text, 1 + 2."""


def f(x: int | None, *, y: bool = True) -> int | None:
    return x + 1 if y else None
'''


def test_mutants_are_changes_of_code(tmp_path):
    package = tmp_path / "cassi" / "metrics"
    package.mkdir(parents=True)
    (package / "a.py").write_text(SOURCE)
    found = mutants.list_mutants(tmp_path, "metrics")
    sources = [mutants.mutate(SOURCE, mutant) for mutant in found]
    assert {mutant.line for mutant in found} == {4, 5}
    changed = {source for source in sources if source}  # without "def f(x, +, y)"
    assert 10 < len(changed) < len(found)
    first, last = SOURCE.splitlines()[3:]
    heads, bodies = zip(*(source.splitlines()[3:] for source in changed), strict=True)
    assert set(heads) == {first, first.replace("True", "False"), first.replace("*", "/")}
    words = {"".join(body.split()) for body in bodies}
    assert {"returnx*1ifyelseNone", "returnx+2ifyelseNone", "returnx+1ifnotyelseNone"} <= words
    assert last in bodies


def test_tests_that_know_a_module_exist():
    known = {name for names in mutations.KNOWN_BY.values() for name in names}
    there = {file.stem.removeprefix("test_") for p in mutations.PACKAGES for file in
             (ROOT / "tests" / p).glob("test_*.py")}  # fmt: skip
    assert known <= there
    for package in mutations.PACKAGES:
        for path in (ROOT / "cassi" / package).glob("*.py"):
            files = mutations.find_tests(ROOT, package, str(path))
            assert files
            assert all(Path(file).is_file() for file in files)
    first, *_ = mutations.find_tests(ROOT, "ops", "cassi/ops/_reference_tv.py")
    assert Path(first).name == "test_tv.py"


def test_interval():
    low, high = mutations.interval(54, 60)
    assert (low, high) == pytest.approx((0.7985, 0.9534), abs=1e-4)
