"""Write what spectra of ordinary scenes are like, by which reversed ones are noticed.

    python -m scripts.data.spectra            # writes cassi/calibration/spectra.json
    python -m scripts.data.spectra --check    # each scene by the statistics of the others

Of the training scenes of CAVE ($CASSI_DATA), 455 to 645 nm.
"""

import argparse
import json

import numpy as np
import torch
from torch import Tensor

import cassi
from cassi.calibration.spectra import FILE, Statistics, direction, moments
from cassi.data.bundled import bundled_path
from cassi.data.manifest import read_manifest
from scripts.benchmarks.tables import data_folder

WAVELENGTHS = torch.linspace(455, 645, 16, dtype=torch.float64)


def summarize(cubes: list[Tensor], given: Tensor) -> Statistics:
    """Return the statistics of cubes `(C, H, W)`, every scene with the same weight."""
    found = [moments(cube, given, WAVELENGTHS) for cube in cubes]
    means = torch.stack([mean for mean, _ in found])
    within = torch.stack([spread for _, spread in found]).mean(0)
    lights = torch.stack([mean_light(cube, given) for cube in cubes])
    spreads = [each.mT.cov(correction=0) for each in (means, lights)]
    return Statistics(WAVELENGTHS, means.mean(0), within, spreads[0], lights.mean(0), spreads[1])


def mean_light(cube: Tensor, given: Tensor) -> Tensor:
    """Return the logarithm of a cube's mean spectrum, its mean 0."""
    light = cube.double().mean((1, 2)).numpy()
    logs = torch.from_numpy(np.log(np.interp(WAVELENGTHS.numpy(), given.numpy(), light)))
    return logs - logs.mean()


def main() -> None:
    """Write the statistics, or check them scene by scene."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    root = data_folder()
    manifest = read_manifest(bundled_path("manifests/cave.json"))
    files = [root / name for name in manifest.files("train")]
    cubes = {file.stem: cassi.read_cube(str(file))[0] for file in files}
    given = torch.tensor(manifest.wavelengths, dtype=torch.float64)
    if arguments.check:
        for name, cube in cubes.items():
            others = [other for key, other in cubes.items() if key != name]
            print(f"{name:32} {direction(cube, given.tolist(), summarize(others, given)):+.2f}")
        return
    values = summarize(list(cubes.values()), given)._asdict()
    rounded = {name: (value * 1e5).round().div(1e5).tolist() for name, value in values.items()}
    FILE.write_text(json.dumps(rounded) + "\n")


if __name__ == "__main__":
    main()
