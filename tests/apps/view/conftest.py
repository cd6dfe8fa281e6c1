import numpy as np
import pytest
import torch

import cassi
from cassi.apps.view.allowed_paths import AllowedPaths
from cassi.apps.view.session import Session


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a snapshot of 8 bands, a step of 2, and its mask."""
    folder = tmp_path_factory.mktemp("camera")
    random = torch.Generator().manual_seed(0)
    mask = (torch.rand(64, 64, generator=random) > 0.5).float()
    row, column = np.mgrid[0:64, 0:64] / 64
    bands = np.linspace(0, 1, 8)[:, None, None]
    scene = (0.2 + np.exp(-(((bands - column) / 0.5) ** 2)) * (0.5 + row)).astype(np.float32)
    y = cassi.SDCassi(mask, bands=8, step=2)(torch.from_numpy(scene)[None])
    np.save(folder / "mask.npy", mask.numpy())
    np.save(folder / "snapshot.npy", y[0, 0].numpy())
    return folder


@pytest.fixture
def session(files, tmp_path):
    output = tmp_path / "output"
    output.mkdir()
    session = Session(AllowedPaths([files, output]), output)
    session.set_file("measurement", files / "snapshot.npy")
    session.set_file("mask", files / "mask.npy")
    return session
