"""Data sets to evaluate on."""

import numpy as np
import pytest
import torch
from scipy.io import savemat

from cassi.data import io
from cassi.data.benchmarks import Benchmark
from cassi.data.frames import Preprocessing
from cassi.data.manifest import checksum

NM = (450.0, 500.0, 550.0)


@pytest.fixture
def cubes(tmp_path):
    folder = tmp_path / "cubes"
    folder.mkdir()
    for index, name in enumerate(("scene01", "scene02")):
        cube = torch.rand(8, 10, 3, generator=torch.Generator().manual_seed(index))
        savemat(folder / f"{name}.mat", {"img": cube.numpy()})
    return folder


@pytest.fixture
def mask(tmp_path):
    path = tmp_path / "mask.npy"
    np.save(path, np.random.default_rng(0).random((8, 10)).astype(np.float32))
    return path


@pytest.fixture
def pairs(tmp_path):
    """Files that hold a measurement and its mask."""
    folder = tmp_path / "pairs"
    folder.mkdir()
    for name in ("a", "b"):
        arrays = {"y": np.random.rand(8, 14), "mask": np.random.rand(8, 10)}  # noqa: NPY002
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


def test_cubes_as_published(cubes, mask):
    data = Benchmark(
        cubes=cubes,
        mask=mask,
        wavelengths=NM,
        expected=["scene01", "scene02"],
        shape=(3, 8, 10),
        key="img",
        unit_range=True,
        checksums={"scene01": checksum(cubes / "scene01.mat")},
        mask_checksum=checksum(mask),
    )
    assert data.scenes == ["scene01", "scene02"]
    item = data.load("scene02")
    assert torch.equal(item.truth, io.read_cube(cubes / "scene02.mat")[0])
    assert item.mask.shape == (1, 1, 8, 10)
    assert (item.name, item.measurement, item.wavelengths) == ("scene02", None, NM)
    assert "scene02.mat" in item.note
    assert "mask.npy" in item.note


def test_wavelengths_of_the_files_count_where_none_are_wanted(tmp_path, mask):
    io.write_cube(tmp_path / "one.npz", torch.rand(3, 8, 10), NM)
    assert Benchmark(cubes=tmp_path / "one.npz", mask=mask).load("one").wavelengths == NM


def test_crop_and_downsampling(cubes, mask):
    data = Benchmark(cubes=cubes, mask=mask, wavelengths=NM, crop=4)
    item = data.load("scene01")
    assert torch.equal(item.truth, io.read_cube(cubes / "scene01.mat")[0, :, 2:6, 3:7])
    assert torch.equal(item.mask, io.read_mask(mask)[..., 2:6, 3:7])
    half = Benchmark(cubes=cubes, mask=mask, wavelengths=NM, crop=(8, 8), downsample=2)
    assert half.load("scene01").truth.shape == (3, 4, 4)


def test_measurements_with_their_masks(pairs):
    chain = Preprocessing(dark=0.25, scale=2.0)
    data = Benchmark(measurements=pairs, wavelengths=NM, preprocessing=chain)
    item = data.load("b")
    expected = (io.read_measurement(pairs / "b.npz")[0] - 0.25) * 2
    torch.testing.assert_close(item.measurement, expected)
    assert item.preprocessing["dark"]["level"] == 0.25
    assert "dark level 0.25 subtracted, times 2" in item.note
    assert torch.equal(item.mask, io.read_mask(pairs / "b.npz"))
    assert item.truth is None
    assert (item.measurement.shape, item.mask.shape) == ((1, 8, 14), (1, 1, 8, 10))


def test_measurements_with_masks_and_truths_elsewhere(pairs, tmp_path):
    for folder in ("masks", "truths"):
        (tmp_path / folder).mkdir()
    masks = {name: np.random.rand(8, 10) for name in ("a", "b")}  # noqa: NPY002
    for name, values in masks.items():
        np.save(tmp_path / "masks" / f"{name}.npy", values.astype(np.float32))
    io.write_cube(tmp_path / "truths" / "a.npz", torch.rand(3, 8, 10), NM)
    data = Benchmark(
        cubes=tmp_path / "truths", measurements=pairs, mask=tmp_path / "masks", wavelengths=NM
    )
    assert data.load("a").truth is not None
    assert data.load("b").truth is None
    assert np.allclose(data.load("b").mask[0, 0], masks["b"])


