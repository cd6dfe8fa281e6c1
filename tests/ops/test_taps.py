"""Bands that move by fractions of pixels and are spread: against dense matrices, and by hand."""

import pytest
import torch
from shared import rand

from cassi import ops
from cassi.ops._library import operators

B, C, H, W = 2, 4, 3, 7


def _matrix(mask, taps, starts, detector, after):
    """Fill A from y[k, h, s(c) + w + t] += a[c, t] m[k, c, h, w (+ t if after)] x[c, h, w]."""
    shots, bands, height, width = *mask.shape[:3], mask.shape[3] - after * (taps.shape[1] - 1)
    a = torch.zeros(shots, height, detector, bands, height, width, dtype=torch.float64)
    for k, c, h, w in torch.cartesian_prod(*map(torch.arange, (*mask.shape[:3], width))).tolist():
        for t in range(taps.shape[-1]):
            at = int(starts[c]) + w + t
            if 0 <= at < detector:
                a[k, h, at, c, h, w] += taps[c, t] * mask[k, c, h, w + after * t]
    return a.reshape(shots * height * detector, -1)


CASES = {
    "rising": ([0.0, 1.3, 2.9, 4.5], 12),
    "falling": ([4.5, 3.1, 1.25, 0.0], 12),
    "same": ([0.5, 0.5, 0.5, 0.5], 8),
    "over_both_ends": ([-2.6, 0.0, 3.7, 6.2], 9),
    "beside": ([-30.0, 0.4, 2.0, 50.5], 9),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shots", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("after", [False, True])
def test_dense(name, shots, count, after, damping_per_pixel):
    offsets, detector = CASES[name]
    taps, starts = ops.linear_taps(torch.tensor(offsets, dtype=torch.float64))
    if count != 2:
        taps = rand(C, count) - 0.3
    mask = rand(shots, C, H, W + after * (count - 1))
    a = _matrix(mask, taps, starts, detector, after)
    x, y = rand(B, C, H, W), rand(B, shots, H, detector, seed=1)
    got = ops.forward_taps(x, mask, taps, starts, detector, after=after)
    torch.testing.assert_close(got, (x.flatten(1) @ a.T).view_as(got))
    got = ops.adjoint_taps(y, mask, taps, starts, after=after)
    torch.testing.assert_close(got, (y.flatten(1) @ a).view_as(got))
    got = ops.add_adjoint_taps(x, y, mask, taps, starts, after=after)
    torch.testing.assert_close(got, x + (y.flatten(1) @ a).view_as(x))
    gram = ops.gram_taps(mask, taps, starts, detector, after=after)
    assert gram.shape == (1, count * shots, shots, H, detector)
    rho = torch.tensor([0.2, 3.0], dtype=torch.float64)
    z = ops.band_solve(y, gram, rho)
    eye = torch.eye(len(a), dtype=torch.float64)
    for b in range(B):
        dense = torch.linalg.solve(a @ a.T + rho[b] * eye, y[b].flatten())
        torch.testing.assert_close(z[b], dense.view_as(z[b]))
    for samples in (1, 2):
        rho = damping_per_pixel((samples, shots, H, detector))
        z = ops.band_solve(y, gram, rho)
        for other in (1e30, -3.0, torch.nan):
            assert torch.equal(ops.band_solve(torch.where(rho.isinf(), other, y), gram, rho), z)
        for b in range(B):
            d = rho[min(b, samples - 1)].flatten()
            kept = d.isfinite()
            rows = a[kept]
            dense = torch.zeros_like(d)
            dense[kept] = torch.linalg.solve(rows @ rows.T + d[kept].diag(), y[b].flatten()[kept])
            torch.testing.assert_close(z[b], dense.view_as(z[b]))
    if shots > 1:
        return
    # Without damping: the minimum-norm solution for what a cube has caused.
    measured = (x.flatten(1) @ a.T).view_as(y)
    back = ops.adjoint_taps(ops.band_solve(measured, gram), mask, taps, starts, after=after)
    least = measured.flatten(1) @ torch.linalg.pinv(a, rtol=1e-10).T
    torch.testing.assert_close(back.flatten(1), least, rtol=0, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shots", [1, 2, 3])
@pytest.mark.parametrize("pitch", [0.55, 2.03])
def test_dependent_pixels_do_no_harm(dtype, shots, pitch):
    """Several shots see the same few pixels of a cube at the ends of the detector."""
    taps, starts = ops.linear_taps(pitch * torch.arange(9).double())
    mask, x = rand(shots, 1, 5, 40), rand(1, 9, 5, 40)
    detector = 40 + int(pitch * 8) + 1
    gram = ops.gram_taps(mask, taps, starts, detector)
    taps, mask, x = taps.to(dtype), mask.to(dtype), x.to(dtype)
    y = ops.forward_taps(x, mask, taps, starts, detector)
    back = ops.adjoint_taps(ops.band_solve(y, gram), mask, taps, starts)
    error = ops.forward_taps(back, mask, taps, starts, detector) - y
    assert error.norm() <= (5e-4 if dtype == torch.float32 else 1e-10) * y.norm()
    assert back.norm() <= x.norm() * 1.001


@pytest.mark.parametrize("step", [0, 1, 2, -3])
@pytest.mark.parametrize("shots", [1, 2])
@pytest.mark.parametrize("bands", [1, C])
def test_whole_pixels_are_the_camera_with_a_step_to_the_bit(step, shots, bands):
    first = (bands - 1) * max(-step, 0)
    offsets = torch.tensor([float(first + c * step) for c in range(bands)])
    taps, starts = ops.linear_taps(offsets)
    for weights in (taps, taps[:, :1]):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            x, m = rand(B, bands, H, 33).to(dtype), rand(shots, bands, H, 33).to(dtype)
            y = ops.forward(x, m, step)
            detector = ops.detector_columns(offsets.tolist(), 33)
            assert detector == y.shape[-1]
            assert torch.equal(ops.forward_taps(x, m, weights, starts, detector), y)
            back = ops.adjoint(y, m, bands, step)
            assert torch.equal(ops.adjoint_taps(y, m, weights, starts), back)
            for per_band in (False, True):
                args = (True, per_band)
                given = x, y, weights[None], starts[None], False
                got = operators.mask_adjoint_taps(*given, *args)
                assert torch.equal(got, operators.mask_adjoint(x, y, step, *args))


def test_half_a_pixel_by_hand():
    taps, starts = ops.linear_taps(torch.tensor([0.0, 1.25]))
    x = torch.tensor([[[1.0, 2.0]], [[4.0, 8.0]]])
    y = ops.forward_taps(x, torch.ones(1, 2), taps, starts, 4)
    assert y.tolist() == [[[1.0, 2.0 + 3.0, 1.0 + 6.0, 2.0]]]


@pytest.mark.parametrize("masks", [1, 2])
def test_grams_of_samples_with_taps_of_their_own(masks):
    mask, offsets = rand(masks, 2, 1, H, W), 2 * torch.arange(C) + rand(2, C)
    taps, starts = ops.linear_taps(offsets)
    together = ops.gram_taps(mask, taps, starts, 19)
    for k in range(2):
        alone = ops.gram_taps(mask[k % masks], taps[k], starts[k], 19)
        torch.testing.assert_close(together[k], alone[0], rtol=1e-12, atol=1e-12)
