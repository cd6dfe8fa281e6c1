"""The figures the README quotes, on the data of the literature."""

import pytest
import torch

import cassi
from cassi.apps.reconstructors import build_solver, compose_settings


@pytest.mark.release
def test_default_reaches_the_best_public_gap_tv(data_dir):
    # 24.87 dB is the best public GAP-TV code measured on these files.
    solver = build_solver(compose_settings())
    assert solver.iterations <= 150
    scenes = sorted((data_dir / "cave_test").glob("*.mat"))
    truth = torch.cat([cassi.read_cube(scene) for scene in scenes])
    system = cassi.SDCassi(cassi.read_mask(data_dir / "tsa" / "mask.mat"), bands=28, step=2)
    x = solver(system(truth), system)
    assert cassi.metrics.psnr(x, truth).mean() >= 24.9
    assert cassi.metrics.ssim(x, truth).mean() >= 0.709


def test_the_kaist_snapshots_are_what_the_system_models(data_dir):
    # A snapshot is explained exactly by its shortest cube, and holds nothing negative.
    system = cassi.SDCassi(cassi.read_mask(data_dir / "tsa" / "mask.mat"), bands=28, step=2)
    for file in sorted((data_dir / "kaist_meas").glob("*.npz")):
        y = cassi.read_measurement(file)
        assert y.min() >= 0
        assert (system(system.pinv(y)) - y).norm() <= 1e-5 * y.norm()
