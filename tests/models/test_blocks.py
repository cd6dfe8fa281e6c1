"""Blocks of the networks against their plain forms, and settings that are refused."""

import pytest
import torch

import cassi
from cassi.models import grid
from cassi.models.load import create_model
from cassi.models.published import cst
from cassi.models.published.mst import MaskGuide, SpectralAttention, scaled_offsets

BANDS = 4


def _camera(step=2):
    mask = torch.rand(18, 23, generator=torch.Generator().manual_seed(1))
    return cassi.SDCassi(mask, bands=BANDS, step=step)


def test_attention_to_an_image_of_zeros_has_a_gradient():
    x = torch.zeros(1, 4, 4, 6, requires_grad=True)
    SpectralAttention(6, 3, guided=False)(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("step", [-3, -1, 0, 2])
def test_masks_are_shifted_back_as_the_camera_shifts(step):
    camera = _camera(step=step)
    shifts = grid.offsets(camera)
    assert scaled_offsets(BANDS, step, level=0, spare=max(shifts)) == shifts
    masks = torch.rand(1, BANDS, 8, 9)
    wide = grid.place_bands(masks, shifts, max(shifts))
    assert wide.shape[-1] == 9 + 3 * abs(step)
    guide = MaskGuide(BANDS)
    for layer in (guide.conv1, guide.conv2, guide.depth_conv):
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    torch.nn.init.dirac_(guide.conv1.weight)
    back = guide(wide, shifts, 9).permute(0, 3, 1, 2)
    torch.testing.assert_close(back, 1.5 * masks)  # 1 + sigmoid(0)


def test_clusters_hold_tokens_that_are_alike():
    torch.manual_seed(0)
    block = cst.HashAttention(4, heads=1, cluster=4)
    directions = 10 * torch.eye(4)[torch.arange(16) % 4]
    x = (directions + 0.01 * torch.randn(16, 4)).unsqueeze(0)
    order = block._order(x)
    kinds = (order % 4).view(2, 1, 1, 4, 4)
    assert (kinds == kinds[..., :1]).all()
    assert (order.sort(-1).values == torch.arange(16)).all()


def test_random_clusters_repeat_with_the_seed(make):
    net, camera = make("cst_s", BANDS, window=4).eval(), _camera()
    y = camera(torch.rand(1, BANDS, 18, 23))
    with torch.no_grad():
        results = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            results.append(net(y, camera))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize(
    "name",
    ["mst_s", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("cst_s", "bisrnet"))],
)
def test_one_graph(make, name):
    net, camera = make(name, BANDS, blocks=(1, 1)).eval(), _camera()
    y = camera(torch.rand(1, BANDS, 18, 23))
    torch._dynamo.reset()
    results = []
    with torch.no_grad():
        for run in (net, torch.compile(net, fullgraph=True, backend="eager")):
            torch.manual_seed(0)
            results.append(run(y, camera))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: create_model("tsa_net", size=(60, 64)), "multiples of 16, at least 64"),
        (lambda: create_model("hdnet", width=30), "a multiple of 4 and 2, got 30"),
        (lambda: create_model("dgsmp", taps=4), "an odd number, got 4"),
        (lambda: create_model("cst_s", window=5), "an even number, got 5"),
        (lambda: create_model("mst_s", blocks=(1, 0)), "at least 1, got 0"),
    ],
)
def test_unfit_settings_are_told(make, words):
    with pytest.raises(ValueError, match=words):
        make()
