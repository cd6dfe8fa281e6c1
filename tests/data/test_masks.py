"""Sources of masks: shapes, ranges, and that every part of a mask is drawn."""

import pytest
import torch
from shared import seeded

from cassi.data.simulation import FixedMask, MaskCrops, MixedMasks, RandomMasks


def _mask(*shape):
    return torch.rand(shape, generator=seeded()) * 0.9 + 0.05


SOURCES = {
    "fixed": lambda: FixedMask(_mask(6, 8)),
    "crops": lambda: MaskCrops(_mask(9, 9)),
    "small": lambda: MaskCrops(_mask(3, 2)),
    "random": RandomMasks,
    "mixed": lambda: MixedMasks([FixedMask(_mask(6, 8)), RandomMasks()], [1, 3]),
}


@pytest.mark.parametrize("name", SOURCES)
def test_shape_range_and_repetition(name):
    source = SOURCES[name]()
    masks = source.draw(4, 6, 8, seeded())
    assert masks.shape in ((4, 1, 1, 6, 8), (1, 1, 1, 6, 8))
    assert masks.min() >= 0
    assert masks.max() <= 1
    assert torch.equal(masks, source.draw(4, 6, 8, seeded()))
    if len(masks) > 1:
        assert not torch.equal(masks, source.draw(4, 6, 8, seeded(1)))


@pytest.mark.parametrize("shape", [(6, 8), (4, 6, 8), (2, 1, 6, 8), (2, 4, 6, 8)])
def test_fixed(shape):
    mask = _mask(*shape)
    masks = FixedMask(mask).draw(3, 6, 8, seeded())
    assert torch.equal(masks.view(shape), mask)
    assert masks.ndim == 5
    with pytest.raises(ValueError, match=r"the mask's size \(6, 8\), got \(6, 6\)"):
        FixedMask(mask).draw(3, 6, 6, seeded())


def test_crops_are_windows():
    mask = _mask(7, 8)
    windows = {tuple(mask[t : t + 5, s : s + 6].flatten().tolist()) for t in range(3)
               for s in range(3)}  # fmt: skip
    masks = MaskCrops(mask, flip=False).draw(200, 5, 6, seeded())
    assert {tuple(crop.flatten().tolist()) for crop in masks} == windows
    flipped_crops = MaskCrops(mask).draw(400, 5, 6, seeded())
    assert len({tuple(crop.flatten().tolist()) for crop in flipped_crops}) == 36


def test_small_masks_are_mirrored():
    mask = torch.tensor([[0.1, 0.2, 0.3]])
    rows = {
        tuple(MaskCrops(mask, flip=False).draw(1, 2, 5, seeded(seed))[0, 0, 0, 0].tolist())
        for seed in range(60)
    }
    line = torch.tensor([0.1, 0.2, 0.3, 0.3, 0.2, 0.1] * 2)
    assert rows == {tuple(line[start : start + 5].tolist()) for start in range(6)}


def test_random_densities():
    for kind in ("binary", "grey"):
        for density in (0.2, 0.7):
            masks = RandomMasks([kind], (density, density)).draw(2, 128, 128, seeded())
            assert abs(masks.mean().item() - density) < 0.02
            assert (((masks == 0) | (masks == 1)).all().item()) == (kind == "binary")


def test_mixed_draws_from_all():
    ones, half = FixedMask(torch.ones(4, 4)), FixedMask(torch.full((4, 4), 0.5))
    masks = MixedMasks([ones, half], [3, 1]).draw(400, 4, 4, seeded())
    assert 0.65 < (masks[:, 0, 0, 0, 0] == 1).float().mean() < 0.85
    unequal_masks = MixedMasks([ones, FixedMask(torch.ones(2, 1, 4, 4))])
    with pytest.raises(ValueError, match="masks of one number of shots and bands"):
        unequal_masks.draw(20, 4, 4, seeded())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FixedMask(torch.ones(4)), r"mask: expected \(H, W\), .*, got \(4,\)"),
        (lambda: FixedMask(torch.full((4, 4), 2.0)), "transmissions in"),
        (lambda: MaskCrops(torch.eye(4)[:3]), "1 all-dark column"),
        (lambda: RandomMasks(["gray"]), "kinds: expected 'binary' and 'grey'"),
        (lambda: RandomMasks(density=(0, 1)), "density: expected"),
        (lambda: MixedMasks([]), "at least one, got none"),
        (lambda: MixedMasks([RandomMasks()], [0]), "weights: expected 1 numbers"),
        (lambda: MixedMasks([RandomMasks()], [1, 2]), "weights: expected 1 numbers"),
    ],
)
def test_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_random_masks_of_several_shots_and_bands():
    masks = RandomMasks(shots=2, bands=3).draw(4, 8, 9, seeded())
    assert masks.shape == (4, 2, 3, 8, 9)
    assert not torch.equal(masks[:, 0], masks[:, 1])
    with pytest.raises(ValueError, match="shots, bands: expected at least 1"):
        RandomMasks(shots=0)
