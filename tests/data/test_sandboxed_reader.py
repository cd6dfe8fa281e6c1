"""The sandboxed reader: one process, started again after its end, and limited."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch

from cassi.data import io, reader_process, sandboxed_reader
from cassi.data.scenes import find_scenes


@pytest.fixture
def cube_file(tmp_path):
    cube = torch.rand(3, 20, 30, generator=torch.Generator().manual_seed(0))
    io.write_cube(tmp_path / "a.tif", cube, (500, 510, 520))
    return tmp_path / "a.tif", cube


@pytest.fixture
def own_reader():
    """The process is this test's, which kills it: what coverage saw in the one before is kept."""
    sandboxed_reader.stop()
    yield
    sandboxed_reader.stop()


def pid():
    return sandboxed_reader._reader.process.pid


def test_one_process_serves_all_files_of_all_threads(cube_file):
    path, cube = cube_file
    io.read_cube(path)
    first, cubes_read = pid(), []
    threads = [
        threading.Thread(target=lambda: cubes_read.append(io.read_cube(path))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pid() == first
    assert len(cubes_read) == 8
    assert all(torch.equal(cube_read[0], cube) for cube_read in cubes_read)


def test_a_process_that_was_killed_is_started_again(cube_file, own_reader):
    path, cube = cube_file
    io.read_cube(path)
    os.kill(pid(), signal.SIGKILL)
    time.sleep(0.1)
    assert torch.equal(io.read_cube(path)[0], cube)


def test_a_copy_of_the_process_has_a_reader_of_its_own(cube_file):
    path, cube = cube_file
    io.read_cube(path)
    mine, child = pid(), os.fork()
    if child == 0:
        try:
            right = torch.equal(io.read_cube(path)[0], cube) and pid() != mine
            sandboxed_reader.stop()
            os._exit(0 if right else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(io.read_cube(path)[0], cube)
    assert pid() == mine


def test_the_limit_is_the_users(tmp_path, monkeypatch, own_reader):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, cube=np.zeros((3, 2000, 2000), "f4"))
    monkeypatch.setenv(sandboxed_reader.LIMIT_VARIABLE, "30")
    with pytest.raises(ValueError, match=r"a\.npz: reading it takes more than 30 MB; .*=60"):
        io.read_cube(path)
    monkeypatch.setenv(sandboxed_reader.LIMIT_VARIABLE, "400")
    assert io.read_cube(path).shape == (1, 3, 2000, 2000)
    monkeypatch.setenv(sandboxed_reader.LIMIT_VARIABLE, "many")
    with pytest.raises(ValueError, match=r"CASSI_READ_MB: expected a whole number of MB"):
        io.read_cube(path)


def test_the_machine_keeps_a_part_of_its_memory(tmp_path, monkeypatch, own_reader):
    """Whatever limit the file's size or the user allows."""
    np.savez_compressed(tmp_path / "a.npz", cube=np.zeros((20, 2000, 2000)))
    monkeypatch.setenv(sandboxed_reader.LIMIT_VARIABLE, "3000")
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "700")  # of which the array would take 610
    with pytest.raises(ValueError, match=r"more than the 550 MB that this machine has for it$"):
        io.read_cube(tmp_path / "a.npz")


def test_a_file_named_from_another_folder(cube_file, monkeypatch):
    path, cube = cube_file
    io.read_cube(path)
    monkeypatch.chdir(path.parent)
    assert torch.equal(io.read_cube("a.tif")[0], cube)


def test_what_was_named_may_be_a_link_and_what_is_in_it_not(cube_file, tmp_path):
    path, cube = cube_file
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    tifffile.imwrite(folder / "b.tif", np.ones((4, 5), "f4"))
    (folder / "c.tif").symlink_to(path)
    (folder / "inner" / "more").symlink_to(tmp_path)
    assert torch.equal(io.read_cube(folder / "c.tif")[0], cube)
    (tmp_path / "named").symlink_to(folder)
    assert [path.name for path in find_scenes(tmp_path / "named")] == ["b.tif"]


def test_the_process_imports_no_torch(cube_file):
    io.read_cube(cube_file[0])
    assert "libtorch" not in Path(f"/proc/{pid()}/maps").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("doing", "kind", "message"),
    [
        ("kill(SIGKILL)", ValueError, r"it takes more than \d+ MB; if you trust it, set .*=\d+$"),
        ("kill(SIGXCPU)", ValueError, r"it takes more than \d+ s of processor time; if you trust"),
        ("time.sleep(60)", ValueError, r"it takes more than 1 s; if you trust it, set"),
        ("kill(SIGSEGV)", ValueError, r"it is damaged, its reader crashed \(SIGSEGV\)$"),
        ("os.listdir('/nowhere')", FileNotFoundError, "No such file or directory: '/nowhere'"),
        ("1 / 0", RuntimeError, r"a\.tif: ZeroDivisionError: division by zero \(.*:\d+\)$"),
    ],
)
def test_a_reader_that_ends_badly(cube_file, monkeypatch, own_reader, doing, kind, message):
    """A library of a format may do anything: what is said names the file, and how it ended."""
    program_end = f"""
import os, time
from signal import *
from cassi.data import reader_process
kill = lambda number: os.kill(os.getpid(), number)
reader_process.CALLS["array"] = lambda path, **_: {doing}
serve("""
    monkeypatch.setattr(
        sandboxed_reader, "_PROGRAM", sandboxed_reader._PROGRAM.replace("\nserve(", program_end)
    )
    monkeypatch.setattr(sandboxed_reader, "_MAX_ELAPSED_RATIO", 0.01 if "sleep" in doing else 1.5)
    with pytest.raises(kind, match=message):
        io.read_cube(cube_file[0])


def test_a_reader_that_does_not_start(cube_file, monkeypatch, own_reader):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(OSError, match="the process that reads files does not start: /bin/false"):
        io.read_cube(cube_file[0])


def test_want_of_memory_is_told_from_damage():
    wrapped_error = ValueError("cannot read a.tif")
    wrapped_error.__cause__ = MemoryError()
    for error in (MemoryError(), wrapped_error, RuntimeError("can't start new thread")):
        assert reader_process.describe(error) == {"error": "memory"}
    assert reader_process.describe(ValueError("cut short"))["error"] == "ValueError"


def test_what_may_be_opened_while_a_file_is_read(tmp_path, monkeypatch):
    """The file and the other one of its pair, what Python imports, and nothing to write to."""
    # As of a script that lies there.
    monkeypatch.setattr(reader_process, "_LIBRARY_FOLDERS", {str(tmp_path), sys.prefix})

    def ask(name, flags=os.O_RDONLY, event="open"):
        reader_process._audit(
            event, (name if isinstance(name, int) else str(tmp_path / name), "r", flags)
        )

    with reader_process._allow_only(tmp_path / "a.hdr"):
        for name in ("a.hdr", "a.img", "mine.py", f"{sys.prefix}/a.json", 3):
            ask(name)
        ask("b.img", event="import")
        for name, flags in (
            *(("b.img", 0), ("../a.img", 0), ("/etc/passwd", 0)),
            *(("a.hdr", os.O_WRONLY), ("a.img", os.O_CREAT)),
        ):
            with pytest.raises(
                PermissionError, match=r"expected to read a\.hdr alone, it leads to"
            ):
                ask(name, flags)
        with pytest.raises(PermissionError, match=r"os\.remove while a file is read"):
            ask("a.hdr", event="os.remove")
    with (
        reader_process._allow_only(tmp_path / "a.tif"),
        pytest.raises(PermissionError, match="alone"),
    ):
        ask("a.img")
    ask("b.img", os.O_WRONLY)
