"""Make scenes for training of photographs: their layout, in materials whose spectra were measured.

    python -m scripts.data.photographed_scenes PHOTOS OUT       # needs $CASSI_DATA

A photograph shows how shapes, textures and shadows lie in an image, and nothing of spectra. A dozen
of its pixels become materials. Each gets a convex mixture of measured reflectances
(`cassi.data.synthetic.spectra.MeasuredSpectra`): of many the one whose colour in white light is
nearest. Every pixel p is a mixture of these materials r_k, as bright as in the photograph:

    x(p) = b(p) · l · Σ_k w_k(p) r_k / ȳᵀr_k,   w = softmax_k(−‖c(p) − c_k‖² / 2τ²)

c are chromaticities of the pixels, taken as sRGB, b is the luminance, l a light, and ȳ the
observer's luminous efficiency. OUT/NAME.tif has the bands of the benchmark.
"""

import argparse
import sys
from pathlib import Path

import torch
from skimage.io import imread
from torch import Tensor
from torch.nn.functional import normalize

from cassi.data.io import write_cube
from cassi.data.synthetic.spectra import MeasuredSpectra, observer
from cassi.data.wavelengths import BENCHMARK_WAVELENGTHS
from scripts.benchmarks.tables import data_folder

MATERIALS, MIXTURES, TAU = 12, 4000, 0.03
SRGB = torch.tensor([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
"""Linear sRGB to XYZ (IEC 61966-2-1)."""


def make_scene(photo: Tensor, spectra: MeasuredSpectra, generator: torch.Generator) -> Tensor:
    """Return a cube `(C, H, W)` in [0, 1] of a photograph `(H, W, 3)`, sRGB in [0, 1]."""
    linear = torch.where(photo > 0.04045, ((photo + 0.055) / 1.055) ** 2.4, photo / 12.92)
    xyz = SRGB @ linear.flatten(0, 1).T.clamp_min(1e-4)
    colours = normalize(xyz, p=1, dim=0)
    places = torch.randint(xyz.shape[1], (MATERIALS,), generator=generator)
    anchors = colours[:, places]
    candidates = spectra.mix(MIXTURES, generator)
    eye = observer(spectra.nm)
    seen = normalize(candidates @ eye.T, p=1, dim=1)
    nearest = torch.cdist(anchors.T, seen).argmin(1)
    materials = candidates[nearest]  # (K, C)
    materials = materials / (materials @ eye[1])[:, None].clamp_min(1e-6)
    far = torch.cdist(colours.T.contiguous(), anchors.T.contiguous()).square()
    weights = (far / (-2 * TAU**2)).softmax(1)
    cube = (weights @ (materials * spectra.draw_light(generator))) * xyz[1][:, None]
    cube = cube / torch.quantile(cube.amax(1)[::7], 0.999)
    return cube.T.clamp(0, 1).reshape(len(spectra.nm), *photo.shape[:2])


def main() -> int:
    """Make a scene of every photograph."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    spectra = MeasuredSpectra(data_folder() / "spectra", BENCHMARK_WAVELENGTHS)
    files = sorted(p for p in options.photos.iterdir() if p.suffix.lower() in (".png", ".jpg"))
    if not files:
        sys.exit(f"{options.photos}: no .png or .jpg")
    options.out.mkdir(parents=True, exist_ok=True)
    for k, file in enumerate(files):
        photo = torch.as_tensor(imread(file)[..., :3].copy()).float() / 255
        generator = torch.Generator().manual_seed(options.seed * 1000 + k)
        cube = make_scene(photo, spectra, generator)
        write_cube(options.out / f"{file.stem}.tif", cube, BENCHMARK_WAVELENGTHS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
