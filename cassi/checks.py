"""Checks that several parts need; imports nothing of the package."""

from __future__ import annotations

import codecs
import contextlib
import difflib
import functools
import inspect
import math
import opcode
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from torch import Tensor

LEAST_CLIPPED = 16
"""Pixels that share a frame's maximum exactly, where it is clipped."""
CLEAR_LEVELS = 8
"""Different values, over which as many pixels below a clipped maximum are spread."""


_gate: Callable[[Path], object] | None = None


@contextlib.contextmanager
def reading_only(check: Callable[[Path], object]) -> Iterator[None]:
    """Have every file that comes from outside checked where it is opened, in all threads.

    `check` raises PermissionError for a path that may not be read.
    """
    global _gate
    before, _gate = _gate, check
    try:
        yield
    finally:
        _gate = before


def check_readable(path: Path) -> None:
    """Raise PermissionError for a file that may not be read, see `reading_only`."""
    if _gate is not None:
        _gate(path)


LARGEST_TEXT = 1 << 26
"""Bytes of a file that describes others: records, manifests, lists of checksums."""


def check_fetched(path: Path, head: bytes) -> None:
    """Raise ValueError where Git LFS has left a pointer in place of a file, of its first bytes."""
    if head.startswith(b"version https://git-lfs"):
        raise ValueError(f"{path}: expected the file, got a pointer of Git LFS; run git lfs pull")


def read_regular(path: Path, most: int = LARGEST_TEXT, *, follow: bool = True) -> bytes:
    """Return the content of a regular file; no pipe is waited for, no device read.

    `most` is in bytes. Without `follow` the path may be no link.
    """
    check_readable(path)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    with open(os.open(path, flags), "rb") as stream:  # noqa: PTH123
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{path}: expected a regular file")
        content = b"" if found.st_size > most else stream.read(most + 1)
    if max(found.st_size, len(content)) > most:
        raise ValueError(f"{path}: expected at most {most} bytes, got more")
    check_fetched(path, content)
    return content


_SEPARATORS = ";\t,"
"""Of columns, the surest first: a comma may also be that of a decimal number."""


def read_numbers(path: Path, most: int = LARGEST_TEXT) -> list[list[float]]:
    """Read the lines of numbers of a text file: CSV as spreadsheets of any language save it.

    Columns are separated by semicolons, tabs, commas or blanks. Between the first two kinds a
    number may have a decimal comma. Lines that begin with # and those of names before the first
    number are left out. A mark of the byte order may come first.
    """
    content = read_regular(path, most)
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    lines = content.decode("utf-16" if wide else "utf-8-sig", "replace").splitlines()
    text = {n: line for n, line in enumerate(lines, 1) if line.strip() and line.lstrip()[0] != "#"}
    numeric = [line for line in text.values() if line.lstrip(' "+-.')[:1].isdecimal()]
    separator = next((s for s in _SEPARATORS if any(s in line for line in numeric)), None)
    rows: list[list[float]] = []
    for number, line in text.items():
        cells = line.split(separator)
        if separator in (";", "\t"):
            cells = [cell.replace(",", ".") for cell in cells]
        try:
            row = [float(cell.strip().strip('"')) for cell in cells]
        except ValueError:
            row = []
        if row and all(map(math.isfinite, row)) and len(row) == len(rows[0] if rows else row):
            rows.append(row)
        elif rows or any(cell.strip()[:1].isdecimal() for cell in cells):
            alike = f"{len(rows[0])} numbers" if rows else "numbers"
            raise ValueError(f"{path}, line {number}: expected {alike}, got {line.strip()[:80]!r}")
    if not rows:
        raise ValueError(f"{path}: expected lines of numbers, got none")
    return rows


def whole_number(name: str, value: object, minimum: int, maximum: int | None = None) -> int:
    """Return a whole number in a range; a boolean is none."""
    number = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None
    if number is None or number < minimum or (maximum is not None and number > maximum):
        span = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise ValueError(f"{name}: expected a whole number {span}, got {value!r}")
    return number


def not_negative(name: str, value: object) -> float:
    """Return a number >= 0; a boolean is none."""
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) >= 0:
        raise ValueError(f"{name}: expected a number >= 0, got {value!r}")
    return float(value)


def one_of(name: str, value: object, known: Sequence[str], *, null: bool = False) -> None:
    """Raise ValueError unless a value is one of some names, or None where that may be."""
    if value not in known and not (null and value is None):
        near = did_you_mean(value, known) or f"; there is {', '.join(known)}"
        raise ValueError(f"{name}: there is no {value!r}{near}")


