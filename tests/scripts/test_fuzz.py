"""A few hundred random calls and damaged files; the scripts try ten thousand."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cassi import ops

ROOT = Path(__file__).resolve().parents[2]
TRIALS = [("ops", "--calls", 200, 25), ("readers", "--files", 280, 20)]


@pytest.mark.parametrize(("script", "option", "count", "least"), TRIALS)
def test_all_is_right_or_refused(script, option, count, least, tmp_path):
    """No crash, no wrong result, no other error, no hang, no memory beyond the budget."""
    if script == "ops" and ops.backend(torch.device("cpu")) != "compiled":
        pytest.skip("the operators are not compiled for the CPU")
    command = [sys.executable, ROOT / f"scripts/checks/fuzz_{script}.py", option, str(count)]
    result = subprocess.run(
        [*command, "--seed", "7", "--out", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    counts = [int(n) for n in result.stdout.splitlines()[-1].split()[1:]]
    assert sum(counts) == sum(counts[:2]) == count
    assert min(counts[:2]) > least  # neither harmless nor all-destroying
