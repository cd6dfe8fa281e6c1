"""Time cassi-reconstruct on a folder of snapshots: in one process, in several, by Dask workers.

    python -m scripts.benchmarks.many_snapshots --snapshots 64 --size 256 --method gap_tv
    python -m scripts.benchmarks.many_snapshots --records 100000    # time many records instead

Every process has one thread. The seconds per snapshot are computed from the time between the first
and the last result, so the start of the command does not count. `beyond the method` is this time
without that of the iterations: files, alignment, camera check. With two processes it may be less
than 0. Other programs lengthen these times: measure on an idle machine.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch

from cassi import SDCassi
from cassi.data.store import Store
from scripts.benchmarks.methods import PROCESSORS
from scripts.benchmarks.tables import Parser, Table, write_json

EXECUTORS: dict[str, tuple[str, ...]] = {
    "this process": ("processes=null",),
    "default": (),
    "processes=1": ("processes=1",),
    "processes=2": ("processes=2",),
    "Dask, 1 worker": ("cluster=dask", "cluster.workers=1"),
    "Dask, 2 workers": ("cluster=dask", "cluster.workers=2"),
}


def write_day(folder: Path, count: int, size: int, bands: int) -> list[str]:
    """Write snapshots of a random scene that grows brighter; return the options for them."""
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
    """Print the time to write a record, and to read all records, as a resumed command does."""
    with tempfile.TemporaryDirectory() as name:
        start = time.perf_counter()
        for index in range(count):
            values = {"row": {"psnr": 30.0, "seconds": 1.0}, "files": {"cube.tif": 7340032}}
            Store(name).write(f"{index:06}", "0" * 64, values)
        write_seconds = (time.perf_counter() - start) / count
        start = time.perf_counter()
        Store(name).read_all()
        table = Table("records", "ms to write one", "s to read all")
        table.print(count, 1e3 * write_seconds, time.perf_counter() - start)


def main() -> None:
    """Print a row for each executor, with its speed relative to the first one."""
    parser = Parser(__doc__, threads=1)
    parser.add_argument("--snapshots", type=int, default=64)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--bands", type=int, default=28)
    parser.add_argument("--method", default="gap_tv")
    parser.add_argument("--executors", nargs="+", choices=EXECUTORS, default=list(EXECUTORS))
    parser.add_argument("--processors", nargs="+", choices=PROCESSORS, default=["native"])
    parser.add_argument("--records", type=int, help="number of records; times only these")
    options = parser.parse_args()
    if options.records:
        time_records(options.records)
        return
    columns = ("processor", "s in all", "s a snapshot", "s beyond the method", "times as fast")
    table = Table("executor", *columns)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = write_day(folder, options.snapshots, options.size, options.bands)
        for processor in options.processors:
            first_seconds = None
            for executor in options.executors:
                results = folder / processor / f"{options.executors.index(executor)}"
                command = [sys.executable, "-m", "cassi", "reconstruct", *inputs]
                command += [f"method={options.method}", *EXECUTORS[executor]]
                command += [f"hydra.run.dir={results}"]
                environment = os.environ | PROCESSORS[processor]
                start = time.perf_counter()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
                seconds = time.perf_counter() - start
                # A result's file is written when its snapshot is done.
                files = list(results.glob("*/metrics.json"))
                times = sorted(file.stat().st_mtime for file in files)
                snapshot = (times[-1] - times[0]) / (len(times) - 1)
                first_seconds = first_seconds or snapshot
                seconds_beyond = snapshot - median(
                    json.loads(f.read_text())["seconds"] for f in files
                )
                speed = first_seconds / snapshot
                table.print(executor, processor, seconds, snapshot, seconds_beyond, speed)
    write_json(options.json, "folder", table.rows)


if __name__ == "__main__":
    main()
