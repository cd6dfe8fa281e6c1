"""Write statistics of the spectra of ordinary scenes, for the checks and calibrations of cameras.

    python -m scripts.data.spectra

cassi/calibration/spectra.json has statistics of the logarithms of spectra of the training scenes of
CAVE ($CASSI_DATA), 455 to 645 nm. cassi/camera/moment.json has the second moment of the spectra of
the first 14 of these scenes; the other scenes are kept for tests.
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


def summarize(cubes: list[Tensor], nm: Tensor) -> Statistics:
    """Return the statistics of cubes `(C, H, W)` at wavelengths nm; all have the same weight."""
    scene_moments = [moments(cube, nm, WAVELENGTHS) for cube in cubes]
    means = torch.stack([mean for mean, _ in scene_moments])
    scene_spread = torch.stack([spread for _, spread in scene_moments]).mean(0)
    lights = torch.stack([log_mean_spectrum(cube, nm) for cube in cubes])
    mean_cov, light_cov = (values.mT.cov(correction=0) for values in (means, lights))
    return Statistics(WAVELENGTHS, means.mean(0), scene_spread, mean_cov, lights.mean(0), light_cov)


def log_mean_spectrum(cube: Tensor, nm: Tensor) -> Tensor:
    """Return the logarithm of a cube's mean spectrum; its mean over wavelengths is subtracted."""
    spectrum = cube.double().mean((1, 2)).numpy()
    # In logarithms the brightness of a scene is an additive constant, which is subtracted.
    logs = torch.from_numpy(np.log(np.interp(WAVELENGTHS.numpy(), nm.numpy(), spectrum)))
    return logs - logs.mean()


def moment_factor(cubes: list[Tensor], components: int = 12) -> np.ndarray:
    """Return F `(components, C)` with FᵀF ≈ the second moment of spectra of root mean square 1.

    Args:
        cubes: `(C, H, W)`. The spectra are every fourth mean over 16×16 pixels.
        components: number of eigenvectors. The next eigenvalue is 1e-5 of the first.
    """
    rows = [avg_pool2d(cube[None].double(), 16)[0].flatten(1).mT.numpy() for cube in cubes]
    spectra = np.concatenate(rows)[::4]
    spectra = spectra / np.sqrt((spectra**2).mean(1, keepdims=True) + 1e-12)
    values, vectors = np.linalg.eigh(spectra.T @ spectra / len(spectra))
    strongest = slice(None, -components - 1, -1)  # eigh sorts eigenvalues in ascending order
    return np.asarray((vectors[:, strongest] * np.sqrt(values[strongest])).T)


def main() -> None:
    """Write both files."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    root = data_folder()
    manifest = read_manifest(bundled_path("manifests/cave.json"))
    files = [root / name for name in manifest.files("train")]
    cubes = {file.stem: cassi.read_cube(str(file))[0] for file in files}
    nm = torch.tensor(manifest.wavelengths, dtype=torch.float64)
    values = summarize(list(cubes.values()), nm)._asdict()
    # Five decimals: the files are part of the package, and more digits would be noise.
    lists = {name: (value * 1e5).round().div(1e5).tolist() for name, value in values.items()}
    FILE.write_text(json.dumps(lists) + "\n")
    factor = moment_factor([cubes[file.stem] for file in sorted(files)[:14]])
    wavelengths = [round(value, 4) for value in manifest.wavelengths]
    MOMENT.write_text(
        json.dumps({"wavelengths": wavelengths, "factor": factor.round(5).tolist()}) + "\n"
    )


if __name__ == "__main__":
    main()
