"""Blocks of the networks against their plain forms, and settings that are refused."""

import pytest
import torch
import torch.nn.functional as F

import cassi
from cassi.models import grid
from cassi.models.load import create_model
from cassi.models.published import cst, dgsmp
from cassi.models.published.bisrnet import straight_through
from cassi.models.published.hdnet import DomainAttention
from cassi.models.published.mst import MaskGuide, SpectralAttention, scaled_offsets
from cassi.models.published.tsa_net import neighbours

BANDS = 4


def _camera(step=2):
    mask = torch.rand(18, 23, generator=torch.Generator().manual_seed(1))
    return cassi.SDCassi(mask, bands=BANDS, step=step)


def _plain_attention(block, x, guide):
    b, h, w, c = x.shape
    q, k, v = (to(x).flatten(1, 2) for to in (block.to_q, block.to_k, block.to_v))
    gated = v if guide is None else v * guide.flatten(1, 2)
    q, k, gated = (t.unflatten(-1, (block.heads, -1)).permute(0, 2, 3, 1) for t in (q, k, gated))
    cosine = F.normalize(k, dim=-1) @ F.normalize(q, dim=-1).mT
    mixed = ((cosine * block.rescale).softmax(-1) @ gated).permute(0, 3, 1, 2).reshape(b, h, w, c)
    first, act, second = block.pos_emb
    images = v.view(b, h, w, c).permute(0, 3, 1, 2)
    images = act(F.conv2d(images, first.weight, padding=1, groups=c))
    images = F.conv2d(images, second.weight, padding=1, groups=c)
    return block.proj(mixed) + images.permute(0, 2, 3, 1)


@pytest.mark.parametrize("guided", [False, True])
def test_attention_by_second_moments_is_attention(guided):
    torch.manual_seed(0)
    block = SpectralAttention(6, 3, guided).double()
    torch.nn.init.normal_(block.rescale)
    x = torch.randn(2, 5, 7, 6, dtype=torch.float64, requires_grad=True)
    guide = torch.rand(2, 5, 7, 6, dtype=torch.float64) if guided else None
    fast, plain = block(x, guide), _plain_attention(block, x, guide)
    torch.testing.assert_close(fast, plain)
    weight = torch.randn_like(fast)
    (got,), (wanted,) = (torch.autograd.grad((v * weight).sum(), x) for v in (fast, plain))
    torch.testing.assert_close(got, wanted)


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


def test_published_steps_of_smaller_scales():
    assert scaled_offsets(56, 2, level=1, spare=27) == [i // 2 for i in range(56)]
    assert scaled_offsets(112, 2, level=2, spare=13) == [i // 8 for i in range(112)]
    assert scaled_offsets(8, -4, level=1, spare=6) == [6, 6, 5, 4, 3, 2, 1, 0]


def test_a_straight_through_value_is_exact_and_its_gradient_the_surrogates():
    x = torch.tensor([-0.3, 0.1, 2.0], requires_grad=True)
    signs = straight_through(x.sign(), torch.tanh(x))
    assert signs.tolist() == [-1.0, 1.0, 1.0]
    signs.sum().backward()
    torch.testing.assert_close(x.grad, 1 - torch.tanh(x.detach()) ** 2)


def test_domain_attention_is_the_composition_of_its_layers():
    torch.manual_seed(0)
    block = DomainAttention(8)
    x = torch.randn(2, 8, 5, 6)
    focus = block.conv_q_right(x).flatten(2).softmax(-1)
    seen = (block.conv_v_right(x).flatten(2) @ focus.mT).unsqueeze(-1)
    probe = block.conv_q_left(x).mean((2, 3)).unsqueeze(1)
    match = (probe @ block.conv_v_left(x).flatten(2)).softmax(-1).view(2, 1, 5, 6)
    torch.testing.assert_close(block(x), x * block.conv_up(seen).sigmoid() + x * match.sigmoid())


def test_filters_are_normalized_over_their_taps():
    cube, cores = torch.randn(3, 2, BANDS, 5, 6), torch.randn(2, 3 * BANDS, 5, 6)
    wanted = (F.normalize(cores.unflatten(1, (3, BANDS)), dim=1).transpose(0, 1) * cube).sum(0)
    torch.testing.assert_close(dgsmp.filtered(iter(cube), cores, BANDS), wanted)


def test_channels_are_nearest_to_themselves():
    near = neighbours(5)
    assert near.shape == (1, 5, 5)
    assert near[0].diagonal().tolist() == [1.0] * 5
    torch.testing.assert_close(near[0, 0, -1], torch.tensor(0.0))


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
