import os

import numpy as np
import pytest

from cassi.apps.view import uploads
from cassi.apps.view.allowed_paths import AllowedPaths
from cassi.apps.view.uploads import Inbox, store_upload
from cassi.checks import check_opened_files
from cassi.data.bundled import bundled_path
from cassi.data.io import load_cube, load_mask, write_cube


@pytest.fixture
def folders(tmp_path):
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    (inner / "deep").mkdir(parents=True)
    outer.mkdir()
    (outer / "secret.npy").write_bytes(b"")
    (inner / "deep" / "a.npy").write_bytes(b"")
    (inner / ".hidden.npy").write_bytes(b"")
    (inner / "link.npy").symlink_to(outer / "secret.npy")
    return inner, outer


def test_what_is_below_may_be_read_and_nothing_else(folders):
    inner, outer = folders
    allowed_paths = AllowedPaths([inner])
    assert allowed_paths.resolve(inner / "deep" / "a.npy") == inner / "deep" / "a.npy"
    for path in (outer / "secret.npy", inner / ".." / "outer" / "secret.npy", inner / "link.npy"):
        with pytest.raises(PermissionError, match="not below the folders"):
            allowed_paths.resolve(path)


def test_a_file_is_read_up_to_a_length_and_a_pipe_never(folders):
    inner, _ = folders
    allowed_paths = AllowedPaths([inner])
    (inner / "four").write_bytes(b"1234")
    assert allowed_paths.read(inner / "four", 4) == b"1234"
    with pytest.raises(ValueError, match="at most 3 bytes"):
        allowed_paths.read(inner / "four", 3)
    os.mkfifo(inner / "pipe")
    with pytest.raises(ValueError, match="regular file"):
        allowed_paths.read(inner / "pipe", 4)
    with pytest.raises(PermissionError):
        allowed_paths.read(inner / "link.npy", 4)


def test_every_file_is_checked_where_it_is_opened(folders):
    """Whatever names it, and also what a reader opens with it."""
    inner, outer = folders
    np.save(inner / "deep" / "a.npy", np.ones((4, 4)))
    np.save(outer / "secret.npy", np.ones((4, 4)))
    write_cube(outer / "a.hdr", np.ones((2, 4, 4)))
    (inner / "a.hdr").write_bytes((outer / "a.hdr").read_bytes())
    (inner / "a.img").symlink_to(outer / "a.img")
    with check_opened_files(AllowedPaths([inner]).check_opened):
        assert load_mask(inner / "deep" / "a.npy").data.shape[-2:] == (4, 4)
        load_mask(bundled_path("mask.tif"))
        for path in (outer / "secret.npy", inner / "link.npy"):
            with pytest.raises(PermissionError, match="not below the folders"):
                load_mask(path)
        with pytest.raises(ValueError, match=r"expected to read a\.hdr alone, it leads to"):
            load_cube(inner / "a.hdr")


def test_lists_name_files_from_the_folder_that_was_given(folders):
    inner, outer = folders
    assert list(AllowedPaths([inner]).list_files([".npy"])) == ["deep/a.npy"]
    both = AllowedPaths([inner, outer]).list_files([".npy"])
    assert list(both) == ["inner/deep/a.npy", "outer/secret.npy"]
    assert AllowedPaths([inner]).find("a.npy") == [inner / "deep"]
    assert len(AllowedPaths([inner, outer]).list_files([".npy"], max_files=1)) == 1


def test_lists_treat_links_as_folders_of_snapshots_do(folders):
    """Those out of the folder are left out; what two names lead to is listed once."""
    inner, outer = folders
    (inner / ".store").mkdir()
    (inner / ".store" / "key").write_bytes(b"")
    (inner / "annexed.npy").symlink_to(".store/key")
    (inner / "again.npy").symlink_to("annexed.npy")
    (inner / "broken.npy").symlink_to("gone.npy")
    (inner / "deep" / "a.json").write_bytes(b"")
    (inner / "alias").symlink_to("deep")
    (inner / "deep" / "circle").symlink_to("..")
    (inner / "elsewhere").symlink_to(outer)
    allowed_paths = AllowedPaths([inner])
    assert list(allowed_paths.list_files([".npy"])) == ["again.npy", "deep/a.npy"]
    assert allowed_paths.find("a.json") == [inner / "deep"]
    assert allowed_paths.find("broken.npy") == [inner]  # of a result it is said why
    assert AllowedPaths([inner, inner / "deep"]).find("a.json") == [inner / "deep"]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(NotADirectoryError, match="nowhere"):
        AllowedPaths([tmp_path / "nowhere"])


def test_an_inbox_has_the_files_of_one_drop_and_a_limit(monkeypatch):
    monkeypatch.setattr(uploads, "MAX_UPLOAD_BYTES", 2**21)
    inbox = Inbox()
    inbox.add("1", "old.npy", b"")
    inbox.add("2", "a.npy", b"1234")
    assert inbox.take("1") == {}
    with pytest.raises(ValueError, match="at most 2 MiB"):
        inbox.add("2", "b.npy", bytes(2**21))
    with pytest.raises(ValueError, match=r"got a\.npy twice"):
        inbox.add("2", "a.npy", b"")
    assert inbox.take("2") == {"a.npy": b"1234"}
    assert inbox.take("2") == {}


def test_uploads_are_kept_once_and_together(tmp_path):
    envi = {"a.img": b"data", "a.hdr": b"ENVI"}
    path = store_upload(tmp_path, envi, (".hdr", ".img", ".npy"))
    assert path.name == "a.hdr"
    assert (path.parent / "a.img").read_bytes() == b"data"
    assert store_upload(tmp_path, envi, (".hdr", ".img")) == path
    (path.parent / "a.img").write_bytes(b"other")
    store_upload(tmp_path, envi, (".hdr", ".img"))  # what was changed is kept again
    assert (path.parent / "a.img").read_bytes() == b"data"


def test_other_files_never_have_the_same_folder(tmp_path):
    one = {"a.npy": b"1", "b.npy": b"2"}
    other = {"a.npy": b"1b.npy\0002"}  # the same bytes, names and contents in a row
    paths = [store_upload(tmp_path, each, (".npy",)) for each in (one, other)]
    assert [path.read_bytes() for path in paths] == [b"1", b"1b.npy\0002"]
    assert paths[0] != paths[1]
    assert len(paths[0].parent.name) == 64  # a part of a checksum can be met on purpose


@pytest.mark.parametrize("name", ["../a.npy", ".a.npy", "b/a.npy", "b\\a.npy", "a.exe"])
def test_names_that_lead_elsewhere_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match="expected"):
        store_upload(tmp_path, {name: b""}, (".npy",))
