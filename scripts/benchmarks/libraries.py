"""Time our camera in deepinv's clothes against deepinv's own CASSI physics, in one run.

    pip install deepinv
    python scripts/benchmarks/libraries.py                        # 28x256x256, step 1, on the CPU
    python scripts/benchmarks/libraries.py --shape 28 128 128 --seconds 1

Both get the same binary mask. deepinv's `CompressiveSpectralImaging` moves each band by one pixel
and takes the mean over bands; our mask is divided by their number, so that both are the same
operator. `A`, `A_adjoint` and `prox_l2` are timed in turn; what takes more than a second is timed
once. deepinv solves the last by conjugate gradients: `--iterations 1` of them is timed, a lower
bound, since all 50 that it may take last half an hour at the default size. The results are compared
in float64 on images of odd sides: deepinv moves an image of even sides by one pixel more, and what
leaves it is lost. Of `prox_l2` it is told how well our result solves deepinv's own equation, which
its iterations do to 1e-6.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

import cassi
from scripts.benchmarks.timing import Candidate, measure, stopwatch

Shape = tuple[int, int, int]
GAMMA = 1.0
SLOW = 1.0  # seconds; what takes longer is timed once
MISSING = "operator torchvision::"


def import_deepinv() -> ModuleType:
    """Import deepinv, also where torchvision was built for another torch.

    The wheels of torchvision that need CUDA have no operators beside a torch without it, and fail
    where they describe them to the compiler. deepinv uses none of them, so names will do.
    """
    for _ in range(50):
        try:
            import deepinv
        except RuntimeError as error:
            if not str(error).startswith(MISSING):
                raise
            name = str(error).removeprefix(MISSING).split()[0]
            torch.library.define(f"torchvision::{name}", "(Tensor x) -> Tensor")
            for module in [m for m in sys.modules if m.split(".")[0] in ("torchvision", "deepinv")]:
                del sys.modules[module]
        else:
            found: ModuleType = deepinv
            return found
    raise ImportError("torchvision cannot be imported")


def main(arguments: list[str] | None = None) -> dict[str, dict[str, float]]:
    """Compare, measure, print the table.

    Returns:
        Milliseconds by operation and implementation.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", type=int, nargs=3, default=(28, 256, 256), metavar="N")
    parser.add_argument("--threads", type=int, default=2, help="of torch (default 2)")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="for each row and implementation"
    )
    parser.add_argument("--iterations", type=int, default=1, help="of deepinv's CG (default 1)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    deepinv = import_deepinv()
    bands, height, width = options.shape
    shape = (bands, height, width)
    generator = torch.Generator().manual_seed(0)

    def make(shape: Shape, dtype: torch.dtype, **options: Any) -> tuple[Any, Any, Tensor]:
        """Return deepinv's physics, ours, and a cube."""
        mask = (torch.rand(shape[1:], generator=generator) > 0.5).to(dtype)
        filled = mask.expand(1, *shape).contiguous()
        theirs = deepinv.physics.CompressiveSpectralImaging(
            shape, mask=filled, mode="sd", shear_dir="w", **options
        )
        ours = cassi.adapters.as_physics(cassi.SDCassi(mask / shape[0], bands=shape[0], step=1))
        return theirs, ours, torch.rand(1, *shape, generator=generator, dtype=dtype)

    calls: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
        "A": lambda physics, x, y: physics.A(x),
        "A_adjoint": lambda physics, x, y: physics.A_adjoint(y),
        "prox_l2": lambda physics, x, y: physics.prox_l2(
            torch.zeros_like(x), y, GAMMA, max_iter=options.iterations
        ),
    }
    small = (bands, 33, 34 if bands % 2 == 0 else 33)
    exact = make(small, torch.float64)
    theirs, ours, x = make(shape, torch.float32)
    y = ours.A(x)
    print(f"{bands}x{height}x{width}, {options.threads} threads, torch {torch.__version__}")
    print("| | deepinv, ms | cassi, ms | faster | largest difference |\n|---|---|---|---|---|")
    table = {}
    device = torch.device("cpu")
    with torch.no_grad():
        for name, call in calls.items():
            z, measured = exact[2], exact[1].A(exact[2])
            one, other = (call(physics, z, measured) for physics in exact[:2])
            error = one - other
            if name == "prox_l2":  # γ Aᵀ(Ax − y) + x − z, by deepinv, of our x, and z = 0
                error = GAMMA * exact[0].A_adjoint(exact[0].A(other) - measured) + other
            gap = float(error.abs().max() / other.abs().max())
            candidates = [
                Candidate(who, lambda p=physics, c=call: c(p, x, y), device)  # type: ignore[misc]
                for who, physics in {"deepinv": theirs, "cassi": ours}.items()
            ]
            once = stopwatch(candidates[0].call, device)[1]
            found = measure(candidates[once > SLOW :], seconds=options.seconds)
            ms = {"deepinv": 1e3 * once} | {who: timing.ms for who, timing in found.items()}
            table[name] = {**ms, "difference": gap}
            ratio = ms["deepinv"] / ms["cassi"]
            row = f"{ms['deepinv']:.1f} | {ms['cassi']:.2f} | {ratio:.0f}× | {gap:.1e}"
            print(f"| `{name}` | {row} |", flush=True)
    return table


if __name__ == "__main__":
    main()
