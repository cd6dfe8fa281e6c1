"""Masks: refused, drawn, learned, moved, and taken back from the detector."""

import copy

import pytest
import torch
from shared import rand

from cassi.systems import (
    BlueNoiseMask,
    LearnableMask,
    RandomMask,
    SDCassi,
    check_mask,
    unshift_masks,
)
from cassi.systems.masks import move_mask


def _lit(*shape):
    return torch.full(shape, 0.5)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.01, r"transmissions in \[0, 1\], got 0\.5 to 1\.01; divide"),
        (-0.01, r"got -0\.01 to 0\.5"),
        (255.0, "got 0.5 to 255"),
        (float("nan"), "mask: expected finite"),
    ],
)
def test_values_out_of_range(value, message):
    mask = _lit(1, 1, 4, 5)
    mask[0, 0, 1, 2] = value
    with pytest.raises(ValueError, match=message):
        check_mask(mask)


def test_dark_columns_and_rows():
    mask = _lit(2, 1, 9, 8)
    mask[0, :, :, 3] = 0
    check_mask(mask)  # the other shot lights it
    mask[1, :, :, 3] = 0
    with pytest.raises(ValueError, match=r"mask: 1 all-dark column \(3\); crop"):
        check_mask(mask)
    mask = _lit(1, 2, 9, 8)
    mask[:, :, 2:] = 0
    with pytest.raises(ValueError, match=r"7 all-dark rows \(2, 3, 4, 5, 6, …\)"):
        check_mask(mask)
    mask[:, :, 7:] = 0.5
    with pytest.raises(ValueError, match=r"mask: 5 all-dark rows \(2, 3, 4, 5, 6\); crop"):
        check_mask(mask)
    mask = _lit(1, 2, 9, 8)
    mask[:, 0, 4] = 0  # one band's mask alone
    check_mask(mask)


@pytest.mark.parametrize("pattern", [RandomMask, BlueNoiseMask])
def test_patterns(pattern):
    mask = pattern(0.4, shots=3, seed=5).draw(33, 40)
    assert mask.shape == (3, 1, 33, 40)
    assert mask.dtype == torch.float32
    check_mask(mask)
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    assert mask.mean().item() == pytest.approx(0.4, abs=0.03)
    assert torch.equal(mask, pattern(0.4, shots=3, seed=5).draw(33, 40))
    assert not torch.equal(mask, pattern(0.4, shots=3, seed=6).draw(33, 40))
    assert not torch.equal(mask[0], mask[1])
    assert pattern(per_band=True).draw(8, 9, bands=4).shape == (1, 4, 8, 9)
    assert torch.equal(pattern(seed=5).draw(8, 9)[0], pattern(shots=2, seed=5).draw(8, 9)[0])


def test_grey():
    mask = RandomMask(0.3, kind="grey").draw(200, 200)
    assert mask.mean().item() == pytest.approx(0.3, abs=0.01)
    assert ((mask > 0.05) & (mask < 0.95)).float().mean() > 0.5


@pytest.mark.parametrize("density", [0.2, 0.5, 0.7])
def test_blue_noise_has_no_low_frequencies(density):
    size = 64
    mask = BlueNoiseMask(density, seed=1).draw(size, size)[0, 0].double()
    assert mask.mean().item() == pytest.approx(density, abs=1 / size**2)
    # Power per frequency, 1 for independent pixels.
    power = torch.fft.fft2(mask - mask.mean()).abs() ** 2 / (size**2 * density * (1 - density))
    frequency = torch.fft.fftfreq(size, dtype=torch.float64)
    radius = (frequency[:, None] ** 2 + frequency**2).sqrt()
    assert power[(radius > 0) & (radius < 0.15)].mean() < 0.08
    assert power[radius > 0.4].mean() > 1


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 3), (5, 17)])
def test_blue_noise_of_odd_sizes(height, width):
    mask = BlueNoiseMask(0.4).draw(height, width)
    assert mask.sum().item() == max(1, round(0.4 * height * width))


@pytest.mark.parametrize(
    "values", [{"density": 0}, {"density": 1.0}, {"shots": 0}, {"shots": True}, {"seed": -1}]
)
@pytest.mark.parametrize("pattern", [RandomMask, BlueNoiseMask])
def test_patterns_refuse(pattern, values):
    with pytest.raises(ValueError, match=next(iter(values))):
        pattern(**values)


