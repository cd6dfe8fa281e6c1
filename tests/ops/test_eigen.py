"""orthogonal_iteration: the eigenvectors it finds, and what it does where there are none."""

import pytest
import torch

from cassi import ops

VALUES = torch.tensor([1.0, 0.1, 0.1, 0.01, *[1e-3] * 5], dtype=torch.float64)  # two are equal


def _matrices():
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.rand(2, 9, 9, generator=generator).double())[0]
    return turn, (turn * VALUES) @ turn.mT


def test_a_frame_follows_the_moments():
    turn, moments = _matrices()
    frame = torch.linalg.qr(turn[..., :4] + 0.02)[0]
    for _ in range(3):
        found, frame = ops.orthogonal_iteration(moments, frame)
    torch.testing.assert_close(found, VALUES[:4].expand(2, 4))
    expected = turn[..., :4] @ turn[..., :4].mT
    torch.testing.assert_close(frame @ frame.mT, expected, rtol=0, atol=1e-5)


def test_from_all_directions_it_finds_all_eigenvalues():
    _, moments = _matrices()
    found, _ = ops.orthogonal_iteration(moments, torch.eye(9).expand(2, 9, 9), 60)
    torch.testing.assert_close(found.sort(descending=True).values, VALUES.expand(2, 9))


@pytest.mark.parametrize("moments", [torch.zeros(1, 9, 9), torch.ones(1, 9, 9)])
def test_a_frame_stays_orthonormal_without_energy(moments):
    frame = torch.linalg.qr(torch.rand(1, 9, 4, generator=torch.Generator().manual_seed(1)))[0]
    for _ in range(4):
        _, frame = ops.orthogonal_iteration(moments, frame)
    torch.testing.assert_close(frame.mT @ frame, torch.eye(4).double()[None])


def test_a_column_that_depends_on_others_becomes_0():
    _, moments = _matrices()
    column = torch.rand(2, 9, 1).double()
    frame = torch.cat((column, 2 * column, torch.rand(2, 9, 1).double()), 2)
    _, found = ops.orthogonal_iteration(moments, frame)
    torch.testing.assert_close(
        found.norm(dim=1), torch.tensor([1.0, 0.0, 1.0]).double().expand(2, 3)
    )


def test_what_is_not_a_number_stays_in_its_sample():
    _, moments = _matrices()
    moments[0, 3, 3] = torch.nan
    values, frame = ops.orthogonal_iteration(moments, torch.eye(9, 2).expand(2, 9, 2))
    assert values[0].isnan().all()
    assert frame[0].isnan().all()
    assert values[1].isfinite().all()
    assert frame[1].isfinite().all()
