"""Makes the bundled video: ``python -m scripts.data.bundled_video --out data``.

Eight frames for a video snapshot camera, drawn from the bundled scene: the camera pans over it and
turns a little, from the chart towards the balls, and one ball rolls through the picture. A frame
is the mean of the scene's bands, sampled by cubic splines.
"""

import argparse
from pathlib import Path

import numpy as np
import tifffile
from scipy.ndimage import map_coordinates, spline_filter

from scripts.data.bundled_scene import write_tiff

FRAMES, SIZE = 8, 128
FULL_SCALE = 255


def make_video(scene: np.ndarray) -> np.ndarray:
    """Draw the frames.

    Args:
        scene: `(C, H, W)`, 0 to 1.

    Returns:
        `(8, 128, 128)`, 0 to 1, maximum 1.
    """
    picture = spline_filter(scene.mean(0), order=3)
    frames = np.stack([_frame(picture, number / (FRAMES - 1)) for number in range(FRAMES)])
    return np.clip(frames / frames.max(), 0, 1)


def _frame(picture: np.ndarray, time: float) -> np.ndarray:
    """Sample the picture as the camera sees it; `time` goes from 0 to 1."""
    y, x = np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2
    angle = np.deg2rad(8 * time)
    row = 110 + 26 * time + np.cos(angle) * y + np.sin(angle) * x
    column = 92 + 40 * time - np.sin(angle) * y + np.cos(angle) * x
    frame = map_coordinates(picture, [row, column], order=3, mode="mirror", prefilter=False)
    # A ball of the scene rolls through the picture, faster than the camera.
    across, down = x + 44 - 88 * time, y - 34
    ball = np.hypot(across, down) < 17
    seen = [187 + down[ball], 52 + across[ball]]
    frame[ball] = map_coordinates(picture, seen, order=3, mode="mirror", prefilter=False)
    return frame


def main() -> None:
    """Write ``video.tif``."""
    parser = argparse.ArgumentParser(description="Make the bundled video from the bundled scene.")
    parser.add_argument("--out", type=Path, default=Path("data"), help="folder of scene.tif")
    out = parser.parse_args().out
    scene = tifffile.imread(out / "scene.tif").astype(np.float64)
    frames = np.rint(make_video(scene / scene.max()) * FULL_SCALE).astype(np.uint8)
    about: dict[str, object] = {
        "shape": list(frames.shape),
        "axes": "CYX",
        "full_scale": FULL_SCALE,
    }
    write_tiff(out / "video.tif", frames, about)


if __name__ == "__main__":
    main()
