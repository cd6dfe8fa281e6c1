"""Time the operators beside other ways to write them, and beside what the machine can do at most.

    python -m scripts.benchmarks.ops                                   # all on the CPU
    python -m scripts.benchmarks.ops --workload operators --shapes 4x28x256x256
    python -m scripts.benchmarks.ops --workload memory --device cuda --dtype float32 bfloat16
    python -m scripts.benchmarks.ops --workload deepinv --threads 1    # pip install deepinv

`ratio` is the time over that of ours. Workloads: `memory` has our operators beside a copy of as
many bytes as each must read and write. `operators` has the operators of a step, alone and with the
gradient of their first argument. `original` goes forth and back on fresh random data. `tv` and
`iteration` (one of GAP-TV) compare with scikit-image and NumPy. `cameras` has several masks and
shots, beside a clone of the cube. `python` has a camera beside its operators, on a cube so small
that Python is all. `deepinv` compares with deepinv's camera, which solves `prox_l2` by conjugate
gradients: one iteration of the 50 that it may take is timed, a lower bound; it is not part of all.

What another way gives is compared with ours before it is timed.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

import cassi
from cassi.ops._library import kernels
from scripts.benchmarks.tables import Call, Parser, Table, time_calls, write_json

Shape = tuple[int, ...]
Array = NDArray[np.floating]
STEP, RHO, WEIGHT, INNER = 2, 0.1, 0.1, 5
RANK = 6  # components of a cube, as the default method has
CUBE: Shape = (28, 256, 256)
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in TOLERANCES}
OURS, COPY, CLONE = "ours", "limit: device copy", "limit: x.clone()"


class Mismatch(Exception):
    """An implementation gives other numbers than ours."""


@dataclass(frozen=True)
class Settings:
    """What to measure: cubes of this shape, BxCxHxW."""

    device: torch.device
    dtype: torch.dtype
    shape: Shape
    channels_last: bool = False


@dataclass(frozen=True)
class Group:
    """Calls that are timed side by side, ours first; `alike` say the same as ours."""

    operator: str
    calls: dict[str, Call]
    alike: tuple[str, ...] = ()


class Problem:
    """A random cube `(B, C, H, W)`, a mask in [0.1, 1] and another cube's measurement."""

    def __init__(self, settings: Settings) -> None:
        self.shape = shape = settings.shape
        _, self.bands, _, self.width = shape
        device, dtype = settings.device, settings.dtype
        random = torch.Generator(device).manual_seed(0)
        x, scene = (torch.rand(shape, generator=random, device=device) for _ in range(2))
        layout = torch.channels_last if settings.channels_last else torch.contiguous_format
        self.x = x.to(dtype).contiguous(memory_format=layout)
        self.channels_last = settings.channels_last
        mask = torch.rand(shape[2:], generator=random, device=device)
        self.mask = mask.mul(0.9).add(0.1).to(dtype)
        self.y = cassi.ops.forward(scene.to(dtype), self.mask, STEP)
        self.gram = cassi.ops.gram(self.mask, self.bands, STEP)
        self.counts = cassi.ops.gram(torch.ones_like(self.mask), self.bands, STEP).clamp_min(1)

    @property
    def columns(self) -> list[slice]:
        """The detector columns of each band."""
        return [slice(c * STEP, c * STEP + self.width) for c in range(self.bands)]


Form = dict[str, Callable[..., Tensor]]
"""One way to write the operators: forward(x, mask), adjoint(y, mask), data_step(v, y, mask), …

What does not depend on cube or measurement (indices, kernels) is prepared and costs no time.
"""


def ours(p: Problem) -> Form:
    """The operators of this package."""
    like: dict[str, Any] = {
        "bands": p.bands,
        "step": STEP,
        "channels_last": p.channels_last,
    }
    return {
        "forward": partial(cassi.ops.forward, step=STEP),
        "adjoint": partial(cassi.ops.adjoint, **like),
        "ratio_inverse": partial(cassi.ops.ratio_inverse, **like),
        "data_step": partial(cassi.ops.data_step, step=STEP, rho=RHO, gram=p.gram),
    }


