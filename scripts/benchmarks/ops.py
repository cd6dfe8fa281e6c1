"""Time the operators against the limits of the machine and against other ways to write them.

    python -m scripts.benchmarks.ops                                   # everything on the CPU
    python -m scripts.benchmarks.ops --workload operators --batches 4 --no-large --no-compile
    python -m scripts.benchmarks.ops --workload memory --device cuda --batches 16 --rounds 50
    python -m scripts.benchmarks.ops --device cuda --csv h200.csv
    python -m scripts.benchmarks.ops --workload original --rounds 100
    python -m scripts.benchmarks.ops --workload cameras --shapes 4x28x660x660
    python -m scripts.benchmarks.ops --workload deepinv --threads 1    # pip install deepinv

Workloads:

- `memory`: our operators alone, each beside a copy, on the device, of as many bytes as it reads and
  writes at least: every input and result once. `of_copy` compares the two. Seconds on a GPU.
- `operators`: forward, adjoint, ratio_inverse, data_step, alone and with their gradient.
- `tv`: against scikit-image. `iteration`: one of GAP-TV against NumPy.
- `original`: forward and ratio_inverse on fresh random data every round.
- `cameras`: the operators of every kind of camera. `gb_per_s` counts cube, masks and measurement.
- `python`: 1000 calls of a camera and of its operators, on a cube so small that Python is all.
- `blocks`: a residual block of 3×3 convolutions, as in the denoiser that refines.
- `deepinv`: our camera against deepinv's CASSI physics, which moves each band by one pixel and
  takes the mean over bands. deepinv solves `prox_l2` by conjugate gradients: one iteration of the
  50 that it may take is timed, a lower bound. `error` is the largest difference of the results in
  float64 on images of odd sides: deepinv moves an image of even sides by one pixel more. Of
  `prox_l2` it says how well our result solves deepinv's own equation. Not part of `all`: it takes
  minutes.

Every way to write an operator is compared with ours before it is timed. A row is printed, and the
CSV written, as soon as its operator is measured.
"""

import argparse
import datetime
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import cassi
from cassi.ops._library import kernels
from cassi.precision import fast_types
from cassi.systems import System
from scripts.benchmarks.forms import (
    FORMS,
    INNER,
    RHO,
    STEP,
    WEIGHT,
    Form,
    NumpyGap,
    Problem,
    Shape,
    complete,
    denoise_planes,
    denoise_public,
    ours,
)
from scripts.benchmarks.tables import Parser, Table, write_csv
from scripts.benchmarks.timing import CPU, Candidate, Timing, measure

Row = dict[str, Any]
Call = Callable[[], Any]
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in TOLERANCES}
KERNELS = ("forward", "adjoint", "ratio_inverse", "gram", "data_step", "tv_prox")
CUBE: Shape = (28, 256, 256)
LARGE: Shape = (1, 28, 660, 660)
BACKWARD = " + backward"
RANK = 6  # components of a cube, as the default method has
READ, PRODUCT, CLONE, COPY = (
    f"limit: {name}" for name in ("x.sum()", "unfold view * mask", "x.clone()", "device copy")
)
LIMITS = {
    "forward": (READ, PRODUCT),
    "adjoint": (PRODUCT, READ),
    "ratio_inverse": (PRODUCT, READ),
    "data_step": (CLONE, CLONE),
}
"""Operator → limit of the call, limit of its gradient."""
TV, TV_COUPLED = "ours, per band", "ours, coupled"
PUBLIC_TV = "denoise_tv_chambolle, float64, channel axis"
BEST_TV = "denoise_tv_chambolle, float32, band by band"
PUBLIC_GAP = "public NumPy form"
TITLE_TV, TITLE_GAP = f"tv_prox, {INNER} iterations", "accelerated GAP-TV iteration"


class Mismatch(Exception):
    """An implementation gives other numbers than ours."""


