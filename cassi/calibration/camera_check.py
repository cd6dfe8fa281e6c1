"""Is the camera right? What a frame, and a cube made of it, say for and against it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor

from cassi.calibration.correlation import Correlation, Peak
from cassi.calibration.response import Response
from cassi.calibration.spectra import Statistics, comb, strangeness
from cassi.camera.evidence import UPDATES, WINDOWS, Evidence, Optics, Verdict
from cassi.checks import clipped_level
from cassi.solvers.statistics import unit_of
from cassi.systems import BlurredCassi, DDCassi, SDCassi, System, WideCassi
from cassi.systems.arguments import as_measurement
from cassi.systems.band_positions import find_places
from cassi.systems.coded import CodedSystem

CLEARLY = 1.6
"""By which factor a mask must be seen better: another than the camera's, or that than chance."""
ENDS = ((4, 1.0), (1, 0.5), (1, 0.25))
"""Steps of the search for where the outermost bands lie: so many both ways, pixels."""
STARTS = 2
"""Places that each finer search begins at."""
WHOLE = 0.05
"""Pixels per band by which a step is a whole number of pixels."""
SHIFT = 0.75
"""Pixels by which the mask must be off across the dispersion; along it 1 more than half."""
SURE = 3.0
"""Standard errors by which a frame must be more probable under another camera."""
WIDER = (0.95, 1.05)
"""Steps that must be surely less probable than the camera's, to say that the frame shows it."""
REVERSED = -0.1
"""Of `direction`: below it spectra are taken to be in reverse."""
ORDINARY = 6.0
"""Of the mean spectrum in `strangeness`: beyond, lamp and sensor are in it."""
LIT = 5.5
"""The same in the light of lamps: beyond, the spectra are those of a wrong camera, or of an odd
light. In right cubes of 20 drawn cameras it is 0.3 to 2.7, under lamps above 5.5 in 3 of 120."""
LIT_LESS = 5.0
"""Lamps and sensors differ, so that in their light the direction is so much less sure."""
COMB, COMB_BETWEEN = 0.05, 0.2
"""Share of the spectra that may alternate from band to band: with bands on whole pixels, and
between them, where interpolation blurs every band by another fraction. Of right cameras that were
drawn (`scripts/benchmarks/lab.py`) it was 0.4 to 13 %, of a mask half a pixel off 38 and 40 %."""
CLIPPED = 1e-4
"""Share of the pixels that may have exactly the largest value."""
NEGATIVE = 0.03
"""Share of the light that may be negative."""
UNUSED = 0.02
"""Share of the light that may lie where no band falls."""
LOST = 0.1
"""Share of a band's light that may fall beside the detector."""
EDGE, EVEN = 0.03, 0.25
"""A dark level that was not subtracted: of the typical light, and of the bright pixels of the edge.
Of 18 real frames and 8 cameras drawn by `lab.py` it is 0 without it, and 0.035 to 0.7 with it."""
LEAST = 48
"""Pixels of each side of a frame, to look for a mask in it."""
_MOST = 2**20  # pixels that are looked at
LEAST_BANDS, LEAST_SPAN = 8, 12
"""Bands, and pixels of dispersion, of which a frame tells the step."""
UNKNOWN = "Direction: cannot be measured in a frame"
_CUBE = 2**24  # values of a cube
_TO_CALIBRATE = re.compile(
    r",? or (by )?calibrate=true( if it is 2 pixels at most)?| \(calibrate=true\)"
)