def slices(p: Problem) -> Form:
    """A Python loop over bands that adds into slices."""

    def forward(x: Tensor, mask: Tensor) -> Tensor:
        y = torch.zeros_like(p.y)
        for c, columns in enumerate(p.columns):
            y[:, 0, :, columns] += mask * x[:, c]
        return y

    def adjoint(y: Tensor, mask: Tensor) -> Tensor:
        return torch.stack([mask * y[:, 0, :, columns] for columns in p.columns], 1)

    return {"forward": forward, "adjoint": adjoint}


def convolution(p: Problem) -> Form:
    """Shift and sum as one convolution along the rows, with a one-hot kernel for each band."""
    reach = (p.bands - 1) * STEP
    back = p.x.new_zeros((p.bands, 1, 1, reach + 1))
    back[range(p.bands), 0, 0, range(0, reach + 1, STEP)] = 1
    there = back.flip(-1).transpose(0, 1).contiguous()
    return {
        "forward": lambda x, mask: functional.conv2d(x * mask, there, padding=(0, reach)),
        "adjoint": lambda y, mask: functional.conv2d(y, back) * mask,
    }


def scatter(p: Problem) -> Form:
    """`scatter_add_` with the detector pixel of every element, and `gather` back."""
    ranges = (torch.arange(n, device=p.x.device) for n in p.shape[1:])
    band, row, column = torch.meshgrid(*ranges, indexing="ij")
    index = (row * p.y.shape[-1] + column + band * STEP).view(1, -1)

    def forward(x: Tensor, mask: Tensor) -> Tensor:
        y, source = torch.zeros_like(p.y), (x * mask).reshape(len(x), -1)
        y.view(len(x), -1).scatter_add_(1, index.expand_as(source), source)
        return y

    def adjoint(y: Tensor, mask: Tensor) -> Tensor:
        values = y.reshape(len(y), -1).gather(1, index.expand(len(y), -1))
        return values.view(len(y), *p.shape[1:]) * mask

    return {"forward": forward, "adjoint": adjoint}


def shift_roll(p: Problem) -> Form:
    """As published codes do it: the cube is widened, its bands are rolled, the mask is a cube."""

    def shift(x: Tensor) -> Tensor:  # (B, C, H, W) -> (B, C, H, W')
        wide = functional.pad(x, (0, (p.bands - 1) * STEP))
        for c in range(p.bands):
            wide[:, c] = torch.roll(wide[:, c], shifts=c * STEP, dims=-1)
        return wide

    def shift_back(wide: Tensor) -> Tensor:  # (B, C, H, W') -> (B, C, H, W)
        for c in range(p.bands):
            wide[:, c] = torch.roll(wide[:, c], shifts=-c * STEP, dims=-1)
        return wide[..., : p.width]

    masks = shift(p.mask.expand(1, *p.shape[1:]))
    inverse = shift(p.mask.reciprocal().expand(1, *p.shape[1:]))
    return {
        "forward": lambda x, mask: (shift(x) * masks).sum(1, keepdim=True),
        "adjoint": lambda y, mask: shift_back(y.repeat(1, p.bands, 1, 1) * masks),
        "ratio_inverse": lambda y, mask: shift_back(
            (y / p.counts).repeat(1, p.bands, 1, 1) * inverse
        ),
    }


FORMS: dict[str, Callable[[Problem], Form]] = {
    "slice loop": slices,
    "published shift-and-roll": shift_roll,
    "scatter, gather": scatter,
    "one-hot convolution": convolution,
}


def make_form(name: str, p: Problem) -> Form:
    """Return a way to write all operators: what it leaves out follows from the others."""
    form = ours(p) if name == OURS else FORMS[name](p)
    forward, adjoint = form["forward"], form["adjoint"]
    form.setdefault("ratio_inverse", lambda y, mask: adjoint(y / p.counts, mask.reciprocal()))
    form.setdefault(
        "data_step",
        lambda v, y, mask: v + adjoint((y - forward(v, mask)) / (p.gram + RHO), mask),
    )
    return form


