"""Every registered network takes a snapshot of any camera."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from cassi import DDCassi, SDCassi, ops
from cassi.models.grid import Aligned, overlay, windows
from cassi.models.load import create_model
from cassi.models.registry import find_model, list_models
from cassi.solvers import GAP
from cassi.systems import BlurredCassi, WarpedCassi

BANDS, HEIGHT, WIDTH = 4, 16, 24
SMALL: dict[str, Any] = {"stages": 2, "size": (64, 64), "start": 3, "training_start": 3}
MASK = torch.rand(HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0))
CAMERAS: dict[str, Any] = {
    "fractions": lambda: SDCassi(MASK, BANDS, offsets=[0.3, 2.1, 3.6, 5.9]),
    "falling": lambda: SDCassi(MASK, BANDS, offsets=[7.0, 4.0, 2.0, 0.0]),
    "cut": lambda: SDCassi(MASK, BANDS, offsets=[-2.4, 0.0, 1.6, 3.2], detector=WIDTH),
    "large": lambda: SDCassi(MASK, BANDS, offsets=[3.0, 4.5, 6.0, 7.5], detector=WIDTH + 20),
    "rows": lambda: SDCassi(MASK, BANDS, offsets=[0.0, 1.4, 2.2, 4.0], axis=-2),
    "dual": lambda: DDCassi(MASK, BANDS, step=2),
    "blurred": lambda: BlurredCassi(MASK, BANDS, step=2, line_spread=0.6, point_spread=0.6),
    "warped": lambda: WarpedCassi(MASK, BANDS, step=2, smile=0.5, rotation=0.3),
}


def _make(name: str) -> Any:
    torch.manual_seed(0)
    known = inspect.signature(find_model(name).make).parameters
    return create_model(name, bands=BANDS, **{k: v for k, v in SMALL.items() if k in known}).eval()


def _shoot(camera: Any) -> Tensor:
    torch.manual_seed(1)
    y: Tensor = camera(torch.rand(1, BANDS, HEIGHT, WIDTH))
    return y


@pytest.mark.parametrize("name", list_models(shipped=False))
def test_every_network_takes_any_camera(name: str) -> None:
    net = _make(name)
    for camera in (make() for make in CAMERAS.values()):
        with torch.no_grad():
            x = net(_shoot(camera), camera)
        assert x.shape == (1, BANDS, HEIGHT, WIDTH)
        assert x.isfinite().all()


@pytest.mark.parametrize("name", ["gap_net", "dauhst_2stg", "mst_s", "rdluf_mixs2_3stg"])
def test_offsets_that_are_not_quite_whole_are_nearly_the_step(name: str) -> None:
    net, plain = _make(name), SDCassi(MASK, BANDS, step=2)
    near = SDCassi(MASK, BANDS, offsets=[o + 1e-5 for o in plain.offsets], detector=plain.detector)
    y = _shoot(plain)
    with torch.no_grad():
        expected, got = net(y, plain), net(y, near)
    assert (got - expected).abs().max() < 2e-3 * expected.abs().max()


@pytest.mark.parametrize("name", CAMERAS)
def test_what_networks_see_is_the_camera(name: str) -> None:
    camera = CAMERAS[name]()
    y = _shoot(camera)
    if camera.axis == -2:
        return
    if tuple(camera.offsets) == ops.step_offsets(camera.bands, camera.step):
        assert name in ("dual", "blurred")
        return
    seen = Aligned(camera)
    cut = seen.window(y)
    assert tuple(cut.shape[1:]) == seen.measurement_shape
    assert min(seen.offsets) == 0
    x = torch.rand(1, BANDS, HEIGHT, WIDTH)
    torch.testing.assert_close(seen(x), seen.window(camera(x)))
    for left, right in (
        ((seen(x) * cut).sum(), (x * seen.adjoint(cut)).sum()),
        ((overlay(x, seen) * cut).sum(), (x * windows(cut, seen)).sum()),
    ):
        torch.testing.assert_close(left, right)
    # A data step explains what is seen as well as that of the camera does.
    state = GAP().init(y, camera)
    own = camera.data_step(state.x, y, 0.1)
    aligned = seen.data_step(state.x, cut, 0.1)
    if min(seen.pads) >= 0 or name == "large":
        torch.testing.assert_close(aligned, own, rtol=1e-4, atol=1e-4)
