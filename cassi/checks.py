"""Checks of arguments, files and returned values that several parts of the package need.

The module also reads small text files and writes parts of error messages, such as hints. It imports
nothing of the package, so that every part may import it.
"""

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

MIN_CLIPPED_PIXELS = 16
"""A frame counts as clipped only if at least this many pixels have exactly its maximum. A smaller
number takes a few equally bright pixels for clipping; a larger one misses small clipped spots."""
MIN_LEVELS_BELOW_CLIP = 8
"""Let N pixels have the maximum. A frame counts as clipped only if the N next brightest pixels have
at least this many different values. Otherwise the frame has few grey values, and many pixels
share each of them without clipping."""

# Set by `check_opened_files`. It is global, since readers in other threads must be checked too.
_path_check: Callable[[Path], object] | None = None


@contextlib.contextmanager
def check_opened_files(check: Callable[[Path], object]) -> Iterator[None]:
    """Within this context, check each of the user's files before it is opened, in all threads.

    `check` raises PermissionError for a path that may not be read.
    """
    global _path_check
    outer_check, _path_check = _path_check, check
    try:
        yield
    finally:
        _path_check = outer_check


def check_readable(path: Path) -> None:
    """Raise PermissionError for a file that may not be read; see `check_opened_files`."""
    if _path_check is not None:
        _path_check(path)


MAX_TEXT_BYTES = 1 << 26
"""Most bytes of a text file that describes other files: a record, manifest or checksum list."""


def check_fetched(path: Path, head: bytes) -> None:
    """Raise ValueError if the first bytes of a file are a pointer of Git LFS, not the file."""
    if head.startswith(b"version https://git-lfs"):
        raise ValueError(f"{path}: expected the file, got a pointer of Git LFS; run git lfs pull")


def read_regular(path: Path, max_bytes: int = MAX_TEXT_BYTES, *, follow: bool = True) -> bytes:
    """Return the content of a regular file, never of a pipe or a device.

    Args:
        path: the file.
        max_bytes: most bytes that the file may have.
        follow: whether the path may be a link.

    Raises:
        PermissionError: the path may not be read; see `check_opened_files`.
        ValueError: the path is no regular file, or the file is too large or a pointer of Git LFS.
    """
    check_readable(path)
    # Without O_NONBLOCK, opening a pipe would wait for a writer. Kind and size are read from the
    # open file, because the file at the path could be exchanged between a test and the opening.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    with open(os.open(path, flags), "rb") as stream:  # noqa: PTH123
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path}: expected a regular file")
        content = b"" if status.st_size > max_bytes else stream.read(max_bytes + 1)
    if max(status.st_size, len(content)) > max_bytes:
        raise ValueError(f"{path}: expected at most {max_bytes} bytes, got more")
    check_fetched(path, content)
    return content


# Separators of columns. The comma comes last, because it may also be a decimal comma.
_SEPARATORS = ";\t,"


