"""Detector pixels that a reconstruction does not see, and how well it predicts them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from cassi.calibration.fit import Watch, silent
from cassi.calibration.geometry import Geometry, moved_camera, placed_camera
from cassi.solvers import heldout as solvers_heldout
from cassi.solvers.heldout import draw_heldout
from cassi.systems import SDCassi, System, TiltedCassi

Reconstruct = Callable[[Tensor, System, Tensor | None], Tensor]
"""(y, camera, start) → cube: from nothing where start is None, else a few iterations on from it.
The same arguments give the same cube; it depends smoothly on the camera."""
Prepare = Callable[[Tensor, System], Reconstruct]
"""(y, camera) → what reconstructs y with this and similar cameras. Whatever it estimates of y, such
as noise, it estimates here: a worse camera makes for more of it, and must not be damped more."""

_REACH = 16  # pixels: over so many on either side errors are averaged, to weigh them
_FLOOR = 0.1  # of the mean square error, so that the best predicted pixels do not decide alone
_PARTS = 4  # a frame has so many by so many parts, which err independently


@dataclass(frozen=True)
class Prediction:
    """What a camera makes of the pixels that were withheld.

    Attributes:
        cube: reconstructed from the others.
        residual: `(N,)`, y − Ax over them.
        weights: `(N,)`: one over the mean square residual nearby.
        error: ‖y − Ax‖/‖y‖ over them.
    """

    cube: Tensor
    residual: Tensor
    weights: Tensor
    error: float


class WithheldPixels:
    """Snapshots of which some detector pixels are withheld.

    A cube that was reconstructed with the wrong camera fits its own frame nearly as well as with
    the right one; pixels that it has not seen it predicts worse. Which are withheld depends on the
    seed alone, so that cameras are compared on the same pixels.

    Args:
        y: `(B, K, H', W')`.
        system: the nominal camera.
        reconstruct: makes cubes.
        share: of the pixels, withheld.
        seed: of the draw.
        pixels: of all samples together that are looked at: of a large frame the brightest rows
            (columns for a camera that disperses along rows).
        good: bool, shaped like y: the others are neither seen nor predicted; None for all.
        watch: is told of each prediction.
    """

    def __init__(
        self,
        y: Tensor,
        system: SDCassi,
        reconstruct: Reconstruct,
        share: float,
        seed: int,
        pixels: int,
        good: Tensor | None = None,
        watch: Watch = silent,
    ) -> None:
        self.watch = watch
        self.system, self.reconstruct = system, reconstruct
        self.lines = brightest_lines(y, system, pixels)
        start, stop = self.lines
        self.y = y.narrow(system.part_axis, start, stop - start).contiguous()
        drawn = draw_heldout(self.y.shape[1:], share, seed).to(y.device)
        self.given, self._where = ~drawn, drawn.expand_as(self.y)
        if good is not None:
            good = good.narrow(system.part_axis, start, stop - start)
            self.given, self._where = self.given & good, self._where & good
        self._size = self.y[self._where].norm().clamp_min(1e-30)

    @cached_property
    def place(self) -> Tensor:
        """In which part of which frame each withheld pixel lies, `(N,)`."""
        at = self._where.nonzero()
        down, across = (at[:, k] * _PARTS // self.y.shape[k] for k in (-2, -1))
        return at[:, 0] * _PARTS**2 + down * _PARTS + across

    @torch.no_grad()
    def predict(self, geometry: Geometry, start: Tensor | None = None) -> Prediction:
        """Reconstruct with a camera and predict what was withheld.

        Args:
            geometry: of the camera.
            start: cube of the same lines to start from.
        """
        self.watch("pixels held out")
        camera = moved_camera(self.system, geometry, self.lines)
        x = self.reconstruct(self.y * self.given, camera.weighted(bad_pixels=~self.given), start)
        residual = (self.y - camera(x)) * self._where
        rest = residual[self._where]
        changes = _code_images(self.system, camera, x)
        blurred = torch.stack([image[self._where] for image in changes], 1)
        mean, count = (_smoothed(image) for image in (residual.square(), self._where.to(residual)))
        variance = (mean / count.clamp_min(1e-6))[self._where].double()
        weights = 1 / (variance + _FLOOR * variance.mean() + 1e-30)
        error = (rest.norm() / self._size).item()
        rest = _free_of(rest.double(), blurred.double(), weights, self.place)
        return Prediction(x, rest, weights, error)


def _smoothed(image: Tensor) -> Tensor:
    """Return the means over squares of 2·_REACH + 1 pixels, zeros beyond the borders."""
    for size in ((2 * _REACH + 1, 1), (1, 2 * _REACH + 1)):
        image = avg_pool2d(image, size, 1, (size[0] // 2, size[1] // 2))
    return image


def _code_images(system: SDCassi, camera: SDCassi | TiltedCassi, x: Tensor) -> list[Tensor]:
    """Return how a frame changes with the contrast and the blur of the code, `(B, K, H', W')`."""
    mask = camera.mask
    wide = pad(mask, (1, 1, 1, 1), mode="replicate")
    across = wide[..., 1:-1, 2:] + wide[..., 1:-1, :-2] - 2 * mask
    down = wide[..., 2:, 1:-1] + wide[..., :-2, 1:-1] - 2 * mask
    tilt = camera.across if isinstance(camera, TiltedCassi) else None
    return [
        placed_camera(system, code, camera.offsets, tilt)(x)
        for code in (mask - mask.mean(), across, down)
    ]


def _free_of(residual: Tensor, images: Tensor, weights: Tensor, place: Tensor) -> Tensor:
    """Take away what a combination of images fits, in each part of the frames by itself.

    Args:
        residual: `(N,)`.
        images: `(N, I)`.
        weights: `(N,)`.
        place: `(N,)`, the part of each pixel.
    """
    many, count = int(place.max()) + 1, images.shape[1]
    weighted = images * weights[:, None]
    normal = images.new_zeros(many, count, count)
    normal.index_add_(0, place, weighted[:, :, None] * images[:, None])
    right = images.new_zeros(many, count).index_add_(0, place, weighted * residual[:, None])
    ridge = normal.diagonal(dim1=1, dim2=2).amax(1).clamp_min(1e-30)[:, None, None]
    normal = normal + 1e-6 * ridge * torch.eye(count).to(normal)
    fitted = torch.linalg.solve(normal, right[..., None])[..., 0]
    return residual - (images * fitted[place]).sum(1)


def brightest_lines(y: Tensor, system: SDCassi, pixels: int) -> tuple[int, int]:
    """Return the neighbouring rows, first and one after the last, that hold the most light.

    Args:
        y: `(B, K, H', W')`.
        system: their camera; for dispersion along rows it is columns that are chosen.
        pixels: of all samples, how many there may be; at least 64 lines are taken.
    """
    length = system.cube_shape[system.part_axis]
    count = min(length, max(64, pixels // max(1, y.numel() // length)))
    return solvers_heldout.brightest_lines(y, system, count)
