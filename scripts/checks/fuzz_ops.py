"""Call the operators of cassi with random arguments: a right result, or one documented error.

All operators, as the public functions of `cassi.ops` and as `torch.ops.cassi.*`, which nothing
checks before the compiled kernels do: sizes of 0 and 1, all dtypes and strides, overlapping and
shifted elements, enormous sizes that need no memory, NaN, steps, starts and bands out of any range,
masks that do not fit. What fits is compared with the pure-torch reference in float64. A crash,
another error, a wrong result, more than 5 s, or more memory than the budget is a finding. Prints a
table, one row an operator, and exits with status 1 where there are findings.

    python scripts/checks/fuzz_ops.py --calls 10000 --seed 0
    python scripts/checks/fuzz_ops.py --only 4711
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

from scripts.checks import fuzz_batches
from scripts.checks.fuzz_batches import MIB, Report
from scripts.checks.fuzz_calls import Call, draw, reference

LINEAR = {"forward", "adjoint", "mask_adjoint", "ratio_inverse", "gram", "convolve1d"}
LINEAR |= {"correlate1d", "forward_taps", "adjoint_taps", "mask_adjoint_taps"}


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
    run = reference(call.name)
    expected = _tuple(run(*exact.values()))
    scales = expected
    if call.name in LINEAR:
        kept = exact["mask"] if call.name == "ratio_inverse" else None  # it is divided by
        positive = {k: v.abs() if _is_floating(v) else v for k, v in exact.items()}
        scales = _tuple(run(*(positive | ({} if kept is None else {"mask": kept})).values()))
    floats = [value for value in exact.values() if _is_floating(value)]
    own = max(torch.finfo(value.dtype).eps for value in call.args.values() if _is_floating(value))
    own = max(own, torch.finfo(torch.float32).eps)
    largest = max(value.abs().max().item() for value in floats)
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
    """Bound how much solving multiplies rounding errors."""
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


def main() -> int:
    """Run the fuzzer; the number of findings decides the exit status."""
    given = fuzz_batches.parser(__doc__.splitlines()[0], "calls").parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    trials = Trials(given.seed, given.budget_mib * MIB)
    if given.child:
        trials(0)  # imports what it needs
        fuzz_batches.limit_addresses()
        fuzz_batches.serve(trials, *given.child)
        return 0
    if given.only is not None:
        print(trials.draw(given.only))
        print(trials(given.only))
        return 0
    reports = fuzz_batches.run(
        fuzz_batches.restart(__file__, given),
        given.count,
        given.batch,
        lambda index: trials.draw(index).name,
        given.out,
    )
    return 1 if fuzz_batches.print_table(reports, "calls") else 0


if __name__ == "__main__":
    sys.exit(main())
