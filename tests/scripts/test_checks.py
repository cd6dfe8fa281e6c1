"""The checks before a release: what they find in pages, and what they call a difference."""

import os
import re
import subprocess
import tarfile
from importlib.util import find_spec
from pathlib import Path

from scripts.checks import commands

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_commands_are_found_in_shell_blocks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\ncassi-train x\n```\ncassi-train y\n```bash\nA=1 cassi-train a=1 \\\n"
        "    b='c # d'  # twice\nsays nothing\n```\ncassi-train z\n```\nmake demo\n```\n"
    )
    assert list(commands.find_commands(page)) == ["A=1 cassi-train a=1 b='c # d'", "make demo"]


def test_no_rule_is_left_over():
    found = [command for page in PAGES for command in commands.find_commands(page)]
    found += [*commands.FIRST, *commands.list_targets()]
    assert len(found) > 60
    for pattern in (*commands.SKIP_REASONS, *commands.REPLACEMENTS, *commands.SHORTENING_OPTIONS):
        assert any(re.search(pattern, command) for command in found), pattern
    assert "make clean" not in found


def _gpu(*arguments, **settings):
    return subprocess.run(
        ["bash", ROOT / "scripts/checks/gpu.sh", *arguments],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_steps_on_a_gpu_are_printed():
    printed = _gpu("--dry-run").stdout
    steps = dict(line.split(": ", 1) for line in printed.splitlines())
    assert "pytest -q" in steps["a_tests"]
    assert "-m cuda" in steps["a_tests"]
    assert "bf16-mixed" in steps["d_train"]
    assert "ckpt=last" in steps["d_train"]
    assert "--tool racecheck" in steps["b_racecheck_test_every_operator_and_taps"]
    for script in re.findall(r"-m (scripts\.\S+)", printed):
        assert find_spec(script) is not None


def _stand_in(folder, lines):
    stand_in = folder / "python"
    stand_in.write_text(f'#!/bin/sh\ncase "$*" in {lines} esac\n')
    stand_in.chmod(0o755)
    return {"PYTHON": str(stand_in)}


def _rows(table):
    return dict(re.findall(r"^\| ([a-d]_\w+) \| ([^|]+) \|", table, re.MULTILINE))


def test_a_failed_step_on_a_gpu_is_told_and_the_next_one_runs(tmp_path):
    told = _stand_in(tmp_path, '*c_models.json*) echo "a | b"; exit 3;;')
    result = _gpu(str(tmp_path / "out"), **told)
    assert result.returncode == 1
    table = (tmp_path / "out" / "table.md").read_text()
    assert table in result.stdout
    rows = _rows(table)
    assert rows["c_models"] == "failed: 3"
    assert rows["c_train"] == rows["c_methods"] == rows["d_train"] == "ok"
    names = re.findall(r"^(\w+): ", _gpu("--dry-run").stdout, re.MULTILINE)
    assert list(rows) == names
    with tarfile.open(tmp_path / "out" / "c.tar.xz") as archive:
        assert {"c_models.log", "c_models.row"} <= set(archive.getnames())


def test_a_sitting_on_a_gpu_goes_on_with_what_is_left(tmp_path):
    """One step is cut by the end of a sitting and made again, a training goes on where it was."""
    line = f'echo "$*" >> {tmp_path}/calls;'
    told = _stand_in(
        tmp_path,
        f"*apps.train*) {line} [ -f {tmp_path}/begun ] && exit 0; "
        f"touch {tmp_path}/begun; sleep 60;;",
    )
    steps = ("--only", "a_backend|d_train", str(tmp_path / "out"))
    first = _gpu(*steps, SECONDS_EACH="3", DEVICE="cpu", **told)
    assert first.returncode == 75
    assert "steps are left" in first.stdout
    assert _rows(first.stdout) == {"a_backend": "ok"}
    second = _gpu(*steps, SECONDS_EACH="3", DEVICE="cpu", **told)
    assert second.returncode == 0
    assert _rows(second.stdout) == {"a_backend": "ok", "d_train": "ok"}
    assert len((tmp_path / "calls").read_text().splitlines()) == 2
