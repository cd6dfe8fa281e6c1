"""Write what spectra of ordinary scenes are like, by which cameras are judged.

    python -m scripts.data.spectra

cassi/calibration/spectra.json holds statistics of logarithms, of the training scenes of CAVE
($CASSI_DATA), 455 to 645 nm. cassi/camera/moment.json holds the second moment of spectra, of the
first 14 of these scenes: the others are left for tests.
"""

import argparse
import json

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

import cassi
from cassi.calibration.spectra import FILE, Statistics, moments
from cassi.camera.evidence import MOMENT
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


def moment_factor(cubes: list[Tensor], components: int = 12) -> np.ndarray:
    """Return F with FᵀF near the second moment of spectra of root mean square 1, `(12, C)`.

    Args:
        cubes: `(C, H, W)`; means of 16×16 pixels are taken, every fourth.
        components: the strongest that are kept: the next has a hundred-thousandth of the first.
    """
    rows = [avg_pool2d(cube[None].double(), 16)[0].flatten(1).mT.numpy() for cube in cubes]
    spectra = np.concatenate(rows)[::4]
    spectra = spectra / np.sqrt((spectra**2).mean(1, keepdims=True) + 1e-12)
    values, vectors = np.linalg.eigh(spectra.T @ spectra / len(spectra))
    kept = slice(None, -components - 1, -1)
    return np.asarray((vectors[:, kept] * np.sqrt(values[kept])).T)


def main() -> None:
    """Write the statistics."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    root = data_folder()
    manifest = read_manifest(bundled_path("manifests/cave.json"))
    files = [root / name for name in manifest.files("train")]
    cubes = {file.stem: cassi.read_cube(str(file))[0] for file in files}
    given = torch.tensor(manifest.wavelengths, dtype=torch.float64)
    values = summarize(list(cubes.values()), given)._asdict()
    rounded = {name: (value * 1e5).round().div(1e5).tolist() for name, value in values.items()}
    FILE.write_text(json.dumps(rounded) + "\n")
    factor = moment_factor([cubes[file.stem] for file in sorted(files)[:14]])
    wavelengths = [round(value, 4) for value in manifest.wavelengths]
    MOMENT.write_text(
        json.dumps({"wavelengths": wavelengths, "factor": factor.round(5).tolist()}) + "\n"
    )


if __name__ == "__main__":
    main()