Image = Callable[[Tensor], Tensor]
POSES: dict[str, tuple[str, Image]] = {
    "mirrored left to right": ("give mask[:, ::-1]", lambda m: m.flip(-1)),
    "upside down": ("give mask[::-1]", lambda m: m.flip(-2)),
    "turned by 180 degrees": ("give mask[::-1, ::-1]", lambda m: m.flip(-2, -1)),
    "transposed": ("set axes.mask=WH, or give mask.T", lambda m: m.mT),
    "turned by 90 degrees clockwise": ("give numpy.rot90(mask, -1)", lambda m: m.mT.flip(-1)),
    "turned by 90 degrees counterclockwise": ("give numpy.rot90(mask)", lambda m: m.mT.flip(-2)),
    "transposed about the other diagonal": (
        "give mask.T[::-1, ::-1]",
        lambda m: m.mT.flip(-2, -1),
    ),
}
"""Ways in which a mask's file may lie wrong, what to do, and the mask as it then is."""


@dataclass(frozen=True)
class Finding:
    """One thing that speaks against a camera.

    Attributes:
        about: dark, mask, step, shift, direction, detector, light, spectra or weights.
        message: what is seen, and the value to set.
    """

    about: str
    message: str


@dataclass(frozen=True)
class CameraCheck:
    """What was found.

    Attributes:
        warnings: at most one of each kind.
        note: what the frame shows of the camera, in one line.
        numbers: behind it.
    """

    warnings: tuple[Finding, ...] = ()
    note: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)

    def __add__(self, other: CameraCheck) -> CameraCheck:
        """Put two together."""
        note = " ".join(part for part in (self.note, other.note) if part)
        return CameraCheck(self.warnings + other.warnings, note, self.numbers | other.numbers)

    def lines(self) -> list[str]:
        """Return it as a person reads it, a line each."""
        notes = [f"camera check: {self.note}"] if self.note else []
        return notes + [f"warning: {each.about}: {each.message}" for each in self.warnings]


@torch.no_grad()
def check_camera(
    y: Tensor,
    system: System,
    x: Tensor | None = None,
    wavelengths: Sequence[float] | None = None,
) -> CameraCheck:
    r"""Ask a measurement whether its camera can be right.

    The correlation of a frame with its mask is the mean spectrum along the dispersion, and chance
    elsewhere (`Correlation`). So it proposes which way up the mask may be, where it may lie, and
    between which offsets light may fall. What is proposed is a camera. It is warned of where the
    frame is surely more probable under it (`cassi.camera.evidence`).

    **It cannot tell the sign of the step.** With one mask for all bands and the bands in reverse,
    y = Σ_c S(o(c)) [m·x_c] is the same frame of the same cube in reverse. What then speaks is the
    cube alone: spectra of ordinary scenes are not the same backwards (`direction`).

    Args:
        y: measurement `(B, K, H', W')` of one camera, a tensor or an array.
        system: the camera; of one that is no `cassi.SDCassi` fewer things are asked.
        x: cube `(1, C, H, W)` that was reconstructed; its spectra are checked too.
        wavelengths: nm, one per band, increasing; without them x does not tell the sign.

    Returns:
        Warnings, each with the value to set; a line on what is seen; numbers.

    Raises:
        ValueError: y does not fit the camera.

    >>> mask = (torch.rand(96, 96, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    >>> camera = SDCassi(mask, bands=8, step=2)
    >>> y = camera(torch.ones(1, 8, 96, 96))
    >>> [each.about for each in check_camera(y, SDCassi(mask.flip(-1), bands=8, step=2)).warnings]
    ['mask']
    """
    y = as_measurement(y, system)
    plain, good = system.plain, system.good_pixels
    found = _check_detector(y, plain, good) + _check_light(y, good)
    if isinstance(plain, CodedSystem):
        scaled = system.without_bad_pixels(y)
        scaled = scaled / unit_of(scaled).amax()
        found += _check_mask(scaled, plain, good)
    if x is not None and not shows_another_mask(found):
        found += check_spectra(x, plain, wavelengths)
    return found


def shows_another_mask(found: CameraCheck) -> bool:
    """Tell whether a frame shows another mask than the camera's: then its cube has no spectra."""
    return any(each.about == "mask" for each in found.warnings)


