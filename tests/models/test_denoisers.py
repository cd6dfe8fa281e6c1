"""The networks: published names and shapes of weights, any size of image, what they refuse."""

import re
from itertools import pairwise

import pytest
import torch

from cassi.models import DnCNN, DRUNet, FFDNet

TINY = {
    "DnCNN": DnCNN(width=4, depth=3),
    "DnCNN with batch normalization": DnCNN(width=4, depth=3, batch_norm=True),
    "FFDNet": FFDNet(width=4, depth=3),
    "DRUNet": DRUNet(widths=(4, 4, 6, 6), blocks=1),
    "DRUNet, shuffled": DRUNet(widths=(4, 4, 6, 6), blocks=1, shuffle=2, residual=True),
}
every_network = pytest.mark.parametrize("net", TINY.values(), ids=TINY.keys())


def _layout(net):
    return {name: tuple(value.shape) for name, value in net.state_dict().items()}


def _stack(channels):
    """Convolutions with activations, and nothing else, between them."""
    found = {}
    for i, (c, k) in enumerate(pairwise(channels)):
        found |= {f"model.{2 * i}.weight": (k, c, 3, 3), f"model.{2 * i}.bias": (k,)}
    return found


@pytest.mark.parametrize(
    ("net", "channels"),
    [
        (DnCNN(), [1] + [64] * 16 + [1]),  # dncnn_15, _25, _50
        (DnCNN(depth=20), [1] + [64] * 19 + [1]),  # dncnn_gray_blind
        (DnCNN(channels=3, depth=20), [3] + [64] * 19 + [3]),  # dncnn_color_blind
        (FFDNet(), [5] + [64] * 14 + [4]),  # ffdnet_gray
        (FFDNet(channels=3, width=96, depth=12), [13] + [96] * 11 + [12]),  # ffdnet_color
        (FFDNet(channels=7, outputs=1, width=128), [29] + [128] * 14 + [4]),  # HSI-SDeCNN
    ],
)
def test_stacks_have_the_published_layout(net, channels):
    assert _layout(net) == _stack(channels)


@pytest.mark.parametrize("channels", [1, 3])
def test_drunet_has_the_published_layout(channels):
    widths = [64, 128, 256, 512]
    expected = {"m_head": (64, channels + 1, 3, 3), "m_tail": (channels, 64, 3, 3)}
    blocks = {f"m_body.{i}": 512 for i in range(4)}
    for level, (narrow, wide) in enumerate(pairwise(widths), 1):
        blocks |= {f"m_down{level}.{i}": narrow for i in range(4)}
        blocks |= {f"m_up{level}.{i}": narrow for i in range(1, 5)}
        expected |= {
            f"m_down{level}.4": (wide, narrow, 2, 2),
            f"m_up{level}.0": (wide, narrow, 2, 2),
        }
    for name, width in blocks.items():
        expected |= {f"{name}.res.{i}": (width, width, 3, 3) for i in (0, 2)}
    assert _layout(DRUNet(channels)) == {f"{key}.weight": v for key, v in expected.items()}


@every_network
@pytest.mark.parametrize("size", [(16, 16), (13, 9), (1, 1), (2, 31)])
def test_takes_any_size(net, size):
    x = torch.rand(2, 1, *size)
    u = net.eval()(x, 0.1)
    assert u.shape == x.shape
    assert u.isfinite().all()


@every_network
def test_sigma_is_a_number_or_one_per_image(net):
    x = torch.rand(3, 1, 8, 12)
    u = net.eval()(x, 0.1)
    for sigma in (torch.tensor(0.1), torch.full((3,), 0.1), torch.full((3, 1, 1, 1), 0.1)):
        torch.testing.assert_close(net(x, sigma), u)
    torch.testing.assert_close(net(x, torch.tensor([0.3, 0.1, 0.2]))[1], u[1])


@every_network
def test_refuses_other_images(net):
    for shape in ((2, 3, 8, 8), (8, 8)):
        got = re.escape(str(shape))
        with pytest.raises(ValueError, match=rf"expected images \(N, 1, H, W\), got {got}"):
            net(torch.rand(shape), 0.1)


@pytest.mark.parametrize("shuffle", [1, 2])
@pytest.mark.parametrize("residual", [False, True])
def test_drunet_scales_with_its_input(shuffle, residual):
    net = DRUNet(widths=(4, 4, 6, 6), blocks=1, shuffle=shuffle, residual=residual).double()
    x = torch.rand(1, 1, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(net(7 * x, 0.7), 7 * net(x, 0.1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DnCNN(channels=0), "DnCNN channels: expected a whole number of at least 1, got 0"),
        (lambda: DnCNN(depth=1), "DnCNN depth: expected at least 2, got 1"),
        (lambda: FFDNet(width=2.5), r"FFDNet width: expected a whole number .* got 2\.5"),
        (lambda: FFDNet(depth=1), "FFDNet depth: expected at least 2, got 1"),
        (lambda: DRUNet(widths=(4, 4)), r"DRUNet widths: expected four, got \[4, 4\]"),
        (lambda: DRUNet(widths=(4, 4, 0, 4)), r"DRUNet widths\[2\]: expected a whole number"),
        (lambda: DRUNet(shuffle=0), "DRUNet shuffle: expected a whole number"),
    ],
)
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()
