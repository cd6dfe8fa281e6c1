import json
from pathlib import Path

import numpy as np
import tifffile

from cassi import viz
from cassi.data.wavelengths import BENCHMARK_WAVELENGTHS
from scripts.data import bundled_scene as script

ROOT = Path(__file__).parents[2]


def _read(name):
    with tifffile.TiffFile(ROOT / "data" / name) as file:
        return file.asarray(), json.loads(file.pages[0].description)


def test_the_files_say_what_they_hold():
    scene, about = _read("scene.tif")
    assert scene.dtype == np.uint16
    assert (list(scene.shape), about["axes"]) == (about["shape"], "CYX")
    assert about["wavelengths_nm"] == list(BENCHMARK_WAVELENGTHS)
    assert scene.max() == about["full_scale"]
    mask, about = _read("mask.tif")
    assert (mask.dtype, mask.shape, about["full_scale"]) == (np.uint8, (256, 256), 255)
    assert mask.min() > 0
    assert 0.45 < mask.mean() / 255 < 0.55
    size = sum(path.stat().st_size for path in (ROOT / "data").glob("*.tif"))
    assert size < 2_000_000


def test_the_script_makes_these_pixels_again():
    scene, about = _read("scene.tif")
    again = script.make_scene() * about["full_scale"]
    # Half a level is rounding; a little more, another libm.
    assert np.abs(again - scene).max() < 0.51
    mask, _ = _read("mask.tif")
    assert np.abs(script.make_mask() * 255 - mask).max() < 0.51


def test_the_hidden_disc_shows_in_bands_only():
    scene, _ = _read("scene.tif")
    picture = viz.srgb(scene, BENCHMARK_WAVELENGTHS).astype(int)
    disc, box = (slice(190, 204), slice(216, 228)), (slice(179, 182), slice(216, 228))
    assert np.abs(picture[disc].mean((0, 1)) - picture[box].mean((0, 1))).max() < 3
    bands = [scene[(slice(None), *area)].mean((1, 2)) for area in (disc, box)]
    assert np.abs(bands[0] / bands[1] - 1).max() > 0.3
