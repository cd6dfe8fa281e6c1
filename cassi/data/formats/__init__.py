"""What the readers and writers of all file formats share.

Readers run in the process of `cassi.data.worker`, which limits what a file can do. So they ask the
library of the format, and check what it would pass over: parts that are missing or lie elsewhere.
"""

import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cassi.control_groups import read_limits


@dataclass(frozen=True)
class Source:
    """What one open file holds.

    Attributes:
        shapes: Shape of every numeric array by name; the name is "" where arrays have none.
        read: Reads one of them by name.
        others: What else is there, by name, in words ("a cell array").
        axes: Axis order stated by the file itself, by array name, for example "CHW".
        units: Units of arrays, where the file states them.
        wavelengths: Wavelengths and their unit stated outside the arrays (headers, attributes).
        scale: What values are to be divided by, and the name the file gives it. None: nothing is
            stated, and integers of an image are divided by the maximum of their type.
        image: Whether integers are grey levels of an image rather than plain numbers.
        missing: Stored values that stand for no value. A 0 of an image is taken for darkness.
    """

    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]
    others: dict[str, str] = field(default_factory=dict)
    axes: dict[str, str] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    wavelengths: tuple[object, str] | None = None
    scale: tuple[float, str] | None = None
    image: bool = False
    missing: tuple[float, ...] = ()


Reader = Callable[[Path], AbstractContextManager[Source]]
# Writes a (C, H, W) float32 cube and its wavelengths (nm), and in some formats the widths of its
# bands (nm), to a path.
Writer = Callable[..., None]


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Turn whatever a library raises into a ValueError of one line that begins with ``what``."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(f"{what}: {reason}") from error


def find_missing(
    stored: np.ndarray, missing: Iterable[float], valid: tuple[float, float] = (-math.inf, math.inf)
) -> np.ndarray:
    """Tell which stored values stand for none: those of a list, and those out of a range."""
    gone = np.isin(stored, list(missing))
    for beyond, limit in ((np.less, valid[0]), (np.greater, valid[1])):
        gone |= beyond(stored, limit) if math.isfinite(limit) else False
    return gone


def blank(values: np.ndarray, gone: np.ndarray) -> np.ndarray:
    """Return values with NaN where there are none."""
    return np.where(gone, np.float32(np.nan), values) if gone.any() else values


def drop_opacity(levels: np.ndarray, opacity: np.ndarray) -> np.ndarray:
    """Return the levels of an image without its opacity, which must not be what has the pattern."""
    if np.ptp(levels) == 0 and np.ptp(opacity) > 0:
        raise ValueError("its pattern is in the opacity, and all its levels are one; save it grey")
    return levels


@functools.cache
def machine_memory(root: Path = Path("/")) -> int:
    """Bytes of memory this process may use.

    What the machine has, the strictest of all control groups above this process (version 1 and 2)
    leaves, and SLURM grants: `SLURM_MEM_PER_NODE`, or `SLURM_MEM_PER_CPU` for each of
    `SLURM_CPUS_ON_NODE` (in MiB). Linux tells this below `root`.
    """
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # not on every system
        memory = 1 << 62
    names = ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE")
    told = [os.environ.get(name, "") for name in names]
    node, each, cores = (int(text) if text.isdecimal() else 0 for text in told)
    if granted := node or each * cores:  # 0 means all
        memory = min(memory, granted << 20)
    for words in read_limits(root, "memory", ["memory.max"], ["memory.limit_in_bytes"]):
        memory = min([memory, *(int(word) for word in words if word.isdecimal())])
    return memory


def as_text(value: object) -> str:
    """Text out of an attribute or a small array of any text type; "" if it is none."""
    value = np.asarray(value)
    if value.size != 1 or value.dtype.kind not in "SUO":
        return ""
    value = value.reshape(-1)[0]
    return value.decode("latin1") if isinstance(value, bytes) else str(value).strip()


def as_numbers(values: object) -> np.ndarray:
    """Return numbers, or texts of numbers, as float64 `(N,)`; empty where they are none.

    One text lists them with commas, in braces or not.
    """
    try:
        if isinstance(values, str):
            values = values.strip("{} ").split(",")
        return np.asarray(values).astype(np.float64).ravel()
    except (TypeError, ValueError, OverflowError):
        return np.empty(0)