def make_call(function: Callable[..., Tensor], operator: str, p: Problem, backward: bool) -> Call:
    """Return a call of an operator that gives its result, and the gradient of its first argument.

    The upstream gradient is a cube or a measurement of the problem.
    """
    given = {"forward": (p.x,), "data_step": (p.x, p.y)}.get(operator, (p.y,))
    if not backward:
        return torch.no_grad()(lambda: function(*given, p.mask))
    first = given[0].detach().requires_grad_()

    def run() -> tuple[Tensor, ...]:
        result = function(first, *given[1:], p.mask)
        upstream = p.y if operator == "forward" else p.x
        return result.detach(), *torch.autograd.grad(result, first, upstream)

    return run


def memory(settings: Settings) -> Iterator[Group]:
    """Our operators, each beside a copy of as many bytes as it must read and write."""
    p = Problem(settings)
    x, y, m, g, own = p.x, p.y, p.mask, p.gram, ours(p)
    rho = torch.full((len(x),), RHO, device=x.device)
    e = torch.rand(p.bands, RANK, generator=torch.Generator().manual_seed(0)).to(x)
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
        "forward_subspace": (partial(cassi.ops.forward_subspace, a, e, m, STEP), (a, e, m)),
        "adjoint_subspace": (partial(cassi.ops.adjoint_subspace, y, e, m, STEP), (y, e, m)),
    }
    for operator, (call, read) in calls.items():
        timed = torch.no_grad()(call)
        moved = sum(value.nbytes for value in (*read, *_as_tuple(timed())))
        half = torch.zeros(moved // 2, dtype=torch.uint8, device=x.device)
        yield Group(operator, {OURS: timed, COPY: partial(torch.empty_like(half).copy_, half)})


def operators(settings: Settings) -> Iterator[Group]:
    """Every operator of a step, alone and with its gradient, in every form."""
    p = Problem(settings)
    windows = p.y[:, 0].unfold(-1, p.width, STEP).transpose(1, 2)
    limits: dict[str, Call] = {
        "limit: x.sum()": p.x.sum,
        "limit: view × mask": partial(torch.mul, windows, p.mask),
        CLONE: p.x.clone,
    }
    forms = {name: make_form(name, p) for name in (OURS, *FORMS)}
    for operator in ours(p):
        for backward in (False, True):
            calls = {
                name: make_call(form[operator], operator, p, backward)
                for name, form in forms.items()
            }
            title = operator + " + backward" * backward
            yield Group(title, calls | limits, tuple(FORMS))


def original(settings: Settings) -> Iterator[Group]:
    """Forth and back on fresh random data: forward, then ratio_inverse."""
    p = Problem(settings)

    def both_ways(form: Form, p: Problem = p) -> Tensor:
        p.x.uniform_()
        y = form["forward"](p.x, p.mask)
        return form["ratio_inverse"](y, p.mask)

    calls = {name: partial(both_ways, make_form(name, p)) for name in (OURS, *FORMS)}
    del calls["published shift-and-roll"]
    yield Group("forward, ratio_inverse", {n: torch.no_grad()(c) for n, c in calls.items()})


def tv(settings: Settings) -> Iterator[Group]:
    """`tv_prox` against scikit-image, always on the CPU, at equal inner iterations.

    Ours takes projected-gradient steps, scikit-image Chambolle's of 2004: the two agree where they
    end (tests/ops/test_tv.py), not after five steps.
    """
    _, *cube = settings.shape
    planes = torch.rand(cube, generator=torch.Generator().manual_seed(0))
    x, images = planes[None].to(settings.device), planes.numpy()
    channels = np.ascontiguousarray(images.transpose(1, 2, 0), dtype=np.float64)
    prox = partial(cassi.ops.tv_prox, x, WEIGHT, INNER)
    calls: dict[str, Call] = {
        OURS: partial(prox, norm="band"),
        "ours, coupled": partial(prox, norm="frobenius"),
        "scikit-image, as called": partial(denoise_channels, channels),
        "scikit-image, band by band": partial(denoise_planes, images),
        CLONE: x.clone,
    }
    yield Group(f"tv_prox, {INNER} iterations", calls)


def iteration(settings: Settings) -> Iterator[Group]:
    """One accelerated GAP-TV iteration against that of public NumPy codes, on the CPU."""
    p = Problem(settings)
    system = cassi.SDCassi(p.mask.float(), bands=p.bands, step=STEP).to(settings.device)
    algorithm, prior = cassi.GAP(accelerated=True), cassi.TV(iterations=INNER)
    y = system(p.x.float())
    state = algorithm.init(y, system, system.pinv(y))
    step = partial(algorithm.step, state, y, system, prior, WEIGHT, algorithm.rho)
    public = NumpyGap(p.mask.float().cpu().numpy(), p.bands, denoise_channels)
    snapshot = y[0, 0].double().cpu().numpy()
    wide = public.shift(state.x[0].double().cpu().numpy().transpose(1, 2, 0))
    calls: dict[str, Call] = {
        OURS: torch.no_grad()(step),
        "NumPy": partial(public.iterate, wide, snapshot, snapshot),
    }
    yield Group("accelerated GAP-TV iteration", calls)


def _mask(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(3)).mul_(0.9).add_(0.1)


CAMERAS: dict[str, Callable[[int, int, int], Any]] = {
    OURS: lambda c, h, w: cassi.SDCassi(_mask(h, w), c, STEP),
    "mask per band": lambda c, h, w: cassi.SDCassi(_mask(c, h, w), c, STEP),
    "two shots": lambda c, h, w: cassi.SDCassi(_mask(2, 1, h, w), c, STEP),
    "four shots": lambda c, h, w: cassi.SDCassi(_mask(4, 1, h, w), c, STEP),
}


def cameras(settings: Settings) -> Iterator[Group]:
    """The operators of cameras with several masks and shots, the first with one mask."""
    batch, *cube = settings.shape
    made = {name: make(*cube).to(settings.device) for name, make in CAMERAS.items()}
    x = {n: torch.rand(batch, *s.cube_shape, device=settings.device) for n, s in made.items()}
    y = {name: system(x[name]) for name, system in made.items()}
    kinds: dict[str, dict[str, Call]] = {
        "forward": {n: partial(s, x[n]) for n, s in made.items()},
        "adjoint": {n: partial(s.adjoint, y[n]) for n, s in made.items()},
        "data_step": {n: partial(s.data_step, 0.9 * x[n], y[n], RHO) for n, s in made.items()},
    }
    for operator, calls in kinds.items():
        calls[CLONE] = x[OURS].clone
        timed = {name: torch.inference_mode()(call) for name, call in calls.items()}
        yield Group(f"{operator} of a camera", timed)


def python(settings: Settings) -> Iterator[Group]:
    """What a camera adds to its operators: a cube so small that nothing else takes time."""
    _, bands, *sides = settings.shape
    mask = _mask(*sides).to(settings.device)
    system = cassi.SDCassi(mask, bands, step=1)
    x = torch.rand(settings.shape, device=settings.device)
    y, m, g = system(x), mask[None, None, None], system.gram[None]
    rho, ops = torch.full((1, 1, 1, 1), RHO, device=x.device), torch.ops.cassi
    kinds: dict[str, tuple[Call, Call]] = {
        "forward": (partial(system, x), partial(ops.forward.default, x, m, 1)),
        "adjoint": (
            partial(system.adjoint, y),
            partial(ops.adjoint.default, y, m, bands, 1, False),
        ),
        "data_step": (
            partial(system.data_step, x, y, RHO),
            partial(ops.data_step.default, x, y, m, g, rho, 1),
        ),
    }
    for operator, (camera, alone) in kinds.items():
        calls = {OURS: camera, "limit: operator alone": alone}
        yield Group(operator, {n: torch.inference_mode()(call) for n, call in calls.items()})


def deepinv(settings: Settings) -> Iterator[Group]:
    """Our camera in deepinv's clothes against deepinv's own.

    They are compared on images of odd sides: deepinv moves those of even sides by one pixel more.
    Of `prox_l2`, with z = 0, our x is put into deepinv's own equation γAᵀ(Ax − y) + x − z = 0.
    """
    from deepinv.physics import CompressiveSpectralImaging

    random = torch.Generator().manual_seed(0)

    def make(shape: Shape, dtype: torch.dtype) -> tuple[Any, Any, Tensor]:
        mask = (torch.rand(shape[1:], generator=random) > 0.5).to(dtype)
        whole = mask.expand(1, *shape).contiguous()
        theirs = CompressiveSpectralImaging(shape, mask=whole, mode="sd", shear_dir="w")
        ours = cassi.adapters.as_physics(cassi.SDCassi(mask / shape[0], bands=shape[0], step=1))
        return theirs, ours, torch.rand(1, *shape, generator=random, dtype=dtype)

    operations: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
        "A": lambda physics, x, y: physics.A(x),
        "A_adjoint": lambda physics, x, y: physics.A_adjoint(y),
        "prox_l2": lambda physics, x, y: physics.prox_l2(torch.zeros_like(x), y, 1.0, max_iter=1),
    }
    _, bands, *_ = settings.shape
    theirs, own, x = make((bands, 33, 34 - bands % 2), torch.float64)
    large, our_large, large_x = make(settings.shape[1:], torch.float32)
    y, large_y = own.A(x), our_large.A(large_x)
    for name, operation in operations.items():
        call = torch.no_grad()(operation)
        result = call(own, x, y)
        error = call(theirs, x, y) - result
        if name == "prox_l2":
            error = theirs.A_adjoint(theirs.A(result) - y) + result
        verify(f"deepinv, {name}", result + error, result, 1e-8)
        calls = {OURS: our_large, "deepinv": large}
        yield Group(name, {n: partial(call, each, large_x, large_y) for n, each in calls.items()})


