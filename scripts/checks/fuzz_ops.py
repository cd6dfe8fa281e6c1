"""Call the operators of cassi with random arguments: a right result, or one documented error.

All operators, as the public functions of `cassi.ops` and as `torch.ops.cassi.*`, which nothing
checks before the compiled kernels do: sizes of 0 and 1, all dtypes and strides, overlapping and
shifted elements, enormous sizes that need no memory, NaN, steps, starts and bands out of any range,
masks that do not fit. What fits is compared with the pure-torch reference in float64. A crash,
another error, a wrong result, more than 5 s, or more memory than the budget is a finding. Prints a
table, one row an operator, and exits with status 1 where there are findings.

    python -m scripts.checks.fuzz_ops --calls 10000 --seed 0
    python -m scripts.checks.fuzz_ops --only 4711
"""

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cassi import ops
from cassi.ops import _reference
from cassi.ops._library import REFERENCES, SCHEMAS, kernels
from scripts.checks import fuzz_batches
from scripts.checks.fuzz_batches import Report

Random = np.random.Generator
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NUMBERS = (0, -1, 1, 2, 3, -7, 1000, *(s * (1 << b) for b in (15, 31, 40, 62) for s in (1, -1)))
PUBLIC = [name for name in ops.__all__ if name not in ("assert_memory_format", "backend")]


@dataclass
class Call:
    """One call of an operator.

    Attributes:
        name: of the operator; public functions as "cassi.ops.NAME".
        run: the operator.
        args: its arguments by name, in order.
        fits: whether they fit each other, have bands, and hold finite numbers.
    """

    name: str
    run: Callable[..., Any]
    args: dict[str, Any]
    fits: bool = True

    @property
    def public(self) -> bool:
        """Whether it is a function of cassi.ops, not an operator below them."""
        return self.name.startswith("cassi.ops.")

    def __str__(self) -> str:
        """The call, tensors by shape, strides and dtype."""

        def show(value: Any) -> str:
            if not isinstance(value, Tensor):
                return repr(value)
            return f"{value.dtype}{tuple(value.shape)}/{value.stride()}"

        return f"{self.name}({', '.join(f'{k}={show(v)}' for k, v in self.args.items())})"


def draw(random: Random) -> Call:
    """Draw a call: half of them fit, the others have been spoiled in one or two ways."""
    names = list(SCHEMAS)
    if random.random() < 0.3:
        public = PUBLIC[int(random.integers(len(PUBLIC)))]
        run = getattr(ops, public)
        made = _arguments(random, list(_parameters(run)), public, public=True)
        call = Call(f"cassi.ops.{public}", run, made)
    else:
        name = names[int(random.integers(len(names)))]
        wanted = [argument.name for argument in getattr(kernels, name).default._schema.arguments]
        call = Call(name, getattr(kernels, name), _arguments(random, wanted, name, public=False))
    call.fits = call.args.get("bands") != 0 and len(call.args.get("offsets", [0])) > 0
    if random.random() < 0.5:
        for _ in range(int(random.integers(1, 3))):
            spoil(random, call)
    return call


def _parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def _size(random: Random, most: int) -> int:
    """Often 1, often near the length of a vector, sometimes nothing."""
    where = random.random()
    if where < 0.02:
        return 0
    if where < 0.2:
        return 1
    if where < 0.4:
        near = int(random.choice([4, 8, 16, 32, 64])) + int(random.integers(-1, 2))
        return min(near, most)
    return int(random.integers(1, most + 1))


