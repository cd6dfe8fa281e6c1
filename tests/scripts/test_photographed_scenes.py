"""Scenes made of photographs keep the brightness, in spectra that were measured."""

import os
from pathlib import Path

import pytest
import torch

from cassi.data.synthetic.spectra import MeasuredSpectra, observer
from cassi.data.wavelengths import BENCHMARK_WAVELENGTHS
from scripts.data.photographed_scenes import SRGB, make_scene

FOLDER = Path(os.environ.get("CASSI_DATA", "../shared/data")) / "spectra"


@pytest.mark.skipif(not FOLDER.is_dir(), reason="needs spectra in CASSI_DATA")
def test_a_scene_is_as_bright_as_its_photograph():
    random = torch.Generator().manual_seed(0)
    photo = torch.rand(24, 32, 3, generator=random) * 0.6 + 0.2
    spectra = MeasuredSpectra(FOLDER, BENCHMARK_WAVELENGTHS)
    spectra.draw_light = lambda generator: torch.ones(len(spectra.nm))
    cube = make_scene(photo, spectra, random)
    assert cube.shape == (28, 24, 32)
    assert 0 <= float(cube.min()) < float(cube.max()) <= 1
    linear = ((photo + 0.055) / 1.055) ** 2.4
    seen = torch.einsum("c,chw->hw", observer(spectra.nm)[1], cube)
    ratio = seen / (linear @ SRGB[1])
    assert float(ratio.std() / ratio.mean()) < 0.05  # what is clipped is darker
