"""cassi-live on a folder that fills: frames a second, delay, memory, broken frames.

    python -m scripts.benchmarks.live                    # three minutes, 2.5 frames a second
    python -m scripts.benchmarks.live --seconds 600 --rate 10 --record

Frames of 256×256 pixels and 28 bands are those of `spectral_video.py`, there and back, of a scene
of `cave_test` below $CASSI_DATA. Another process writes them; every 20th file is broken.
"""

import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from cassi.apps.live.engine import Live
from cassi.apps.live.sources import FolderSource
from cassi.apps.reconstructors import compose_settings
from cassi.data.day_store import Recording
from scripts.benchmarks.spectral_video import BANDS, STEP, first_sequence
from scripts.benchmarks.tables import Parser, Table

_FEED = """
import os, sys, time
import numpy as np
folder, rate, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
frames = np.load(folder + "/frames.npz")["frames"]
order = [*range(len(frames)), *range(len(frames) - 2, 0, -1)]
start, count = time.time(), 0
while time.time() - start < seconds:
    path = f"{folder}/in/{count:06d}"
    if count % 20 == 13:
        open(path + ".npy", "wb").write(b"\\x93NUMPY broken")
    else:
        np.save(f"{folder}/in/.part.npy", frames[order[count % len(order)]])
        os.rename(f"{folder}/in/.part.npy", path + ".npy")
    old = f"{folder}/in/{count - 30:06d}.npy"
    if os.path.exists(old):
        os.remove(old)
    count += 1
    time.sleep(max(0.0, start + count / rate - time.time()))
"""


def resident() -> float:
    """Return the memory of this process, MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def main() -> None:
    """Read the options, and run."""
    parser = Parser(__doc__)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--rate", type=float, default=2.5, help="frames a second that come")
    parser.add_argument("--record", action="store_true", help="into a Zarr store as well")
    options = parser.parse_args()
    truth, camera = first_sequence()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        np.save(folder / "mask.npy", camera.mask[0, 0].numpy())
        np.savez(folder / "frames.npz", frames=camera(truth)[:, 0].numpy())
        given = [f"mask={folder}/mask.npy", f"system.step={STEP}", f"system.bands={BANDS}"]
        settings = compose_settings([*given, f"threads={options.threads}"])
        said: list[str] = []
        record = Recording(folder / "day.zarr") if options.record else None
        live = Live(settings, FolderSource(folder / "in"), record, said.append)
        thread = threading.Thread(target=live.run)
        thread.start()
        words = [str(folder), str(options.rate), str(options.seconds)]
        feed = subprocess.Popen([sys.executable, "-c", _FEED, *words])
        delays: list[float] = []
        memory, first = 0.0, 0.0
        while feed.poll() is None:
            view = live.view
            if view is not None and len(delays) < view.number:
                delays += [view.delay] * (view.number - len(delays))
                first = first or time.perf_counter()
                if view.number <= 30:  # caches fill
                    memory = resident()
                end = time.perf_counter()
            time.sleep(0.02)
        grown = resident() - memory
        live.stop()
        thread.join()
    table = Table("frames/s", "delay, median", "delay, 95 %", "dropped", "broken", "MB grown")
    steady = sorted(delays[5:])
    rate = (len(delays) - 1) / (end - first)
    cells = f"{steady[len(steady) // 2]:.2f} s", f"{steady[int(0.95 * len(steady))]:.2f} s"
    table.print(f"{rate:.2f}", *cells, live.dropped, live.broken, f"{grown:+.0f}")
    print("last of the messages:", *said[-3:], sep="\n  ")
    print("method:", live.view and live.view.method)


if __name__ == "__main__":
    main()