def of_calibrated(found: CameraCheck) -> CameraCheck:
    """Return what was found without the advice to calibrate, of a camera that was calibrated."""
    warnings = tuple(
        replace(each, message=_TO_CALIBRATE.sub("", each.message)) for each in found.warnings
    )
    return replace(found, warnings=warnings)


def check_spectra(
    x: Tensor,
    system: System,
    wavelengths: Sequence[float] | None = None,
    white: Response | None = None,
) -> CameraCheck:
    """Ask the spectra of a cube whether its camera can be right.

    Its own light tells more than its reflectances: lamps and sensors have little blue, whichever
    way the bands are. Only in a light that is none of `prefer` reflectances are asked.

    Args:
        x: cube `(1, C, H, W)`, as the camera counts.
        system: the camera.
        wavelengths: nm, one per band, increasing.
        white: what the camera makes of white, where it is known.
    """
    if wavelengths is None and getattr(system, "codes_frames", False):
        return CameraCheck()  # the bands are frames, which have no spectra
    warnings = []
    share = comb(x[0])
    offsets = system.offsets if isinstance(system, CodedSystem) else ()
    whole = all(float(offset).is_integer() for offset in offsets)
    if share > (COMB if whole else COMB_BETWEEN):
        message = (
            f"they alternate from band to band by {share:.0%} of the light, as spectra of scenes "
            "do not: look for a mask that is a fraction of a pixel off (calibrate=true), or for "
            "gain that alternates between columns (flat=FILE)"
        )
        warnings.append(Finding("spectra", message))
    numbers: dict[str, Any] = {"comb": share}
    score = None if wavelengths is None else prefer(x[0], wavelengths)
    if score is None and wavelengths is not None and white is not None:
        score = prefer(white.scene(x[0]), wavelengths, reflectance=True)
    remedy = _reverse(system)
    if remedy is None:
        return CameraCheck(tuple(warnings), "", numbers)
    numbers["direction"] = score
    if score is None:
        why = "without wavelengths" if wavelengths is None else "like these"
        note = f"Direction: cannot be measured in a frame, nor in spectra {why}."
    elif score < REVERSED:
        note = f"{UNKNOWN}; the recovered spectra look reversed ({score:+.1f})."
        message = (
            "spectra are more like those of ordinary scenes with the bands in reverse "
            f"(by {-score:.1f}), and no frame tells the sign of the step: {remedy}, unless colours "
            "are right as they are; or wavelengths= are not those of the camera"
        )
        warnings.append(Finding("direction", message))
    elif score <= -REVERSED:
        note = f"{UNKNOWN}; the recovered spectra do not show it ({score:+.1f})."
    else:
        note = f"{UNKNOWN}; the recovered spectra are consistent with it ({score:+.1f})."
    return CameraCheck(tuple(warnings), note, numbers)


def prefer(
    x: Tensor,
    wavelengths: Sequence[float],
    reflectance: bool = False,
    known: Statistics | None = None,
) -> float | None:
    """Return by how much spectra are likelier as they are than in reverse.

    It is their `direction`. Where a mean spectrum is unlike that of ordinary scenes both ways, lamp
    and sensor are in it: it is compared with scenes in the light of lamps. Covariances do not count
    then, for noise and stray light are in those of dark bands.

    Args:
        x: cube `(C, H, W)`.
        wavelengths: nm, one per band, increasing.
        reflectance: x is known to be one.
        known: statistics of ordinary scenes; those of the package if None.

    Returns:
        The difference of logarithms; None where too few wavelengths are covered, or where spectra
        are unlike those of scenes in any light.
    """
    costs = strangeness(x, wavelengths, known)
    if costs is None:
        return None
    if not reflectance and min(costs, key=sum)[1] > ORDINARY:
        costs = [(0.0, mean) for _, mean in strangeness(x, wavelengths, known, lit=True) or costs]
        if min(costs)[1] > LIT:
            return None
        costs = [(0.0, mean / LIT_LESS) for _, mean in costs]
    return sum(costs[1]) - sum(costs[0])