def test_a_mask_beside_the_scenes_is_none_of_them(pairs):
    np.save(pairs / "mask.npy", np.ones((8, 10), np.float32))
    data = Benchmark(measurements=pairs, mask=pairs / "mask.npy")
    assert data.scenes == ["a", "b"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cubes": None}, "expected cubes or measurements, got neither"),
        ({"mask": None}, "mask: expected a file, got none"),
        ({"mask": "none.npy"}, "no file or folder none.npy"),
        ({"names": ["scene03"]}, "'scene03' is not there; did you mean scene0"),
        ({"names": ["scene01", "scene01"]}, "'scene01' is given twice"),
        ({"names": []}, "expected at least one"),
        (
            {"expected": ["scene01", "scene09"]},
            "1 of 2 scenes are missing .* expected scene09, there",
        ),
        ({"shape": (3, 10, 8)}, r"expected a cube \(C, H, W\) of \(3, 10, 8\), got \(3, 8, 10\)"),
        ({"checksums": {"scene01": "0" * 64}}, "expected the published file, with checksum 0000"),
        ({"mask_checksum": "0" * 64}, r"mask\.npy: expected the published file"),
        ({"unit_range": True, "key": "cube"}, "no array 'cube'"),
        ({"crop": 9}, "expected at most 8 x 10"),
        ({"crop": 4, "downsample": 3}, None),
    ],
)
def test_refusals_of_cubes(cubes, mask, options, message):
    arguments = {"cubes": cubes, "mask": mask, "wavelengths": NM, **options}
    if message is None:
        assert Benchmark(**arguments).load("scene01").truth.shape[-1] == 1
        return
    with pytest.raises((ValueError, OSError), match=message):
        Benchmark(**arguments).load("scene01")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measurement_shape": (8, 15)}, r"\(H', W'\) of \(8, 15\), got \(8, 14\)"),
        ({"crop": 4}, "a measurement is taken whole"),
        ({"key": "z"}, "no array 'z'"),
    ],
)
def test_refusals_of_measurements(pairs, options, message):
    with pytest.raises(ValueError, match=message):
        Benchmark(measurements=pairs, **options).load("a")


def test_more_refusals(cubes, mask, tmp_path):
    np.save(tmp_path / "small.npy", np.ones((8, 9), np.float32))
    data = Benchmark(cubes=cubes, mask=tmp_path / "small.npy", wavelengths=NM)
    message = r"the mask's size \(8, 9\), got \(8, 10\); give another mask, .*crop=\[8,9\]"
    with pytest.raises(ValueError, match=message):
        data.load("scene01")
    np.savez(cubes / "scene01.npz", img=np.ones((8, 10, 3)))
    (tmp_path / "empty").mkdir()
    for folder, message in ((cubes, "two scenes are called scene01"), ("empty", "found none in")):
        with pytest.raises(ValueError, match=message):
            Benchmark(cubes=tmp_path / folder, mask=mask)


def test_values_of_published_scenes(tmp_path, mask):
    options = {"cubes": tmp_path / "s.mat", "mask": mask, "wavelengths": NM, "unit_range": True}
    savemat(tmp_path / "s.mat", {"img": np.linspace(-0.01, 1.02, 240).reshape(8, 10, 3)})
    item = Benchmark(**options).load("s")
    assert item.truth.min().item() == pytest.approx(-0.01)  # neither clipped nor scaled
    assert item.truth.max().item() == pytest.approx(1.02)
    savemat(tmp_path / "s.mat", {"img": np.linspace(0, 255, 240).reshape(8, 10, 3)})
    with pytest.raises(ValueError, match=r"expected values in \[0, 1\]"):
        Benchmark(**options).load("s")


def test_scenes_are_chosen(cubes, mask):
    data = Benchmark(cubes=cubes, mask=mask, wavelengths=NM, names=["scene02", "scene01"])
    assert data.scenes == ["scene02", "scene01"]  # in this order
    published_set = {"cubes": cubes, "mask": mask, "expected": ["scene01", "scene09"]}
    assert Benchmark(**published_set, names=["scene01"]).scenes == ["scene01"]
    with pytest.raises(FileNotFoundError, match=r"1 of 1 scenes are missing .* expected scene09"):
        Benchmark(**published_set, names=["scene09"])
    with pytest.raises(ValueError, match="'scene02' is not there; did you mean scene0"):
        Benchmark(**published_set, names=["scene02"])
