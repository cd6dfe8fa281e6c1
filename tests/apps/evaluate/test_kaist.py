"""cassi-evaluate on ten files as KAIST's test scenes are distributed, with other content."""

import h5py
import numpy as np
import pytest
from scipy.io import savemat
from shared import before_a_push

from cassi.apps.evaluate.problems import load_benchmark
from cassi.apps.reconstructors import compose_settings
from cassi.apps.settings import Evaluate

NAMES = [f"scene{number:02d}" for number in range(1, 11)]
QUICK = "reconstructors=[{name: gap, method: gap_tv, overrides: {solver.iterations: 2}}]"
PLAIN = ("data=kaist", QUICK, "report=false", "figures=false", "progress=false")


def scene(number, size=256):
    """A cube (H, W, 28) that, as interpolated ones do, goes a little below 0."""
    rows, columns, bands = np.ogrid[0:size, 0:size, 0:28]
    cube = np.sin(rows / (9 + number)) * np.cos(columns / 17) * np.exp(-(((bands - 14) / 9) ** 2))
    return 0.49 * (1 + cube) - 0.002


def write_all(folder, names, change=lambda cube: cube, key="img", version=5, own=(0, 1, 2, 9)):
    """Write some scenes as they are, the others as the one before."""
    for number, name in enumerate(names):
        if number in own:
            write(folder / f"{name}.mat", change(scene(number)), key, version)
        else:
            (folder / f"{name}.mat").hardlink_to(folder / f"{names[number - 1]}.mat")


def write(path, cube, key="img", version=5):
    path.parent.mkdir(parents=True, exist_ok=True)
    if version == 5:
        savemat(path, {key: cube})
        return
    # MATLAB 7.3 is HDF5 with the axes in reverse, behind a header of 512 bytes.
    with h5py.File(path, "w", userblock_size=512) as file:
        file[key] = cube.T
        file[key].attrs["MATLAB_class"] = np.bytes_("double")
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM")


@pytest.fixture
def evaluate(commands, tmp_path):
    """Run the command on the folder `tmp_path`, with a mask of this test."""
    run = commands("evaluate")
    mask = np.random.default_rng(0).random((256, 256)).astype(np.float32)
    savemat(tmp_path / "mask.mat", {"mask": mask})

    def start(*options):
        paths = (f"paths.data_dir={tmp_path}", f"mask={tmp_path / 'mask.mat'}")
        return run(*PLAIN, *paths, *options)

    return start


@pytest.mark.parametrize(
    ("folder", "dtype", "version"),
    before_a_push(
        [("kaist", "float64", 5), ("kaist", "float32", 7.3), ("TSA_simu_data/Truth", "float64", 5)],
        [("kaist", "float32", 7.3)],
    ),
)
def test_all_ten_scenes_are_evaluated(evaluate, tmp_path, folder, dtype, version):
    write_all(tmp_path / folder, NAMES, lambda cube: cube.astype(dtype), version=version)
    evaluate("scenes=[scene10,scene02]").ok()
    rows = (tmp_path / "run" / "results.csv").read_text().splitlines()
    assert [row.split(",")[:2] for row in rows[1:]] == [
        ["gap", "scene10"], ["gap", "scene02"], ["gap", "mean"],
    ]  # fmt: skip
    # Neither axes nor values were changed on the way.
    options = ["data=kaist", f"paths.data_dir={tmp_path}", f"mask={tmp_path / 'mask.mat'}"]
    data = load_benchmark(compose_settings(options, kind=Evaluate))
    assert data.scenes == NAMES
    truth = data.load("scene03").truth.numpy()
    np.testing.assert_array_equal(truth, scene(2).transpose(2, 0, 1).astype(np.float32))


@pytest.mark.parametrize(
    ("names", "change", "key", "said"),
    [
        (NAMES[:7], None, "img", ["3 of 10 scenes are missing in ", "expected scene08, scene09, "
         "scene10, there is scene01, scene02, scene03 and 4 more"]),
        (NAMES, None, "truth", ["no array 'img'"]),
        (NAMES, lambda cube: cube[:200], "img", ["scene01.mat", "(28, 256, 256), got (28, 200, "]),
        (NAMES, lambda cube: 255 * cube, "img", ["values in [0, 1], got -0.5088 to 249.4"]),
    ],
)  # fmt: skip
def test_files_that_are_not_those_of_the_data_set(evaluate, tmp_path, names, change, key, said):
    write_all(tmp_path / "kaist", names, change or (lambda cube: cube), key, own=(0,))
    line = evaluate().refusal
    assert all(words in line for words in said)


def test_another_mask_than_the_published_one(evaluate, tmp_path):
    write(tmp_path / "kaist" / "scene01.mat", scene(0))
    (tmp_path / "tsa").mkdir()
    (tmp_path / "mask.mat").rename(tmp_path / "tsa" / "mask.mat")
    line = evaluate("scenes=[scene01]", "mask=null").refusal
    assert "expected the published file, with checksum 29f528668225" in line