def _arguments(random: Random, wanted: list[str], name: str, public: bool) -> dict[str, Any]:
    batch, bands, shots = _size(random, 3), _size(random, 9), int(random.choice([1, 1, 2, 3, 5]))
    height, width, step = _size(random, 12), _size(random, 70), int(random.integers(-5, 6))
    shots = 1 if name == "ratio_inverse" else shots
    taps, couplings = int(random.choice([1, 2, 2, 3, 7])), int(random.integers(1, 4))
    samples = batch if random.random() < 0.4 else 1
    coded = bands if random.random() < 0.5 else 1
    tapped = "taps" in wanted
    wide = _reference.detector_width(width, bands, step) if bands and width else 1
    if tapped or name == "band_solve":
        wide = max(1, wide + int(random.integers(-3, 4)))
    short, long = sorted((_size(random, 40), _size(random, 60)))
    dtype = FLOATS[int(random.choice([0, 0, 0, 1, 2, 3]))]
    dtypes = dtype, FLOATS[int(random.integers(4))]

    def rand(*shape: int, of: torch.dtype = dtype) -> Tensor:
        generator = torch.Generator().manual_seed(int(random.integers(1 << 62)))
        return _stride(random, torch.rand(shape, generator=generator).to(of))

    cube, measurement = (batch, bands, height, width), (batch, shots, height, wide)
    after = "after" in wanted and width > 0 and bool(random.integers(2))
    columns = width + after * (taps - 1)
    mask = rand(samples, shots, coded, height, columns, of=dtypes[int(random.integers(2))])
    double_gram = name == "band_solve"
    values: dict[str, Callable[[], Any]] = {
        **dict.fromkeys(("x", "v", "grad"), lambda: rand(*cube)),
        **dict.fromkeys(("y", "r"), lambda: rand(*measurement)),
        "mask": lambda: mask,
        "gram": lambda: _gram(random, mask, measurement, double_gram, couplings, bands, step),
        "rho": lambda: _damping(random, rand, samples, measurement, public),
        "weight": lambda: rand(batch if samples > 1 else 1),
        "dual": lambda: rand(batch, 2, bands, height, width) if random.random() < 0.7 else None,
        "grad_dual": lambda: rand(batch, 2, bands, height, width, of=torch.float32),
        "step": lambda: step,
        "bands": lambda: bands,
        "detector": lambda: wide,
        "after": lambda: after,
        "taps": lambda: rand(samples, bands, taps),
        "starts": lambda: torch.from_numpy(
            random.integers(-4, max(wide, 1) + 4, (samples, bands)).astype(np.int64)
        ),
        "iterations": lambda: int(random.integers(0, 20)),
        "norm": lambda: int(random.integers(3)),
        "features": lambda: rand(batch * 7, 8, bands),
        "points": lambda: rand(batch * 7, 3) * 2 - 1,
        "a": lambda: rand(batch, long),
        "g": lambda: rand(batch, long),
        "offsets": lambda: rand(bands, of=torch.float32) * 9,
        "width": lambda: width,
        **dict.fromkeys(("u", "delta"), lambda: rand(batch, height, bands)),
        "rates": lambda: -rand(*(() if public else (samples,)), bands, short + 1),
        **dict.fromkeys(("b", "c"), lambda: rand(batch, height, short + 1)),
        "image": lambda: rand(*cube),
        "groups": lambda: torch.from_numpy(
            random.integers(-9, height * width + 9, (batch, min(5, height * width), short + 1))
        ),
        "threshold": lambda: rand(samples),
        "patch": lambda: max(1, min(height, width, taps)),
        "moments": lambda: (lambda s: s @ s.mT)(rand(batch, bands, bands + 1)),
        "frame": lambda: _orthonormal(rand(batch, bands, min(bands, short + 1))),
        "steps": lambda: int(random.integers(1, 4)),
        "components": lambda: rand(batch, short + 1, height, width),
        "basis": lambda: rand(samples, bands, short + 1),
        "volume": lambda: rand(batch, bands, 3, height, width),
    }
    flags = (
        "channels_last",
        "per_sample",
        "per_band",
        "need_mask",
        "need_rho",
        "return_dual",
        "rectify",
    )
    made = {k: values[k]() for k in wanted if k in values}
    made |= {k: bool(random.integers(2)) for k in wanted if k in flags}
    made = _adapt(made, name, rand, batch, bands, short)
    return {k: made[k] for k in wanted if k in made}


