"""Adapters that turn cameras into those that networks accept, and functions that shear cubes.

A *sheared* cube `(B, C, H, W')` has each band at the detector columns that the band falls on, and
zeros elsewhere. In an unsheared cube `(B, C, H, W)` the scene is at the same pixels in all bands.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi import ops
from cassi.solvers import LinearSystem

NoiseLevel = TypeVar("NoiseLevel")


@runtime_checkable
class HasShapes(Protocol):
    """A camera with the shapes of its cubes and measurements; see `cassi.systems.System`."""

    @property
    def cube_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""

    @property
    def measurement_shape(self) -> tuple[int, int, int]:
        """(K, H', W')."""


def require_shapes(system: LinearSystem) -> HasShapes:
    """Return the camera if it has the shapes of `HasShapes`; raise a TypeError otherwise."""
    if not isinstance(system, HasShapes):
        raise TypeError(f"expected a camera with cube_shape, got {type(system).__name__}")
    return system


class NetworkCamera(LinearSystem, Protocol):
    """The attributes of a camera that networks use; see `cassi.systems.SDCassi`."""

    bands: int
    step: int
    """Dispersion, pixels per band. For a camera made from offsets it is their rounded mean step."""
    axis: int
    mask: Tensor
    """`(K, 1|C, H, W)`, or `(B, K, 1|C, H, W)`: a mask per sample."""

    @property
    def offsets(self) -> tuple[float, ...]:
        """First detector pixel of each band, along the axis."""

    @property
    def measurement_shape(self) -> tuple[int, int, int]:
        """(K, H', W')."""


class TransposedCamera:
    """Lets a network use a camera with axis -2 as one with axis -1, rows and columns exchanged."""

    axis = -1

    def __init__(self, system: NetworkCamera) -> None:
        self.system, self.mask = system, system.mask.mT
        self.bands, self.step, self.offsets = system.bands, system.step, system.offsets
        shots, height, width = system.measurement_shape
        self.measurement_shape = shots, width, height

    def __call__(self, x: Tensor) -> Tensor:
        """Simulate the measurement."""
        return self.system(x.mT).mT

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose."""
        return self.system.adjoint(y.mT).mT

    def pinv(self, y: Tensor) -> Tensor:
        """Apply the Moore–Penrose inverse."""
        return self.system.pinv(y.mT).mT

    def data_step(self, v: Tensor, y: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖²."""
        # A ρ per detector pixel has rows and columns too; a ρ per sample has none.
        rho = rho.mT if isinstance(rho, Tensor) and rho.ndim > 2 else rho
        return self.system.data_step(v.mT, y.mT, rho).mT


class AlignedCamera:
    """Lets a network use a camera of any offsets as one whose offsets are whole and begin at 0.

    The offsets are rounded to whole pixels, and the smallest becomes 0. The measurement is cut to
    the window of detector columns that bands at these offsets fall on. Columns of the window beyond
    the detector are zero. The operators are those of the wrapped camera, so data steps stay exact.
    """

    axis = -1

    def __init__(self, system: NetworkCamera) -> None:
        self.system, self.mask = system, system.mask
        self.bands, self.step = system.bands, system.step
        nearest_offsets = [round(offset) for offset in system.offsets]
        first_column = min(nearest_offsets)
        self.offsets = tuple(float(start - first_column) for start in nearest_offsets)
        shots, height, detector_width = system.measurement_shape
        width = system.mask.shape[-1] + max(nearest_offsets) - first_column
        self.measurement_shape = shots, height, width
        self.window_padding = (-first_column, first_column + width - detector_width)
        self.detector_padding = (first_column, detector_width - first_column - width)

    def window(self, y: Tensor) -> Tensor:
        """Cut or pad a measurement of the camera: `(B, 1, H, D)` → `(B, 1, H, W')`."""
        return F.pad(y, self.window_padding)

    def __call__(self, x: Tensor) -> Tensor:
        """Simulate the measurement."""
        return self.window(self.system(x))

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose."""
        return self.system.adjoint(F.pad(y, self.detector_padding))

    def pinv(self, y: Tensor) -> Tensor:
        """Apply the Moore–Penrose inverse of the camera."""
        return self.system.pinv(F.pad(y, self.detector_padding))

    def data_step(self, v: Tensor, y: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖² over the detector pixels of the window."""
        detector_y = F.pad(y, self.detector_padding)
        if min(self.window_padding) < 0:
            # The window leaves out some detector columns. In these columns the simulation of v
            # replaces the measurement. The residual is zero there, so they do not change x.
            simulation = self.system(v)
            simulated_window = F.pad(self.window(simulation), self.detector_padding)
            detector_y = detector_y + simulation - simulated_window
        if isinstance(rho, Tensor) and tuple(rho.shape[-3:]) == self.measurement_shape:
            # An infinite ρ excludes the columns outside of the window from the data step.
            rho = F.pad(rho, self.detector_padding, value=torch.inf)
        return self.system.data_step(v, detector_y, rho)


def camera_mask(system: NetworkCamera) -> Tensor:
    """Return the mask of a camera of one shot: `(1|B, 1|C, H, W)`."""
    mask = system.mask
    return mask[:, 0] if mask.ndim == 5 else mask


def band_windows(y: Tensor, system: NetworkCamera) -> Tensor:
    """Return the part of y that each band falls on: `(B, 1, H, W')` → `(B, C, H, W)`.

    This is the adjoint of a camera without a mask.
    """
    width = system.mask.shape[-1]
    if isinstance(system, AlignedCamera):
        return torch.cat([y[..., start : start + width] for start in column_offsets(system)], 1)
    return ops.adjoint(y, y.new_ones(system.mask.shape[-2:]), system.bands, system.step)


def sum_windows(x: Tensor, system: NetworkCamera) -> Tensor:
    """Sum the bands, each at its detector columns: `(B, C, H, W)` → `(B, 1, H, W')`.

    This is the adjoint of `band_windows`.
    """
    if isinstance(system, AlignedCamera):
        shifts = column_offsets(system)
        pads = [(start, max(shifts) - start) for start in shifts]
        return torch.stack([F.pad(x[:, c], pad) for c, pad in enumerate(pads)], 1).sum(1, True)
    return ops.forward(x, x.new_ones(system.mask.shape[-2:]), system.step)


def column_offsets(system: NetworkCamera) -> list[int]:
    """Return the first detector column of each band, for a camera with whole offsets."""
    return [int(offset) for offset in system.offsets]


class CroppingCamera:
    """A camera that measures the first W of the W' columns of a cube `(B, C, H, W')`.

    Some networks roll the bands over W' columns to shear a cube, and roll them back before each
    denoiser. After rolling back, the mask covers the first W columns. The other columns are context
    for the denoiser, and a data step does not change them.
    """

    def __init__(self, system: NetworkCamera) -> None:
        self.system = system
        self.width = system.mask.shape[-1]
        self.n_context = max(column_offsets(system))

    def __call__(self, x: Tensor) -> Tensor:
        """Simulate the measurement: `(B, C, H, W')` → `(B, 1, H, W')`."""
        return self.system(x[..., : self.width])

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(B, 1, H, W')` → `(B, C, H, W')`."""
        return F.pad(self.system.adjoint(y), (0, self.n_context))

    def pinv(self, y: Tensor) -> Tensor:
        """Apply the Moore–Penrose inverse: `(B, 1, H, W')` → `(B, C, H, W')`."""
        return F.pad(self.system.pinv(y), (0, self.n_context))

    def data_step(self, v: Tensor, y: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖²; v and the result are `(B, C, H, W')`."""
        if self.n_context == 0:
            return self.system.data_step(v, y, rho)
        image = self.system.data_step(v[..., : self.width], y, rho)
        return torch.cat((image, v[..., self.width :]), -1)


def roll_bands(x: Tensor, shifts: Sequence[int]) -> Tensor:
    """Roll band c of a cube `(B, C, H, W')` to the right by `shifts[c]` columns."""
    bands = [band.roll(shift, -1) for band, shift in zip(x.unbind(1), shifts, strict=True)]
    return torch.stack(bands, 1)


def shear_bands(x: Tensor, shifts: Sequence[int], padding: int) -> Tensor:
    """Shear a cube and fill it with zeros: `(B, C, H, W)` → `(B, C, H, W + padding)`.

    Band c begins at column `shifts[c]`.
    """
    bands = [
        F.pad(band, (shift, padding - shift))
        for band, shift in zip(x.unbind(1), shifts, strict=True)
    ]
    return torch.stack(bands, 1)


def initial_cube(y: Tensor, system: NetworkCamera) -> Tensor:
    """Return the windows of y at the scale of one band, 2/C · y: `(B, 1, H, W')` → `(B, C, H, W)`.

    Simulated masks transmit about half of the light, so a detector pixel holds the sum of about C/2
    bands. The memory format of the cube is channels_last.

    Source: Cai et al., "Mask-guided spectral-wise transformer", CVPR 2022, equation 4.
    """
    return band_windows(y * 2 / system.bands, system).contiguous(memory_format=torch.channels_last)


def band_masks(y: Tensor, system: NetworkCamera) -> Tensor:
    """Return the mask of each band, in the dtype of y: `(1|B, C, H, W)`."""
    mask = camera_mask(system).to(y.dtype)
    return mask.expand(-1, system.bands, -1, -1)


def sheared_masks(y: Tensor, system: NetworkCamera) -> Tensor:
    """Return the mask of each band at its detector columns: `(1|B, C, H, W')`."""
    return shear_bands(
        band_masks(y, system), column_offsets(system), y.shape[-1] - system.mask.shape[-1]
    )


class ShearedCamera:
    """A camera of sheared cubes: A x = Σ_c Φ_c ⊙ x_c.

    Args:
        matrix: the sensing matrix Φ, `(1|B, C, H, W')`; its values need not lie in [0, 1].
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix.unsqueeze(1)

    def __call__(self, x: Tensor) -> Tensor:
        """Simulate the measurement: `(B, C, H, W')` → `(B, 1, H, W')`."""
        return ops.forward(x, self.matrix, 0)

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(B, 1, H, W')` → `(B, C, H, W')`."""
        return ops.adjoint(y, self.matrix, self.matrix.shape[2], 0)

    def pinv(self, y: Tensor) -> Tensor:
        """Apply the Moore–Penrose inverse: `(B, 1, H, W')` → `(B, C, H, W')`."""
        return self.data_step(torch.zeros_like(self.matrix[:, 0]), y)

    def data_step(self, v: Tensor, y: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖²."""
        return ops.data_step(v, y, self.matrix, 0, rho)


def unshear_bands(x: Tensor, shifts: Sequence[int], width: int) -> Tensor:
    """Cut the window of each band out of a sheared cube: `(B, C, H, W')` → `(B, C, H, width)`."""
    bands = [
        band[..., shift : shift + width] for band, shift in zip(x.unbind(1), shifts, strict=True)
    ]
    return torch.stack(bands, 1)


def on_sheared_cubes(
    denoise: Callable[[Tensor, NoiseLevel], Tensor], shifts: Sequence[int], width: int, columns: int
) -> Callable[[Tensor, NoiseLevel], Tensor]:
    """Wrap a denoiser of cubes `(B, C, H, width)` as one of sheared cubes `(B, C, H, columns)`.

    Args:
        denoise: (cube, noise level) → cube.
        shifts: first detector column of each band.
        width: columns of the cube.
        columns: columns of the detector.
    """

    def prior(v: Tensor, sigma: NoiseLevel) -> Tensor:
        return shear_bands(denoise(unshear_bands(v, shifts, width), sigma), shifts, columns - width)

    return prior


def mix_measurement(
    layer: nn.Conv2d, y: Tensor, masks: Tensor, system: NetworkCamera, scale: float = 1.0
) -> Tensor:
    """Mix y and the masks of `sheared_masks` into a sheared cube `(B, C, H, W')`.

    The result is that of a 1×1 convolution with 2C input channels. These are the C windows of
    scale·y, each at the columns of its band, and the C sheared masks.

    Args:
        layer: the 1×1 convolution, from 2C to C channels.
        y: measurement `(B, 1, H, W')`.
        masks: sheared masks `(1|B, C, H, W')`.
        system: the camera.
        scale: factor of y.

    Source: Cai et al., "Degradation-aware unfolding half-shuffle transformer", NeurIPS 2022.
    """
    # The first C channels all hold scale·y, and zero in columns that their band does not reach. So
    # their part of the convolution is y times one weight per band and column. This needs less
    # memory than C copies of y.
    width = system.mask.shape[-1]
    ones = y.new_ones(1, system.bands, 1, width)
    is_reached = shear_bands(ones, column_offsets(system), y.shape[-1] - width)
    y_weights, mask_weights = layer.weight.chunk(2, 1)
    column_weights = F.conv2d(is_reached, y_weights) * scale
    mask_part = F.linear(masks.permute(0, 2, 3, 1), mask_weights.flatten(1), layer.bias)
    return mask_part.permute(0, 3, 1, 2) + column_weights * y
