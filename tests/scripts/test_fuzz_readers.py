"""A few hundred damaged files; `scripts/checks/fuzz_readers.py` reads ten thousand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    """No crash, no other error than one documented line, no hang, no memory beyond the budget."""
    script = ROOT / "scripts/checks/fuzz_readers.py"
    result = subprocess.run(
        [sys.executable, script, "--files", "280", "--seed", "7", "--out", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    counts = [int(n) for n in result.stdout.splitlines()[-1].split()[1:]]
    assert sum(counts) == sum(counts[:2]) == 280
    assert min(counts[:2]) > 20  # the damage is neither harmless nor all-destroying