def _adapt(
    made: dict[str, Any], name: str, rand: Callable[..., Tensor], batch: int, bands: int, short: int
) -> dict[str, Any]:
    """Where a name means something else for one operator."""
    if "convolve" in name or "correlate" in name:
        made["v"] = rand(batch, short)
    if name == "convolve3x3":
        image = made["image"]
        made["weight"], made["bias"] = rand(short + 1, bands, 3, 3), rand(short + 1)
        made["residual"] = None if short % 2 else rand(batch, short + 1, *image.shape[2:])
        made["rectify"] = made.pop("rectify")  # the last argument
    if name == "selective_scan_backward":
        made["grad"] = rand(*made["u"].shape)
    if name == "trilinear_backward":
        made["grad"] = rand(batch * 7, bands)
    if name == "sample_volume":
        made["points"] = rand(batch, 7, 3) * 4 - 2
    if name == "detector_columns":
        made["offsets"] = made["offsets"].tolist()
    if name == "tv_prox" and isinstance(made.get("return_dual"), bool):
        made["norm"] = ops.NORMS[made["norm"]]
    if name.endswith("_taps") and name != "mask_adjoint_taps" and "starts" in made:
        samples = max(len(made["taps"]), len(made["starts"]))
        made["taps"] = made["taps"].expand(samples, -1, -1)
    return made


def _orthonormal(value: Tensor) -> Tensor:
    return torch.linalg.qr(value.double())[0].to(value.dtype)


def _damping(
    random: Random,
    rand: Callable[..., Tensor],
    samples: int,
    measurement: tuple[int, ...],
    public: bool,
) -> Tensor:
    """One value for all, for each sample, or for each detector pixel, a tenth of them infinite."""
    if random.random() < 0.3:
        rho = rand(samples, of=torch.float32) + 0.1
        return rho if public else rho.view(-1, 1, 1, 1)
    shape = [samples, *measurement[1:]]
    if not public:  # below, each dimension may be shared
        shape = [1 if random.random() < 0.2 else size for size in shape]
    rho = rand(*shape, of=torch.float32) + 0.1
    return _stride(random, torch.where(rand(*shape) < 0.1, torch.inf, rho))


def _gram(
    random: Random,
    mask: Tensor,
    measurement: tuple[int, ...],
    double: bool,
    couplings: int,
    bands: int,
    step: int,
) -> Tensor:
    samples, shots, _, height, _ = mask.shape
    if double:
        gram = torch.rand(samples, couplings, shots, shots, height, measurement[3])
        gram = gram.double() / (10 * couplings * shots)
        gram[:, 0] += torch.eye(shots)[..., None, None]
        gram[:, 0] = (gram[:, 0] + gram[:, 0].transpose(1, 2)) / 2
        return gram.flatten(1, 2)
    if min(*mask.shape, bands) == 0:
        return torch.eye(shots)[..., None, None].repeat(samples, 1, 1, height, measurement[3])
    return _stride(random, _reference.gram(mask, bands, step))


def _stride(random: Random, value: Tensor) -> Tensor:
    """The same numbers, laid out in another way."""
    how = int(random.integers(8))
    if how == 0 and value.ndim == 4:
        return value.contiguous(memory_format=torch.channels_last)
    if how == 1 and value.ndim >= 2:
        return value.transpose(-1, -2).contiguous().transpose(-1, -2)
    if how == 2 and value.ndim >= 1:
        return torch.stack((value, value + 1), -1)[..., 0]
    if how == 3 and value.ndim >= 2:
        order = random.permutation(value.ndim)
        return value.permute(*order).contiguous().permute(*np.argsort(order))
    if how == 4 and value.ndim >= 1 and value.shape[0]:
        return value[:1].expand_as(value)
    return value


def spoil(random: Random, call: Call) -> None:
    """Change one argument so that it does not fit, or hardly."""
    name = str(random.choice(list(call.args)))
    value = call.args[name]
    call.fits = False
    if isinstance(value, Tensor):
        enormous = value.numel() > 1 << 24 or any(size > 1 << 24 for size in value.shape)
        if enormous or value.layout is not torch.strided or value.is_meta:
            return  # spoiled already; what follows needs the elements
        changes = (_resize, _resize, _poison, _poison, _convert, _rearrange, _replace)
        call.args[name] = changes[int(random.integers(len(changes)))](random, value)
    elif isinstance(value, bool):
        call.args[name] = not value
    elif isinstance(value, int):
        number = NUMBERS[int(random.integers(len(NUMBERS)))]
        # A million iterations are not wrong, but slow.
        call.args[name] = min(number, 40) if name == "iterations" else number
    else:
        call.args[name] = [None, -1, "x", torch.ones(2)][int(random.integers(4))]


