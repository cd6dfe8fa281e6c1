"""The camera's operators against other ways to write them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

import cassi
from scripts.benchmarks.operator_baselines import (
    AddcmulLoop,
    CompiledLoop,
    Implementation,
    OneHotConvolution,
    Ours,
    Problem,
    Scatter,
    ShiftRoll,
    SliceLoop,
    Unfold,
    make_problem,
)
from scripts.benchmarks.results import BACKWARD, Results, Row, rank
from scripts.benchmarks.timing import Candidate, measure

Shape = tuple[int, int, int, int]

IMPLEMENTATIONS: list[type[Implementation]] = [
    *(SliceLoop, AddcmulLoop, OneHotConvolution, Scatter, Unfold, CompiledLoop, ShiftRoll),
]
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
READ, PRODUCT, CLONE, COPY = "x.sum()", "unfold view * mask", "x.clone()", "device copy"
# operator: limit of the call, limit of its gradient
LIMITS = {
    "forward": (READ, PRODUCT),
    "adjoint": (PRODUCT, READ),
    "ratio_inverse": (PRODUCT, READ),
    "data_step": (CLONE, CLONE),
}


class Mismatch(Exception):
    """An implementation gives other numbers than ours."""


@dataclass(frozen=True)
class Settings:
    """What to measure, and how long."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    channels_last: bool = False
    step: int = 2
    rounds: int | None = None
    seconds: float = 1.0
    compile: bool = True
    others: bool = True


def measure_operators(settings: Settings, shapes: list[Shape], results: Results) -> None:
    """Time every operator, alone and with its gradient, in every implementation."""
    for shape in shapes:
        torch.compiler.reset()  # or the compiler gives up after a few cases
        problem = make_problem(
            shape, settings.step, settings.device, settings.dtype, settings.channels_last
        )
        ours = Ours(problem)
        kinds = [
            kind
            for kind in IMPLEMENTATIONS
            if settings.others and (settings.compile or kind is not CompiledLoop)
        ]
        others = [kind(problem) for kind in kinds]
        for operator, backward in product(LIMITS, (False, True)):
            _measure_operator(settings, problem, ours, others, operator, backward, results)


def _measure_operator(
    settings: Settings,
    problem: Problem,
    ours: Ours,
    others: list[Implementation],
    operator: str,
    backward: bool,
    results: Results,
) -> None:
    case, title = name_case(problem.cube.shape), operator + BACKWARD * backward
    print(f"{case}  {title}", file=sys.stderr, flush=True)
    call = make_call(ours, operator, backward)
    expected = call()
    candidates = [Candidate(ours.name, call, settings.device)]
    for other in others:
        if operator not in other.operators:
            continue
        call = make_call(other, operator, backward)
        try:
            found = call()
        except (RuntimeError, ImportError) as error:  # no compiler, kernel or memory for it
            results.leave_out(case, title, other.name, error)
            continue
        verify(other.name, title, found, expected, tolerance(other, settings.dtype))
        candidates.append(Candidate(other.name, call, settings.device))
        del found
    del expected

    limits = {LIMITS[operator][0]} | ({LIMITS[operator][1]} if backward else set())
    if settings.device.type == "cuda":
        limits.add(COPY)
    references = make_limits(problem)
    candidates += [Candidate(name, references[name], settings.device) for name in sorted(limits)]
    timings = measure(candidates, settings.rounds, settings.seconds)

    limit = sum(timings[name].ms for name in LIMITS[operator][: 1 + backward])
    rows = []
    for candidate in candidates:
        timing = timings[candidate.name]
        is_limit = candidate.name in references
        row = Row(
            "operators",
            case,
            title,
            f"limit: {candidate.name}" if is_limit else candidate.name,
            timing.ms,
            rounds=timing.rounds,
            over_limit=None if is_limit else timing.ms / limit,
        )
        if candidate.name == ours.name:
            row.kernel = cassi.ops.backend(settings.device, operator)
        if settings.device.type == "cuda":
            row.wall_ms = timing.wall_ms
            if timing.peak_bytes is not None:
                row.peak_mib = timing.peak_bytes / 2**20
            if candidate.name == COPY:
                row.gb_per_s = 2 * problem.cube.nbytes / timing.ms / 1e6
            elif not is_limit:
                row.gb_per_s = count_bytes(problem, operator, backward) / timing.ms / 1e6
                row.of_copy = row.gb_per_s * timings[COPY].ms * 1e6 / (2 * problem.cube.nbytes)
        rows.append(row)
    rank(rows)
    results.rows += rows


