"""The response of a camera to white light in each band, and cubes in units of reflectance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

from cassi.systems import System
from cassi.systems.grid import BroadbandCamera, SpectralGrid

# Number of strips of a frame that are fitted one by one. Their scatter gives the standard error.
_STRIPS = 8
# Least eigenvalue of the normal matrix, relative to its mean diagonal. Spectra with a smaller
# eigenvalue hardly change the frame. If they were fitted, they would imitate an unsharp mask. Of
# the random cameras 20 to 25 of `lab.py`, four have no such spectra. In the other two this limit
# reduces the error of the response, at best to a half.
_MIN_EIGENVALUE = 0.04
# Largest number of lines of a white frame that a method reconstructs. More take more time.
_MAX_LINES = 128
# Width of the border of the cube of a white frame that is left out, pixels.
_EDGE_PIXELS = 8
# If the relative misfit of a white frame is larger, its pixels get no gain. The misfit of random
# cameras of `lab.py` is 6 % at most. With a mask of other rows it is 20 to 50 %, and a gain would
# hide this mistake.
_MAX_MODEL_ERROR = 0.1
# Least and largest gain of a pixel.
_GAIN_LIMITS = (0.5, 2.0)
# If the response of a method differs from the least-squares response by more than this share, the
# method has failed. For 32 cameras with a right model the difference is 5 % at most.
_MAX_METHOD_ERROR = 0.2
# So many neighbouring pixels of a cube count as one independent value. A larger number makes the
# error of a patch larger.
_CORRELATED_PIXELS = 25
# Stray light and the light of a band are significant above this many standard errors.
_MIN_STANDARD_ERRORS = 2.0
# A method may put light of a band into this many bands on each side.
_LEAK_BANDS = 2
# Prior of the colours of reflectances. first: variance, relative to the mean square of the
# reflectance; second: distance of wavelengths over which a colour changes.
#
# For 838 measured surfaces (Munsell, Macbeth, Vrhel, Krinov) 0.5 and 120 nm are likeliest. But
# errors of neighbouring bands are correlated and look like such colours. With the smoother colours
# of this prior, cubes of the random cameras 20 to 31 of `lab.py` are nearer to the truth
# (docs/development/experiments/calibration.md).
_COLOUR_VARIANCE, _COLOUR_NANOMETRES = 1.5, 300.0
# Prior variance of grey: so large that grey is not smoothed.
_GREY_VARIANCE = 1e5
# Error ε of a band in a cube, relative to the root mean square of the response. A larger ε smooths
# more.
_BAND_ERROR = 0.24
# The error of the smoothing is estimated on a scene that is computed with this fraction of ε. With
# 1, error bars of a band with strong colours held the truth in only 4 % of the pixels. With 0,
# error bars in weak light are twice as wide as needed.
_SHARP_FRACTION = 1 / 3


@dataclass(frozen=True)
class Response:
    r"""The response r of a camera: the cube of a scene that has the value 1 in every band.

    The cube of the camera is x_c = r_c·s_c, with the scene s in the unit of the settings. So
    s = x/r. If x has the standard error σ and r the standard error ε, s has the standard error
    √(σ²/r² + x²ε²/r⁴).

    Args:
        values: response r, `(C,)`, above 0. If it was measured on a white surface under the lamp of
            the scene, it includes lamp, optics and sensor, and s is a reflectance. If it was
            measured on a source of known radiance, it includes optics and sensor, and s is a
            radiance.
        errors: standard errors ε of r, `(C,)`.

    Raises:
        ValueError: a value is not a finite number above 0, or shapes differ.

    >>> response = Response(torch.tensor([2.0, 4.0]), torch.zeros(2))
    >>> response.scene(torch.full((1, 2, 1, 1), 2.0)).flatten()
    tensor([1.0000, 0.5000])
    """

    values: Tensor
    errors: Tensor

    def __post_init__(self) -> None:
        """Check that every band has light."""
        if self.values.ndim != 1 or self.errors.shape != self.values.shape:
            raise ValueError(
                f"response: expected (C,) and (C,), got {tuple(self.values.shape)} and "
                f"{tuple(self.errors.shape)}"
            )
        is_dark = ~(self.values.isfinite() & (self.values > 0) & self.errors.isfinite())
        if bool(is_dark.any()):
            band = int(is_dark.nonzero()[0])
            raise ValueError(
                f"response: expected numbers above 0, got {float(self.values[band]):g} in band "
                f"{band + 1} of {len(self.values)}: there is no light in it; leave it out of the "
                "camera, or give response= of a brighter frame"
            )

    def of(self, _: Tensor) -> Response:
        """Return this response. It does not depend on the cube, unlike that of a `Patch`."""
        return self

    def scene(self, x: Tensor, wavelengths: Sequence[float] | None = None) -> Tensor:
        r"""Return the scene of a cube `(…, C, H, W)`: s = x/r, or the most probable reflectance.

            s = Hx,   H = K R (R K R + ε² I)⁻¹,   R = diag r

        is the most probable reflectance. If lamp and sensor are weak in a band, x/r is mostly the
        error of the method there. But a reflectance is the sum of a grey and of a colour that
        changes slowly over the wavelength. Its prior covariance is K = g 11ᵀ + 1.5 (1 + d) e^(−d),
        where d = √3 Δλ/300 nm (a Matérn process). g = 10⁵ is so large that grey is not smoothed and
        white stays white. The error ε of a band of x is 24 % of the root mean square of r.

        Args:
            x: the cube.
            wavelengths: nm, one per band, if s is a reflectance; None: s = x/r.
        """
        return self._apply(self._inverse(wavelengths), x)

    def scene_std(
        self, x: Tensor, std: Tensor, wavelengths: Sequence[float] | None = None
    ) -> Tensor:
        """Return the standard error of `scene(x)` from that of x, both `(…, C, H, W)`.

        Args:
            x: the cube.
            std: standard error σ of x.
            wavelengths: as for `scene`.
        """
        # A method puts some light of a band into neighbouring bands. Where lamp and sensor are
        # weak, σ of x is too small for this light. So each σ is raised to the largest σ of the two
        # bands to either side. For reflectances this is not needed, because H mixes bands already.
        # The errors of the bands that H mixes are correlated, so their σ are added, not σ².
        # The error of the smoothing is added, too. It is estimated on a scene with a third of ε,
        # because the scene that H returns is smooth already, see _SHARP_FRACTION.
        inverse = self._inverse(wavelengths)
        scene = self._apply(inverse, x)
        if wavelengths is None:
            bands = std.movedim(-3, -1)
            largest = max_pool1d(bands.flatten(0, -2), 2 * _LEAK_BANDS + 1, 1, _LEAK_BANDS)
            std = largest.view(bands.shape).movedim(-1, -3)
        relative_error = self._per_band(self.errors / self.values, x)
        smoothing_error = self._smoothing_error(inverse, x, wavelengths).abs()
        std_from_cube = self._apply(inverse.abs(), std) + smoothing_error
        return torch.hypot(std_from_cube, scene * relative_error)

    def scene_pattern(
        self,
        x: Tensor,
        pattern: Tensor,
        std: Tensor,
        scene_std: Tensor,
        wavelengths: Sequence[float] | None,
    ) -> Tensor:
        """Return an error of the scene, in units of its σ and with mean square 1.

        Args:
            x: the cube.
            pattern: an error of x, in units of its σ.
            std: σ of x.
            scene_std: σ of the scene, from the method `scene_std`.
            wavelengths: as for `scene`.
        """
        inverse = self._inverse(wavelengths)
        error = self._apply(inverse, pattern * std)
        error = (error + self._smoothing_error(inverse, x, wavelengths)) / scene_std
        return error / error.square().mean().sqrt().clamp_min(torch.finfo(error.dtype).tiny)

    def _smoothing_error(
        self, inverse: Tensor, x: Tensor, wavelengths: Sequence[float] | None
    ) -> Tensor:
        """Return the error that H makes in a scene without noise, (HR − I)s."""
        scene = self._apply(self._inverse(wavelengths, _BAND_ERROR * _SHARP_FRACTION), x)
        return self._apply(inverse * self.values.to(inverse), scene) - scene

    def _inverse(
        self, wavelengths: Sequence[float] | None, band_error: float = _BAND_ERROR
    ) -> Tensor:
        """Return H `(C, C)`."""
        r = self.values.double().cpu()
        if wavelengths is None:
            return torch.diag(1 / r)
        nanometres = torch.tensor([float(wavelength) for wavelength in wavelengths], dtype=r.dtype)
        distances = 3**0.5 * (nanometres[:, None] - nanometres).abs() / _COLOUR_NANOMETRES
        # Names as in the equation of `scene`: K, K R and ε² I.
        k = _GREY_VARIANCE + _COLOUR_VARIANCE * (1 + distances) * (-distances).exp()
        k_r = k * r
        epsilon_squared = band_error**2 * r.square().mean() * torch.eye(len(r), dtype=r.dtype)
        return torch.linalg.solve(r[:, None] * k_r + epsilon_squared, k_r.mT).mT

    @staticmethod
    def _apply(matrix: Tensor, x: Tensor) -> Tensor:
        return torch.einsum("ij,...jhw->...ihw", matrix.to(x), x)

    @staticmethod
    def _per_band(value: Tensor, x: Tensor) -> Tensor:
        return value.to(x)[:, None, None]


@dataclass(frozen=True)
class White:
    """Response, stray light and gain that a white frame shows, see `find_white`.

    Attributes:
        response: response of the camera in each band.
        stray: stray light on every pixel, relative to the mean of a frame.
        gain: gain of every pixel, `(1, K, H', W')`. The white frame times the gain is the frame of
            the camera's model. None: 1.
    """

    response: Response
    stray: float = 0.0
    gain: Tensor | None = None

    def __str__(self) -> str:
        """Describe what `corrected` does to a snapshot."""
        text = ""
        if self.stray > 0:
            text = f"; stray light of {self.stray:.1%} of the mean taken out of the snapshot"
        if self.gain is not None:
            change = float((self.gain - 1).square().mean().sqrt())
            text += f"; its pixels scaled by the white frame, by {change:.1%} in the mean"
        return text

    def corrected(self, y: Tensor, good_pixels: Tensor | None) -> Tensor:
        """Return measurements `(B, K, H', W')` without stray light, times the gain.

        Args:
            y: measurements. Each has stray light in proportion to its mean.
            good_pixels: pixels that count, shaped like one measurement or all; None: all.
        """
        if good_pixels is None:
            good_pixels = torch.ones_like(y, dtype=torch.bool)
        good_pixels = good_pixels.expand_as(y)
        mean = torch.stack(
            [frame[is_good].mean() for frame, is_good in zip(y, good_pixels, strict=True)]
        )
        y = y - self.stray * mean.view(-1, 1, 1, 1)
        return y if self.gain is None else y * self.gain


@dataclass(frozen=True)
class WhiteFrame:
    """A corrected frame of an even white surface, to be fitted through a camera.

    Attributes:
        y: frame `(1, K, H', W')`.
        good_pixels: bool, pixels that count, shaped like y.
        reflectance: reflectance of the surface, one number or one per band.
    """

    y: Tensor
    good_pixels: Tensor
    reflectance: float | Tensor = 1.0

    def fit(
        self,
        template: Tensor,
        system: System,
        reconstruct: Callable[[Tensor, System], Tensor],
        grid: SpectralGrid | None = None,
    ) -> White:
        """Fit the frame through a camera with `find_white`.

        Args:
            template: tensor with the device and the type of the fit.
            system: the camera.
            reconstruct: (y, camera) → cube, the method for the scenes.
            grid: spectral grid on which cubes are computed; None: there is no grid.
        """
        good_pixels, camera_good_pixels = self.good_pixels.to(template.device), system.good_pixels
        good_pixels = (
            good_pixels if camera_good_pixels is None else good_pixels & camera_good_pixels
        )
        camera = system.unweighted.weighted(bad_pixels=~good_pixels)
        y = camera.without_bad_pixels(self.y.to(template))
        return find_white(y, camera, self.reflectance, reconstruct, grid)


@dataclass(frozen=True)
class Patch:
    """A white reference within the scene. Its mean spectrum over its reflectance is the response.

    Args:
        place: top, left, height and width in the cube, pixels.
        reflectance: reflectance of the reference, one number or one per band, in the unit of the
            settings.
    """

    place: tuple[int, int, int, int]
    reflectance: float | Tensor = 1.0

    def check(self, rows: int, columns: int) -> None:
        """Check that the patch lies within a cube of `rows` rows and `columns` columns.

        Raises:
            ValueError: the patch is not within the cube.
        """
        top, left, height, width = self.place
        if min(top, left) < 0 or top + height > rows or left + width > columns:
            raise ValueError(
                f"response: expected a patch [top, left, height, width] within "
                f"{rows} x {columns} pixels, got {list(self.place)}"
            )

    def of(self, x: Tensor) -> Response:
        """Return the response from a cube `(1, C, H, W)`.

        Raises:
            ValueError: the patch is not within the cube, or a band has no light in it.
        """
        top, left, height, width = self.place
        self.check(*x.shape[-2:])
        patch = x[0, :, top : top + height, left : left + width].flatten(1).double().cpu()
        n_independent = max(patch.shape[1] / _CORRELATED_PIXELS, 1.0)
        error = patch.std(1, correction=0) / n_independent**0.5
        reflectance = torch.as_tensor(self.reflectance, dtype=torch.float64)
        return Response((patch.mean(1) / reflectance).float(), (error / reflectance).float())


@torch.no_grad()
def find_white(
    y: Tensor,
    system: System,
    reflectance: float | Sequence[float] | Tensor = 1.0,
    reconstruct: Callable[[Tensor, System], Tensor] | None = None,
    grid: SpectralGrid | None = None,
) -> White:
    r"""Estimate the response from a frame of an even white surface that fills the field.

        min_r ‖y − Σ_c r_c ρ_c A e_c − b‖²

    is the least-squares problem. e_c is the scene that is 1 in band c and 0 in the others, ρ the
    reflectance of the surface, and b the stray light, which is equal on all pixels. Some spectra
    hardly change the frame, such as differences of bands that an unsharp mask does not resolve.
    These components of r are made as smooth as possible. r is the mean over strips of the frame,
    and their scatter gives its standard errors. Stray light that is not significant is set to 0.

    If mask and bands differ a little from the camera's model, white frames and frames of grey
    scenes have equal errors. The gain g = Σ_c r_c ρ_c A e_c / (y − b) removes these errors from
    frames of grey scenes, and a part of the errors of other frames. If the misfit is more than a
    tenth of the frame, the camera's model is wrong, and there is no gain.

    A method has errors, too. With `reconstruct`, the method makes a cube of g·(y − b), and r is the
    median spectrum of this cube, over ρ. So errors that are equal for white and scene cancel in
    s = x/r. A mean in place of the median would depend on the few pixels beside the outermost band
    that have hardly any light.

    Args:
        y: measurement `(1, K, H', W')`, of the same exposure as the scenes. With another exposure
            all values of s are wrong by the ratio of the exposures.
        system: the camera; its bad pixels have no influence.
        reflectance: reflectance of the surface, one number or one per band.
        reconstruct: (y, camera) → cube, the method for the scenes; it gets at most 128 lines.
        grid: spectral grid on which cubes are computed. If there is a grid, r is the least-squares
            response, because the cube of a white frame has light of strong bands in weak bands, and
            cubes of scenes do not.

    Raises:
        ValueError: y does not fit the camera, or the frame shows no light in a band.
    """
    _check_frame(y, system)
    reflectances = torch.as_tensor(reflectance, dtype=torch.float64).expand(system.cube_shape[0])
    counts = torch.ones_like(y[0]) if system.good_pixels is None else system.good_pixels[0].to(y)
    camera = system if grid is None else BroadbandCamera(system, grid)
    even_frames = _simulate_even_scenes(y, camera)
    strips, stray_light = _fit_strips(y[0], counts, even_frames, system.part_axis)
    white_frame = (y - stray_light) * counts
    model = torch.einsum("c,c...->...", strips.mean(0).to(y), even_frames) * counts
    gain = _compute_gain(model, white_frame)
    strips = strips / reflectances
    if reconstruct is not None and grid is None:
        frame = white_frame if gain is None else white_frame * gain
        method_strips = _reconstruct_strips(frame, system, reconstruct) / reflectances
        # After the gain the frame is exactly that of the fitted response. If a method finds another
        # response, it has failed.
        difference = float((method_strips.mean(0) - strips.mean(0)).norm() / strips.mean(0).norm())
        if gain is None or difference < _MAX_METHOD_ERROR:
            strips = method_strips
    mean = float((y[0] * counts).sum() / counts.sum().clamp_min(1))
    return White(_average_strips(strips), stray_light / mean, gain)


def _check_frame(y: Tensor, system: System) -> None:
    if tuple(y.shape) != (1, *system.measurement_shape):
        raise ValueError(
            f"response: expected a frame (1, K, H', W') of {system.measurement_shape}, got "
            f"{tuple(y.shape)}"
        )


def _simulate_even_scenes(y: Tensor, system: System) -> Tensor:
    """Simulate, for each band, the frame of a scene that is 1 in this band and 0 in the others.

    Returns:
        Frames `(C, K, H', W')`.
    """
    shape = (1, *system.cube_shape)
    bands = torch.eye(shape[1], dtype=y.dtype, device=y.device)[:, None, :, None, None]
    return torch.stack([system(band.expand(shape).contiguous())[0] for band in bands])


def _fit_strips(
    frame: Tensor, counts: Tensor, even_frames: Tensor, part_axis: int | None
) -> tuple[Tensor, float]:
    """Return the light of each band in strips of a frame, `(_STRIPS, C)`, and the stray light.

    The frame `(K, H', W')` is a sum of frames of single bands, `(C, K, H', W')`, and of stray light
    on all pixels that count. Stray light that is not significant is 0.
    """
    axis, solutions = -2 if part_axis is None else part_axis, []
    images = torch.cat([even_frames, counts[None]]).tensor_split(_STRIPS, axis)
    for strip, light in zip(images, (frame * counts).tensor_split(_STRIPS, axis), strict=True):
        design = strip.flatten(1).double().cpu()
        solutions.append(
            _solve_smoothest(design @ design.mT, design @ light.flatten().double().cpu())
        )
    strips = torch.stack(solutions)
    stray_light, error = float(strips[:, -1].mean()), float(strips[:, -1].std()) / _STRIPS**0.5
    return strips[:, :-1], stray_light if stray_light > _MIN_STANDARD_ERRORS * error else 0.0


def _reconstruct_strips(
    y: Tensor, camera: System, reconstruct: Callable[[Tensor, System], Tensor]
) -> Tensor:
    """Reconstruct a frame, and return the median spectra in strips of the cube, `(_STRIPS, C)`."""
    axis = -2
    if camera.part_axis is not None:
        axis, length = camera.part_axis, y.shape[camera.part_axis]
        first = max(length - _MAX_LINES, 0) // 2
        y = y.narrow(axis, first, length - 2 * first)
        camera = camera.part(first, length - first)
    x = reconstruct(y, camera)[0].double().cpu()
    inner_slices = [
        slice(_EDGE_PIXELS, -_EDGE_PIXELS) if size > 4 * _EDGE_PIXELS else slice(None)
        for size in x.shape[1:]
    ]
    strips = x[(slice(None), *inner_slices)].tensor_split(_STRIPS, axis)
    return torch.stack([strip.flatten(1).median(1).values for strip in strips])


def _average_strips(strips: Tensor) -> Response:
    """Return the mean response of the strips `(_STRIPS, C)`, 0 in a band if not significant."""
    errors, values = strips.std(0) / _STRIPS**0.5, strips.mean(0)
    values = torch.where(values > _MIN_STANDARD_ERRORS * errors, values, 0)
    return Response(values.float(), errors.float())


def _compute_gain(model: Tensor, white_frame: Tensor) -> Tensor | None:
    """Return the gain of the pixels of a white frame; None if the model is wrong."""
    if not float((model - white_frame).norm()) < _MAX_MODEL_ERROR * float(white_frame.norm()):
        return None
    is_lit = (white_frame > 0) & (model > 0)
    return torch.where(is_lit, model / white_frame.where(is_lit, 1), 1).clamp(*_GAIN_LIMITS)


def _solve_smoothest(normal: Tensor, image: Tensor) -> Tensor:
    """Solve normal equations `(C + 1, C + 1)`, with weak eigenvectors as smooth as possible.

    An eigenvector is weak if its eigenvalue is below `_MIN_EIGENVALUE`. The coefficients of weak
    eigenvectors minimise the second differences of the solution over the bands.
    """
    scale = normal.diagonal().mean()
    values, vectors = torch.linalg.eigh(normal / scale)
    is_weak = values < _MIN_EIGENVALUE
    strong_vectors = vectors[:, ~is_weak]
    solution = strong_vectors @ (strong_vectors.mT @ (image / scale) / values[~is_weak])
    if not bool(is_weak.any()):
        return solution
    # The last unknown is the stray light b, which is no band.
    bands = torch.eye(len(solution) - 1, len(solution), dtype=solution.dtype)
    second_differences = bands.diff(n=2, dim=0)
    weak_vectors = vectors[:, is_weak]
    return solution - weak_vectors @ (
        torch.linalg.pinv(second_differences @ weak_vectors) @ (second_differences @ solution)
    )


def describe(response: Response) -> dict[str, list[float]]:
    """Return the entry of a response in metrics.json."""
    return {"values": response.values.tolist(), "standard_errors": response.errors.tolist()}
