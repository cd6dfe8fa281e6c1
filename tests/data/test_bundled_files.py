"""The files in `data/` are what their descriptions say."""

import json

import numpy as np
import tifffile
from shared import ROOT

from cassi import viz
from cassi.data.bundled import bundled_path
from cassi.data.io import load_cube
from cassi.data.wavelengths import BENCHMARK_WAVELENGTHS


def _read(name):
    with tifffile.TiffFile(ROOT / "data" / name) as file:
        return file.asarray(), json.loads(file.pages[0].description)


def test_the_files_say_what_they_hold():
    scene, description = _read("scene.tif")
    assert scene.dtype == np.uint16
    assert (list(scene.shape), description["axes"]) == (description["shape"], "CYX")
    assert description["wavelengths_nm"] == list(BENCHMARK_WAVELENGTHS)
    assert scene.max() == description["full_scale"]
    mask, description = _read("mask.tif")
    assert (mask.dtype, mask.shape, description["full_scale"]) == (np.uint8, (256, 256), 255)
    assert mask.min() > 0
    assert 0.45 < mask.mean() / 255 < 0.55
    size = sum(path.stat().st_size for path in (ROOT / "data").glob("*.tif"))
    assert size < 2_000_000


def test_the_hidden_disc_shows_in_bands_only():
    scene, _ = _read("scene.tif")
    picture = viz.srgb(scene, BENCHMARK_WAVELENGTHS).astype(int)
    disc, box = (slice(190, 204), slice(216, 228)), (slice(179, 182), slice(216, 228))
    assert np.abs(picture[disc].mean((0, 1)) - picture[box].mean((0, 1))).max() < 3
    bands = [scene[(slice(None), *area)].mean((1, 2)) for area in (disc, box)]
    assert np.abs(bands[0] / bands[1] - 1).max() > 0.3


def test_the_video_is_read_as_frames():
    frames = load_cube(bundled_path("video.tif"))
    assert frames.data.shape == (1, 8, 128, 128)
    assert frames.wavelengths is None
    assert frames.data.max() == 1
    assert frames.data.diff(dim=1).abs().mean((0, 2, 3)).min() > 0.02