def _reverse(system: System) -> str | None:
    """Return what reverses the bands; None where a frame tells, or nothing is dispersed."""
    if isinstance(system, DDCassi):
        return _other_way(system.mask_offsets)
    if not isinstance(system, CodedSystem) or system.mask.shape[-3] > 1:
        return None
    return _other_way(system.offsets)


def _other_way(offsets: Sequence[float]) -> str | None:
    """Return what to set for bands in reverse; None where nothing is dispersed."""
    if max(offsets) == min(offsets):
        return None
    gaps = {round(after - before, 6) for before, after in pairwise(offsets)}
    if len(gaps) == 1:
        return f"set system.step={-gaps.pop():g}"
    return "reverse system.offsets (dispersion: the sign of its step, or of its coefficients)"


def _check_light(y: Tensor, good: Tensor | None) -> CameraCheck:
    values = y.flatten() if good is None else y[good.expand_as(y)]
    total = values.abs().sum().clamp_min(torch.finfo(y.dtype).tiny)
    warnings = []
    top = values.max()
    clipped = int((values == top).sum())
    # Neighbouring values of a coarse converter are as frequent as the largest one by chance.
    below = int(((values < top) & (values >= 0.99 * top)).sum())
    many = clipped > CLIPPED * values.numel() and clipped > below / 4
    if many and clipped_level(values) is not None:
        message = (
            f"{clipped} pixels ({clipped / values.numel():.2g} of them) have the largest value: "
            "the sensor is saturated there; set saturation= to that level of the raw frame, which "
            "leaves them out"
        )
        warnings.append(Finding("light", message))
    negative = float(values.clamp(max=0).abs().sum() / total)
    if negative > NEGATIVE:
        message = (
            f"{negative:.1%} of it is negative: too much was subtracted; set dark= to the sensor's "
            "dark level, or dark=auto"
        )
        warnings.append(Finding("light", message))
    numbers = {"largest_value": clipped, "negative": negative}
    return CameraCheck(tuple(warnings[:1]), "", {"light": numbers})


