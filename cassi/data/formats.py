"""What the readers and writers of all file formats share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Reader", "Source", "Writer", "as_text", "check_size"]

# Deflate cannot expand more than 1032 times and MATLAB stores small doubles as bytes (8 times), so
# a claim beyond this ratio is a damaged or hostile header. Small claims are never worth refusing.
_LARGEST_RATIO = 10_000
_HARMLESS_BYTES = 1 << 28


@dataclass(frozen=True)
class Source:
    """What one open file holds.

    Attributes:
        shapes: Shape of every numeric array by name; the name is "" where arrays have none.
        read: Reads one of them by name.
        others: What else is there, by name, in words ("a cell array").
        axes: Axis order stated by the file itself, by array name, for example "CHW".
        wavelengths: Wavelengths and their unit stated outside the arrays (headers, attributes).
        scale: What values are to be divided by, and the name the file gives it. None: nothing is
            stated, and integers of an image are divided by the maximum of their type.
        image: Whether integers are grey levels of an image rather than plain numbers.
    """

    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]
    others: dict[str, str] = field(default_factory=dict)
    axes: dict[str, str] = field(default_factory=dict)
    wavelengths: tuple[Any, str] | None = None
    scale: tuple[float, str] | None = None
    image: bool = False


Reader = Callable[[Path], AbstractContextManager[Source]]
# Writes a (C, H, W) float32 cube and its wavelengths (nm) to a path.
Writer = Callable[[Path, np.ndarray, "tuple[float, ...] | None"], None]


def check_size(claimed: int, stored: int, *, compressed: bool = False) -> None:
    """Refuse an array that the file cannot back up, before memory is allocated for it.

    Args:
        claimed: Bytes the header promises.
        stored: Bytes the file holds for it.
        compressed: Whether ``stored`` may legitimately be smaller.

    Raises:
        ValueError: The file is cut short, or the claim is beyond any compression.
    """
    if not compressed and claimed > stored:
        raise ValueError(f"the file is cut short: {claimed} bytes expected, {stored} there")
    if claimed > max(_HARMLESS_BYTES, _LARGEST_RATIO * stored):
        raise ValueError(f"it claims {claimed} bytes of data, more than {stored} bytes can hold")


def as_text(value: Any) -> str:
    """Text out of an attribute or a small array of any text type; "" if it is none."""
    value = np.asarray(value)
    if value.size != 1 or value.dtype.kind not in "SUO":
        return ""
    value = value.reshape(-1)[0]
    return value.decode("latin1") if isinstance(value, bytes) else str(value).strip()