def test_unknown_kind():
    with pytest.raises(ValueError, match="kind: expected 'binary' or 'grey', got 'blue'"):
        RandomMask(kind="blue")


@pytest.mark.parametrize("constraint", ["sigmoid", "clamp"])
def test_a_learned_mask_recovers_better(constraint):
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand((4, 3, 3, 4), generator=generator, dtype=torch.float64)
    truth = torch.nn.functional.interpolate(coarse, (9, 12), mode="bilinear")
    start = RandomMask(0.5, shots=2, kind="grey").draw(9, 12).double()
    learned = LearnableMask(start, constraint)
    system = learned.place_in(SDCassi(start, bands=3, step=1))
    names = dict(system.named_parameters())
    assert [value is learned.values for value in names.values()] == [True]
    optimizer = torch.optim.Adam(system.parameters(), lr=0.05)

    def error():
        return (system.pinv(system(truth)) - truth).square().mean()

    with torch.no_grad():
        before = error().item()
    for _ in range(60):
        optimizer.zero_grad()
        error().backward()
        optimizer.step()
    mask = learned()
    check_mask(mask)
    with torch.no_grad():  # the camera's gram is that of the mask as it is now
        after = error().item()
        fresh = SDCassi(mask, bands=3, step=1)
        torch.testing.assert_close(system.pinv(system(truth)), fresh.pinv(fresh(truth)))
    assert after < 0.8 * before
    assert not torch.allclose(mask, start, atol=0.05)


def test_a_clamped_mask_comes_back():
    learned = LearnableMask(torch.tensor([[0.2, 0.9]], dtype=torch.float64), "clamp")
    with torch.no_grad():
        learned.values.copy_(torch.tensor([[-0.1, 1.2]]))
    assert learned().tolist() == [[0.0, 1.0]]
    (learned() * torch.tensor([[1.0, -1.0]])).sum().backward()  # descent would lead further out
    assert learned.values.grad.tolist() == [[0.0, 0.0]]
    learned.values.grad = None
    (learned() * torch.tensor([[-1.0, 1.0]])).sum().backward()
    assert learned.values.grad.tolist() == [[-1.0, 1.0]]


def test_a_learned_mask_moves_and_is_saved():
    learned = LearnableMask(torch.eye(4))
    system = learned.place_in(SDCassi(torch.eye(4), bands=2))
    other = LearnableMask(torch.full((4, 4), 0.5)).place_in(SDCassi(torch.ones(4, 4), bands=2))
    other.load_state_dict(system.state_dict())
    x = torch.rand(1, 2, 4, 4)
    assert torch.equal(other(x), system(x))
    twin = copy.deepcopy(system)
    assert torch.equal(twin(x), system(x))
    assert system.double()(x.double()).dtype == torch.float64


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((torch.full((2, 2), 1.5),), ValueError),
        ((torch.tensor([[float("nan")]]),), ValueError),
        ((torch.ones(2, 2), "tanh"), ValueError),
        (([[0.5]],), TypeError),
    ],
)
def test_learnable_mask_refuses(arguments, error):
    with pytest.raises(error, match=r"mask|constraint"):
        LearnableMask(*arguments)
    with pytest.raises(ValueError, match="expected the camera's shape"):
        LearnableMask(torch.ones(2, 3)).place_in(SDCassi(torch.ones(2, 2), bands=2))


def _on_detector(mask, offsets):  # (K, C, H, W')
    width = mask.shape[-1]
    masks = mask.new_zeros(mask.shape[0], len(offsets), mask.shape[-2], width + max(offsets))
    for c, offset in enumerate(offsets):
        masks[:, c, :, offset : offset + width] = mask[:, min(c, mask.shape[1] - 1)]
    return masks


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("offsets", [[0, 2, 4], [2, 1, 0]])
@pytest.mark.parametrize("bands", [1, 3])
def test_shifted_copies_are_moved_back(bands, offsets, axis):
    mask = torch.rand(2, bands, 4, 5)
    masks = _on_detector(mask, offsets)
    turn = (lambda value: value) if axis == -1 else (lambda value: value.mT)
    got, moved, detector = unshift_masks(turn(masks), offsets, axis)
    assert torch.equal(got, turn(mask))
    assert (list(moved), detector) == (offsets, masks.shape[-1])


