"""From the frame of a sensor to the measurement, in named steps."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from cassi.checks import clipped_level, whole_number
from cassi.data.frames.pixels import (
    edge_level,
    find_dead_lines,
    find_hot_in_snapshot,
    find_outliers,
    repair,
)
from cassi.data.io import check_finite, load_mask, load_measurement
from cassi.data.sensor import is_list, is_number

STEPS = ("bits", "dark", "flat", "hot_pixels", "bad_pixels", "saturation", "window", "scale")
"""Config values of what is done to a frame, in this order."""
MAPS = ("hot_pixels", "bad_pixels")
"""Files that are not zero at the pixels that they name."""
MOST_OUTLIERS = 0.1
"""Of the pixels; where more stand out, they are no outliers."""
MOST_CLIPPED = 0.25
"""Share of the pixels that may have a frame's maximum and be taken for clipped."""
_OUT_OF_RANGE = 1000
"""Times its maximum, a level that is in another unit than the frame."""


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
        flat: a file, a frame of the bare sensor (no mask, no scene) under even light. The dark
            level is subtracted, and it is normalised to its mean over good pixels. It must not
            contain the mask, which is part of the camera.
        hot_pixels: pixels to leave out: a list [[row, column], …]; a file that is not zero there;
            or a threshold in robust standard deviations. With a threshold they are found in the
            dark frame and the flat field if these are files (`find_outliers`), else in the frame
            (`find_hot_in_snapshot`; take 8 for grey masks, 12 for binary ones).
        bad_pixels: a file of the raw frame's size, not zero at pixels to leave out. With it or
            "auto", dead rows and columns are left out too, see `find_dead_lines`. None leaves out
            none.
        saturation: level of the raw frame from which on pixels are saturated, and left out. "auto"
            is full scale where a pixel reaches it, else the level of `clipped_level`. None is no
            level.
        window: [top, left, height, width] of the part to keep, pixels.
        scale: factor of the measurement, > 0.
        step: dispersion, pixels per band; gives the width of the edges for `dark="auto"`.
        axis: of the dispersion.

    Raises:
        OSError: a file is missing.
        ValueError: a value is outside its range, or a file cannot be read.
    """

    bits: int | None = None
    dark: float | str = 0.0
    flat: str | os.PathLike[str] | None = None
    hot_pixels: float | str | Sequence[Sequence[int]] | None = None
    bad_pixels: str | os.PathLike[str] | None = "auto"
    saturation: float | str | None = "auto"
    window: Sequence[int] | None = None
    scale: float = 1.0
    step: float = 1
    axis: int = -1
    _files: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the values and read the files."""
        if self.bits is not None:
            whole_number("bits", self.bits, 1, 24)
        if isinstance(self.dark, str | os.PathLike):
            if self.dark != "auto":
                self._read("dark", "a number, auto or a file", self.dark)
        elif not is_number(self.dark):
            raise ValueError(f"dark: expected a number, auto or a file, got {self.dark!r}")
        if self.flat is not None:
            self._read("flat", "a file", self.flat)
        if self.bad_pixels not in (None, "auto"):
            if not isinstance(self.bad_pixels, str | os.PathLike):
                raise ValueError(f"bad_pixels: expected a file or auto, got {self.bad_pixels!r}")
            self._read("bad_pixels", "a file or auto", self.bad_pixels)
        hot, wanted = self.hot_pixels, "a number > 0, a list of [row, column], or a file"
        if isinstance(hot, str | os.PathLike):
            self._read("hot_pixels", wanted, hot)
        elif isinstance(hot, Sequence):
            if not all(is_list(pair, 2) for pair in hot):
                raise ValueError(f"hot_pixels: expected {wanted}, got {hot!r}")
        elif hot is not None and not (is_number(hot) and hot > 0):
            raise ValueError(f"hot_pixels: expected {wanted}, got {hot!r}")
        if self.saturation not in (None, "auto") and not is_number(self.saturation):
            raise ValueError(
                f"saturation: expected a number, auto or null, got {self.saturation!r}"
            )
        if self.window is not None and not (is_list(self.window, 4) and min(self.window[2:]) > 0):
            raise ValueError(f"window: expected [top, left, height, width], got {self.window!r}")
        if not (is_number(self.scale) and self.scale > 0):
            raise ValueError(f"scale: expected a number > 0, got {self.scale!r}")

    def prepare(
        self, frame: Tensor, full_scale: float | None = None, name: str = "measurement"
    ) -> Prepared:
        """Make a measurement of a frame `(B, K, H', W')`, and find its bad pixels.

        The values at pixels that a file or a list names, NaN included, have no influence on
        estimates or on other pixels.

        Args:
            frame: raw.
            full_scale: the largest value that it can have, if known; `bits` wins over it.
            name: of the frame, in warnings.

        Raises:
            ValueError: a file or the window does not fit the frame; dark level, saturation, bits or
                scale do not fit its values; the flat field is dark somewhere; nearly all pixels
                are outliers; all pixels are bad, or a good one is not finite.
        """
        self._check_size(frame)
        size = tuple(frame.shape[-2:])
        full = full_scale if self.bits is None else float(2**self.bits - 1)
        listed = self.bad_in(size)
        hot, source = self._hot(size)
        known = listed if hot is None else listed | hot
        lines = [] if self.bad_pixels is None else find_dead_lines(frame, ~known)
        known = known | _lines_mask(lines, size)
        check_finite("measurement", torch.where(known, 0, frame))
        if bool(known.all()):
            of = "bad_pixels" if bool(listed.all()) else "hot_pixels"
            raise ValueError(f"{of}: expected some good pixels, all are to be left out")
        values = frame[..., ~known].flatten()
        if not bool(values.any()):
            raise ValueError("measurement: expected light, got only zeros")
        self._check_bits(values, full)
        level = self._saturation(values, full, name)
        saturated = torch.zeros_like(frame, dtype=torch.bool)
        if level is not None:
            saturated = (frame >= level) & ~known
        left_out = known | saturated
        if bool(left_out.flatten(2).all(2).any()):
            raise ValueError("saturation: expected some good pixels, all are to be left out")
        filled, top = _fill(frame, left_out), values.max().item()
        y, dark = self._subtract_dark(filled, ~left_out, top, full)
        done: dict[str, Any] = dict.fromkeys(STEPS)
        done |= {"bits": self.bits, "dark": dark}
        if "flat" in self._files:
            y, done["flat"] = self._flatten(y, dark["level"], known)
        y = _fill(y, left_out)  # dark frame and flat field have values of their own there
        if self.hot_pixels is not None:
            if hot is None:
                source, threshold = "measurement", float(cast("float", self.hot_pixels))
                images = y.reshape(-1, *size)
                hot = torch.stack([find_hot_in_snapshot(one, threshold) for one in images]).any(0)
                y = _fill(y, hot & ~known)
            number = int((hot & ~listed).sum())
            self._check_number(number, hot.numel())
            left_out = left_out | hot
            given = self.hot_pixels if is_number(self.hot_pixels) else None
            done["hot_pixels"] = {"source": source, "threshold": given, "left_out": number}
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
        done["bad_pixels"] = self._left_out(left_out, lines)
        return Prepared(y, left_out if bool(left_out.any()) else None, done)

    def bad_in(self, size: Sequence[int]) -> Tensor:
        """Return the pixels that `bad_pixels` names, bool `(H', W')`, of a frame of that size."""
        if "bad_pixels" not in self._files:
            return torch.zeros(tuple(size), dtype=torch.bool)
        self._check_size(torch.empty((1, 1, *size), device="meta"))
        return self._files["bad_pixels"] > 0

    def _check_size(self, frame: Tensor) -> None:
        size = tuple(frame.shape[-2:])
        for name, values in self._files.items():
            if tuple(values.shape) != size:
                raise ValueError(
                    f"{name}: expected a frame of {size} as the measurement, got "
                    f"{tuple(values.shape)} in {getattr(self, name)}"
                )

    def _read(self, name: str, wanted: str, path: str | os.PathLike[str]) -> None:
        try:
            if name == "bad_pixels":
                loaded = load_mask(path)
            else:
                loaded = load_measurement(path, counts=self.bits is not None)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{name}: expected {wanted}, got {path!r}: {error}") from None
        except (OSError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from None
        data = loaded.data.flatten(0, 1)
        self._files[name] = data.any(0).float() if name in MAPS else data.mean(0)

    def _check_bits(self, values: Tensor, full: float | None) -> None:
        if self.bits is None or full is None:
            return
        top = values.max().item()
        wanted = f"bits: expected counts from 0 to {full:g}, as bits={self.bits} says"
        if top > full:
            unused = 16 - self.bits
            aligned = unused > 0 and top < 65536 and not (values % 2**unused).any()
            hint = f"all multiples of {2**unused}; set bits=16" if aligned else "set more bits"
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
        self, filled: Tensor, good: Tensor, top: float, full: float | None
    ) -> tuple[Tensor, dict[str, Any]]:
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
                f"measurement: expected light, its mean is {mean:.3g} above the dark level "
                f"{level:.4g} ({source}); set dark to the level of a frame without light"
            )
        return y, {"source": source, "level": level}

    def _dark_of(self, frame: Tensor) -> Tensor | float:
        if self.dark == "auto":
            return edge_level(frame, self.step, self.axis)
        return self._files["dark"] if "dark" in self._files else float(self.dark)

    def _light(self, dark: float) -> Tensor:
        """The flat field less the dark frame or level, `(H, W)`."""
        return self._files["flat"] - self._files.get("dark", dark)

    def _hot(self, size: tuple[int, ...]) -> tuple[Tensor | None, str]:
        """Hot pixels, `(H, W)`, and how they are known; None: only the frame itself can tell."""
        hot: Any = self.hot_pixels
        if hot is None:
            return None, ""
        if "hot_pixels" in self._files:
            return self._files["hot_pixels"] > 0, str(hot)
        bad = torch.zeros(size, dtype=torch.bool)
        if isinstance(hot, Sequence):
            for row, column in hot:
                if row >= size[0] or column >= size[1]:
                    raise ValueError(f"hot_pixels: [{row}, {column}] lies outside {size}")
                bad[row, column] = True
            return bad, "list"
        smooth = {"dark": self._files.get("dark")}
        smooth["flat"] = self._light(0.0) if "flat" in self._files else None
        known = {name: values for name, values in smooth.items() if values is not None}
        for values in known.values():
            bad |= find_outliers(values, float(hot))
        return (bad, ", ".join(known)) if known else (None, "")

    def _flatten(self, y: Tensor, dark: float, bad: Tensor) -> tuple[Tensor, dict[str, Any]]:
        light, good = self._light(dark), ~bad
        if number := int((good & (light <= 0)).sum()):
            raise ValueError(
                f"flat: expected more than the dark level everywhere, got {number} pixels at or "
                f"below it in {self.flat}; name dead pixels in bad_pixels"
            )
        response = torch.where(good, light / light[good].mean(), 1)
        low, high = response[good].aminmax()
        about = {"source": str(self.flat), "lowest": low.item(), "highest": high.item()}
        return y / response, about

    def _check_number(self, number: int, total: int) -> None:
        if is_number(self.hot_pixels) and number > MOST_OUTLIERS * total:
            raise ValueError(
                f"hot_pixels: {number} of {total} pixels lie beyond {self.hot_pixels:g} standard "
                "deviations, too many to be outliers; give a larger number, or a file"
            )

    def _count(self, saturated: Tensor, level: float, name: str) -> dict[str, Any]:
        number, share = int(saturated.sum()), saturated.double().mean().item()
        if number:
            found = self.saturation == "auto"
            warnings.warn(
                f"{name}: {number} pixels ({100 * share:.3g} %) are saturated, at {level:g} "
                f"or more; they are left out{'; saturation=null keeps them' if found else ''}",
                stacklevel=2,
            )
        return {"level": level, "pixels": number, "fraction": share}

    def _left_out(self, bad: Tensor, lines: list[tuple[str, int]]) -> dict[str, Any] | None:
        source = str(self.bad_pixels) if "bad_pixels" in self._files else None
        number = int(bad.sum())
        if source is None and not number:
            return None
        lost: dict[str, Any] = {"rows": [], "columns": []}
        for kind, index in lines:
            lost[kind].append(index)
        return {"source": source, **lost, "left_out": number, "fraction": number / bad.numel()}

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
    dark, flat, hot, full, without = (
        done[name] for name in ("dark", "flat", "hot_pixels", "saturation", "bad_pixels")
    )
    if dark["source"] != "number" or dark["level"]:
        origin = {"number": "", "edges": " (of the edges)"}.get(
            dark["source"], f" (mean of {Path(dark['source']).name})"
        )
        parts.append(f"dark level {dark['level']:.4g}{origin} subtracted")
    if flat:
        span = f"{flat['lowest']:.3g} to {flat['highest']:.3g}"
        parts.append(f"divided by {Path(flat['source']).name} ({span})")
    if hot:
        parts.append(f"{hot['left_out']} hot pixels ({Path(hot['source']).name})")
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


def _fill(frame: Tensor, bad: Tensor, name: str = "bad_pixels") -> Tensor:
    """Repair a frame `(B, K, H, W)`, each image where its own pixels `(B, K, H, W)` are bad."""
    if not bool(bad.any()):
        return frame
    images = zip(frame.flatten(0, 1), bad.expand_as(frame).flatten(0, 1), strict=True)
    return torch.stack([repair(one, where, name) for one, where in images]).view_as(frame)