class NumpyGap:
    """Accelerated GAP in NumPy on a wide cube `(H, W', C)` in float64.

        t ← t + (y − Ax),   v = x + Aᵀ((t − Ax) / Φs),   x ← shift(denoise(shift_back(v)))

    Args:
        mask: `(H, W)`.
        bands: number of bands C.
        denoise: maps a cube `(H, W, C)` to one.
    """

    def __init__(self, mask: Array, bands: int, denoise: Callable[[Array], Array]) -> None:
        """Shift the mask of every band, and sum their squares."""
        self.extra, self.denoise = (bands - 1) * STEP, denoise
        self.masks = self.shift(np.repeat(mask[:, :, None].astype(np.float64), bands, axis=2))
        self.gram = (self.masks**2).sum(2)
        self.gram[self.gram == 0] = 1

    def shift(self, cube: Array) -> Array:  # (H, W, C) -> (H, W', C)
        """Widen the cube and roll every band to its columns."""
        wide = np.pad(cube, ((0, 0), (0, self.extra), (0, 0)))
        for c in range(cube.shape[2]):
            wide[:, :, c] = np.roll(wide[:, :, c], c * STEP, axis=1)
        return wide

    def shift_back(self, wide: Array) -> Array:  # (H, W', C) -> (H, W, C)
        """Roll every band back and crop."""
        for c in range(wide.shape[2]):
            wide[:, :, c] = np.roll(wide[:, :, c], -c * STEP, axis=1)
        return wide[:, : wide.shape[1] - self.extra]

    def iterate(self, wide: Array, y: Array, target: Array) -> tuple[Array, Array]:
        """Run one iteration; return the wide cube and the target `(H, W')`."""
        simulated = (wide * self.masks).sum(2)
        target = target + (y - simulated)
        step = ((target - simulated) / self.gram)[:, :, None] * self.masks
        return self.shift(self.denoise(self.shift_back(wide + step))), target


