"""Mistakes are one line, defects show where they are."""

import errno
import os
import signal
import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist

from cassi.apps import snapshot as way
from cassi.apps.calibrate import job as calibrating
from cassi.apps.command import EXIT_INTERRUPTED, plain_warnings
from cassi.apps.command import _fail as fail
from cassi.apps.errors import UsageError, describe, is_usage_error
from cassi.apps.evaluate import job as evaluating
from cassi.apps.reconstruct.plan import parse_size
from cassi.apps.reconstructors import compose_settings
from cassi.apps.train import inputs as training

DOORS = {
    "reconstruct": (way, "load_snapshot"),
    "evaluate": (evaluating, "load_benchmark"),
    "train": (training, "load_scenes"),
    "calibrate": (calibrating, "load_frames"),
}
DEFECTS = {
    "Python": lambda *_: int("x"),
    "numpy": lambda *_: np.ones(2) + np.ones(3),
    "torch": lambda *_: torch.ones(2) + torch.ones(3),
    "a call": lambda *_: len(5),
}


def raised(function):
    with pytest.raises(Exception) as caught:
        function()
    return caught.value


def test_a_second_interrupt_ends_a_command_at_once():
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit):
            fail("cassi-train", "interrupted", EXIT_INTERRUPTED)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, handler)


def test_a_warning_is_a_line():
    with plain_warnings():
        ours, theirs = (
            warnings.formatwarning("old\nage", kind, "file.py", 3, "")
            for kind in (UserWarning, DeprecationWarning)
        )
    assert ours == "warning: old\\nage\n"
    assert "file.py:3: DeprecationWarning" in theirs
    assert "UserWarning" in warnings.formatwarning("old", UserWarning, "file.py", 3, "")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "f.tif"), "f.tif: No space left on"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "make room, then the same command"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS), "/sys/run"), "/sys/run: Read-only file"),
        (raised(lambda: torch.empty(2**60, dtype=torch.uint8)), "out of memory; crop"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "out of memory"),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."), "data.workers"),
        (dist.DistNetworkError("failed to recv"), "another process of this run is gone"),
        (RuntimeError("[gloo/pair.cc:1] Connection closed by peer [::1]"), "process of this run"),
    ],
)
def test_what_the_machine_does_is_one_line(error, said):
    assert is_usage_error(error)
    line = describe(error)
    assert said in line
    assert "\n" not in line


def test_a_mistake_is_raised_on_purpose():
    assert not any(is_usage_error(raised(make)) for make in DEFECTS.values())
    assert is_usage_error(raised(lambda: parse_size("x")))


@pytest.mark.parametrize("option", ["seed=x", "seeds=1", "solver=none_such", "system.offsets=a,b"])
def test_an_error_of_a_library_becomes_one_of_ours(option):
    with pytest.raises(UsageError) as caught:
        compose_settings([option])
    assert caught.value.__cause__ is not None
    assert str(caught.value) == describe(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", DOORS)
def test_a_defect_goes_on_to_python(commands, monkeypatch, name):
    """Which prints its traceback and ends with status 1."""
    monkeypatch.setattr(*DOORS[name], DEFECTS["Python"])
    with pytest.raises(ValueError, match="invalid literal for int"):
        commands(name)(*(("model=gap_net", "trainer.max_steps=1") if name == "train" else ()))


def test_tracebacks_can_be_asked_for(reconstruct, monkeypatch):
    line = reconstruct("seed=-1").refusal
    monkeypatch.setenv("CASSI_DEBUG", "1")
    outcome = reconstruct("seed=-1")
    assert (outcome.status, outcome.err.splitlines()[-1]) == (2, line)
    assert "Traceback (most recent call last):" in outcome.err
    assert "whole_number(" in outcome.err