def is_number(value: object) -> TypeGuard[float]:
    """Tell whether this is a finite number; a boolean is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_list(value: object, length: int) -> TypeGuard[Sequence[int]]:
    """Tell whether these are so many whole numbers of at least 0."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != length:
        return False
    return all(type(item) is int and item >= 0 for item in value)


Rules = Mapping[str, tuple[str, Callable[[object], bool]]]
"""What each value must be, in words and as a test."""


def check_values(values: object, rules: Rules, place: str = "") -> None:
    """Check the attributes of an object.

    `place` stands before each name in the message.
    """
    for name, (wanted, fits) in rules.items():
        if not fits(value := getattr(values, name)):
            raise ValueError(f"{place}{name}: expected {wanted}, got {value!r}")


def did_you_mean(
    name: object, known: Iterable[str], n: int = 3, *, cutoff: float = 0.5, place: str = ""
) -> str:
    """Return "; did you mean A or B?", the end of a message; "" where nothing is near.

    Upper and lower case are the same. `place` stands before each name in the message.
    """
    by_lower = {entry.lower(): entry for entry in known}
    found = difflib.get_close_matches(str(name).lower(), by_lower, n=n, cutoff=cutoff)
    near = " or ".join(place + by_lower[entry] for entry in found)
    return f"; did you mean {near}?" if near else ""


def printable(text: str) -> str:
    r"""Return a text in which characters that steer a terminal are written out.

    >>> printable("a\x1b[2J.npy")
    'a\\x1b[2J.npy'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


PACKAGE = f"{Path(__file__).parent}{os.sep}"
"""The folder of this package, with the separator behind it."""
_RAISE = opcode.opmap["RAISE_VARARGS"]


def raised_here(error: BaseException) -> bool:
    """Tell whether a `raise` statement of this package made an error.

    Such an error is meant for the user; one that Python or a library raised at a line of this
    package is a defect.
    """
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None:  # made, and never raised
        return True
    code = place.tb_frame.f_code
    return code.co_filename.startswith(PACKAGE) and code.co_code[place.tb_lasti] == _RAISE


def check_cube(
    network: Callable[..., object], x: object, shape: tuple[int, ...], trained: bool = False
) -> None:
    """Refuse what a network, perhaps the user's own, returns in place of a cube.

    `trained`: gradients are to pass.
    """
    if (got := _misfit(x, shape, trained)) is None:
        return
    listed = isinstance(x, list | tuple)
    stages = "; stages are for a method outputs(y, system) and loss=multi_stage" if listed else ""
    raise ValueError(
        f"{describe_place(network)}: expected the network to return a tensor {tuple(shape)}, "
        f"(B, C, H, W), got {got}{stages}"
    )


def check_loss(loss: Callable[..., object], value: object, trained: bool = True) -> None:
    """Refuse what a loss, perhaps the user's own, returns in place of one number."""
    if (got := _misfit(value, (), trained)) is not None:
        mean = "; return its mean()" if getattr(value, "ndim", 0) else ""
        place = describe_place(loss)
        raise ValueError(f"{place}: expected the loss to be one number, a tensor, got {got}{mean}")


def _misfit(x: object, shape: tuple[int, ...], trained: bool) -> str | None:
    import torch

    if not isinstance(x, torch.Tensor):
        return f"{type(x).__module__}.{type(x).__name__}".removeprefix("builtins.")
    if x.shape != shape:
        return str(tuple(x.shape))
    if trained and torch.is_grad_enabled() and not x.requires_grad:
        return "a detached one, through which no gradient passes"
    return None


def code_of(made: Callable[..., object]) -> CodeType | None:
    """Return the code of a function, of one that is wrapped its own; None where it has none."""
    return getattr(inspect.unwrap(made), "__code__", None)


def describe_place(made: Callable[..., object]) -> str:
    """Return the name of a function, or of what a module computes, with its file and line."""
    made = made.func if isinstance(made, functools.partial) else made
    if not hasattr(made, "__qualname__"):
        made = getattr(type(made), "forward", type(made).__call__)
    code = code_of(made)
    place = f" ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code else ""
    return f"{made.__qualname__}{place}"


def clipped_level(values: Tensor) -> float | None:
    """Find the level at which a frame is clipped, in the frame itself.

    That is its maximum, where at least 16 pixels have exactly this value and as many pixels below
    it are spread over at least 8 values: the numbers of an unclipped frame grow rarer upwards.
    `values` are those of good pixels, `(N,)`. None where the frame is not clearly clipped.
    """
    top = values.max()
    number = int((values == top).sum())
    if number < LEAST_CLIPPED:
        return None
    highest = values.topk(min(2 * number, len(values))).values[number:]
    return top.item() if len(highest.unique()) >= CLEAR_LEVELS else None