def denoise_channels(cube: Array) -> Array:
    """Call scikit-image on `(H, W, C)` as the public codes do: in its dtype, over all channels."""
    from skimage.restoration import denoise_tv_chambolle

    return denoise_tv_chambolle(cube, weight=WEIGHT, eps=0, max_num_iter=INNER, channel_axis=-1)


def denoise_planes(cube: Array) -> Array:
    """Call scikit-image on one contiguous band of `(C, H, W)` at a time, its fastest form."""
    from skimage.restoration import denoise_tv_chambolle

    bands = (denoise_tv_chambolle(b, weight=WEIGHT, eps=0, max_num_iter=INNER) for b in cube)
    return np.stack(list(bands))


WORKLOADS: dict[str, Callable[[Settings], Iterator[Group]]] = {
    each.__name__: each
    for each in (memory, operators, tv, iteration, original, cameras, python, deepinv)
}
SHAPES: dict[str, list[Shape]] = {
    "memory": [(16, *CUBE)],
    "operators": [(4, *CUBE)],
    "original": [(16, *CUBE), (1, 512, *CUBE[1:])],
    "python": [(1, 4, 8, 8)],
}
"""Of a workload, where none are asked for; one cube of all others."""


COLUMNS = ("workload", "case", "operator", "implementation", "ms", "ratio")


