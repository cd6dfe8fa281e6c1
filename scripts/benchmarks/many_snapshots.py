"""Measure how many snapshots and jobs are shared, by each executor.

    python -m scripts.benchmarks.many_snapshots --snapshots 64 --size 256 --method gap_tv

The whole command on a folder, with one and with two workers, one thread each. The seconds a
snapshot are those between the first and the last result, without the start. A machine that does
other things spoils the seconds of the clock; those of the processor show what two workers would
gain on free cores. One big scene in blocks: `big_scenes.py … -- processes=2`.
"""

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from cassi import SDCassi

EXECUTORS = {
    "this process": (),
    "processes=1": ("processes=1",),
    "processes=2": ("processes=2",),
    "Dask, 1 worker": ("cluster=dask", "cluster.workers=1"),
    "Dask, 2 workers": ("cluster=dask", "cluster.workers=2"),
}


def write_day(folder: Path, count: int, size: int, bands: int) -> tuple[str, ...]:
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
    camera = (f"measurement={folder / 'day'}", f"mask={folder / 'mask.npy'}", "system.step=1")
    return (*camera, "output.pictures=false", f"system.bands={bands}")


def run(*options: str) -> tuple[float, float]:
    """Run cassi-reconstruct; return seconds of the clock and of the processor."""
    command = [sys.executable, "-m", "cassi", "reconstruct", *options]
    spent, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    silent = subprocess.DEVNULL
    subprocess.run(command, check=True, stdout=silent, stderr=silent)
    seconds = time.perf_counter() - start
    with suppress(ChildProcessError):  # what started the workers: else it is not counted
        while True:
            os.wait()
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = now.ru_utime + now.ru_stime - spent.ru_utime - spent.ru_stime
    return seconds, used


def measure_speed(told: argparse.Namespace, folder: Path) -> None:
    """Print how long the command takes with each executor, and what two workers gain."""
    options = write_day(folder, told.snapshots, told.size, told.bands)
    options += (f"method={told.method}", "threads=1", *told.options)
    steady: dict[str, float] = {}
    whole: dict[str, float] = {}
    for name, chosen in chosen_executors(told):
        into = folder / str(len(whole))
        whole[name], used = run(*options, *chosen, f"hydra.run.dir={into}")
        ended = sorted(file.stat().st_mtime for file in into.glob("*/metrics.json"))
        workers = 2 if "2" in name else 1
        steady[name] = (ended[-1] - ended[0]) / (len(ended) - workers)
        said = f"{name:18}{whole[name]:8.1f} s in all, {used:.1f} s of the processor"
        print(f"{said}, {steady[name]:6.3f} s a snapshot", flush=True)
    print_gains(steady, "a snapshot")
    print_gains(whole, "in all")


def chosen_executors(told: argparse.Namespace) -> list[tuple[str, tuple[str, ...]]]:
    """Return names and options of the executors that were asked for."""
    words = told.executors or [""]
    return [each for each in EXECUTORS.items() if any(word in each[0] for word in words)]


def print_gains(seconds: dict[str, float], what: str) -> None:
    """Print how many times as fast two workers are as one, and as no worker."""
    for one in ("this process", "processes=1", "Dask, 1 worker"):
        for two in ("processes=2", "Dask, 2 workers"):
            alike = one == "this process" or one[:4] == two[:4]
            if alike and one in seconds and two in seconds:
                print(f"{two} over {one}: {seconds[one] / seconds[two]:.2f} times, {what}")


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--snapshots", type=int, default=64)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--bands", type=int, default=28)
    parser.add_argument("--method", default="gap_tv")
    parser.add_argument("--executors", nargs="*", help="only those with one of these words")
    parser.add_argument("--options", nargs="*", default=[], help="of cassi-reconstruct")
    told = parser.parse_args()
    if sys.platform == "linux":  # processes whose parents end become children of this one
        ctypes.CDLL(None).prctl(36, 1)
    print(json.dumps({"processors": os.cpu_count(), "torch": torch.__version__}))
    with tempfile.TemporaryDirectory() as folder:
        measure_speed(told, Path(folder))


if __name__ == "__main__":
    main()
