"""Simulate a digital twin: a camera with defects, its frames, and its true parameters."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.checks import Rules, check_values, is_number, whole_number
from cassi.data.sensor import Sensor
from cassi.systems import BlurredCassi, SDCassi, System, TiltedCassi
from cassi.systems.blurred import convolve, line_kernels
from cassi.systems.masks import move_mask

# A wider blur would leave almost no contrast of the mask, and its large kernel would be slow.
_MAX_BLUR_PIXELS = 50
_NUMBER = ("a finite number", is_number)
_BLUR = (f"0 to {_MAX_BLUR_PIXELS} pixels", lambda v: is_number(v) and 0 <= v <= _MAX_BLUR_PIXELS)
_NON_NEGATIVE = ("a number of at least 0", lambda v: is_number(v) and v >= 0)
_SHARE = ("a share in [0, 1)", lambda v: is_number(v) and 0 <= v < 1)
# The condition of each setting, in words and as a test. `Sensor` checks the settings of the sensor.
_RULES: Rules = {
    "shift": ("[down, right]", lambda v: isinstance(v, list | tuple) and len(v) == 2),
    **dict.fromkeys(("rotation", "dispersion", "curvature", "tilt"), _NUMBER),
    "pivot": ("a number from 0 to 1", lambda v: is_number(v) and 0 <= v <= 1),
    "magnification": ("a number > 0", lambda v: is_number(v) and v > 0),
    **dict.fromkeys(("mask_blur", "lens_blur"), _BLUR),
    "mask_contrast": ("a number in (0, 1]", lambda v: is_number(v) and 0 < v <= 1),
    **dict.fromkeys(("mask_offset", "vignette", "dark", "dead", "hot"), _SHARE),
    **dict.fromkeys(("pattern", "band_gain"), _NON_NEGATIVE),
}


@dataclass(frozen=True)
class TrueCamera:
    """The true camera of a twin.

    Attributes:
        system: the true mask, dispersion and blur, on the pixels of the nominal camera.
        gain: gain of every pixel, `(H', W')`.
        dark: dark level of the frame, in the unit of y.
        bad: True for stuck pixels, `(H', W')`.
        noise: (a, b) of the noise variance a·(frame − dark) + b, in the unit of y. It holds for
            pixels that are neither stuck nor saturated.
        pivot: position in the spectrum, 0 to 1, whose offset is the nominal one.
    """

    system: System
    gain: Tensor
    dark: float
    bad: Tensor
    noise: tuple[float, float]
    pivot: float = 0.5

    def correct(self, frame: Tensor) -> Tensor:
        """Correct a frame `(B, K, H', W')` to a measurement of `camera`, up to noise.

        Subtract the dark level, divide by the gain, and set stuck pixels to zero.
        """
        y = (frame - self.dark) / self.gain.to(frame).clamp_min(1e-6)
        return torch.where(self.bad.to(frame.device), 0, y)

    @property
    def camera(self) -> System:
        """The system; stuck pixels have no weight in it."""
        return self.system.weighted(bad_pixels=self.bad) if bool(self.bad.any()) else self.system


@dataclass(frozen=True)
class Twin:
    r"""A camera that differs from the nominal one.

        m'_c  = (offset + contrast · (g_μ * T m)_c) · b_c       the mask on the scene
        z     = q_λ * Σ_c S(o(c)) [m'_c · x_c]                  light on the detector
        o(c)  = n(c) + ε·(c − p(C − 1)) + a·P₂(v)               v = 2c/(C − 1) − 1
        frame = sensor(G · z) + dark · Y                        in the unit of y = A x

    T turns and magnifies the mask m about its middle, then shifts it. g_μ and q_λ are Gaussians in
    two dimensions, sampled at pixels. S(d) moves an image by d pixels along the dispersion. n(c)
    are the nominal offsets. P₂(v) = (3v² − 1)/2 is a Legendre polynomial. Y = C / (2 · exposure) is
    the y that fills a pixel. If there is a tilt, bands move along an axis that is turned about the
    nominal position of a band at p. Fractions of a pixel are interpolated linearly. Outside its
    border a moved or blurred mask has the values of the border. Light outside the nominal detector
    is lost. A band keeps the fraction b_c = 1 − band_gain · |N(0, 1)| of its light, at least 0. The
    gain is

        G = (1 − vignette · r²) · (1 + pattern · N(0, 1)),  at least 0

    with r from 0 in the middle of the detector to 1 in its corners. The sensor is
    `cassi.data.sensor.Sensor`, with a gain of full_well / 2^bits electrons per count and the dark
    level as the converter's offset. If `shot`, `read` and `bits` are not set, no sensor is
    simulated. At the end dead pixels are set to 0 and hot pixels to full scale.

    The defaults are the nominal camera without noise.

    Args:
        shift: shift of the mask, pixels (down, right).
        rotation: rotation of the mask, degrees, counterclockwise as displayed with row 0 on top.
        magnification: magnification of the mask's image, above 0.
        mask_blur: μ, standard deviation of the blur of the mask on the scene, pixels.
        mask_offset: transmission of the closed mask.
        mask_contrast: transmission of the open mask minus the transmission of the closed mask.
        band_gain: scale of the fraction of its light that each band loses: band_gain · |N(0, 1)|.
        dispersion: ε, change of the dispersion, pixels per band.
        pivot: p, the position in the spectrum that ε does not move: 0 is the first band, 0.5 the
            middle.
        curvature: a, departure from a straight line at both ends of the spectrum, pixels.
        tilt: rotation of the axis of dispersion, degrees, counterclockwise as displayed.
        lens_blur: λ, standard deviation of the blur of each band's image on the detector, pixels.
        vignette: fraction of the light that is lost in the corners of the detector.
        pattern: relative standard deviation of the pixels' response.
        dark: dark level, as a fraction of full scale.
        exposure: exposure of the sensor; C / (2 · exposure) is the y that fills a pixel.
        qe: quantum efficiency, electrons per photon.
        shot: shot noise: "poisson", "binomial" (for a fixed number of photons), or None.
        full_well: electrons of a full pixel; None for 2^bits.
        read: standard deviation of the read noise, electrons.
        bits: bits of the converter; None does not round.
        saturate: whether values are clipped at the full well and at the range of the converter.
        dead: fraction of pixels that are stuck at 0.
        hot: fraction of pixels that are stuck at full scale.
        supersample: s. Every pixel of mask and scene is divided into s×s equal parts, which are
            moved and blurred; a detector pixel is the mean of s×s parts. So the simulation
            interpolates fractions of a pixel in another way than a reconstruction.
        seed: seed of the pattern and of the positions of stuck pixels. These are the same in every
            frame.

    Raises:
        ValueError: a setting is out of its range, or settings exclude each other.

    Source: see `Sensor` for the model of the sensor. Pixels and dispersion are defined as in
    `SDCassi` and `cassi-calibrate`.

    >>> system = SDCassi(torch.rand(8, 8), bands=3, step=1)
    >>> x = torch.rand(1, 3, 8, 8)
    >>> torch.equal(Twin().measure(x, system, torch.Generator()), system(x))
    True
    """

    shift: list[float] = field(default_factory=lambda: [0.0, 0.0])
    rotation: float = 0.0
    magnification: float = 1.0
    mask_blur: float = 0.0
    mask_offset: float = 0.0
    mask_contrast: float = 1.0
    band_gain: float = 0.0
    dispersion: float = 0.0
    pivot: float = 0.5
    curvature: float = 0.0
    tilt: float = 0.0
    lens_blur: float = 0.0
    vignette: float = 0.0
    pattern: float = 0.0
    dark: float = 0.0
    exposure: float = 1.2
    qe: float = 0.4
    shot: str | None = None
    full_well: float | None = None
    read: float = 0.0
    bits: int | None = None
    saturate: bool = False
    dead: float = 0.0
    hot: float = 0.0
    supersample: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_values(self, _RULES, "twin.")
        if not all(is_number(value) for value in self.shift):
            raise ValueError(f"twin.shift: expected finite numbers, got {self.shift!r}")
        if self.mask_offset + self.mask_contrast > 1 + 1e-9:
            raise ValueError(
                "twin.mask_contrast: expected mask_offset + mask_contrast of at most 1, a "
                f"transmission, got {self.mask_offset} + {self.mask_contrast}"
            )
        if self.dead + self.hot > 0.5:
            raise ValueError(
                f"twin.dead, twin.hot: expected half of the pixels or fewer, got "
                f"{self.dead} + {self.hot}"
            )
        if self.tilt and self.lens_blur:
            raise ValueError("twin.tilt: expected 0 where twin.lens_blur is not")
        whole_number("twin.supersample", self.supersample, 1, 16)
        whole_number("twin.seed", self.seed, 0)
        if self.full_well is None and self.bits is None and (self.shot or self.read):
            raise ValueError("twin.full_well: expected electrons where twin.bits is null, got none")
        try:
            self._make_sensor()
        except ValueError as error:
            raise ValueError(f"twin.{error}") from None

    @property
    def is_noisy(self) -> bool:
        """Whether a sensor is simulated: noise, or a converter."""
        return bool(self.shot or self.read) or self.bits is not None

    @torch.no_grad()
    def measure(self, x: Tensor, system: SDCassi, generator: torch.Generator) -> Tensor:
        """Take a raw frame of cubes.

        Args:
            x: cubes `(B, C, H, W)` in [0, 1].
            system: the nominal camera.
            generator: source of the noise.

        Returns:
            The frame `(B, K, H', W')` in the unit of y = A x, with dark level, gain and stuck
            pixels.
        """
        light = self.expose(x, system)
        if self.vignette or self.pattern:
            light = light * self._make_gain(system).to(light)
        if self.is_noisy:
            frame = self._make_sensor()(light, system.bands, generator)
        else:
            frame = light + self.dark * self._compute_full_scale(system.bands)
        dead_pixels, hot_pixels = (
            pixels.to(frame.device) for pixels in self._draw_stuck_pixels(system)
        )
        largest = self._compute_largest_value(system.bands)
        return frame.masked_fill(dead_pixels, 0.0).masked_fill(hot_pixels, largest)

    @torch.no_grad()
    def expose(self, x: Tensor, system: SDCassi) -> Tensor:
        """Return the light on the detector, z `(B, K, H', W')`, of cubes `(B, C, H, W)`."""
        if self.supersample == 1:
            z: Tensor = self._make_true_system(system)(x)
            return z
        s = self.supersample
        z = self._make_dispersed_system(self._make_fine_mask(system), system, s)(_subdivide(x, s))
        if self.lens_blur:
            kernel = line_kernels(s * self.lens_blur, 1).to(z)
            z = convolve(convolve(z[:, :, None], kernel, -2), kernel, -1)[:, :, 0]
        return F.avg_pool2d(z, s)

    @torch.no_grad()
    def true_camera(self, system: SDCassi) -> TrueCamera:
        """Return the true parameters of the twin of a nominal camera `system`."""
        dead_pixels, hot_pixels = self._draw_stuck_pixels(system)
        bands, sensor = system.bands, self._make_sensor()
        electrons_per_unit = sensor.unit(bands)
        # This is the variance of the electrons divided by their mean, see `Sensor`. The rounding of
        # a converter has the variance gain² / 12.
        shot_factor = {"poisson": 1.0, "binomial": 1 - self.qe}.get(self.shot or "", 0.0)
        noise_floor = self.read**2 + (0 if self.bits is None else sensor.gain**2 / 12)
        return TrueCamera(
            self._make_true_system(system),
            self._make_gain(system),
            self.dark * self._compute_full_scale(bands),
            dead_pixels | hot_pixels,
            (shot_factor / electrons_per_unit, noise_floor / electrons_per_unit**2),
            self.pivot,
        )

    def _make_true_system(self, system: SDCassi) -> System:
        """Return the true camera on the pixels of the nominal one."""
        mask = self._make_fine_mask(system)
        mask = mask if self.supersample == 1 else F.avg_pool2d(mask, self.supersample)
        if not self.lens_blur:
            return self._make_dispersed_system(mask, system)
        s = self.supersample
        # The kernel on whole pixels is the light that a pixel of even brightness sends to the pixel
        # t pixels away. It is the kernel on parts, convolved with the overlap of two pixels and
        # taken at every s-th position. The overlap is a triangle with s parts on each side.
        kernel = line_kernels(s * self.lens_blur, 1)[0]
        overlap = 1 - torch.arange(1 - s, s, dtype=torch.float64).abs() / s
        radius = -(-(len(kernel) // 2 + s - 1) // s)
        padding = s * radius + s - 1 - len(kernel) // 2
        kernel = F.pad(kernel, (padding, padding))[None, None]
        kernel = F.conv1d(kernel, overlap[None, None], stride=s)[0, 0]
        return BlurredCassi(
            mask,
            system.bands,
            detector_spread=torch.outer(kernel, kernel),
            # These values limit the solves of the camera, not its measurements.
            tolerance=1e-3,
            iterations=10,
            axis=system.axis,
            detector=system.detector,
            offsets=self._compute_offsets(system),
        )

    def _make_dispersed_system(self, mask: Tensor, system: SDCassi, s: int = 1) -> System:
        """Return the camera of a mask on a grid of s×s parts per pixel, without the lens's blur."""
        axis, offsets = system.axis, self._compute_offsets(system)
        geometry: dict[str, Any] = {"axis": axis, "detector": s * system.detector}
        if not self.tilt:
            geometry["offsets"] = [s * offset for offset in offsets]
            return SDCassi(mask, system.bands, **geometry)
        angle, nominal = math.radians(self.tilt), system.offsets
        pivot_offset = (1 - self.pivot) * nominal[0] + self.pivot * nominal[-1]
        distances = [s * (offset - pivot_offset) for offset in offsets]
        geometry["offsets"] = [
            s * pivot_offset + math.cos(angle) * distance for distance in distances
        ]
        # Row numbers grow downwards. A counterclockwise tilt moves bands up, to smaller row
        # numbers, if they are dispersed along columns. It moves bands to the right if they are
        # dispersed along rows.
        sign = -1 if axis == -1 else 1
        geometry["across"] = [sign * math.sin(angle) * distance for distance in distances]
        # These two values only limit how exactly the camera solves; they do not change its frames.
        geometry |= {"tolerance": 1e-3, "iterations": 10}
        return TiltedCassi(mask, system.bands, **geometry)

    def _compute_offsets(self, system: SDCassi) -> list[float]:
        """Return o(c), the true offsets of the bands, pixels."""
        half = (system.bands - 1) / 2
        offsets = []
        for c, nominal in enumerate(system.offsets):
            v = (c - half) / max(half, 0.5)
            curve = self.curvature * (3 * v**2 - 1) / 2
            offsets.append(nominal + self.dispersion * (c - 2 * half * self.pivot) + curve)
        return offsets

    def _make_fine_mask(self, system: SDCassi) -> Tensor:
        """Return m', the true mask in parts of a pixel, `(K, 1|C, s·H, s·W)`."""
        # Subclasses have further parameters, which the twin would ignore.
        if type(system) is not SDCassi:
            raise ValueError(f"twin: expected an SDCassi, got {type(system).__name__}")
        if system.band_width > 1:
            raise ValueError(f"twin: expected bands of one pixel, got {system.band_width:g}")
        if system.mask.ndim != 4:
            raise ValueError("twin: expected a camera with one mask for all samples")
        s, mask = self.supersample, _subdivide(system.mask.detach(), self.supersample)
        if any((*self.shift, self.rotation)) or self.magnification != 1:
            shift = [s * value for value in self.shift]
            mask = move_mask(mask, shift, self.rotation, self.magnification)
        if self.mask_blur:
            kernel = line_kernels(s * self.mask_blur, 1).to(mask)
            radius = kernel.shape[-1] // 2
            padded = F.pad(mask, (radius,) * 4, mode="replicate")[None]
            padded = convolve(convolve(padded, kernel, -2), kernel, -1)[0]
            mask = padded[..., radius:-radius, radius:-radius]
        if self.mask_offset or self.mask_contrast != 1:
            mask = self.mask_offset + self.mask_contrast * mask
        if self.band_gain:
            generator = torch.Generator().manual_seed(self.seed)
            loss = self.band_gain * torch.randn(system.bands, 1, 1, generator=generator).abs()
            mask = mask * (1 - loss).clamp_min(0).to(mask)
        return mask

    def _make_gain(self, system: SDCassi) -> Tensor:
        """Return G, the gain of every pixel, `(H', W')`."""
        height, width = system.measurement_shape[1:]
        down = torch.linspace(-1, 1, height)[:, None] if height > 1 else torch.zeros(1, 1)
        right = torch.linspace(-1, 1, width) if width > 1 else torch.zeros(1)
        squares = (down * height) ** 2 + (right * width) ** 2
        gain = 1 - self.vignette * squares / (height**2 + width**2)
        if self.pattern:
            generator = torch.Generator().manual_seed(self.seed)
            gain = gain * (1 + self.pattern * torch.randn(gain.shape, generator=generator))
        return gain.clamp_min(0)

    def _draw_stuck_pixels(self, system: SDCassi) -> tuple[Tensor, Tensor]:
        """Return the dead and the hot pixels, `(H', W')`."""
        shape = system.measurement_shape[1:]
        n_pixels = shape[0] * shape[1]
        order = torch.randperm(n_pixels, generator=torch.Generator().manual_seed(self.seed))
        n_dead, n_hot = round(self.dead * n_pixels), round(self.hot * n_pixels)
        is_stuck = torch.zeros(2, n_pixels, dtype=torch.bool)
        is_stuck[0, order[:n_dead]] = True
        is_stuck[1, order[n_dead : n_dead + n_hot]] = True
        return is_stuck[0].reshape(shape), is_stuck[1].reshape(shape)

    def _make_sensor(self) -> Sensor:
        """Return the sensor of the twin."""
        levels = 2 ** (self.bits if isinstance(self.bits, int) else 0)
        well = float(levels) if self.full_well is None else self.full_well
        gain = well / levels  # electrons per count
        return Sensor(
            exposure=self.exposure,
            qe=self.qe,
            shot=self.shot,  # type: ignore[arg-type]
            full_well=well,
            saturate=self.saturate,
            read=self.read,
            gain=gain,
            offset=self.dark * levels,
            bits=self.bits,
            raw=True,
        )

    def _compute_full_scale(self, bands: int) -> float:
        """Return Y, the value of y that fills a pixel."""
        return bands / (2 * self.exposure)

    def _compute_largest_value(self, bands: int) -> float:
        """Return the value of y at the largest count of the converter."""
        # The largest count is 2^bits − 1, one step below full scale.
        step = 0.0 if self.bits is None else 2.0**-self.bits
        return (1 - step) * self._compute_full_scale(bands)


def _subdivide(image: Tensor, s: int) -> Tensor:
    """Divide every pixel of `(..., H, W)` into s×s equal parts."""
    return image if s == 1 else image.repeat_interleave(s, -2).repeat_interleave(s, -1)
