"""Every registered network: any size, step, axis and mask; gradients; formats; what it refuses."""

import inspect

import pytest
import torch
from shared import before_a_push, diagonal, every_network, networks_of_each_class
from torch import nn

from cassi import DDCassi, SDCassi
from cassi.models.camera_adapters import AlignedCamera, CroppingCamera, band_windows, sum_windows
from cassi.models.load import create_model
from cassi.models.network import Network, memory_format_warning
from cassi.models.registry import find_model
from cassi.systems import BlurredCassi, WarpedCassi

BANDS = 5
DISCONTINUOUS = ("cst_", "dpu_", "bisrnet")
"""Networks that sort or threshold: rounding decides over whole pixels."""
HEIGHT, WIDTH = 16, 24
MASK = torch.rand(HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0))
CAMERAS = {
    "fractions": lambda: SDCassi(MASK, BANDS, offsets=[0.3, 2.1, 3.6, 5.9, 7.0]),
    "falling": lambda: SDCassi(MASK, BANDS, offsets=[9.0, 7.0, 4.0, 2.0, 0.0]),
    "cut": lambda: SDCassi(MASK, BANDS, offsets=[-2.4, 0.0, 1.6, 3.2, 4.1], detector=WIDTH),
    "large": lambda: SDCassi(MASK, BANDS, offsets=[3.0, 4.5, 6.0, 7.5, 9.0], detector=WIDTH + 20),
    "rows": lambda: SDCassi(MASK, BANDS, offsets=[0.0, 1.4, 2.2, 4.0, 5.5], axis=-2),
    "dual": lambda: DDCassi(MASK, BANDS, step=2),
    "blurred": lambda: BlurredCassi(MASK, BANDS, step=2, line_spread=0.6, point_spread=0.6),
    "warped": lambda: WarpedCassi(MASK, BANDS, step=2, smile=0.5, rotation=0.3),
}
LOSES_CHANNELS_LAST = {
    "admm_net": "aten.lerp in ADMMNet",
    "bisrnet": "aten.cat in BiSRNet",
    "cassi_net": "aten.sub in CassiNet",
    "cst": "aten.cat in CST",
    "dauhst": "aten.mul in DAUHST",
    "dernn_lnlt": "aten.mul in DERNNLNLT",
    "gap_net": "aten.stack in GAPNet",
    "lade_dun": "aten.cat in head_GD (LearnedProjection)",
    "lambda_net": "aten.stack in LambdaNet",
    "mijun": "aten.mul in MiJUN",
    "mst_plus_plus": "aten.cat in MSTPlusPlus",
    "padut": "aten.mul in PADUT",
    "saunet": "aten.mul in SAUNet",
    "tsa_net": "aten.clone in transform3.query_x.fully.0 (Linear)",
}
"""The first operator after which bands are no longer last in memory; other networks keep them."""


NETWORKS = networks_of_each_class()


def _shoot(height=24, width=36, batch=1, **camera):
    torch.manual_seed(1)
    mask = camera.pop("mask", torch.rand(height, width))
    system = SDCassi(mask, bands=BANDS, **{"step": 2} | camera)
    return system(torch.rand(batch, BANDS, height, width)), system


def _expose(camera):
    torch.manual_seed(1)
    return camera(torch.rand(1, BANDS, HEIGHT, WIDTH))


def _run(net, y, system):
    torch.manual_seed(2)  # for networks that draw random numbers
    return net(y, system)


def _assert_close(name, got, wanted, tolerance=1e-3):
    assert got.shape == wanted.shape
    assert got.isfinite().all()
    if not name.startswith(DISCONTINUOUS):
        assert (got - wanted).abs().max() <= tolerance * wanted.abs().max()


@pytest.mark.parametrize(
    ("name", "shape"),
    diagonal(NETWORKS, [(17, 23, -3, -1), (5, 6, 0, -1), (3, 2, 1, -2)]),
)
def test_gives_a_cube_for_any_size_and_dispersion(make, name, shape):
    *size, step, axis = shape
    y, system = _shoot(*size, batch=2, step=step, axis=axis)
    with torch.no_grad():
        x = make(name).eval()(y, system)
    assert x.shape == (2, BANDS, *size)
    assert x.dtype == torch.float32
    assert x.isfinite().all()


