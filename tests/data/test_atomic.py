"""Files appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cassi.data.atomic import atomic_folder, atomic_path, atomic_paths


def test_second_rename_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def fail_on_header(source: Path, target: Path) -> None:
        if str(target).endswith(".hdr"):
            raise PermissionError("no")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_on_header)
    with pytest.raises(PermissionError):
        _write_text("x", tmp_path / "a.img", tmp_path / "a.hdr")
    assert not list(tmp_path.iterdir())


def _write_text(text: str, *finals: Path, error: type[BaseException] | None = None) -> None:
    with atomic_paths(*finals) as temporaries:
        for temporary in temporaries:
            temporary.write_text(text)
        if error is not None:
            raise error


def test_atomic_path(tmp_path: Path) -> None:
    final = tmp_path / ("n" * 250 + ".csv")
    with atomic_path(final) as temporary:
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".csv"
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


def test_atomic_path_needs_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for bad, kind in [("no/a.csv", FileNotFoundError), ("file/a.csv", NotADirectoryError)]:
        with pytest.raises(kind, match="cannot write"), atomic_path(tmp_path / bad):
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


def test_a_failed_write_without_a_number_is_explained(tmp_path):
    def write():
        with atomic_path(tmp_path / "cube.tif"):
            raise OSError("1835008 requested and 783236 written")

    with pytest.raises(OSError, match="is the disk full") as caught:
        write()
    assert caught.value.filename == str(tmp_path / "cube.tif")