@dataclass(frozen=True)
class Settings:
    """What to measure, and how long.

    `shapes` are those asked for, BxCxHxW, or none; `left_out` says what does not run here, and in
    which cases.
    """

    device: torch.device
    dtype: torch.dtype = torch.float32
    channels_last: bool = False
    rounds: int | None = None
    seconds: float = 1.0
    compile: bool = True
    shapes: Sequence[Shape] = ()
    batches: Sequence[int] = (1, 4, 16)
    large: bool = True
    left_out: dict[str, list[str]] = field(default_factory=dict)

    @property
    def cube(self) -> Shape:
        """One cube, CxHxW."""
        return self.shapes[0][1:] if self.shapes else CUBE

    def try_call(self, case: str, operator: str, name: str, call: Call) -> Any:
        """Return what a call gives; note that it does not run here, and return None."""
        try:
            return call()
        except (RuntimeError, ImportError) as error:  # no compiler, kernel, memory or package
            said = (str(error).strip().splitlines() or [""])[0][:200]
            key = f"{name} does not run here ({type(error).__name__}: {said})"
            self.left_out.setdefault(key, []).append(f"{case} {operator}")
            return None


@dataclass(frozen=True)
class Group:
    """Calls that are timed side by side.

    Attributes:
        case: shape.
        operator: what is called.
        calls: by name. "ours…" are ours, none can be much faster than "limit: …".
        kernel: operator of `cassi.ops` that ours is, or the most of it.
        limits: calls whose times together are the limit.
        moved: bytes that a call must move.
        errors: largest difference from ours, where it is told.
        on_cpu: calls that run there whatever the device is.
        refresh: makes new data for every round.
    """

    case: str
    operator: str
    calls: Mapping[str, Call]
    kernel: str
    limits: tuple[str, ...] = ()
    moved: dict[str, int] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    on_cpu: tuple[str, ...] = ()
    refresh: Callable[[], None] | None = None


def make_call(
    form: Form, problem: Problem, operator: str, backward: bool
) -> Callable[[], tuple[Tensor, ...]]:
    """Return a call of an operator that gives its result, and the gradient of its first argument.

    The upstream gradient is a fixed random tensor, drawn here.
    """
    given = {"forward": (problem.cube,), "data_step": (problem.cube, problem.measurement)}
    function, arguments = form[operator], given.get(operator, (problem.measurement,))
    if not backward:
        return torch.no_grad()(lambda: (function(*arguments, problem.mask),))
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


def verify(name: str, found: Sequence[Tensor], expected: Sequence[Tensor], limit: float) -> None:
    """Compare results with ours, relative to their norm.

    Raises:
        Mismatch: they differ by more than `limit`.
    """
    for value, truth in zip(found, expected, strict=True):
        if value.shape != truth.shape:
            raise Mismatch(f"{name}: shape {value.shape}, ours {truth.shape}")
        error = ((value.double() - truth.double()).norm() / truth.double().norm()).item()
        if not error <= limit:
            raise Mismatch(f"{name}: differs from ours by {error:.1e}")


def tolerance(name: str, settings: Settings, dtype: torch.dtype) -> float:
    """Return how far an implementation may be from ours, relative to the norm."""
    # On a GPU torch lets convolutions round their factors to TF32.
    least = 2e-3 if "conv" in name and settings.device.type == "cuda" else 0.0
    return max(TOLERANCES[dtype], least)


