"""The pictures of the gallery: all there, small, and drawn by the script."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "docs/gallery"


@pytest.fixture(scope="module")
def make_gallery():
    spec = importlib.util.spec_from_file_location("make_gallery", ROOT / "scripts/make_gallery.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_gallery"] = module
    spec.loader.exec_module(module)
    return module


def test_every_picture_is_shown_and_small(make_gallery):
    page = (GALLERY / "index.md").read_text()
    pictures = {path.stem: path.stat().st_size for path in GALLERY.glob("*.jpg")}
    assert set(pictures) == set(make_gallery.DRAWN)
    assert all(f"({name}.jpg)" in page for name in pictures)
    assert sum(pictures.values()) < 2e6


def test_a_picture_is_drawn(make_gallery, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(make_gallery, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["make_gallery.py", "formation"])
    make_gallery.main()
    assert capsys.readouterr().out.startswith("formation: ")
    assert [path.name for path in tmp_path.iterdir()] == ["formation.jpg"]


def test_without_data_pictures_stay(make_gallery, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(make_gallery, "FOLDER", tmp_path)
    monkeypatch.setenv("CASSI_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["make_gallery.py", "kaist", "tsa"])
    make_gallery.main()
    assert capsys.readouterr().out.count("left as it is") == 2
    assert not list(tmp_path.iterdir())