def read_numbers(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> list[list[float]]:
    """Read the lines of numbers of a text file, CSV as spreadsheets of any language save it.

    Columns are separated by semicolons, tabs, commas or blanks. With semicolons or tabs a number
    may have a decimal comma. Lines that begin with # are skipped, and so are lines of names before
    the first number. The file may begin with a byte order mark.

    Raises:
        ValueError: the file has no line of numbers, or a line does not have as many numbers as the
            first one.
    """
    content = read_regular(path, max_bytes)
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    lines = content.decode("utf-16" if is_utf16 else "utf-8-sig", "replace").splitlines()
    numbered_lines = {
        number: line
        for number, line in enumerate(lines, 1)
        if line.strip() and line.lstrip()[0] != "#"
    }
    # Names of columns may contain any separator, so only lines that begin with a number decide.
    number_lines = [
        line for line in numbered_lines.values() if line.lstrip(' "+-.')[:1].isdecimal()
    ]
    separator = next((s for s in _SEPARATORS if any(s in line for line in number_lines)), None)
    rows: list[list[float]] = []
    for number, line in numbered_lines.items():
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
            expectation = f"{len(rows[0])} numbers" if rows else "numbers"
            raise ValueError(
                f"{path}, line {number}: expected {expectation}, got {line.strip()[:80]!r}"
            )
    if not rows:
        raise ValueError(f"{path}: expected lines of numbers, got none")
    return rows


def whole_number(name: str, value: object, minimum: int, maximum: int | None = None) -> int:
    """Return a whole number in a range; raise ValueError otherwise. A boolean is no number."""
    number = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None
    if number is None or number < minimum or (maximum is not None and number > maximum):
        span = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise ValueError(f"{name}: expected a whole number {span}, got {value!r}")
    return number


def not_negative(name: str, value: object) -> float:
    """Return a number >= 0; raise ValueError otherwise. A boolean is no number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) >= 0:
        raise ValueError(f"{name}: expected a number >= 0, got {value!r}")
    return float(value)


def one_of(name: str, value: object, names: Sequence[str], *, null: bool = False) -> None:
    """Raise ValueError unless a value is one of some names, or None if `null` is set."""
    if value not in names and not (null and value is None):
        hint = did_you_mean(value, names) or f"; there is {', '.join(names)}"
        raise ValueError(f"{name}: there is no {value!r}{hint}")


def is_number(value: object) -> TypeGuard[float]:
    """Tell whether this is a finite number; a boolean is no number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_list(value: object, length: int) -> TypeGuard[Sequence[int]]:
    """Tell whether this is a list of `length` whole numbers, all at least 0."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != length:
        return False
    return all(type(item) is int and item >= 0 for item in value)


Rules = Mapping[str, tuple[str, Callable[[object], bool]]]
"""For each attribute: the expected value in words, and a test of the value."""


def check_values(values: object, rules: Rules, place: str = "") -> None:
    """Check the attributes of an object; `place` stands before each name in the message.

    Raises:
        ValueError: an attribute does not pass its test.
    """
    for name, (expectation, is_valid) in rules.items():
        if not is_valid(value := getattr(values, name)):
            raise ValueError(f"{place}{name}: expected {expectation}, got {value!r}")


def did_you_mean(
    name: object, names: Iterable[str], n: int = 3, *, cutoff: float = 0.5, place: str = ""
) -> str:
    """Return "; did you mean A or B?", the end of a message; "" if no name is similar.

    Upper and lower case count as equal. `place` stands before each name in the message.
    """
    by_lower = {entry.lower(): entry for entry in names}
    close_names = difflib.get_close_matches(str(name).lower(), by_lower, n=n, cutoff=cutoff)
    suggestions = " or ".join(place + by_lower[entry] for entry in close_names)
    return f"; did you mean {suggestions}?" if suggestions else ""


def printable(text: str) -> str:
    r"""Return a text with escape sequences in place of characters that control a terminal.

    >>> printable("a\x1b[2J.npy")
    'a\\x1b[2J.npy'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


PACKAGE = f"{Path(__file__).parent}{os.sep}"
"""The folder of this package, with the separator behind it."""
_RAISE = opcode.opmap["RAISE_VARARGS"]


def raised_here(error: BaseException) -> bool:
    """Tell whether an error was raised by a `raise` statement of this package.

    Such an error is meant for the user. An error that Python or a library raises, at a line of this
    package, is a defect of the package.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:  # the error object was never raised, so this package made it
        return True
    # The last instruction that ran in the innermost frame tells `raise` from any other line.
    code = trace.tb_frame.f_code
    return code.co_filename.startswith(PACKAGE) and code.co_code[trace.tb_lasti] == _RAISE


def check_cube(
    network: Callable[..., object], x: object, shape: tuple[int, ...], needs_gradient: bool = False
) -> None:
    """Raise ValueError unless a network, perhaps the user's own, returned a cube.

    `needs_gradient`: the cube must have a gradient.
    """
    if (description := _describe_wrong_tensor(x, shape, needs_gradient)) is None:
        return
    hint = ""
    if isinstance(x, list | tuple):
        hint = "; stages are for a method outputs(y, system) and loss=multi_stage"
    raise ValueError(
        f"{describe_location(network)}: expected the network to return a tensor {tuple(shape)}, "
        f"(B, C, H, W), got {description}{hint}"
    )


def check_loss(loss: Callable[..., object], value: object, needs_gradient: bool = True) -> None:
    """Raise ValueError unless a loss, perhaps the user's own, returned one number.

    `needs_gradient`: the number must have a gradient.
    """
    if (description := _describe_wrong_tensor(value, (), needs_gradient)) is not None:
        hint = "; return its mean()" if getattr(value, "ndim", 0) else ""
        location = describe_location(loss)
        raise ValueError(
            f"{location}: expected the loss to be one number, a tensor, got {description}{hint}"
        )


def _describe_wrong_tensor(x: object, shape: tuple[int, ...], needs_gradient: bool) -> str | None:
    """Describe a value that is not the expected tensor; return None if it is."""
    import torch

    if not isinstance(x, torch.Tensor):
        return f"{type(x).__module__}.{type(x).__name__}".removeprefix("builtins.")
    if x.shape != shape:
        return str(tuple(x.shape))
    if needs_gradient and torch.is_grad_enabled() and not x.requires_grad:
        return "a detached tensor, through which no gradient passes"
    return None


def code_of(function: Callable[..., object]) -> CodeType | None:
    """Return the code object of a function, under its decorators; None if it has none."""
    return getattr(inspect.unwrap(function), "__code__", None)


def describe_location(function: Callable[..., object]) -> str:
    """Return the name of a function, or of a module's `forward`, with its file and line."""
    function = function.func if isinstance(function, functools.partial) else function
    if not hasattr(function, "__qualname__"):
        function = getattr(type(function), "forward", type(function).__call__)
    code = code_of(function)
    location = f" ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code else ""
    return f"{function.__qualname__}{location}"


def clipped_level(values: Tensor) -> float | None:
    """Estimate the level at which a frame is clipped, from the frame itself.

    Let N pixels have exactly the maximum. If N is at least 16, and the N next brightest pixels have
    at least 8 different values, the level is the maximum. An unclipped frame has fewer and fewer
    pixels towards its maximum.

    Args:
        values: values of the frame's good pixels, `(N,)`.

    Returns:
        The level; None if the frame is not clearly clipped.
    """
    maximum = values.max()
    n_clipped = int((values == maximum).sum())
    if n_clipped < MIN_CLIPPED_PIXELS:
        return None
    next_values = values.topk(min(2 * n_clipped, len(values))).values[n_clipped:]
    return maximum.item() if len(next_values.unique()) >= MIN_LEVELS_BELOW_CLIP else None
