"""Time the operators beside other implementations, and beside lower bounds of the machine.

    python -m scripts.benchmarks.ops                                   # all on the CPU
    python -m scripts.benchmarks.ops --workload operators --shapes 4x28x256x256
    python -m scripts.benchmarks.ops --workload memory --device cuda --dtype float32 bfloat16
    python -m scripts.benchmarks.ops --workload deepinv --threads 1    # pip install deepinv

`ratio` is the time of an implementation over the time of ours. The workloads are:

- `memory`: each of our operators, beside a copy of as many bytes as it must read and write;
- `operators`: the operators of an iteration, alone and with the gradient of their first argument;
- `original`: forward and then `ratio_inverse`, on new random data;
- `tv` and `iteration` (one of GAP-TV): comparison with scikit-image and NumPy;
- `cameras`: several masks and shots, beside a clone of the cube;
- `python`: the methods of a camera beside its operators, on a cube so small that Python code takes
  nearly all of the time;
- `deepinv`: comparison with deepinv's camera. It solves `prox_l2` by up to 50 iterations of
  conjugate gradients. Only one is timed, so its time is a lower bound. `all` leaves this workload
  out.

In `operators` and `deepinv`, the results of other implementations are compared with ours before
they are timed.
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
from cassi.ops import _library
from scripts.benchmarks.tables import Call, Parser, Table, time_calls, write_json

Shape = tuple[int, ...]
Array = NDArray[np.floating]
STEP, RHO = 2, 0.1
TV_WEIGHT, TV_ITERATIONS = 0.1, 5
RANK = 6  # spectral components of a cube, as the default method has
CUBE: Shape = (28, 256, 256)
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in TOLERANCES}
OURS, COPY, CLONE = "ours", "limit: device copy", "limit: x.clone()"


class Mismatch(Exception):
    """The results of an implementation differ from ours."""


@dataclass(frozen=True)
class Settings:
    """Device, type, shape `(B, C, H, W)` and layout of the cubes to measure with."""

    device: torch.device
    dtype: torch.dtype
    shape: Shape
    channels_last: bool = False


@dataclass(frozen=True)
class Group:
    """Calls of one operator that are timed side by side, ours first.

    `implementations` are the names of those whose results must equal ours.
    """

    operator: str
    calls: dict[str, Call]
    implementations: tuple[str, ...] = ()


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


# An implementation of the operators: forward(x, mask), adjoint(y, mask), data_step(v, y, mask), ….
# Indices and kernels do not depend on cube or measurement, so they are prepared before the timing.
Form = dict[str, Callable[..., Tensor]]


def ours(p: Problem) -> Form:
    """Return the operators of this package."""
    cube: dict[str, Any] = {
        "bands": p.bands,
        "step": STEP,
        "channels_last": p.channels_last,
    }
    return {
        "forward": partial(cassi.ops.forward, step=STEP),
        "adjoint": partial(cassi.ops.adjoint, **cube),
        "ratio_inverse": partial(cassi.ops.ratio_inverse, **cube),
        "data_step": partial(cassi.ops.data_step, step=STEP, rho=RHO, gram=p.gram),
    }


def slices(p: Problem) -> Form:
    """Return the operators as a Python loop over bands, which adds to slices of the detector."""

    def forward(x: Tensor, mask: Tensor) -> Tensor:
        y = torch.zeros_like(p.y)
        for c, columns in enumerate(p.columns):
            y[:, 0, :, columns] += mask * x[:, c]
        return y

    def adjoint(y: Tensor, mask: Tensor) -> Tensor:
        return torch.stack([mask * y[:, 0, :, columns] for columns in p.columns], 1)

    return {"forward": forward, "adjoint": adjoint}


def convolution(p: Problem) -> Form:
    """Return the operators as convolutions along the rows; the kernel of a band has a single 1."""
    reach = (p.bands - 1) * STEP
    adjoint_kernel = p.x.new_zeros((p.bands, 1, 1, reach + 1))
    adjoint_kernel[range(p.bands), 0, 0, range(0, reach + 1, STEP)] = 1
    kernel = adjoint_kernel.flip(-1).transpose(0, 1).contiguous()
    return {
        "forward": lambda x, mask: functional.conv2d(x * mask, kernel, padding=(0, reach)),
        "adjoint": lambda y, mask: functional.conv2d(y, adjoint_kernel) * mask,
    }


def scatter(p: Problem) -> Form:
    """Return forward as `scatter_add_` of the cube to detector pixels, and adjoint as `gather`."""
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
    """Return the operators as published codes compute them: they pad the cube and roll its bands.

    The mask is a cube whose bands are shifted.
    """

    def shift(x: Tensor) -> Tensor:  # (B, C, H, W) -> (B, C, H, W')
        padded = functional.pad(x, (0, (p.bands - 1) * STEP))
        for c in range(p.bands):
            padded[:, c] = torch.roll(padded[:, c], shifts=c * STEP, dims=-1)
        return padded

    def shift_back(padded: Tensor) -> Tensor:  # (B, C, H, W') -> (B, C, H, W)
        for c in range(p.bands):
            padded[:, c] = torch.roll(padded[:, c], shifts=-c * STEP, dims=-1)
        return padded[..., : p.width]

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
    """Return all operators of an implementation, missing ones composed of forward and adjoint."""
    form = ours(p) if name == OURS else FORMS[name](p)
    forward, adjoint = form["forward"], form["adjoint"]
    form.setdefault("ratio_inverse", lambda y, mask: adjoint(y / p.counts, mask.reciprocal()))
    form.setdefault(
        "data_step",
        lambda v, y, mask: v + adjoint((y - forward(v, mask)) / (p.gram + RHO), mask),
    )
    return form


def make_call(function: Callable[..., Tensor], operator: str, p: Problem, backward: bool) -> Call:
    """Return a function that calls an operator, with `backward` also its gradient.

    The gradient is that of the first argument. The upstream gradient is a cube or a measurement of
    the problem.
    """
    inputs = {"forward": (p.x,), "data_step": (p.x, p.y)}.get(operator, (p.y,))
    if not backward:
        return torch.no_grad()(lambda: function(*inputs, p.mask))
    first = inputs[0].detach().requires_grad_()

    def run() -> tuple[Tensor, ...]:
        result = function(first, *inputs[1:], p.mask)
        upstream = p.y if operator == "forward" else p.x
        return result.detach(), *torch.autograd.grad(result, first, upstream)

    return run


def memory(settings: Settings) -> Iterator[Group]:
    """Yield our operators, each beside a copy of as many bytes as it must read and write."""
    p = Problem(settings)
    x, y, m, g, form = p.x, p.y, p.mask, p.gram, ours(p)
    rho = torch.full((len(x),), RHO, device=x.device)
    e = torch.rand(p.bands, RANK, generator=torch.Generator().manual_seed(0)).to(x)
    a = cassi.ops.adjoint_subspace(y, e, m, STEP)
    constants = (m[None, None, None], g[None], rho.view(-1, 1, 1, 1), STEP, False, False)
    calls: dict[str, tuple[Call, Sequence[Tensor]]] = {
        "forward": (partial(form["forward"], x, m), (x, m)),
        "adjoint": (partial(form["adjoint"], y, m), (y, m)),
        "add_adjoint": (partial(cassi.ops.add_adjoint, x, y, m, STEP), (x, y, m)),
        "data_step": (partial(form["data_step"], x, y, m, rho=rho), (x, y, m, g)),
        # This operator reads the upstream gradient, the mask and the gram, but neither v nor y.
        "data_step_backward": (
            partial(_library.operators.data_step_backward.default, x, x, y, *constants),
            (x, m, g),
        ),
        "gram_solve": (partial(cassi.ops.gram_solve, y, g, rho), (y, g)),
        "forward_subspace": (partial(cassi.ops.forward_subspace, a, e, m, STEP), (a, e, m)),
        "adjoint_subspace": (partial(cassi.ops.adjoint_subspace, y, e, m, STEP), (y, e, m)),
    }
    for operator, (call, inputs) in calls.items():
        run = torch.no_grad()(call)
        n_bytes = sum(value.nbytes for value in (*inputs, *_as_tuple(run())))
        # A copy reads and writes each byte, so half as many bytes make the same traffic.
        block = torch.zeros(n_bytes // 2, dtype=torch.uint8, device=x.device)
        yield Group(operator, {OURS: run, COPY: partial(torch.empty_like(block).copy_, block)})


def operators(settings: Settings) -> Iterator[Group]:
    """Yield every operator of an iteration, alone and with its gradient, in all implementations."""
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
            title = f"{operator} + backward" if backward else operator
            yield Group(title, calls | limits, tuple(FORMS))


def original(settings: Settings) -> Iterator[Group]:
    """Yield forward and then ratio_inverse, on new random data."""
    p = Problem(settings)

    def both_ways(form: Form, p: Problem = p) -> Tensor:
        p.x.uniform_()
        y = form["forward"](p.x, p.mask)
        return form["ratio_inverse"](y, p.mask)

    calls = {name: partial(both_ways, make_form(name, p)) for name in (OURS, *FORMS)}
    del calls["published shift-and-roll"]
    yield Group("forward, ratio_inverse", {n: torch.no_grad()(c) for n, c in calls.items()})


def tv(settings: Settings) -> Iterator[Group]:
    """Yield `tv_prox` and scikit-image's function on the CPU, with as many inner iterations.

    Ours takes projected-gradient steps, and scikit-image takes the steps of Chambolle, 2004. Both
    converge to the same result (tests/ops/test_tv.py). After five steps the results differ, so they
    are not compared here.
    """
    _, *cube = settings.shape
    planes = torch.rand(cube, generator=torch.Generator().manual_seed(0))
    x, images = planes[None].to(settings.device), planes.numpy()
    channels = np.ascontiguousarray(images.transpose(1, 2, 0), dtype=np.float64)
    prox = partial(cassi.ops.tv_prox, x, TV_WEIGHT, TV_ITERATIONS)
    calls: dict[str, Call] = {
        OURS: partial(prox, norm="band"),
        "ours, coupled": partial(prox, norm="frobenius"),
        "scikit-image, as called": partial(denoise_channels, channels),
        "scikit-image, band by band": partial(denoise_planes, images),
        CLONE: x.clone,
    }
    yield Group(f"tv_prox, {TV_ITERATIONS} iterations", calls)


def iteration(settings: Settings) -> Iterator[Group]:
    """Yield one accelerated GAP-TV iteration: ours, and that of public NumPy code on the CPU."""
    p = Problem(settings)
    system = cassi.SDCassi(p.mask.float(), bands=p.bands, step=STEP).to(settings.device)
    algorithm, prior = cassi.GAP(accelerated=True), cassi.TV(iterations=TV_ITERATIONS)
    y = system(p.x.float())
    state = algorithm.init(y, system, system.pinv(y))
    step = partial(algorithm.step, state, y, system, prior, TV_WEIGHT, algorithm.rho)
    public = NumpyGap(p.mask.float().cpu().numpy(), p.bands, denoise_channels)
    snapshot = y[0, 0].double().cpu().numpy()
    shifted_cube = public.shift(state.x[0].double().cpu().numpy().transpose(1, 2, 0))
    calls: dict[str, Call] = {
        OURS: torch.no_grad()(step),
        "NumPy": partial(public.iterate, shifted_cube, snapshot, snapshot),
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
    """Yield the operators of cameras with one mask, a mask per band, and several shots."""
    batch, *cube = settings.shape
    systems = {name: make(*cube).to(settings.device) for name, make in CAMERAS.items()}
    x = {n: torch.rand(batch, *s.cube_shape, device=settings.device) for n, s in systems.items()}
    y = {name: system(x[name]) for name, system in systems.items()}
    kinds: dict[str, dict[str, Call]] = {
        "forward": {n: partial(s, x[n]) for n, s in systems.items()},
        "adjoint": {n: partial(s.adjoint, y[n]) for n, s in systems.items()},
        "data_step": {n: partial(s.data_step, 0.9 * x[n], y[n], RHO) for n, s in systems.items()},
    }
    for operator, calls in kinds.items():
        calls[CLONE] = x[OURS].clone
        runs = {name: torch.inference_mode()(call) for name, call in calls.items()}
        yield Group(f"{operator} of a camera", runs)


def python(settings: Settings) -> Iterator[Group]:
    """Yield the methods of a camera, each beside the operator that it calls."""
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
    for operator, (camera_call, operator_call) in kinds.items():
        calls = {OURS: camera_call, "limit: operator alone": operator_call}
        yield Group(operator, {n: torch.inference_mode()(call) for n, call in calls.items()})


def deepinv(settings: Settings) -> Iterator[Group]:
    """Yield our camera as a physics of deepinv, and deepinv's own camera.

    Results are compared on images whose height and shifted width are odd, because deepinv shifts
    images of even sides by one pixel more. deepinv's `prox_l2` solves γAᵀ(Ax − y) + x − z = 0. Our
    result is verified by putting it into this equation, with deepinv's operators and z = 0.
    """
    from deepinv.physics import CompressiveSpectralImaging

    random = torch.Generator().manual_seed(0)

    def make(shape: Shape, dtype: torch.dtype) -> tuple[Any, Any, Tensor]:
        mask = (torch.rand(shape[1:], generator=random) > 0.5).to(dtype)
        mask_cube = mask.expand(1, *shape).contiguous()
        theirs = CompressiveSpectralImaging(shape, mask=mask_cube, mode="sd", shear_dir="w")
        ours = cassi.adapters.as_physics(cassi.SDCassi(mask / shape[0], bands=shape[0], step=1))
        return theirs, ours, torch.rand(1, *shape, generator=random, dtype=dtype)

    operations: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
        "A": lambda physics, x, y: physics.A(x),
        "A_adjoint": lambda physics, x, y: physics.A_adjoint(y),
        "prox_l2": lambda physics, x, y: physics.prox_l2(torch.zeros_like(x), y, 1.0, max_iter=1),
    }
    _, bands, *_ = settings.shape
    # Small cameras to compare the results, and those of the workload's shape to time.
    theirs, ours_small, x = make((bands, 33, 34 - bands % 2), torch.float64)
    timed_theirs, timed_ours, timed_x = make(settings.shape[1:], torch.float32)
    y, timed_y = ours_small.A(x), timed_ours.A(timed_x)
    for name, operation in operations.items():
        call = torch.no_grad()(operation)
        result = call(ours_small, x, y)
        error = call(theirs, x, y) - result
        if name == "prox_l2":
            error = theirs.A_adjoint(theirs.A(result) - y) + result
        verify(f"deepinv, {name}", result + error, result, 1e-8)
        cameras = {OURS: timed_ours, "deepinv": timed_theirs}
        yield Group(name, {n: partial(call, c, timed_x, timed_y) for n, c in cameras.items()})


class NumpyGap:
    """Accelerated GAP in NumPy on a shifted cube `(H, W', C)` in float64.

        t ← t + (y − Ax),   v = x + Aᵀ((t − Ax) / Φs),   x ← shift(denoise(shift_back(v)))

    Args:
        mask: `(H, W)`.
        bands: number of bands C.
        denoise: maps a cube `(H, W, C)` to a denoised cube.
    """

    def __init__(self, mask: Array, bands: int, denoise: Callable[[Array], Array]) -> None:
        """Shift the mask of every band, and sum their squares."""
        self.extra, self.denoise = (bands - 1) * STEP, denoise
        self.masks = self.shift(np.repeat(mask[:, :, None].astype(np.float64), bands, axis=2))
        self.gram = (self.masks**2).sum(2)
        self.gram[self.gram == 0] = 1

    def shift(self, cube: Array) -> Array:  # (H, W, C) -> (H, W', C)
        """Pad the cube and roll every band to its columns."""
        padded = np.pad(cube, ((0, 0), (0, self.extra), (0, 0)))
        for c in range(cube.shape[2]):
            padded[:, :, c] = np.roll(padded[:, :, c], c * STEP, axis=1)
        return padded

    def shift_back(self, padded: Array) -> Array:  # (H, W', C) -> (H, W, C)
        """Roll every band back and crop."""
        for c in range(padded.shape[2]):
            padded[:, :, c] = np.roll(padded[:, :, c], -c * STEP, axis=1)
        return padded[:, : padded.shape[1] - self.extra]

    def iterate(self, cube: Array, y: Array, target: Array) -> tuple[Array, Array]:
        """Run one iteration; return the shifted cube and the target `(H, W')`."""
        prediction = (cube * self.masks).sum(2)
        target = target + (y - prediction)
        step = ((target - prediction) / self.gram)[:, :, None] * self.masks
        return self.shift(self.denoise(self.shift_back(cube + step))), target


def denoise_channels(cube: Array) -> Array:
    """Call scikit-image on `(H, W, C)` as public codes do, with all channels in one call."""
    from skimage.restoration import denoise_tv_chambolle

    return denoise_tv_chambolle(
        cube, weight=TV_WEIGHT, eps=0, max_num_iter=TV_ITERATIONS, channel_axis=-1
    )


def denoise_planes(cube: Array) -> Array:
    """Call scikit-image on one contiguous band of `(C, H, W)` at a time, which is fastest."""
    from skimage.restoration import denoise_tv_chambolle

    bands = (
        denoise_tv_chambolle(b, weight=TV_WEIGHT, eps=0, max_num_iter=TV_ITERATIONS) for b in cube
    )
    return np.stack(list(bands))


WORKLOADS: dict[str, Callable[[Settings], Iterator[Group]]] = {
    workload.__name__: workload
    for workload in (memory, operators, tv, iteration, original, cameras, python, deepinv)
}
# Default shapes of some workloads; the other workloads take one cube.
SHAPES: dict[str, list[Shape]] = {
    "memory": [(16, *CUBE)],
    "operators": [(4, *CUBE)],
    "original": [(16, *CUBE), (1, 512, *CUBE[1:])],
    "python": [(1, 4, 8, 8)],
}

COLUMNS = ("workload", "case", "operator", "implementation", "ms", "ratio")


def verify(name: str, result: Any, expected: Any, limit: float) -> None:
    """Compare results with ours, relative to the norm of ours.

    Raises:
        Mismatch: the results differ by more than `limit`.
    """
    for value, truth in zip(_as_tuple(result), _as_tuple(expected), strict=True):
        if value.shape != truth.shape:
            raise Mismatch(f"{name}: shape {value.shape}, ours {truth.shape}")
        error = ((value.double() - truth.double()).norm() / truth.double().norm()).item()
        # `not <=` also refuses NaN.
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
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each call")
    parser.add_argument("--shapes", type=parse_shape, nargs="+", help="BxCxHxW")
    parser.add_argument("--dtype", choices=list(DTYPES), default=["float32"], nargs="+")
    parser.add_argument("--channels-last", action="store_true", help="bands innermost in memory")
    options = parser.parse_args(arguments)
    torch.backends.cudnn.benchmark = True  # cuDNN chooses the fastest convolution
    print(f"torch {torch.__version__}, {options.threads} threads, {options.device}", flush=True)
    names = [options.workload]
    if options.workload == "all":
        names = [name for name in WORKLOADS if name != "deepinv"]
    rows: list[dict[str, Any]] = []
    for name in names:
        print(f"\n### {name}\n")
        table = Table(*COLUMNS)
        shapes = options.shapes or SHAPES.get(name, [(1, *CUBE)])
        for dtype, shape in product(options.dtype, shapes):
            settings = Settings(options.device, DTYPES[dtype], shape, options.channels_last)
            limit = TOLERANCES[DTYPES[dtype]]
            if options.device.type == "cuda":
                # On a GPU torch lets convolutions round their factors to TF32.
                limit = max(limit, 2e-3)
            for group in WORKLOADS[name](settings):
                expected = group.calls[OURS]()
                for form in group.implementations:
                    verify(f"{form}, {group.operator}", group.calls[form](), expected, limit)
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
