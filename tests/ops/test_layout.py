"""assert_memory_format: what it reports, what it lets pass, and what it leaves as it was."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi import ops
from cassi.ops._layout import assert_memory_format

X = torch.rand(2, 8, 6, 6)


class Block(nn.Module):
    """A function as a submodule."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def _net(function):
    """The function between convolutions that take any number of channels and pixels."""
    return nn.Sequential(
        nn.Conv2d(8, 8, 3, padding=1),
        nn.Sequential(Block(function), nn.ReLU()),
        nn.LazyConv2d(4, 1),
    )


def _layer_norm(x):
    return F.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2]).permute(0, 3, 1, 2)


def _attention_over_channels(x):
    rows = x.flatten(2)
    return ((rows @ rows.mT).softmax(-1) @ rows).view(x.shape)


def _filled(x):
    y = torch.zeros(x.shape)
    y[:, :, 1:] = x[:, :, 1:]
    return y


KEEPING = {
    "elementwise": lambda x: 2 * x + x.exp(),
    "in place": lambda x: x.mul_(2),
    "spatial gate": lambda x: x * x.mean(1, keepdim=True).sigmoid(),
    "half of the channels": lambda x: x[:, 4:].relu() * x[:, :4],
    "slice into a convolution": lambda x: x[:, :4, 1:, ::2],
    "reshape without a copy": lambda x: x.reshape(2, 8, 36).reshape(2, 8, 9, 4),
    "layer norm": _layer_norm,
    "transposed and back": lambda x: (x.mT * 2).mT,
    "one channel": lambda x: x[:, :1].contiguous(),
    "one pixel": lambda x: x.mean((2, 3), keepdim=True).contiguous(),
    "data step": lambda x: ops.data_step(
        x, torch.ones(2, 1, 6, 13), torch.ones(6, 6), step=1, rho=0.1
    ),
    "integers": lambda x: x * (x > 0.5).contiguous(),
}
# What leaves the format, the operator to blame, and what it writes.
LEAVING = {
    "contiguous": (lambda x: x.contiguous() + 1, "aten.clone", (2, 8, 6, 6)),
    "contiguous and back": (
        lambda x: x.contiguous().contiguous(memory_format=torch.channels_last),
        "aten.clone",
        (2, 8, 6, 6),
    ),
    "reshape that copies": (lambda x: x.reshape(2, 4, 12, 6), "aten.clone", (2, 8, 6, 6)),
    "softmax": (lambda x: x.softmax(1), "aten._softmax", (2, 8, 6, 6)),
    "written into zeros": (_filled, "aten.copy_", (2, 8, 5, 6)),
    "transpose": (lambda x: x.mT * 2, "aten.transpose", (2, 8, 6, 6)),
    "attention over channels": (_attention_over_channels, "aten.bmm", (2, 8, 36)),
    "camera": (
        lambda x: ops.forward(x, torch.ones(2, 1, 6, 6), step=1),
        "cassi.forward",
        (2, 2, 6, 13),
    ),
}


def _ready(function):
    net = _net(function)
    with torch.no_grad():
        net(X.clone())
    return net


