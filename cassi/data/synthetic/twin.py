"""A digital twin: a camera with defects, its frames, and its true parameters."""

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

_WIDEST = 50  # pixels, of a blur
_NUMBER = ("a finite number", is_number)
_WIDTH = (f"0 to {_WIDEST} pixels", lambda v: is_number(v) and 0 <= v <= _WIDEST)
_NOT_NEGATIVE = ("a number of at least 0", lambda v: is_number(v) and v >= 0)
_SHARE = ("a share in [0, 1)", lambda v: is_number(v) and 0 <= v < 1)
_VALUES: Rules = {
    "shift": ("[down, right]", lambda v: isinstance(v, list | tuple) and len(v) == 2),
    **dict.fromkeys(("rotation", "dispersion", "curvature", "tilt"), _NUMBER),
    "pivot": ("a number from 0 to 1", lambda v: is_number(v) and 0 <= v <= 1),
    "magnification": ("a number > 0", lambda v: is_number(v) and v > 0),
    **dict.fromkeys(("mask_blur", "lens_blur"), _WIDTH),
    "mask_contrast": ("a number in (0, 1]", lambda v: is_number(v) and 0 < v <= 1),
    **dict.fromkeys(("mask_offset", "vignette", "dark", "dead", "hot"), _SHARE),
    **dict.fromkeys(("pattern", "band_gain"), _NOT_NEGATIVE),
}
"""Condition of each value, in words and as a test; `Sensor` checks those of the sensor."""


@dataclass(frozen=True)
class TrueCamera:
    """The true camera of a twin.

    Attributes:
        system: the true mask, dispersion and blur, on the grid of the nominal camera.
        gain: of every pixel, `(H', W')`.
        dark: level of the frame in the dark, in the unit of y.
        bad: True where a pixel is stuck, `(H', W')`.
        noise: a and b of the variance a·(frame − dark) + b, in the unit of y, of pixels that are
            neither stuck nor saturated.
        pivot: the part of the spectrum at its nominal position.
    """

    system: System
    gain: Tensor
    dark: float
    bad: Tensor
    noise: tuple[float, float]
    pivot: float = 0.5

    def correct(self, frame: Tensor) -> Tensor:
        """Correct a frame `(B, K, H', W')` to a measurement of `camera`, up to noise.

        The dark level is subtracted, the gain is divided by, and stuck pixels are zero.
        """
        y = (frame - self.dark) / self.gain.to(frame).clamp_min(1e-6)
        return torch.where(self.bad.to(frame.device), 0, y)

    @property
    def camera(self) -> System:
        """The system, without stuck pixels."""
        return self.system.weighted(bad_pixels=self.bad) if bool(self.bad.any()) else self.system