def _resize(random: Random, value: Tensor) -> Tensor:
    if value.ndim == 0:
        return value[None]
    dim, size = int(random.integers(value.ndim)), value.shape
    how = int(random.integers(7))
    if how == 0:
        return value.narrow(dim, 0, 0)
    if how == 1 and size[dim] > 1:
        return value.narrow(dim, 0, size[dim] - 1)
    if how == 2:
        return torch.cat([value, value.narrow(dim, 0, min(1, size[dim]))], dim)
    if how == 3:
        return value[0] if size[0] else value[None]
    if how == 4:
        return value[None]
    if how == 5 and size[dim] >= 1:  # no memory is needed to name so many elements
        huge = 1 << int(random.choice([31, 33, 40, 50]))
        few = value.narrow(dim, 0, 1)
        fits = few.numel() * huge < 1 << 62
        return few.expand(*(huge if i == dim else -1 for i in range(value.ndim))) if fits else few
    return value.transpose(0, dim)


def _poison(random: Random, value: Tensor) -> Tensor:
    """Put in NaN, infinities and numbers beyond the dtype; any integer where starts are meant."""
    if not value.numel():
        return value
    value = value.clone(memory_format=torch.contiguous_format)
    at = int(random.integers(value.numel()))
    poison: tuple[float, ...] = (float("nan"), float("inf"), 1e300, -1e38, 1e-40, -0.0)
    if not value.is_floating_point():
        poison = (-(1 << 63), (1 << 63) - 1, 1 << 31, -1)
    chosen = torch.tensor(poison[int(random.integers(len(poison)))])
    value.view(-1)[at] = chosen.to(value.dtype)  # infinite where it is beyond the dtype
    return value


def _convert(random: Random, value: Tensor) -> Tensor:
    kinds = (torch.int32, torch.bool, torch.complex64, torch.int64, torch.uint8, *FLOATS)
    return value.to(kinds[int(random.integers(len(kinds)))])


def _rearrange(random: Random, value: Tensor) -> Tensor:
    """Elements that overlap, or that begin at an odd address."""
    if random.random() < 0.5 or not value.numel():
        return torch.nn.functional.pad(value.flatten(), (1, 0))[1:].view(value.shape)
    steps = [int(random.integers(0, 2)) for _ in value.shape]
    return torch.rand(sum(value.shape) + 1).to(value.dtype).as_strided(value.shape, steps)


def _replace(random: Random, value: Tensor) -> Any:
    others: tuple[Callable[[], Any], ...] = (
        lambda: None,
        lambda: 1.5,
        lambda: value.to("meta"),
        lambda: value.to_sparse(),
        lambda: torch.ones(()),
        lambda: value.detach().clone().float().requires_grad_(),
    )
    return others[int(random.integers(len(others)))]()


LINEAR = {"forward", "adjoint", "add_adjoint", "mask_adjoint", "ratio_inverse", "gram"}
LINEAR |= {"forward_subspace", "adjoint_subspace", "add_adjoint_taps"}
LINEAR |= {"convolve1d", "correlate1d", "forward_taps", "adjoint_taps", "mask_adjoint_taps"}


def perform(call: Call, budget: int) -> None:
    """Make a call; raise AssertionError where the result of one that fits is wrong."""
    tensors = [value for value in call.args.values() if isinstance(value, Tensor)]
    whole = all(value.numel() for value in tensors) and call.args.get("width", 1) > 0
    if budget < asked_for(call) < 1 << 36:  # what is larger still must be refused
        raise MemoryError("a result beyond the budget is asked for, and would be made")
    try:
        result = call.run(**call.args) if call.public else call.run(*call.args.values())
    except (ValueError, TypeError, RuntimeError) as error:
        if call.fits and whole:
            raise AssertionError(f"it fits and is refused: {error}") from error
        if "too large" in str(error) or "too long" in str(error):
            raise MemoryError(str(error)) from None  # refused before memory is asked for
        raise
    if call.fits and whole and not call.public and call.name != "tv_prox_backward":
        compare(call, (result,) if isinstance(result, Tensor) else result)


def asked_for(call: Call) -> int:
    """Return the bytes of the result of a call; 0 where it is refused before they are known."""
    try:
        args = {
            k: torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device="meta")
            if isinstance(v, Tensor)
            else v
            for k, v in call.args.items()
        }
        results = call.run(**args) if call.public else call.run(*args.values())
        found = (results,) if isinstance(results, Tensor) else results
        return sum(t.numel() * t.element_size() for t in found if isinstance(t, Tensor))
    except Exception:
        return 0


