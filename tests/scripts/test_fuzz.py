"""A few hundred random calls and damaged files; `make fuzz` tries ten thousand of each."""

import re

import pytest
import torch
from shared import python

from cassi import ops


@pytest.mark.parametrize(("what", "count", "least"), [("ops", 100, 12), ("readers", 280, 20)])
def test_all_is_right_or_refused(what, count, least, tmp_path):
    """No crash, no wrong result, no other error, no hang, no memory beyond the budget."""
    if what == "ops" and ops.backend(torch.device("cpu")) != "compiled":
        pytest.skip("the operators are not compiled for the CPU")
    options = ("--count", count, "--seed", 7, "--out", tmp_path)
    printed = python("-m", "scripts.checks.fuzz", what, *options)
    accepted, refused, findings = map(int, re.findall(r"\d+", printed.splitlines()[-1]))
    assert (accepted + refused, findings) == (count, 0)
    assert min(accepted, refused) > least  # neither harmless nor all-destroying


def test_files_that_are_made_to_harm():
    """Each is refused in one line, in time, with little memory, and nothing elsewhere is read."""
    printed = python("-m", "scripts.checks.hostile_files")
    assert "right" in printed
    assert "wrong" not in printed
