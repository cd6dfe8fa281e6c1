"""The toolbox of MST: its files, and its batches, equal to the last bit.

`published_batch` is the rule of `shuffle_crop` of the toolbox, written anew from its description.
"""

# ruff: noqa: NPY002  (the toolbox draws from numpy.random)

import random

import numpy as np
import pytest
import torch
from scipy.io import savemat
from shared import write_toolbox
from torch.utils.data import DataLoader

from cassi.data.mst import FOLDERS, Toolbox, ToolboxBatches, cut_sample, draw_batch, list_scenes
from cassi.data.scenes import Scene
from cassi.data.wavelengths import BENCHMARK_WAVELENGTHS

BANDS = BENCHMARK_WAVELENGTHS


@pytest.fixture
def root(tmp_path):
    return write_toolbox(tmp_path / "datasets", side=20, crop=16)


def load(root, split="train", **options):
    return Toolbox(root, BANDS, **options)(split)


def published_values(root, name, file):
    """Return a cube (H, W, C) as the code of the toolbox has it in memory, in float32."""
    from scipy.io import loadmat

    content = loadmat(root / name / file)
    if name == "cave_1024_28":
        return (content.get("img_expand", content.get("img")) / 65536.0).astype(np.float32)
    if name == "CAVE_512_28":
        return np.clip(content["data_slice"] / 65535.0, 0, 1).astype(np.float32)
    key = "HSI" if name == "KAIST_CVPR2021" else "img"
    cube = content[key]
    return (np.clip(cube, 0, 1) if key == "HSI" else cube).astype(np.float32)


