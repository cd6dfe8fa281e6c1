"""Many snapshots by one command: how two processes share them, and what a killed one costs.

    python scripts/benchmarks/many_snapshots.py                 # one process against two, same bits
    python scripts/benchmarks/many_snapshots.py --mode kill     # a worker is killed half-way
    python scripts/benchmarks/many_snapshots.py --mode batch    # several at a time against alone

`speed` prints, for each of some interleaved rounds, the seconds of the whole command with one
process of one thread and with two of one thread (start of Python and of torchrun included), their
ratio, the ratio of the rates from the first result to the last (without the start), and the CPU
seconds of both; then whether all cubes are the same to the bit. On a machine with other work the
CPU seconds tell what the wall clock cannot.

`kill` starts two processes by torchrun, kills one by SIGKILL when a part is done, gives the same
command again, and prints what was lost and what was done twice; then the same with
`--max-restarts 1`, where torchrun itself goes on.

`batch` prints seconds per snapshot for several sizes of a batch and the largest difference of a
cube from that of the snapshot alone.

The snapshots are the bundled scene, rolled and dimmed, so that no two are equal. Exit status 1
tells that something was lost, done twice or different.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import tifffile
import torch

import cassi
from cassi.data.atomic import digest
from cassi.data.bundled import bundled_path

SETTINGS = ["system.step=2", "solver=gap", "prior=tv", "output.pictures=false", "threads=1"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone"]
POLL = 0.02  # seconds


def write_snapshots(folder: Path, count: int, side: int) -> list[str]:
    """Simulate `count` snapshots of `side`² pixels and 28 bands; return the options for them."""
    cube = cassi.read_cube(bundled_path("scene.tif"))[..., :side, :side]
    mask = cassi.read_mask(bundled_path("mask.tif"))[..., :side, :side]
    system = cassi.SDCassi(mask, bands=cube.shape[1], step=2)
    snapshots = folder / "snapshots"
    snapshots.mkdir(parents=True)
    tifffile.imwrite(folder / "mask.tif", mask[0, 0].numpy())
    for index in range(count):
        scene = cube.roll((5 * index, 3 * index), (-2, -1)) * (1 - 0.5 * index / count)
        tifffile.imwrite(snapshots / f"{index:03d}.tif", system(scene)[0, 0].numpy())
    return [f"measurement={snapshots}", f"mask={folder / 'mask.tif'}", *SETTINGS]


def command(options: list[str], folder: Path, processes: int, *launcher: str) -> list[str]:
    """Return the command line for a number of processes."""
    start = [*TORCHRUN, f"--nproc-per-node={processes}", *launcher] if processes > 1 else []
    return [sys.executable, *start, "-m", "cassi.apps.reconstruct", *options,
            f"hydra.run.dir={folder}"]  # fmt: skip


def run(line: list[str]) -> tuple[float, float, str]:
    """Run a command to its end and return wall-clock seconds, CPU seconds and what it printed."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(line, env=_environment(), capture_output=True, text=True, check=False)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(line)} ended with {done.returncode}:\n{done.stderr}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, done.stdout


def digests(folder: Path) -> dict[str, str]:
    """Return the checksum of every cube, by snapshot."""
    return {cube.parent.name: digest(cube) for cube in sorted(folder.glob("*/cube.tif"))}


def compare_speed(options: list[str], root: Path, rounds: int) -> bool:
    """Print the table of one process and two; return whether their cubes are the same."""
    ratios, rates, same = [], [], True
    print(
        f"{'round':>5} {'one s':>8} {'two s':>8} {'ratio':>6} {'of rates':>8} "
        f"{'one CPU s':>10} {'two CPU s':>10}"
    )
    for index in range(rounds):
        one, two = root / f"one{index}", root / f"two{index}"
        # By turns first, so that what else the machine does falls on both.
        order = [(one, 1), (two, 2)] if index % 2 == 0 else [(two, 2), (one, 1)]
        took = {n: run(command(options, folder, n)) for folder, n in order}
        ratios.append(took[1][0] / took[2][0])
        rates.append(rate(two, 2) / rate(one, 1))
        print(
            f"{index + 1:>5} {took[1][0]:>8.1f} {took[2][0]:>8.1f} {ratios[-1]:>6.2f} "
            f"{rates[-1]:>8.2f} {took[1][1]:>10.1f} {took[2][1]:>10.1f}",
            flush=True,
        )
        same &= bool(digests(one)) and digests(one) == digests(two)
    print(
        f"median ratio {median(ratios):.2f}, of rates {median(rates):.2f}; "
        f"the same bits: {'yes' if same else 'NO'}"
    )
    return same