@pytest.mark.parametrize("name", KEEPING)
def test_lets_pass(name):
    net = _ready(KEEPING[name])
    with torch.no_grad():
        expected = net(X.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(assert_memory_format(net, X), expected)


@pytest.mark.parametrize("name", LEAVING)
def test_reports_the_operator_its_module_and_shape_once(name):
    function, operator, shape = LEAVING[name]
    with pytest.raises(AssertionError) as caught:
        assert_memory_format(_ready(function), X)
    lines = str(caught.value).splitlines()
    assert lines == [
        "channels_last: expected in every operator, lost by",
        f"  {operator} in 1.0 (Block), which wrote {shape}",
    ]


def test_reports_every_operator_in_the_order_of_execution():
    def softmax(x):
        return x.softmax(1).contiguous(memory_format=torch.channels_last)

    def contiguous(x):
        return x.contiguous()

    net = nn.Sequential(Block(softmax), nn.Conv2d(8, 8, 1), Block(softmax), Block(contiguous))
    with pytest.raises(AssertionError) as caught:
        assert_memory_format(net, X)
    lines = str(caught.value).splitlines()[1:]
    found = [line.split(", which")[0].strip() for line in lines]
    assert found == [
        "aten._softmax in 0 (Block)",
        "aten._softmax in 2 (Block)",
        "aten.clone in 3 (Block)",
    ]


def test_reports_a_view_that_is_the_result():
    with pytest.raises(AssertionError, match=r"aten.permute in 0 \(Block\), which wrote"):
        assert_memory_format(nn.Sequential(Block(lambda x: x.permute(0, 2, 3, 1))), X)
    assert_memory_format(nn.Sequential(Block(lambda x: x.flatten(2))), X)


def test_root_module_and_functions_are_named():
    with pytest.raises(AssertionError, match=r"aten.clone in Block, which"):
        assert_memory_format(Block(Tensor.contiguous), X)
    with pytest.raises(AssertionError, match=r"aten._softmax in _softmax_of_bands, which"):
        assert_memory_format(_softmax_of_bands, X)


def _softmax_of_bands(x):
    return x.softmax(1)


def test_ignored_operators_may_leave_the_format():
    net = _ready(lambda x: x.softmax(1) + 1)
    assert_memory_format(net, X, ignore=["aten._softmax"])


def test_several_arguments_and_results():
    def function(x, scale, y):
        return {"sum": x * scale + y, "same": y}

    out = assert_memory_format(function, (X, 2.0, X))
    assert all(v.is_contiguous(memory_format=torch.channels_last) for v in out.values())

    def leave(x, scale, y):
        return {"same": x, "turned": y.mT}

    with pytest.raises(AssertionError, match=r"aten\.transpose in leave"):
        assert_memory_format(leave, (X, 2.0, X))


def test_channels_last_3d():
    x = torch.rand(1, 3, 4, 5, 6)
    out = assert_memory_format(nn.BatchNorm3d(3), x, torch.channels_last_3d)
    assert out.is_contiguous(memory_format=torch.channels_last_3d)
    with pytest.raises(AssertionError, match=r"channels_last_3d: .*\n  aten.clone in Block"):
        assert_memory_format(Block(Tensor.contiguous), x, torch.channels_last_3d)


def test_parameters_may_have_any_format():
    class Scaled(nn.Conv2d):
        def forward(self, x):
            return F.conv2d(x, self.weight.contiguous() * 2)

    for kind in (torch.contiguous_format, torch.channels_last):
        net = Scaled(8, 8, 3).to(memory_format=kind)
        strides = net.weight.stride()
        assert_memory_format(net, X)
        assert net.weight.stride() == strides


@pytest.mark.parametrize("training", [False, True])
def test_leaves_module_and_input_as_they_were(training):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(8)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls = self.calls + 1
            return self.norm(x)

    net = Counting().train(training)
    calls = net.calls
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x = X.clone()
    out = assert_memory_format(net, x)
    assert net.training is training
    assert net.norm.training is training
    assert net.calls is calls
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    assert torch.equal(x, X)
    assert x.is_contiguous()
    assert not out.requires_grad
    assert torch.is_grad_enabled()


def test_an_error_inside_the_module_comes_out_and_leaves_nothing_behind():
    net = nn.Sequential(nn.BatchNorm2d(8), nn.Conv2d(7, 7, 1))
    with pytest.raises(RuntimeError, match="channels"):
        assert_memory_format(net, X)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    assert net[0].num_batches_tracked == 0


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"memory_format: expected .* got torch.contiguous_format"):
        assert_memory_format(nn.ReLU(), X, torch.contiguous_format)
    message = r"x: expected a floating tensor with 4 dimensions, got \(8, 6, 6\), float"
    with pytest.raises(ValueError, match=message):
        assert_memory_format(nn.ReLU(), (X[0], 1.0))
    with pytest.raises(ValueError, match=r"x: expected .*, got \(2, 8, 6, 6\)"):
        assert_memory_format(nn.ReLU(), X.int())
