"""Calibrate cameras from one snapshot, and see how far each number is off.

    python -m scripts.benchmarks.calibration --fine 20
    python -m scripts.benchmarks.calibration --fine 20 --step 2 --noise shot

Mask and bands are moved on a fine grid by whole pixels and averaged over those of the detector:
nothing is interpolated. Each draw has a scene of CAVE's training set, a random binary mask,
dispersion along rows and a geometry of its own. The same solver reconstructs with the nominal, the
calibrated and the true camera; PSNR is that on the pixels on which the cube lies. What calibration
is worth with other cameras: `cassi-evaluate data=cave twin=blurred`; of real captures:
`cassi-calibrate experiment=smem scene=fern_root`.
"""

import sys
import time
from statistics import mean

import torch

import cassi
from cassi import metrics
from cassi.apps.reconstructors import build_solver, compose_settings
from cassi.config import build
from cassi.pipeline.calibrate import calibrate_on
from scripts.benchmarks.fine_twin import FineTwin, enlarged
from scripts.benchmarks.tables import Parser, data_folder


def main() -> None:
    """Print how far calibrations are off where the detector averages fractions of a pixel."""
    parser = Parser(__doc__)
    parser.add_argument("--fine", type=int, default=20, metavar="DRAWS", help="cameras")
    parser.add_argument("--first", type=int, default=0, help="seed of the first draw")
    parser.add_argument("--size", nargs=2, type=int, default=(240, 320), help="of their masks")
    parser.add_argument("--step", type=float, default=-1.5, help="pixels per band")
    parser.add_argument("--noise", help="of the simulated sensor: shot, sensor, white")
    arguments = parser.parse_args()
    solver = build_solver(compose_settings(["method=auto"]))
    scenes = sorted(data_folder("cave_train").glob("*.tif"))
    away: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {}
    print("scene | nominal | calibrated | true | CPU s | held-out")
    for seed in range(arguments.first, arguments.first + arguments.fine):
        path = scenes[seed % len(scenes)]
        twin = FineTwin.drawn(tuple(arguments.size), 16, arguments.step, seed)
        scene = enlarged(cassi.read_cube(path), arguments.size, 16)
        system, y = twin.system, twin.measure(scene)
        if arguments.noise:
            noise = build(compose_settings([f"noise={arguments.noise}"]).noise)
            y = noise(y, 16, torch.Generator().manual_seed(seed))
        used = time.process_time()
        found = calibrate_on(y, system)
        used = time.process_time() - used
        levels = []
        for camera, beside in (
            (system, 0.0),
            (found.system, found.taken["bands"]),
            (twin.true_system(), twin.beside),
        ):
            levels.append(metrics.psnr(solver(y, camera), twin.cube(scene, beside)).item())
        print(
            f"{path.stem} | " + " | ".join(f"{level:.2f}" for level in levels) + f" | {used:.1f} | "
            f"{found.before:.4f} → {found.after:.4f}"
        )
        for each in found.estimates:
            wanted = twin.wanted.get(each.key, each.nominal)
            off, error = abs(each.value - wanted), each.standard_error
            away.setdefault(each.key, []).append(off)
            ratios.setdefault(each.key, []).append(off / max(error, 1e-12))
            print(f"    {each.key:14} {each.value:9.5f} ± {error:.5f}, true {wanted:9.5f}")
        sys.stdout.flush()
    for key, values in away.items():
        within = sum(ratio <= 2 for ratio in ratios[key])
        print(
            f"{key:14} off by {mean(values):.4f} in the mean, {max(values):.4f} at most; within "
            f"two standard errors {within} of {len(values)}"
        )


if __name__ == "__main__":
    main()