def memory(settings: Settings) -> Iterator[Group]:
    """Our operators, each beside a copy of as many bytes as it must read and write."""
    for shape in settings.shapes or [(batch, *CUBE) for batch in settings.batches]:
        p = Problem.drawn(shape, settings.device, settings.dtype, settings.channels_last)
        x, y, m, g, own = p.cube, p.measurement, p.mask, p.gram, ours(p)
        rho = torch.full((shape[0],), RHO, device=x.device)
        e = _random((shape[1], RANK)).to(x)
        a = cassi.ops.adjoint_subspace(y, e, m, STEP)
        last = (m[None, None, None], g[None], rho.view(-1, 1, 1, 1), STEP, False, False)
        calls: dict[str, tuple[Call, Sequence[Tensor]]] = {
            "forward": (partial(own["forward"], x, m), (x, m)),
            "adjoint": (partial(own["adjoint"], y, m), (y, m)),
            "add_adjoint": (partial(cassi.ops.add_adjoint, x, y, m, STEP), (x, y, m)),
            "data_step": (partial(own["data_step"], x, y, m, rho=rho), (x, y, m, g)),
            "data_step_backward": (
                partial(kernels.data_step_backward.default, x, x, y, *last),
                (x, m, g),  # of the upstream gradient: v and y are not read
            ),
            "gram_solve": (partial(cassi.ops.gram_solve, y, g, rho), (y, g)),
            "forward_subspace": (
                partial(cassi.ops.forward_subspace, a, e, m, STEP),
                (a, e, m),
            ),
            "adjoint_subspace": (
                partial(cassi.ops.adjoint_subspace, y, e, m, STEP),
                (y, e, m),
            ),
        }
        case = f"{name_case(shape)} {settings.dtype}".replace("torch.", "")
        for operator, (call, read) in calls.items():
            timed = torch.no_grad()(call)
            found = timed()
            written = found if isinstance(found, tuple) else (found,)
            moved = sum(value.nbytes for value in (*read, *written))
            half = torch.zeros(moved // 2, dtype=torch.uint8, device=x.device)
            copy = partial(torch.empty_like(half).copy_, half)
            both: dict[str, Call] = {"ours": timed, COPY: copy}
            yield Group(case, operator, both, operator, (COPY,), dict.fromkeys(both, moved))


def operators(settings: Settings) -> Iterator[Group]:
    """Every operator, alone and with its gradient, in every form."""
    default = [(batch, *CUBE) for batch in settings.batches] + [LARGE] * settings.large
    left_out = set() if settings.compile else {"compiled eager loop"}
    for shape in settings.shapes or default:
        if settings.compile:
            torch.compiler.reset()  # or the compiler gives up after a few cases
        case, how = name_case(shape), (settings.device, settings.dtype, settings.channels_last)
        problem = Problem.drawn(shape, *how)
        names = [name for name in FORMS if name not in left_out]
        forms = {name: complete(FORMS[name](problem), problem) for name in names}
        cube, windows = problem.cube, problem.windows(problem.measurement)
        limits: dict[str, Call] = {
            READ: cube.sum,
            PRODUCT: partial(torch.mul, windows, problem.mask),
            CLONE: cube.clone,
        }
        for operator, backward in product(LIMITS, (False, True)):
            title = operator + BACKWARD * backward
            calls: dict[str, Call] = {"ours": make_call(ours(problem), problem, operator, backward)}
            expected = calls["ours"]()
            for name, form in forms.items():
                if operator not in form:
                    continue
                call = make_call(form, problem, operator, backward)
                if (found := settings.try_call(case, title, name, call)) is not None:
                    limit = tolerance(name, settings, settings.dtype)
                    verify(f"{name}, {title}", found, expected, limit)
                    calls[name] = call
            moved = dict.fromkeys(calls, problem.count_bytes(operator, backward))
            bounds = LIMITS[operator][: 1 + backward]
            calls |= {name: limits[name] for name in sorted(set(bounds))}
            yield Group(case, title, calls, operator, bounds, moved)


def original(settings: Settings) -> Iterator[Group]:
    """The comparison that started it all: forward and ratio_inverse on fresh random data.

    By default of a batch of 16, and of 512 bands at a batch whose index and cubes fit in memory:
    one cube takes 134 MB, the index of `scatter_add_` 268 MB, the convolution 343 GFLOP each way.
    """
    title, large = "forward, ratio_inverse", 4 if settings.device.type == "cuda" else 1
    for shape in settings.shapes or [(16, *CUBE), (large, 512, *CUBE[1:])]:
        problem = Problem.drawn(shape, settings.device, torch.float32)
        generator = torch.Generator(settings.device).manual_seed(0)

        def refresh(problem: Problem = problem, random: torch.Generator = generator) -> None:
            problem.cube.uniform_(generator=random)
            problem.mask.uniform_(generator=random)

        @torch.no_grad()
        def both_ways(form: Form, problem: Problem = problem) -> tuple[Tensor, Tensor]:
            y = form["forward"](problem.cube, problem.mask)
            return y, form["ratio_inverse"](y, problem.mask)

        refresh()
        own = ours(problem)
        (y, _), calls, errors = both_ways(own), {"ours": partial(both_ways, own)}, {}
        for name in ("slice-add loop", "one-hot conv2d", "scatter_add_, gather"):
            call = partial(both_ways, complete(FORMS[name](problem), problem))
            if (found := settings.try_call(name_case(shape), title, name, call)) is not None:
                again = own["forward"](found[1], problem.mask)
                limit = 10 * tolerance(name, settings, torch.float32)
                verify(name, (found[0], again), (y, y), limit)
                errors[name] = float((again - found[0]).abs().mean(dtype=torch.float64))
                calls[name] = call
        yield Group(name_case(shape), title, calls, "forward", errors=errors, refresh=refresh)


def tv(settings: Settings) -> Iterator[Group]:
    """`tv_prox` against scikit-image at equal inner iterations, on a cube `(C, H, W)`.

    Ours takes projected-gradient steps, scikit-image Chambolle's of 2004: the two agree where they
    end (tests/ops/test_tv.py), not after five steps. scikit-image always runs on the CPU.
    """
    case, cube = name_case(settings.cube), _random(settings.cube)
    x = cube.to(settings.device)[None]
    calls: dict[str, Call] = {}
    for name, norm in ((TV, "band"), (TV_COUPLED, "frobenius")):
        prox = partial(cassi.ops.tv_prox, x, WEIGHT, INNER, norm=norm)
        dual = prox(return_dual=True)[1]
        calls |= {
            name: prox,
            f"{name}, dual in and out": partial(prox, dual=dual, return_dual=True),
        }
    planes = cube.numpy()
    try_it = partial(denoise_planes, planes[:1])
    if settings.try_call(case, TITLE_TV, "denoise_tv_chambolle", try_it) is not None:
        public = np.ascontiguousarray(planes.transpose(1, 2, 0), dtype=np.float64)
        calls[PUBLIC_TV] = partial(denoise_public, public)
        calls[BEST_TV] = partial(denoise_planes, planes)
    calls[CLONE] = x.clone
    yield Group(case, TITLE_TV, calls, "tv_prox", (CLONE,), on_cpu=(PUBLIC_TV, BEST_TV))


def iteration(settings: Settings) -> Iterator[Group]:
    """One accelerated GAP-TV iteration against that of public NumPy codes, on the CPU."""
    case, (bands, *_) = name_case(settings.cube), settings.cube
    cube, mask = _random(settings.cube), _mask(*settings.cube[1:])
    system = cassi.SDCassi(mask, bands=bands, step=STEP).to(settings.device)
    algorithm, prior = cassi.GAP(accelerated=True), cassi.TV(iterations=INNER)
    with torch.no_grad():
        y = system(cube.to(settings.device)[None])
        state = algorithm.init(y, system, system.pinv(y))
    step = partial(algorithm.step, state, y, system, prior, WEIGHT, algorithm.rho)
    calls: dict[str, Call] = {"ours": torch.no_grad()(step)}
    try_it = partial(denoise_planes, cube[:1].numpy())
    if settings.try_call(case, TITLE_GAP, PUBLIC_GAP, try_it) is not None:
        public = NumpyGap(mask.numpy(), bands, denoise_public)
        snapshot = y[0, 0].double().cpu().numpy()
        wide = public.shift(state.x[0].double().cpu().numpy().transpose(1, 2, 0))
        calls[PUBLIC_GAP] = partial(public.iterate, wide, snapshot, snapshot)
    yield Group(case, TITLE_GAP, calls, "data_step", on_cpu=(PUBLIC_GAP,))


CAMERAS: dict[str, Callable[[int, int, int], System]] = {
    "ours": lambda c, h, w: cassi.SDCassi(_mask(h, w), c, STEP),
    "ours, fractional offsets": lambda c, h, w: cassi.SDCassi(
        _mask(h, w), c, offsets=[2.03 * k for k in range(c)]
    ),
    "ours, fractional offsets, photographed mask": lambda c, h, w: cassi.SDCassi(
        _mask(h, w), c, offsets=[2.03 * k for k in range(c)], photographed=True
    ),
    "ours, uneven whole offsets": lambda c, h, w: cassi.SDCassi(
        _mask(h, w), c, offsets=[k * 2 + k % 2 for k in range(c)]
    ),
    "ours, mask per band": lambda c, h, w: cassi.SDCassi(_mask(c, h, w), c, STEP),
    "ours, two shots": lambda c, h, w: cassi.SDCassi(_mask(2, 1, h, w), c, STEP),
    "ours, four shots": lambda c, h, w: cassi.SDCassi(_mask(4, 1, h, w), c, STEP),
    "ours, two shots, offsets": lambda c, h, w: cassi.SDCassi(
        _mask(2, 1, h, w), c, offsets=[2.03 * k for k in range(c)]
    ),
    "ours, dual disperser": lambda c, h, w: cassi.DDCassi(_mask(h, w), c, STEP),
    "ours, blurred": lambda c, h, w: cassi.BlurredCassi(
        _mask(h, w), c, STEP, line_spread=0.7, point_spread=0.7
    ),
    "ours, warped": lambda c, h, w: cassi.WarpedCassi(_mask(h, w), c, STEP, smile=1.5),
}


def cameras(settings: Settings) -> Iterator[Group]:
    """The operators of every kind of camera, the first with one mask and a whole step."""
    for batch, *cube in settings.shapes or [(1, *CUBE)]:
        made = {name: make(*cube).to(settings.device) for name, make in CAMERAS.items()}
        x = {n: torch.rand(batch, *s.cube_shape, device=settings.device) for n, s in made.items()}
        y = {name: system(x[name]) for name, system in made.items()}
        moved = {
            name: 4 * (x[name].numel() + system.get_buffer("mask").numel() + y[name].numel())
            for name, system in made.items()
        }
        kinds: dict[str, dict[str, Call]] = {
            "forward": {n: partial(s, x[n]) for n, s in made.items()},
            "adjoint": {n: partial(s.adjoint, y[n]) for n, s in made.items()},
            "data_step": {n: partial(s.data_step, 0.9 * x[n], y[n], RHO) for n, s in made.items()},
        }
        kinds["data_step"][CLONE] = next(iter(x.values())).clone
        for operator, calls in kinds.items():
            timed = {name: torch.inference_mode()(call) for name, call in calls.items()}
            title, limits = f"{operator} of a camera", tuple({CLONE} & set(calls))
            yield Group(name_case((batch, *cube)), title, timed, operator, limits, moved)


BLOCKS: Sequence[Shape] = ((6, 16, 128, 128), (6, 32, 64, 64), (6, 64, 32, 32), (6, 64, 16, 16))
"""Images of the denoiser that refines, at its four resolutions."""


def blocks(settings: Settings) -> Iterator[Group]:
    """A residual block of a network, x + conv(relu(conv(x))), against torch's convolutions."""
    title = "x + conv(relu(conv(x)))"
    for shape in settings.shapes or BLOCKS:
        x = _random(shape).to(settings.device).contiguous(memory_format=torch.channels_last)
        weight = (_random((shape[1], shape[1], 3, 3)) / shape[1]).to(settings.device)

        def own(x: Tensor = x, weight: Tensor = weight) -> Tensor:
            between = cassi.ops.convolve3x3(x, weight, rectify=True)
            return cassi.ops.convolve3x3(between, weight, residual=x)

        def torchs(x: Tensor = x, weight: Tensor = weight) -> Tensor:
            between = functional.conv2d(x, weight, padding=1).relu_()
            return x + functional.conv2d(between, weight, padding=1)

        half = (x.bfloat16(), weight.bfloat16())
        calls: dict[str, Call] = {"ours": own, "conv2d": torchs}
        if torch.bfloat16 in fast_types(settings.device):
            calls["conv2d, bfloat16"] = partial(torchs, *half)
        timed = {name: torch.no_grad()(call) for name, call in calls.items()}
        verify(
            "conv2d", [timed["conv2d"]()], [timed["ours"]()], tolerance("conv", settings, x.dtype)
        )
        yield Group(name_case(shape), title, timed, "convolve3x3")


def python(settings: Settings) -> Iterator[Group]:
    """What a camera adds to its operators: a cube so small that nothing else takes time."""
    (cube,) = settings.shapes or [(1, 4, 8, 8)]
    x, mask = _random(cube).to(settings.device), _mask(*cube[2:]).to(settings.device)
    system = cassi.SDCassi(mask, cube[1], step=1)
    y, m, g = system(x), mask[None, None, None], system.gram[None]
    rho, ops = torch.full((1, 1, 1, 1), RHO, device=x.device), torch.ops.cassi
    kinds: dict[str, tuple[Call, Call]] = {
        "forward": (partial(system, x), partial(ops.forward.default, x, m, 1)),
        "adjoint": (
            partial(system.adjoint, y),
            partial(ops.adjoint.default, y, m, cube[1], 1, False),
        ),
        "data_step": (
            partial(system.data_step, x, y, RHO),
            partial(ops.data_step.default, x, y, m, g, rho, 1),
        ),
    }
    alone = "limit: operator alone"
    for operator, calls in kinds.items():
        timed = {name: _many(call) for name, call in zip(("camera", alone), calls, strict=True)}
        title = f"{operator}, {MANY} calls"
        yield Group(name_case(cube), title, timed, operator, limits=(alone,))


MANY = 1000
"""Calls that are timed as one: of so many, milliseconds are microseconds of a call."""


def _many(call: Call) -> Call:
    @torch.inference_mode()
    def calls() -> None:
        with torch._C._AutoDispatchBelowAutograd():
            for _ in range(MANY):
                call()

    return calls


def deepinv(settings: Settings) -> Iterator[Group]:
    """Our camera in deepinv's clothes against deepinv's own."""
    load = partial(import_module, "deepinv")
    library = settings.try_call(name_case(settings.cube), "all", "deepinv", load)
    if library is None:
        return
    generator, gamma = torch.Generator().manual_seed(0), 1.0

    def make(shape: Shape, dtype: torch.dtype) -> tuple[Any, Any, Tensor]:
        """Return deepinv's physics, ours, and a cube."""
        mask = (torch.rand(shape[1:], generator=generator) > 0.5).to(dtype)
        filled = mask.expand(1, *shape).contiguous()
        theirs = library.physics.CompressiveSpectralImaging(
            shape, mask=filled, mode="sd", shear_dir="w"
        )
        ours = cassi.adapters.as_physics(cassi.SDCassi(mask / shape[0], bands=shape[0], step=1))
        return theirs, ours, torch.rand(1, *shape, generator=generator, dtype=dtype)

    operations: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
        "A": lambda physics, x, y: physics.A(x),
        "A_adjoint": lambda physics, x, y: physics.A_adjoint(y),
        "prox_l2": lambda physics, x, y: physics.prox_l2(torch.zeros_like(x), y, gamma, max_iter=1),
    }
    bands = settings.cube[0]
    exact = make((bands, 33, 34 if bands % 2 == 0 else 33), torch.float64)
    theirs, ours, x = make(settings.cube, torch.float32)
    y, z = ours.A(x), exact[1].A(exact[2])
    for name, operation in operations.items():
        call = torch.no_grad()(operation)
        other, found = (call(physics, exact[2], z) for physics in exact[:2])
        error = other - found
        if name == "prox_l2":  # γ Aᵀ(Ax − y) + x − z, by deepinv, of our x, and z = 0
            error = gamma * exact[0].A_adjoint(exact[0].A(found) - z) + found
        errors = {"deepinv": float((error.abs().max() / found.abs().max()).detach())}
        both = {"deepinv": partial(call, theirs, x, y), "ours": partial(call, ours, x, y)}
        yield Group(name_case(settings.cube), name, both, "data_step", errors=errors)


