"""Time implementations side by side."""

import gc
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import TypeVar

import torch

Result = TypeVar("Result")
MIN_ROUNDS, MAX_ROUNDS, FEWEST_ROUNDS = 15, 200, 5
SLOW = 0.05  # seconds; what takes longer leaves no trace of what the caches held before
ONCE = 20.0  # seconds; what takes longer is timed once
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Candidate:
    """Something to time: its result is kept until the clock has stopped."""

    name: str
    call: Callable[[], object]
    device: torch.device = CPU


@dataclass(frozen=True)
class Timing:
    """What was measured of a candidate.

    On a GPU `ms` is the time between two events on a stream that never runs dry, the work of the
    device alone, with other memory in its caches. `wall_ms` is the time from an idle device to an
    idle device, which includes that of Python and of the launches. On a CPU the two are the same.
    """

    ms: float
    wall_ms: float
    rounds: int
    peak_bytes: int | None = None
    """Memory the call takes at its peak, results included; CUDA only."""


def measure(
    candidates: Sequence[Candidate],
    rounds: int | None = None,
    seconds: float = 1.0,
    refresh: Callable[[], None] | None = None,
) -> dict[str, Timing]:
    """Time candidates in turn and take medians.

    Every round visits the candidates in another random order, so that what disturbs the machine
    disturbs all alike. Fast ones run once untimed before they are timed: what another candidate
    left in the caches must not count.

    Args:
        candidates: with different names.
        rounds: visits of every candidate; by default at least 15, or as many as fit in `seconds`,
            but only 5 of one that takes that long, and 1 of one that takes 20 s.
        seconds: time to spend on a candidate.
        refresh: makes new data before every round; then nothing runs untimed.
    """
    first = {c.name: _warm_up(c) for c in candidates}
    visits = {name: rounds or _visits(cost, seconds) for name, cost in first.items()}
    samples = {name: [(cost, cost)] if cost > ONCE else [] for name, cost in first.items()}
    peaks = {c.name: _peak_bytes(c) for c in candidates}
    order = [c for c in candidates if first[c.name] <= ONCE]
    total = max((visits[c.name] for c in order), default=0)
    collecting = gc.isenabled()
    gc.disable()
    shuffle = random.Random(0).shuffle
    try:
        for turn in range(total):
            shuffle(order)
            if refresh is not None:
                refresh()
            for candidate in order:
                count, cost = visits[candidate.name], first[candidate.name]
                if turn * count // total == (turn - 1) * count // total:
                    continue  # fewer visits, spread evenly over the rounds
                if cost < SLOW and refresh is None:
                    candidate.call()
                samples[candidate.name].append(_time(candidate, cost))
    finally:
        if collecting:
            gc.enable()
    return {
        name: Timing(
            1e3 * median(inner for inner, _ in times),
            1e3 * median(wall for _, wall in times),
            len(times),
            peaks[name],
        )
        for name, times in samples.items()
    }


def stopwatch(call: Callable[[], Result], device: torch.device) -> tuple[Result, float]:
    """Run a call once; return its result and the seconds until the device was idle again."""
    _synchronize(device)
    start = time.perf_counter()
    result = call()
    _synchronize(device)
    return result, time.perf_counter() - start


def _warm_up(candidate: Candidate) -> float:
    _, cost = stopwatch(candidate.call, candidate.device)  # compiles, chooses algorithms
    for _ in range(4 if cost <= ONCE else 0):
        _, cost = stopwatch(candidate.call, candidate.device)
        if cost > 0.1:
            break
    return cost


def _visits(cost: float, seconds: float) -> int:
    fewest = FEWEST_ROUNDS if cost * MIN_ROUNDS > 2 * seconds else MIN_ROUNDS
    return min(MAX_ROUNDS, max(fewest, math.ceil(seconds / max(cost, 1e-9))))


def _time(candidate: Candidate, cost: float) -> tuple[float, float]:
    _, wall = stopwatch(candidate.call, candidate.device)
    if candidate.device.type != "cuda":
        return wall, wall
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    # The device sleeps while the launches queue up, or the time of a short kernel would be theirs.
    # `cost` is at least as long as the queueing takes; at 2 GHz or less, twice that is ample.
    torch.cuda._sleep(int(2e9 * min(2 * cost + 1e-4, 0.1)))
    _other_memory(candidate.device).amax()
    start.record()
    result = candidate.call()
    end.record()
    _synchronize(candidate.device)
    del result
    return start.elapsed_time(end) / 1e3, wall


@cache
def _other_memory(device: torch.device) -> torch.Tensor:
    """More than the caches of a GPU hold: once it is read, they hold nothing else."""
    return torch.zeros(2**26, device=device)


def _peak_bytes(candidate: Candidate) -> int | None:
    if candidate.device.type != "cuda":
        return None
    _synchronize(candidate.device)
    torch.cuda.reset_peak_memory_stats(candidate.device)
    before = torch.cuda.memory_allocated(candidate.device)
    result = candidate.call()
    _synchronize(candidate.device)
    peak = torch.cuda.max_memory_allocated(candidate.device) - before
    del result
    return peak


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