@every_network
def test_takes_a_mask_per_band_and_per_sample(make, name):
    net = make(name).eval()
    masks = torch.rand(2, 1, BANDS, 24, 36)
    y, system = _shoot(batch=2, mask=masks)
    with torch.no_grad():
        together = _run(net, y, system)
        for i in range(2):
            single = SDCassi(masks[i], bands=BANDS, step=2)
            alone = _run(net, y[i : i + 1], single)
            _assert_close(name, together[i : i + 1], alone)


@every_network
def test_dispersion_along_rows_is_that_along_columns_of_the_turned_scene(make, name):
    net = make(name).eval()
    mask = torch.rand(24, 36)
    y, system = _shoot(mask=mask)
    turned = SDCassi(mask.mT, bands=BANDS, step=2, axis=-2)
    with torch.no_grad():
        _assert_close(name, _run(net, y.mT, turned), _run(net, y, system).mT)


def _without_gradient(net):
    return {
        key
        for key, p in net.named_parameters()
        if p.requires_grad and (p.grad is None or not p.grad.isfinite().all() or not p.grad.any())
    }


def _keep_statistics(net, y, system):
    """Let batch normalization use those of this y, so that biases before it have an influence."""
    layers = [n for n in net.modules() if isinstance(n, nn.modules.batchnorm._BatchNorm)]
    for layer in layers:
        layer.momentum = 1
    if layers:
        _run(net, y, system)
    for layer in layers:
        layer.eval()


@every_network
def test_every_parameter_gets_a_finite_gradient(make, name):
    # Some networks share one stage among all but the first and the last.
    stages = {"stages": 3} if name.startswith(("rdluf", "lade")) else {}
    net = make(name, **stages).train()
    with torch.no_grad():
        for p in net.parameters():
            if p.numel() == 1 and not p.any():
                p.fill_(0.1)  # a factor that starts at zero hides what it multiplies
    y, system = _shoot(batch=2)  # batch normalization of one pixel wants two samples
    _keep_statistics(net, y, system)
    _run(net, y, system).square().mean().backward()
    assert _without_gradient(net) == set()


@pytest.mark.parametrize("name", before_a_push(NETWORKS, ["mst_s", "hdnet"], "thorough"))
def test_trains_in_bfloat16_and_channels_last(make, name):
    y, system = _shoot(16, 20, batch=2)  # processors without bfloat16 take long
    net = make(name).eval()
    with torch.no_grad():
        exact = _run(net, y, system)
    net = net.to(memory_format=torch.channels_last).train()
    with torch.autocast("cpu", torch.bfloat16):
        x = _run(net, y.contiguous(memory_format=torch.channels_last), system)
        x.float().square().mean().backward()
    if not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in net.modules()):
        _assert_close(name, x.float(), exact, 0.1)
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)


@every_network
def test_channels_last_changes_nothing(make, name):
    y, system = _shoot(batch=2)
    net = make(name).eval()
    with torch.no_grad():
        wanted = _run(net, y, system)
        net = net.to(memory_format=torch.channels_last)
        got = _run(net, y.contiguous(memory_format=torch.channels_last), system)
    _assert_close(name, got, wanted)


@every_network
def test_which_operator_loses_channels_last(make, name):
    y, system = _shoot(batch=2)
    net = make(name).to(memory_format=torch.channels_last)
    torch.manual_seed(3)
    warning = memory_format_warning(net, y, system)
    assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(3)))
    assert net.training
    known = [words for start, words in LOSES_CHANNELS_LAST.items() if name.startswith(start)]
    assert (warning is None) == (not known)
    assert warning is None or f" loses it by {known[0]}, which wrote (" in warning


@pytest.mark.parametrize(
    "name",
    [n for n in NETWORKS if "checkpointing" in inspect.signature(find_model(n).make).parameters],
)
def test_checkpointing_changes_no_gradient(make, name):
    y, system = _shoot()
    gradients = []
    for checkpointing in (False, True):
        net = make(name, checkpointing=checkpointing)
        net(y, system).square().mean().backward()
        gradients.append({key: p.grad for key, p in net.named_parameters()})
    torch.testing.assert_close(gradients[0], gradients[1])


