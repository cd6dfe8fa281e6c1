"""From the frame of a sensor to the measurement, in named steps."""

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
"""Config values of what is done to a frame, in this order."""
MOST_OUTLIERS = 0.1
"""Of the pixels; where more stand out, they are no outliers."""
HOT = 8.0
"""Robust standard deviations of a dark frame: from there on a pixel is hot, without being asked."""
MOST_CLIPPED = 0.25
"""Share of the pixels that may have a frame's maximum and be taken for clipped."""
Bad = str | os.PathLike[str] | float | Sequence[int]
"""A file, a threshold, "auto", or a row and a column."""
_CONVERTERS = (8, 10, 12, 14, 16)  # bits
_OUT_OF_RANGE = 1000
"""Times its maximum, a level that is in another unit than the frame."""


def _items(bad: object) -> list[object]:
    """Return the files, pairs and thresholds that `bad_pixels` holds."""
    if not isinstance(bad, Sequence) or isinstance(bad, str) or is_list(bad, 2):
        bad = [bad]
    return [item for item in bad if item not in (None, "auto")]


def _is_file(value: object) -> bool:
    return isinstance(value, str | os.PathLike)


def _is_positive(value: object) -> bool:
    return is_number(value) and value > 0


_RULES: Rules = {
    "dark": ("a number, auto or a file", lambda v: is_number(v) or _is_file(v)),
    "flat": ("a file", lambda v: v is None or _is_file(v)),
    "bad_pixels": (
        "a file, [row, column], a number > 0, a list of those, or auto",
        lambda v: all(_is_file(i) or is_list(i, 2) or _is_positive(i) for i in _items(v)),
    ),
    "saturation": ("a number, auto or null", lambda v: v in (None, "auto") or is_number(v)),
    "window": (
        "[top, left, height, width]",
        lambda v: v is None or (is_list(v, 4) and min(v[2:]) > 0),
    ),
    "scale": ("a number > 0", _is_positive),
}


@dataclass(frozen=True)
class Prepared:
    """The result of `Preprocessing.prepare`.

    Attributes:
        y: measurement `(B, K, H', W')`, finite.
        bad: pixels of it that are left out, bool, shaped like y; None where there are none.
        done: the corrections by step, and the number of pixels that are left out.
    """

    y: Tensor
    bad: Tensor | None
    done: dict[str, Any]


