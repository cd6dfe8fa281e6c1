"""A few hundred random calls and damaged files; `make fuzz` tries ten thousand."""

import pytest
import torch
from shared import python

from cassi import ops

TRIALS = [("ops", "--calls", 100, 12), ("readers", "--files", 280, 20)]


@pytest.mark.parametrize(("script", "option", "count", "least"), TRIALS)
def test_all_is_right_or_refused(script, option, count, least, tmp_path):
    """No crash, no wrong result, no other error, no hang, no memory beyond the budget."""
    if script == "ops" and ops.backend(torch.device("cpu")) != "compiled":
        pytest.skip("the operators are not compiled for the CPU")
    name = f"scripts.checks.fuzz_{script}"
    printed = python("-m", name, option, count, "--seed", "7", "--out", tmp_path)
    counts = [int(n) for n in printed.splitlines()[-1].split()[1:]]
    assert sum(counts) == sum(counts[:2]) == count
    assert min(counts[:2]) > least  # neither harmless nor all-destroying


def test_files_that_are_made_to_harm():
    """Each is refused in one line, in time, with little memory, and nothing elsewhere is read."""
    printed = python("-m", "scripts.checks.hostile_files")
    assert "right" in printed
    assert "wrong" not in printed
