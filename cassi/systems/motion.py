"""The motion of a guide's picture over a cube: shift, rotation and scale, and their estimation."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import grid_sample, pad

from cassi import ops

# The weight of a pixel in a spline coefficient falls as |√3 − 2|^distance. Beyond 12 pixels it is
# below 1e-7, the rounding of float32.
_KERNEL_REACH_PIXELS = 12


def max_corner_shift(motion: Tensor, height: int, width: int) -> Tensor:
    """Return the largest distance by which a motion moves a corner of the picture, pixels."""
    rows = torch.tensor([0.0, 0.0, height - 1, height - 1], dtype=torch.float64)
    columns = torch.tensor([0.0, width - 1, 0.0, width - 1], dtype=torch.float64)
    moved_points = _map_points(motion, rows, columns, height, width)
    return torch.hypot(moved_points[0] - rows, moved_points[1] - columns).max()


def describe_motion(motion: Tensor) -> dict[str, float | list[float]]:
    """Return shift (down, right) in pixels, rotation in degrees and scale of a motion, by name."""
    down, right, angle, log_scale = motion.tolist()
    return {"shift": [down, right], "rotation": math.degrees(angle), "scale": math.exp(log_scale)}


def _map_points(
    motion: Tensor, rows: Tensor, columns: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor]:
    """Map points of the cube to points of the picture."""
    down, right, angle, log_scale = motion.to(rows)
    i, j = rows - (height - 1) / 2, columns - (width - 1) / 2
    cos, sin = torch.cos(angle) * log_scale.exp(), torch.sin(angle) * log_scale.exp()
    picture_rows = cos * i - sin * j + (height - 1) / 2 + down
    picture_columns = sin * i + cos * j + (width - 1) / 2 + right
    return picture_rows, picture_columns


def invert_motion(motion: Tensor) -> Tensor:
    """Return the motion from the picture to the cube."""
    down, right, angle, log_scale = motion
    cos, sin = torch.cos(angle) * (-log_scale).exp(), torch.sin(angle) * (-log_scale).exp()
    return torch.stack((-cos * down - sin * right, sin * down - cos * right, -angle, -log_scale))


class Movable(nn.Module):
    """A picture that can be sampled between pixels, by cubic B-splines.

    The picture is `(B, G, H, W)`; NaN where it does not show the scene.
    """

    picture: Tensor
    splines: Tensor
    is_visible: Tensor

    def __init__(self, g: Tensor) -> None:
        super().__init__()
        is_visible = g.isfinite().all(1, keepdim=True)
        splines = torch.where(is_visible, g, 0)
        for _ in range(2):
            splines = _compute_spline_coefficients(splines).mT
        self.is_whole = bool(is_visible.all())
        self.register_buffer(
            "picture", g if self.is_whole else torch.where(is_visible, g, torch.nan)
        )
        self.register_buffer("splines", splines)
        self.register_buffer("is_visible", is_visible.to(g.dtype))

    def forward(self, motion: Tensor) -> Tensor:
        """Sample the picture where the points of the cube lie in it; NaN outside.

        A motion is (down, right, angle in radians, logarithm of the scale), about the centre.
        """
        if not bool(motion.any()):
            return self.picture
        height, width = self.picture.shape[2:]
        splines = self.splines
        rows = torch.arange(height, dtype=splines.dtype, device=splines.device)[:, None]
        columns = torch.arange(width, dtype=splines.dtype, device=splines.device)[None]
        i, j = _map_points(motion, rows, columns, height, width)
        is_inside = (i >= 0) & (i <= height - 1) & (j >= 0) & (j <= width - 1)
        if not self.is_whole:
            positions = (
                _to_grid_units(coordinate, n) for coordinate, n in ((i, height), (j, width))
            )
            # A sample is 1 only if all pixels around it are visible; 0.999 allows for rounding.
            is_inside = is_inside & (_sample_linearly(self.is_visible, *positions) > 0.999)
        down, right = (
            _split_into_linear_samples(coordinate, n + 2)
            for coordinate, n in ((i, height), (j, width))
        )
        samples = torch.zeros_like(self.picture)
        for down_weight, row in down:
            for right_weight, column in right:
                samples.addcmul_(_sample_linearly(splines, row, column), down_weight * right_weight)
        return samples.masked_fill_(~is_inside, torch.nan)

    def fill_details(self, motion: Tensor, prediction: Tensor) -> Tensor:
        """Return p + V (D g − W p): the moved picture g, with the finest details of p.

        W samples the prediction p on the pixels of g. V samples the difference on the pixels of the
        cube. Both sample as `forward` does, and give NaN outside. D holds the exposures that fit
        best. See `cassi.systems.guide.GuidedPrior`.
        """
        if not bool(motion.any()):
            return self.picture
        moved_prediction = Movable(prediction)(invert_motion(motion))
        visible_picture = torch.where(moved_prediction.isfinite(), self.picture, torch.nan)
        residual, _ = fit_exposure(visible_picture, moved_prediction)
        moved_residual = Movable(torch.where(self.is_visible > 0, residual, torch.nan))(motion)
        return prediction + moved_residual


def _compute_spline_coefficients(g: Tensor) -> Tensor:
    """Return coefficients of cubic B-splines along the last axis, with one more on either side."""
    # The splines go through the pixels. Their coefficients are the pixels convolved with
    # √3 (√3 − 2)^|distance|, the inverse of the kernel (1, 4, 1)/6.
    distances = torch.arange(
        -_KERNEL_REACH_PIXELS, _KERNEL_REACH_PIXELS + 1, dtype=torch.float64
    ).abs()
    kernel = (math.sqrt(3) * (math.sqrt(3) - 2) ** distances).to(g)
    padded = pad(g, (_KERNEL_REACH_PIXELS + 1, _KERNEL_REACH_PIXELS + 1, 0, 0), mode="replicate")
    return ops.convolve1d(padded, kernel).narrow(-1, 2 * _KERNEL_REACH_PIXELS, g.shape[-1] + 2)


def _split_into_linear_samples(positions: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    """Return weights and positions of the two linear samples whose sum is a spline's value."""
    # A cubic B-spline has four weights, all positive. The weighted sum of two neighbouring
    # coefficients is one linear sample between them, times the sum of both weights.
    start = positions.floor()
    f = positions - start
    f2 = f * f
    f3 = f2 * f
    second_of_first_pair = 4 - 6 * f2 + 3 * f3  # times 6
    first_pair = second_of_first_pair + (1 - f) ** 3
    return [
        (first_pair / 6, _to_grid_units(start + second_of_first_pair / first_pair, size)),
        (1 - first_pair / 6, _to_grid_units(start + 2 + f3 / (6 - first_pair), size)),
    ]


