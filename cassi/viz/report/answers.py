"""Pack answers for the report: maps for pictures, numbers for a table."""

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch

from cassi.viz.answers import as_answer, choose_range, shrink_answer
from cassi.viz.checks import Array
from cassi.viz.report.codec import block_size

# Levels of a packed map between its 0.5th and its 99.5th percentile. Each level more takes bytes,
# and intervals are rarely as narrow as 1 % of this range. 16 bits leave room for values 30 times as
# far out; further ones are cut.
_LEVELS = 1000
_LARGEST_LEVEL = 2**15 - 1
# The level of pixels without an answer.
_ABSTAINED_LEVEL = -(2**15)


class ReportedAnswer(Protocol):
    """An answer with its intervals; `cassi.uncertainty.answers.Answer` is one."""

    @property
    def value(self) -> Array:
        """Maps `(H, W)` or `(N, H, W)`, or numbers `(N,)` or `()`."""

    @property
    def low(self) -> Array:
        """Lower ends of the 68 % and the 90 % interval, `(2, …)`."""

    @property
    def high(self) -> Array:
        """Upper ends, `(2, …)`."""

    @property
    def abstained(self) -> Array:
        """Bool, of the shape of `value`: there is no answer here."""

    @property
    def labels(self) -> Sequence[str]:
        """Names along the first axis of `value`; may be empty."""

    @property
    def unit(self) -> str:
        """Unit of the values; may be empty."""

    @property
    def reason(self) -> str:
        """Why there is no answer where `abstained`."""


def encode_answers(answers: Mapping[str, ReportedAnswer]) -> bytes:
    """Pack answers for `make_report`: some 150 kB a map of 256×256.

    A map and half its 90 % interval are rounded to a thousandth of the map's range, the half width
    upwards. Maps of more than 400×400 pixels are averaged over 2×2, 3×3, … pixels.

    Args:
        answers: answers by the names of their questions, in the order of the page.

    Returns:
        JSON, UTF-8.

    Raises:
        ValueError: an answer is no map `(H, W)` or `(N, H, W)`, no list and no number, its parts
            have other shapes, or a value of a map is NaN or infinite where it has an answer.
    """
    maps, numbers = [], []
    for name, answer in answers.items():
        value, low, high, no_answer = (
            torch.as_tensor(part).detach().cpu().numpy()
            for part in (answer.value, answer.low, answer.high, answer.abstained)
        )
        if value.ndim > 3 or not low.shape == high.shape == (2, *value.shape):
            raise ValueError(
                f"{name}: expected a map (H, W) or (N, H, W), N numbers or one, and (2, …) ends of "
                f"its intervals, got {value.shape}, {low.shape} and {high.shape}: check the answer"
            )
        texts = {"unit": answer.unit, "reason": answer.reason}
        if value.ndim < 2:
            rows = _pack_numbers(answer.labels, value, low, high, no_answer)
            numbers.append({"name": name, **texts, "rows": rows})
            continue
        parts = (value, low[1], high[1], no_answer)
        if value.ndim == 2:
            maps.append({"name": name, **texts, **_pack_map(name, *parts)})
            continue
        for index, label in enumerate(_complete(answer.labels, len(value))):
            map_name = f"{name}: {label}"
            packed_map = _pack_map(map_name, *(part[index] for part in parts))
            maps.append({"name": map_name, **texts, **packed_map})
    page = {"maps": maps, "numbers": numbers}
    return json.dumps(page, ensure_ascii=False, separators=(",", ":")).encode()


def _pack_map(
    name: str, value: np.ndarray, low: np.ndarray, high: np.ndarray, no_answer: np.ndarray
) -> dict[str, object]:
    """Pack a map as 16-bit levels of its values, and then of its half widths.

    With the level L of a value and the level l of its half width, the value is v = origin + step·L,
    and its interval v ± step·l, cut at `least` and `largest`.
    """
    with np.errstate(invalid="ignore"):  # infinite ends, where it abstained
        # An interval that was cut at a bound has its whole half width on the other side.
        half_width = np.maximum(high - value, value - low)
    value, half_width, no_answer = as_answer(name, value, half_width, no_answer)
    ends = (low[~no_answer].min(), high[~no_answer].max()) if not no_answer.all() else (0.0, 0.0)
    block = block_size(*value.shape)
    full_shape, share = value.shape, float(no_answer.mean())
    value, half_width, no_answer = shrink_answer(value, half_width, no_answer, block)
    first, last = choose_range(value[~no_answer])
    step = (last - first) / _LEVELS
    levels = np.stack([np.rint((value - first) / step), np.ceil(half_width / step)])
    levels = np.clip(levels, -_LARGEST_LEVEL, _LARGEST_LEVEL)
    levels[0, no_answer] = _ABSTAINED_LEVEL
    packed_levels = gzip.compress(levels.astype("<i2").tobytes(), mtime=0)
    return {
        "shape": value.shape,
        "full": full_shape,
        "block": block,
        "share": share,
        "origin": first,
        "step": step,
        "widest": choose_range(half_width[~no_answer])[1],
        "least": float(ends[0]),
        "largest": float(ends[1]),
        "levels": base64.b64encode(packed_levels).decode("ascii"),
    }


def _pack_numbers(
    labels: Sequence[str],
    value: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    no_answer: np.ndarray,
) -> list[list[object]]:
    """Return a row for each number: its label, and value and intervals, or None without answer."""
    intervals = np.stack([low, high], axis=-1).reshape(2, -1, 2)
    no_answer = (
        no_answer.ravel() | ~np.isfinite(intervals).all((0, 2)) | ~np.isfinite(value.ravel())
    )
    names = _complete(labels, value.size) if value.ndim else [""]
    return [
        [name, *((None, None) if is_missing else (number, intervals[:, index].tolist()))]
        for index, (name, number, is_missing) in enumerate(
            zip(names, value.ravel().tolist(), no_answer, strict=True)
        )
    ]


def _complete(labels: Sequence[str], count: int) -> list[str]:
    """Return the labels, and numbers from 1 where one is missing."""
    return [*labels, *(str(index + 1) for index in range(len(labels), count))][:count]
