"""Writing below folders in which no link is followed."""

import os

import pytest

from cassi import links
from cassi.data.atomic import atomic_folder, atomic_path


@pytest.fixture
def places(tmp_path):
    """A guarded folder with a link to a folder and a link to a file, which are outside."""
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "file").write_text("mine")
    (inside / "folder").symlink_to(outside)
    (inside / "file").symlink_to(outside / "file")
    (tmp_path / "named").symlink_to(inside)
    links.guard_folders(tmp_path / "named")
    yield outside, inside
    links.release()


WRITERS = {
    "open": lambda path: (path / "file").open("a"),
    "os.open": lambda path: os.open(path / "new", os.O_CREAT | os.O_WRONLY),
    "mkdir": lambda path: (path / "new").mkdir(),
    "unlink": lambda path: (path / "file").unlink(),
    "rename": lambda path: (path / "file").rename(path / "other"),
    "link": lambda path: (path / "other").hardlink_to(path / "file"),
    "chmod": lambda path: (path / "file").chmod(0o600),
    "atomic_path": lambda path: atomic_path(path / "new").__enter__(),
    "atomic_folder": lambda path: atomic_folder(path / "new").__enter__(),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("name", ["named", "inside"])
def test_nothing_is_written_through_a_link(places, tmp_path, writer, name):
    with pytest.raises(PermissionError, match="folder is a link"):
        WRITERS[writer](tmp_path / name / "folder")
    assert [path.name for path in places[0].iterdir()] == ["file"]
    assert (places[0] / "file").read_text() == "mine"


def test_a_link_at_the_end_of_a_name(places):
    outside, inside = places
    with pytest.raises(PermissionError, match="file is a link"):
        (inside / "file").open("w")
    assert (inside / "file").read_text() == "mine"
    with atomic_path(inside / "file") as temporary:
        temporary.write_text("result")
    assert not (inside / "file").is_symlink()
    assert (outside / "file").read_text() == "mine"


def test_other_folders_are_as_ever(places, tmp_path):
    (tmp_path / "link").symlink_to(places[0])
    (tmp_path / "link" / "file").write_text("changed")
    links.release()
    (places[1] / "file").write_text("again")
    assert (places[0] / "file").read_text() == "again"