@dataclass(frozen=True)
class Preprocessing:
    r"""The chain from a raw frame f to the measurement y; every step can be left out.

        y = scale · window((f − dark) / r) / F,  r = (flat − dark) / mean(flat − dark)

    F = 2^bits − 1 is the full scale, or 1 without `bits`. Pixels without light are found and left
    out: they are filled in from good neighbours, and `Prepared.bad` names them. Files are read
    once, when this is made. A file of several frames is averaged.

    Args:
        bits: of the sensor's converter. Frames are then counts from 0 to 2^bits − 1, those of image
            files too, and `dark` and `saturation` are counts. None: integers of an image file are
            fractions of the largest value of their type; all other numbers are taken as they are.
        dark: level, in the unit of the frame; "auto" takes it from the edges, see `edge_level`; or
            a file, a frame taken in the dark with the same exposure.
        flat: a file, a frame of the bare sensor (no mask, no scene) under even light; normalised to
            its mean over good pixels, less the same dark level. It must not hold the mask: that
            is part of the camera.
        bad_pixels: pixels to leave out: a file of the raw frame's size that is not zero there; a
            pair [row, column]; a threshold in robust standard deviations, by which hot pixels are
            found in the dark frame and the flat field if these are files (`find_outliers`), else
            in the frame itself (`find_hot_in_snapshot`; 8 suits grey masks, 12 binary ones);
            "auto", hot pixels of a dark frame that is a file, beyond 8 of these; or a list of
            those. With each of them dead rows and columns are left out too, see `find_dead_lines`;
            None leaves nothing out.
        saturation: level of the raw frame from which on pixels are saturated, and left out. "auto"
            is full scale where a pixel reaches it, else the level of `clipped_level`. None is no
            level.
        window: [top, left, height, width] of the part to keep, pixels.
        scale: factor of the measurement, > 0.
        step: dispersion, pixels per band; gives the width of the edges for `dark="auto"`.
        axis: of the dispersion.
    """

    bits: int | None = None
    dark: float | str = 0.0
    flat: str | os.PathLike[str] | None = None
    bad_pixels: Bad | Sequence[Bad] | None = "auto"
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
        if len(self._thresholds()) > 1:
            raise ValueError(f"bad_pixels: expected one threshold, got {self._thresholds()}")
        named = [("dark", self.dark), ("flat", self.flat)]
        for name, given in [*named, *(("bad_pixels", item) for item in _items(self.bad_pixels))]:
            if isinstance(given, str | os.PathLike) and given != "auto":
                self._read(name, given)

    def prepare(
        self, frame: Tensor, full_scale: float | None = None, name: str = "measurement"
    ) -> Prepared:
        """Make a measurement of a frame `(B, K, H', W')`, and find its bad pixels.

        The values at pixels that a file or a list names, NaN included, have no influence on
        estimates or on other pixels.

        Args:
            frame: raw.
            full_scale: the largest value that it can have, if known; `bits` wins over it.
            name: of the frame, in warnings and errors.
        """
        self._check_size(frame)
        full = full_scale if self.bits is None else float(2**self.bits - 1)
        listed, hot, lines = self._find_bad(frame)
        known = listed | _lines_mask(lines, listed.shape)
        known = known if hot is None else known | hot
        remedy = "leave them out by bad_pixels=FILE, not zero there, or bad_pixels=[row,column]"
        check_finite(name, torch.where(known, 0, frame), remedy)
        if bool(known.all()):
            raise ValueError("bad_pixels: expected some good pixels, all are to be left out")
        values = frame[..., ~known].flatten()
        if not bool(values.any()):
            raise ValueError(f"{name}: expected light, got only zeros")
        self._check_bits(values, full, full_scale)
        level = self._saturation(values, full, name)
        saturated = _find_saturated(frame, known, level)
        left_out = known | saturated
        filled, top = _fill(frame, left_out), values.max().item()
        y, source, dark = self._subtract_dark(filled, ~left_out, top, full, name)
        done: dict[str, Any] = dict.fromkeys(STEPS)
        done |= {"bits": self.bits, "dark": {"source": source, "level": dark}}
        if "flat" in self._files:
            y, done["flat"] = self._flatten(y, dark, known)
        y = _fill(y, left_out)  # dark frame and flat field have values of their own there
        if hot is None and self._thresholds():
            images = y.flatten(0, 1)
            found = [find_hot_in_snapshot(one, *self._thresholds()) for one in images]
            hot = torch.stack(found).any(0)
            y, left_out = _fill(y, hot & ~known), left_out | hot
        number = None if hot is None else self._count_hot(hot & ~listed)
        if level is not None:
            done["saturation"] = self._count(saturated, level, name)
        if self.window is not None:
            y, left_out, done["window"] = self._cut(y), self._cut(left_out), list(self.window)
            if bool(left_out.flatten(2).all(2).any()):
                raise ValueError("bad_pixels: expected some good pixels in the window, got none")
        done["scale"] = float(self.scale)
        y = y * (self.scale if self.bits is None else self.scale / (2**self.bits - 1))
        if not bool(y.isfinite().all()) or not bool(y.any()):
            raise ValueError(f"scale: expected values within float32's range, got {self.scale!r}")
        done["bad_pixels"] = self._left_out(left_out, lines, number)
        return Prepared(y, left_out if bool(left_out.any()) else None, done)

    def _find_bad(self, frame: Tensor) -> tuple[Tensor, Tensor | None, list[tuple[str, int]]]:
        """Return pixels that are named, hot ones if a file tells, and dead rows and columns."""
        size = tuple(frame.shape[-2:])
        listed, hot = self.bad_in(size), self._find_hot(size)
        known = listed if hot is None else listed | hot
        lines = [] if self.bad_pixels is None else find_dead_lines(frame, ~known)
        if hot is not None:  # what a dark frame shows of a dead line is no hot pixel
            lines = sorted({*lines, *find_lines(hot, ~listed)})
            hot = hot & ~_lines_mask(lines, size)
        return listed, hot, lines

    def bad_in(self, size: Sequence[int]) -> Tensor:
        """Return the pixels that `bad_pixels` names, bool `(H', W')`, of a frame of that size."""
        bad = torch.zeros(tuple(size), dtype=torch.bool)
        if "bad_pixels" in self._files:
            self._check_size(torch.empty((1, 1, *size), device="meta"))
            bad |= self._files["bad_pixels"] > 0
        for item in _items(self.bad_pixels):
            if isinstance(item, Sequence) and not isinstance(item, str):
                if item[0] >= size[0] or item[1] >= size[1]:
                    raise ValueError(f"bad_pixels: {list(item)} lies outside {tuple(size)}")
                bad[item[0], item[1]] = True
        return bad

    def _thresholds(self) -> list[float]:
        return [float(item) for item in _items(self.bad_pixels) if is_number(item)]

    def _check_size(self, frame: Tensor) -> None:
        size = tuple(frame.shape[-2:])
        for name, values in self._files.items():
            if tuple(values.shape) != size:
                raise ValueError(
                    f"{name}: expected a frame of {size} as the measurement, got "
                    f"{tuple(values.shape)} in {vars(self)[name]}"
                )

    def _read(self, name: str, path: str | os.PathLike[str]) -> None:
        try:
            if name == "bad_pixels":
                loaded = load_mask(path)
            else:
                loaded = load_measurement(path, counts=self.bits is not None)
        except FileNotFoundError as error:
            wanted = _RULES[name][0]
            raise FileNotFoundError(f"{name}: expected {wanted}, got {path!r}: {error}") from None
        except (OSError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from None
        data = loaded.data.flatten(0, 1)
        if name != "bad_pixels":
            self._files[name] = data.mean(0)
            return
        bad, earlier = data.any(0).float(), self._files.get(name)
        if earlier is not None and earlier.shape != bad.shape:
            raise ValueError(
                f"bad_pixels: expected files of one size, got {tuple(earlier.shape)} and "
                f"{tuple(bad.shape)}"
            )
        self._files[name] = bad if earlier is None else earlier.maximum(bad)

    def _check_bits(self, values: Tensor, full: float | None, most: float | None) -> None:
        if self.bits is None or full is None:
            return
        top = values.max().item()
        wanted = f"bits: expected counts from 0 to {full:g}, as bits={self.bits} says"
        if most is not None and most < full:
            raise ValueError(
                f"{wanted}, got a file whose values end at {most:g}; was it converted?"
            )
        if top > full:
            unused = 16 - self.bits
            aligned = unused > 0 and top < 65536 and not (values % 2**unused).any()
            enough = next((bits for bits in _CONVERTERS if top < 2**bits), None)
            hint = "set bits=16" if enough == 16 else "set more bits"
            if aligned:
                hint = f"all multiples of {2**unused}; set bits=16"
            elif enough is not None and enough < 16:  # a mean of frames has no multiples
                hint += f": bits={enough}, or bits=16 where the camera shifts counts to the left"
            raise ValueError(f"{wanted}, got up to {top:g}, {hint}")
        if 0 < top <= 1 < full and bool((values % 1).any()):
            raise ValueError(f"{wanted}, got fractions up to {top:.4g}; leave bits=null")

    def _saturation(self, values: Tensor, full: float | None, name: str) -> float | None:
        """Return the level from which on pixels of a frame are saturated, if there is one."""
        top, level = values.max().item(), self.saturation
        if level is None:
            return None
        if not isinstance(level, str):
            most = _OUT_OF_RANGE * top if full is None else full
            if level > most > 0:
                holds = f"whose largest value is {top:.4g}" if full is None else f"0 to {full:g}"
                raise ValueError(
                    f"saturation: expected a level in the unit of the frame, {holds}, got "
                    f"{level:g}{self._of_counts(full)}"
                )
            return float(level)
        if full is not None and top >= full:
            return full
        clipped = clipped_level(values)
        share = 0.0 if clipped is None else (values == clipped).double().mean().item()
        if share > MOST_CLIPPED:
            warnings.warn(
                f"{name}: {100 * share:.3g} % of the pixels share its largest value, "
                f"{top:.4g}; where that is overexposed, saturation={top:.6g} leaves them out",
                stacklevel=2,
            )
            return None
        return clipped

    def _of_counts(self, full: float | None) -> str:
        """Say how a level is given in counts, where a frame is in fractions of full scale."""
        if self.bits is not None or full != 1:
            return ""
        return "; set bits to give it in counts, bits=12 for a camera of 12 bits"

    def _subtract_dark(
        self, filled: Tensor, good: Tensor, top: float, full: float | None, name: str
    ) -> tuple[Tensor, str, float]:
        source, dark, hint = "number", self._dark_of(filled), self._of_counts(full)
        seen = good.flatten(0, 1).any(0)
        level = dark[seen].mean().item() if isinstance(dark, Tensor) else dark
        if self.dark == "auto":
            source = "edges"
        elif "dark" in self._files:
            source, hint = str(self.dark), "; give the dark frame in the format of the measurement"
        y = filled - dark
        if level >= top and level != 0:
            raise ValueError(
                f"dark: expected a level below the frame's largest value, {top:.4g}, got "
                f"{level:.4g}{hint}"
            )
        light = y[good].double()
        mean, spread = light.mean().item(), light.std(correction=0).item()
        # The noise of a frame without light is as far below zero as above.
        dim = mean <= 3 * spread / len(light) ** 0.5 and light.max() <= -2 * light.min()
        if mean <= 0 or dim:
            raise ValueError(
                f"{name}: expected light, its mean is {mean:.3g} above the dark level "
                f"{level:.4g} ({source}); set dark to the level of a frame without light"
            )
        return y, source, level

    def _dark_of(self, frame: Tensor) -> Tensor | float:
        if self.dark == "auto":
            return edge_level(frame, self.step, self.axis)
        return self._files["dark"] if "dark" in self._files else float(self.dark)

    def _light(self, dark: float) -> Tensor:
        """The flat field less the dark frame or level, `(H, W)`."""
        return self._files["flat"] - self._files.get("dark", dark)

    def _find_hot(self, size: tuple[int, ...]) -> Tensor | None:
        """Hot pixels of dark frame and flat field, `(H, W)`; None: only the frame itself tells."""
        smooth = {name: self._files[name] for name in ("dark",) if name in self._files}
        if "flat" in self._files:
            smooth["flat"] = self._light(0.0)
        bad = torch.zeros(size, dtype=torch.bool)
        for threshold in self._thresholds():
            for values in smooth.values():
                bad |= find_outliers(values, threshold)
        auto = self.bad_pixels if isinstance(self.bad_pixels, list | tuple) else [self.bad_pixels]
        if not self._thresholds() and "auto" in auto and "dark" in smooth:
            bad = find_outliers(smooth["dark"], HOT)
            # Of many, the dark frame knows the level.
            return bad if 0 < int(bad.sum()) <= MOST_OUTLIERS * bad.numel() else None
        return bad if smooth and self._thresholds() else None

    def _count_hot(self, hot: Tensor) -> int:
        found = int(hot.sum())
        for threshold in self._thresholds():
            if found > MOST_OUTLIERS * hot.numel():
                raise ValueError(
                    f"bad_pixels: {found} of {hot.numel()} pixels lie beyond {threshold:g} "
                    "standard deviations, too many to be outliers; give a larger number, or a file"
                )
        return found

    def _flatten(self, y: Tensor, dark: float, bad: Tensor) -> tuple[Tensor, dict[str, object]]:
        light, good = self._light(dark), ~bad
        if number := int((good & (light <= 0)).sum()):
            raise ValueError(
                f"flat: expected more than the dark level everywhere, got {number} pixels at or "
                f"below it in {self.flat}; name dead pixels in bad_pixels"
            )
        response = torch.where(good, light / light[good].mean(), 1)
        low, high = response[good].aminmax()
        return y / response, {
            "source": str(self.flat),
            "lowest": low.item(),
            "highest": high.item(),
        }

    def _count(self, saturated: Tensor, level: float, name: str) -> dict[str, float]:
        number, share = int(saturated.sum()), saturated.double().mean().item()
        if number:
            found = self.saturation == "auto"
            warnings.warn(
                f"{name}: {number} pixels ({100 * share:.3g} %) are saturated, at {level:g} "
                f"or more; they are left out{'; saturation=null keeps them' if found else ''}",
                stacklevel=2,
            )
        return {"level": level, "pixels": number, "fraction": share}

    def _left_out(
        self, bad: Tensor, lines: list[tuple[str, int]], found: int | None
    ) -> dict[str, object] | None:
        items, number = _items(self.bad_pixels), int(bad.sum())
        if not items and not number:
            return None
        lost: dict[str, list[int]] = {"rows": [], "columns": []}
        for kind, index in lines:
            lost[kind].append(index)
        about: dict[str, object] = {"source": ", ".join(map(str, items)) or None, "found": found}
        return about | lost | {"left_out": number, "fraction": number / bad.numel()}

    def _cut(self, y: Tensor) -> Tensor:
        top, left, height, width = self.window or ()
        if top + height > y.shape[-2] or left + width > y.shape[-1]:
            raise ValueError(
                f"window: expected [top, left, height, width] inside {tuple(y.shape[-2:])}, got "
                f"{list(self.window or ())}"
            )
        return y[..., top : top + height, left : left + width].contiguous()


def describe(done: Mapping[str, Any]) -> str:
    """Return the corrections of a frame in one line; empty if there were none."""
    parts = []
    dark, flat, full, without = (
        done[name] for name in ("dark", "flat", "saturation", "bad_pixels")
    )
    if dark["source"] != "number" or dark["level"]:
        origin = {"number": "", "edges": " (of the edges)"}.get(
            dark["source"], f" (mean of {Path(dark['source']).name})"
        )
        parts.append(f"dark level {dark['level']:.4g}{origin} subtracted")
    if flat:
        span = f"{flat['lowest']:.3g} to {flat['highest']:.3g}"
        parts.append(f"divided by {Path(flat['source']).name} ({span})")
    if without and without["found"] is not None:
        parts.append(f"{without['found']} hot pixels found")
    for kind in ("rows", "columns") if without else ():
        if without[kind]:
            parts.append(f"{kind[:-1]} {', '.join(map(str, without[kind]))} dead")
    if full:
        parts.append(f"{full['pixels']} pixels saturated ({100 * full['fraction']:.3g} %)")
    if without:
        parts.append(f"{without['left_out']} pixels left out ({100 * without['fraction']:.3g} %)")
    if done["window"]:
        parts.append(f"window {done['window']}")
    if done["bits"]:
        parts.append(f"divided by {2 ** done['bits'] - 1}, full scale of {done['bits']} bits")
    if done["scale"] != 1:
        parts.append(f"times {done['scale']:.4g}")
    return ", ".join(parts)


def _lines_mask(lines: list[tuple[str, int]], size: tuple[int, ...]) -> Tensor:
    mask = torch.zeros(size, dtype=torch.bool)
    for kind, index in lines:
        (mask if kind == "rows" else mask.mT)[index] = True
    return mask


def _find_saturated(frame: Tensor, known: Tensor, level: float | None) -> Tensor:
    """Return the pixels from a level on, without those that are known to be bad."""
    if level is None:
        return torch.zeros_like(frame, dtype=torch.bool)
    saturated = (frame >= level) & ~known
    if bool((known | saturated).flatten(2).all(2).any()):
        raise ValueError(
            f"saturation: expected some pixels below {level:g}, got none; expose for a shorter "
            "time, or set saturation to a higher level"
        )
    return saturated


def _fill(frame: Tensor, bad: Tensor, name: str = "bad_pixels") -> Tensor:
    """Repair a frame `(B, K, H, W)`, each image where its own pixels `(B, K, H, W)` are bad."""
    if not bool(bad.any()):
        return frame
    images = zip(frame.flatten(0, 1), bad.expand_as(frame).flatten(0, 1), strict=True)
    return torch.stack([repair(one, where, name) for one, where in images]).view_as(frame)