def _to_grid_units(positions: Tensor, size: int) -> Tensor:
    return positions * (2 / (size - 1)) - 1  # `grid_sample` counts from -1 to 1


def _sample_linearly(value: Tensor, row: Tensor, column: Tensor) -> Tensor:
    points = torch.stack((column, row), -1).expand(len(value), -1, -1, -1)
    return grid_sample(value, points, padding_mode="border", align_corners=True)


def fit_exposure(g: Tensor, prediction: Tensor) -> tuple[Tensor, Tensor]:
    """Return D g − p with the exposures D that fit best, and D, `(B, G, 1, 1)`.

    Both pictures are `(B, G, H, W)`. The difference is 0 where g is NaN.
    """
    is_finite = g.isfinite()
    g, p = torch.where(is_finite, g, 0), torch.where(is_finite, prediction, 0)
    power = (g * g).sum((2, 3), keepdim=True).clamp_min(1e-30)
    exposure = (g * p).sum((2, 3), keepdim=True) / power
    return exposure * g - p, exposure


def misfit(g: Tensor, prediction: Tensor) -> float:
    """Return ‖D g − p‖/‖p‖ of a moved picture g; D g − p counts as 0 where g is NaN."""
    return float(fit_exposure(g, prediction)[0].norm() / prediction.norm())


def step_towards(picture: Tensor, prediction: Tensor) -> Tensor:
    """Return the Gauss–Newton step of a picture's motion; the caller subtracts it.

    The step reduces the norm of D g − p, summed over channels. g is the moved picture, p the
    prediction, both `(B, G, H, W)`, and D the exposures that fit best. g is NaN where it does not
    show the scene. The step is `(4,)`: down, right, angle and logarithm of the scale, float64, on
    the CPU.
    """
    height, width = prediction.shape[2:]
    residual, exposure = fit_exposure(picture, prediction)
    image, residual = (picture * exposure).sum(1), residual.sum(1)
    down, right = torch.gradient(image, dim=(1, 2))
    i = torch.arange(height, dtype=image.dtype, device=image.device)[:, None] - (height - 1) / 2
    j = torch.arange(width, dtype=image.dtype, device=image.device)[None] - (width - 1) / 2
    # Derivatives with respect to shift down, shift right, angle and logarithm of the scale. The
    # axes of the picture are taken as those of the cube: motions are small.
    derivatives = torch.stack((down, right, right * i - down * j, down * i + right * j))
    is_finite = down.isfinite() & right.isfinite()
    rows = torch.where(is_finite, derivatives, 0).flatten(1)
    matrix, right_side = (rows @ rows.T).double().cpu(), (rows @ residual.flatten()).double().cpu()
    # A picture without structure in one direction makes the matrix singular. A little damping then
    # gives a small step instead of an error.
    matrix = matrix + 1e-9 * matrix.diagonal().diag_embed() + 1e-30 * torch.eye(4).to(matrix)
    return torch.linalg.solve(matrix, right_side)
