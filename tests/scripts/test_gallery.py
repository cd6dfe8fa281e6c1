"""The pictures of the gallery: all there, and drawn by the script."""

import sys
from pathlib import Path

from scripts.docs import gallery

ROOT = Path(__file__).resolve().parents[2]
GALLERY = ROOT / "docs/gallery"


def test_every_picture_is_shown():
    page = (GALLERY / "index.md").read_text()
    files = [*GALLERY.glob("*.jpg"), *GALLERY.glob("*.gif")]
    assert {path.stem for path in files} == set(gallery.DRAW)
    assert all(f"({path.name})" in page for path in files)


def test_a_picture_is_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gallery, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["gallery.py", "formation"])
    gallery.main()
    assert capsys.readouterr().out.startswith("formation: ")
    assert [path.name for path in tmp_path.iterdir()] == ["formation.jpg"]


def test_without_data_pictures_stay(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gallery, "FOLDER", tmp_path)
    monkeypatch.setenv("CASSI_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["gallery.py", "kaist", "tsa"])
    gallery.main()
    assert capsys.readouterr().out.count("left as it is") == 2
    assert not list(tmp_path.iterdir())
