"""Test the mask of a camera, its position, and the step of the bands against a frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise, product

import torch
from torch import Tensor

from cassi.calibration.correlation import Correlation, Peak
from cassi.calibration.findings import CameraCheck, Finding, reversal_advice
from cassi.camera.evidence import EM_STEPS, Evidence, LogEvidence, Optics
from cassi.camera.windows import MAX_WINDOWS
from cassi.systems import BlurredCassi, SDCassi
from cassi.systems.coded import CodedSystem

MIN_PEAK_RATIO = 1.6
"""A correlation peak must exceed another peak, or chance, by this factor to count."""
SEARCH_GRIDS = ((4, 1.0), (1, 0.5), (1, 0.25))
"""Grids of the search for the shifts of the outermost bands, from coarse to fine.

first: number of steps to each side; second: length of a step, pixels."""
MAX_STARTS = 2
"""Each finer grid is searched around this many of the likeliest results of the coarser grid."""
WHOLE_STEP_TOLERANCE = 0.05
"""If a step differs from a whole number by less than this, pixels per band, the advice is the whole
number."""
MIN_SHIFT_ACROSS, MIN_SHIFT_ALONG = 0.75, 1.0
"""Least shifts with a warning, pixels. Even if the camera is right, coloured light shifts the image
by up to half a pixel along the dispersion.

first: shift of the mask across the dispersion; second: shift of the bands along the dispersion."""
MIN_STANDARD_ERRORS = 3.0
"""Another camera is preferred if its log evidence is higher by this many standard errors."""
TRIAL_FACTORS = (0.95, 1.05)
"""Factors of the step. If the frame is significantly less probable with each of the factors, the
step is confirmed."""
MIN_SIDE = 48
"""Least height and width of a frame in which a mask is searched, pixels."""
# Largest number of pixels that are correlated. Of a larger frame only the middle lines are used.
_MAX_PIXELS = 2**20
MIN_BANDS, MIN_SPAN = 8, 12
"""Conditions for a check of the step. first: fewest bands; second: least span of their offsets,
pixels."""

Transform = Callable[[Tensor], Tensor]
"""A function that flips or transposes a mask."""
POSES: dict[str, tuple[str, Transform]] = {
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
"""Wrong orientations of a mask's file, by name.

