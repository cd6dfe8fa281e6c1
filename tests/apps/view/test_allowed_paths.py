import io
import os

import pytest

from cassi.apps.view.allowed_paths import AllowedPaths
from cassi.apps.view.uploads import LARGEST, Inbox, keep_upload


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
    allowed = AllowedPaths([inner])
    assert allowed.resolve(inner / "deep" / "a.npy") == inner / "deep" / "a.npy"
    for path in (outer / "secret.npy", inner / ".." / "outer" / "secret.npy", inner / "link.npy"):
        with pytest.raises(PermissionError, match="not below the folders"):
            allowed.resolve(path)


def test_what_a_reader_opens_with_a_file_is_checked_too(folders):
    inner, outer = folders
    allowed = AllowedPaths([inner])
    cube = inner / "cube.zarr"
    (cube / "c").mkdir(parents=True)
    (cube / "c" / "0").write_bytes(b"")
    (inner / "a.hdr").write_bytes(b"")
    (inner / "a.img").write_bytes(b"")
    for path in (cube, inner / "a.hdr", inner / "a.img"):
        assert allowed.resolve_data(path) == path
    for path, link in ((cube, cube / "c" / "1"), (inner / "a.hdr", inner / "a.dat")):
        link.symlink_to(outer / "secret.npy")
        with pytest.raises(PermissionError, match=r"not below the folders"):
            allowed.resolve_data(path)
        link.unlink()
        os.mkfifo(link)
        with pytest.raises(ValueError, match="regular file"):
            allowed.resolve_data(path)
    with pytest.raises(FileNotFoundError):
        allowed.resolve_data(inner / "gone.npy")


def test_a_file_is_read_up_to_a_length_and_a_pipe_never(folders):
    inner, _ = folders
    allowed = AllowedPaths([inner])
    (inner / "four").write_bytes(b"1234")
    assert allowed.read(inner / "four", 4) == b"1234"
    with pytest.raises(ValueError, match="at most 3 bytes"):
        allowed.read(inner / "four", 3)
    os.mkfifo(inner / "pipe")
    for refused in (
        lambda: allowed.read(inner / "pipe", 4),
        lambda: allowed.check([str(inner / "pipe")]),
    ):
        with pytest.raises(ValueError, match="regular file"):
            refused()
    with pytest.raises(PermissionError):
        allowed.read(inner / "link.npy", 4)


def test_files_inside_of_settings_are_looked_at(folders):
    inner, outer = folders
    allowed = AllowedPaths([inner])
    allowed.check({"mask": str(inner / "deep" / "a.npy"), "step": 2, "list": ["auto", None]})
    with pytest.raises(PermissionError, match=r"secret\.npy"):
        allowed.check({"model": {"path": [str(outer / "secret.npy")]}})


def test_lists_name_files_from_the_folder_that_was_given(folders):
    inner, outer = folders
    assert list(AllowedPaths([inner]).list_files([".npy"])) == ["deep/a.npy"]
    both = AllowedPaths([inner, outer]).list_files([".npy"])
    assert list(both) == ["inner/deep/a.npy", "outer/secret.npy"]
    assert AllowedPaths([inner]).find("a.npy") == [inner / "deep"]
    assert len(AllowedPaths([inner, outer]).list_files([".npy"], most=1)) == 1


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
    allowed = AllowedPaths([inner])
    assert list(allowed.list_files([".npy"])) == ["again.npy", "deep/a.npy"]
    assert allowed.find("a.json") == [inner / "deep"]
    assert allowed.find("broken.npy") == [inner]  # of a result it is said why
    assert AllowedPaths([inner, inner / "deep"]).find("a.json") == [inner / "deep"]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(NotADirectoryError, match="nowhere"):
        AllowedPaths([tmp_path / "nowhere"])


def _open(files):
    return {name: io.BytesIO(content) for name, content in files.items()}


def test_an_inbox_has_the_files_of_one_drop_and_a_limit(tmp_path):
    inbox = Inbox(tmp_path / "uploads")
    old = inbox.begin("1", "old.npy", 4)
    inbox.begin("2", "a.npy", 4).write(b"1234")
    assert old.closed
    assert inbox.take("1") == {}
    with pytest.raises(ValueError, match="at most 1024 MiB"):
        inbox.begin("2", "b.npy", LARGEST - 3)
    assert list((tmp_path / "uploads").iterdir()) == []  # no file has a name before all are there
    path = keep_upload(tmp_path / "uploads", inbox.take("2"), (".npy",))
    assert path.read_bytes() == b"1234"
    assert inbox.take("2") == {}


def test_uploads_are_kept_once_and_together(tmp_path):
    envi = {"a.img": b"data", "a.hdr": b"ENVI"}
    path = keep_upload(tmp_path, _open(envi), (".hdr", ".img", ".npy"))
    assert path.name == "a.hdr"
    assert (path.parent / "a.img").read_bytes() == b"data"
    assert keep_upload(tmp_path, _open(envi), (".hdr", ".img")) == path
    one, two = (_open({"a.npy": content}) for content in (b"1", b"2"))
    assert keep_upload(tmp_path, one, (".npy",)) != keep_upload(tmp_path, two, (".npy",))


def test_other_files_never_have_the_same_folder(tmp_path):
    one = {"a.npy": b"1", "b.npy": b"2"}
    other = {"a.npy": b"1b.npy\0002"}  # the same bytes, names and contents in a row
    paths = [keep_upload(tmp_path, _open(each), (".npy",)) for each in (one, other)]
    assert [path.read_bytes() for path in paths] == [b"1", b"1b.npy\0002"]
    assert paths[0] != paths[1]
    assert len(paths[0].parent.name) == 64  # a part of a checksum can be met on purpose


def test_an_upload_that_was_changed_is_kept_again(tmp_path):
    path = keep_upload(tmp_path, _open({"a.npy": b"mine"}), (".npy",))
    path.write_bytes(b"other")
    assert keep_upload(tmp_path, _open({"a.npy": b"mine"}), (".npy",)) == path
    assert path.read_bytes() == b"mine"


def test_two_files_of_one_name_are_no_drop(tmp_path):
    inbox = Inbox(tmp_path)
    inbox.begin("1", "a.npy", 1).write(b"1")
    with pytest.raises(ValueError, match=r"got a\.npy twice"):
        inbox.begin("1", "a.npy", 1)
    assert inbox.take("1")["a.npy"].tell() == 1


@pytest.mark.parametrize("name", ["../a.npy", ".a.npy", "b/a.npy", "b\\a.npy", "a.exe"])
def test_names_that_lead_elsewhere_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match="expected"):
        keep_upload(tmp_path, _open({name: b""}), (".npy",))
