"""cassi-live as a command: how it ends, and who may record."""

import signal

import numpy as np
import pytest
from shared import wait_until

pytest.importorskip("panel", reason="needs panel")


def said(file, words):
    return file.exists() and words in file.read_text()


@pytest.fixture
def begin(camera, start, tmp_path):
    """Starts the command; returns it when it has said its address."""

    def begin(*more):
        (tmp_path / "in").mkdir(exist_ok=True)
        words = [f"source={tmp_path}/in", *camera.given("mask"), "--no-browser"]
        process = start("live.command", *words, "--output", str(tmp_path / "out"), *more)
        wait_until(lambda: process.poll() is not None or said(process.out, "http"), seconds=60)
        return process

    return begin


@pytest.mark.slow
def test_a_second_recorder_is_refused(begin, tmp_path):
    pytest.importorskip("zarr")
    first = begin("--record", str(tmp_path / "day.zarr"))
    second = begin("--record", str(tmp_path / "day.zarr"))
    _, err = second.communicate(60)
    assert second.returncode == 2
    assert err.startswith("cassi-live: error: another command records into")
    assert len(err.splitlines()) == 1
    first.send_signal(signal.SIGTERM)
    first.communicate(60)


@pytest.mark.slow
def test_a_folder_that_vanishes_is_said_in_the_terminal(begin, tmp_path):
    process = begin()
    np.save(tmp_path / "in" / "late.npy", np.ones((2, 2)))
    (tmp_path / "in").rename(tmp_path / "away")
    wait_until(lambda: said(process.err, "stopped: "), seconds=60)
    process.send_signal(signal.SIGTERM)
    process.communicate(60)
    assert str(tmp_path / "in") in process.err.read_text()
