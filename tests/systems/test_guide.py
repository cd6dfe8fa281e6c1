"""A guide beside a camera: stacked, and as a picture that solvers follow."""

import pytest
import torch
from shared import rand
from torch.testing import assert_close

from cassi.methods import auto
from cassi.systems import Guide, Guided, SDCassi, Stacked


def _scene(size=64, bands=8):
    """Patches of a few spectra with fine texture."""
    generator = torch.Generator().manual_seed(0)
    shades = torch.rand(1, 3, 8, 8, generator=generator)
    maps = torch.nn.functional.interpolate(shades, size=(size, size), mode="nearest")
    texture = 0.5 + 0.5 * torch.rand(1, 1, size, size, generator=generator)
    wave = torch.linspace(0, 1, bands)
    spectra = torch.stack([torch.exp(-(((wave - c) / 0.25) ** 2)) for c in (0.1, 0.5, 0.9)])
    return torch.einsum("bkhw,kc->bchw", maps * texture, spectra) / 2


def _camera(size=64, bands=8):
    mask = (torch.rand(size, size, generator=torch.Generator().manual_seed(1)) > 0.5).float()
    return SDCassi(mask, bands, step=1)


def test_a_guide_is_a_camera_of_step_zero():
    r, x = rand(2, 5), rand(1, 5, 4, 6)
    same = SDCassi(r[:, :, None, None].expand(-1, -1, 4, 6), 5, step=0)
    assert_close(Guide(r, (4, 6))(x), same(x))


def test_pack_and_split():
    stacked = Stacked([SDCassi(rand(4, 6), 3, step=1), Guide(rand(2, 3))])
    y = [rand(2, 1, 4, 8), rand(2, 2, 4, 6, seed=1)]
    packed = stacked.pack(y)
    assert packed.shape == (2, 3, 4, 8)
    for a, b in zip(stacked.split(packed), y, strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="expected 2 measurements, got 1"):
        stacked.pack(y[:1])


def test_weights_of_the_data_step():
    systems = [SDCassi(rand(3, 4) + 0.3, 4, step=1), Guide(rand(1, 4), (3, 4))]
    stacked, v, rho = Stacked(systems, weights=[1.0, 5.0]), rand(1, 4, 3, 4, seed=2), 0.3
    y = stacked(rand(1, 4, 3, 4, seed=3))
    size = v[0].numel()
    basis = torch.eye(size, dtype=v.dtype).view(size, *v.shape[1:])
    left, right = rho * torch.eye(size, dtype=v.dtype), rho * v.flatten()
    for system, weight, each in zip(systems, stacked.weights, stacked.split(y), strict=True):
        a = system(basis).flatten(1).T
        left, right = left + weight * a.T @ a, right + weight * a.T @ each.flatten()
    assert_close(stacked.data_step(v, y, rho).flatten(), torch.linalg.solve(left, right))


def test_parts_of_a_stack():
    stacked = Stacked([SDCassi(rand(6, 5), 3, step=1), Guide(rand(2, 3))])
    x = rand(1, 3, 6, 5)
    assert_close(stacked.part(2, 5)(x[..., 2:5, :]), stacked(x)[..., 2:5, :])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stacked([]), "a system with a height"),
        (lambda: Stacked([Guide([1.0])]), "a system with a height"),
        (lambda: Stacked([SDCassi(rand(3, 4), 3), Guide(rand(1, 4))]), "systems of one cube"),
        (lambda: Stacked([SDCassi(rand(3, 4), 3)], weights=[0]), "1 finite numbers > 0"),
        (lambda: Guide(rand(2, 3)).measurement_shape, r"size=\(H, W\)"),
        (lambda: Guide([[0.0, 0.0]]), "a row of zeros"),
        (lambda: Guided(_camera(), rand(1, 64, 63), torch.ones(8)), r"\(1, 64, 64\)"),
        (lambda: Guided(_camera(), rand(1, 64, 64), torch.ones(7)), "for 8 bands"),
        (lambda: Guided(_camera(), torch.zeros(64, 64), torch.ones(8)), "a dark one"),
    ],
)
def test_what_does_not_fit(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_guide_improves_the_default_method(noise):
    x, camera = _scene(), _camera()
    y = camera(x)
    y = y + noise * y.std() * torch.randn(y.shape, generator=torch.Generator().manual_seed(2))
    response = torch.ones(1, 8)
    picture = Guide(response, (64, 64))(x)

    def error(system):
        return float((auto().run(y, system).x - x).norm() / x.norm())

    guided = Guided(camera, 0.1 * picture, response)  # its exposure is of no influence
    assert error(guided) < 0.8 * error(camera)


def test_a_picture_of_a_part_and_bad_pixels():
    x, camera = _scene(), _camera()
    picture = Guide(torch.ones(8), (64, 64))(x)
    picture[..., :3] = torch.nan
    guided = Guided(camera, picture, torch.ones(8))
    bad = torch.zeros(camera.measurement_shape, dtype=torch.bool)
    bad[..., 5] = True
    part = guided.weighted(bad_pixels=bad).part(8, 40)
    assert torch.equal(part.picture, guided.picture[..., 8:40, :])
    assert part.good_pixels.sum() == 32 * (bad.shape[-1] - 1)
    assert auto(iterations=3).run(guided(x), guided).x.isfinite().all()