@dataclass(frozen=True)
class Twin:
    r"""A camera that differs from the nominal one.

        m'_c  = (offset + contrast · (g_μ * T m)_c) · b_c       the mask on the scene
        z     = q_λ * Σ_c S(o(c)) [m'_c · x_c]                  light on the detector
        o(c)  = n(c) + ε·(c − p(C − 1)) + a·P₂(v)               v = 2c/(C − 1) − 1
        frame = sensor(G · z) + dark · Y                        in the unit of y = A x

    T turns and magnifies the mask m about its middle, then shifts it. g_μ and q_λ are Gaussians in
    two dimensions, sampled at pixels. S(d) moves by d pixels. n(c) are the nominal offsets.
    P₂(v) = (3v² − 1)/2 is a Legendre polynomial. Y = C / (2 · exposure) is the y that fills a
    pixel. With a tilt, bands move along a tilted axis, about the position of a band at p. Fractions
    of a pixel are interpolated linearly. A moved or blurred mask is continued by its border, and
    light beside the nominal detector is lost. A band keeps b_c = 1 − band_gain · |N(0, 1)| of its
    light, at least 0. The gain is

        G = (1 − vignette · r²) · (1 + pattern · N(0, 1)),  at least 0

    with r from 0 in the middle of the detector to 1 in its corners. The sensor is
    `cassi.data.sensor.Sensor`, with a gain of full_well / 2^bits electrons per count and the dark
    level as the converter's offset. With `shot`, `read` and `bits` off there is no sensor. At the
    end stuck pixels are set: dead ones to 0, hot ones to full scale.

    The defaults are the nominal camera without noise.

    Args:
        shift: of the mask, pixels (down, right).
        rotation: of the mask, degrees, counterclockwise as displayed with row 0 on top.
        magnification: of the mask's image, above 0.
        mask_blur: μ, standard deviation, pixels.
        mask_offset: transmission where the mask is closed.
        mask_contrast: transmission of the open mask minus that of the closed mask.
        band_gain: scale of the share of light that each band loses, band_gain · |N(0, 1)|.
        dispersion: ε, pixels per band.
        pivot: p, the part of the spectrum that ε does not move; 0 is the first band, 0.5 the
            middle.
        curvature: a, pixels at both ends of the spectrum.
        tilt: of the axis of dispersion, degrees, counterclockwise as displayed.
        lens_blur: λ, standard deviation, pixels, of each band's image on the detector.
        vignette: share of the light that is lost in the corners of the detector.
        pattern: relative standard deviation of the pixels' response.
        dark: level in the dark, a share of full scale.
        exposure: of the sensor; C / (2 · exposure) is the y that fills a pixel.
        qe: quantum efficiency, electrons per photon.
        shot: "poisson", "binomial" (of a known number of photons), or None for light without noise.
        full_well: electrons; None for 2^bits.
        read: standard deviation of the read noise, electrons.
        bits: of the converter; None does not round.
        saturate: clip at the full well and at the converter's range.
        dead: share of pixels that are stuck at 0.
        hot: share of pixels that are stuck at full scale.
        supersample: s. Mask and scene are made of s×s equal parts per pixel, moved and blurred on
            that grid, and a detector pixel is the mean of s×s: fractions of a pixel are then not
            interpolated as reconstructors do it.
        seed: of the pattern and of the places of stuck pixels, the same in every frame.

    Source: the sensor's; pixels and dispersion as `SDCassi` and `cassi-calibrate` have them.

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
        check_values(self, _VALUES, "twin.")
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
            self._sensor()
        except ValueError as error:
            raise ValueError(f"twin.{error}") from None

    @property
    def is_noisy(self) -> bool:
        """Whether its sensor changes the light: noise, or a converter."""
        return bool(self.shot or self.read) or self.bits is not None

    @torch.no_grad()
    def measure(self, x: Tensor, system: SDCassi, generator: torch.Generator) -> Tensor:
        """Take a frame of cubes `(B, C, H, W)` in [0, 1]; `system` is the nominal camera.

        The frame `(B, K, H', W')` is in the unit of y = A x; dark level, gain and stuck pixels are
        in it. The generator is that of the noise.
        """
        light = self.expose(x, system)
        if self.vignette or self.pattern:
            light = light * self._gain(system).to(light)
        if self.is_noisy:
            frame = self._sensor()(light, system.bands, generator)
        else:
            frame = light + self.dark * self._full_scale(system.bands)
        dead, hot = (stuck.to(frame.device) for stuck in self._stuck(system))
        return frame.masked_fill(dead, 0.0).masked_fill(hot, self._most(system.bands))

    @torch.no_grad()
    def expose(self, x: Tensor, system: SDCassi) -> Tensor:
        """Return the light on the detector, z `(B, K, H', W')`, of cubes `(B, C, H, W)`."""
        if self.supersample == 1:
            z: Tensor = self._camera(system)(x)
            return z
        s = self.supersample
        z = self._dispersed(self._fine_mask(system), system, s)(_finer(x, s))
        if self.lens_blur:
            kernel = line_kernels(s * self.lens_blur, 1).to(z)
            z = convolve(convolve(z[:, :, None], kernel, -2), kernel, -1)[:, :, 0]
        return F.avg_pool2d(z, s)

    @torch.no_grad()
    def true_camera(self, system: SDCassi) -> TrueCamera:
        """Return the truth about the camera that takes the frames; `system` is the nominal one."""
        dead, hot = self._stuck(system)
        bands, sensor = system.bands, self._sensor()
        unit, kept = sensor.unit(bands), {"poisson": 1.0, "binomial": 1 - self.qe}
        floor = self.read**2 + (0 if self.bits is None else sensor.gain**2 / 12)
        return TrueCamera(
            self._camera(system),
            self._gain(system),
            self.dark * self._full_scale(bands),
            dead | hot,
            (kept.get(self.shot or "", 0.0) / unit, floor / unit**2),
            self.pivot,
        )

    def _camera(self, system: SDCassi) -> System:
        mask = self._fine_mask(system)
        mask = mask if self.supersample == 1 else F.avg_pool2d(mask, self.supersample)
        if not self.lens_blur:
            return self._dispersed(mask, system)
        s = self.supersample
        # What a pixel of even light sends to a pixel t further, both made of s parts.
        kernel = line_kernels(s * self.lens_blur, 1)[0]
        even = 1 - torch.arange(1 - s, s, dtype=torch.float64).abs() / s
        reach = -(-(len(kernel) // 2 + s - 1) // s)
        room = s * reach + s - 1 - len(kernel) // 2
        kernel = F.conv1d(F.pad(kernel, (room, room))[None, None], even[None, None], stride=s)[0, 0]
        return BlurredCassi(
            mask,
            system.bands,
            detector_spread=torch.outer(kernel, kernel),
            tolerance=1e-3,
            iterations=10,
            axis=system.axis,
            detector=system.detector,
            offsets=self._offsets(system),
        )

    def _dispersed(self, mask: Tensor, system: SDCassi, s: int = 1) -> System:
        """Return the camera of a mask on a grid of s×s parts per pixel, without a lens."""
        axis, offsets = system.axis, self._offsets(system)
        where: dict[str, Any] = {"axis": axis, "detector": s * system.detector}
        if not self.tilt:
            where["offsets"] = [s * offset for offset in offsets]
            return SDCassi(mask, system.bands, **where)
        angle, nominal = math.radians(self.tilt), system.offsets
        stays = (1 - self.pivot) * nominal[0] + self.pivot * nominal[-1]
        reach = [s * (offset - stays) for offset in offsets]
        where["offsets"] = [s * stays + math.cos(angle) * r for r in reach]
        # Rows count downwards: what is turned counterclockwise goes up, or right.
        sign = -1 if axis == -1 else 1
        where["across"] = [sign * math.sin(angle) * r for r in reach]
        where |= {"tolerance": 1e-3, "iterations": 10}
        return TiltedCassi(mask, system.bands, **where)

    def _offsets(self, system: SDCassi) -> list[float]:
        half = (system.bands - 1) / 2
        offsets = []
        for c, nominal in enumerate(system.offsets):
            v = (c - half) / max(half, 0.5)
            curve = self.curvature * (3 * v**2 - 1) / 2
            offsets.append(nominal + self.dispersion * (c - 2 * half * self.pivot) + curve)
        return offsets

    def _fine_mask(self, system: SDCassi) -> Tensor:
        """Return m', `(K, 1|C, s·H, s·W)`."""
        if type(system) is not SDCassi:  # the others move other things
            raise ValueError(f"twin: expected an SDCassi, got {type(system).__name__}")
        if system.band_width > 1:
            raise ValueError(f"twin: expected bands of one pixel, got {system.band_width:g}")
        if system.mask.ndim != 4:
            raise ValueError("twin: expected a camera with one mask for all samples")
        s, mask = self.supersample, _finer(system.mask.detach(), self.supersample)
        if any((*self.shift, self.rotation)) or self.magnification != 1:
            shift = [s * value for value in self.shift]
            mask = move_mask(mask, shift, self.rotation, self.magnification)
        if self.mask_blur:
            kernel = line_kernels(s * self.mask_blur, 1).to(mask)
            reach = kernel.shape[-1] // 2
            wide = F.pad(mask, (reach,) * 4, mode="replicate")[None]
            wide = convolve(convolve(wide, kernel, -2), kernel, -1)[0]
            mask = wide[..., reach:-reach, reach:-reach]
        if self.mask_offset or self.mask_contrast != 1:
            mask = self.mask_offset + self.mask_contrast * mask
        if self.band_gain:
            own = torch.Generator().manual_seed(self.seed)
            lost = self.band_gain * torch.randn(system.bands, 1, 1, generator=own).abs()
            mask = mask * (1 - lost).clamp_min(0).to(mask)
        return mask

    def _gain(self, system: SDCassi) -> Tensor:
        height, width = system.measurement_shape[1:]
        down = torch.linspace(-1, 1, height)[:, None] if height > 1 else torch.zeros(1, 1)
        right = torch.linspace(-1, 1, width) if width > 1 else torch.zeros(1)
        squares = (down * height) ** 2 + (right * width) ** 2
        gain = 1 - self.vignette * squares / (height**2 + width**2)
        if self.pattern:
            own = torch.Generator().manual_seed(self.seed)
            gain = gain * (1 + self.pattern * torch.randn(gain.shape, generator=own))
        return gain.clamp_min(0)

    def _stuck(self, system: SDCassi) -> tuple[Tensor, Tensor]:
        """Return the dead and the hot pixels, `(H', W')`."""
        shape = system.measurement_shape[1:]
        pixels = shape[0] * shape[1]
        places = torch.randperm(pixels, generator=torch.Generator().manual_seed(self.seed))
        dead, hot = round(self.dead * pixels), round(self.hot * pixels)
        found = torch.zeros(2, pixels, dtype=torch.bool)
        found[0, places[:dead]] = True
        found[1, places[dead : dead + hot]] = True
        return found[0].reshape(shape), found[1].reshape(shape)

    def _sensor(self) -> Sensor:
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

    def _full_scale(self, bands: int) -> float:
        """Return Y, the y that fills a pixel."""
        return bands / (2 * self.exposure)

    def _most(self, bands: int) -> float:
        """Return the y of the converter's highest count."""
        lost = 0.0 if self.bits is None else 2.0**-self.bits
        return (1 - lost) * self._full_scale(bands)


def _finer(image: Tensor, s: int) -> Tensor:
    """Divide every pixel of `(..., H, W)` into s×s equal ones."""
    return image if s == 1 else image.repeat_interleave(s, -2).repeat_interleave(s, -1)
