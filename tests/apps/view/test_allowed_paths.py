import pytest

from cassi.apps.view.allowed_paths import AllowedPaths
from cassi.apps.view.uploads import keep_upload


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


def test_files_inside_of_settings_are_looked_at(folders):
    inner, outer = folders
    allowed = AllowedPaths([inner])
    allowed.check({"mask": str(inner / "deep" / "a.npy"), "step": 2, "list": ["auto", None]})
    with pytest.raises(PermissionError, match=r"secret\.npy"):
        allowed.check({"model": {"path": [str(outer / "secret.npy")]}})


def test_lists_name_files_from_the_folder_that_was_given(folders):
    inner, outer = folders
    assert list(AllowedPaths([inner]).list_files([".npy"])) == ["link.npy", "deep/a.npy"]
    both = AllowedPaths([inner, outer]).list_files([".npy"])
    assert list(both) == ["inner/link.npy", "inner/deep/a.npy", "outer/secret.npy"]
    assert AllowedPaths([inner]).find("a.npy") == [inner / "deep"]
    assert len(AllowedPaths([inner, outer]).list_files([".npy"], most=1)) == 1


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(NotADirectoryError, match="nowhere"):
        AllowedPaths([tmp_path / "nowhere"])


def test_uploads_are_kept_once_and_together(tmp_path):
    envi = {"a.img": b"data", "a.hdr": b"ENVI"}
    path = keep_upload(tmp_path, envi, (".hdr", ".img", ".npy"))
    assert path.name == "a.hdr"
    assert (path.parent / "a.img").read_bytes() == b"data"
    assert keep_upload(tmp_path, envi, (".hdr", ".img")) == path
    assert keep_upload(tmp_path, {"a.npy": b"1"}, (".npy",)) != keep_upload(
        tmp_path, {"a.npy": b"2"}, (".npy",)
    )


@pytest.mark.parametrize("name", ["../a.npy", ".a.npy", "b/a.npy", "b\\a.npy", "a.exe"])
def test_names_that_lead_elsewhere_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match="expected"):
        keep_upload(tmp_path, {name: b""}, (".npy",))
