"""Manifests: files are unchanged, and no test scene is in the training split."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from cassi.data.manifest import SPLITS, Manifest, check_split, checksum, read_manifest
from cassi.data.wavelengths import BENCHMARK_WAVELENGTHS

SCRIPT = Path(__file__).parents[2] / "scripts/data/manifest.py"


def _save(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, np.random.default_rng(seed).random((2, 6, 6), np.float32))


@pytest.fixture
def root(tmp_path):
    for seed, name in enumerate(("train/apple", "train/pear", "validation/plum", "test/scene01")):
        _save(tmp_path / f"{name}.npy", seed)
    return tmp_path


@pytest.fixture
def manifest(root):
    files = {
        split: {p.relative_to(root).as_posix(): checksum(p) for p in (root / split).iterdir()}
        for split in SPLITS
    }
    return Manifest((500.0, 600.0), **files, aliases={"test/scene01.npy": "fig_ms"})


def test_all_there(manifest, root):
    checked_split = check_split(manifest, "train", root)
    assert {path.name for path in checked_split.paths} == {"apple.npy", "pear.npy"}
    assert checked_split.unlisted_files == ()
    _save(root / "train" / "more.npy", 9)
    assert [path.name for path in check_split(manifest, "train", root).unlisted_files] == [
        "more.npy"
    ]


def test_missing_and_changed(manifest, root):
    _save(root / "train" / "pear.npy", 7)
    with pytest.raises(ValueError, match=r"1 of 2 train scenes have another .*: train/pear\.npy"):
        check_split(manifest, "train", root)
    (root / "train" / "pear.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 2 train scenes are missing in .*pear\.npy"):
        check_split(manifest, "train", root)


@pytest.mark.parametrize(
    ("split", "name", "seed", "message"),
    [
        *(
            (split, name, 9, rf"1 test scenes lie in the {split} data: .*scene01\.npy")
            for split in ("train", "validation")
            for name in ("FIG_MS.npy", "fig.npy")
        ),
        ("train", "innocent.npy", 3, r"test scenes lie in the train data: train/innocent\.npy"),
        ("train", "plum_ms.npy", 9, "1 validation scenes lie in the train data"),
        ("train", "fig_ms/fig_ms", 0, "test scenes lie in the train data: train/fig_ms/fig_ms"),
    ],
)
def test_a_scene_that_judges_in_an_earlier_split(manifest, root, split, name, seed, message):
    if seed:
        _save(root / split / name, seed)
    else:
        (root / split / name).mkdir(parents=True)
        for number in (1, 2):
            (root / split / name / f"fig_ms_{number:02d}.png").write_bytes(b"")
    with pytest.raises(ValueError, match=message):
        check_split(manifest, split, root)
    assert check_split(manifest, "test", root).paths


def test_a_manifest_that_lists_a_test_scene_for_training(manifest, root):
    digest = manifest.test["test/scene01.npy"]
    for name in ("train/fig.npy", "train/other.npy"):
        leaking_manifest = Manifest((500.0,), {name: digest}, {}, manifest.test, manifest.aliases)
        _save(root / name, 3)
        with pytest.raises(ValueError, match="test scenes lie in the train data"):
            check_split(leaking_manifest, "train", root)


def test_checksum_of_a_folder(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x_01.png").write_bytes(b"1")
        (tmp_path / name / "x_02.png").write_bytes(b"2")
    (tmp_path / "b" / "Thumbs.db").write_bytes(b"3")
    assert checksum(tmp_path / "a") == checksum(tmp_path / "b")
    (tmp_path / "b" / "x_02.png").rename(tmp_path / "b" / "x_03.png")
    assert checksum(tmp_path / "a") != checksum(tmp_path / "b")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "expected a manifest in JSON"),
        ("[" * 100_000, "manifest"),
        ('{"train": {}}', "expected wavelengths, train"),
        ('{"wavelengths": [500], "trian": {}}', "got .*trian"),
        ('{"wavelengths": [600, 500]}', "rising wavelengths"),
        ('{"wavelengths": [500], "train": ["a"]}', "train: expected an object of texts"),
        ('{"wavelengths": [500], "train": {"../a": "b"}}', "paths inside the data root"),
        ('{"wavelengths": [500], "test": {"/a": "b"}}', "paths inside the data root"),
    ],
)
def test_damaged_manifests(tmp_path, content, message):
    file = tmp_path / "manifest.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=message) as error_info:
        read_manifest(file)
    assert str(file) in str(error_info.value)


def test_other_refusals(manifest, root):
    with pytest.raises(FileNotFoundError, match="no manifest nothing"):
        read_manifest("nothing")
    with pytest.raises(ValueError, match="split: expected train, validation, test, got 'val'"):
        check_split(manifest, "val", root)
    with pytest.raises(ValueError, match="names no train scenes"):
        check_split(Manifest((500.0,)), "train", root)


def test_script_writes_what_is_read(root, monkeypatch):
    alias = "test/scene01.npy=fig"
    command = [str(SCRIPT), str(root), "--alias", alias, "--wavelengths", "500"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert not end.value.code
    manifest = read_manifest(root / "manifest.json")
    assert manifest.wavelengths == (500.0,)
    assert manifest.aliases == {"test/scene01.npy": "fig"}
    for split in SPLITS:
        assert check_split(manifest, split, root).unlisted_files == ()


def test_bundled_manifest():
    manifest = read_manifest("cave")
    assert manifest.wavelengths == BENCHMARK_WAVELENGTHS
    assert [len(manifest.files(split)) for split in SPLITS] == [20, 3, 5]
    names = [manifest.scene_name(path) for split in SPLITS for path in manifest.files(split)]
    assert len(set(names)) == 28
    assert {"flowers", "paints", "watercolors"} <= set(names)


def test_real_data(data_dir):
    manifest = read_manifest("cave")
    for split in SPLITS:
        checked_split = check_split(manifest, split, data_dir)
        assert len(checked_split.paths) == len(manifest.files(split))
        assert checked_split.unlisted_files == ()
