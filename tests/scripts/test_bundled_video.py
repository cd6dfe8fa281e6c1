"""The bundled video is what its script draws, and moves."""

from pathlib import Path

import numpy as np
import tifffile

from cassi.data.bundled import bundled_path
from cassi.data.io import load_cube
from scripts.data.bundled_video import make_video

ROOT = Path(__file__).parents[2]


def test_the_script_draws_the_file():
    scene = tifffile.imread(ROOT / "data" / "scene.tif").astype(np.float64)
    drawn = np.rint(make_video(scene / scene.max()) * 255)
    stored = tifffile.imread(ROOT / "data" / "video.tif")
    assert np.abs(drawn - stored).max() <= 1


def test_it_is_read_as_frames():
    frames = load_cube(bundled_path("video.tif"))
    assert frames.data.shape == (1, 8, 128, 128)
    assert frames.wavelengths is None
    assert frames.data.max() == 1
    assert frames.data.diff(dim=1).abs().mean((0, 2, 3)).min() > 0.02
