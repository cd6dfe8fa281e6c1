"""Measure how many snapshots are shared by several processes.

    python -m scripts.benchmarks.many_snapshots --snapshots 64 --size 256 --method gap_tv
    python -m scripts.benchmarks.many_snapshots --records 100000    # how soon a command goes on

The whole command on a folder, one thread each. The seconds a snapshot are those between the first
and the last result, without the start. Busy neighbours spoil them: measure on an idle machine.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from cassi import SDCassi
from cassi.data.store import Store
from scripts.benchmarks.tables import Parser, Table

EXECUTORS = {
    "processes=1": ("processes=1",),
    "processes=2": ("processes=2",),
    "Dask, 1 worker": ("cluster=dask", "cluster.workers=1"),
    "Dask, 2 workers": ("cluster=dask", "cluster.workers=2"),
}


def write_day(folder: Path, count: int, size: int, bands: int) -> list[str]:
    """Write snapshots of a drawn scene, each a little brighter; return the options for them."""
    generator = torch.Generator().manual_seed(0)
    mask = (torch.rand(size, size, generator=generator) > 0.5).float()
    patches = torch.rand(bands, 8, 8, generator=generator)
    cube = torch.nn.functional.interpolate(patches[None], (size, size), mode="bilinear")
    frame = SDCassi(mask, bands=bands, step=1)(cube)[0, 0].numpy()
    (folder / "day").mkdir()
    np.save(folder / "mask.npy", mask.numpy())
    for index in range(count):
        np.save(folder / "day" / f"{index:06}.npy", frame * (1 + index / count))
    camera = [f"measurement={folder / 'day'}", f"mask={folder / 'mask.npy'}", "system.step=1"]
    return [*camera, "output.pictures=false", f"system.bands={bands}", "threads=1"]


def time_records(count: int) -> None:
    """Print how long records take to be written, and to be read when a command goes on."""
    with tempfile.TemporaryDirectory() as name:
        start = time.perf_counter()
        for index in range(count):
            values = {"row": {"psnr": 30.0, "seconds": 1.0}, "files": {"cube.tif": 7340032}}
            Store(name).write(f"{index:06}", "0" * 64, values)
        each = (time.perf_counter() - start) / count
        start = time.perf_counter()
        Store(name).all()
        table = Table("records", "ms to write one", "s to read all")
        table.print(count, 1e3 * each, time.perf_counter() - start)


def main() -> None:
    """Print a row for each executor, and how many times as fast it is as the first."""
    parser = Parser(__doc__, threads=1)
    parser.add_argument("--snapshots", type=int, default=64)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--bands", type=int, default=28)
    parser.add_argument("--method", default="gap_tv")
    parser.add_argument("--executors", nargs="+", choices=EXECUTORS, default=list(EXECUTORS))
    parser.add_argument("--records", type=int, help="time so many records alone")
    options = parser.parse_args()
    if options.records:
        time_records(options.records)
        return
    table = Table("executor", "s in all", "s a snapshot", "times as fast")
    steady: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given = write_day(folder, options.snapshots, options.size, options.bands)
        for executor in options.executors:
            into = folder / f"{len(steady)}"
            command = [sys.executable, "-m", "cassi", "reconstruct", *given]
            command += [f"method={options.method}", *EXECUTORS[executor], f"hydra.run.dir={into}"]
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            whole = time.perf_counter() - start
            ended = sorted(file.stat().st_mtime for file in into.glob("*/metrics.json"))
            steady.append((ended[-1] - ended[0]) / (len(ended) - 1))
            table.print(executor, whole, steady[-1], steady[0] / steady[-1])


if __name__ == "__main__":
    main()
