"""cassi_net: its start is the solver's, and it sees neither bands nor directions."""

import pytest
import torch
from shared import disc

import cassi
from cassi.methods import auto
from cassi.metrics import psnr
from cassi.models import CassiNet


def _net(**settings):
    torch.manual_seed(0)
    known = {"stages": 2, "widths": (4, 6, 8), "start": 0}
    return CassiNet(**known | settings).eval()  # type: ignore[arg-type]


def test_knows_neither_axis_nor_direction():
    net, x, mask = _net(), torch.rand(2, 4, 32, 32), torch.rand(32, 32)
    plain = cassi.SDCassi(mask, bands=4, step=2)
    rows = cassi.SDCassi(mask.mT, bands=4, step=2, axis=-2)
    back = cassi.SDCassi(mask.flip(-1), bands=4, step=-2)
    back_rows = cassi.SDCassi(mask.flip(-1, -2).mT, bands=4, step=-2, axis=-2)
    with torch.no_grad():
        wanted = net(plain(x), plain)
        torch.testing.assert_close(net(rows(x.mT.contiguous()), rows).mT, wanted)
        torch.testing.assert_close(net(back(x.flip(-1)), back).flip(-1), wanted)
        turned = net(back_rows(x.flip(-1, -2).mT.contiguous()), back_rows).mT.flip(-1, -2)
        torch.testing.assert_close(turned, wanted)


def test_starts_as_the_default_method():
    net, system = _net(start=30, stages=1), cassi.SDCassi(torch.rand(48, 48), bands=6, step=1)
    with torch.no_grad():
        for parameter in net.nets.parameters():
            parameter.zero_()
    x = disc(6, 48)
    y = system(x)
    solved = auto(iterations=30, heldout=0.0)(y, system)
    # The one stage then is a data step, projected onto the subspace.
    with torch.no_grad():
        estimate = net(y, system)
    assert psnr(solved, x) > 30
    assert psnr(estimate, solved) > psnr(solved, x)


def test_outputs_are_those_of_the_stages_the_last_first():
    net, system = _net(), cassi.SDCassi(torch.rand(24, 24), bands=4, step=1)
    y = system(torch.rand(1, 4, 24, 24))
    with torch.no_grad():
        outputs = net.outputs(y, system)
        assert len(outputs) == 2
        assert torch.equal(outputs[0], net(y, system))
        torch.testing.assert_close(_net(stages=1)(y, system), _net(stages=1).outputs(y, system)[0])


def test_goes_on_from_a_given_start():
    net, system = _net(start=5), cassi.SDCassi(torch.rand(32, 32), bands=6, step=1)
    y = 7 * system(disc(6, 32))
    with torch.no_grad():
        start = net.begin(y, system)
        torch.testing.assert_close(net.outputs(y, system, start)[0], net(y, system))
        assert not torch.allclose(net.outputs(y, system, 0.5 * start)[0], net(y, system))


def test_starts_vary_in_length_while_training():
    net, system = _net(start=6, training_start=2), cassi.SDCassi(torch.rand(32, 32), 6, 1)
    y = system(disc(6, 32))

    def starts(net):
        return len({float(net.begin(y, system).sum()) for _ in range(12)})

    assert starts(net) == 1
    assert 1 < starts(net.train()) <= 5


def test_denoising_subtracts_what_the_first_stage_finds():
    net, x = _net(rank=3), disc(6, 48).expand(2, -1, -1, -1)
    noisy = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        cleaned = net.denoise(noisy, torch.tensor([0.1, 0.2]))
        again = net.denoise(50 * noisy[:1], 5.0)
        torch.testing.assert_close(again, 50 * cleaned[:1], rtol=1e-3, atol=1e-3)
        for parameter in net.nets.parameters():
            parameter.zero_()
        projected = net.denoise(noisy, 0.1)
    assert not torch.allclose(cleaned, projected, atol=1e-4)
    # Three of six directions hold two materials and half of the noise.
    assert float((projected - x).std()) == pytest.approx(0.1 * 0.5**0.5, rel=0.1)


@pytest.mark.parametrize(
    "settings", [{"stages": 0}, {"rank": 0}, {"start": -1}, {"widths": (8, 8)}, {"bands": 1.5}]
)
def test_refuses_what_is_no_count(settings):
    with pytest.raises(ValueError, match="expected"):
        _net(**settings)
