"""What `cassi.check_camera` says of wrong cameras, and of the right ones.

    python scripts/benchmarks/verdict.py             # five scenes with shot noise, eight captures
    python scripts/benchmarks/verdict.py --kaist     # and ten KAIST snapshots
    python scripts/benchmarks/verdict.py --spectra   # and the sign of the step, of reconstructions

Printed is for each mistake how many frames are warned of it, by what they are warned, and the
time. Three scenes are CAVE's validation scenes, two of its training scenes; the captures
are those of `experiment=smem` and `experiment=tsa_real`. Steps are wrong from the first band on, or
about the middle one. `direction` is a warning of a cube whose bands are in reverse: the frame is
the same, see `cassi.check_camera`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

import cassi
from cassi.apps.evaluate.data import load_benchmark
from cassi.apps.reconstructors import compose_settings
from cassi.apps.settings import Evaluate
from cassi.calibration.verdict import POSES, Verdict, check_spectra
from cassi.systems import SDCassi
from scripts.benchmarks.captures import CAPTURES
from scripts.benchmarks.problems import load_problem

TRAINING = ("face", "beads")
STEPS = (1.5, 1.8, 1.9, 2.1, 2.2, 2.5)
SHIFTS = ((1, 0), (3, 0), (0, 3), (0, -2), (5, -4), (-12, 8))
ABOUT_THE_CAMERA = {"mask", "step", "shift", "direction", "detector"}

Frame = tuple[str, Tensor, SDCassi, tuple[float, ...] | None]


def frames(kaist: bool) -> Iterator[Frame]:
    """Yield name, measurement, the right camera and wavelengths of every frame."""
    benchmark = load_benchmark(compose_settings(["data=cave"], kind=Evaluate))
    mask, known = None, benchmark.wavelengths
    for scene in benchmark.scenes:
        item = benchmark.load(scene)
        mask = item.mask
        assert item.truth is not None
        yield _simulated(scene, item.truth[None], mask, known)
    assert mask is not None
    for scene in TRAINING:
        cube = cassi.read_cube(Path(os.environ["CASSI_DATA"]) / "cave_train" / f"{scene}.tif")
        yield _simulated(scene, avg_pool2d(cube, 2), mask, known)
    for camera, scenes in CAPTURES.items():
        for scene in scenes:
            problem = load_problem(f"experiment={camera}", f"scene={scene}")
            wavelengths, system = problem.settings.given_wavelengths, problem.system
            assert isinstance(system, SDCassi)
            yield f"{camera} {scene}", problem.measurement, system, wavelengths
    if kaist:
        benchmark = load_benchmark(compose_settings(["data=kaist_snapshot"], kind=Evaluate))
        for scene in benchmark.scenes:
            item = benchmark.load(scene)
            assert item.measurement is not None
            system = SDCassi(item.mask, 28, step=2)
            yield f"kaist {scene}", item.measurement[None], system, benchmark.wavelengths


def _simulated(
    name: str, truth: Tensor, mask: Tensor, wavelengths: tuple[float, ...] | None
) -> Frame:
    camera = SDCassi(mask, truth.shape[1], step=2)
    return name, cassi.simulate(truth, camera, noise="shot", scene=name), camera, wavelengths


def mistakes(right: SDCassi) -> Iterator[tuple[str, SDCassi]]:
    """Yield cameras that are wrong in one way each."""
    mask, bands, detector = right.mask, right.bands, right.measurement_shape[-1]
    for name, (_, image) in POSES.items():
        moved = image(mask).contiguous()
        if moved.shape == mask.shape:
            yield f"mask {name}", SDCassi(moved, bands, step=2)
    for step in STEPS:
        for name, start in (("", 0.0), (", middle right", (2 - step) * (bands - 1) / 2)):
            offsets = [start + step * band for band in range(bands)]
            camera = SDCassi(mask, bands, offsets=offsets, detector=detector)
            yield f"step {step}{name}", camera
    for shift in SHIFTS:
        yield f"shift {shift}", SDCassi(mask.roll(shift, (-2, -1)), bands, step=2)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kaist", action="store_true", help="ten snapshots more")
    parser.add_argument("--spectra", action="store_true", help="reconstruct, and reverse the cubes")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    found: dict[str, list[set[str]]] = {}
    times: dict[int, list[float]] = {}

    def judge(name: str, about: str, function: Callable[[], Verdict]) -> None:
        verdict = function()
        said = {each.about for each in verdict.warnings} & ABOUT_THE_CAMERA
        found.setdefault(about, []).append(said)
        if bool(said) == about.startswith("right"):
            print(f"{name}, {about}: {verdict.lines()}", flush=True)

    for name, y, right, wavelengths in frames(arguments.kaist):
        for about, camera in (("right", right), *mistakes(right)):
            start = time.process_time()
            judge(name, about, lambda camera=camera, y=y: cassi.check_camera(y, camera))  # type: ignore[misc]
            times.setdefault(y.shape[-2], []).append(time.process_time() - start)
        if arguments.spectra:
            x = cassi.reconstruct(y, right)
            for about, cube in (("right, its cube", x), ("direction", x.flip(1))):
                judge(
                    name,
                    about,
                    lambda cube=cube, right=right, wavelengths=wavelengths: check_spectra(  # type: ignore[misc]
                        cube, right, wavelengths
                    ),
                )
    print("\nmistake | warned | by")
    for about, said in found.items():
        kinds = sorted(set().union(*said))
        counts = ", ".join(f"{kind} {sum(kind in each for each in said)}" for kind in kinds)
        print(f"{about} | {sum(map(bool, said))} of {len(said)} | {counts}")
    for height, seconds in sorted(times.items()):
        print(f"frames of {height} lines: {median(seconds):.2f} CPU s, at most {max(seconds):.2f}")


if __name__ == "__main__":
    main()
