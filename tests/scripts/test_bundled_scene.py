<<<<<<<< HEAD:tests/data/test_bundled.py
"""The bundled scene and video are what their scripts draw, and show what they should."""

========
>>>>>>>> docs2:tests/scripts/test_bundled_scene.py
import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import tifffile

from cassi import viz
<<<<<<<< HEAD:tests/data/test_bundled.py
from cassi.data.bundled import bundled_path
from cassi.data.io import load_cube
from cassi.data.wavelengths import BENCHMARK_WAVELENGTHS
========
from cassi.data.wavelengths import BENCHMARK_WAVELENGTHS
from scripts.data import bundled_scene as script
>>>>>>>> docs2:tests/scripts/test_bundled_scene.py

ROOT = Path(__file__).parents[2]


<<<<<<<< HEAD:tests/data/test_bundled.py
@pytest.fixture(scope="module")
def script():
    return SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "make_bundled_scene.py")))


========
>>>>>>>> docs2:tests/scripts/test_bundled_scene.py
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


def test_the_same_pages_give_the_same_bytes(tmp_path):
    pages = np.arange(2 * 256 * 256, dtype=np.uint16).reshape(2, 256, 256)
    for name in ("a.tif", "b.tif"):
        script.write_tiff(tmp_path / name, pages, {"shape": list(pages.shape)})
    assert (tmp_path / "a.tif").read_bytes() == (tmp_path / "b.tif").read_bytes()


def test_the_hidden_disc_shows_in_bands_only():
    scene, _ = _read("scene.tif")
    picture = viz.srgb(scene, BENCHMARK_WAVELENGTHS).astype(int)
    disc, box = (slice(190, 204), slice(216, 228)), (slice(179, 182), slice(216, 228))
    assert np.abs(picture[disc].mean((0, 1)) - picture[box].mean((0, 1))).max() < 3
    bands = [scene[(slice(None), *area)].mean((1, 2)) for area in (disc, box)]
    assert np.abs(bands[0] / bands[1] - 1).max() > 0.3


def test_the_script_draws_the_video():
    make_video = runpy.run_path(str(ROOT / "scripts" / "make_bundled_video.py"))["make_video"]
    scene = tifffile.imread(ROOT / "data" / "scene.tif").astype(np.float64)
    drawn = np.rint(make_video(scene / scene.max()) * 255)
    stored = tifffile.imread(ROOT / "data" / "video.tif")
    assert np.abs(drawn - stored).max() <= 1


def test_the_video_is_read_as_frames():
    frames = load_cube(bundled_path("video.tif"))
    assert frames.data.shape == (1, 8, 128, 128)
    assert frames.wavelengths is None
    assert frames.data.max() == 1
    assert frames.data.diff(dim=1).abs().mean((0, 2, 3)).min() > 0.02
