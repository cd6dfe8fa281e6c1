"""Does a frame show the mask of a camera, and where?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise, product

import torch
from torch import Tensor

from cassi.calibration.correlation import Correlation, Peak
from cassi.calibration.findings import CameraCheck, Finding, reversal_advice
from cassi.camera.evidence import EM_STEPS, MAX_WINDOWS, Evidence, LogEvidence, Optics
from cassi.systems import BlurredCassi, SDCassi
from cassi.systems.coded import CodedSystem

CLEARLY = 1.6
"""By which factor a mask must be seen better: another than the camera's, or that than chance."""
ENDS = ((4, 1.0), (1, 0.5), (1, 0.25))
"""Steps of the search for where the outermost bands lie: so many both ways, pixels."""
STARTS = 2
"""Places that each finer search begins at."""
WHOLE = 0.05
"""Pixels per band by which a step is a whole number of pixels."""
SHIFT, ALONG = 0.75, 1.0
"""Pixels by which the mask must be off across the dispersion, and bands along it: light of one
colour lies up to half a pixel beside white light."""
SURE = 3.0
"""Standard errors by which a frame must be more probable under another camera."""
WIDER = (0.95, 1.05)
"""Steps that must be surely less probable than the camera's, to say that the frame shows it."""
LEAST = 48
"""Pixels of each side of a frame, to look for a mask in it."""
_MOST = 2**20  # pixels that are looked at
LEAST_BANDS, LEAST_SPAN = 8, 12
"""Bands, and pixels of dispersion, of which a frame tells the step."""

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


