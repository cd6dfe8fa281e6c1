"""Networks outside of torch: ONNX files and TorchScript."""

import pytest
import torch

import cassi
from cassi.models.export import OfMeasurement, export_onnx

SMALL = ["gap_net", "hdnet", "lambda_net"]
LARGE = ["admm_net", "bisrnet", "dauhst_2stg"]
networks = pytest.mark.parametrize(
    "name",
    [
        *SMALL,
        *(pytest.param(name, marks=[pytest.mark.slow, pytest.mark.release]) for name in LARGE),
    ],
)
every_one = pytest.mark.filterwarnings("ignore")


def _case(name):
    generator = torch.Generator().manual_seed(0)
    mask = (torch.rand(32, 32, generator=generator) > 0.5).float()
    system = cassi.SDCassi(mask, bands=8, step=2)
    y, other = (system(torch.rand(1, 8, 32, 32, generator=generator)) for _ in range(2))
    return cassi.create_model(name, bands=8).eval(), system, y, other


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
    torch.testing.assert_close(torch.from_numpy(got), network(y, system), rtol=0, atol=1e-4)


@networks
@every_one
@torch.no_grad()
def test_a_trace_gives_the_network(name):
    network, system, y, other = _case(name)
    traced = torch.jit.trace(OfMeasurement(network, system).eval(), (y,), check_trace=False)
    torch.testing.assert_close(traced(other), network(other, system), rtol=0, atol=1e-5)
