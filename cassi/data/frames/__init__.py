"""Correct a raw frame to a measurement: dark level, flat field, bad pixels, saturation, window."""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cassi.checks import Rules, check_values, clipped_level, is_list, is_number, whole_number
from cassi.data.frames.pixels import (
    edge_level,
    find_dead_lines,
    find_hot_in_snapshot,
    find_lines,
    find_outliers,
    repair,
)
from cassi.data.io import check_finite, load_mask, load_measurement

STEPS = ("bits", "dark", "flat", "bad_pixels", "saturation", "window", "scale")
"""Settings of the steps, in the order in which the corrections are reported."""
# If more pixels than this fraction exceed a threshold, they are no outliers. Then the threshold is
# too low, or the whole frame is noisy.
MAX_OUTLIER_FRACTION = 0.1
# If bad_pixels=auto, a pixel of the dark frame is hot if it differs from its neighbours by more
# than so many robust standard deviations. A smaller number finds weaker hot pixels, and more pixels
# that are only noisy.
HOT_PIXEL_SIGMAS = 8.0
# If more pixels than this fraction share the largest value, these may be a bright area of the
# scene, such as a white wall. Then no pixel is left out, and a warning asks the user for the level.
MAX_CLIPPED_FRACTION = 0.25
BadPixels = str | os.PathLike[str] | float | Sequence[int]
"""An item of the setting `bad_pixels`: a file, a threshold, "auto", or a row and a column."""
_CONVERTER_BITS = (8, 10, 12, 14, 16)
# A saturation level above so many times the frame's maximum must be in another unit, such as counts
# for a frame of fractions.
_MAX_LEVEL_RATIO = 1000


def _list_bad_pixels(bad_pixels: object) -> list[object]:
    """List the files, pairs and thresholds in the setting `bad_pixels`."""
    if (
        not isinstance(bad_pixels, Sequence)
        or isinstance(bad_pixels, str)
        or is_list(bad_pixels, 2)
    ):
        bad_pixels = [bad_pixels]
    return [item for item in bad_pixels if item not in (None, "auto")]


def _is_file(value: object) -> bool:
    return isinstance(value, str | os.PathLike)


def _is_positive(value: object) -> bool:
    return is_number(value) and value > 0


_RULES: Rules = {
    "dark": ("a number, auto or a file", lambda v: is_number(v) or _is_file(v)),
    "flat": ("a file", lambda v: v is None or _is_file(v)),
    "bad_pixels": (
        "a file, [row, column], a number > 0, a list of those, or auto",
        lambda v: all(_is_file(i) or is_list(i, 2) or _is_positive(i) for i in _list_bad_pixels(v)),
    ),
    "saturation": ("a number, auto or null", lambda v: v in (None, "auto") or is_number(v)),
    "window": (
        "[top, left, height, width]",
        lambda v: v is None or (is_list(v, 4) and min(v[2:]) > 0),
    ),
    "scale": ("a number > 0", _is_positive),
}


@dataclass(frozen=True)
class PreparedFrame:
    """The result of `Preprocessing.prepare`.

    Attributes:
        y: measurement `(B, K, H', W')`, finite.
        bad_pixels: pixels that are left out, bool, shaped like y; None if there are none.
        corrections: the corrections by step, and the number of pixels that are left out.
    """

    y: Tensor
    bad_pixels: Tensor | None
    corrections: dict[str, Any]