@every_network
def test_refuses_cameras_and_measurements_that_do_not_fit(make, name):
    net = make(name)
    y, system = _shoot()
    if isinstance(net, Network):  # others take any camera
        with pytest.raises(ValueError, match="expected a camera of 5 bands, got 4"):
            net(y, SDCassi(torch.rand(24, 36), bands=4, step=2))
        with pytest.raises(ValueError, match="one shot, got 2 shots"):
            net(y, SDCassi(torch.rand(2, 1, 24, 36), bands=BANDS, step=2))
    with pytest.raises(ValueError, match=r"expected \(B, .*24, 44\)"):
        net(y[..., 1:], system)
    with pytest.raises(ValueError, match="bands: expected a whole number"):
        create_model(name, bands=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"),
    before_a_push(
        [("gap_net", "aot_eager"), ("gap_net", "inductor"), ("dauhst_2stg", "aot_eager")],
        [("gap_net", "aot_eager")],
        "thorough",
    ),
)
def test_compiles_as_one_graph(make, name, backend):
    y, system = _shoot()
    net = make(name, stages=1)
    torch._dynamo.reset()
    compiled = torch.compile(net, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(y, system), net(y, system), rtol=1e-3, atol=1e-4)
    compiled(y, system).square().mean().backward()
    assert _without_gradient(net) == set()


@pytest.mark.parametrize("step", [2, -1, 0])
def test_the_wide_camera_is_the_camera_behind_a_crop(step):
    y, system = _shoot(step=step)
    wide, width = CroppingCamera(system), y.shape[-1]
    v = torch.rand(1, BANDS, 24, width)
    torch.testing.assert_close(wide(v), system(v[..., :36]))
    # <Av, y> = <v, Aᵀy>, and both inverses are consistent with y.
    torch.testing.assert_close((wide(v) * y).sum(), (v * wide.adjoint(y)).sum())
    torch.testing.assert_close(wide(wide.pinv(y)), y, rtol=1e-3, atol=1e-3)
    x = wide.data_step(v, y, 0.1)
    gradient = wide.adjoint(wide(x) - y) + 0.1 * (x - v)
    assert gradient.abs().max() < 1e-4


@pytest.mark.parametrize(("name", "camera"), diagonal(NETWORKS, CAMERAS))
def test_every_network_takes_any_camera(make, name, camera):
    net, system = make(name).eval(), CAMERAS[camera]()
    with torch.no_grad():
        x = net(_expose(system), system)
    assert x.shape == (1, BANDS, HEIGHT, WIDTH)
    assert x.isfinite().all()


@pytest.mark.parametrize("name", sorted(set(CAMERAS) - {"rows", "dual", "blurred"}))
def test_what_networks_see_is_the_camera(name):
    camera = CAMERAS[name]()
    y = _expose(camera)
    seen = AlignedCamera(camera)
    cut = seen.window(y)
    assert tuple(cut.shape[1:]) == seen.measurement_shape
    assert min(seen.offsets) == 0
    x = torch.rand(1, BANDS, HEIGHT, WIDTH)
    torch.testing.assert_close(seen(x), seen.window(camera(x)))
    for left, right in (
        ((seen(x) * cut).sum(), (x * seen.adjoint(cut)).sum()),
        ((sum_windows(x, seen) * cut).sum(), (x * band_windows(cut, seen)).sum()),
    ):
        torch.testing.assert_close(left, right)
    # On what is seen a data step is that of the camera.
    x = camera.pinv(y)
    own, aligned = camera.data_step(x, y, 0.1), seen.data_step(x, cut, 0.1)
    if min(seen.window_padding) >= 0 or name == "large":
        torch.testing.assert_close(aligned, own, rtol=1e-4, atol=1e-4)
    # A damping for each pixel of what is seen leaves the others out.
    rho = 0.1 + torch.rand(1, *seen.measurement_shape)
    own = camera.data_step(x, y, nn.functional.pad(rho, seen.detector_padding, value=torch.inf))
    torch.testing.assert_close(seen.data_step(x, cut, rho), own, rtol=1e-4, atol=1e-4)