WORKLOADS: dict[str, Callable[[Settings], Iterator[Group]]] = {
    each.__name__: each
    for each in (memory, operators, tv, iteration, original, cameras, blocks, python, deepinv)
}
COLUMNS = (
    *("workload", "case", "operator", "implementation", "ms", "wall_ms", "rounds", "over_limit"),
    *("speedup", "gb_per_s", "of_copy", "peak_mib", "error", "kernel"),
)
"""Of a row. over_limit: times as long as the limit. speedup: of ours, over the fastest other.

gb_per_s counts bytes that must move, of_copy is that over the rate of a copy on the device.
"""
SHOWN = [name for name in COLUMNS if name not in ("workload", "kernel")]


def time_group(workload: str, group: Group, settings: Settings) -> list[Row]:
    """Return a row for every call of a group; what was not measured is None."""
    print(f"{group.case}  {group.operator}", file=sys.stderr, flush=True)
    device, cuda = settings.device, settings.device.type == "cuda"
    timings = measure(
        [Candidate(n, c, CPU if n in group.on_cpu else device) for n, c in group.calls.items()],
        settings.rounds,
        settings.seconds,
        group.refresh,
    )
    limit = sum(timings[name].ms for name in group.limits)
    others = [t.ms for n, t in timings.items() if not n.startswith(("ours", "limit"))]

    def rate(name: str) -> float | None:
        return group.moved[name] / timings[name].ms / 1e6 if name in group.moved else None

    def row(name: str, timing: Timing) -> Row:
        ours, bound, peak = name.startswith("ours"), name.startswith("limit"), timing.peak_bytes
        copy = rate(COPY)
        return {
            "workload": workload,
            "case": group.case,
            "operator": group.operator,
            "implementation": name,
            "ms": timing.ms,
            "wall_ms": timing.wall_ms if cuda else None,
            "rounds": timing.rounds,
            "over_limit": timing.ms / limit if limit and not bound else None,
            "speedup": min(others) / timing.ms if ours and others else None,
            "gb_per_s": rate(name),
            "of_copy": cast(float, rate(name)) / copy if copy and name in group.moved else None,
            "peak_mib": None if peak is None else peak / 2**20,
            "error": group.errors.get(name),
            "kernel": cassi.ops.backend(device, group.kernel) if ours else None,
        }

    return [row(name, timing) for name, timing in timings.items()]


