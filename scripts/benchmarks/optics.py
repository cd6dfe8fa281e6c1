"""Say what it is worth to know that lenses blur and that bands are bent.

    python scripts/benchmarks/optics.py                              # GAP-TV and ADMM-TV, scene01
    python scripts/benchmarks/optics.py --crop 128 --optics blurred
    python scripts/benchmarks/optics.py solver.rho=1 system.iterations=5

Measures a CAVE scene with the camera of experiment=blurred or warped, and reconstructs with that
camera and with one that knows mask and dispersion alone. Prints PSNR, seconds, and how far the last
solve by conjugate gradients came.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

from cassi import SDCassi, metrics
from cassi.apps.inputs import load_inputs
from cassi.apps.reconstructors import build_solver, compose_settings
from cassi.config import build
from scripts.benchmarks.tables import Parser


def compare(optics: str, method: str, crop: int, overrides: list[str]) -> None:
    """Print a line for either camera."""
    experiment = f"experiment=[cave_test,{optics},{method}]"
    settings = compose_settings([experiment, "scene=scene01", *overrides])
    inputs, node = load_inputs(settings, torch.device("cpu")), settings.system
    truth = inputs.truth
    assert truth is not None
    height, width = ((side - min(crop, side)) // 2 for side in truth.shape[-2:])
    truth = truth[..., height : height + crop, width : width + crop].contiguous()
    mask: torch.Tensor = inputs.system.mask  # type: ignore[assignment]
    mask = mask[..., height : height + crop, width : width + crop].contiguous()
    camera = build(node, mask=mask, bands=truth.shape[1])
    y = camera(truth)
    plain = SDCassi(mask, truth.shape[1], node["step"], node["axis"])
    for name, system in (("plain", plain), ("true", camera)):
        solution = build_solver(settings).run(y, system)
        line = f"{optics} {method} {name}: {metrics.psnr(solution.x, truth).item():.2f} dB"
        line += f" in {solution.history[-1].seconds:.1f} s, ‖y − Ax‖/‖y‖ "
        line += f"{solution.history[-1].residual:.1e}"
        if system.last_solve is not None:
            report = system.last_solve
            line += f", last solve {int(report.iterations.max())} iterations to "
            line += f"{report.residual.max().item():.1e}"
        print(line, flush=True)


def main() -> None:
    """Print two lines for each camera and method."""
    parser = Parser(__doc__)
    parser.add_argument("--optics", nargs="+", default=["blurred", "warped"])
    parser.add_argument("--methods", nargs="+", default=["gap_tv", "admm_tv"])
    parser.add_argument("--crop", type=int, default=256, help="rows and columns of the middle")
    parser.add_argument("overrides", nargs="*", help="of the config, such as solver.iterations=50")
    arguments = parser.parse_args()
    for optics, method in product(arguments.optics, arguments.methods):
        compare(optics, method, arguments.crop, arguments.overrides)


if __name__ == "__main__":
    main()