def check_mask(y: Tensor, system: CodedSystem, good: Tensor | None) -> CameraCheck:
    """Compare a camera with those whose mask lies another way, elsewhere, or has other bands.

    Correlation proposes poses and shifts, a grid of places where the bands are. What is proposed is
    warned of where the frame is surely more probable under it.

    Args:
        y: measurement, of about unit brightness.
        system: the camera.
        good: pixels that count; None: all.
    """
    mask = _mask_of(system)
    if min(y.shape[-2:]) < LEAST or min(mask.shape[-2:]) < LEAST:
        return CameraCheck()
    if repeats(mask) or float(mask.std()) < 1e-3 * float(mask.abs().mean()) + 1e-30:
        return CameraCheck()  # nothing that could be seen
    try:
        referee = _Referee(y, system, good)
    except ValueError:
        return CameraCheck()  # no window has light and good pixels
    search = _MaskSearch(system, y, good)
    given, others = search.find(), search.find_turned()
    reverse, remedy = None, reversal_advice(search.offsets)
    if mask.shape[1] > 1 and remedy is not None:
        reverse = search.find(offsets=[max(search.offsets) - each for each in search.offsets])
    # Where the mask is not, its score is chance: everywhere but in one pose.
    pose = max(others, key=lambda name: others[name].score, default="")
    best = others.pop(pose, given)
    chance = max(given.chance, *(each.score for each in others.values()), 1e-12)
    numbers: dict[str, object] = {
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
        return CameraCheck((_turned(system, pose, best, given),), "", {"mask": numbers})
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
    note = f"mask pattern found ({given.score / chance:.0f}× above chance).{found.note}"
    return CameraCheck(found.warnings, note, {"mask": numbers} | found.numbers)


def _mask_of(system: CodedSystem) -> Tensor:
    """Return the mask `(K, 1|C, H, W)`, of the first sample if each has its own."""
    mask = system.mask.detach()
    return mask[0] if mask.ndim == 5 else mask


class _Referee:
    """Decides between the camera and another one: by how probable the frame is under both."""

    def __init__(self, y: Tensor, system: CodedSystem, good: Tensor | None) -> None:
        self.evidence, self.few = (
            Evidence(y, system, good, None, n) for n in (MAX_WINDOWS, MAX_WINDOWS // 2)
        )
        offsets = torch.tensor(system.offsets, dtype=torch.float64)
        self.given = Optics(system.turn(_mask_of(system)).float().cpu(), offsets)
        self._known: dict[tuple[object, ...], LogEvidence] = {}
        self._rough: dict[tuple[object, ...], float] = {}

    def prefers(self, others: Sequence[Optics], beside: Sequence[Optics]) -> bool:
        """Tell whether the frame is surely more probable under one of these than beside them.

        That is asked with the spectra of ordinary scenes, and with those that suit each camera.
        """
        for updates in (0, EM_STEPS):
            best, least = (
                max((self._ask(each, updates) for each in cameras), key=lambda v: v.total)
                for cameras in (others, beside)
            )
            nats, errors = best.margin_over(least)
            if nats <= 0 or errors < SURE:
                return False
        return True

    def rough(self, camera: Optics) -> float:
        """Return the log evidence of half the windows, with the spectra of ordinary scenes."""
        key = tuple(camera.offsets.tolist()), camera.down
        if key not in self._rough:
            self._rough[key] = self.few(camera, 0).total
        return self._rough[key]

    def near(self, camera: Optics, reach: float) -> list[Optics]:
        """Return a camera with its bands moved by up to so many pixels along the dispersion."""
        steps = round(2 * reach)
        return [camera.moved(0.0, step / 2) for step in range(-steps, steps + 1)]

    def _ask(self, camera: Optics, updates: int) -> LogEvidence:
        key = (id(camera.masks), tuple(camera.offsets.tolist()), camera.down, updates)
        if key not in self._known:
            self._known[key] = self.evidence(camera, updates)
        return self._known[key]


def repeats(mask: Tensor) -> bool:
    """Tell whether a mask repeats along its rows, as grids of holes and filters do.

    No frame tells where such a mask lies. Along a row its correlation with itself falls, and rises
    again.
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

    def __init__(self, system: CodedSystem, y: Tensor, good: Tensor | None) -> None:
        self.system, self.mask, self.offsets = system, _mask_of(system), system.offsets
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

    def find(self, image: Image = lambda m: m, offsets: Sequence[float] = ()) -> Peak:
        """Return where a frame shows an image of the mask best."""
        mask = self.system.turn(image(self.mask)).narrow(-2, self.first, self.lines)
        return self.correlation.find(mask, offsets or self.offsets)

    def find_turned(self) -> dict[str, Peak]:
        """Return where a frame shows the mask best in those of `POSES` that look different."""
        square = self.mask.shape[-1] == self.mask.shape[-2]
        found = {}
        for pose, (_, image) in POSES.items():
            quarter = image(self.mask[..., :1, :2]).shape[-1] == 1
            if (square or not quarter) and not self._is_same(image):
                found[pose] = self.find(image)
        return found

    def _is_same(self, image: Image) -> bool:
        """Tell whether a mask looks the same so, by a pixel in a few."""
        a, b = (value.float() - value.float().mean() for value in (self.mask, image(self.mask)))
        return float((a * b).sum()) > 0.5 * float(a.square().sum())


def _check_place(
    system: CodedSystem,
    search: _MaskSearch,
    given: Peak,
    numbers: dict[str, object],
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
    shared = search.mask.shape[1] == 1 and type(system) in (SDCassi, BlurredCassi)
    if not (shared and bands >= LEAST_BANDS and span >= LEAST_SPAN):
        # Along the dispersion, coloured light lies elsewhere than white one.
        own = referee.given
        if abs(down) >= SHIFT and referee.prefers([own.moved(down, 0.0)], [own]):
            warnings.append(_shift(system, down, 0.0))
        return CameraCheck(tuple(warnings))
    pitch, sign = span / (bands - 1), -1 if offsets[0] > offsets[-1] else 1
    own = referee.given
    here = own.moved(down, 0.0)
    along, _ = _likeliest(referee, here, lambda end, _: (end, end))
    step, stretched = pitch, False
    if not system.all_light:
        first, last = _likeliest(referee, here, lambda *ends: ends)
        there = here.stretched(1 + (last - first) / span).moved(0.0, (first + last) / 2)
        nearby = [*referee.near(here, 2.0), here.moved(0.0, along)]
        stretched = abs(last - first) > ALONG and referee.prefers(referee.near(there, 1.0), nearby)
        if stretched:
            along, step = (first + last) / 2, pitch * (1 + (last - first) / span)
    numbers["mask_shift"] = [down, along]
    off = abs(along) > ALONG and referee.prefers(
        referee.near(here.moved(0.0, along), 0.5), referee.near(here, 0.5)
    )
    if stretched:
        warnings.append(_step(system, offsets, step, along))
    moved = abs(down) >= SHIFT and referee.prefers([here], [own])
    if moved or (off and not stretched):
        warnings.append(_shift(system, down, along if off else 0.0))
    if system.all_light:
        note = " Dispersion: light of all wavelengths does not show it."
    elif stretched:
        note = f" Dispersion: {sign * step:.2f} px per band, not {sign * pitch:.4g} as configured."
    elif all(referee.prefers([here], referee.near(here.stretched(w), 0.5)) for w in WIDER):
        note = f" Dispersion: {sign * pitch:.4g} px per band, as configured."
    else:
        note = " Dispersion: this light does not show it."
    return CameraCheck(tuple(warnings), note, {"step": step})


def _likeliest(
    referee: _Referee, here: Optics, ends: Callable[..., tuple[float, float]]
) -> tuple[float, float]:
    """Return by how many pixels the least and the farthest offset lie elsewhere.

    They are searched on a grid, finer and finer.
    """
    span = float(here.offsets.max() - here.offsets.min())
    best = [(0.0, 0.0)]
    for reach, step in ENDS:
        moves = list(product([k * step for k in range(-reach, reach + 1)], repeat=2))
        tried = {ends(each[0] + a, each[1] + b) for each in best for a, b in moves}
        nats = {}
        for first, last in sorted(tried):
            camera = here.stretched(1 + (last - first) / span).moved(0.0, (first + last) / 2)
            nats[first, last] = referee.rough(camera)
        best = sorted(nats, key=lambda each: -nats[each])[:STARTS]
    return best[0]


def _turned(system: CodedSystem, pose: str, best: Peak, given: Peak) -> Finding:
    moved = "" if abs(best.down) < 2 else f", {_moved(best.down, 0, system.axis)}"
    return Finding(
        "mask",
        f"the frame shows it {pose}{moved} (correlation {best.score:.3f}, as given "
        f"{given.score:.3f}): {POSES[pose][0]}",
    )


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
