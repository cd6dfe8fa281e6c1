"""Networks outside of torch: ONNX files, exported programs and TorchScript."""

from pathlib import Path

import pytest
import torch
from shared import before_a_push, kind_of_network, networks_of_each_class

import cassi
from cassi.models.export import MeasurementToCube, export, export_onnx
from cassi.models.registry import find_model, list_models
from cassi.ops import _plain
from cassi.ops._library import operators

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/export.md"
QUICK = ("gap_net", "hdnet", "lambda_net")
DATA_DEPENDENT = ("cassi_net", "pretrained")
OTHERS = [name for name in networks_of_each_class() if name not in DATA_DEPENDENT]
networks = pytest.mark.parametrize("name", before_a_push(OTHERS, QUICK, "thorough"))
every_one = pytest.mark.filterwarnings("ignore")


def _case(name, stages=2):
    generator = torch.Generator().manual_seed(0)
    mask = (torch.rand(32, 32, generator=generator) > 0.5).float()
    system = cassi.SDCassi(mask, bands=8, step=2)
    y, other = (system(torch.rand(1, 8, 32, 32, generator=generator)) for _ in range(2))
    # More stages and blocks are more of the same.
    small = {"stages": stages, "blocks": 1 if "dernn" in name else (1, 1, 1)}
    few = {key: small[key] for key in small.keys() & find_model(name).settings}
    torch.manual_seed(0)
    return cassi.create_model(name, bands=8, **few).eval(), system, y, other


def _cube(network, y, system):
    torch.manual_seed(0)  # for a network that draws random numbers
    return network(y, system)


@networks
@every_one
@torch.no_grad()
def test_onnx_gives_the_network(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    network, system, y, _ = _case(name)
    export_onnx(network, system, tmp_path / "network.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "network.onnx")
    (got,) = session.run(["x"], {"y": y.numpy()})
    wanted = _cube(network, y, system)
    torch.testing.assert_close(torch.from_numpy(got), wanted, rtol=0, atol=1e-4)


@networks
@every_one
@torch.no_grad()
def test_an_exported_program_gives_the_network(name):
    fewest = 2 if name.startswith(("lade", "rdluf")) else 1
    network, system, _, other = _case(name, fewest)
    got = export(network, system).module()(other)
    torch.testing.assert_close(got, _cube(network, other, system), rtol=0, atol=1e-5)


@networks
@every_one
@torch.no_grad()
def test_a_trace_gives_the_network(name):
    network, system, y, other = _case(name)
    torch.manual_seed(0)
    traced = torch.jit.trace(MeasurementToCube(network, system).eval(), (y,), check_trace=False)
    torch.manual_seed(0)
    got = traced(other)
    torch.testing.assert_close(got, _cube(network, other, system), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", DATA_DEPENDENT)
def test_networks_that_decide_by_values_are_refused(name):
    network, system, *_ = _case(name)
    with pytest.raises(RuntimeError, match="decides by values of y what it computes"):
        export(network, system)


def test_the_page_lists_every_architecture():
    page = PAGE.read_text(encoding="utf-8")
    listed = {kind_of_network(name) for name in list_models() if f"`{name}`" in page}
    assert listed == {kind_of_network(name) for name in list_models()}


@pytest.mark.parametrize("shape", [(2, 8, 8), (2, 11, 8), (1, 5, 1)])
def test_plain_factors_are_those_of_lapack(shape):
    a = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a[..., 1:, 0] = 0  # a column that needs no reflection
    for got, wanted in zip(_plain.linalg_qr(a), torch.linalg.qr(a), strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("width", [1, 8, 9])
def test_plain_transforms_are_those_of_torch(width):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 6, width, 3, generator=generator, dtype=torch.float64)
    z = torch.fft.rfft2(x, dim=(1, 2))
    got = _plain.fft_rfft2(x, dim=(1, 2))
    torch.testing.assert_close(got, z)
    torch.testing.assert_close(_plain.angle(got), z.angle())
    torch.testing.assert_close(_plain.fft_irfft2(z, (6, width), (1, 2)), x)
    with pytest.raises(ValueError, match="whole images"):
        _plain.fft_rfft2(x, dim=(1, 2), norm="ortho")


def test_the_plain_scan_is_that_of_the_kernel():
    generator = torch.Generator().manual_seed(0)
    u, delta = torch.rand(2, 2, 37, 5, generator=generator).unbind()
    b, c = torch.randn(2, 2, 37, 4, generator=generator).unbind()
    rates = -torch.rand(1, 5, 4, generator=generator)
    values = (u, delta, rates, b, c)
    torch.testing.assert_close(_plain.selective_scan(*values), operators.selective_scan(*values))
