"""Folders of results, also while results are being written."""

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cassi.apps.results import one_line, reported_numbers, say_camera_check, say_warnings
from cassi.apps.view.allowed_paths import AllowedPaths
from cassi.apps.view.cubes import Shown
from cassi.apps.view.jobs import explain
from cassi.data.io import WRITE_SUFFIXES, load_cube

NUMBERS, TABLE, PICTURE = "metrics.json", "results.csv", "rgb.png"
DEVIATION = "uncertainty.tif"
_SIDE = 180  # pixels of a small picture
_LONGEST, _LARGEST = 2**24, 2**26
"""Bytes of a text, and of a picture."""
_MOST_PIXELS = 2**26
_DEEPEST = 32
"""Lists and dicts in each other in metrics.json."""
_LONGEST_REASON = 300


@dataclass(frozen=True)
class Entry:
    """A result, or the reason why there is none.

    Attributes:
        name: path of its folder, below the folder that was given.
        folder: of its files; None for a snapshot that failed, and for a folder that is damaged.
        said: its numbers, or the reason, in one line.
        warnings: number of warnings about the camera.
    """

    name: str
    folder: Path | None
    said: str
    warnings: int = 0


def list_results(allowed: AllowedPaths) -> list[Entry]:
    """Return the results below the folders that may be read, and the failures, sorted by name.

    A folder counts when it has metrics.json, which is written together with the other files. One
    whose metrics.json is damaged is listed with the reason.
    """
    found = []
    places = set()
    for folder in allowed.find(NUMBERS):
        name = allowed.name_of(folder)
        name = folder.name if name == "." else name
        try:
            numbers = _read(folder, allowed)
            if numbers is None:
                continue
            said, warned = one_line(dict(numbers)), len(say_warnings(numbers))
            found.append(Entry(name, folder, said, warned))
        except Exception as error:  # whatever a file says, the others are listed
            found.append(_broken(name, error))
        places.add(folder)
    for folder in allowed.find(TABLE):
        try:
            for row in _failures(folder / TABLE, allowed):
                place, why = folder / row["name"], (row.get("error") or "")[:_LONGEST_REASON]
                if place not in places:
                    found.append(Entry(allowed.name_of(place), None, f"failed: {why}"))
        except Exception as error:
            found.append(_broken(allowed.name_of(folder / TABLE), error))
    return sorted(found, key=lambda entry: entry.name)


def open_result(entry: Entry, allowed: AllowedPaths) -> Shown:
    """Read the cube of a result.

    Raises:
        OSError: a file is missing or cannot be read, or is not below the folders that may be read.
        ValueError: it is damaged, or there is no cube.
    """
    numbers = None if entry.folder is None else _read(entry.folder, allowed)
    if entry.folder is None or numbers is None:
        raise ValueError(f"{entry.name}: there is no result")
    files = [name for name in numbers["files"] if name.lower().endswith(WRITE_SUFFIXES)]
    cubes = [name for name in files if name != DEVIATION]
    if not cubes:
        raise ValueError(f"{entry.name}: expected a cube among its files, got none")
    bands = numbers["cube_shape"][0] if cubes[0].endswith((".npy", ".mat")) else None
    cube = load_cube(allowed.resolve_data(entry.folder / cubes[0]), bands=bands)
    deviation = None
    if (entry.folder / DEVIATION).exists():
        deviation = load_cube(allowed.resolve_data(entry.folder / DEVIATION)).data[0].numpy()
    values = np.ascontiguousarray(cube.data[0].numpy())
    return Shown(entry.name, values, cube.wavelengths, deviation=deviation, numbers=numbers)


def thumbnail(entry: Entry, allowed: AllowedPaths) -> Any:
    """Return a result's picture, made small, as an image of Pillow; None where it has none."""
    from PIL import Image

    if entry.folder is None:
        return None
    try:
        content = io.BytesIO(allowed.read(entry.folder / PICTURE, _LARGEST))
        # Whatever else Pillow would take it for: one of its formats runs a program.
        with Image.open(content, formats=("PNG",)) as image:
            if image.width * image.height > _MOST_PIXELS:
                return None
            small = image.convert("RGB")
    except Exception:  # Pillow raises errors of many kinds for damaged files
        return None
    small.thumbnail((_SIDE, _SIDE))
    return small


def _broken(name: str, error: Exception) -> Entry:
    return Entry(name, None, f"damaged: {explain(error)[:_LONGEST_REASON]}")


def _read(folder: Path, allowed: AllowedPaths) -> Mapping[str, Any] | None:
    """Return metrics.json of a result; None if cassi-reconstruct did not write it.

    Raises:
        OSError: it cannot be read, or is not below the folders that may be read.
        ValueError: it is damaged.
    """
    content = allowed.read(folder / NUMBERS, _LONGEST)
    try:
        numbers = json.loads(content)
    except RecursionError:
        raise ValueError(f"{NUMBERS}: expected at most {_DEEPEST} levels, got more") from None
    except ValueError as error:
        raise ValueError(f"{NUMBERS}: {error}") from None
    if not isinstance(numbers, dict) or "cube_shape" not in numbers:
        return None
    _check_depth(numbers)
    try:
        _check(numbers)
    except (KeyError, TypeError, AttributeError, OverflowError, ValueError) as error:
        raise ValueError(f"{NUMBERS}: it is not what cassi-reconstruct writes ({error})") from None
    return numbers


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    if level:
        raise ValueError(f"{NUMBERS}: expected at most {_DEEPEST} levels, got more")


def _check(numbers: dict[str, Any]) -> None:
    """Check all that is used of metrics.json; an exception of any kind says what is wrong."""
    if not isinstance(numbers["iterations"], int):
        raise TypeError("iterations: expected a number")
    one_line(numbers)
    "".join(
        (say_camera_check(numbers), *say_warnings(numbers))
    ).encode()  # half of a surrogate pair is no text
    for name, value in reported_numbers(numbers).items():
        if value is not None and not isinstance(value, int | float):
            raise TypeError(f"{name}: expected a number, got {type(value).__name__}")
    shape, files = numbers["cube_shape"], numbers.setdefault("files", [])
    if not isinstance(shape, list) or [type(length) for length in shape] != [int] * 3:
        raise TypeError("cube_shape: expected three lengths")
    if not isinstance(files, list) or not all(isinstance(name, str) for name in files):
        raise TypeError("files: expected a list of names")
    for name in files:
        if not name or name.startswith(".") or "\0" in name or Path(name).name != name:
            raise ValueError(f"files: expected names of files of the folder, got {name[:80]!r}")


def _failures(table: Path, allowed: AllowedPaths) -> list[dict[str, str]]:
    text = allowed.read(table, _LONGEST).decode("utf-8")
    rows = csv.DictReader(io.StringIO(text, newline=""))
    return [row for row in rows if row.get("status") == "failed" and row.get("name")]
