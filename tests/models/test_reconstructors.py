"""Every registered network: any size, step, axis and mask; gradients; formats; what it refuses."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cassi
from cassi.models.grid import Wide
from cassi.models.layers import pad_to_multiple
from cassi.models.load import create_model
from cassi.models.network import Network, memory_format_warning
from cassi.models.registry import find_model, list_models

BANDS = 5
SMALL: dict[str, Any] = {"stages": 2, "size": (64, 64), "start": 3, "training_start": 3}
"""Settings that make a network small, used where its class knows them."""
NO_GRADIENT: dict[str, set[str]] = {}
"""Parameters that the published arithmetic leaves unused, by network."""
DISCONTINUOUS = ("cst_", "dpu_", "bisrnet")
"""Networks that sort or threshold: rounding decides over whole pixels."""
LOSES_CHANNELS_LAST = {
    "admm_net": "aten.lerp in ADMMNet",
    "bisrnet": "aten.cat in BiSRNet",
    "cassi_net": "aten.sub in CassiNet",
    "cst": "aten.cat in CST",
    "dauhst": "aten.mul in DAUHST",
    "dernn_lnlt": "aten.mul in DERNNLNLT",
    "gap_net": "aten.stack in GAPNet",
    "mst_plus_plus": "aten.cat in MSTPlusPlus",
    "padut": "aten.mul in PADUT",
    "tsa_net": "aten.clone in transform3.query_x.fully.0 (Linear)",
}
"""The first operator after which bands are no longer last in memory; other networks keep them."""
every_model = pytest.mark.parametrize("name", list_models(shipped=False))


def _make(name: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    entry = find_model(name)
    known = inspect.signature(entry.make).parameters
    small = {key: value for key, value in SMALL.items() if key in known}
    return create_model(name, bands=BANDS, **small | settings)


def _shoot(
    height: int = 24, width: int = 36, batch: int = 1, **camera: Any
) -> tuple[Tensor, cassi.SDCassi]:
    torch.manual_seed(1)
    mask = camera.pop("mask", torch.rand(height, width))
    system = cassi.SDCassi(mask, bands=BANDS, **{"step": 2} | camera)
    return system(torch.rand(batch, BANDS, height, width)), system


def _run(net: nn.Module, y: Tensor, system: cassi.SDCassi) -> Tensor:
    torch.manual_seed(2)  # for networks that draw random numbers
    x: Tensor = net(y, system)
    return x


def _assert_close(name: str, got: Tensor, wanted: Tensor, tolerance: float = 1e-3) -> None:
    assert got.shape == wanted.shape
    assert got.isfinite().all()
    if not name.startswith(DISCONTINUOUS):
        assert (got - wanted).abs().max() <= tolerance * wanted.abs().max()


@every_model
@pytest.mark.parametrize("size", [(24, 36), (17, 23)])
@pytest.mark.parametrize(
    "camera", [{"step": 2}, {"step": -1}, {"step": 0}, {"step": 3, "axis": -2}], ids=str
)
def test_gives_a_cube_for_any_size_and_dispersion(
    name: str, size: tuple[int, int], camera: dict[str, int]
) -> None:
    y, system = _shoot(*size, batch=2, **camera)
    with torch.no_grad():
        x = _make(name).eval()(y, system)
    assert x.shape == (2, BANDS, *size)
    assert x.dtype == torch.float32
    assert x.isfinite().all()


@every_model
def test_takes_a_mask_per_band_and_per_sample(name: str) -> None:
    net = _make(name).eval()
    masks = torch.rand(2, 1, BANDS, 24, 36)
    y, system = _shoot(batch=2, mask=masks)
    with torch.no_grad():
        together = _run(net, y, system)
        for i in range(2):
            single = cassi.SDCassi(masks[i], bands=BANDS, step=2)
            alone = _run(net, y[i : i + 1], single)
            _assert_close(name, together[i : i + 1], alone)


@every_model
def test_dispersion_along_rows_is_that_along_columns_of_the_turned_scene(name: str) -> None:
    net = _make(name).eval()
    mask = torch.rand(24, 36)
    y, system = _shoot(mask=mask)
    turned = cassi.SDCassi(mask.mT, bands=BANDS, step=2, axis=-2)
    with torch.no_grad():
        _assert_close(name, _run(net, y.mT, turned), _run(net, y, system).mT)


def _without_gradient(net: nn.Module) -> set[str]:
    return {
        key
        for key, p in net.named_parameters()
        if p.requires_grad and (p.grad is None or not p.grad.isfinite().all() or not p.grad.any())
    }


@every_model
def test_every_parameter_gets_a_finite_gradient(name: str) -> None:
    # Some networks share one stage among all but the first and the last.
    stages = {"stages": 3} if name.startswith("rdluf") else {}
    net = _make(name, **stages).train()
    with torch.no_grad():
        for p in net.parameters():
            if p.numel() == 1 and not p.any():
                p.fill_(0.1)  # a factor that starts at zero hides what it multiplies
    y, system = _shoot(batch=2)  # batch normalization of one pixel wants two samples
    _run(net, y, system).square().mean().backward()
    assert _without_gradient(net) == NO_GRADIENT.get(name, set())


@every_model
def test_trains_in_bfloat16_and_channels_last(name: str) -> None:
    y, system = _shoot(batch=2)
    net = _make(name).eval()
    with torch.no_grad():
        exact = _run(net, y, system)
    net = net.to(memory_format=torch.channels_last).train()
    with torch.autocast("cpu", torch.bfloat16):
        x = _run(net, y.contiguous(memory_format=torch.channels_last), system)
        x.float().square().mean().backward()
    if not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in net.modules()):
        _assert_close(name, x.float(), exact, 0.1)
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)


@every_model
def test_channels_last_changes_nothing(name: str) -> None:
    y, system = _shoot(batch=2)
    net = _make(name).eval()
    with torch.no_grad():
        wanted = _run(net, y, system)
        net = net.to(memory_format=torch.channels_last)
        got = _run(net, y.contiguous(memory_format=torch.channels_last), system)
    _assert_close(name, got, wanted)


@every_model
def test_which_operator_loses_channels_last(name: str) -> None:
    y, system = _shoot(batch=2)
    net = _make(name).to(memory_format=torch.channels_last)
    torch.manual_seed(3)
    warning = memory_format_warning(net, y, system)
    assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(3)))
    assert net.training
    known = [words for start, words in LOSES_CHANNELS_LAST.items() if name.startswith(start)]
    assert (warning is None) == (not known)
    assert warning is None or f" loses it by {known[0]}, which wrote (" in warning


@every_model
def test_checkpointing_changes_no_gradient(name: str) -> None:
    if "checkpointing" not in inspect.signature(find_model(name).make).parameters:
        pytest.skip(f"{name} has no checkpointing")
    y, system = _shoot()
    gradients = []
    for checkpointing in (False, True):
        net = _make(name, checkpointing=checkpointing)
        net(y, system).square().mean().backward()
        gradients.append({key: p.grad for key, p in net.named_parameters()})
    torch.testing.assert_close(gradients[0], gradients[1])


@every_model
def test_refuses_cameras_and_measurements_that_do_not_fit(name: str) -> None:
    net = _make(name)
    y, system = _shoot()
    if isinstance(net, Network):  # others take any camera
        with pytest.raises(ValueError, match="expected a camera of 5 bands, got 4"):
            net(y, cassi.SDCassi(torch.rand(24, 36), bands=4, step=2))
        with pytest.raises(ValueError, match="one shot, got 2 shots"):
            net(y, cassi.SDCassi(torch.rand(2, 1, 24, 36), bands=BANDS, step=2))
    with pytest.raises(ValueError, match=r"expected \(B, .*24, 44\)"):
        net(y[..., 1:], system)
    with pytest.raises(ValueError, match="bands: expected a whole number"):
        create_model(name, bands=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gap_net", "dauhst_2stg"])
def test_compiles_as_one_graph(name: str) -> None:
    y, system = _shoot()
    net = _make(name)
    compiled = torch.compile(net, fullgraph=True)
    torch.testing.assert_close(compiled(y, system), net(y, system), rtol=1e-3, atol=1e-4)
    compiled(y, system).square().mean().backward()
    assert _without_gradient(net) == set()


@pytest.mark.parametrize("step", [2, -1, 0])
def test_the_wide_camera_is_the_camera_behind_a_crop(step: int) -> None:
    y, system = _shoot(step=step)
    wide, width = Wide(system), y.shape[-1]
    v = torch.rand(1, BANDS, 24, width)
    torch.testing.assert_close(wide(v), system(v[..., :36]))
    # <Av, y> = <v, Aᵀy>, and both inverses explain y.
    torch.testing.assert_close((wide(v) * y).sum(), (v * wide.adjoint(y)).sum())
    torch.testing.assert_close(wide(wide.pinv(y)), y, rtol=1e-3, atol=1e-3)
    x = wide.data_step(v, y, 0.1)
    gradient = wide.adjoint(wide(x) - y) + 0.1 * (x - v)
    assert gradient.abs().max() < 1e-4


def test_mirrored_padding_goes_on_where_torch_stops() -> None:
    x = torch.arange(12.0).reshape(1, 1, 3, 4)
    torch.testing.assert_close(
        pad_to_multiple(x, 5, "mirror"), nn.functional.pad(x, (0, 1, 0, 2), mode="reflect")
    )
    tall = pad_to_multiple(x, 8, "mirror")
    assert tall.shape == (1, 1, 8, 8)
    assert tall[0, 0, :, 0].tolist() == [0, 4, 8, 4, 0, 4, 8, 4]
    assert tall[0, 0, 0].tolist() == [0, 1, 2, 3, 2, 1, 0, 1]
    assert pad_to_multiple(torch.ones(1, 1, 1, 3), 4, "mirror").shape == (1, 1, 4, 4)
