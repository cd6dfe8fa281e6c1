"""Run one method, and measure time and memory."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from cassi import metrics
from cassi.evaluation.problems import Problem
from cassi.solvers.base import Reconstructor
from cassi.solvers.statistics import Statistics


@dataclass(frozen=True)
class Measured:
    """A cube `(C, H, W)` on the CPU, with its time (median and least seconds) and memory."""

    cube: Tensor
    seconds: float
    peak_memory: int | None
    curve: list[tuple[float, float]]
    least: float


def warm_up(method: Reconstructor, problem: Problem) -> int | None:
    """Run once before timing, for kernels, caches and allocations.

    A solver does one iteration. A network makes the whole cube, and its operations are counted.

    Returns:
        Floating-point operations of the network, two per multiply-add, those of matrix products,
        convolutions and attention only, as `torch.utils.flop_counter` counts; None for a solver.
    """
    if method.network is None:
        method.run(problem.y, problem.system, callback=lambda *_: True)
        return None
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        method.run(problem.y, problem.system)
    return int(counter.get_total_flops())


def measure(
    method: Reconstructor,
    problem: Problem,
    points: int = 0,
    statistics: Statistics | None = None,
    repeats: int = 1,
    seed: int = 0,
) -> Measured:
    """Reconstruct, and measure time and memory.

    Seconds are wall-clock time between two points at which the device is idle, without the time of
    the curve. The peak memory on a GPU is the memory that torch allocated in the run. On a CPU it
    is the rise of the resident memory of this process, as Linux counts it, after freed memory was
    returned. It includes libraries and torch's caches. None where the system does not report it.

    Args:
        method: the reconstructor.
        problem: measurement, camera and truth.
        points: about this many (seconds, PSNR) are taken during the iterations; 0 for none.
        statistics: of the measurement, to be used again later.
        repeats: number of timed runs; cube, memory and curve are those of the first.
        seed: of torch's random numbers before each run.

    Raises:
        ValueError: the cube has another shape, or is not finite.
    """
    device = problem.y.device
    curve: list[tuple[float, float]] = []
    pause = 0.0
    stride = max(1, method.iterations // points) if points else 0
    memory = PeakMemory(device)
    torch.manual_seed(seed)
    _wait(device)
    start = time.perf_counter()

    def follow(statistics: Any, x: Tensor) -> None:
        nonlocal pause
        if statistics.index % stride and statistics.index not in (1, method.iterations):
            return
        _wait(device)
        begin = time.perf_counter()
        if problem.truth is not None:
            value = metrics.psnr(x[0].float().cpu(), problem.truth).item()
            curve.append((begin - start - pause, value))
        pause += time.perf_counter() - begin

    follows = bool(points) and problem.truth is not None and method.network is None
    callback = follow if follows else None
    run = method.run(problem.y, problem.system, callback=callback, statistics=statistics)
    cube = run.x.float()
    _wait(device)
    times = [time.perf_counter() - start - pause]
    peak = memory.read()
    if tuple(cube.shape) != (1, *problem.system.cube_shape):
        raise ValueError(
            f"expected a cube of {(1, *problem.system.cube_shape)}, got {tuple(cube.shape)}"
        )
    if not bool(cube.isfinite().all()):
        raise ValueError("the cube is not finite; it diverged")
    for _ in range(repeats - 1):
        torch.manual_seed(seed)
        start = time.perf_counter()
        method.run(problem.y, problem.system)
        _wait(device)
        times.append(time.perf_counter() - start)
    found = cube[0].detach().float().cpu()
    return Measured(found, median(times), peak, curve, min(times))


class PeakMemory:
    """The highest memory from now on, beyond what is in use now."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.before: int | None = torch.cuda.memory_allocated(device)
            return
        _give_back()
        self.before = None
        try:
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak of the resident memory
            self.before = _status("VmRSS")
        except OSError:
            pass  # no Linux, or not allowed

    def read(self) -> int | None:
        """Return the rise in bytes, or None where the system does not report it."""
        if self.before is None:
            return None
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) - self.before
        return max(_status("VmHWM") - self.before, 0)


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status: no {name}")


def _give_back() -> None:
    # Else a run that reuses what an earlier one freed would seem to need nothing.
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
