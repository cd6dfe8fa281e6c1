"""Measure the errors of spectra that are interpolated between the bands of a reconstruction.

    CASSI_DATA=DIR python -m scripts.benchmarks.wavelengths

The published scenes of CAVE have 31 bands, from 400 to 700 nm (`cave_raw/*_ms`). The middle 256×256
pixels are interpolated to 28 bands: evenly spaced ones over that range, or those of the literature
(453.5 to 648 nm). They are measured through the mask of the package, and `solver=auto` reconstructs
them.

The columns of the table are:

- `at 28`: the spectral angle at the 28 bands;
- `linear`: the angle at the published wavelengths within the range of the 28 bands, after linear
  interpolation;
- `smooth`: the same angle, after the interpolation of `output.wavelengths=`;
- `true: smooth`: the angle of `smooth`, if the true 28 bands are interpolated;
- `true: error/bar`: for these, the root mean square error over the root mean square error bar.
"""

from statistics import mean

import torch

import cassi
from cassi.data.bundled import bundled_path
from cassi.data.wavelengths import BENCHMARK_WAVELENGTHS, interpolate_spectra, resample
from cassi.metrics import sam
from scripts.benchmarks.tables import Parser, Table, data_folder

PUBLISHED_NM = [400.0 + 10 * band for band in range(31)]
BAND_CHOICES = {
    "even": tuple(400 + 300 * band / 27 for band in range(28)),
    "literature": BENCHMARK_WAVELENGTHS,
}


def main() -> None:
    """Print the table."""
    Parser(__doc__).parse_args()
    folder = data_folder("cave_raw")
    system = cassi.SDCassi(cassi.read_mask(bundled_path("mask.tif")), 28, 2)
    table = Table("bands", "scene", "at 28", "linear", "smooth", "true: smooth", "true: error/bar")
    for choice, bands in BAND_CHOICES.items():
        inner_nm = [nm for nm in PUBLISHED_NM if bands[0] <= nm <= bands[-1]]
        rows = []
        for path in sorted(folder.glob("*_ms/*_ms")):
            cube = cassi.read_cube(path)[0, :, 128:384, 128:384]
            cube = cube / cube.max()
            truth = resample(cube, PUBLISHED_NM, bands)
            published_bands = cube[[PUBLISHED_NM.index(nm) for nm in inner_nm]]
            x = cassi.reconstruct(system(truth[None]), system)[0]
            linear = resample(x, bands, inner_nm)
            smooth_x, _ = interpolate_spectra(x, bands, inner_nm)
            # The true bands have no errors. So the error bars are those of the interpolation alone,
            # and are 0 at a band.
            smooth_truth, std = interpolate_spectra(truth, bands, inner_nm, torch.zeros_like(truth))
            assert std is not None
            has_bar = std.amax((1, 2)) > 0
            errors = (smooth_truth - published_bands)[has_bar]
            ratio = errors.square().mean() / std[has_bar].square().mean()
            angles = [sam(x, truth)]
            angles += [
                sam(spectra, published_bands) for spectra in (linear, smooth_x, smooth_truth)
            ]
            rows.append([*map(float, angles), float(ratio) ** 0.5])
            table.print(choice, path.name, *(f"{value:.2f}" for value in rows[-1]))
        table.print(choice, "mean", *(f"{mean(column):.2f}" for column in zip(*rows, strict=True)))


if __name__ == "__main__":
    with torch.no_grad():
        main()