@dataclass(frozen=True)
class Preprocessing:
    r"""The steps from a raw frame f to the measurement y; each step is optional.

        y = scale · window((f − dark) / r) / F,  r = (flat − dark) / mean(flat − dark)

    F = 2^bits − 1 is the full scale; F = 1 if `bits` is None. Bad and saturated pixels get values
    of their good neighbours. `PreparedFrame.bad_pixels` marks these pixels, and a reconstruction
    leaves them out. Files are read once, when the object is made. Several frames in one file are
    averaged.

    Args:
        bits: bits of the sensor's converter. Frames are then counts from 0 to 2^bits − 1, also if
            they come from image files, and `dark` and `saturation` are counts. None: integers of an
            image file are divided by the largest value of their type; all other numbers are taken
            as they are.
        dark: dark level in the unit of the frame; or the file of a frame that was taken in the dark
            with the same exposure. "auto" estimates the level from the edges, see `edge_level`.
        flat: file of a frame of the bare sensor (no mask, no scene) under even light. The dark
            level is subtracted, and the difference is divided by its mean over good pixels. The
            file must not show the mask, because the mask is part of the camera.
        bad_pixels: pixels to leave out, an item or a list of items. An item is a file of the raw
            frame's size, with values other than zero at bad pixels; or a pair [row, column]; or a
            number, the threshold for hot pixels in robust standard deviations; or "auto", which
            searches only the file of a dark frame, with a threshold of 8. A number searches the
            files of dark frame and flat field (`find_outliers`). If there are no such files, it
            searches the frame itself (`find_hot_in_snapshot`; 8 suits grey masks, 12 suits binary
            masks). If there is any item, dead rows and columns are left out, too
            (`find_dead_lines`). None leaves nothing out.
        saturation: level of the raw frame from which on pixels are saturated and left out. "auto"
            takes full scale if a pixel reaches it, else the level of `clipped_level`. None: no
            pixel counts as saturated.
        window: [top, left, height, width] of the part to keep, pixels.
        scale: factor of the measurement, > 0.
        step: dispersion, pixels per band; gives the width of the edges for `dark="auto"`.
        axis: axis of the dispersion, -1 (columns) or -2 (rows).
    """

    bits: int | None = None
    dark: float | str = 0.0
    flat: str | os.PathLike[str] | None = None
    bad_pixels: BadPixels | Sequence[BadPixels] | None = "auto"
    saturation: float | str | None = "auto"
    window: Sequence[int] | None = None
    scale: float = 1.0
    step: float = 1
    axis: int = -1
    _files: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the values and read the files."""
        check_values(self, _RULES)
        if self.bits is not None:
            whole_number("bits", self.bits, 1, 24)
        if len(self._thresholds) > 1:
            raise ValueError(f"bad_pixels: expected one threshold, got {self._thresholds}")
        sources = [("dark", self.dark), ("flat", self.flat)]
        for name, source in [
            *sources,
            *(("bad_pixels", item) for item in _list_bad_pixels(self.bad_pixels)),
        ]:
            if isinstance(source, str | os.PathLike) and source != "auto":
                self._read(name, source)

    def prepare(
        self, frame: Tensor, full_scale: float | None = None, name: str = "measurement"
    ) -> PreparedFrame:
        """Correct a raw frame to a measurement, and find its bad pixels.

        Args:
            frame: raw, `(B, K, H', W')`. Listed bad pixels may have any value, also NaN.
            full_scale: the largest possible value of the frame, if known; `bits` takes precedence.
            name: name of the frame, for warnings and errors.

        Raises:
            ValueError: a setting does not fit the frame, or the frame has no light.
        """
        self._check_size(frame)
        max_value = full_scale if self.bits is None else float(2**self.bits - 1)
        listed_pixels, hot_pixels, lines = self._find_bad_pixels(frame)
        known_bad = listed_pixels | _mask_lines(lines, listed_pixels.shape)
        known_bad = known_bad if hot_pixels is None else known_bad | hot_pixels
        remedy = "leave them out by bad_pixels=FILE, not zero there, or bad_pixels=[row,column]"
        check_finite(name, torch.where(known_bad, 0, frame), remedy)
        if bool(known_bad.all()):
            raise ValueError("bad_pixels: expected some good pixels, all are to be left out")
        good_values = frame[..., ~known_bad].flatten()
        if not bool(good_values.any()):
            raise ValueError(f"{name}: expected light, got only zeros")
        self._check_counts(good_values, max_value, full_scale)
        saturation_level = self._find_saturation_level(good_values, max_value, name)
        saturated_pixels = _find_saturated(frame, known_bad, saturation_level)
        left_out = known_bad | saturated_pixels
        repaired_frame, largest = _repair_images(frame, left_out), good_values.max().item()
        dark = self._subtract_dark(repaired_frame, ~left_out, largest, max_value, name)
        y, dark_source, dark_level = dark
        corrections: dict[str, Any] = dict.fromkeys(STEPS)
        corrections |= {"bits": self.bits, "dark": {"source": dark_source, "level": dark_level}}
        if "flat" in self._files:
            y, corrections["flat"] = self._divide_by_flat(y, dark_level, known_bad)
        # Subtraction and division have put values of the dark frame and the flat field into the
        # repaired pixels, so these are repaired again.
        y = _repair_images(y, left_out)
        if hot_pixels is None and self._thresholds:
            images = y.flatten(0, 1)
            hot_in_images = [find_hot_in_snapshot(image, *self._thresholds) for image in images]
            hot_pixels = torch.stack(hot_in_images).any(0)
            y, left_out = _repair_images(y, hot_pixels & ~known_bad), left_out | hot_pixels
        n_hot = None if hot_pixels is None else self._count_hot_pixels(hot_pixels & ~listed_pixels)
        if saturation_level is not None:
            corrections["saturation"] = self._report_saturation(
                saturated_pixels, saturation_level, name
            )
        if self.window is not None:
            y, left_out = self._cut_window(y), self._cut_window(left_out)
            corrections["window"] = list(self.window)
            if bool(left_out.flatten(2).all(2).any()):
                raise ValueError("bad_pixels: expected some good pixels in the window, got none")
        corrections["scale"] = float(self.scale)
        y = y * (self.scale if self.bits is None else self.scale / (2**self.bits - 1))
        if not bool(y.isfinite().all()) or not bool(y.any()):
            raise ValueError(f"scale: expected values within float32's range, got {self.scale!r}")
        corrections["bad_pixels"] = self._report_bad_pixels(left_out, lines, n_hot)
        return PreparedFrame(y, left_out if bool(left_out.any()) else None, corrections)

    def _find_bad_pixels(
        self, frame: Tensor
    ) -> tuple[Tensor, Tensor | None, list[tuple[str, int]]]:
        """Return the listed pixels, the hot pixels (None without a file), and the dead lines."""
        size = tuple(frame.shape[-2:])
        listed_pixels, hot_pixels = self.listed_bad_pixels(size), self._find_hot_pixels(size)
        known_bad = listed_pixels if hot_pixels is None else listed_pixels | hot_pixels
        lines = [] if self.bad_pixels is None else find_dead_lines(frame, ~known_bad)
        if hot_pixels is not None:
            # Pixels of a dead line differ from their neighbours in the dark frame, too. They count
            # as a line and not as hot pixels.
            lines = sorted({*lines, *find_lines(hot_pixels, ~listed_pixels)})
            hot_pixels = hot_pixels & ~_mask_lines(lines, size)
        return listed_pixels, hot_pixels, lines

    def listed_bad_pixels(self, size: Sequence[int]) -> Tensor:
        """Return the pixels that `bad_pixels` names, bool `(H', W')`, of a frame of that size."""
        is_bad = torch.zeros(tuple(size), dtype=torch.bool)
        if "bad_pixels" in self._files:
            self._check_size(torch.empty((1, 1, *size), device="meta"))
            is_bad |= self._files["bad_pixels"] > 0
        for item in _list_bad_pixels(self.bad_pixels):
            if isinstance(item, Sequence) and not isinstance(item, str):
                if item[0] >= size[0] or item[1] >= size[1]:
                    raise ValueError(f"bad_pixels: {list(item)} lies outside {tuple(size)}")
                is_bad[item[0], item[1]] = True
        return is_bad

    @property
    def _thresholds(self) -> list[float]:
        return [float(item) for item in _list_bad_pixels(self.bad_pixels) if is_number(item)]

    def _check_size(self, frame: Tensor) -> None:
        size = tuple(frame.shape[-2:])
        for name, values in self._files.items():
            if tuple(values.shape) != size:
                raise ValueError(
                    f"{name}: expected a frame of {size} as the measurement, got "
                    f"{tuple(values.shape)} in {vars(self)[name]}"
                )

    def _read(self, name: str, path: str | os.PathLike[str]) -> None:
        """Read the file of a setting; average the frames in it, or join maps of bad pixels."""
        try:
            if name == "bad_pixels":
                array = load_mask(path)
            else:
                array = load_measurement(path, counts=self.bits is not None)
        except FileNotFoundError as error:
            rule = _RULES[name][0]
            raise FileNotFoundError(f"{name}: expected {rule}, got {path!r}: {error}") from None
        except (OSError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from None
        data = array.data.flatten(0, 1)
        if name != "bad_pixels":
            self._files[name] = data.mean(0)
            return
        is_bad, earlier = data.any(0).float(), self._files.get(name)
        if earlier is not None and earlier.shape != is_bad.shape:
            raise ValueError(
                f"bad_pixels: expected files of one size, got {tuple(earlier.shape)} and "
                f"{tuple(is_bad.shape)}"
            )
        self._files[name] = is_bad if earlier is None else earlier.maximum(is_bad)

    def _check_counts(
        self, values: Tensor, max_value: float | None, stated_max: float | None
    ) -> None:
        """Raise ValueError if values cannot be counts of a converter of `bits` bits."""
        if self.bits is None or max_value is None:
            return
        largest = values.max().item()
        expectation = f"bits: expected counts from 0 to {max_value:g}, as bits={self.bits} says"
        if stated_max is not None and stated_max < max_value:
            raise ValueError(
                f"{expectation}, got a file whose values end at {stated_max:g}; was it converted?"
            )
        if largest > max_value:
            unused_bits = 16 - self.bits
            # Some cameras shift their 12 bits to the left in 16, so all counts are multiples of 16.
            is_shifted = unused_bits > 0 and largest < 65536 and not (values % 2**unused_bits).any()
            sufficient_bits = next((bits for bits in _CONVERTER_BITS if largest < 2**bits), None)
            hint = "set bits=16" if sufficient_bits == 16 else "set more bits"
            if is_shifted:
                hint = f"all multiples of {2**unused_bits}; set bits=16"
            elif sufficient_bits is not None and sufficient_bits < 16:
                # A mean of several frames with shifted counts need not be a multiple, so the hint
                # names both.
                hint += f": bits={sufficient_bits}, or bits=16 if the camera shifts counts left"
            raise ValueError(f"{expectation}, got up to {largest:g}, {hint}")
        if 0 < largest <= 1 < max_value and bool((values % 1).any()):
            raise ValueError(f"{expectation}, got fractions up to {largest:.4g}; leave bits=null")

    def _find_saturation_level(
        self, values: Tensor, max_value: float | None, name: str
    ) -> float | None:
        """Return the level from which on pixels of a frame are saturated; None if there is none."""
        largest, level = values.max().item(), self.saturation
        if level is None:
            return None
        if not isinstance(level, str):
            max_level = _MAX_LEVEL_RATIO * largest if max_value is None else max_value
            if level > max_level > 0:
                if max_value is None:
                    value_range = f"whose largest value is {largest:.4g}"
                else:
                    value_range = f"0 to {max_value:g}"
                raise ValueError(
                    f"saturation: expected a level in the unit of the frame, {value_range}, got "
                    f"{level:g}{self._make_bits_hint(max_value)}"
                )
            return float(level)
        if max_value is not None and largest >= max_value:
            return max_value
        clipped_value = clipped_level(values)
        if clipped_value is None:
            return None
        fraction = (values == clipped_value).double().mean().item()
        if fraction > MAX_CLIPPED_FRACTION:
            warnings.warn(
                f"{name}: {100 * fraction:.3g} % of the pixels share its largest value, "
                f"{largest:.4g}; where that is overexposed, saturation={largest:.6g} leaves them "
                "out",
                stacklevel=2,
            )
            return None
        return clipped_value

    def _make_bits_hint(self, max_value: float | None) -> str:
        """Return a hint on `bits` for a frame in fractions of full scale, else ""."""
        if self.bits is not None or max_value != 1:
            return ""
        return "; set bits to give it in counts, bits=12 for a camera of 12 bits"

    def _subtract_dark(
        self,
        repaired_frame: Tensor,
        is_good: Tensor,
        largest: float,
        max_value: float | None,
        name: str,
    ) -> tuple[Tensor, str, float]:
        """Return the frame without its dark level, the source of the level, and the level."""
        source, dark = "number", self._find_dark_level(repaired_frame)
        hint = self._make_bits_hint(max_value)
        is_good_in_any = is_good.flatten(0, 1).any(0)
        level = dark[is_good_in_any].mean().item() if isinstance(dark, Tensor) else dark
        if self.dark == "auto":
            source = "edges"
        elif "dark" in self._files:
            source, hint = str(self.dark), "; give the dark frame in the format of the measurement"
        y = repaired_frame - dark
        if level >= largest and level != 0:
            raise ValueError(
                f"dark: expected a level below the frame's largest value, {largest:.4g}, got "
                f"{level:.4g}{hint}"
            )
        good_values = y[is_good].double()
        mean, spread = good_values.mean().item(), good_values.std(correction=0).item()
        # Noise without light is symmetric about 0: its mean is within three standard errors of 0,
        # and its largest value is at most twice as far from 0 as its smallest value. Such a frame
        # is refused.
        is_noise = (
            mean <= 3 * spread / len(good_values) ** 0.5
            and good_values.max() <= -2 * good_values.min()
        )
        if mean <= 0 or is_noise:
            raise ValueError(
                f"{name}: expected light, its mean is {mean:.3g} above the dark level "
                f"{level:.4g} ({source}); set dark to the level of a frame without light"
            )
        return y, source, level

    def _find_dark_level(self, frame: Tensor) -> Tensor | float:
        """Return the dark frame `(H, W)` or the dark level."""
        if self.dark == "auto":
            return edge_level(frame, self.step, self.axis)
        return self._files["dark"] if "dark" in self._files else float(self.dark)

    def _subtract_dark_from_flat(self, dark: float) -> Tensor:
        """Return the flat field minus the dark frame or level, `(H, W)`."""
        return self._files["flat"] - self._files.get("dark", dark)

    def _find_hot_pixels(self, size: tuple[int, ...]) -> Tensor | None:
        """Return the hot pixels of dark frame and flat field, bool `(H, W)`, or None.

        If there are no such files, the result is None, and a threshold applies to the frame itself.
        For "auto" the result is also None if no pixel or too many pixels of the dark frame are hot.
        """
        smooth_frames = {}
        if "dark" in self._files:
            smooth_frames["dark"] = self._files["dark"]
        if "flat" in self._files:
            smooth_frames["flat"] = self._subtract_dark_from_flat(0.0)
        is_hot = torch.zeros(size, dtype=torch.bool)
        for threshold in self._thresholds:
            for values in smooth_frames.values():
                is_hot |= find_outliers(values, threshold)
        items = self.bad_pixels if isinstance(self.bad_pixels, list | tuple) else [self.bad_pixels]
        if not self._thresholds and "auto" in items and "dark" in smooth_frames:
            is_hot = find_outliers(smooth_frames["dark"], HOT_PIXEL_SIGMAS)
            # If there are many, no pixel is left out, because subtracting the dark frame removes
            # their excess.
            is_plausible = 0 < int(is_hot.sum()) <= MAX_OUTLIER_FRACTION * is_hot.numel()
            return is_hot if is_plausible else None
        return is_hot if smooth_frames and self._thresholds else None

    def _count_hot_pixels(self, hot_pixels: Tensor) -> int:
        """Return the number of hot pixels; ValueError if there are too many for a threshold."""
        count = int(hot_pixels.sum())
        for threshold in self._thresholds:
            if count > MAX_OUTLIER_FRACTION * hot_pixels.numel():
                raise ValueError(
                    f"bad_pixels: {count} of {hot_pixels.numel()} pixels lie beyond {threshold:g} "
                    "standard deviations, too many to be outliers; give a larger number, or a file"
                )
        return count

    def _divide_by_flat(
        self, y: Tensor, dark: float, is_bad: Tensor
    ) -> tuple[Tensor, dict[str, object]]:
        """Divide by the response of the pixels; return the quotient and its report."""
        flat, is_good = self._subtract_dark_from_flat(dark), ~is_bad
        if number := int((is_good & (flat <= 0)).sum()):
            raise ValueError(
                f"flat: expected more than the dark level everywhere, got {number} pixels at or "
                f"below it in {self.flat}; name dead pixels in bad_pixels"
            )
        response = torch.where(is_good, flat / flat[is_good].mean(), 1)
        low, high = response[is_good].aminmax()
        return y / response, {
            "source": str(self.flat),
            "lowest": low.item(),
            "highest": high.item(),
        }

    def _report_saturation(
        self, saturated_pixels: Tensor, level: float, name: str
    ) -> dict[str, float]:
        """Warn of saturated pixels; return their level, number and fraction."""
        count, fraction = int(saturated_pixels.sum()), saturated_pixels.double().mean().item()
        if count:
            remedy = "; saturation=null keeps them" if self.saturation == "auto" else ""
            warnings.warn(
                f"{name}: {count} pixels ({100 * fraction:.3g} %) are saturated, at {level:g} "
                f"or more; they are left out{remedy}",
                stacklevel=2,
            )
        return {"level": level, "pixels": count, "fraction": fraction}

    def _report_bad_pixels(
        self, is_bad: Tensor, lines: list[tuple[str, int]], n_hot: int | None
    ) -> dict[str, object] | None:
        """Return the report on bad pixels; None if there are none and the setting lists none."""
        items, count = _list_bad_pixels(self.bad_pixels), int(is_bad.sum())
        if not items and not count:
            return None
        dead_lines: dict[str, list[int]] = {"rows": [], "columns": []}
        for kind, index in lines:
            dead_lines[kind].append(index)
        report: dict[str, object] = {"source": ", ".join(map(str, items)) or None, "found": n_hot}
        return report | dead_lines | {"left_out": count, "fraction": count / is_bad.numel()}

    def _cut_window(self, y: Tensor) -> Tensor:
        top, left, height, width = self.window or ()
        if top + height > y.shape[-2] or left + width > y.shape[-1]:
            raise ValueError(
                f"window: expected [top, left, height, width] inside {tuple(y.shape[-2:])}, got "
                f"{list(self.window or ())}"
            )
        return y[..., top : top + height, left : left + width].contiguous()


def describe_corrections(corrections: Mapping[str, Any]) -> str:
    """Return the corrections of a frame in one line; empty if there were none."""
    parts = []
    dark, flat = corrections["dark"], corrections["flat"]
    saturation, bad_pixels = corrections["saturation"], corrections["bad_pixels"]
    if dark["source"] != "number" or dark["level"]:
        origins = {"number": "", "edges": " (of the edges)"}
        origin = origins.get(dark["source"], f" (mean of {Path(dark['source']).name})")
        parts.append(f"dark level {dark['level']:.4g}{origin} subtracted")
    if flat:
        span = f"{flat['lowest']:.3g} to {flat['highest']:.3g}"
        parts.append(f"divided by {Path(flat['source']).name} ({span})")
    if bad_pixels:
        if bad_pixels["found"] is not None:
            parts.append(f"{bad_pixels['found']} hot pixels found")
        for kind in ("rows", "columns"):
            if bad_pixels[kind]:
                parts.append(f"{kind[:-1]} {', '.join(map(str, bad_pixels[kind]))} dead")
    if saturation:
        parts.append(
            f"{saturation['pixels']} pixels saturated ({100 * saturation['fraction']:.3g} %)"
        )
    if bad_pixels:
        parts.append(
            f"{bad_pixels['left_out']} pixels left out ({100 * bad_pixels['fraction']:.3g} %)"
        )
    if corrections["window"]:
        parts.append(f"window {corrections['window']}")
    if corrections["bits"]:
        parts.append(
            f"divided by {2 ** corrections['bits'] - 1}, full scale of {corrections['bits']} bits"
        )
    if corrections["scale"] != 1:
        parts.append(f"times {corrections['scale']:.4g}")
    return ", ".join(parts)


def _mask_lines(lines: list[tuple[str, int]], size: tuple[int, ...]) -> Tensor:
    """Return a map, bool, that is True in these rows and columns."""
    mask = torch.zeros(size, dtype=torch.bool)
    for kind, index in lines:
        (mask if kind == "rows" else mask.mT)[index] = True
    return mask


def _find_saturated(frame: Tensor, known_bad: Tensor, level: float | None) -> Tensor:
    """Return the pixels at or above a level that are not known to be bad."""
    if level is None:
        return torch.zeros_like(frame, dtype=torch.bool)
    is_saturated = (frame >= level) & ~known_bad
    if bool((known_bad | is_saturated).flatten(2).all(2).any()):
        raise ValueError(
            f"saturation: expected some pixels below {level:g}, got none; expose for a shorter "
            "time, or set saturation to a higher level"
        )
    return is_saturated


def _repair_images(frame: Tensor, is_bad: Tensor, name: str = "bad_pixels") -> Tensor:
    """Repair a frame `(B, K, H, W)`; each image may have other bad pixels, `(B, K, H, W)`."""
    if not bool(is_bad.any()):
        return frame
    images = zip(frame.flatten(0, 1), is_bad.expand_as(frame).flatten(0, 1), strict=True)
    return torch.stack(
        [repair(image, is_bad_in_image, name) for image, is_bad_in_image in images]
    ).view_as(frame)