def published_batch(scenes, batch_size, size):
    """Cut a batch of cubes (H, W, C), with numbers of `numpy.random` and `random`."""
    half, scene_indices, crops = size // 2, np.random.choice(len(scenes), batch_size // 2), []
    for index in scene_indices:
        height, width, _ = scenes[index].shape
        top = np.random.randint(0, height - size)
        left = np.random.randint(0, width - size)
        crops.append(scenes[index][top : top + size, left : left + size])
    batch = []
    for crop in crops:
        turns, mirror, upset = random.randint(0, 3), random.randint(0, 1), random.randint(0, 1)
        crop = np.rot90(crop, turns)
        crop = crop[:, ::-1] if mirror else crop
        batch.append(crop[::-1] if upset else crop)
    for _ in range(batch_size - batch_size // 2):
        parts = []
        for index in np.random.randint(0, len(scenes), 4):
            top = np.random.randint(0, height - half)
            left = np.random.randint(0, width - half)
            parts.append(scenes[index][top : top + half, left : left + half])
        batch.append(np.vstack([np.hstack(parts[:2]), np.hstack(parts[2:])]))
    return np.stack(batch).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("name", FOLDERS)
def test_values_are_those_of_the_toolbox(root, name):
    split, options = ("test", {}) if name.startswith("TSA") else ("train", {"train": [name]})
    scenes, paths = load(root, split, **options), list_scenes(root, name)
    assert [scene.name for scene in scenes] == [path.stem for path in paths]
    for scene, path in zip(scenes, paths, strict=True):
        expected = published_values(root, name, path.name).transpose(2, 0, 1)
        assert np.array_equal(scene.values().numpy(), expected)
        assert scene.wavelengths == BANDS


def test_numbers_beyond_205_are_left_out_and_10_comes_before_2(root):
    assert [scene.name for scene in load(root)] == ["scene1", "scene10", "scene2"]
    assert (root / "cave_1024_28" / "scene206.mat").exists()


def test_counts_take_two_bytes_and_nothing_is_clipped(root):
    one_scene, ten, two = load(root)
    assert one_scene.cube.dtype == ten.cube.dtype == torch.uint16
    # Not whole numbers, and beyond the range of two bytes.
    assert two.cube.dtype == torch.float32
    assert two.values().max() > 1


def test_copies_in_a_cache_have_the_same_values(root, tmp_path):
    for train in (["cave_1024_28"], ["CAVE_512_28", "KAIST_CVPR2021"]):
        loaded_scenes = load(root, train=train)
        for _ in range(2):
            cached_scenes = load(root, train=train, cache=tmp_path / "cache")
            for a, b in zip(loaded_scenes, cached_scenes, strict=True):
                assert torch.equal(a.values(), b.values())
    assert len(list((tmp_path / "cache").iterdir())) == 3 + 4


@pytest.mark.parametrize("batch_size", [2, 5])
def test_batches_equal_those_of_the_toolbox(batch_size, tmp_path):
    side, size = 20, 16
    root = write_toolbox(tmp_path, side=side, crop=size)
    scenes, paths = load(root), list_scenes(root, "cave_1024_28")
    cubes = [published_values(root, "cave_1024_28", path.name) for path in paths]
    np.random.seed(3)
    random.seed(4)
    places, turns = np.random.RandomState(3), random.Random(4)
    for _ in range(4):
        draws = draw_batch(len(scenes), side, side, size, batch_size, places, turns)
        batch = torch.stack([cut_sample(scenes, size, draw) for draw in draws])
        assert batch.dtype == torch.float32
        assert np.array_equal(batch.numpy(), published_batch(cubes, batch_size, size))


def test_a_sample_depends_on_seed_and_index_alone(root):
    def batches(seed, length=10):
        return ToolboxBatches(load(root), size=16, length=length, batch_size=5, seed=seed)

    samples = [batches(1)[index] for index in range(10)]
    loader = DataLoader(batches(1), batch_size=5, num_workers=2, multiprocessing_context="fork")
    assert torch.equal(torch.cat(list(loader)), torch.stack(samples))
    assert len({sample.numpy().tobytes() for sample in samples}) == 10
    assert not torch.equal(batches(2)[0], samples[0])
    assert torch.equal(batches(1, length=1)[7], samples[7])
    with pytest.raises(IndexError):
        batches(1)[-1]


def scene(side, name="a", bands=2):
    return Scene(name, torch.rand(bands, side, side), BANDS[:bands])


@pytest.mark.parametrize(
    ("scenes", "size", "message"),
    [
        ([scene(8), scene(9, "b")], 4, "one size, .* 8 x 8 in a and 9 x 9 in b"),
        ([scene(8)], 8, "less than 8, the size of the scenes"),
        ([scene(8)], 5, "an even number"),
        ([scene(8)], [4, 4], "an even number"),
        ([], 4, "at least one"),
    ],
)
def test_batches_that_the_toolbox_could_not_cut(scenes, size, message):
    with pytest.raises(ValueError, match=message):
        ToolboxBatches(scenes, size=size, length=1, batch_size=5)


def test_a_missing_folder_is_named_with_what_is_expected(root, tmp_path):
    with pytest.raises(FileNotFoundError, match="the folder datasets of the MST toolbox, in which"):
        load(tmp_path / "elsewhere")
    (tmp_path / "cave_1024_28").mkdir()
    with pytest.raises(ValueError, match=r"such as scene1\.mat, found none"):
        load(tmp_path)
    with pytest.raises(ValueError, match="train: expected folders among cave_1024_28, CAVE"):
        load(root, train=["cave"])


def test_links_below_the_root_are_followed(root, tmp_path_factory):
    folder, outside_file = root / "cave_1024_28", tmp_path_factory.mktemp("outside") / "scene6.mat"
    outside_file.write_bytes((folder / "scene1.mat").read_bytes())
    (folder / "scene1.mat").rename(root / "one.mat")
    (folder / "scene5.mat").symlink_to(root / "one.mat")
    (folder / "scene6.mat").symlink_to(outside_file)
    folder.rename(root / "elsewhere")
    folder.symlink_to(root / "elsewhere")
    with pytest.warns(UserWarning, match=r"scene6\.mat \(its link leads out of "):
        assert [scene.name for scene in load(root)] == ["scene10", "scene2", "scene5"]


def test_a_file_of_another_kind_is_named(root):
    savemat(root / "cave_1024_28" / "scene3.mat", {"other": np.ones((20, 20, 28))})
    with pytest.raises(ValueError, match=r"scene3\.mat: no array 'img'"):
        load(root)
    savemat(root / "cave_1024_28" / "scene3.mat", {"img": np.ones((20, 20, 31))})
    with pytest.raises(ValueError, match=r"scene3\.mat: .*28.*31"):
        load(root)


def test_a_test_scene_in_the_training_folder_is_an_error(root):
    content = (root / "TSA_simu_data" / "Truth" / "scene01.mat").read_bytes()
    (root / "cave_1024_28" / "scene7.mat").write_bytes(content)
    with pytest.raises(ValueError, match=r"scene7\.mat is the test scene .*scene01\.mat"):
        load(root)
