"""Folders of results: none is written by two commands, none is lost."""

import fcntl
import json
import os

import pytest

from cassi.apps import folders


def test_commands_of_one_second_have_folders_of_their_own(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ("mask=bundled:mask.tif", "system.bands=28", "measurement=y.npy", "solver=gap")
    _frame(tmp_path)
    running = [start("reconstruct", *arguments, "solver.iterations=1") for _ in range(3)]
    for process in running:
        _, said = process.communicate(timeout=200)
        assert process.returncode == 0, said
    made = [
        folder for day in (tmp_path / "outputs/reconstruct").iterdir() for folder in day.iterdir()
    ]
    assert len(made) == 3
    assert all((folder / "cube.tif").is_file() for folder in made)


def _frame(folder):
    import numpy as np

    np.save(folder / "y.npy", np.ones((256, 310), np.float32))


def test_a_name_that_is_taken_gets_a_number(tmp_path):
    names = [folders._make_new(tmp_path / "day" / "12-30-01").name for _ in range(3)]
    assert names == ["12-30-01", "12-30-01_2", "12-30-01_3"]


def test_a_folder_that_is_being_written_is_refused(start, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "cube.tif").write_text("of another")
    _frame(tmp_path)
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    arguments = (f"measurement={tmp_path}/y.npy", "mask=bundled:mask.tif", "system.bands=28")
    command = ("reconstruct", *arguments, "solver=gap", "solver.iterations=1")
    process = start(*command, f"hydra.run.dir={folder}")
    _, said = process.communicate(timeout=100)
    assert process.returncode == 2
    assert said.splitlines() == [
        f"cassi-reconstruct: error: {folder} is being written by process {os.getpid()}; wait for "
        "its end, or set hydra.run.dir=DIR"
    ]
    assert [file.name for file in folder.iterdir()] == ["cube.tif"]
    os.close(descriptor)
    process = start(*command, f"hydra.run.dir={folder}")
    assert process.wait(100) == 0
    assert json.loads((folder / "metrics.json").read_text())


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK"])
def test_processes_of_one_command_share_a_folder(tmp_path, monkeypatch, name):
    with folders.release_at_end():
        folders.hold(tmp_path)
        folders.hold(tmp_path)  # the same command
        monkeypatch.setattr(folders, "_held", {})
        monkeypatch.setattr(folders, "_PATIENCE", 0.0)
        with pytest.raises(ValueError, match=f"is being written by process {os.getpid()}"):
            folders.hold(tmp_path)
        monkeypatch.setenv(name, "1")
        folders.hold(tmp_path)
