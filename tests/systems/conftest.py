"""What tests of several cameras share."""

import pytest
import torch


@pytest.fixture
def assert_slope():
    """Hold the gradient with respect to a leaf against a central difference in one direction."""

    def check(evaluate, leaf, direction, h, rel):
        start = leaf.detach().clone()
        leaf.requires_grad_()
        (gradient,) = torch.autograd.grad(evaluate(), leaf)
        ends = []
        with torch.no_grad():
            for s in (1, -1):
                leaf.copy_(start + s * h * direction)
                ends.append(evaluate().item())
        slope = (ends[0] - ends[1]) / (2 * h)
        assert (gradient * direction).sum().item() == pytest.approx(slope, rel=rel)

    return check
