"""Files appear whole or not at all."""

import errno
import multiprocessing
import os
import time
import zipfile

import pytest
import torch

from cassi.data import atomic
from cassi.data.atomic import (
    atomic_folder,
    atomic_path,
    atomic_paths,
    check_archive,
    is_temporary,
)


def _write_text(text, *finals, error=None):
    with atomic_paths(*finals) as temporaries:
        for temporary in temporaries:
            temporary.write_text(text)
        if error is not None:
            raise error


@pytest.mark.parametrize("is_replaced", [True, False])
def test_an_interrupt_right_behind_the_rename_keeps_a_whole_file(
    tmp_path, monkeypatch, is_replaced
):
    file, replace = tmp_path / "last.ckpt", os.replace
    if is_replaced:
        file.write_text("old")

    def interrupted(source, target):
        replace(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _write_text("new", file)
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]


def test_atomic_path(tmp_path):
    final = tmp_path / ("n" * 250 + ".csv")
    with atomic_path(final) as temporary:
        assert temporary.name == final.name
        assert is_temporary(temporary)
        (stage,) = tmp_path.iterdir()
        assert stage.name.startswith(".")
        assert temporary.is_relative_to(stage)
        temporary.write_text("new")
        assert not final.exists()
    assert final.read_text() == "new"
    link = tmp_path / "link.csv"
    link.symlink_to(final)
    with atomic_path(link) as temporary:
        temporary.write_text("newer")
    assert link.is_symlink()
    assert final.read_text() == "newer"
    with pytest.raises(KeyboardInterrupt):
        _write_text("never", final, error=KeyboardInterrupt)
    assert final.read_text() == "newer"
    assert sorted(tmp_path.iterdir()) == [link, final]


def test_atomic_path_needs_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    for name, kind in [("no/a.csv", FileNotFoundError), ("file/a.csv", NotADirectoryError)]:
        with pytest.raises(kind, match="cannot write"), atomic_path(tmp_path / name):
            pass
    with pytest.raises(IsADirectoryError, match="it is a folder"), atomic_path(tmp_path):
        pass


def test_folder_appears_whole(tmp_path):
    with atomic_folder(tmp_path / "new") as stage:
        (stage / "a.txt").write_text("a")
        (stage / "b.txt").write_text("b")
        assert not (tmp_path / "new" / "a.txt").exists()
    assert {file.name for file in (tmp_path / "new").iterdir()} == {"a.txt", "b.txt"}


@pytest.mark.parametrize("moment", ["write", "second rename"])
def test_folder_stays_as_it_was(tmp_path, monkeypatch, moment):
    (tmp_path / "kept.txt").write_text("kept")
    (tmp_path / "a.txt").write_text("earlier")
    replace, calls = os.replace, []

    def fail_second(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise OSError("no space")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_second)

    def write():
        with atomic_folder(tmp_path) as stage:
            (stage / "a.txt").write_text("a")
            if moment == "write":
                raise OSError("no space")
            (stage / "b.txt").write_text("b")

    with pytest.raises(OSError, match="no space"):
        write()
    assert {file.name for file in tmp_path.iterdir()} == {"kept.txt", "a.txt"}
    assert (tmp_path / "a.txt").read_text() == "earlier"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError("1835008 requested and 783236 written"), "is the disk full"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left"),
    ],
)
def test_a_failed_write_names_the_file(tmp_path, error, message):
    with pytest.raises(OSError, match=message) as error_info, atomic_path(tmp_path / "cube.tif"):
        raise error
    assert error_info.value.filename == str(tmp_path / "cube.tif")


def test_a_zarr_folder_takes_the_place_of_another(tmp_path):
    final = tmp_path / "cube.zarr"
    for content in ("first", "second"):
        with atomic_path(final) as temporary:
            (temporary / "c").mkdir(parents=True)
            (temporary / "c" / "0").write_text(content)
        assert (final / "c" / "0").read_text() == content
        assert list(tmp_path.iterdir()) == [final]


