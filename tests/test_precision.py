"""Which precision is fast where, what "auto" stands for, and what is said of a slow one."""

import warnings

import pytest
import torch

from cassi import precision
from cassi.models.inference import Inference, prepare
from cassi.models.pretrained import refining_denoiser
from cassi.precision import describe_slow_precision, fast_types, resolve, warn_if_slow
from cassi.priors import Denoiser

FULL = {"avx512_bf16": True, "avx512_fp16": True}


@pytest.fixture
def cpu(monkeypatch):
    """Return what makes the CPU look like another one."""

    def look(
        capability="AVX512",
        instructions=FULL,
        bf16=True,
        fp16=True,
        machine="x86_64",
        isa=None,
        wins=False,
    ):
        for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
            monkeypatch.delenv(name, raising=False)
        if isa is not None:
            monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", isa)
        known = {torch.bfloat16: lambda: bf16, torch.float16: lambda: fp16}
        monkeypatch.setattr(precision, "_has_convolutions", lambda dtype: known[dtype]())
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
        monkeypatch.setattr(precision, "_read_instructions", lambda: instructions)
        monkeypatch.setattr(precision.platform, "machine", lambda: machine)
        monkeypatch.setattr(precision, "_is_faster_in_trial", lambda dtype: wins)

    return look


@pytest.mark.parametrize(
    ("described", "types"),
    [
        ({}, (torch.bfloat16, torch.float16)),
        ({"instructions": {"avx512_bf16": True}}, (torch.bfloat16,)),
        ({"instructions": {"amx_bf16": True}, "fp16": False}, (torch.bfloat16,)),
        ({"instructions": {}}, ()),  # oneDNN emulates bfloat16 with AVX-512 alone
        ({"capability": "AVX2"}, ()),
        ({"bf16": False, "fp16": False}, ()),
        ({"isa": "AVX2"}, ()),
        ({"machine": "aarch64", "fp16": False, "wins": True}, (torch.bfloat16,)),
        ({"machine": "aarch64"}, ()),  # a trial decided
        ({"isa": "AVX512_CORE_BF16"}, (torch.bfloat16,)),
        ({"isa": "DEFAULT"}, (torch.bfloat16, torch.float16)),
    ],
)
def test_a_cpu_is_fast_in_what_torch_and_onednn_have_instructions_for(cpu, described, types):
    assert isinstance(precision._is_faster_in_trial(torch.bfloat16), bool)
    cpu(**described)
    assert fast_types("mps") == (torch.float32,)
    assert fast_types("cpu") == (torch.float32, *types)


@pytest.mark.parametrize(
    ("capability", "types"),
    [((9, 0), (torch.bfloat16, torch.float16)), ((7, 5), (torch.float16,)), ((6, 1), ())],
)
def test_a_gpu_is_fast_by_its_compute_capability(monkeypatch, capability, types):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert fast_types("cuda:0") == (torch.float32, *types)


def test_auto_is_bfloat16_where_that_is_fast(cpu):
    cpu()
    assert resolve("auto") == "bf16-mixed"
    cpu(capability="AVX2")
    assert resolve("auto") == "32-true"
    assert [resolve(name) for name in precision.PRECISIONS] == list(precision.PRECISIONS)
    with pytest.raises(ValueError, match="precision: expected 32-true, bf16-mixed"):
        resolve("half")


def test_a_slow_precision_is_told_in_one_line(cpu):
    cpu(capability="AVX2")
    said = describe_slow_precision("bf16-mixed", "cpu")
    assert "\n" not in said
    assert said.startswith("precision=bf16-mixed")
    assert said.endswith("set precision=auto")
    assert describe_slow_precision("16-mixed", "cpu").endswith("set precision=32-true")
    with pytest.warns(UserWarning, match="no fast bfloat16"):
        warn_if_slow("bf16-mixed", "cpu")
    cpu()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("auto", "32-true", "bf16-mixed"):
            warn_if_slow(name, "cpu")


def test_only_what_ships_weights_computes_in_anything_but_float32():
    network = torch.nn.Identity()
    assert prepare(network).precision == Inference(network).precision == "32-true"
    network.shipped = object()
    assert Inference(network).precision == "auto"


def test_a_denoiser_computes_in_its_precision(cpu):
    network = torch.nn.Conv2d(1, 1, 1)
    seen = []

    def net(x, sigma):
        seen.append(network(x).dtype)
        return x

    x = torch.rand(1, 2, 8, 8)
    cpu()
    for name in ("32-true", "bf16-mixed", "auto"):
        Denoiser(net, precision=name)(x, 0.1)
    cpu(capability="AVX2")
    Denoiser(net, precision="auto")(x, 0.1)
    assert seen == [torch.float32, torch.bfloat16, torch.bfloat16, torch.float32]
    assert refining_denoiser().precision == "auto"
    with pytest.raises(ValueError, match="precision: expected"):
        Denoiser(net, precision="half")
