"""Measure spectra between the bands: reconstruct 28 bands, and compare with all measured ones.

    CASSI_DATA=DIR python -m scripts.benchmarks.wavelengths

The scenes of CAVE as they are published have 31 bands, from 400 to 700 nm (`cave_raw/*_ms`). Of the
middle 256×256 pixels 28 bands are simulated, evenly spaced over that range or those of the
literature (453.5 to 648 nm), and measured through the mask of the package. `solver=auto`
reconstructs them. The table has the spectral angle at the 28 bands, and at the measured wavelengths
in their range, interpolated linearly and as `output.wavelengths=` does. The last two columns are of
the true 28 bands: the angle, and the root mean square of errors over the error bars.
"""

from statistics import mean

import torch

import cassi
from cassi.data.bundled import bundled_path
from cassi.data.wavelengths import BENCHMARK_WAVELENGTHS, interpolate_spectra, resample
from cassi.metrics import sam
from scripts.benchmarks.tables import Parser, Table, data_folder

MEASURED = [400.0 + 10 * band for band in range(31)]
CHOICES = {
    "even": tuple(400 + 300 * band / 27 for band in range(28)),
    "literature": BENCHMARK_WAVELENGTHS,
}


def main() -> None:
    """Print the table."""
    Parser(__doc__).parse_args()
    folder = data_folder("cave_raw")
    system = cassi.SDCassi(cassi.read_mask(bundled_path("mask.tif")), 28, 2)
    table = Table("bands", "scene", "at 28", "linear", "smooth", "true: smooth", "true: error/bar")
    for choice, bands in CHOICES.items():
        wanted = [nm for nm in MEASURED if bands[0] <= nm <= bands[-1]]
        rows = []
        for path in sorted(folder.glob("*_ms/*_ms")):
            cube = cassi.read_cube(path)[0, :, 128:384, 128:384]
            cube = cube / cube.max()
            truth = resample(cube, MEASURED, bands)
            there = cube[[MEASURED.index(nm) for nm in wanted]]
            x = cassi.reconstruct(system(truth[None]), system)[0]
            smooth, _ = interpolate_spectra(x, bands, wanted)
            ideal, std = interpolate_spectra(truth, bands, wanted, torch.zeros_like(truth))
            assert std is not None
            between = std.amax((1, 2)) > 0
            ratio = (ideal - there)[between].square().mean() / std[between].square().mean()
            linear = resample(x, bands, wanted)
            angles = [sam(x, truth)]
            angles += [sam(each, there) for each in (linear, smooth, ideal)]
            rows.append([*map(float, angles), float(ratio) ** 0.5])
            table.print(choice, path.name, *(f"{value:.2f}" for value in rows[-1]))
        table.print(choice, "mean", *(f"{mean(column):.2f}" for column in zip(*rows, strict=True)))


if __name__ == "__main__":
    with torch.no_grad():
        main()