def test_a_zarr_folder_is_put_back(tmp_path, monkeypatch):
    with atomic_folder(tmp_path) as stage:
        (stage / "cube.zarr").mkdir()
        (stage / "cube.zarr" / "0").write_text("first")

    def fail(source, target):
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", fail)

    def write():
        with atomic_folder(tmp_path) as stage:
            (stage / "cube.zarr").mkdir()
            (stage / "cube.zarr" / "0").write_text("second")

    with pytest.raises(OSError, match="no space"):
        write()
    assert (tmp_path / "cube.zarr" / "0").read_text() == "first"


def write_and_wait(folder):
    with atomic_path(folder / "a.txt") as temporary, atomic_folder(folder) as stage:
        temporary.write_text("a")
        (stage / "b.txt").write_text("b")
        (folder / "ready").touch()
        time.sleep(60)


def write_next(folder):
    with atomic_path(folder / "c.txt") as temporary:
        temporary.write_text("c")


def begin(function, folder):
    process = multiprocessing.get_context("fork").Process(target=function, args=(folder,))
    process.start()
    return process


def test_leftovers_of_the_dead_are_removed(tmp_path):
    user_folder = tmp_path / ".cassi-notes"
    user_folder.mkdir()
    writer = begin(write_and_wait, tmp_path)
    while not (tmp_path / "ready").exists():
        assert writer.is_alive()
        time.sleep(0.02)
    expected = {user_folder, tmp_path / "ready", tmp_path / "c.txt"}
    begin(write_next, tmp_path).join()
    living_stages = set(tmp_path.iterdir()) - expected
    assert len(living_stages) == 2
    writer.kill()
    writer.join()
    assert set(tmp_path.iterdir()) == expected | living_stages
    begin(write_next, tmp_path).join()
    assert set(tmp_path.iterdir()) == expected


def write_many(folder):
    for number in range(100):
        atomic.remove_leftovers.cache_clear()
        with atomic_path(folder / f"{os.getpid()}-{number}.txt") as temporary:
            temporary.write_text("a")


def test_nobody_takes_the_living_for_dead(tmp_path):
    writers = [begin(write_many, tmp_path) for _ in range(4)]
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert len(list(tmp_path.iterdir())) == 400


@pytest.mark.parametrize("entries", [(), ("lock",)])
def test_what_was_killed_while_it_began_is_removed(tmp_path, entries):
    stage = tmp_path / f".cassi-{'0' * 16}"
    stage.mkdir()
    for name in entries:
        (stage / name).touch()
    write_next(tmp_path)
    assert set(tmp_path.iterdir()) == {tmp_path / "c.txt"}


def test_without_locks_nothing_is_removed(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    stage = tmp_path / f".cassi-{'0' * 16}"
    (stage / "new").mkdir(parents=True)
    (stage / "lock").touch()
    write_next(tmp_path)
    assert set(tmp_path.iterdir()) == {stage, tmp_path / "c.txt"}


def test_an_error_names_the_final_file(tmp_path):
    with pytest.raises(FileNotFoundError) as error_info, atomic_folder(tmp_path) as stage:
        (stage / "none" / "a.txt").write_text("")
    assert error_info.value.filename == str(tmp_path / "none" / "a.txt")


def test_archives_are_checked_part_by_part(tmp_path):
    file = tmp_path / "a.pt"
    torch.save({"a": torch.arange(1000.0)}, file)
    check_archive(file)
    content = file.read_bytes()
    position = content.index(torch.arange(1000.0).numpy().tobytes())
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(10**7))
    with pytest.raises(ValueError, match="compressed"):
        check_archive(tmp_path / "bomb.pt")
    for damaged_content in (
        content[: len(content) // 2],
        content[:position] + b"\1" + content[position + 1 :],
        b"",
    ):
        file.write_bytes(damaged_content)
        with pytest.raises(ValueError, match="damaged"):
            check_archive(file)
    with pytest.raises(FileNotFoundError):
        check_archive(tmp_path / "none.pt")
