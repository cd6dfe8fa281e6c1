"""From the frame that a sensor gave to the measurement, in named steps."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.data.io import check_finite, load_mask, load_measurement
from cassi.data.sensor import is_list, is_number

STEPS = ("dark", "flat", "hot_pixels", "saturation", "window", "scale")
"""In the order in which they are done."""
MAPS = ("hot_pixels", "bad_pixels")
"""Files that are not zero at the pixels that they name."""
MOST_OUTLIERS = 0.1
"""Of the pixels; where more stand out, they are no outliers."""
CODE_CONTRAST = 0.3
"""Of the contrast among its neighbours, what a pixel must exceed them by for each sigma."""


@dataclass(frozen=True)
class Prepared:
    """What `Preprocessing.prepare` makes of a frame.

    Attributes:
        y: measurement `(B, K, H', W')`, finite.
        bad: pixels of it that are left out, bool, shaped like y; None where there are none.
        done: what was done by step, and how many pixels are left out.
    """

    y: Tensor
    bad: Tensor | None
    done: dict[str, Any]


@dataclass(frozen=True)
class Preprocessing:
    r"""The chain from a raw frame f to the measurement y; every step can be left out.

        y = scale · window(repair((f − dark) / r)),  r = (flat − dark) / mean(flat − dark)

    Files are read once, when this is made. Those of several frames are averaged.

    Args:
        dark: level, in the unit of the frame; "auto" takes it from the edges, see `edge_level`; or
            a file, a frame taken in the dark with the same exposure.
        flat: a file, a frame of the bare sensor (no mask, no scene) under even light; normalised to
            its mean over good pixels, less the same dark level. It must not hold the mask: that
            is part of the camera.
        hot_pixels: pixels to be replaced by the mean of their good neighbours: a list
            [[row, column], …]; a file that is not zero there; or a threshold in robust standard
            deviations, by which they are found in the dark frame and the flat field if these are
            files (`find_outliers`), else in the frame itself (`find_hot_in_snapshot`; 8 suits grey
            masks, 12 binary ones).
        saturation: level of the raw frame from which on pixels count as saturated. They are
            counted and warned of; `prepare` leaves them out.
        window: [top, left, height, width] of what is kept, pixels.
        scale: factor of the measurement.
        bad_pixels: a file that is not zero at pixels to leave out, of the raw frame's size; see
            `prepare`.
        step: dispersion, pixels per band: tells what an edge is.
        axis: of the dispersion.

    Raises:
        OSError: a file is missing.
        ValueError: a value is outside its range, or a file cannot be read.
    """

    dark: float | str = 0.0
    flat: str | os.PathLike[str] | None = None
    hot_pixels: float | str | Sequence[Sequence[int]] | None = None
    saturation: float | None = None
    window: Sequence[int] | None = None
    scale: float = 1.0
    bad_pixels: str | os.PathLike[str] | None = None
    step: float = 1
    axis: int = -1
    _files: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the values and read the files."""
        if isinstance(self.dark, str | os.PathLike):
            if self.dark != "auto":
                self._read("dark", "a number, auto or a file", self.dark)
        elif not is_number(self.dark):
            raise ValueError(f"dark: expected a number, auto or a file, got {self.dark!r}")
        if self.flat is not None:
            self._read("flat", "a file", self.flat)
        if self.bad_pixels is not None:
            self._read("bad_pixels", "a file", self.bad_pixels)
        hot, wanted = self.hot_pixels, "a number > 0, a list of [row, column], or a file"
        if isinstance(hot, str | os.PathLike):
            self._read("hot_pixels", wanted, hot)
        elif isinstance(hot, Sequence):
            if not all(is_list(pair, 2) for pair in hot):
                raise ValueError(f"hot_pixels: expected {wanted}, got {hot!r}")
        elif hot is not None and not (is_number(hot) and hot > 0):
            raise ValueError(f"hot_pixels: expected {wanted}, got {hot!r}")
        if self.saturation is not None and not is_number(self.saturation):
            raise ValueError(f"saturation: expected a number or null, got {self.saturation!r}")
        if self.window is not None and not (is_list(self.window, 4) and min(self.window[2:]) > 0):
            raise ValueError(f"window: expected [top, left, height, width], got {self.window!r}")
        if not (is_number(self.scale) and self.scale > 0):
            raise ValueError(f"scale: expected a number > 0, got {self.scale!r}")

    def apply(self, frame: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Make a measurement of a frame `(B, K, H', W')`.

        Returns:
            The measurement, and what was done: one entry for each of `STEPS`, None where it was
            left out.

        Raises:
            ValueError: a file or the window does not fit the frame, the flat field is dark
                somewhere, or hardly any pixel is not an outlier.
        """
        self._check_size(frame)
        none = torch.zeros_like(frame, dtype=torch.bool)
        return self._apply(frame, none[0, 0], none, self._saturated(frame))

    def prepare(self, frame: Tensor) -> Prepared:
        """Make a measurement of a frame `(B, K, H', W')`, and say which of its pixels count.

        Pixels that `bad_pixels` names, and saturated ones, are left out: whatever the frame holds
        there, NaN included, has no influence on what is estimated from it nor on other pixels.

        Raises:
            ValueError: as for `apply`; or no pixel is left, or one that counts is not finite.
        """
        self._check_size(frame)
        listed = self.bad_in(frame.shape[-2:])
        left_out, saturated = listed.expand_as(frame), self._saturated(frame)
        if saturated is not None:
            saturated = saturated & ~listed
            light = self._light(self._files.get("dark", 0.0))
            hot, _ = self._bad(tuple(frame.shape[-2:]), light)  # is repaired, not left out
            left_out = left_out | (saturated if hot is None else saturated & ~hot)
        check_finite("measurement", torch.where(left_out, 0, frame))
        if bool(left_out.flatten(2).all(2).any()):
            of = "bad_pixels" if bool(listed.all()) else "saturation"
            raise ValueError(f"{of}: expected some good pixels, all are to be left out")
        y, done = self._apply(_fill(frame, left_out), listed, left_out, saturated)
        bad = self._cut(left_out) if self.window is not None else left_out
        if bool(bad.flatten(2).all(2).any()):
            raise ValueError("bad_pixels: expected some good pixels in the window, got none")
        source = None if self.bad_pixels is None else str(self.bad_pixels)
        number = int(bad.sum())
        if source is None and not number:
            return Prepared(y, None, done | {"bad_pixels": None})
        about = {"source": source, "left_out": number, "fraction": number / bad.numel()}
        return Prepared(y, bad, done | {"bad_pixels": about})

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

    def _apply(
        self, frame: Tensor, listed: Tensor, left_out: Tensor, saturated: Tensor | None
    ) -> tuple[Tensor, dict[str, Any]]:
        done: dict[str, Any] = dict.fromkeys(STEPS)
        size = tuple(frame.shape[-2:])
        dark, done["dark"] = self._dark(frame)
        y = frame - dark
        light = self._light(dark)
        bad, source = self._bad(size, light)
        if light is not None:
            y, done["flat"] = self._flatten(y, light, listed if bad is None else bad | listed)
        if self.hot_pixels is not None:
            if bad is None:
                source, images = "measurement", y.reshape(-1, *size)
                level: Any = self.hot_pixels
                found = [find_hot_in_snapshot(one, level) for one in images]
                bad = torch.stack(found).any(0)
            bad = bad & ~listed
            self._check_number(bad)
            y = _fill(y, bad | left_out, "hot_pixels")
            threshold = self.hot_pixels if is_number(self.hot_pixels) else None
            about = {"source": source, "threshold": threshold, "repaired": int(bad.sum())}
            done["hot_pixels"] = about
        if saturated is not None:
            full = saturated if bad is None else saturated & ~bad
            done["saturation"] = self._count(full, bool((full & left_out).any()))
        if self.window is not None:
            y, done["window"] = self._cut(y), list(self.window)
        done["scale"] = float(self.scale)
        return y * self.scale, done

    def _read(self, name: str, wanted: str, path: str | os.PathLike[str]) -> None:
        try:
            loaded = load_mask(path) if name == "bad_pixels" else load_measurement(path)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{name}: expected {wanted}, got {path!r}: {error}") from None
        except (OSError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from None
        data = loaded.data.flatten(0, 1)
        self._files[name] = data.any(0).float() if name in MAPS else data.mean(0)

    def _dark(self, frame: Tensor) -> tuple[Tensor | float, dict[str, Any]]:
        if "dark" in self._files:
            level = self._files["dark"]
            return level, {"source": str(self.dark), "level": level.mean().item()}
        if self.dark == "auto":
            edge = edge_level(frame, self.step, self.axis)
            return edge, {"source": "edges", "level": edge}
        return float(self.dark), {"source": "number", "level": float(self.dark)}

    def _light(self, dark: Tensor | float) -> Tensor | None:
        return None if self.flat is None else self._files["flat"] - dark

    def _saturated(self, frame: Tensor) -> Tensor | None:
        return None if self.saturation is None else frame >= self.saturation

    def _bad(self, size: tuple[int, ...], light: Tensor | None) -> tuple[Tensor | None, str]:
        """Pixels to be repaired, `(H, W)`, and how they are known; None: nothing tells."""
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
        smooth = {"dark": self._files.get("dark"), "flat": light}
        known = {name: values for name, values in smooth.items() if values is not None}
        for values in known.values():
            bad |= find_outliers(values, float(hot))
        return (bad, ", ".join(known)) if known else (None, "")

    def _flatten(self, y: Tensor, light: Tensor, bad: Tensor) -> tuple[Tensor, dict[str, Any]]:
        good = ~bad
        if number := int((good & (light <= 0)).sum()):
            raise ValueError(
                f"flat: expected more than the dark level everywhere, got {number} pixels at or "
                f"below it in {self.flat}; name dead pixels in hot_pixels"
            )
        response = torch.where(good, light / light[good].mean(), 1)
        low, high = response[good].aminmax()
        about = {"source": str(self.flat), "lowest": low.item(), "highest": high.item()}
        return y / response, about

    def _check_number(self, bad: Tensor) -> None:
        number, total = int(bad.sum()), bad.numel()
        if is_number(self.hot_pixels) and number > MOST_OUTLIERS * total:
            raise ValueError(
                f"hot_pixels: {number} of {total} pixels lie beyond {self.hot_pixels:g} standard "
                "deviations, too many to be outliers; give a larger number, or a file"
            )

    def _count(self, saturated: Tensor, left_out: bool) -> dict[str, Any]:
        number, share = int(saturated.sum()), saturated.double().mean().item()
        if number:
            warnings.warn(
                f"measurement: {number} pixels ({100 * share:.3g} %) are saturated, at "
                f"{self.saturation:g} or more; "
                + ("they are left out" if left_out else "they were brighter than they look"),
                stacklevel=2,
            )
        return {"level": float(self.saturation or 0), "pixels": number, "fraction": share}

    def _cut(self, y: Tensor) -> Tensor:
        top, left, height, width = self.window or ()
        if top + height > y.shape[-2] or left + width > y.shape[-1]:
            raise ValueError(
                f"window: expected [top, left, height, width] inside {tuple(y.shape[-2:])}, got "
                f"{list(self.window or ())}"
            )
        return y[..., top : top + height, left : left + width].contiguous()


def describe(done: Mapping[str, Any]) -> str:
    """Say in one line what was done to a frame; empty where nothing was."""
    parts = []
    dark, flat, hot, full = (done[name] for name in STEPS[:4])
    without = done.get("bad_pixels")
    if dark["source"] != "number" or dark["level"]:
        origin = {"number": "", "edges": " (of the edges)"}.get(
            dark["source"], f" (mean of {Path(dark['source']).name})"
        )
        parts.append(f"dark level {dark['level']:.4g}{origin} subtracted")
    if flat:
        span = f"{flat['lowest']:.3g} to {flat['highest']:.3g}"
        parts.append(f"divided by {Path(flat['source']).name} ({span})")
    if hot:
        parts.append(f"{hot['repaired']} pixels repaired ({Path(hot['source']).name})")
    if full:
        parts.append(f"{full['pixels']} pixels saturated ({100 * full['fraction']:.3g} %)")
    if without:
        parts.append(f"{without['left_out']} pixels left out ({100 * without['fraction']:.3g} %)")
    if done["window"]:
        parts.append(f"window {done['window']}")
    if done["scale"] != 1:
        parts.append(f"times {done['scale']:.4g}")
    return ", ".join(parts)


def edge_level(measurement: Tensor, step: float, axis: int = -1) -> float:
    """Estimate a sensor's dark level from the edges of one snapshot.

    The outermost |step| columns on either side are reached by a single band, so what they show of
    the scene is faint beside the middle, where C bands add up. Their median is the level. It is too
    high where the scene is bright up to its left and right border; a dark frame is better.

    Args:
        measurement: `(B, K, H, W')`.
        step: dispersion, pixels per band.
        axis: of the dispersion, -1 or -2.

    Returns:
        The level in the unit of the measurement.
    """
    length = measurement.shape[axis]
    count = min(max(1, math.floor(abs(step))), length)
    left = measurement.narrow(axis, 0, count).flatten()
    right = measurement.narrow(axis, length - count, count).flatten()
    return left.new_tensor([left.median().item(), right.median().item()]).mean().item()


def find_outliers(frame: Tensor, threshold: float) -> Tensor:
    r"""Find the pixels of a smooth frame, dark or flat, that are far from their neighbours.

        |d| > threshold · σ,  d = pixel − median of its 8 neighbours

    with the robust standard deviation of d over the frame `(H, W)`,
    σ = 1.4826 · median |d − median d|. Where most pixels equal their neighbours, the standard
    deviation of d stands for σ.

    Returns:
        True at outliers, `(H, W)`.
    """
    excess = frame - torch.stack(_neighbours(frame, math.nan)).nanmedian(0).values
    sigma = _robust_sigma(excess) or excess.std().item()
    return excess.abs() > threshold * sigma


def find_hot_in_snapshot(frame: Tensor, threshold: float) -> Tensor:
    r"""Find hot pixels where the mask gives every pixel another light than its neighbours.

        d > threshold · (σ + 0.3 · (max − min)),  d = pixel − max

    with the maximum and the minimum of the pixel's 8 neighbours and σ as in `find_outliers`.
    Contrast among the neighbours is the code's, and is not held against the pixel. Clean snapshots
    of 15 scenes with grey masks, five of them real captures, stay below 6.4, those of a binary mask
    below 10. Of two hot pixels side by side only the brighter may be found, and a dead pixel never
    is: a frame taken in the dark, or a map, is better.

    Returns:
        True at hot pixels, `(H, W)`.
    """
    highest = torch.stack(_neighbours(frame, -math.inf)).amax(0)
    lowest = torch.stack(_neighbours(frame, math.inf)).amin(0)
    excess = frame - highest
    return excess > threshold * (_robust_sigma(excess) + CODE_CONTRAST * (highest - lowest))


def _fill(frame: Tensor, bad: Tensor, name: str = "bad_pixels") -> Tensor:
    """Repair a frame `(B, K, H, W)`, each image where its own pixels `(B, K, H, W)` are bad."""
    if not bool(bad.any()):
        return frame
    images = zip(frame.flatten(0, 1), bad.expand_as(frame).flatten(0, 1), strict=True)
    return torch.stack([repair(one, where, name) for one, where in images]).view_as(frame)


def repair(frame: Tensor, bad: Tensor, name: str = "hot_pixels") -> Tensor:
    """Replace pixels of `(..., H, W)` where bad `(H, W)` is True by the mean of their neighbours.

    Pixels without a valid neighbour are filled from those that have been, inwards.

    Raises:
        ValueError: no pixel is valid.
    """
    if bool(bad.all()):
        raise ValueError(f"{name}: expected some good pixels, all are to be repaired")
    shape, bad = frame.shape, bad.clone()
    values = torch.where(bad, 0, frame).reshape(-1, 1, *shape[-2:])
    around = values.new_ones(1, 1, 3, 3)  # the middle is bad, hence zero
    while bool(bad.any()):
        valid = (~bad).to(values.dtype)[None, None]
        count = F.conv2d(valid, around, padding=1)
        mean = F.conv2d(values, around, padding=1) / count.clamp(min=1)
        ready = bad & (count[0, 0] > 0)
        values = torch.where(ready, mean, values)
        bad &= ~ready
    return values.reshape(shape)


def _neighbours(frame: Tensor, outside: float) -> list[Tensor]:
    """The 8 neighbours of every pixel, each `(H, W)`."""
    height, width = frame.shape
    padded = F.pad(frame, (1, 1, 1, 1), value=outside)
    places = [(row, column) for row in range(3) for column in range(3) if (row, column) != (1, 1)]
    return [padded[r : r + height, c : c + width] for r, c in places]


def _robust_sigma(values: Tensor) -> float:
    return 1.4826 * (values - values.median()).abs().median().item()
