"""Log evidence of a camera: against a dense Gaussian, and what it says of wrong cameras."""

import math

import pytest
import torch

from cassi.camera import evidence as module
from cassi.camera import windows
from cassi.camera.evidence import Evidence, Optics, spectra_moment
from cassi.systems import SDCassi

BANDS, STEP = 10, 2
NM = [460.0 + 18 * band for band in range(BANDS)]


@pytest.fixture(scope="module")
def mask():
    generator = torch.Generator().manual_seed(1)
    return (torch.rand(96, 80, generator=generator) > 0.5).float()


def scene(axis=-1):
    """Return smooth surfaces of a few spectra with texture, `(1, C, 96, 80)`."""
    generator = torch.Generator().manual_seed(2)
    maps = torch.nn.functional.interpolate(
        torch.rand(1, 3, 6, 5, generator=generator), size=(96, 80), mode="bicubic"
    ).clamp_min(0.05)
    at = torch.tensor(NM)
    spectra = torch.stack(
        [torch.exp(-(((at - nm) / 60) ** 2)) + 0.3 for nm in (480.0, 550.0, 620.0)]
    )
    cube = torch.einsum("bkhw,kc->bchw", maps, spectra)
    cube = cube * (1 + 0.05 * torch.randn(1, 1, 96, 80, generator=generator))
    return cube.mT.contiguous() if axis == -2 else cube


def frame(camera, axis=-1):
    y = camera(scene(axis))
    generator = torch.Generator().manual_seed(3)
    return y + 0.003 * y.mean() * torch.randn(y.shape, generator=generator)


def optics(camera):
    offsets = torch.tensor(camera.offsets, dtype=torch.float64)
    return Optics(camera.orient(camera.mask), offsets)


def test_it_is_that_of_a_dense_gaussian(mask, monkeypatch):
    for limit in ("SPECTRAL_COMPONENTS", "_MAX_PRODUCTS"):
        monkeypatch.setattr(module, limit, 10_000)  # all of them
    camera = SDCassi(mask, BANDS, STEP)
    evidence = Evidence(frame(camera), camera, wavelengths=NM, count=3, dtype=torch.float64)
    found = evidence(optics(camera), em_steps=0).windows
    codes = evidence.codes(optics(camera))
    down, along = evidence.row_offsets, evidence.column_offsets
    apart = torch.hypot(down[:, None] - down, along[:, None] - along)
    space = (1 - windows.ROUGHNESS) + windows.ROUGHNESS * torch.exp(
        -apart / windows.CORRELATION_PIXELS
    )
    moment = spectra_moment(NM)
    for y, code, nats in zip(evidence.y, codes, found, strict=True):
        plain = code.mT @ moment @ code
        level, many = plain.diagonal().mean(), len(y)
        noise = (
            windows.TEXTURE_VARIANCE + windows.NOISE_LEVEL**2 * evidence.power / y.square().mean()
        )
        s = plain * space + level * (windows.STRAY_LEVEL**2 + noise * torch.eye(many))
        square = y @ torch.linalg.solve(s, y)
        expected = -many / 2 * math.log(square / many) - torch.logdet(s) / 2
        assert float(nats) == pytest.approx(float(expected), rel=1e-6)


def test_single_precision_suffices(mask):
    camera = SDCassi(mask, BANDS, STEP)
    singles, doubles = (
        Evidence(frame(camera), camera, wavelengths=NM, dtype=dtype)(optics(camera)).windows
        for dtype in (torch.float32, torch.float64)
    )
    torch.testing.assert_close(singles, doubles, rtol=0, atol=0.02)


@pytest.mark.parametrize("axis", [-1, -2])
def test_wrong_places_are_less_probable(mask, axis):
    camera = SDCassi(mask.T if axis == -2 else mask, BANDS, STEP, axis)
    evidence = Evidence(frame(camera, axis), camera, wavelengths=NM)
    right = optics(camera)
    verdict = evidence(right)
    wrong = {
        "mirrored": Optics(right.masks.flip(-1), right.offsets),
        "upside down": Optics(right.masks.flip(-2), right.offsets),
        "down": right.moved(1.0, 0.0),
        "right": right.moved(0.0, 1.0),
        "step": Optics(right.masks, right.offsets * 0.9),
    }
    for name, other in wrong.items():
        nats, errors = verdict.margin_over(evidence(other))
        assert nats > 10, name
        assert errors > 2, name


def test_bad_pixels_have_no_influence(mask):
    camera = SDCassi(mask, BANDS, STEP)
    y = frame(camera)
    good = torch.rand(y.shape, generator=torch.Generator().manual_seed(4)) > 0.02
    values = [
        Evidence(torch.where(good, y, value), camera, good, NM)(optics(camera)).total
        for value in (0.0, 1e6)
    ]
    assert values[0] == values[1]


def test_shots_are_asked_by_their_own_masks(mask):
    both = torch.stack((mask, 1 - mask))[:, None]
    camera = SDCassi(both, BANDS, STEP)
    evidence = Evidence(frame(camera), camera, wavelengths=NM)
    right = optics(camera)
    swapped = Optics(right.masks.flip(0), right.offsets)
    assert set(evidence.shot.tolist()) == {0, 1}
    assert evidence(right).margin_over(evidence(swapped))[1] > 3


def test_a_dark_frame_is_refused(mask):
    camera = SDCassi(mask, BANDS, STEP)
    with pytest.raises(ValueError, match="no window"):
        Evidence(torch.zeros(1, 1, *camera.measurement_shape[1:]), camera)
