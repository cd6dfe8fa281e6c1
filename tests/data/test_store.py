"""The store of results: records, checksums of files, damage and killed writers."""

import contextlib
import errno
import json
import math
import multiprocessing
import os
import signal
import sqlite3
import warnings

import pytest

from cassi.data.atomic import (
    DISK_ERRORS,
    DISK_FULL,
    UNWRITABLE,
    describe_oserror,
    digest_content,
)
from cassi.data.store import Store, describe_inputs, file_name, fingerprint

VALUES = {"psnr": 1.0 / 3, "ssim": None, "ergas": math.inf, "curve": [[0.5, 20.0]], "of": {"a": 1}}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results")


@pytest.fixture
def cube(store):
    store.root.mkdir()
    file = store.root / "cube.bin"
    file.write_bytes(b"0123456789")
    return file


def test_a_result_is_done_under_its_fingerprint(store, cube):
    assert store.read_all() == {}
    assert store.read("scene/gap_tv") is None
    store.write("scene/gap_tv", "k", VALUES, [cube])
    store.write("scene 2", "k", {"error": "no light"}, is_result=False)
    assert store.read("scene/gap_tv") == store.read("scene/gap_tv", "k") == VALUES
    assert store.read("scene/gap_tv", "other") is None
    assert store.is_done("scene/gap_tv", "k")
    assert not store.is_done("scene/gap_tv", "other")
    assert store.read("scene 2", "k") == {"error": "no light"}
    assert not store.is_done("scene 2", "k")
    assert list(store.read_all()) == ["scene 2", "scene/gap_tv"]
    store.write("scene 2", "k", {})
    assert store.is_done("scene 2", "k")
    # The folder may be moved, with all that lies in it.
    moved_folder = store.root.rename(store.root.with_name("moved"))
    assert Store(moved_folder).is_done("scene/gap_tv", "k")


def test_files_that_are_not_whole_are_not_done(store, cube):
    store.write("one", "k", {}, [cube])
    cube.write_bytes(b"0123456780")  # as long as before
    with pytest.warns(UserWarning, match=r"cube\.bin: it is damaged"):
        assert not store.is_done("one", "k")
    cube.write_bytes(b"01234")
    with pytest.warns(UserWarning, match="it is damaged"):
        assert not store.is_done("one", "k")
    cube.unlink()
    assert not store.is_done("one", "k")  # gone on purpose: no warning
    assert store.read("one", "k") == {}
    with pytest.raises(FileNotFoundError):
        store.write("two", "k", {}, [cube])
    assert list(store.read_all()) == ["one"]


def change(store, column, value):
    with contextlib.closing(sqlite3.connect(store.file, isolation_level=None)) as connection:
        connection.execute(f"UPDATE results SET {column} = ?", (value,))


@pytest.mark.parametrize("column", ["record", "checksum"])
@pytest.mark.parametrize("value", ["", "{}", "[" * 9999, b"\xff\xfe", None, 3])
def test_a_damaged_record_counts_as_not_there(store, cube, column, value):
    store.write("one", "k", VALUES, [cube])
    change(store, column, value)
    with pytest.warns(UserWarning, match=r"results\.sqlite: .* made again"):
        assert store.read("one") is None
    with pytest.warns(UserWarning, match="made again"):
        assert not store.is_done("one", "k")
    store.write("one", "k", VALUES, [cube])
    assert store.is_done("one", "k")


