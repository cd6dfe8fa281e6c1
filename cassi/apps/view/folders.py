"""Lists of the results in folders, and their cubes, reports and thumbnails.

The folders may be a stranger's, and results may be written while they are listed. So every file is
checked before its content is used, and a damaged one is listed with the reason.
"""

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
    format_camera_check,
    format_result,
    format_warnings,
    reported_numbers,
)
from cassi.apps.view.allowed_paths import AllowedPaths
from cassi.apps.view.cubes import CubeView
from cassi.apps.view.jobs import describe_error
from cassi.data.io import WRITE_SUFFIXES, load_cube

if TYPE_CHECKING:
    from PIL import Image

METRICS_FILE, TABLE_FILE, PICTURE_FILE = "metrics.json", "results.csv", "rgb.png"
EVALUATION_FILE = "results.json"
"""The file that cassi-evaluate writes."""
DEVIATION_FILE = "uncertainty.tif"
_THUMBNAIL_PIXELS = 240  # longer side
# Limits of what is read into memory. A compressed picture may be much larger than its file, so it
# also has a limit of pixels.
_MAX_TEXT_BYTES, _MAX_PICTURE_BYTES, _MAX_REPORT_BYTES = 2**24, 2**26, 2**28
_MAX_PICTURE_PIXELS = 2**26
_MAX_REASON_LETTERS = 300
# This text is put before a page from a folder, so that the page loads nothing from a network.
_CONTENT_POLICY = """\
<!doctype html>
<meta http-equiv="Content-Security-Policy" content="default-src 'none';
  script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
"""
_PAGE_TEMPLATE = """\
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
class ResultEntry:
    """A result, or the reason why there is none.

    Attributes:
        name: path of its folder, relative to the allowed folder.
        folder: folder of its files; None if the snapshot failed, or the folder is damaged.
        summary: its numbers, or the reason, in one line.
        warnings: number of warnings about the camera.
        is_evaluation: whether cassi-evaluate wrote it; `render_evaluation` shows it.
    """

    name: str
    folder: Path | None
    summary: str
    warnings: int = 0
    is_evaluation: bool = False


def list_results(allowed_paths: AllowedPaths) -> list[ResultEntry]:
    """Return the results and the failures below the allowed folders, sorted by name.

    A folder is a result if it has metrics.json or, from an evaluation, results.json. Such a file
    appears together with all other files of its result. A damaged folder is listed with the reason.
    """
    entries: dict[Path, ResultEntry] = {}
    entry_readers = {
        METRICS_FILE: _read_cube_entry,
        EVALUATION_FILE: _read_evaluation_entry,
        TABLE_FILE: _read_failed_entries,
    }
    for file_name, read in entry_readers.items():
        for folder in allowed_paths.find(file_name):
            try:
                folder_entries = read(folder, allowed_paths)
            except Exception as error:  # a damaged file hides no other result
                entry_folder = folder / file_name if file_name == TABLE_FILE else folder
                reason = describe_error(error)[:_MAX_REASON_LETTERS]
                folder_entries = {
                    entry_folder: ResultEntry(
                        _name_entry(entry_folder, allowed_paths), None, f"damaged: {reason}"
                    )
                }
            # If a snapshot of a table also has a folder of its own, the folder's entry is kept.
            entries = folder_entries | entries
    return sorted(entries.values(), key=lambda entry: entry.name)


def read_result(entry: ResultEntry, allowed_paths: AllowedPaths) -> CubeView:
    """Read the cube of a result.

    Raises:
        OSError: a file is missing, or not below the allowed folders.
        ValueError: the entry has no cube, or a file is damaged.
    """
    metrics = None if entry.folder is None else _read_metrics(entry.folder, allowed_paths)
    if entry.folder is None or metrics is None:
        raise ValueError(f"{entry.name}: there is no result")
    files = [name for name in metrics["files"] if name.lower().endswith(WRITE_SUFFIXES)]
    cubes = [name for name in files if name != DEVIATION_FILE]
    if not cubes:
        raise ValueError(f"{entry.name}: expected a cube among its files, got none")
    # Files of these two formats do not say which axis has the bands.
    bands = metrics["cube_shape"][0] if cubes[0].endswith((".npy", ".mat")) else None
    cube = load_cube(allowed_paths.resolve(entry.folder / cubes[0]), bands=bands)
    deviation = None
    if (entry.folder / DEVIATION_FILE).exists():
        deviation = load_cube(allowed_paths.resolve(entry.folder / DEVIATION_FILE)).data[0].numpy()
    values = np.ascontiguousarray(cube.data[0].numpy())
    return CubeView(entry.name, values, cube.wavelengths, deviation=deviation, numbers=metrics)


def render_evaluation(entry: ResultEntry, allowed_paths: AllowedPaths) -> bytes:
    """Return the report of an evaluation as HTML; without a report, its table and figures.

    Raises:
        OSError: a file is missing, or not below the allowed folders.
        ValueError: the entry has no result.
    """
    from markdown_it import MarkdownIt

    if entry.folder is None:
        raise ValueError(f"{entry.name}: there is no result")
    report, table_file = entry.folder / "report.html", entry.folder / "results.md"
    if report.exists():
        return _CONTENT_POLICY.encode() + allowed_paths.read(report, _MAX_REPORT_BYTES)
    text = allowed_paths.read(table_file, _MAX_TEXT_BYTES).decode()
    body = MarkdownIt("commonmark").enable("table").render(text)
    pictures = [
        allowed_paths.read(file, _MAX_PICTURE_BYTES) for file in _find_pictures(entry.folder)
    ]
    images = [
        f'<img alt="" src="data:image/png;base64,{b64encode(png).decode()}">' for png in pictures
    ]
    page = _PAGE_TEMPLATE.format(name=escape(entry.name), body=body + "".join(images))
    return (_CONTENT_POLICY + page).encode()


def make_thumbnail(entry: ResultEntry, allowed_paths: AllowedPaths) -> Image.Image | None:
    """Return a small picture of a result; None if it has no picture that can be read."""
    from PIL import Image

    if entry.folder is None:
        return None
    try:
        content = io.BytesIO(
            allowed_paths.read(_find_pictures(entry.folder)[0], _MAX_PICTURE_BYTES)
        )
        # Pillow guesses the format from the content, and starts Ghostscript for PostScript.
        with Image.open(content, formats=("PNG",)) as image:
            if image.width * image.height > _MAX_PICTURE_PIXELS:
                return None
            picture = image.convert("RGB")
    except Exception:  # Pillow raises errors of many kinds for damaged files
        return None
    picture.thumbnail((_THUMBNAIL_PIXELS, _THUMBNAIL_PIXELS))
    return picture


def _find_pictures(folder: Path) -> list[Path]:
    """Return the pictures of a result; the first one becomes its thumbnail."""
    main_pictures = [folder / name for name in (PICTURE_FILE, "cases.png")]
    return [file for file in main_pictures if file.exists()] + sorted(folder.glob("figures/*.png"))


def _name_entry(folder: Path, allowed_paths: AllowedPaths) -> str:
    name = allowed_paths.name_of(folder)
    return folder.name if name == "." else name


def _read_cube_entry(folder: Path, allowed_paths: AllowedPaths) -> dict[Path, ResultEntry]:
    metrics = _read_metrics(folder, allowed_paths)
    if metrics is None:
        return {}
    line, warnings = format_result(dict(metrics)), len(format_warnings(metrics))
    return {folder: ResultEntry(_name_entry(folder, allowed_paths), folder, line, warnings)}


def _read_evaluation_entry(folder: Path, allowed_paths: AllowedPaths) -> dict[Path, ResultEntry]:
    # Other programs write files of this name, too. A file without these two keys is no evaluation.
    results = _parse_json(folder / EVALUATION_FILE, allowed_paths)
    if not isinstance(results, dict) or not {"metrics", "preset"} <= results.keys():
        return {}
    with _turn_into_value_errors(EVALUATION_FILE, "cassi-evaluate"):
        line = _describe_best(results)
        line.encode()  # half of a surrogate pair is no text, and a page cannot show it
    return {
        folder: ResultEntry(_name_entry(folder, allowed_paths), folder, line, is_evaluation=True)
    }


def _read_failed_entries(folder: Path, allowed_paths: AllowedPaths) -> dict[Path, ResultEntry]:
    text = allowed_paths.read(folder / TABLE_FILE, _MAX_TEXT_BYTES).decode("utf-8")
    entries = {}
    for row in csv.DictReader(io.StringIO(text, newline="")):
        if row.get("status") == "failed" and row.get("name"):
            entry_folder = folder / row["name"]
            reason = (row.get("error") or "")[:_MAX_REASON_LETTERS]
            entries[entry_folder] = ResultEntry(
                allowed_paths.name_of(entry_folder), None, f"failed: {reason}"
            )
    return entries


def _describe_best(results: Mapping[str, Any]) -> str:
    count = sum(len(rows["scenes"]) for rows in results["metrics"].values())
    line = f"evaluation: {count} {'row' if count == 1 else 'rows'}"
    psnr = f"psnr/{results['preset']}"
    means = {method: rows["mean"].get(psnr) for method, rows in results["metrics"].items()}
    scores = {method: mean for method, mean in means.items() if mean is not None}
    best = max(scores, key=scores.__getitem__, default=None)
    return line if best is None else f"{line}, best: {best} with {scores[best]:.2f} dB"


def _read_metrics(folder: Path, allowed_paths: AllowedPaths) -> Mapping[str, Any] | None:
    """Return the checked content of metrics.json; None if cassi-reconstruct did not write it."""
    metrics = _parse_json(folder / METRICS_FILE, allowed_paths)
    if not isinstance(metrics, dict) or "cube_shape" not in metrics:
        return None
    with _turn_into_value_errors(METRICS_FILE, "cassi-reconstruct"):
        _check_metrics(metrics)
    return metrics


def _parse_json(file: Path, allowed_paths: AllowedPaths) -> Any:
    """Return the content of a JSON file.

    Raises:
        ValueError: it is no JSON, or too deeply nested.
    """
    try:
        return json.loads(allowed_paths.read(file, _MAX_TEXT_BYTES))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file.name}: {error}") from None
    except RecursionError:
        raise ValueError(f"{file.name}: its lists are nested too deeply") from None


@contextlib.contextmanager
def _turn_into_value_errors(file: str, command: str) -> Iterator[None]:
    """Turn an exception of any kind into ValueError, because a file may hold anything."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{file}: it is not what {command} writes ({error})") from None


def _check_metrics(metrics: dict[str, Any]) -> None:
    """Check every value of metrics.json that the application uses.

    The functions that use the values are called here once. An exception of any kind says which
    value is wrong.
    """
    if not isinstance(metrics["iterations"], int):
        raise TypeError("iterations: expected a number")
    lines = format_result(metrics), format_camera_check(metrics), *format_warnings(metrics)
    "".join(lines).encode()  # half of a surrogate pair is no text
    bands, _, _ = map(int, metrics["cube_shape"])
    errors_of_wavelengths(metrics, bands)
    for name, value in reported_numbers(metrics).items():
        if not isinstance(value, int | float | None):
            raise TypeError(f"{name}: expected a number, got {type(value).__name__}")
    for name in metrics.setdefault("files", []):
        # A name with a folder in it could lead out of the result.
        if not name or name.startswith(".") or "\0" in name or Path(name).name != name:
            raise ValueError(f"files: expected names of files of the folder, got {name[:80]!r}")
