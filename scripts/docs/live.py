"""Take the picture of docs/guides/live.md: cassi-live in a headless Chromium, frame after frame.

    python -m scripts.docs.live

The frames are those of `spectral_video.py`. It needs cave_test below $CASSI_DATA.
"""

import shutil
import tempfile
from pathlib import Path

from scripts.benchmarks.spectral_video import STEP, first_sequence, write
from scripts.docs.spectral_video import WAVELENGTHS
from scripts.docs.view import FOLDER, open_command

FILE = FOLDER / "live.png"
FRAMES = 8
"""Frames that have come when the picture is taken."""
PAUSE = 1500
"""Milliseconds from a cube to the next frame."""


def main() -> None:
    """Feed the folder, and take the picture."""
    truth, camera = first_sequence(FRAMES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, camera, [camera(frame[None]) for frame in truth], truth)
        (folder / "in").mkdir()
        nm = ",".join(f"{value:.1f}" for value in WAVELENGTHS)
        words = [f"source={folder}/in", f"mask={folder}/mask.npy", f"system.step={STEP}"]
        words += [f"wavelengths=[{nm}]", "--output", str(folder / "out")]
        with open_command("live", *words) as (page, _):
            page.get_by_text("waits for the first frame").wait_for()
            for count, frame in enumerate(sorted((folder / "snapshots").iterdir()), 1):
                shutil.copy(frame, folder / "in" / f".{frame.name}")  # with the time of now
                (folder / "in" / f".{frame.name}").rename(folder / "in" / frame.name)
                page.get_by_text(f"{count} done").wait_for()
                page.wait_for_timeout(PAUSE)
            cut = {"x": 0, "y": 0, "width": 1280, "height": 700}
            page.screenshot(path=FILE, clip=cut)
    print(FILE)


if __name__ == "__main__":
    main()