def make_call(
    implementation: Implementation, operator: str, backward: bool
) -> Callable[[], tuple[Tensor, ...]]:
    """Return a call of an operator that gives its result, and the gradient of its first argument.

    The upstream gradient is a fixed random tensor, drawn here.
    """
    problem = implementation.problem
    function = getattr(implementation, operator)
    arguments = {
        "forward": (problem.cube,),
        "adjoint": (problem.measurement,),
        "ratio_inverse": (problem.measurement,),
        "data_step": (problem.cube, problem.measurement),
    }[operator]
    if not backward:

        def run() -> tuple[Tensor, ...]:
            with torch.no_grad():
                return (function(*arguments, problem.mask),)

        return run

    first = arguments[0].detach().requires_grad_()
    like = problem.measurement if operator == "forward" else problem.cube
    generator = torch.Generator(like.device).manual_seed(1)
    noise = torch.rand(like.shape, generator=generator, device=like.device)
    upstream = torch.empty_like(like).copy_(noise)

    def run_backward() -> tuple[Tensor, ...]:
        result = function(first, *arguments[1:], problem.mask)
        (gradient,) = torch.autograd.grad(result, first, upstream)
        return result.detach(), gradient

    return run_backward


def make_limits(problem: Problem) -> dict[str, Callable[[], Tensor]]:
    """Return the calls that no operator can be much faster than."""
    cube, mask = problem.cube, problem.mask
    windows = Unfold(problem).windows(problem.measurement)
    target = torch.empty_like(cube)
    return {
        READ: cube.sum,
        PRODUCT: lambda: windows * mask,
        CLONE: cube.clone,
        COPY: lambda: target.copy_(cube),
    }


def verify(
    name: str,
    operator: str,
    found: tuple[Tensor, ...],
    expected: tuple[Tensor, ...],
    limit: float,
) -> None:
    """Compare results with ours, relative to their norm.

    Raises:
        Mismatch: they differ by more than `limit`.
    """
    for index, (value, truth) in enumerate(zip(found, expected, strict=True)):
        if value.shape != truth.shape:
            raise Mismatch(f"{name}, {operator}: shape {value.shape}, ours {truth.shape}")
        error = ((value.double() - truth.double()).norm() / truth.double().norm()).item()
        if not error <= limit:
            what = "gradient" if index else "result"
            raise Mismatch(f"{name}, {operator}: {what} differs from ours by {error:.1e}")


def tolerance(implementation: Implementation, dtype: torch.dtype) -> float:
    """Return how far an implementation may be from ours, relative to the norm."""
    limit = TOLERANCES[dtype]
    if isinstance(implementation, OneHotConvolution) and implementation.problem.cube.is_cuda:
        limit = max(limit, 2e-3)  # torch lets convolutions round their factors to TF32
    return limit


def count_bytes(problem: Problem, operator: str, backward: bool) -> int:
    """Count the bytes that must move at least: every input and output once."""
    cube, y, mask, gram = (
        value.nbytes for value in (problem.cube, problem.measurement, problem.mask, problem.gram)
    )
    if operator != "data_step":
        return (cube + y + mask) * (1 + backward)
    return 2 * cube + y + mask + gram + (2 * cube + mask + gram) * backward


def name_case(shape: Sequence[int]) -> str:
    """Return a shape as text."""
    return "x".join(map(str, shape))
