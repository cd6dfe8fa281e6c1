"""The comparison that started it all: shift, sum and go back, on fresh random data every round."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import cassi
from scripts.benchmarks.operator_baselines import (
    Implementation,
    OneHotConvolution,
    Ours,
    Scatter,
    SliceLoop,
    make_problem,
)
from scripts.benchmarks.operator_workloads import Settings, Shape, name_case, tolerance, verify
from scripts.benchmarks.results import Results, Row, rank
from scripts.benchmarks.timing import stopwatch

TITLE = "forward, ratio_inverse"
BUDGET = 60.0  # seconds for one implementation


@dataclass
class Tally:
    """What an implementation has done so far."""

    implementation: Implementation
    rounds: int = 0
    seconds: float = 0.0
    error: float = 0.0


def default_shapes(device: torch.device) -> list[Shape]:
    """Return the batch of 16, and 512 bands at a batch whose index and cubes fit in memory.

    One cube of 512 bands takes 134 MB, the index of `scatter_add_` 268 MB, and the convolution
    343 GFLOP each way: one sample on a CPU, four on a GPU.
    """
    return [(16, 28, 256, 256), (4 if device.type == "cuda" else 1, 512, 256, 256)]


def measure_original(settings: Settings, shapes: list[Shape], results: Results) -> None:
    """Sum the seconds of `forward` and `ratio_inverse` over rounds, in float32.

    Clocks run from an idle device to an idle device; making the random data is not timed. The error
    is the mean of |A(ratio_inverse(y)) − y|. An implementation that has used up its time stops
    early, and its row says after how many rounds.
    """
    for shape in shapes:
        _measure_shape(settings, shape, results)


def _measure_shape(settings: Settings, shape: Shape, results: Results) -> None:
    case, device = name_case(shape), settings.device
    print(f"{case}  {TITLE}", file=sys.stderr, flush=True)
    problem = make_problem(shape, settings.step, device)
    ours = Ours(problem)
    tallies = [Tally(kind(problem)) for kind in (SliceLoop, OneHotConvolution, Scatter)]
    tallies.append(Tally(ours))
    generator = torch.Generator(device).manual_seed(0)
    rounds = settings.rounds or (1000 if device.type == "cuda" else 10)
    for turn in range(-1, rounds):  # the first is to warm up and to compare the numbers
        x = torch.rand(shape, generator=generator, device=device)
        mask = torch.rand(shape[2:], generator=generator, device=device)
        for tally in list(tallies):
            item = tally.implementation
            if tally.seconds > BUDGET:
                continue
            try:
                call = _both_ways(item, x, mask)
                (y, inverse), seconds = stopwatch(call, device)
            except RuntimeError as error:  # no memory, no kernel
                if item is ours:
                    raise
                results.leave_out(case, TITLE, item.name, error)
                tallies.remove(tally)
                continue
            again = ours.forward(inverse, mask)
            if turn < 0:
                expected = ours.forward(x, mask)
                limit = 10 * tolerance(item, torch.float32)
                verify(item.name, TITLE, (y, again), (expected, expected), limit)
                continue
            tally.rounds += 1
            tally.seconds += seconds
            tally.error += (again - y).abs().mean(dtype=torch.float64).item()
    rows = [
        Row(
            "original",
            case,
            TITLE,
            tally.implementation.name,
            ms=1e3 * tally.seconds / tally.rounds,
            rounds=tally.rounds,
            seconds=tally.seconds,
            error=tally.error / tally.rounds,
        )
        for tally in tallies
    ]
    rows[-1].kernel = cassi.ops.backend(device)
    rank(rows)
    results.rows += rows


def _both_ways(
    item: Implementation, x: Tensor, mask: Tensor
) -> Callable[[], tuple[Tensor, Tensor]]:
    def run() -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            y = item.forward(x, mask)
            return y, item.ratio_inverse(y, mask)

    return run
