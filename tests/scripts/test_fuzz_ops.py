"""A few hundred random calls; `scripts/checks/fuzz_ops.py` makes ten thousand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.usefixtures("compiled")
def test_random_calls_are_right_or_refused(tmp_path: Path) -> None:
    """No crash, no wrong result, no other error, no hang, no memory beyond the budget."""
    script = ROOT / "scripts/checks/fuzz_ops.py"
    result = subprocess.run(
        [sys.executable, script, "--calls", "400", "--seed", "7", "--out", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    counts = [int(n) for n in result.stdout.splitlines()[-1].split()[1:]]
    assert sum(counts) == sum(counts[:2]) == 400
    assert min(counts[:2]) > 50