def _format(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _exact(value: object) -> object:
    return f"{value:.5g}" if isinstance(value, float) else value


def name_case(shape: Sequence[int]) -> str:
    """Return a shape as text."""
    return "x".join(map(str, shape))


def _random(shape: Shape, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def _mask(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(3)).mul_(0.9).add_(0.1)


def describe(settings: Settings) -> dict[str, str]:
    """Say where and how the figures were measured."""
    device = settings.device
    found = {name: cassi.ops.backend(device, name) for name in KERNELS}
    same = len(set(found.values())) == 1
    if device.type == "cuda":
        machine = torch.cuda.get_device_name(device)
    else:
        cpuinfo = Path("/proc/cpuinfo")
        lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        name = (names or [platform.processor() or platform.machine()])[0]
        machine = f"{name} ({os.cpu_count()} cores)"
    return {
        "device": machine,
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "kernels": found["forward"] if same else ", ".join(f"{k} {v}" for k, v in found.items()),
        "dtype": str(settings.dtype).removeprefix("torch."),
        "layout": "channels_last" if settings.channels_last else "contiguous",
    }


def parse_shape(text: str) -> Shape:
    """Read BxCxHxW."""
    try:
        batch, bands, height, width = (int(number) for number in text.split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected BxCxHxW, got {text!r}") from None
    return batch, bands, height, width


def make_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--workload", choices=[*WORKLOADS, "all"], default="all")
    add("--device", choices=["cpu", "cuda"], default="cpu")
    add("--csv", type=Path, help="write all rows to this file")
    add("--rounds", type=int, help="timed calls of every implementation; chosen by its speed")
    add("--seconds", type=float, help="for an implementation (default 1; 0.2 on a GPU)")
    add("--batches", type=int, nargs="*", default=[1, 4, 16], help="of 28x256x256, step 2")
    add("--no-large", dest="large", action="store_false", help="leave 1x28x660x660 out")
    add("--shapes", type=parse_shape, nargs="+", default=[], help="BxCxHxW, instead of all these")
    add("--dtype", choices=list(DTYPES), default=["float32"], nargs="+", help="of operators")
    add("--channels-last", action="store_true", help="lay cubes out with their bands innermost")
    add("--no-compile", dest="compile", action="store_false", help="leave torch.compile out")
    return parser


def main(arguments: list[str] | None = None) -> tuple[list[Row], dict[str, list[str]]]:
    """Measure, print the tables, and write the CSV.

    Returns:
        The rows, and what did not run here, and in which cases.
    """
    parser = make_parser()
    options = vars(parser.parse_args(arguments))
    device, workload, csv = (options.pop(k) for k in ("device", "workload", "csv"))
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no CUDA device")
    del options["threads"]
    torch.backends.cudnn.benchmark = True  # the convolution at its best
    options["seconds"] = options["seconds"] or (0.2 if device == "cuda" else 1.0)
    dtypes = options.pop("dtype")
    rows: list[Row] = []
    left_out: dict[str, list[str]] = {}
    for dtype in dtypes:
        options |= {"dtype": DTYPES[dtype], "left_out": left_out}
        settings = Settings(torch.device(device), **options)
        environment = describe(settings)
        print("\n".join(f"{name}: {value}" for name, value in environment.items()), flush=True)
        for name in [w for w in WORKLOADS if w != "deepinv"] if workload == "all" else [workload]:
            print(f"\n### {name}\n")
            table = Table(*SHOWN)
            for group in WORKLOADS[name](settings):
                for row in time_group(name, group, settings):
                    table.print(*(_format(row[column]) for column in SHOWN))
                    rows.append(environment | row)
                if csv is not None:
                    write_csv(csv, [{k: _exact(v) for k, v in row.items()} for row in rows])
    for reason, cases in left_out.items():
        print(f"\nnote: {reason}: {'; '.join(cases)}")
    return rows, left_out


if __name__ == "__main__":
    main()
