"""What is done: records, the files that they list, and what damage and kills leave."""

import errno
import json
import math
import multiprocessing
import os
import signal
import warnings

import pytest

from cassi.data import atomic
from cassi.data.atomic import DISK_ERRORS, DISK_FULL, UNWRITABLE, describe_oserror, seal
from cassi.data.store import Store, file_name, fingerprint, stamp

VALUES = {"psnr": 1.0 / 3, "ssim": None, "ergas": math.inf, "curve": [[0.5, 20.0]], "of": {"a": 1}}


@pytest.fixture(params=[".json", "/.done.json"])
def store(request, tmp_path):
    return Store(tmp_path / "results", request.param)


@pytest.fixture
def cube(store):
    store.root.mkdir()
    file = store.root / "cube.bin"
    file.write_bytes(b"0123456789")
    return file


def test_a_result_is_done_under_its_fingerprint(store, cube):
    assert list(store.names()) == []
    assert store.read("scene/gap_tv") is None
    store.write("scene/gap_tv", "k", VALUES, [cube])
    store.write("scene 2", "k", {"error": "no light"}, done=False)
    assert store.read("scene/gap_tv") == store.read("scene/gap_tv", "k") == VALUES
    assert store.read("scene/gap_tv", "other") is None
    assert store.is_done("scene/gap_tv", "k")
    assert not store.is_done("scene/gap_tv", "other")
    assert store.read("scene 2", "k") == {"error": "no light"}
    assert not store.is_done("scene 2", "k")
    assert sorted(store.names()) == ["scene 2", "scene/gap_tv"]
    store.write("scene 2", "k", {})
    assert store.is_done("scene 2", "k")
    store.forget("scene 2")
    store.forget("scene 2")
    assert list(store.names()) == ["scene/gap_tv"]
    # The folder may be moved, with all that lies in it.
    moved = store.root.rename(store.root.with_name("moved"))
    assert Store(moved, store.suffix).is_done("scene/gap_tv", "k")


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
    assert list(store.names()) == ["one"]


def test_a_damaged_record_counts_as_not_there(store, cube):
    store.write("one", "k", VALUES, [cube])
    path = store.path("one")
    whole = path.read_bytes()
    changed = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    cut = [whole[:at] for at in range(0, len(whole) - 1, 7)]
    other = [b"[1]", b"[" * 9999, b"\xff\xfe", b'{"point": "", "key": "k"}', b"{}", b"null"]
    for content in changed + cut + other:
        path.write_bytes(content)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            # Spaces between the values mean nothing: there a record may be whole all the same.
            if store.read("one") != VALUES:
                assert store.read("one") is None
                assert not store.is_done("one", "k")
                assert {"damaged" in str(one.message) for one in caught} == {True}
    assert list(store.names()) == ["one"]


def test_a_record_names_no_file_elsewhere(store, cube, tmp_path):
    secret = tmp_path.parent / f"{tmp_path.name}-secret"
    secret.write_text("0123456789")
    store.write("a", "k", VALUES, [cube])
    assert store.is_done("a", "k")
    for file in (secret, "/dev/zero", "/proc", "../../.."):
        record = {"fingerprint": "k", "done": True, "files": {str(file): [10, "0"]}, "values": {}}
        store.path("a").write_text(json.dumps(seal(record)))
        assert not store.is_done("a", "k")
    for wrong in ({"files": []}, {"files": {"a": 1}}, {"values": 3}):
        store.path("a").write_text(json.dumps(seal(record | wrong)))
        with pytest.warns(UserWarning, match="made again"):
            assert not store.is_done("a", "k")
    store.path("a").unlink()
    os.mkfifo(store.path("a"))
    with pytest.warns(UserWarning, match="made again"):
        assert store.read("a") is None


def test_a_killed_write_leaves_what_was_there(tmp_path):
    store = Store(tmp_path)
    store.write("one", "old", {"a": 1})

    def write():
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        store.write("one", "new", {"a": 2})

    process = multiprocessing.get_context("fork").Process(target=write)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2  # the record and a hidden leftover
    assert store.read("one", "old") == {"a": 1}
    assert list(store.names()) == ["one"]
    # The next process may have nothing to write there.
    atomic.remove_leftovers.cache_clear()
    assert store.is_done("one", "old")
    assert list(tmp_path.iterdir()) == [store.path("one")]


@pytest.mark.parametrize("name", ["", "..", "a/../b", "/etc/a", "a//b", "a/", ".", "a\0"])
def test_names_stay_in_the_folder(store, name):
    with pytest.raises(ValueError, match="expected a name"):
        store.write(name, "k", {})


@pytest.mark.parametrize("text", ["..", "a/b", ".hidden", "x" * 60, "snr=10", "gap|tv", "ä\0"])
def test_any_text_has_a_file_name(store, text):
    name = f"{file_name(text)}/{file_name(text)}"
    store.write(name, "k", {})
    assert list(store.names()) == [name]
    assert ("=" in name) == ("=" in text)
    assert file_name(f"{text}.") != file_name(text)


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
    assert stamp(value) == stamp({"mask": [file]}) == {"mask": [["mask.mat", 3, 0]]}
    known = fingerprint(value), fingerprint(value, content=True)
    assert fingerprint({"mask": [str(copy)]}, content=True) == known[1]
    os.utime(file, ns=(0, 5))
    assert fingerprint(value) != known[0]
    assert fingerprint(value, content=True) == known[1]
    file.write_bytes(b"two")
    assert fingerprint(value, content=True) != known[1]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space", "a.tif"), "a.tif: No space; make room, then the same"),
        (OSError(errno.EDQUOT, "Quota"), "Quota; make room, then the same command goes on"),
        (OSError(errno.EROFS, "Read-only", "/sys/a"), "/sys/a: Read-only"),
        (OSError("one line\nand another"), "one line"),
        (OSError(), "OSError"),
    ],
)
def test_what_the_disk_says(error, said):
    line = describe_oserror(error)
    assert line == said or line.startswith(f"{said} ")
    assert error.errno is None or error.errno in DISK_ERRORS
    assert ("make room" in line) == (error.errno in DISK_FULL)
    assert (error.errno in UNWRITABLE) == (error.errno is not None)
