"""Three tiny scenes on disk."""

import numpy as np
import pytest
import torch

import cassi
from cassi.calibration import Calibration
from cassi.camera.displaced_camera import displaced_camera, no_displacement

NANOMETRES = [450, 500, 550, 600, 650]


@pytest.fixture
def data(tmp_path):
    """Options that name three scenes of 16 x 18 with 5 bands."""
    generator = torch.Generator().manual_seed(3)
    folder = tmp_path / "cubes"
    folder.mkdir()
    ramp = torch.linspace(0.1, 0.9, 18).expand(16, 18)
    for name in ("one", "three", "two"):
        shape = torch.rand(5, 4, 6, generator=generator).repeat_interleave(4, 1)
        cube = ramp * shape.repeat_interleave(3, 2)
        cassi.write_cube(folder / f"{name}.npz", cube, NANOMETRES)
    mask = (torch.rand(16, 18, generator=generator) > 0.5).float() * 0.9 + 0.1
    np.save(tmp_path / "mask.npy", mask.numpy())
    nm = ",".join(map(str, NANOMETRES))
    return (
        *("data=folder", f"data.root={folder}", f"mask={tmp_path / 'mask.npy'}"),
        *(f"data.wavelengths=[{nm}]", "system.step=1"),
    )


@pytest.fixture
def finds(monkeypatch):
    """Let every calibration find the same place; return the measurements it was asked of."""

    def choose(values):
        frames = []

        def find(y, system, *_, **__):
            frames.append(y)
            taken = no_displacement() | values
            return Calibration(displaced_camera(system, taken), (), taken, 1.0, 0.5, None)

        monkeypatch.setattr("cassi.pipeline.calibrate.calibrate_on", find)
        return frames

    return choose
