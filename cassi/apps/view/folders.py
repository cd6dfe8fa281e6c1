"""Folders of results, also while results are being written."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cassi.apps.results import one_line
from cassi.apps.view.allowed_paths import AllowedPaths
from cassi.apps.view.cubes import Shown
from cassi.data.io import WRITE_SUFFIXES, load_cube

NUMBERS, TABLE, PICTURE = "metrics.json", "results.csv", "rgb.png"
DEVIATION = "uncertainty.tif"
_SIDE = 180  # pixels of a small picture
_UNREADABLE = (OSError, ValueError, KeyError, TypeError)


@dataclass(frozen=True)
class Entry:
    """A result, or the reason why a snapshot has none.

    Attributes:
        name: path of its folder, below the folder that was given.
        folder: of its files; None for a snapshot that failed.
        said: its numbers, or the reason, in one line.
        warnings: number of warnings about the camera.
    """

    name: str
    folder: Path | None
    said: str
    warnings: int = 0


def list_results(allowed: AllowedPaths) -> list[Entry]:
    """Return the results below the folders that may be read, and the failures, sorted by name.

    A folder counts when it has metrics.json, which is written together with the other files.
    """
    found = []
    for folder in allowed.find(NUMBERS):
        if (numbers := _read(folder)) is not None:
            name = allowed.name_of(folder)
            said, warned = one_line(dict(numbers)), len(numbers.get("warnings") or ())
            found.append(Entry(folder.name if name == "." else name, folder, said, warned))
    there = {entry.folder for entry in found}
    for folder in allowed.find(TABLE):
        for row in _failures(folder / TABLE):
            place = folder / row["name"]
            if place not in there:
                found.append(Entry(allowed.name_of(place), None, f"failed: {row.get('error', '')}"))
    return sorted(found, key=lambda entry: entry.name)


def open_result(entry: Entry) -> Shown:
    """Read the cube of a result.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: it is damaged, or there is no cube.
    """
    numbers = None if entry.folder is None else _read(entry.folder)
    if entry.folder is None or numbers is None:
        raise ValueError(f"{entry.name}: there is no result")
    files = [name for name in numbers.get("files", ()) if name.lower().endswith(WRITE_SUFFIXES)]
    cubes = [name for name in files if name != DEVIATION]
    if not cubes:
        raise ValueError(f"{entry.name}: expected a cube among its files, got none")
    bands = numbers["cube_shape"][0] if cubes[0].endswith((".npy", ".mat")) else None
    cube = load_cube(entry.folder / cubes[0], bands=bands)
    deviation = None
    if (entry.folder / DEVIATION).is_file():
        deviation = load_cube(entry.folder / DEVIATION).data[0].numpy()
    values = np.ascontiguousarray(cube.data[0].numpy())
    return Shown(entry.name, values, cube.wavelengths, deviation=deviation, numbers=numbers)


def thumbnail(entry: Entry) -> Any:
    """Return a result's picture, made small, as an image of Pillow; None where it has none."""
    from PIL import Image

    if entry.folder is None:
        return None
    try:
        with Image.open(entry.folder / PICTURE) as image:
            small = image.convert("RGB")
    except (*_UNREADABLE, Image.DecompressionBombError):
        return None
    small.thumbnail((_SIDE, _SIDE))
    return small


def _read(folder: Path) -> Mapping[str, Any] | None:
    """Return metrics.json of a result; None if cassi-reconstruct did not write it."""
    try:
        numbers = json.loads((folder / NUMBERS).read_text(encoding="utf-8"))
        one_line(numbers)
    except _UNREADABLE:
        return None
    return numbers if isinstance(numbers, dict) and "cube_shape" in numbers else None


def _failures(table: Path) -> list[dict[str, str]]:
    try:
        with table.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
    except _UNREADABLE:
        return []
    return [row for row in rows if row.get("status") == "failed" and row.get("name")]
