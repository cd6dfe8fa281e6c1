"""Denoiser: what the network is given, how noise levels are scaled, weights from files."""

import pytest
import torch
from torch import nn

from cassi.models import DnCNN, DRUNet, FFDNet
from cassi.priors import Denoiser
from cassi.priors.denoiser import DOMAINS


def _identity(x, sigma):
    return x


def _middle(x, sigma):
    return x[:, x.shape[1] // 2 : x.shape[1] // 2 + 1]


def _cube(batch=2, bands=5):
    return torch.rand(batch, bands, 9, 12, generator=torch.Generator().manual_seed(3))


def _network(domain, bands=5):
    torch.manual_seed(0)
    return {
        "band": FFDNet(width=4, depth=3),
        "subspace": FFDNet(width=4, depth=3),
        "components": FFDNet(width=4, depth=3),
        "window": FFDNet(channels=7, outputs=1, width=4, depth=3),
        "cube": DRUNet(channels=bands, widths=(4, 4, 4, 4), blocks=1),
    }[domain]


@pytest.mark.parametrize("domain", DOMAINS)
def test_an_identity_changes_nothing(domain):
    network = _middle if domain == "window" else _identity
    x = _cube()
    for sigma in (0.0, 0.1, 3.0):
        u = Denoiser(network, domain=domain, rank=5)(x, sigma)
        torch.testing.assert_close(u, x)
    assert Denoiser(network, domain=domain, rank=5)(x.double(), 0.1).dtype == torch.float64


@pytest.mark.parametrize("domain", DOMAINS)
def test_samples_do_not_meet(domain):
    prior = Denoiser(_network(domain), domain=domain, rank=3)
    x = _cube()
    torch.testing.assert_close(prior(x[1:], 0.1), prior(x, 0.1)[1:])
    sigma = torch.tensor([0.3, 0.1])
    torch.testing.assert_close(prior(x[1:], 0.1), prior(x, sigma)[1:])


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("pixels", [1, 250, 400])
def test_chunks_make_no_difference(domain, pixels):
    x, network = _cube(), _network(domain)
    u = Denoiser(network, domain=domain)(x, 0.1)
    torch.testing.assert_close(Denoiser(network, domain=domain, pixels=pixels)(x, 0.1), u)


def test_a_window_repeats_the_first_and_last_band():
    given = []

    def network(x, sigma):
        given.append(x)
        return _middle(x, sigma)

    x = _cube(batch=1)
    Denoiser(network, domain="window", window=5)(x, 0.1)
    windows = [[0, 0, 0, 1, 2], [0, 0, 1, 2, 3], [0, 1, 2, 3, 4], [1, 2, 3, 4, 4], [2, 3, 4, 4, 4]]
    torch.testing.assert_close(torch.cat(given), torch.stack([x[0, w] for w in windows]))


def test_a_subspace_keeps_its_components_and_drops_the_rest():
    low = torch.einsum("cr,brhw->bchw", torch.rand(5, 2), torch.rand(2, 2, 9, 12))
    prior = Denoiser(_identity, domain="subspace", rank=2)
    torch.testing.assert_close(prior(low, 0.1), low)
    noise = _cube()
    u = prior(noise, 0.1)
    assert all(torch.linalg.matrix_rank(sample.flatten(1)) == 2 for sample in u)
    residual = (noise - u).flatten(2)
    torch.testing.assert_close(u.flatten(2) @ residual.mT, torch.zeros(2, 5, 5), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("domain", "images_in_all"), [("subspace", 6), ("components", 10)])
def test_components_are_given_between_zero_and_one_with_the_noise_of_that_scale(
    domain, images_in_all
):
    seen = []

    def network(x, sigma):
        seen.append((x, sigma))
        return x

    Denoiser(network, domain=domain, rank=3, sigma_range=(0, 10))(5 * _cube(), 0.1)
    (images, sigma) = seen[0]
    assert images.shape == (images_in_all, 1, 9, 12)
    torch.testing.assert_close(images.amin((1, 2, 3)), torch.zeros(images_in_all))
    torch.testing.assert_close(images.amax((1, 2, 3)), torch.ones(images_in_all))
    assert (sigma < 0.1).all()
    Denoiser(network, domain=domain, rank=3, sigma_range=(0, 10))(50 * _cube(), 1.0)
    torch.testing.assert_close(seen[1][1], sigma)


def test_sigma_is_told_within_the_range_of_the_training():
    told = []

    def network(x, sigma):
        told.append((sigma[0].item(), x.amax().item()))
        return x

    x = torch.ones(1, 1, 4, 4)
    prior = Denoiser(network, strength=2.0, sigma_range=(0.05, 0.2))
    for sigma in (0.0, 0.02, 0.05, 0.1, 0.4):
        torch.testing.assert_close(prior(x, sigma), x)
    expected = [(0.05, 1), (0.05, 1), (0.1, 1), (0.2, 1), (0.2, 0.25)]
    torch.testing.assert_close(torch.tensor(told), torch.tensor(expected))


def test_bfloat16_is_close():
    network = DRUNet(widths=(4, 4, 4, 4), blocks=1, residual=True)
    x = _cube()
    u = Denoiser(network, precision="bf16-mixed")(x, 0.1)
    assert u.dtype == torch.float32
    torch.testing.assert_close(u, Denoiser(network)(x, 0.1), atol=5e-3, rtol=0)


def test_gradients_pass_only_where_it_learns():
    x = torch.rand(2, 9, 16, 16, requires_grad=True)
    for domain in ("band", "subspace"):
        network = DRUNet(channels=1, widths=(4, 4, 4, 4), blocks=1)
        assert not Denoiser(network, domain=domain)(x, 0.1).requires_grad
        learning = Denoiser(network, domain=domain, learns=True)
        (grad,) = torch.autograd.grad(learning(x, 0.1).sum(), x, retain_graph=True)
        assert grad.isfinite().all()
        learning(x, 0.1).square().sum().backward()
        assert all(p.grad is not None for p in learning.network.parameters())
        with torch.no_grad():
            assert not learning(x, 0.1).requires_grad


def test_the_network_stays_as_it_was():
    network = DnCNN(width=4, depth=3, batch_norm=True).double()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    x = _cube().double().requires_grad_()
    u = Denoiser(network)(x, 0.1)
    assert not u.requires_grad
    assert network.training
    assert all(p.requires_grad and p.dtype == torch.float64 for p in network.parameters())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_cube_that_is_not_finite_stays_so():
    x = _cube()
    x[0, 0, 0, 0] = torch.nan
    for domain in DOMAINS:
        assert not Denoiser(_network(domain), domain=domain)(x, 0.1).isfinite().all()


class Blur(nn.Module):
    def forward(self, x, sigma):
        return x - sigma.view(-1, 1, 1, 1) * x.roll(1, -1)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_is_a_network(tmp_path):
    file = tmp_path / "network.pt"
    torch.jit.save(torch.jit.script(Blur()), file)
    x = _cube()
    torch.testing.assert_close(Denoiser(str(file))(x, 0.1), Denoiser(Blur())(x, 0.1))
    with pytest.raises(TypeError, match="a TorchScript file has its own"):
        Denoiser(file, weights="more.pth")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"domain": "bands"},
            ValueError,
            "band, subspace, components, window or cube, got 'bands'",
        ),
        ({"rank": 0}, ValueError, "Denoiser rank: expected a whole number of at least 1, got 0"),
        ({"window": 4}, ValueError, "Denoiser window: expected an odd number, got 4"),
        ({"strength": -1.0}, ValueError, r"Denoiser strength: expected a number >= 0, got -1\.0"),
        ({"pixels": 0.5}, ValueError, "Denoiser pixels: expected a whole number"),
        ({"sigma_range": (0.2, 0.1)}, ValueError, "sigma_range: expected 0 <= least <= largest"),
        ({"sigma_range": (0.0, 0.0)}, ValueError, "sigma_range: expected 0 <= least <= largest"),
        ({"sigma_range": 3}, ValueError, "sigma_range: expected two numbers, got 3"),
        ({"network": 3}, TypeError, "expected a module, function or file, got 3"),
        ({"network": "no/file.pt"}, OSError, "Denoiser network: no file no/file.pt"),
        ({"network": __file__}, ValueError, "expected a TorchScript file.*as weights=FILE"),
        ({"weights": "w.pth"}, TypeError, "Denoiser weights: expected None, a function has none"),
    ],
)
def test_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        Denoiser(**{"network": _identity, **arguments})


def test_refuses_calls_that_do_not_fit():
    x = _cube()
    with pytest.raises(ValueError, match=r"sigma: expected a number >= 0, got -0\.1"):
        Denoiser(_identity)(x, -0.1)
    with pytest.raises(ValueError, match=r"one per sample \(2\), got \(3,\)"):
        Denoiser(_identity)(x, torch.rand(3))
    with pytest.raises(ValueError, match=r"expected it to return \(10, 1, 9, 12\), got \(10, 1, 8"):
        Denoiser(lambda x, sigma: x[..., 1:, :])(x, 0.1)
    with pytest.raises(ValueError, match=r"expected it to return .*, got tuple"):
        Denoiser(lambda x, sigma: (x, sigma))(x, 0.1)
    with pytest.raises(ValueError, match=r"FFDNet: expected images \(N, 1, H, W\)"):
        Denoiser(_network("band"), domain="cube")(x, 0.1)
