"""What the commands' defaults make of real captures, and of noise that nobody told them of.

    python scripts/benchmarks/captures.py                          # captures of two cameras
    python scripts/benchmarks/captures.py --methods auto gap_tv --pictures outputs/captures
    python scripts/benchmarks/captures.py --grid                   # against the best noise value
    python scripts/benchmarks/captures.py --fixed                  # the same of captures

Of a real capture there is no truth. Printed are where the mask is found, if it is moved, the
relative residual, the error at 5 % of the detector pixels that the method was not given
(`heldout=0.05`: the brightest lines), and of the resolution target, which is chrome on glass under
one lamp, the mean spectral angle of its bright ground to its own mean spectrum and the contrast
(max − min) / (max + min) of three coarse bars.
With --grid CAVE's validation scenes are measured with the shot noise of `noise=shot`, and the
default is compared with every value of `noise`. With --fixed held-out errors of captures are
compared: the default's, and those of the same solver with a fixed noise value, without the weights
of components (`solver.balance=0 solver.heldout=0 solver.noise=…`), over the 128 brightest lines.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

import cassi
from cassi import metrics
from cassi.apps.evaluate.problems import load_benchmark
from cassi.apps.reconstructors import Recipe, compose_settings, settings_of, understand
from cassi.apps.settings import Evaluate
from cassi.camera_search import align
from cassi.solvers.early_stopping import LINES
from cassi.solvers.heldout import brightest, measure_heldout
from cassi.viz import save_rgb
from scripts.benchmarks.problems import load_problem

CAPTURES = {
    "smem": ("resolution_target", "fern_root", "blood_sample1"),
    "tsa_real": ("scene1", "scene2", "scene3", "scene4", "scene5"),
}
FIXED = (0.02, 0.05, 0.1, 0.2)
NOISE = (0.01, 0.02, 0.03, 0.045, 0.06, 0.08, 0.12)


def bright_ground(x: Tensor) -> Tensor:
    """Return where the resolution target lets light through: bool `(H, W)`, of a cube `(C, H, W)`.

    In captures of 660×706 pixels the field is a circle of radius 230 about (330, 330).
    """
    light = x.mean(0)
    down, right = (torch.arange(size, device=x.device) - 330 for size in light.shape)
    field = down[:, None] ** 2 + right**2 < 230**2
    return field & (light > 0.6 * light[field].quantile(0.75))


def spectral_angle(x: Tensor, where: Tensor) -> float:
    """Return the mean angle, degrees, of spectra `(C, H, W)` there to their mean."""
    spectra = x[:, where]
    mean = spectra.mean(1, keepdim=True)
    cosine = torch.cosine_similarity(spectra, mean.expand_as(spectra), dim=0)
    return float(torch.rad2deg(cosine.clamp(-1, 1).acos()).mean())


def contrast(x: Tensor) -> float:
    """Return the contrast of the three coarse horizontal bars."""
    profile = x.mean(0)[108:200, 418:488].mean(1)
    low, high = profile.min(), profile.max()
    return float((high - low) / (high + low))


def look_at_captures(methods: list[str], cameras: list[str], pictures: Path | None) -> None:
    """Print a line for each capture and method."""
    print("camera | capture | method | residual | held-out error | angle | contrast | s")
    for camera in cameras:
        for name in CAPTURES[camera]:
            problem = load_problem(f"experiment={camera}", f"scene={name}")
            y, system = problem.measurement, problem.system
            if (moved := align(y, system)) is not None:
                print(f"{camera} {name}: {moved}")
                system = moved.system
            for method in methods:
                start = time.perf_counter()
                x = cassi.reconstruct(y, system, method, align=False)
                seconds = time.perf_counter() - start
                recipe = Recipe(settings_of(understand(method)), y.device)
                reconstructor, _ = recipe.make(system.cube_shape[0])
                error = measure_heldout(y, system, reconstructor, 0.05).error
                target = name == "resolution_target"
                angle = f"{spectral_angle(x[0], bright_ground(x[0])):.2f}" if target else ""
                bars = f"{contrast(x[0]):.3f}" if target else ""
                residual = float((y - system(x)).norm() / y.norm())
                row = (camera, name, method, f"{residual:.4f}", f"{error:.4f}", angle, bars)
                print(" | ".join((*row, f"{seconds:.1f}")), flush=True)
                if pictures is not None:
                    pictures.mkdir(parents=True, exist_ok=True)
                    file = pictures / f"{camera}_{name}_{method}.png"
                    save_rgb(file, x[0], problem.settings.given_wavelengths)


def compare_with_grid(methods: list[str]) -> None:
    """Print the PSNR of the default and of every noise value, for each validation scene."""
    benchmark = load_benchmark(compose_settings(["data=cave"], kind=Evaluate))
    print("scene | method | default | best value | difference")
    for scene in benchmark.scenes:
        item = benchmark.load(scene)
        assert item.truth is not None
        truth = item.truth[None]
        system = cassi.SDCassi(item.mask, truth.shape[1], step=2)
        y = cassi.simulate(truth, system, noise="shot", scene=scene)
        for method in methods:
            default = metrics.psnr(cassi.reconstruct(y, system, method), truth).item()
            scores = {}
            for noise in NOISE:
                key = "experiment" if method == "auto" else "model"
                option = "solver.noise" if method == "auto" else "model.noise"
                settings = compose_settings([f"{key}={method}", f"{option}={noise}"])
                reconstructor, _ = Recipe(settings, y.device).make(truth.shape[1])
                scores[noise] = metrics.psnr(reconstructor.run(y, system).x, truth).item()
            best = max(scores, key=scores.__getitem__)
            print(
                f"{scene} | {method} | {default:.2f} | {scores[best]:.2f} at {best} | "
                f"{default - scores[best]:+.2f}",
                flush=True,
            )


def compare_with_fixed(cameras: list[str], captures: list[str] | None) -> None:
    """Print the held-out error of the default and of fixed noise values, for each capture."""
    print("camera | capture | default | " + " | ".join(map(str, FIXED)) + " | difference")
    for camera in cameras:
        for name in captures or CAPTURES[camera]:
            problem = load_problem(f"experiment={camera}", f"scene={name}")
            y, system = brightest(problem.measurement, problem.system, 3 * LINES)
            errors = []
            for noise in (None, *FIXED):
                fixed = ["solver.balance=0", "solver.heldout=0", f"solver.noise={noise}"]
                settings = compose_settings(["experiment=auto", *(fixed if noise else [])])
                reconstructor, _ = Recipe(settings, y.device).make(system.cube_shape[0])
                errors.append(measure_heldout(y, system, reconstructor, 0.05).error)
            share = errors[0] / min(errors[1:]) - 1
            row = (camera, name, *(f"{error:.4f}" for error in errors), f"{share:+.1%}")
            print(" | ".join(row), flush=True)


def main() -> None:
    """Read the options, and look."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=["auto", "pretrained"])
    parser.add_argument("--pictures", type=Path, help="folder for a picture of each cube")
    parser.add_argument("--cameras", nargs="+", default=list(CAPTURES), choices=CAPTURES)
    parser.add_argument("--grid", action="store_true")
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--captures", nargs="+", help="with --fixed, of one camera")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.fixed:
        compare_with_fixed(arguments.cameras, arguments.captures)
    elif arguments.grid:
        compare_with_grid(arguments.methods)
    else:
        look_at_captures(arguments.methods, arguments.cameras, arguments.pictures)


if __name__ == "__main__":
    main()
