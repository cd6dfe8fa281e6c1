"""Ten files as KAIST's test scenes are distributed, with other content."""

import h5py
import numpy as np
import pytest
from scipy.io import savemat

from cassi.apps.evaluate.problems import load_benchmark
from cassi.apps.reconstructors import compose_settings
from cassi.apps.settings import Evaluate

NAMES = [f"scene{number:02d}" for number in range(1, 11)]


def scene(number, size=256):
    """A cube (H, W, 28) that, as interpolated ones do, goes a little below 0."""
    rows, columns, bands = np.ogrid[0:size, 0:size, 0:28]
    cube = np.sin(rows / (9 + number)) * np.cos(columns / 17) * np.exp(-(((bands - 14) / 9) ** 2))
    return 0.49 * (1 + cube) - 0.002


def write(folder, names, cube, key="img", version=5):
    """Write the third scene as it is, the others as links to it."""
    folder.mkdir(parents=True)
    path = folder / "scene03.mat"
    if version == 5:
        savemat(path, {key: cube})
    else:
        # MATLAB 7.3 is HDF5 with the axes in reverse, behind a header of 512 bytes.
        with h5py.File(path, "w", userblock_size=512) as file:
            file[key] = cube.T
            file[key].attrs["MATLAB_class"] = np.bytes_("double")
        with path.open("r+b") as file:
            file.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM")
    for name in set(names) - {"scene03"}:
        (folder / f"{name}.mat").hardlink_to(path)


@pytest.fixture
def load(tmp_path):
    def load(scenes=NAMES, mask=True):
        savemat(tmp_path / "mask.mat", {"mask": np.random.default_rng(0).random((256, 256))})
        options = ["data=kaist", f"paths.data_dir={tmp_path}", f"scenes=[{','.join(scenes)}]"]
        options += [f"mask={tmp_path / 'mask.mat'}"] if mask else []
        return load_benchmark(compose_settings(options, kind=Evaluate))

    return load


@pytest.mark.parametrize(
    ("folder", "dtype", "version"),
    [("kaist", "float64", 5), ("kaist", "float32", 7.3), ("TSA_simu_data/Truth", "float64", 5)],
)
def test_neither_axes_nor_values_change(load, tmp_path, folder, dtype, version):
    write(tmp_path / folder, NAMES, scene(2).astype(dtype), version=version)
    data = load()
    assert data.scenes == NAMES
    truth = data.load("scene03").truth.numpy()
    np.testing.assert_array_equal(truth, scene(2).transpose(2, 0, 1).astype(np.float32))


@pytest.mark.parametrize(
    ("names", "change", "key", "said"),
    [
        (
            NAMES[:7],
            1,
            "img",
            "3 of 10 scenes are missing in .*: expected scene08, scene09, scene10",
        ),
        (NAMES, 1, "truth", "no array 'img'"),
        (NAMES, np.s_[:200], "img", r"scene03.mat.*\(28, 256, 256\), got \(28, 200, "),
        (NAMES, 255, "img", r"values in \[0, 1\], got -0.5"),
    ],
)
def test_files_that_are_not_those_of_the_data_set(load, tmp_path, names, change, key, said):
    cube = scene(2)[change] if isinstance(change, slice) else change * scene(2)
    write(tmp_path / "kaist", names, cube, key)
    with pytest.raises((ValueError, OSError), match=said):
        load().load("scene03")


def test_another_mask_than_the_published_one(load, tmp_path):
    write(tmp_path / "kaist", NAMES, scene(2))
    (tmp_path / "tsa").mkdir()
    savemat(tmp_path / "tsa" / "mask.mat", {"mask": np.ones((256, 256))})
    with pytest.raises(ValueError, match="expected the published file, with checksum 29f528668225"):
        load(["scene01"], mask=False).load("scene01")
