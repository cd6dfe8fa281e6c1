"""What all metrics share: shapes, dtypes, devices, errors."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from cassi import metrics

Metric = Callable[[Tensor, Tensor], Tensor]
CASES = {"sam": metrics.sam, "rmse": metrics.rmse, "ergas": metrics.ergas}
for _name, _preset in metrics.PRESETS.items():
    CASES[f"psnr-{_name}"] = partial(metrics.psnr, preset=_name)
    if _preset.ssim:
        CASES[f"ssim-{_name}"] = partial(metrics.ssim, preset=_name)

every_metric = pytest.mark.parametrize("metric", CASES.values(), ids=CASES.keys())


def _pair(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(5)
    x, truth = torch.rand(2, *shape, generator=generator, dtype=torch.float64).to(dtype)
    return x, truth


@every_metric
def test_batch_is_its_scenes(metric):
    x, truth = _pair(3, 4, 13, 12)
    batch = metric(x, truth)
    assert batch.shape == (3,)
    scenes = [metric(a, b) for a, b in zip(x, truth, strict=True)]
    assert all(scene.shape == () for scene in scenes)
    torch.testing.assert_close(batch, torch.stack(scenes), rtol=1e-13, atol=0)
    assert metric(x[:1], truth[:1]).shape == (1,)
    torch.testing.assert_close(metric(x.flip(0), truth.flip(0)), batch.flip(0), rtol=0, atol=0)


@every_metric
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtype_is_upcast_before_anything(metric, dtype):
    x, truth = _pair(2, 3, 12, 12, dtype=dtype)
    got = metric(x, truth)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, metric(x.double(), truth.double()), rtol=1e-14, atol=0)
    mixed = metric(x, truth.double())
    torch.testing.assert_close(mixed, got, rtol=1e-14, atol=0)


@every_metric
def test_strides_and_inputs_are_left_alone(metric):
    x, truth = _pair(2, 3, 12, 14)
    copies = x.clone(), truth.clone()
    expected = metric(x, truth)
    last = x.to(memory_format=torch.channels_last)
    torch.testing.assert_close(metric(last, truth.mT.contiguous().mT), expected)
    assert torch.equal(x, copies[0])
    assert torch.equal(truth, copies[1])


@every_metric
def test_orientation_does_not_matter(metric):
    x, truth = _pair(3, 13, 12)
    expected = metric(x, truth)
    for move in (lambda a: a.mT, lambda a: a.flip(-2), lambda a: a[[1, 2, 0]]):
        torch.testing.assert_close(metric(move(x), move(truth)), expected, rtol=1e-11, atol=0)


@every_metric
def test_shapes_must_match(metric):
    x, truth = _pair(3, 12, 12)
    for other in (truth[:2], truth[None], truth[..., :11], truth[:1]):
        shape = tuple(other.shape)
        with pytest.raises(ValueError) as error:
            metric(x, other)
        assert str(error.value) == f"expected truth of the shape of x, (3, 12, 12), got {shape}"


@every_metric
@pytest.mark.parametrize("shape", [(12, 12), (1, 1, 3, 12, 12), (0, 3, 12, 12), (0, 12, 12)])
def test_cubes_have_three_or_four_axes(metric, shape):
    with pytest.raises(ValueError, match=r"expected cubes \(B, C, H, W\) or \(C, H, W\)"):
        metric(torch.zeros(shape), torch.zeros(shape))


@every_metric
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_must_be_finite(metric, bad):
    x, truth = _pair(3, 12, 12)
    spoilt = x.clone()
    spoilt[1, 2, 3] = bad
    with pytest.raises(ValueError, match="NaN or infinity in x"):
        metric(spoilt, truth)
    with pytest.raises(ValueError, match="NaN or infinity in truth"):
        metric(x, spoilt)


@every_metric
def test_values_must_be_floating_point(metric):
    x, truth = _pair(3, 12, 12)
    with pytest.raises(TypeError, match=r"expected truth to be floating point.*torch\.uint8"):
        metric(x, (truth * 255).to(torch.uint8))
    with pytest.raises(TypeError, match="expected x to be a tensor, got ndarray"):
        metric(x.numpy(), truth)


@every_metric
def test_devices_must_match(metric):
    x, truth = _pair(3, 12, 12)
    with pytest.raises(ValueError, match="on the device of x, cpu, got meta"):
        metric(x, truth.to("meta"))


@every_metric
@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_equals_cpu(metric):
    x, truth = _pair(2, 3, 24, 24, dtype=torch.float32)
    got = metric(x.cuda(), truth.cuda())
    assert got.is_cuda
    torch.testing.assert_close(got.cpu(), metric(x, truth), rtol=1e-12, atol=0)