def compare(call: Call, results: tuple[Tensor, ...]) -> None:
    """Raise AssertionError unless the results are those of the reference.

    The parity tests know the rounding error of each operator; here it is bounded for all alike,
    well below what a wrong element differs by.
    """
    # The dtype of a gram says which of its eigenvalues are rounding errors.
    exact = {k: v if k == "gram" else _exact(v) for k, v in call.args.items()}
    run = REFERENCES[call.name]
    expected = _tuple(run(*exact.values()))
    scales = expected
    if call.name in LINEAR:
        kept = exact["mask"] if call.name == "ratio_inverse" else None  # it is divided by
        positive = {k: v.abs() if _is_floating(v) else v for k, v in exact.items()}
        scales = _tuple(run(*(positive | ({} if kept is None else {"mask": kept})).values()))
    floats = [value for value in exact.values() if _is_floating(value)]
    own = max(torch.finfo(value.dtype).eps for value in call.args.values() if _is_floating(value))
    own = max(own, torch.finfo(torch.float32).eps)
    finite = [value[value.isfinite()].abs() for value in floats]
    largest = max(value.max().item() for value in finite if value.numel())
    for got, wanted, scale in zip(results, expected, scales, strict=True):
        assert got.shape == wanted.shape, f"{call}: shape {got.shape}, expected {wanted.shape}"
        if not got.numel():
            continue
        peak = scale.abs().max().item()
        allowed = own * (64 * peak if call.name in LINEAR else 64 * _condition(call) * largest)
        if allowed + peak > torch.finfo(got.dtype).max:
            continue  # may overflow
        worst = (got.double() - wanted.double()).abs().max().item()
        assert worst <= allowed + 1e-30, f"{call}: differs by {worst:.3g}, allowed {allowed:.3g}"


def _condition(call: Call) -> float:
    """Bound how much solving, a sum over patches or a convolution multiplies rounding errors."""
    if (groups := call.args.get("groups")) is not None:
        return float(groups.shape[1] * groups.shape[2])
    if call.name == "convolve3x3":  # sums, by transforms that enlarge errors
        return 9.0 * max(1, call.args["weight"].shape[1])
    gram = call.args.get("gram")
    if gram is None:
        return 1.0
    rho = call.args["rho"].min().item()
    return (1 + gram.shape[2] * gram.abs().max().item() / rho) ** 2


def _exact(value: Any) -> Any:
    return value.double() if _is_floating(value) else value


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _tuple(value: Any) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else tuple(value)


class Trials:
    """Trial number i makes one call.

    Args:
        seed: of everything random; a trial depends on it and on its number only.
        budget: of memory, bytes.
    """

    def __init__(self, seed: int, budget: int) -> None:
        self.seed, self.budget = seed, budget

    def draw(self, index: int) -> Call:
        """Return the call of a trial."""
        return draw(np.random.default_rng([self.seed, index]))

    def name(self, index: int) -> str:
        """Return the operator of a trial."""
        return self.draw(index).name

    def show(self, index: int) -> str:
        """Return the call of a trial as text."""
        return str(self.draw(index))

    def __call__(self, index: int) -> Report:
        """Run a trial."""
        call = self.draw(index)
        # The layers below the public functions have torch's errors.
        documented: tuple[type[Exception], ...] = (ValueError, TypeError)
        documented += () if call.public else (RuntimeError, IndexError)
        report = fuzz_batches.judge(
            call.name, lambda: perform(call, self.budget), documented, self.budget, asked=True
        )
        if report.outcome in ("accepted", "refused"):
            return report
        return Report(call.name, report.outcome, f"{report.message} in {call}")


@contextmanager
def make(given: argparse.Namespace) -> Iterator[Trials]:
    """Yield the trials."""
    torch.set_num_threads(2)
    trials = Trials(given.seed, given.budget_mib * fuzz_batches.MIB)
    trials(0)  # imports what it needs, before addresses are limited
    yield trials


if __name__ == "__main__":
    sys.exit(fuzz_batches.fuzz(__doc__, "calls", make))
