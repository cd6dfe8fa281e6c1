"""`Source`, which every reader of a file format yields, and functions that readers share.

Readers run in the sandboxed reader (`cassi.data.reader_process`), which limits what a hostile file
can do. So a reader passes the file to the library of its format. It checks only faults that the
library does not report: values that are missing, or that lie in other files.
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
    """The content of one open file.

    Attributes:
        shapes: Shape of every numeric array by name; the name is "" if the format has no names.
        read: Function that returns one of these arrays by name.
        other_items: Kind of each item that is no numeric array, such as "a cell array", by name.
        axes: Axis order stated by the file itself, by array name, for example "CHW".
        units: Unit of each array whose unit the file states, by name.
        wavelengths: Wavelengths and their unit stated outside the arrays (headers, attributes).
        scale: Divisor of the values, and the name that the file gives it. None: the file states
            none, and integers of an image are divided by the maximum of their type.
        image: Whether integers are grey levels of an image rather than plain numbers.
        missing: Values that mark a missing pixel. In an image 0 counts as darkness and not as
            missing.
    """

    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]
    other_items: dict[str, str] = field(default_factory=dict)
    axes: dict[str, str] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    wavelengths: tuple[object, str] | None = None
    scale: tuple[float, str] | None = None
    image: bool = False
    missing: tuple[float, ...] = ()


Reader = Callable[[Path], AbstractContextManager[Source]]
# A function (path, cube, wavelengths) that writes a (C, H, W) float32 cube and its wavelengths
# (nm). In some formats it also takes the widths of the bands (nm).
Writer = Callable[..., None]


@contextmanager
def name_errors(beginning: str) -> Iterator[None]:
    """Turn any error of a library into a ValueError of one line that begins with ``beginning``."""
    try:
        yield
    except Exception as error:
        # Some libraries put parts of the file into their messages, so messages are cut.
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(f"{beginning}: {reason}") from error


def find_missing(
    values: np.ndarray,
    missing_values: Iterable[float],
    valid: tuple[float, float] = (-math.inf, math.inf),
) -> np.ndarray:
    """Return for each value whether it is in a list or outside the `valid` range, bool."""
    is_missing = np.isin(values, list(missing_values))
    # Only finite limits are compared: a comparison with infinity would convert integers to float64.
    if math.isfinite(valid[0]):
        is_missing |= values < valid[0]
    if math.isfinite(valid[1]):
        is_missing |= values > valid[1]
    return is_missing


def blank(values: np.ndarray, is_missing: np.ndarray) -> np.ndarray:
    """Return values, with NaN in place of missing ones."""
    return np.where(is_missing, np.float32(np.nan), values) if is_missing.any() else values


def drop_opacity(levels: np.ndarray, opacity: np.ndarray) -> np.ndarray:
    """Return the levels of an image; ValueError if only its opacity differs between pixels."""
    # A mask may be drawn in one colour, with its pattern in the opacity. Without the opacity the
    # pattern would be lost.
    if np.ptp(levels) == 0 and np.ptp(opacity) > 0:
        raise ValueError("its pattern is in the opacity, and all its levels are one; save it grey")
    return levels


@functools.cache
def machine_memory(root: Path = Path("/")) -> int:
    """Return how many bytes of memory this process may use.

    It is the smallest of three numbers: the memory of the machine, the limits of all control groups
    above this process (version 1 and 2), and what SLURM grants. SLURM grants
    `SLURM_MEM_PER_NODE`, or `SLURM_MEM_PER_CPU` times `SLURM_CPUS_ON_NODE`, in MiB. Linux keeps the
    limits in files below `root`.
    """
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # not on every system
        memory = 1 << 62  # no limit is known
    names = ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE")
    texts = [os.environ.get(name, "") for name in names]
    node, per_core, cores = (int(text) if text.isdecimal() else 0 for text in texts)
    # SLURM writes 0 for all the memory of the node.
    if slurm_mib := node or per_core * cores:
        memory = min(memory, slurm_mib << 20)
    for words in read_limits(root, "memory", ["memory.max"], ["memory.limit_in_bytes"]):
        memory = min([memory, *(int(word) for word in words if word.isdecimal())])
    return memory


def as_text(value: object) -> str:
    """Return the text of an attribute or of an array with one text; "" if it is no text."""
    value = np.asarray(value)
    if value.size != 1 or value.dtype.kind not in "SUO":
        return ""
    value = value.reshape(-1)[0]
    return value.decode("latin1") if isinstance(value, bytes) else str(value).strip()


def as_numbers(values: object) -> np.ndarray:
    """Return numbers, or texts of numbers, as float64 `(N,)`; empty if they are no numbers.

    A single text is a list with commas, with or without braces around it.
    """
    try:
        if isinstance(values, str):
            values = values.strip("{} ").split(",")
        return np.asarray(values).astype(np.float64).ravel()
    except (TypeError, ValueError, OverflowError):
        return np.empty(0)