def kill_a_worker(options: list[str], root: Path, count: int) -> bool:
    """Kill one of two processes half-way, continue in two ways, and say what became of it."""
    whole = root / "whole"
    run(command(options, whole, 1))
    wanted, good = digests(whole), True
    for name, launcher in (("again", ()), ("restarts", ("--max-restarts=1",))):
        folder = root / name
        line = command(options, folder, 2, *launcher)
        process = subprocess.Popen(
            line, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        while len(finished(folder)) < count // 2:
            if process.poll() is not None:
                raise SystemExit(f"ended too early:\n{process.communicate()[1]}")
            time.sleep(POLL)
        os.kill(_children(process.pid)[-1], signal.SIGKILL)
        early = finished(folder)
        printed, _ = process.communicate()
        print(f"{name}: a worker killed after {len(early)} of {count}; status {process.returncode}")
        early |= finished(folder) if not launcher else {}
        if not launcher:
            printed += run(line)[2]
        late = finished(folder)
        lines = [
            text.partition(": ")[0] for text in printed.splitlines() if " iterations in " in text
        ]
        twice = {n for n in lines if lines.count(n) > 1} | {
            n for n in early if early[n] != late.get(n)
        }
        lost = wanted.keys() - late.keys()
        same = digests(folder) == wanted
        print(f"{name}: {len(late)} done, {len(lost)} lost, {len(twice)} done twice; the same bits "
              f"as undisturbed: {'yes' if same else 'NO'}", flush=True)  # fmt: skip
        good &= same and not lost and not twice
    return good


def compare_batches(options: list[str], root: Path, sizes: list[int]) -> bool:
    """Print seconds per snapshot by the size of the batch, and how far cubes are from alone."""
    alone: dict[str, torch.Tensor] = {}
    print(f"{'batch':>5} {'s each':>8} {'CPU s each':>11} {'largest relative difference':>28}")
    for size in sizes:
        folder = root / f"batch{size}"
        _, cpu, _ = run(command([*options, f"batch={size}"], folder, 1))
        numbers = [json.loads(file.read_text()) for file in sorted(folder.glob("*/metrics.json"))]
        cubes = {file.parent.name: cassi.read_cube(file) for file in folder.glob("*/cube.tif")}
        alone = alone or cubes
        far = max(float((cubes[n] - x).abs().max() / x.abs().max()) for n, x in alone.items())
        seconds = sum(found["seconds"] for found in numbers) / len(numbers)
        print(f"{size:>5} {seconds:>8.3f} {cpu / len(numbers):>11.3f} {far:>28.1e}", flush=True)
    return True


def finished(folder: Path) -> dict[str, int]:
    """Return when each result was recorded as done, by snapshot."""
    records = (folder / ".done").glob("[!.]*.json")  # hidden ones are being written
    return {file.stem: file.stat().st_mtime_ns for file in records}


def rate(folder: Path, processes: int) -> float:
    """Return results per second, from when each process has its first to the last."""
    times = sorted(finished(folder).values())
    return (len(times) - processes) / (times[-1] - times[processes - 1]) * 1e9


def _children(process: int) -> list[int]:
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(child) for child in text.split()]


def _environment() -> dict[str, str]:
    # Threads that wait for work must not take the time of those that have some.
    return os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


def main(arguments: list[str] | None = None) -> None:
    """Print what the mode measures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mode", choices=("speed", "kill", "batch"), default="speed")
    parser.add_argument("--count", type=int, default=64, help="snapshots")
    parser.add_argument("--side", type=int, default=256, help="pixels, at most 256")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8], help="of batches")
    parser.add_argument("overrides", nargs="*", help="as for cassi-reconstruct")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="many-") as name:
        root = Path(name)
        options = write_snapshots(root, chosen.count, chosen.side)
        options += [f"solver.iterations={chosen.iterations}", *chosen.overrides]
        if chosen.mode == "speed":
            good = compare_speed(options, root, chosen.rounds)
        elif chosen.mode == "kill":
            good = kill_a_worker(options, root, chosen.count)
        else:
            good = compare_batches(options, root, chosen.sizes)
    if not good:
        sys.exit(1)


if __name__ == "__main__":
    main()
