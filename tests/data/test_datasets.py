"""Data sets: the same samples for any number of workers; splits from folders and manifests."""

import os
from itertools import islice

import numpy as np
import pytest
import torch
from shared import uniform
from torch.utils.data import DataLoader

import cassi
from cassi.data.augment import Augment
from cassi.data.datasets import TrainingCrops, WholeScenes, load_split
from cassi.data.manifest import Manifest, checksum
from cassi.data.scenes import Scene
from cassi.data.wavelengths import BENCHMARK_WAVELENGTHS

BANDS = (450.0, 550.0)
ALL_VARIATIONS = Augment(splice=0.5, mix=0.5, scale=(0.8, 1.2), brightness=(0.5, 1.0))


@pytest.fixture
def scenes():
    return [Scene(f"s{k}", uniform(2, 12, 14, seed=k), BANDS).compact() for k in range(3)]


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "data"
    for seed, name in enumerate(("train/b", "train/a", "validation/c", "test/d")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        cassi.write_cube(folder / f"{name}.tif", uniform(3, 8, 9, seed=seed), [450, 500, 550])
    return folder


def test_a_sample_depends_on_seed_and_index_alone(scenes):
    data = TrainingCrops(scenes, size=6, length=8, seed=1, augment=ALL_VARIATIONS)
    samples = list(data)
    assert len(samples) == len(data) == 8
    assert all(s.shape == (2, 6, 6) and s.dtype == torch.float32 for s in samples)
    assert len({sample.sum().item() for sample in samples}) == 8
    torch.manual_seed(5)
    same_crops = TrainingCrops(scenes, size=6, length=100, seed=1, augment=ALL_VARIATIONS)
    for index in (7, 0, 3):
        assert torch.equal(same_crops[index], samples[index])
    other_seed_crops = TrainingCrops(scenes, size=6, length=8, seed=2, augment=ALL_VARIATIONS)
    assert not torch.equal(other_seed_crops[0], samples[0])
    assert same_crops[10**9].shape == (2, 6, 6)
    with pytest.raises(IndexError):
        data[-1]


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_give_the_same_batches(scenes, workers):
    data = TrainingCrops(scenes, size=(6, 4), length=8, seed=1, augment=ALL_VARIATIONS)
    loader = DataLoader(data, batch_size=2, num_workers=workers, multiprocessing_context="fork")
    for batch, expected in zip(loader, DataLoader(data, batch_size=2), strict=True):
        assert torch.equal(batch, expected)


def test_crops_that_are_refused(scenes):
    odd_scene = Scene("odd", torch.ones(3, 12, 12), (1.0, 2.0, 3.0))
    half = {"size": 8, "augment": Augment(scale=(0.5, 1))}
    for scenes_argument, options, message in (
        (scenes, {"size": 13}, "13 x 13 needs .* at least 13 x 13, s0 is 12 x 14"),
        (scenes, half, "8 x 8 needs scenes of at least 16 x 16"),
        *((scenes, {"size": s}, "size: expected a pos") for s in (0, (1, 2, 3), (2, -1), "ab")),
        (scenes, {"length": 0}, "length: expected at least 1"),
        ([], {}, "at least one, got none"),
        ([*scenes, odd_scene], {}, "one number of bands, got 2 in s0 and 3 in odd"),
    ):
        with pytest.raises(ValueError, match=message):
            TrainingCrops(scenes_argument, **{"size": 4, "length": 1, **options})


def test_whole_scenes(scenes):
    assert WholeScenes(scenes).names == ["s0", "s1", "s2"]
    assert [cube.shape for cube in islice(WholeScenes(scenes), 3)] == [(2, 12, 14)] * 3
    assert torch.equal(WholeScenes(scenes)[1], scenes[1].values())
    cropped_scene = WholeScenes(scenes, crop=(6, 8))[2]
    assert torch.equal(cropped_scene, scenes[2].values(3, 3, 6, 8))
    small_scene = WholeScenes(scenes, crop=(6, 8), downsample=2)[2]
    torch.testing.assert_close(small_scene, cropped_scene.view(2, 3, 2, 4, 2).mean((2, 4)))
    with pytest.raises(ValueError, match="crop: expected at most 12 x 14, the size of s0"):
        WholeScenes(scenes, crop=13)
    for downsample in (0, 13):
        with pytest.raises(ValueError, match="downsample: expected at"):
            WholeScenes(scenes, downsample=downsample)


def test_split_from_folders(root):
    scenes = load_split(root, "train", wavelengths=BANDS)
    assert [scene.name for scene in scenes] == ["a", "b"]
    assert all(scene.cube.dtype == torch.uint16 for scene in scenes)
    torch.testing.assert_close(
        scenes[0].values(), uniform(3, 8, 9, seed=1)[[0, 2]], rtol=0, atol=1e-5
    )
    listed_scenes = load_split(
        [root / "test", root / "train" / "a.tif"], "train", wavelengths=BANDS
    )
    assert [scene.name for scene in listed_scenes] == ["d", "a"]


def test_test_scene_in_a_training_folder(root):
    (root / "train" / "x.tif").write_bytes((root / "test" / "d.tif").read_bytes())
    with pytest.raises(ValueError, match=r"x\.tif is the test scene .*d\.tif; take it out of the"):
        load_split(root, "train", wavelengths=BANDS)
    assert load_split(root, "validation", wavelengths=BANDS)
    (root / "train" / "x.tif").rename(root / "train" / "D_ms.tif")
    cassi.write_cube(root / "test" / "d.tif", uniform(3, 8, 9, seed=8), [450, 500, 550])
    with pytest.raises(ValueError, match=r"D_ms\.tif is the test scene"):
        load_split(root, "train", wavelengths=BANDS)


def test_numbers_are_no_names(root):
    (root / "train" / "a.tif").rename(root / "train" / "scene01.tif")
    (root / "test" / "d.tif").rename(root / "test" / "scene01.tif")
    assert len(load_split(root, "train", wavelengths=BANDS)) == 2


def test_split_from_a_manifest(root):
    name = "train/b.tif"
    manifest = Manifest(BANDS, train={name: checksum(root / name)})
    left_out = "1 scenes beside the train data are not in the manifest and are left out: a.tif"
    with pytest.warns(UserWarning, match=left_out):
        scenes = load_split(root, "train", wavelengths=BANDS, manifest=manifest)
    assert [scene.name for scene in scenes] == ["b"]
    with pytest.raises(TypeError, match="one folder"):
        load_split([root], "train", wavelengths=BANDS, manifest=manifest)


def test_cache(root, tmp_path):
    cache = tmp_path / "deep" / "cache"
    loaded_scenes = load_split(root, "train", wavelengths=BANDS)
    for _ in range(2):
        mapped_scenes = load_split(root, "train", wavelengths=BANDS, cache=cache)
        assert len(list(cache.iterdir())) == 2
        for loaded_scene, mapped_scene in zip(loaded_scenes, mapped_scenes, strict=True):
            assert loaded_scene.name == mapped_scene.name
            assert torch.equal(loaded_scene.cube, mapped_scene.cube)
    copies = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    mapped_scenes[0].cube.zero_()  # writes to memory alone
    assert load_split(root, "train", wavelengths=BANDS, cache=cache)[0].cube.any()
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == copies
    load_split(root, "train", wavelengths=BANDS[:1], cache=cache)
    assert len(list(cache.iterdir())) == 4
    os.utime(root / "train" / "a.tif", ns=(1, 1))
    load_split(root, "train", wavelengths=BANDS, cache=cache)
    assert len(list(cache.iterdir())) == 5


def test_the_cache_keeps_the_scale(root, tmp_path):
    cube = uniform(3, 20, 20)
    cube[0, 0, 0] = 2.75
    cassi.write_cube(root / "train" / "a.tif", cube, [450, 500, 550])
    for _ in range(2):
        scenes = load_split(root, "train", wavelengths=BANDS, cache=tmp_path / "cache")
        assert WholeScenes(scenes).scales == [2.75, 1]


def test_splits_that_are_refused(root):
    (root / "validation" / "c.tif").unlink()
    for root_argument, split, wavelengths, message in (
        (root / "train", "train", BANDS, "expected train, validation, test in the data"),
        (root, "validation", BANDS, "expected scenes, found none in"),
        ([root / "validation"], "test", BANDS, "expected scenes for test, found none"),
        (root, "train", [440, 500], "440 nm would be extrapolated"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            load_split(root_argument, split, wavelengths=wavelengths)


def test_real_splits(data_dir):
    scenes = load_split(data_dir, "validation", wavelengths=BENCHMARK_WAVELENGTHS, manifest="cave")
    assert [scene.name for scene in scenes] == ["cloth", "paints", "real_and_fake_apples"]
    crop = TrainingCrops(scenes, size=256, length=1)[0]
    assert crop.shape == (28, 256, 256)
    assert np.isfinite(crop.numpy()).all()
    downsampled_scene = WholeScenes(scenes, downsample=2)[0]
    assert downsampled_scene.shape == (28, 256, 256)


def test_names_and_axes_of_files_that_leave_them_open(tmp_path):
    cube = torch.rand(6, 6, 8, generator=torch.Generator().manual_seed(0))
    np.savez(tmp_path / "a.npz", mine=cube.permute(1, 2, 0).numpy(), other=np.zeros((6, 6, 8)))
    options = {"wavelengths": range(450, 510, 10), "cache": tmp_path / "cache"}
    with pytest.raises(ValueError, match=r"pass data\.key="):
        load_split([tmp_path / "a.npz"], "train", **options)
    for _ in range(2):  # read, and from the copy
        (scene,) = load_split([tmp_path / "a.npz"], "train", key="mine", axes="HWC", **options)
        assert torch.allclose(scene.values(), cube, atol=1e-5)
    np.savez(tmp_path / "b.npz", mine=np.ones((6, 6, 8)))
    with pytest.raises(ValueError, match=r"pass data\.axes="):
        load_split([tmp_path / "b.npz"], "train", **options)
