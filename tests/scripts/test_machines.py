"""The table of methods by processor, threads and load."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "benchmarks" / "machines.py"


def test_a_tiny_table():
    options = ["--methods", "gap_tv", "--size", "32", "--rounds", "1", "--threads", "1"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options], capture_output=True, text=True, check=True
    )
    row = next(line for line in done.stdout.splitlines() if "gap_tv" in line)
    cells = [cell.strip() for cell in row.split("|") if cell.strip()]
    assert len(cells) == 5
    assert all(float(cell) > 0 for cell in cells[1:])
