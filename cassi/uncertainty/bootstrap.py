"""Estimate the errors of a method on a scene by one more reconstruction with a known truth.

The cube is mirrored, measured and reconstructed once more. The truth of that reconstruction is the
mirrored cube, so its error is known.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from cassi.solvers.base import GridSolution, Reconstructor, Solution
from cassi.solvers.heldout import (
    HELDOUT_SHARE,
    LINE_SHARE,
    MIN_LINES,
    HeldOutLines,
    brightest_lines,
    draw_heldout,
)
from cassi.solvers.statistics import MIN_NOISE, Statistics, root_mean_square, unit_of
from cassi.systems import SDCassi
from cassi.systems.base import System
from cassi.systems.grid import with_wide_bands
from cassi.uncertainty.mask_shift import MaskShift, find_mask_shift, measure_shifted

# Least relative change of the measurement if the scene is mirrored. If the change is smaller, the
# mask codes the mirrored scene as it codes the scene.
_MIN_CHANGE = 0.02
# Side of the square of a local mean, pixels. A larger one averages over more texture of the scene.
_MEAN_SIDE = 13
# Quantile of the held-out pixels for `Probe.heldout_ratio`. A larger one depends more on outliers.
_QUANTILE = 0.75


@dataclass(frozen=True)
class Probe:
    """Errors of a method at held-out pixels, and its response to noise.

    Attributes:
        heldout: error at held-out pixels on the brightest lines, see
            `cassi.solvers.heldout.HeldOutLines`.
        heldout_ratio: |residual| over the local root mean square of A·`repeated_error`, as the 75 %
            quantile over the held-out pixels of the mirrored scene. Noise makes it large.
        response: change of the cube by added noise, over this noise, both as root mean squares; 0
            if the measurement has no noise.
        mask_shift: apparent shift of the mask.
    """

    heldout: float
    heldout_ratio: float
    response: float = 0.0
    mask_shift: MaskShift = field(default_factory=MaskShift)


@dataclass(frozen=True)
class BootstrapResult:
    """Errors of a reconstruction, estimated without the truth.

    For the repeated reconstruction, x is mirrored and measured by the same camera. So another part
    of the mask codes every pixel. The residual of x with random signs is added as noise. If the
    mask seems to be shifted, the mirrored x is measured through the shifted mask, but reconstructed
    with the nominal mask.

    Attributes:
        x: cube `(1, C, H, W)`.
        repeated_error: error of the repeated reconstruction, mirrored back, `(1, C, H, W)`: the
            reconstruction of x minus x.
        residual: y − Ax, `(1, K, H', W')`.
        probe: errors at held-out pixels.
        noise: standard deviation of the noise, in the unit of y. A method fits a part of the noise,
            so the residual is smaller than the noise. The added noise of the repeated measurement
            is known: noise / residual = added noise / residual of the repeated reconstruction.
    """

    x: Tensor
    repeated_error: Tensor
    residual: Tensor
    probe: Probe
    noise: float = 0.0


@dataclass(frozen=True)
class Trial:
    """A measurement, its camera, and the method whose errors are estimated.

    Attributes:
        y: measurement `(1, K, H', W')`.
        system: the camera.
        reconstructor: the method.
        statistics: statistics of the whole measurement with which the cube was reconstructed; None:
            they are estimated.
        seed: seed of the random numbers.
        is_broadband: the light is broadband, so each band of an `SDCassi` is as wide as the
            distance to the next one. Then the mirrored scene is measured with such wide bands, but
            reconstructed with narrow bands.
        grid_cube: the cube on the spectral grid from which x was interpolated. This cube is
            mirrored in place of x. None: there is no grid.
    """

    y: Tensor
    system: System
    reconstructor: Reconstructor
    statistics: Statistics | None = None
    seed: int = 0
    is_broadband: bool = False
    grid_cube: GridSolution | None = None

    def run(self, y: Tensor, system: System) -> Solution:
        """Reconstruct another measurement with the method, through another camera."""
        torch.manual_seed(self.seed)
        return self.reconstructor.run(y, system, statistics=self.statistics).checked()


@torch.no_grad()
def bootstrap(trial: Trial, x: Tensor, probe: Probe | None = None) -> BootstrapResult:
    """Estimate the errors of a cube x by further reconstructions.

    The whole scene is reconstructed once more. Without `probe`, a third of the scene is
    reconstructed once or twice, too.

    Args:
        trial: measurement, camera and method.
        x: the cube `(1, C, H, W)`.
        probe: errors at held-out pixels of the whole scene, if y is a part of a larger scene; None:
            they are measured.
    """
    system, seed = trial.system, trial.seed
    y = system.without_bad_pixels(trial.y)
    # If there is a cube on the spectral grid, that cube reproduces the measurement, not x.
    measured_cube, camera = (x, system)
    if trial.grid_cube is not None:
        measured_cube, camera = trial.grid_cube.x, trial.grid_cube.grid.camera(system)
    residual = y - camera(measured_cube)
    mask_shift = find_mask_shift(y, measured_cube, camera) if probe is None else probe.mask_shift
    axes = mirror_axes(measured_cube, camera)
    random = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, residual.shape, generator=random).to(residual) * 2 - 1
    nominal, mirrored_cube = system.base_camera, measured_cube.flip(axes)
    mirrored_y = measure_shifted(mirrored_cube, camera, mask_shift) + residual.flip(axes) * signs
    if (
        trial.is_broadband
        and trial.grid_cube is None
        and type(nominal) is SDCassi
        and nominal.band_width == 1
    ):
        # The effect of wide bands is the difference of two simulations. Wide bands have no sharp
        # interpolation of a measured mask, so neither simulation uses it.
        point_camera = nominal.replace(measured_mask=False)
        mirrored_y = (
            mirrored_y + with_wide_bands(point_camera)(mirrored_cube) - point_camera(mirrored_cube)
        )
    is_heldout = draw_heldout(y.shape[1:], HELDOUT_SHARE, seed + 1).to(y.device)
    solution = trial.run(mirrored_y, system.weighted(bad_pixels=is_heldout))
    repeated_error = solution.x.flip(axes) - x
    residual_of_mirrored = mirrored_y - solution.measured(system)
    residual_level, repeated_level = (
        float(root_mean_square(values)) for values in (residual, residual_of_mirrored)
    )
    noise = residual_level**2 / repeated_level if repeated_level > 0 else residual_level
    if probe is None:
        axis = system.part_axis or -2
        count = y.shape[axis]
        first, stop = brightest_lines(y, system, max(MIN_LINES, int(LINE_SHARE * count)))
        heldout, response = _probe_method(trial, (first, stop), residual_level, mask_shift)
        heldout_ratio = _heldout_ratio(
            residual_of_mirrored, system(repeated_error).flip(axes), is_heldout
        )
        probe = Probe(heldout, heldout_ratio, response, mask_shift)
    return BootstrapResult(x, repeated_error, residual, probe, noise)


def _heldout_ratio(residual: Tensor, error: Tensor, is_heldout: Tensor) -> float:
    """Return `Probe.heldout_ratio` from the residual and the error A·`repeated_error`."""
    # Powers of two keep the squares within single precision.
    unit = unit_of(error)
    residual, error = residual / unit, error / unit
    local_error = avg_pool2d(
        error.square(), _MEAN_SIDE, 1, _MEAN_SIDE // 2, count_include_pad=False
    ).sqrt()
    ratio = (residual.abs() / local_error)[is_heldout & (local_error > 0)]
    return float(ratio.quantile(_QUANTILE)) if len(ratio) else 1.0


def _probe_method(
    trial: Trial, lines: tuple[int, int], noise: float, mask_shift: MaskShift
) -> tuple[float, float]:
    """Reconstruct some lines without held-out pixels, and once more with added noise.

    Args:
        trial: measurement, camera and method.
        lines: the first line, and the line after the last one.
        noise: root mean square of the residual of the cube, in the unit of y.
        mask_shift: apparent shift of the mask.

    Returns:
        `heldout` and `response` of `Probe`.
    """
    frame = trial.system.without_bad_pixels(trial.y)
    signal = float(root_mean_square(frame))
    system, y = _cut(trial.system, lines, frame)
    is_heldout = draw_heldout(y.shape[1:], HELDOUT_SHARE, trial.seed).to(y.device)
    camera = system.weighted(bad_pixels=is_heldout)
    solution = trial.run(y, camera)
    response = 0.0
    noise_level = max(noise, mask_shift.change if mask_shift.is_significant else 0.0)
    if noise_level > MIN_NOISE * signal:
        random = torch.Generator().manual_seed(trial.seed + 2)
        noisy = y + noise_level * torch.randn(y.shape, generator=random).to(y)
        response = float(root_mean_square(trial.run(noisy, camera).x - solution.x)) / noise_level
    error = HeldOutLines(y, system, is_heldout).errors_of_measurement(solution.measured(system))
    return float(error.square().mean().sqrt()), response


def _cut(system: System, lines: tuple[int, int], y: Tensor) -> tuple[System, Tensor]:
    """Return camera and measurement of some lines; of all lines if the camera has no parts."""
    axis = system.part_axis
    if axis is None:
        return system, y
    first, stop = lines
    return system.part(first, stop), y.narrow(axis, first, stop - first)


def mirror_axes(x: Tensor, system: System) -> tuple[int, ...]:
    """Return the axes along which a scene is mirrored.

    A scene is mirrored across the dispersion. If the mask is its own mirror image in this
    direction, it codes the mirrored scene as before. Then both axes are mirrored.

    Args:
        x: the cube `(1, C, H, W)`.
        system: the camera.
    """
    axis_across = system.part_axis or -2
    y, mirrored_y = system(x), system(x.flip(axis_across)).flip(axis_across)
    is_changed = float((y - mirrored_y).double().norm()) > _MIN_CHANGE * float(y.double().norm())
    return (axis_across,) if is_changed else (-2, -1)
