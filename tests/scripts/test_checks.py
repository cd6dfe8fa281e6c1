"""The checks before a release: what they find in pages, and what they call a difference."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from scripts.checks import commands, mutations, same_bits

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_commands_are_found_in_shell_blocks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\ncassi-train x\n```\ncassi-train y\n```bash\nA=1 cassi-train a=1 \\\n"
        "    b='c # d'  # twice\nsays nothing\n```\ncassi-train z\n```\nmake demo\n```\n"
    )
    assert list(commands.commands_in(page)) == ["A=1 cassi-train a=1 b='c # d'", "make demo"]


def test_no_rule_is_left_over():
    found = [command for page in PAGES for command in commands.commands_in(page)]
    found += [*commands.FIRST, *commands.targets_of_makefile()]
    assert len(found) > 60
    for pattern in (*commands.SKIPPED, *commands.FILLED, *commands.SHORTER):
        assert any(re.search(pattern, command) for command in found), pattern
    assert "make clean" not in found


def test_a_cube_that_differs_is_told():
    cube = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    assert same_bits.compare({"cube.tif": cube}, {"cube.tif": cube.copy()}) == (True, "")
    zero = {"cube.tif": cube * 0}, {"cube.tif": cube * -0.0}
    assert not same_bits.compare(*zero)[0]  # the same values, other bits
    for other in ({"cube.tif": cube.astype(float)}, {"a.tif": cube}, "status 2: no", {}):
        assert not same_bits.compare({"cube.tif": cube}, other)[0]


def test_every_kind_of_run_is_compared(tmp_path):
    cases = same_bits.make_cases(tmp_path, full=False)
    solvers = [file.stem for file in (ROOT / "conf/solver").glob("[!_]*.yaml")]
    assert {f"solver={name}" for name in solvers} <= set(cases)
    assert {"experiment=auto", "prior=tv", "model=pretrained", "folder"} <= set(cases)
    assert "prior=drunet" not in cases  # it needs a file
    assert len(list((tmp_path / "snapshots").iterdir())) == 3


def test_mutations_have_tests_and_an_interval():
    for package in mutations.PACKAGES:
        assert (ROOT / "cassi" / package).is_dir()
        assert list((ROOT / "tests" / package).glob("test_*.py"))
    assert mutations.interval(54, 60) == pytest.approx((0.7985, 0.9534), abs=1e-4)