def _check_detector(y: Tensor, system: System, good: Tensor | None) -> CameraCheck:
    """Find a dark level at the edges, bands beside the detector, and light where no band falls."""
    warnings = []
    axis = system.part_axis
    if axis is not None:  # the cube is never whole in memory
        length = system.cube_shape[axis]
        lines = min(length, max(1, _CUBE * length // math.prod(system.cube_shape)))
        first = (length - lines) // 2
        system, y = system.part(first, first + lines), y.narrow(axis, first, lines)
        good = None if good is None else good.narrow(axis, first, lines)
    places = find_places(system)
    lost = [band for band, place in enumerate(places, 1) if place.lost > LOST]
    if lost:
        message = (
            f"{len(lost)} bands fall beside it (bands {lost[0]} to {lost[-1]}, up to "
            f"{max(place.lost for place in places):.0%} of their light): set system.offsets or "
            "system.detector to the camera's, or leave them out"
        )
        warnings.append(Finding("detector", message))
    # Lines along which no band falls anywhere; a single dark pixel holds noise.
    across = -3 - system.axis if isinstance(system, CodedSystem) else -2
    even = torch.ones((1, *system.cube_shape), dtype=torch.float32, device=y.device)
    white: Tensor = system(even)
    reached = (white > 0).any(across, keepdim=True).expand_as(white)
    if good is not None:
        reached = reached | ~good
    # Noise averages out.
    total = y.sum().clamp_min(torch.finfo(y.dtype).tiny)
    unused = max(float(torch.where(reached, 0, y).sum() / total), 0.0)
    dark = _find_dark(y, white, system, good) if isinstance(system, CodedSystem) else 0.0
    if dark > EDGE:
        message = (
            f"the unlit edge of the frame is at {dark:.1%} of its typical light: set dark=auto or "
            "dark=FILE; further warnings may come from it"
        )
        warnings.insert(0, Finding("dark", message))
    elif unused > UNUSED and not lost:
        message = (
            f"{unused:.1%} of the light lies where no band falls: system.bands or system.offsets "
            "do not reach as far as the light, or system.detector is too large; window= cuts it off"
        )
        warnings.append(Finding("detector", message))
    numbers = {"edge": dark, "unused": unused, "lost_bands": lost}
    return CameraCheck(tuple(warnings), "", numbers)


def _find_dark(y: Tensor, white: Tensor, system: CodedSystem, good: Tensor | None) -> float:
    """Return the level of a frame's edges that the light of their code does not explain.

    One band at most reaches an edge. What it brings has the contrast of the mask there: from a
    white scene w₀ at its dark pixels and w₁ at its bright ones. Of y₀ and y₁ in the frame, that
    leaves y₀ − (y₁ − y₀) w₀/(w₁ − w₀). A scene only adds contrast.

    Args:
        y: measurement.
        white: that of a white scene, `(1, K, H', W')`.
        system: the camera.
        good: pixels that count; None: all.

    Returns:
        A share of the frame's median, 0 where the edges have contrast, or many bands reach them.
    """
    shares = torch.tensor([0.05, 0.95], device=y.device)
    counts = torch.ones_like(y, dtype=torch.bool) if good is None else good.expand_as(y)
    typical = float(y[counts].median())
    length, width = y.shape[system.axis], max(1, abs(system.step))
    levels = []
    for first in (0, length - width):
        there, light, edge = (
            each.narrow(system.axis, first, width) for each in (counts, white.expand_as(y), y)
        )
        if int(there.sum()) < LEAST or float(light.median()) > 0.5 * float(white.median()):
            continue
        (w0, w1), (y0, y1) = (each[there].quantile(shares).tolist() for each in (light, edge))
        level = y0 - (y1 - y0) * w0 / (w1 - w0) if w1 > w0 else y0 * (w1 == 0)
        levels.append(level if level > EVEN * y1 else 0.0)
    return max(min(levels, default=0.0) / max(typical, torch.finfo(y.dtype).tiny), 0.0)


def _check_mask(y: Tensor, system: CodedSystem, good: Tensor | None) -> CameraCheck:
    mask = system.mask.detach()
    mask = mask[0] if mask.ndim == 5 else mask
    if min(y.shape[-2:]) < LEAST or min(mask.shape[-2:]) < LEAST:
        return CameraCheck()
    if repeats(mask) or float(mask.std()) < 1e-3 * float(mask.abs().mean()) + 1e-30:
        return CameraCheck()  # nothing that could be seen
    try:
        referee = _Referee(y, system, good)
    except ValueError:
        return CameraCheck()  # no window has light and good pixels
    offsets = system.offsets
    search = _MaskSearch(system, y, good, mask, offsets)
    given = search.find(lambda m: m)
    others = {}
    square = mask.shape[-1] == mask.shape[-2]
    for pose, (_, image) in POSES.items():
        quarter = image(mask[..., :1, :2]).shape[-1] == 1
        if (quarter and not square) or search.is_same(image):
            continue
        others[pose] = search.find(image)
    reverse, remedy = None, _other_way(offsets)
    if mask.shape[1] > 1 and remedy is not None:
        reverse = search.find(lambda m: m, tuple(max(offsets) - each for each in offsets))
    # Where the mask is not, its score is chance: everywhere but in one pose.
    pose = max(others, key=lambda name: others[name].score, default="")
    best = others.pop(pose, given)
    chance = max(given.chance, *(each.score for each in others.values()), 1e-12)
    numbers: dict[str, Any] = {
        "correlation": given.score,
        "chance": chance,
        "mask_shift": [given.down + given.fraction, float(given.along)],
    }
    own = referee.given
    if pose and referee.prefers(
        [replace(own, masks=system.turn(POSES[pose][1](mask)).float().cpu()).moved(best.down, 0.0)],
        [own, own.moved(given.down, 0.0)],
    ):
        numbers["pose"] = pose
        moved = "" if abs(best.down) < 2 else f", {_moved(best.down, 0, system.axis)}"
        message = (
            f"the frame shows it {pose}{moved} (correlation {best.score:.3f}, as given "
            f"{given.score:.3f}): {POSES[pose][0]}"
        )
        return CameraCheck((Finding("mask", message),), "", {"mask": numbers})
    if reverse is not None and reverse.score > CLEARLY * given.score:
        message = (
            f"the frame shows the masks of the bands in reverse (correlation {reverse.score:.3f}, "
            f"as given {given.score:.3f}): {remedy}"
        )
        return CameraCheck((Finding("direction", message),), "", {"mask": numbers})
    if given.score < CLEARLY * chance:
        message = (
            "the frame does not show it, in no orientation and nowhere within 16 pixels "
            f"(correlation {given.score:.3f}, by chance {chance:.3f}): is it this camera's, in "
            "focus, and of the frame's scale?"
        )
        return CameraCheck((Finding("mask", message),), "", {"mask": numbers})
    found = _check_place(system, search, given, numbers, referee)
    return CameraCheck(found.warnings, found.note, {"mask": numbers} | found.numbers)


class _Referee:
    """Decides between the camera and another one: by how probable the frame is under both.

    Args:
        y: measurement.
        system: the camera.
        good: pixels that count; None: all.
    """

    def __init__(self, y: Tensor, system: CodedSystem, good: Tensor | None) -> None:
        mask = system.mask.detach()
        mask = mask[0] if mask.ndim == 5 else mask
        self.evidence, self.few = (
            Evidence(y, system, good, None, n) for n in (WINDOWS, WINDOWS // 2)
        )
        offsets = torch.tensor(system.offsets, dtype=torch.float64)
        self.given = Optics(system.turn(mask).float().cpu(), offsets)
        self._known: dict[Any, Verdict] = {}
        self._rough: dict[Any, float] = {}

    def prefers(self, others: Sequence[Optics], beside: Sequence[Optics]) -> bool:
        """Tell whether the frame is surely more probable under one of these than beside them.

        That is asked with the spectra of ordinary scenes, and with those that suit each camera.
        """
        for updates in (0, UPDATES):
            best, least = (
                max((self._ask(each, updates) for each in cameras), key=lambda v: v.total)
                for cameras in (others, beside)
            )
            nats, errors = best.over(least)
            if nats <= 0 or errors < SURE:
                return False
        return True

    def rough(self, camera: Optics) -> float:
        """Return the log evidence of half the windows, with the spectra of ordinary scenes."""
        key = tuple(camera.offsets.tolist()), camera.pose
        if key not in self._rough:
            self._rough[key] = self.few(camera, 0).total
        return self._rough[key]

    def near(self, camera: Optics, reach: float) -> list[Optics]:
        """Return a camera with its bands moved by up to so many pixels along the dispersion."""
        steps = round(2 * reach)
        return [camera.moved(0.0, step / 2) for step in range(-steps, steps + 1)]

    def _ask(self, camera: Optics, updates: int) -> Verdict:
        key = (id(camera.masks), tuple(camera.offsets.tolist()), camera.pose, updates)
        if key not in self._known:
            self._known[key] = self.evidence(camera, updates)
        return self._known[key]


def repeats(mask: Tensor) -> bool:
    """Tell whether a mask repeats along its rows, as grids of holes and filters do.

    No frame tells where such a mask lies. Along a row its correlation with itself falls, and rises
    again.

    Args:
        mask: `(K, 1|C, H, W)`.
    """
    rows = mask.float()
    rows = (rows - rows.mean((-2, -1), keepdim=True)).flatten(0, -2)
    width = rows.shape[-1]
    power = torch.fft.rfft(rows, 2 * width).abs().square().sum(0)
    alike = torch.fft.irfft(power, 2 * width)[: width // 2]
    alike = alike / alike[0].clamp_min(1e-30) * width / (width - torch.arange(len(alike)).to(alike))
    fallen = torch.nonzero(alike < 0.5)
    return len(fallen) > 0 and bool((alike[int(fallen[0]) :] > 0.9).any())


class _MaskSearch:
    """A frame with its camera's mask, dispersion along the last axis."""

    def __init__(
        self,
        system: CodedSystem,
        y: Tensor,
        good: Tensor | None,
        mask: Tensor,
        offsets: tuple[float, ...],
    ) -> None:
        self.system, self.mask, self.offsets = system, mask, offsets
        y = system.turn(y)
        length = y.shape[-2]
        self.lines = min(length, max(128, _MOST // max(y.shape[-1], 1)))
        self.first = (length - self.lines) // 2
        self.correlation = Correlation(
            y.narrow(-2, self.first, self.lines),
            None
            if good is None
            else system.turn(good).narrow(-2, self.first, self.lines).expand(len(y), -1, -1, -1),
        )

    def cut(self, image: Image) -> Tensor:
        mask = self.system.turn(image(self.mask))
        return mask.narrow(-2, self.first, self.lines)

    def find(self, image: Image, offsets: tuple[float, ...] | None = None) -> Peak:
        return self.correlation.find(self.cut(image), offsets or self.offsets)

    def is_same(self, image: Image) -> bool:
        """Tell whether a mask looks the same so, by a pixel in a few."""
        a, b = (value.float() - value.float().mean() for value in (self.mask, image(self.mask)))
        return float((a * b).sum()) > 0.5 * float(a.square().sum())


def _check_place(
    system: CodedSystem,
    search: _MaskSearch,
    given: Peak,
    numbers: dict[str, Any],
    referee: _Referee,
) -> CameraCheck:
    """Ask where the mask lies, and how far apart the bands do.

    Of light of all wavelengths a frame shows how much falls at each offset, and not which
    wavelength: it does not tell the step.
    """
    warnings = []
    down = given.down + given.fraction
    offsets, bands = search.offsets, len(search.offsets)
    span = max(offsets) - min(offsets)
    note = f"mask pattern found ({given.score / numbers['chance']:.0f}× above chance)."
    shared = search.mask.shape[1] == 1 and type(system) in (SDCassi, BlurredCassi, WideCassi)
    if not (shared and bands >= LEAST_BANDS and span >= LEAST_SPAN):
        # Along the dispersion, coloured light lies elsewhere than white one.
        own = referee.given
        if abs(down) >= SHIFT and referee.prefers([own.moved(down, 0.0)], [own]):
            warnings.append(_shift(system, down, 0.0))
        return CameraCheck(tuple(warnings), note, {})
    pitch, sign = span / (bands - 1), -1 if offsets[0] > offsets[-1] else 1
    own = referee.given
    here = own.moved(down, 0.0)
    along, _ = _likeliest(referee, here, lambda end, _: (end, end))
    step, stretched = pitch, False
    if not system.all_light:
        first, last = _likeliest(referee, here, lambda *ends: ends)
        there = here.stretched(1 + (last - first) / span).moved(0.0, (first + last) / 2)
        nearby = [*referee.near(here, 2.0), here.moved(0.0, along)]
        stretched = abs(last - first) > 1.0 and referee.prefers(referee.near(there, 1.0), nearby)
        if stretched:
            along, step = (first + last) / 2, pitch * (1 + (last - first) / span)
    numbers["mask_shift"] = [down, along]
    off = abs(along) > 1.0 and referee.prefers(
        referee.near(here.moved(0.0, along), 0.5), referee.near(here, 0.5)
    )
    if stretched:
        warnings.append(_step(system, offsets, step, along))
    moved = abs(down) >= SHIFT and referee.prefers([here], [own])
    if moved or (off and not stretched):
        warnings.append(_shift(system, down, along if off else 0.0))
    if system.all_light:
        note += " Dispersion: light of all wavelengths does not show it."
    elif stretched:
        note += f" Dispersion: {sign * step:.2f} px per band, not {sign * pitch:.4g} as configured."
    elif all(referee.prefers([here], referee.near(here.stretched(w), 0.5)) for w in WIDER):
        note += f" Dispersion: {sign * pitch:.4g} px per band, as configured."
    else:
        note += " Dispersion: this light does not show it."
    return CameraCheck(tuple(warnings), note, {"step": step})


def _likeliest(
    referee: _Referee, here: Optics, ends: Callable[..., tuple[float, float]]
) -> tuple[float, float]:
    """Return by how many pixels the least and the farthest offset lie elsewhere.

    They are searched on a grid, finer and finer.

    Args:
        referee: of the frame.
        here: the camera.
        ends: both, of the places on the grid.
    """
    span = float(here.offsets.max() - here.offsets.min())
    best = [(0.0, 0.0)]
    for reach, step in ENDS:
        ways = product(best, *2 * [[k * step for k in range(-reach, reach + 1)]])
        nats = {}
        for first, last in sorted({ends(first + a, last + b) for (first, last), a, b in ways}):
            camera = here.stretched(1 + (last - first) / span).moved(0.0, (first + last) / 2)
            nats[first, last] = referee.rough(camera)
        best = sorted(nats, key=lambda each: -nats[each])[:STARTS]
    return best[0]


def _step(system: CodedSystem, offsets: Sequence[float], step: float, along: float) -> Finding:
    sign = -1 if offsets[0] > offsets[-1] else 1
    pitch = (max(offsets) - min(offsets)) / (len(offsets) - 1)
    whole = round(step)
    gaps = [after - before for before, after in pairwise(offsets)]
    if max(gaps) - min(gaps) > 1e-6 + WHOLE * pitch:  # a curve stays a curve
        remedy = f"multiply the distances of system.offsets by {step / pitch:.3f}"
    elif abs(step - whole) < WHOLE and whole != round(pitch, 6):
        remedy = f"set system.step={sign * whole}"
    else:
        remedy = (
            f"set system.step={sign * step:.2f} and "
            f"system.detector={system.measurement_shape[system.axis]}, or multiply the distances "
            f"of system.offsets by {step / pitch:.3f}"
        )
    off = along - (step - pitch) * (len(offsets) - 1) / 2
    lowest = "first" if sign > 0 else "last"
    more = f", the {lowest} band {off:+.1f} pixels off" if abs(off) > 1 else ""
    return Finding(
        "step",
        f"the frame is far more probable with a step of {sign * step:.2f} than of "
        f"{sign * pitch:.4g}{more}: {remedy}, or calibrate=true",
    )


def _shift(system: CodedSystem, down: float, along: float) -> Finding:
    return Finding(
        "shift",
        f"the mask lies {_moved(down, along, system.axis)} than the camera has it: move it, "
        "with zeros where it leaves the frame, or find where it is by cassi-calibrate, or by "
        "calibrate=true if it is 2 pixels at most",
    )


def _moved(down: float, along: float, axis: int) -> str:
    """Say a shift across and along the dispersion in rows and columns."""
    rows, columns = (along, down) if axis == -2 else (down, along)
    said = []
    if abs(rows) >= 0.5:
        said.append(f"{abs(rows):.2g} pixels {'lower' if rows > 0 else 'higher'}")
    if abs(columns) >= 0.5:
        said.append(f"{abs(columns):.2g} pixels further {'right' if columns > 0 else 'left'}")
    return " and ".join(said)
