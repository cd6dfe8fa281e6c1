"""Calibrate a camera from one snapshot, and see what that is worth.

    python scripts/benchmarks/calibration.py                       # CAVE's validation scenes
    python scripts/benchmarks/calibration.py --data cave_test      # and its test scenes
    python scripts/benchmarks/calibration.py --blur 0.6 --noise shot
    python scripts/benchmarks/calibration.py --shift 0.6 -0.4 --rotation 0.1 --dispersion 0.03
    python scripts/benchmarks/calibration.py --fine 20             # fractions of a pixel
    python scripts/benchmarks/calibration.py --fine 20 --step 2 --noise shot
    python scripts/benchmarks/calibration.py --real smem           # captures of real cameras
    python scripts/benchmarks/calibration.py --real tsa_real

The camera that measures differs from the one that is calibrated; the same solver reconstructs with
the nominal, the calibrated and the true camera. With --fine, mask and bands are moved on a finer
grid by whole pixels and averaged over those of the detector: nothing is interpolated. Each draw
has a scene of CAVE's training set, a random binary mask, dispersion along rows and a geometry of
its own; PSNR is that on the pixels on which the cube lies. Of real captures the held-out error is
compared, each calibrated by itself or, with --together, all at once; the errors are of another draw
of pixels than those of the calibration, over the whole frame and from nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

import cassi
from cassi import metrics
from cassi.apps.evaluate.data import load_benchmark
from cassi.apps.reconstructors import build_solver, compose_settings
from cassi.apps.settings import Evaluate
from cassi.calibration import (
    PARAMETERS,
    Calibration,
    Frame,
    Geometry,
    WithheldPixels,
    calibrate,
    moved_camera,
)
from cassi.calibration.geometry import placed
from cassi.calibration.parameters import changed
from cassi.camera_search import by_solver
from cassi.config import build
from cassi.systems import SDCassi
from scripts.benchmarks.fine_twin import FineTwin, enlarged
from scripts.benchmarks.problems import TSA, load_problem

SMEM = ("resolution_target", "fern_root", "blood_sample1")
EVERYTHING = 10**12


def simulated(arguments: argparse.Namespace) -> None:
    """Print what calibration regains on each scene."""
    solver = build_solver(compose_settings([f"experiment={arguments.method}"]))
    benchmark = load_benchmark(compose_settings([f"data={arguments.data}"], kind=Evaluate))
    true = Geometry(
        tuple(arguments.shift),
        arguments.rotation,
        (arguments.dispersion,),
        variance=arguments.blur**2,
    )
    shares, gaps, times = [], [], []
    print("scene | nominal | calibrated | true | regained | wall s | CPU s | held-out | model")
    for scene in benchmark.scenes:
        item = benchmark.load(scene)
        assert item.truth is not None
        truth = item.truth[None]
        system = SDCassi(item.mask, truth.shape[1], step=2)
        right = moved_camera(system, placed(true, system))
        y = cassi.simulate(truth, right, noise=arguments.noise, scene=scene)
        wall, used = time.perf_counter(), time.process_time()
        found = calibrate([Frame.snapshot(y, system.bands)], system, by_solver(solver))
        wall, used = time.perf_counter() - wall, time.process_time() - used
        nominal, calibrated, best = (
            metrics.psnr(solver(y, camera), truth).item()
            for camera in (system, found.system, right)
        )
        shares.append((calibrated - nominal) / (best - nominal))
        gaps.append(best - calibrated)
        times.append(used)
        print(
            f"{scene} | {nominal:.2f} | {calibrated:.2f} | {best:.2f} | {shares[-1]:.1%} | "
            f"{wall:.1f} | {used:.1f} | {found.before:.4f} → {found.after:.4f} | "
            f"{' '.join(found.model)}"
        )
        for key, error in found.errors.items():
            value, wanted = (PARAMETERS[key].read(g) for g in (found.geometry, true))
            ratio = abs(value - wanted) / error if error > 0 else 0.0
            print(f"    {key:14} {value:9.5f} ± {error:.5f}   off by {ratio:.1f} standard errors")
        sys.stdout.flush()
    print(
        f"regained: mean {mean(shares):.1%}, least {min(shares):.1%}; at most {max(gaps):.2f} dB "
        f"below the true camera; longest {max(times):.1f} CPU s"
    )


def fine(arguments: argparse.Namespace) -> None:
    """Print how far calibrations are off where the detector averages fractions of a pixel."""
    solver = build_solver(compose_settings([f"experiment={arguments.method}"]))
    folder = Path(compose_settings().paths.data_dir) / "cave_train"
    scenes = sorted(folder.glob("*.tif"))
    if not scenes:
        raise SystemExit(f"expected scenes *.tif in {folder}; set CASSI_DATA")
    away: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {}
    print("scene | nominal | calibrated | true | CPU s | held-out | model")
    for seed in range(arguments.first, arguments.first + arguments.fine):
        path = scenes[seed % len(scenes)]
        twin = FineTwin.drawn(tuple(arguments.size), 16, arguments.step, seed)
        scene = enlarged(cassi.read_cube(path), arguments.size, 16)
        system, y = twin.system, twin.measure(scene)
        if arguments.noise:
            noise = build(compose_settings([f"noise={arguments.noise}"]).noise)
            y = noise(y, 16, torch.Generator().manual_seed(seed))
        used = time.process_time()
        found = calibrate([Frame.snapshot(y, 16)], system, by_solver(solver))
        used = time.process_time() - used
        true = placed(changed(Geometry(), twin.wanted), system)
        levels = []
        for geometry in (Geometry(), found.geometry, true):
            beside = 0.0 if geometry.whole is None else geometry.shift[0] - geometry.whole
            x = solver(y, moved_camera(system, geometry))
            levels.append(metrics.psnr(x, twin.cube(scene, beside)).item())
        print(
            f"{path.stem} | " + " | ".join(f"{level:.2f}" for level in levels) + f" | {used:.1f} | "
            f"{found.before:.4f} → {found.after:.4f} | {' '.join(found.model)}"
        )
        for key, error in found.errors.items():
            read = PARAMETERS[key].read
            value, wanted = read(found.geometry), read(true)
            away.setdefault(key, []).append(abs(value - wanted))
            ratios.setdefault(key, []).append(abs(value - wanted) / max(error, 1e-12))
            print(
                f"    {key:14} {value:9.5f} ± {error:.5f}, true {wanted:9.5f}: off by "
                f"{ratios[key][-1]:.1f} standard errors"
            )
        sys.stdout.flush()
    for key, values in away.items():
        within = sum(ratio <= 2 for ratio in ratios[key])
        print(
            f"{key:14} off by {mean(values):.4f} in the mean, {max(values):.4f} at most; within "
            f"two standard errors {within} of {len(values)}"
        )


def real(arguments: argparse.Namespace) -> None:
    """Calibrate a real camera; print the held-out error of each capture before and after."""
    folder, scenes = ("smem", SMEM) if arguments.real == "smem" else ("tsa_real", TSA)
    names = [(scene, (f"experiment={folder}", f"scene={scene}")) for scene in scenes]
    solver = build_solver(compose_settings([f"experiment={arguments.method}"]))
    captures = [(name, load_problem(*overrides)) for name, overrides in names]
    system = captures[0][1].system
    assert isinstance(system, SDCassi)
    snapshots = {name: problem.measurement for name, problem in captures}
    groups = [list(snapshots)] if arguments.together else [[name] for name in snapshots]
    for group in groups:
        y = torch.cat([snapshots[name] for name in group])
        used = time.process_time()
        found = calibrate([Frame.snapshot(y, system.bands)], system, by_solver(solver))
        print(f"{' '.join(group)}: {time.process_time() - used:.0f} CPU s, model {found.model}")
        for key, error in found.errors.items():
            print(f"    {key:14} {PARAMETERS[key].read(found.geometry):9.5f} ± {error:.5f}")
        for stage in found.stages:
            print(f"    tried {stage.error:.5f} {stage.taken} {stage.model}")
        for name in group:
            compare(name, snapshots[name], system, found, solver, whole=arguments.whole)


def compare(  # type: ignore[no-untyped-def]
    name: str, y: Tensor, system: SDCassi, found: Calibration, solver, whole: bool
) -> None:
    """Print the held-out error of a capture before and after, over another draw of pixels."""
    pixels = EVERYTHING if whole else 160 * y.shape[-1]
    errors, angles = [], []
    for geometry in (Geometry(), found.geometry):
        camera = moved_camera(system, geometry)
        held = WithheldPixels(y, system, by_solver(solver)(y, camera), 0.05, 77, pixels)
        prediction = held.predict(geometry)
        errors.append(prediction.error)
        angles.append(angle(prediction.cube))
    print(
        f"{name}: held-out error {errors[0]:.4f} → {errors[1]:.4f}; spectral angle over the bright "
        f"ground {angles[0]:.2f}° → {angles[1]:.2f}°",
        flush=True,
    )


def angle(x: Tensor) -> float:
    """Return the mean angle of bright pixels' spectra to their mean, degrees.

    Bright is what has 60 % of the upper quartile of the brightness; over an even ground the angle
    is 0 for a perfect cube.
    """
    brightness = x[0].mean(0)
    chosen = brightness > 0.6 * brightness.quantile(0.75)
    spectra = x[0][:, chosen]
    middle = spectra.mean(1)
    cosine = (middle @ spectra) / (spectra.norm(dim=0) * middle.norm()).clamp_min(1e-12)
    return float(torch.rad2deg(torch.acos(cosine.clamp(-1, 1))).mean())


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="cave", help="config of the scenes: cave, cave_test")
    parser.add_argument("--shift", nargs=2, type=float, default=(0.4, -0.3), metavar="PIXELS")
    parser.add_argument("--rotation", type=float, default=0.0, metavar="DEGREES")
    parser.add_argument("--dispersion", type=float, default=0.0, metavar="PIXELS")
    parser.add_argument("--blur", type=float, default=0.0, metavar="PIXELS")
    parser.add_argument("--noise", help="of the simulated sensor: shot, sensor, white")
    parser.add_argument("--fine", type=int, metavar="DRAWS", help="cameras drawn on a fine grid")
    parser.add_argument("--first", type=int, default=0, help="seed of the first draw")
    parser.add_argument("--size", nargs=2, type=int, default=(240, 320), help="of their masks")
    parser.add_argument("--step", type=float, default=-1.5, help="of those, pixels per band")
    parser.add_argument("--real", choices=("smem", "tsa_real"), help="captures of a real camera")
    parser.add_argument("--together", action="store_true", help="calibrate all captures at once")
    parser.add_argument("--whole", action="store_true", help="compare over whole frames")
    parser.add_argument("--method", default="auto", help="experiment that reconstructs")
    arguments = parser.parse_args()
    (real if arguments.real else fine if arguments.fine else simulated)(arguments)


if __name__ == "__main__":
    main()