first: the advice that corrects the file; second: a function that returns the corrected mask."""


def check_mask(y: Tensor, system: CodedSystem, good_pixels: Tensor | None) -> CameraCheck:
    """Compare a camera with cameras of other poses, shifts and steps of the mask.

    Correlation proposes poses and shifts; a grid search proposes steps. The function warns if the
    frame is significantly more probable under a proposed camera.

    Args:
        y: measurement `(B, K, H', W')`, of about unit brightness.
        system: the camera.
        good_pixels: pixels that count, shaped like y; None: all.

    Returns:
        Warnings, a note and numbers; all empty if the place of the mask is not identifiable.
    """
    # Thresholds on the correlation alone gave false warnings for 10 of 24 right cameras; the log
    # evidence gave none for 40 right cameras (docs/development/experiments/evidence.md).
    mask = _mask_of(system)
    if min(y.shape[-2:]) < MIN_SIDE or min(mask.shape[-2:]) < MIN_SIDE:
        return CameraCheck()
    if repeats(mask) or float(mask.std()) < 1e-3 * float(mask.abs().mean()) + 1e-30:
        # The place of a periodic or constant mask is not identifiable.
        return CameraCheck()
    try:
        comparison = _CameraComparison(y, system, good_pixels)
    except ValueError:
        # No window has light and good pixels.
        return CameraCheck()
    search = _MaskSearch(system, y, good_pixels)
    peak, peaks = search.find(), search.find_poses()
    reverse, remedy = None, reversal_advice(search.offsets)
    if mask.shape[1] > 1 and remedy is not None:
        reverse = search.find(offsets=[max(search.offsets) - offset for offset in search.offsets])
    # A frame shows the mask in one pose at most. The scores of all other poses are chance.
    pose = max(peaks, key=lambda name: peaks[name].score, default="")
    best_peak = peaks.pop(pose, peak)
    chance = max(peak.chance, *(wrong_peak.score for wrong_peak in peaks.values()), 1e-12)
    numbers: dict[str, object] = {
        "correlation": peak.score,
        "chance": chance,
        "mask_shift": [peak.row_shift + peak.row_fraction, float(peak.column_shift)],
    }
    nominal = comparison.nominal
    if pose:
        camera = replace(nominal, masks=system.orient(POSES[pose][1](mask)).float().cpu())
        candidate = camera.moved(best_peak.row_shift, 0.0)
        if comparison.prefers([candidate], [nominal, nominal.moved(peak.row_shift, 0.0)]):
            numbers["pose"] = pose
            finding = _report_pose(system, pose, best_peak, peak)
            return CameraCheck((finding,), "", {"mask": numbers})
    if reverse is not None and reverse.score > MIN_PEAK_RATIO * peak.score:
        message = (
            f"the frame shows the masks of the bands in reverse (correlation {reverse.score:.3f}, "
            f"as given {peak.score:.3f}): {remedy}"
        )
        return CameraCheck((Finding("direction", message),), "", {"mask": numbers})
    if peak.score < MIN_PEAK_RATIO * chance:
        return CameraCheck((_report_absence(peak, chance),), "", {"mask": numbers})
    place_check = _check_shift_and_step(system, search, peak, numbers, comparison)
    note = f"mask pattern found ({peak.score / chance:.0f}× above chance).{place_check.note}"
    return CameraCheck(place_check.warnings, note, {"mask": numbers} | place_check.numbers)


def _report_absence(peak: Peak, chance: float) -> Finding:
    return Finding(
        "mask",
        "the frame does not show it, in no orientation and nowhere within 16 pixels "
        f"(correlation {peak.score:.3f}, by chance {chance:.3f}): is it this camera's, in "
        "focus, and of the frame's scale?",
    )


def _mask_of(system: CodedSystem) -> Tensor:
    """Return the mask `(K, 1|C, H, W)`; if each sample has its own, that of the first sample."""
    mask = system.mask.detach()
    return mask[0] if mask.ndim == 5 else mask


class _CameraComparison:
    """Compares cameras by the log evidence of a frame."""

    def __init__(self, y: Tensor, system: CodedSystem, good_pixels: Tensor | None) -> None:
        self.evidence, self.coarse_evidence = (
            Evidence(y, system, good_pixels, None, n) for n in (MAX_WINDOWS, MAX_WINDOWS // 2)
        )
        offsets = torch.tensor(system.offsets, dtype=torch.float64)
        self.nominal = Optics(system.orient(_mask_of(system)).float().cpu(), offsets)
        self._evidence_of: dict[tuple[object, ...], LogEvidence] = {}

    def prefers(
        self, candidates: Sequence[Optics], references: Sequence[Optics], is_coarse: bool = False
    ) -> bool:
        """Tell whether the frame is significantly more probable under a candidate than a reference.

        The best candidate must be preferred to the best reference twice: with the spectra of
        ordinary scenes, and with the spectra that fit each camera best.

        Args:
            candidates: cameras, one of which may be preferred.
            references: the cameras that it is compared with.
            is_coarse: whether half of the windows decide, in half of the time.
        """
        for em_steps in (0, EM_STEPS):
            best, reference = (
                max(
                    (self._log_evidence(camera, em_steps, is_coarse) for camera in cameras),
                    key=lambda evidence: evidence.total,
                )
                for cameras in (candidates, references)
            )
            nats, errors = best.margin_over(reference)
            if nats <= 0 or errors < MIN_STANDARD_ERRORS:
                return False
        return True

    def coarse_log_evidence(self, camera: Optics) -> float:
        """Return the log evidence of half the windows, with spectra of ordinary scenes, nats."""
        return self._log_evidence(camera, 0, is_coarse=True).total

    def shifted_along(self, camera: Optics, reach: float) -> list[Optics]:
        """Return cameras shifted along the dispersion by −reach to reach pixels, in half pixels."""
        # Coloured light shifts a frame along the dispersion, relative to a frame of white light. If
        # cameras were compared without shifts, there were false warnings for 13 of 24 right cameras
        # of one generator (docs/development/experiments/evidence.md).
        steps = round(2 * reach)
        return [camera.moved(0.0, step / 2) for step in range(-steps, steps + 1)]

    def _log_evidence(self, camera: Optics, em_steps: int, is_coarse: bool) -> LogEvidence:
        offsets = tuple(camera.offsets.tolist())
        key = id(camera.masks), offsets, camera.row_shift, em_steps, is_coarse
        if key not in self._evidence_of:
            evidence = self.coarse_evidence if is_coarse else self.evidence
            self._evidence_of[key] = evidence(camera, em_steps)
        return self._evidence_of[key]


def repeats(mask: Tensor) -> bool:
    """Tell whether a mask is periodic along its rows, as grids of holes and filters are.

    The place of a periodic mask is not identifiable. The correlation of such a mask with itself
    falls and rises again.

    Args:
        mask: mask `(…, H, W)`.
    """
    rows = mask.float()
    rows = (rows - rows.mean((-2, -1), keepdim=True)).flatten(0, -2)
    width = rows.shape[-1]
    power = torch.fft.rfft(rows, 2 * width).abs().square().sum(0)
    correlation = torch.fft.irfft(power, 2 * width)[: width // 2]
    correlation = (
        correlation
        / correlation[0].clamp_min(1e-30)
        * width
        / (width - torch.arange(len(correlation)).to(correlation))
    )
    low_lags = torch.nonzero(correlation < 0.5)
    return len(low_lags) > 0 and bool((correlation[int(low_lags[0]) :] > 0.9).any())


class _MaskSearch:
    """Search for the mask of a camera in a frame by correlation, dispersion along the last axis."""

    def __init__(self, system: CodedSystem, y: Tensor, good_pixels: Tensor | None) -> None:
        self.system, self.mask, self.offsets = system, _mask_of(system), system.offsets
        y = system.orient(y)
        length = y.shape[-2]
        self.lines = min(length, max(128, _MAX_PIXELS // max(y.shape[-1], 1)))
        self.first = (length - self.lines) // 2
        if good_pixels is not None:
            good_pixels = system.orient(good_pixels).narrow(-2, self.first, self.lines)
            good_pixels = good_pixels.expand(len(y), -1, -1, -1)
        self.correlation = Correlation(y.narrow(-2, self.first, self.lines), good_pixels)

    def find(self, transform: Transform = lambda m: m, offsets: Sequence[float] = ()) -> Peak:
        """Return the highest peak of the correlation with a transformed mask."""
        mask = self.system.orient(transform(self.mask)).narrow(-2, self.first, self.lines)
        return self.correlation.find(mask, offsets or self.offsets)

    def find_poses(self) -> dict[str, Peak]:
        """Return the highest peak for each of `POSES` in which the mask looks different."""
        is_square = self.mask.shape[-1] == self.mask.shape[-2]
        peaks = {}
        for pose, (_, transform) in POSES.items():
            swaps_axes = transform(self.mask[..., :1, :2]).shape[-1] == 1
            if (is_square or not swaps_axes) and not self._is_same(transform):
                peaks[pose] = self.find(transform)
        return peaks

    def _is_same(self, transform: Transform) -> bool:
        """Tell whether a transformed mask correlates with the mask by more than a half."""
        a, b = (value.float() - value.float().mean() for value in (self.mask, transform(self.mask)))
        return float((a * b).sum()) > 0.5 * float(a.square().sum())


def _check_shift_and_step(
    system: CodedSystem,
    search: _MaskSearch,
    peak: Peak,
    numbers: dict[str, object],
    comparison: _CameraComparison,
) -> CameraCheck:
    """Check the shift of the mask and the step of the bands.

    In broadband light the step is not identifiable, because a frame shows the light at each offset
    without its wavelength. Then only the shift is checked.
    """
    warnings = []
    down = peak.row_shift + peak.row_fraction
    offsets, bands = search.offsets, len(search.offsets)
    span = max(offsets) - min(offsets)
    is_shared = search.mask.shape[1] == 1 and type(system) in (SDCassi, BlurredCassi)
    if not (is_shared and bands >= MIN_BANDS and span >= MIN_SPAN):
        # Coloured light shifts the frame along the dispersion, as a shifted mask does. So only a
        # shift across the dispersion is checked.
        nominal = comparison.nominal
        if abs(down) >= MIN_SHIFT_ACROSS and comparison.prefers(
            [nominal.moved(down, 0.0)], [nominal]
        ):
            warnings.append(_report_shift(system, down, 0.0))
        return CameraCheck(tuple(warnings))
    pitch, sign = span / (bands - 1), -1 if offsets[0] > offsets[-1] else 1
    nominal = comparison.nominal
    camera_at_peak = nominal.moved(down, 0.0)
    shift_along, _ = _search_end_shifts(comparison, camera_at_peak, lambda end, _: (end, end))
    step, ends = pitch, None
    if not system.is_broadband:
        ends = _find_stretch(comparison, camera_at_peak, span, shift_along)
    if ends is not None:
        shift_along, step = (ends[0] + ends[1]) / 2, pitch * (1 + (ends[1] - ends[0]) / span)
    numbers["mask_shift"] = [down, shift_along]
    is_shifted_along = abs(shift_along) > MIN_SHIFT_ALONG and comparison.prefers(
        comparison.shifted_along(camera_at_peak.moved(0.0, shift_along), 0.5),
        comparison.shifted_along(camera_at_peak, 0.5),
    )
    # A wrong step also shifts the bands along the dispersion. If there is a finding on the step, it
    # explains this shift, so this shift alone gives no finding.
    if ends is not None:
        warnings.append(_report_step(system, offsets, step, shift_along))
    is_shifted_across = abs(down) >= MIN_SHIFT_ACROSS and comparison.prefers(
        [camera_at_peak], [nominal]
    )
    if is_shifted_across or (is_shifted_along and ends is None):
        warnings.append(_report_shift(system, down, shift_along if is_shifted_along else 0.0))
    if system.is_broadband:
        note = " Dispersion: light of all wavelengths does not show it."
    elif ends is not None:
        note = f" Dispersion: {sign * step:.2f} px per band, not {sign * pitch:.4g} as configured."
    elif _is_step_confirmed(comparison, camera_at_peak):
        note = f" Dispersion: {sign * pitch:.4g} px per band, as configured."
    else:
        note = " Dispersion: this light does not show it."
    return CameraCheck(tuple(warnings), note, {"step": step})


def _is_step_confirmed(comparison: _CameraComparison, camera: Optics) -> bool:
    """Tell whether the frame is significantly less probable with larger and smaller steps."""
    return all(
        comparison.prefers(
            [camera], comparison.shifted_along(camera.stretched(factor), 0.5), is_coarse=True
        )
        for factor in TRIAL_FACTORS
    )


def _find_stretch(
    comparison: _CameraComparison, camera: Optics, span: float, shift_along: float
) -> tuple[float, float] | None:
    """Return the shifts of the outermost bands, if another step is significantly more probable."""
    first, last = _search_end_shifts(comparison, camera, lambda *ends: ends)
    if abs(last - first) <= MIN_SHIFT_ALONG:
        return None
    stretched_camera = camera.stretched(1 + (last - first) / span).moved(0.0, (first + last) / 2)
    references = [*comparison.shifted_along(camera, 2.0), camera.moved(0.0, shift_along)]
    is_better = comparison.prefers(comparison.shifted_along(stretched_camera, 1.0), references)
    return (first, last) if is_better else None


def _search_end_shifts(
    comparison: _CameraComparison, camera: Optics, ends: Callable[..., tuple[float, float]]
) -> tuple[float, float]:
    """Search the shifts of the smallest and the largest offset, pixels, on ever finer grids.

    `ends` receives a pair of trial shifts and returns the pair to try, for example equal shifts.
    """
    span = float(camera.offsets.max() - camera.offsets.min())
    best = [(0.0, 0.0)]
    for reach, step in SEARCH_GRIDS:
        moves = list(product([k * step for k in range(-reach, reach + 1)], repeat=2))
        trials = {ends(pair[0] + a, pair[1] + b) for pair in best for a, b in moves}
        nats = {}
        for first, last in sorted(trials):
            trial = camera.stretched(1 + (last - first) / span).moved(0.0, (first + last) / 2)
            nats[first, last] = comparison.coarse_log_evidence(trial)
        best = sorted(nats, key=lambda pair: -nats[pair])[:MAX_STARTS]
    return best[0]


def _report_pose(system: CodedSystem, pose: str, best: Peak, peak: Peak) -> Finding:
    shift = ""
    if abs(best.row_shift) >= 2:
        shift = f", {_describe_shift(best.row_shift, 0, system.axis)}"
    return Finding(
        "mask",
        f"the frame shows it {pose}{shift} (correlation {best.score:.3f}, as given "
        f"{peak.score:.3f}): {POSES[pose][0]}",
    )


def _report_step(
    system: CodedSystem, offsets: Sequence[float], step: float, shift_along: float
) -> Finding:
    sign = -1 if offsets[0] > offsets[-1] else 1
    pitch = (max(offsets) - min(offsets)) / (len(offsets) - 1)
    whole_step = round(step)
    gaps = [next_offset - offset for offset, next_offset in pairwise(offsets)]
    # The advice for a curved dispersion keeps the curve.
    if max(gaps) - min(gaps) > 1e-6 + WHOLE_STEP_TOLERANCE * pitch:
        remedy = f"multiply the distances of system.offsets by {step / pitch:.3f}"
    elif abs(step - whole_step) < WHOLE_STEP_TOLERANCE and whole_step != round(pitch, 6):
        remedy = f"set system.step={sign * whole_step}"
    else:
        remedy = (
            f"set system.step={sign * step:.2f} and "
            f"system.detector={system.measurement_shape[system.axis]}, or multiply the distances "
            f"of system.offsets by {step / pitch:.3f}"
        )
    lowest_shift = shift_along - (step - pitch) * (len(offsets) - 1) / 2
    lowest = "first" if sign > 0 else "last"
    lowest_note = ""
    if abs(lowest_shift) > 1:
        lowest_note = f", the {lowest} band {lowest_shift:+.1f} pixels off"
    return Finding(
        "step",
        f"the frame is far more probable with a step of {sign * step:.2f} than of "
        f"{sign * pitch:.4g}{lowest_note}: {remedy}, or calibrate=true",
    )


def _report_shift(system: CodedSystem, down: float, shift_along: float) -> Finding:
    return Finding(
        "shift",
        f"the mask lies {_describe_shift(down, shift_along, system.axis)} than in the camera: "
        "shift the mask by as much, with zeros at its border, or estimate its place by "
        "cassi-calibrate, or by calibrate=true if it is 2 pixels at most",
    )


def _describe_shift(down: float, shift_along: float, axis: int) -> str:
    """Describe a shift across and along the dispersion in rows and columns of the frame."""
    rows, columns = (shift_along, down) if axis == -2 else (down, shift_along)
    parts = []
    if abs(rows) >= 0.5:
        parts.append(f"{abs(rows):.2g} pixels {'lower' if rows > 0 else 'higher'}")
    if abs(columns) >= 0.5:
        parts.append(f"{abs(columns):.2g} pixels further {'right' if columns > 0 else 'left'}")
    return " and ".join(parts)