def verify(name: str, result: Any, expected: Any, limit: float) -> None:
    """Compare results with ours, relative to their norm.

    Raises:
        Mismatch: they differ by more than `limit`.
    """
    for value, truth in zip(_as_tuple(result), _as_tuple(expected), strict=True):
        if value.shape != truth.shape:
            raise Mismatch(f"{name}: shape {value.shape}, ours {truth.shape}")
        error = ((value.double() - truth.double()).norm() / truth.double().norm()).item()
        if not error <= limit:
            raise Mismatch(f"{name}: differs from ours by {error:.1e}")


def _as_tuple(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def parse_shape(text: str) -> Shape:
    """Read BxCxHxW."""
    try:
        batch, bands, height, width = (int(number) for number in text.split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected BxCxHxW, got {text!r}") from None
    return batch, bands, height, width


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Measure, print the tables, and return the rows."""
    parser = Parser(__doc__)
    parser.add_argument("--workload", choices=[*WORKLOADS, "all"], default="all")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--seconds", type=float, default=1.0, help="for a call")
    parser.add_argument("--shapes", type=parse_shape, nargs="+", help="BxCxHxW")
    parser.add_argument("--dtype", choices=list(DTYPES), default=["float32"], nargs="+")
    parser.add_argument("--channels-last", action="store_true", help="the bands innermost")
    options = parser.parse_args(arguments)
    torch.backends.cudnn.benchmark = True  # the convolution at its best
    print(f"torch {torch.__version__}, {options.threads} threads, {options.device}", flush=True)
    every = [name for name in WORKLOADS if name != "deepinv"]
    rows: list[dict[str, Any]] = []
    for name in every if options.workload == "all" else [options.workload]:
        print(f"\n### {name}\n")
        table = Table(*COLUMNS)
        shapes = options.shapes or SHAPES.get(name, [(1, *CUBE)])
        for dtype, shape in product(options.dtype, shapes):
            settings = Settings(options.device, DTYPES[dtype], shape, options.channels_last)
            # On a GPU torch lets convolutions round their factors to TF32.
            limit = max(TOLERANCES[DTYPES[dtype]], 2e-3 * (options.device.type == "cuda"))
            for group in WORKLOADS[name](settings):
                expected = group.calls[OURS]()
                for other in group.alike:
                    verify(f"{other}, {group.operator}", group.calls[other](), expected, limit)
                times = time_calls(group.calls, options.seconds)
                for implementation, ms in times.items():
                    case = f"{'x'.join(map(str, shape))} {dtype}"
                    row = (name, case, group.operator, implementation, ms, ms / times[OURS])
                    table.print(*row)
                    rows.append(dict(zip(COLUMNS, row, strict=True)))
            write_json(options.json, "operators", rows)
    return rows


if __name__ == "__main__":
    main()
