"""Folders of results, also while results are being written."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cassi.apps.results import (
    errors_of_wavelengths,
    one_line,
    reported_numbers,
    say_camera_check,
    say_warnings,
)
from cassi.apps.view.allowed_paths import AllowedPaths
from cassi.apps.view.cubes import Shown
from cassi.apps.view.jobs import explain
from cassi.data.io import WRITE_SUFFIXES, load_cube

if TYPE_CHECKING:
    from PIL import Image

NUMBERS, TABLE, PICTURE = "metrics.json", "results.csv", "rgb.png"
EVALUATION = "results.json"
"""What cassi-evaluate writes."""
DEVIATION = "uncertainty.tif"
_SIDE = 240  # pixels of a small picture
_LONGEST, _LARGEST, _LARGEST_REPORT = 2**24, 2**26, 2**28
"""Bytes of a text, of a picture, and of a report."""
_MOST_PIXELS = 2**26
_LONGEST_REASON = 300
_POLICY = """\
<!doctype html>
<meta http-equiv="Content-Security-Policy" content="default-src 'none';
  script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
"""
"""Before a page of somebody else, so that it loads nothing from a network."""
_PAGE = """\
<html lang="en">
<meta charset="utf-8">
<title>{name}</title>
<style>
  :root {{ color-scheme: light dark; font: 14px/1.45 system-ui, sans-serif }}
  table {{ border-collapse: collapse; display: block; overflow: auto }}
  th, td {{ padding: 4px 12px; border-bottom: 1px solid #8888; white-space: nowrap }}
  img {{ max-width: 100%; margin-top: 12px }}
</style>
<h1>{name}</h1>
{body}
</html>
"""


@dataclass(frozen=True)
class Entry:
    """A result, or the reason why there is none.

    Attributes:
        name: path of its folder, below the folder that was given.
        folder: of its files; None for a snapshot that failed, and for a folder that is damaged.
        said: its numbers, or the reason, in one line.
        warnings: number of warnings about the camera.
        is_evaluation: cassi-evaluate wrote it; `evaluation_page` shows it.
    """

    name: str
    folder: Path | None
    said: str
    warnings: int = 0
    is_evaluation: bool = False


def list_results(allowed: AllowedPaths) -> list[Entry]:
    """Return the results below the folders that may be read, and the failures, sorted by name.

    A folder counts when it has metrics.json, which is written together with the other files, or the
    results.json of an evaluation. One with a damaged file is listed with the reason.
    """
    entries: dict[Path, Entry] = {}
    readers = {NUMBERS: _list_cube, EVALUATION: _list_evaluation, TABLE: _list_failed}
    for file, read in readers.items():
        for folder in allowed.find(file):
            try:
                new = read(folder, allowed)
            except Exception as error:  # whatever a file says, the others are listed
                place = folder / file if file == TABLE else folder
                reason = explain(error)[:_LONGEST_REASON]
                new = {place: Entry(_name(place, allowed), None, f"damaged: {reason}")}
            entries = new | entries
    return sorted(entries.values(), key=lambda entry: entry.name)


def open_result(entry: Entry, allowed: AllowedPaths) -> Shown:
    """Read the cube of a result."""
    numbers = None if entry.folder is None else _read(entry.folder, allowed)
    if entry.folder is None or numbers is None:
        raise ValueError(f"{entry.name}: there is no result")
    files = [name for name in numbers["files"] if name.lower().endswith(WRITE_SUFFIXES)]
    cubes = [name for name in files if name != DEVIATION]
    if not cubes:
        raise ValueError(f"{entry.name}: expected a cube among its files, got none")
    bands = numbers["cube_shape"][0] if cubes[0].endswith((".npy", ".mat")) else None
    cube = load_cube(allowed.resolve(entry.folder / cubes[0]), bands=bands)
    deviation = None
    if (entry.folder / DEVIATION).exists():
        deviation = load_cube(allowed.resolve(entry.folder / DEVIATION)).data[0].numpy()
    values = np.ascontiguousarray(cube.data[0].numpy())
    return Shown(entry.name, values, cube.wavelengths, deviation=deviation, numbers=numbers)


def evaluation_page(entry: Entry, allowed: AllowedPaths) -> bytes:
    """Return the report of an evaluation as HTML; without one its curves and its table."""
    from markdown_it import MarkdownIt

    if entry.folder is None:
        raise ValueError(f"{entry.name}: there is no result")
    report, means = entry.folder / "report.html", entry.folder / "results.md"
    if report.exists():
        return _POLICY.encode() + allowed.read(report, _LARGEST_REPORT)
    text = allowed.read(means, _LONGEST).decode()
    body = MarkdownIt("commonmark").enable("table").render(text)
    pictures = [allowed.read(file, _LARGEST) for file in _pictures(entry.folder)]
    drawn = [f'<img alt="" src="data:image/png;base64,{b64encode(p).decode()}">' for p in pictures]
    page = _PAGE.format(name=escape(entry.name), body=body + "".join(drawn))
    return (_POLICY + page).encode()


def thumbnail(entry: Entry, allowed: AllowedPaths) -> Image.Image | None:
    """Return a result's picture, made small, as an image of Pillow; None where it has none."""
    from PIL import Image

    if entry.folder is None:
        return None
    try:
        content = io.BytesIO(allowed.read(_pictures(entry.folder)[0], _LARGEST))
        # Whatever else Pillow would take it for: one of its formats runs a program.
        with Image.open(content, formats=("PNG",)) as image:
            if image.width * image.height > _MOST_PIXELS:
                return None
            small = image.convert("RGB")
    except Exception:  # Pillow raises errors of many kinds for damaged files
        return None
    small.thumbnail((_SIDE, _SIDE))
    return small


def _pictures(folder: Path) -> list[Path]:
    """Return the pictures of a result, the one that stands for it first."""
    named = [folder / name for name in (PICTURE, "cases.png")]
    return [file for file in named if file.exists()] + sorted(folder.glob("figures/*.png"))


def _name(folder: Path, allowed: AllowedPaths) -> str:
    name = allowed.name_of(folder)
    return folder.name if name == "." else name


def _list_cube(folder: Path, allowed: AllowedPaths) -> dict[Path, Entry]:
    numbers = _read(folder, allowed)
    if numbers is None:
        return {}
    line, warnings = one_line(dict(numbers)), len(say_warnings(numbers))
    return {folder: Entry(_name(folder, allowed), folder, line, warnings)}


def _list_evaluation(folder: Path, allowed: AllowedPaths) -> dict[Path, Entry]:
    results = _parse(folder / EVALUATION, allowed)
    if not isinstance(results, dict) or not {"metrics", "preset"} <= results.keys():
        return {}
    with _checked(EVALUATION, "cassi-evaluate"):
        line = _say_best(results)
        line.encode()  # half of a surrogate pair is no text
    return {folder: Entry(_name(folder, allowed), folder, line, is_evaluation=True)}


def _list_failed(folder: Path, allowed: AllowedPaths) -> dict[Path, Entry]:
    text = allowed.read(folder / TABLE, _LONGEST).decode("utf-8")
    entries = {}
    for row in csv.DictReader(io.StringIO(text, newline="")):
        if row.get("status") == "failed" and row.get("name"):
            place, reason = folder / row["name"], (row.get("error") or "")[:_LONGEST_REASON]
            entries[place] = Entry(allowed.name_of(place), None, f"failed: {reason}")
    return entries


def _say_best(results: Mapping[str, Any]) -> str:
    count = sum(len(rows["scenes"]) for rows in results["metrics"].values())
    line = f"evaluation: {count} row{'s' * (count != 1)}"
    psnr = f"psnr/{results['preset']}"
    means = {method: rows["mean"].get(psnr) for method, rows in results["metrics"].items()}
    scores = {method: mean for method, mean in means.items() if mean is not None}
    best = max(scores, key=scores.__getitem__, default=None)
    return line if best is None else f"{line}, best: {best} with {scores[best]:.2f} dB"


def _read(folder: Path, allowed: AllowedPaths) -> Mapping[str, Any] | None:
    """Return metrics.json of a result; None if cassi-reconstruct did not write it."""
    numbers = _parse(folder / NUMBERS, allowed)
    if not isinstance(numbers, dict) or "cube_shape" not in numbers:
        return None
    with _checked(NUMBERS, "cassi-reconstruct"):
        _check(numbers)
    return numbers


def _parse(file: Path, allowed: AllowedPaths) -> Any:
    """Return what a file of JSON holds."""
    try:
        return json.loads(allowed.read(file, _LONGEST))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file.name}: {error}") from None
    except RecursionError:
        raise ValueError(f"{file.name}: its lists are too deep in each other") from None


@contextlib.contextmanager
def _checked(file: str, command: str) -> Iterator[None]:
    """Raise ValueError for an exception of any kind: anything may stand in a file."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{file}: it is not what {command} writes ({error})") from None


def _check(numbers: dict[str, Any]) -> None:
    """Check all that is used of metrics.json; an exception of any kind says what is wrong."""
    if not isinstance(numbers["iterations"], int):
        raise TypeError("iterations: expected a number")
    lines = one_line(numbers), say_camera_check(numbers), *say_warnings(numbers)
    "".join(lines).encode()  # half of a surrogate pair is no text
    bands, _, _ = map(int, numbers["cube_shape"])
    errors_of_wavelengths(numbers, bands)
    for name, value in reported_numbers(numbers).items():
        if not isinstance(value, int | float | None):
            raise TypeError(f"{name}: expected a number, got {type(value).__name__}")
    for name in numbers.setdefault("files", []):
        if not name or name.startswith(".") or "\0" in name or Path(name).name != name:
            raise ValueError(f"files: expected names of files of the folder, got {name[:80]!r}")