def test_side_columns_belong_to_a_wider_scene():
    masks = torch.rand(3, 4, 9)  # C, H, W': light everywhere
    mask, offsets, detector = unshift_masks(masks, [0, 1, 2])
    assert mask.shape == (1, 3, 4, 11)
    assert (offsets, detector) == ((-2, -1, 0), 9)
    x = torch.rand(3, 4, 11)
    y = sum(masks[c] * x[c, :, 2 - c : 11 - c] for c in range(3))
    # The definition: y[w'] = Σ_c m[c, w' − o(c)] x[c, w' − o(c)].
    expected = torch.zeros(4, 9)
    for c in range(3):
        for place in range(11):
            if 0 <= place + offsets[c] < 9:
                expected[:, place + offsets[c]] += mask[0, c, :, place] * x[c, :, place]
    torch.testing.assert_close(expected, y)


@pytest.mark.parametrize(
    ("masks", "offsets", "message"),
    [
        (torch.ones(4, 9), [0], "masks: expected"),
        (torch.ones(3, 4, 9), [0, 1], "offsets: expected 3"),
        (torch.ones(3, 4, 9), [0, 1.5, 2], "whole numbers"),
        (torch.ones(3, 4, 9), [1, 2, 3], "least 0"),
        (torch.ones(3, 4, 9), [0, 5, 10], "more than 10 pixels"),
    ],
)
def test_unshift_refuses(masks, offsets, message):
    with pytest.raises(ValueError, match=message):
        unshift_masks(masks, offsets)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_move_changes_nothing(dtype):
    mask = rand(2, 3, 6, 9).to(dtype)
    moved = move_mask(mask, (0, 0), 0)
    assert moved.dtype == dtype
    torch.testing.assert_close(moved, mask, rtol=0, atol=1e-7 if dtype == torch.float32 else 1e-14)


def test_whole_pixels_down_and_right_continue_the_border():
    mask = rand(2, 3, 6, 9)
    moved = move_mask(mask, (2, -3), 0)
    rows, columns = (torch.arange(6) - 2).clamp(min=0), (torch.arange(9) + 3).clamp(max=8)
    torch.testing.assert_close(moved, mask[..., rows, :][..., columns])


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_fractions_of_a_pixel_are_interpolated(share):
    mask = rand(1, 1, 7, 8)
    moved = move_mask(mask, (0, share), 0)
    expected = (1 - share) * mask[..., 1:] + share * mask[..., :-1]
    torch.testing.assert_close(moved[..., 1:], expected)
    moved = move_mask(mask, (share, 0), 0)
    expected = (1 - share) * mask[..., 1:, :] + share * mask[..., :-1, :]
    torch.testing.assert_close(moved[..., 1:, :], expected)


@pytest.mark.parametrize("turns", [-1, 1, 2])
@pytest.mark.parametrize("side", [6, 7])
def test_quarter_turns_are_counterclockwise(turns, side):
    mask = rand(2, 2, side, side)
    moved = move_mask(mask, (0, 0), 90.0 * turns)
    torch.testing.assert_close(moved, mask.rot90(turns, (-2, -1)))


def test_it_is_turned_first_and_shifted_then():
    mask = rand(1, 1, 7, 7)
    both = move_mask(mask, (1, 2), 90)
    torch.testing.assert_close(both, move_mask(move_mask(mask, (0, 0), 90), (1, 2), 0))


def test_features_are_squares_of_pixels():
    mask = RandomMask(0.5, feature=3, shots=2).draw(10, 11)
    assert mask.shape == (2, 1, 10, 11)
    assert torch.equal(
        mask[..., :9, :9], mask[..., :9:3, :9:3].repeat_interleave(3, -1).repeat_interleave(3, -2)
    )
    assert torch.equal(RandomMask(feature=1).draw(8, 9), RandomMask().draw(8, 9))
    with pytest.raises(ValueError, match="feature"):
        RandomMask(feature=0)