def test_a_damaged_file_is_made_again(store, cube):
    store.write("one", "k", VALUES, [cube])
    whole_file = store.file.read_bytes()
    for content in (
        b"",
        whole_file[: len(whole_file) // 2],
        b"no database" * 99,
        whole_file[:16] + bytes(99),
    ):
        store.file.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert store.read("one") is None
            store.write("one", "k", VALUES, [cube])
        assert store.is_done("one", "k")
    # A byte of the text of a record is no longer what its checksum says.
    at = whole_file.index(b"psnr")
    store.file.write_bytes(whole_file[:at] + b"PSNR" + whole_file[at + 4 :])
    with pytest.warns(UserWarning, match="checksum|made again"):
        assert store.read("one") is None


def test_a_file_with_other_tables_is_refused(store):
    store.root.mkdir()
    with contextlib.closing(sqlite3.connect(store.file)) as connection:
        connection.execute("CREATE VIEW results AS SELECT 'a' name, '{}' record, '' checksum")
        connection.commit()
    with pytest.warns(UserWarning, match="expected one table"):
        assert store.read("a") is None
    store.write("a", "k", {})
    assert store.is_done("a", "k")


def seal(store, name, record):
    text = json.dumps(record)
    change(store, "record", text)
    change(store, "checksum", digest_content([name, text]))


def test_a_record_names_no_file_elsewhere(store, cube, tmp_path):
    secret = tmp_path.parent / f"{tmp_path.name}-secret"
    secret.write_text("0123456789")
    store.write("a", "k", VALUES, [cube])
    assert store.is_done("a", "k")
    for file in (secret, "/dev/zero", "/proc", "../../.."):
        record = {"fingerprint": "k", "done": True, "files": {str(file): [10, "0"]}, "values": {}}
        seal(store, "a", record)
        assert not store.is_done("a", "k")
    for changes in ({"files": []}, {"files": {"a": 1}}, {"values": 3}):
        seal(store, "a", record | changes)
        with pytest.warns(UserWarning, match="made again"):
            assert not store.is_done("a", "k")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_link_or_pipe_in_its_place_is_refused(store, make):
    store.root.mkdir()
    make(store.file)
    with pytest.raises(PermissionError, match="remove it"):
        store.write("a", "k", {})


def test_a_killed_write_leaves_what_was_there(tmp_path):
    store = Store(tmp_path)
    store.write("one", "old", {"a": 1})

    def write():
        with sqlite3.connect(store.file) as connection:
            connection.execute("PRAGMA cache_size = 1")
            connection.execute("UPDATE results SET record = ?", ("x" * 10**6,))
            os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=write)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert store.read("one", "old") == {"a": 1}
    assert list(tmp_path.iterdir()) == [store.file]


def test_several_processes_write(tmp_path):
    def write(number):
        for index in range(20):
            Store(tmp_path).write(f"{number}-{index}", "k", {"a": index})

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=write, args=(number,)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(Store(tmp_path).read_all()) == 60


@pytest.mark.parametrize("text", ["..", "a/b", ".hidden", "x" * 60, "snr=10", "gap|tv", "ä\0"])
def test_any_text_has_a_file_name(tmp_path, text):
    name = file_name(text)
    (tmp_path / name).mkdir()
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    assert ("=" in name) == ("=" in text)
    assert file_name(f"{text}.") != name


def test_a_fingerprint_knows_values_and_not_their_order():
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": (2,), "a": 1})
    different = [{"a": 1}, {"a": 2}, {"a": "1"}, {"b": 1}, {"a": None}, {"a": [1]}, "~nobody/a"]
    assert len({fingerprint(value) for value in different}) == len(different)
    assert fingerprint({"a": "x" * 5000}) != fingerprint({"a": "x" * 5001})


def test_a_fingerprint_knows_files(tmp_path):
    file, copy = tmp_path / "mask.mat", tmp_path / "copy.mat"
    for path in (file, copy):
        path.write_bytes(b"one")
        os.utime(path, ns=(0, 0))
    value = {"mask": [str(file)]}
    assert (
        describe_inputs(value)
        == describe_inputs({"mask": [file]})
        == {"mask": [["mask.mat", 3, 0]]}
    )
    fingerprints = fingerprint(value), fingerprint(value, content=True)
    assert fingerprint({"mask": [str(copy)]}, content=True) == fingerprints[1]
    os.utime(file, ns=(0, 5))
    assert fingerprint(value) != fingerprints[0]
    assert fingerprint(value, content=True) == fingerprints[1]
    file.write_bytes(b"two")
    assert fingerprint(value, content=True) != fingerprints[1]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space", "a.tif"), "a.tif: No space; make room, then the same"),
        (OSError(errno.EDQUOT, "Quota"), "Quota; make room, then the same command goes on"),
        (OSError(errno.EROFS, "Read-only", "/sys/a"), "/sys/a: Read-only"),
        (OSError("one line\nand another"), "one line"),
        (OSError(), "OSError"),
    ],
)
def test_what_the_disk_says(error, message):
    line = describe_oserror(error)
    assert line == message or line.startswith(f"{message} ")
    assert error.errno is None or error.errno in DISK_ERRORS
    assert ("make room" in line) == (error.errno in DISK_FULL)
    assert (error.errno in UNWRITABLE) == (error.errno is not None)
