"""Which snapshots a command reconstructs: those of a folder, or those that a pattern finds."""

import glob
import itertools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from cassi.apps.settings import Reconstruct
from cassi.checks import printable
from cassi.data.formats.listing import choose_links, list_folder, say_left_out
from cassi.data.formats.planes import has_images
from cassi.data.io import READ_SUFFIXES

SUMMARY = "results.csv"
"""The table beside the folders of the results."""


class Snapshot(NamedTuple):
    """One of several measurements."""

    name: str
    """Of the folder of its results."""
    measurement: str
    truth: str | None = None


def is_many(value: Any) -> bool:
    """Tell whether a config value means several snapshots: a folder, or a pattern with * ? or [ ].

    A list of files is one snapshot of several shots.
    """
    if isinstance(value, list):
        return False
    path = Path(str(value)).expanduser()
    if value is None or (path.suffix.lower() in READ_SUFFIXES and path.exists()):
        return False
    return path.is_dir() or glob.has_magic(str(value))


def find_snapshots(settings: Reconstruct) -> tuple[list[Snapshot], list[str]]:
    """List the snapshots of a command, in the order of their names, and say what was left out.

    A folder is a folder of snapshots, whatever its files are; folders in it are not looked into.
    Links are followed that do not lead out of it.
    Results are called as the file is without suffix, with what is not printable written out; where
    a pattern finds files of several folders, the folders below the common one are part of the name.
    Refused are two of one name, one of that of the table, and no snapshots or truths at all.
    """
    known = (
        settings.mask,
        settings.truth,
        settings.dark,
        settings.flat,
        settings.bad_pixels,
    )
    named = [item for each in known for item in (each if isinstance(each, list) else [each])]
    other = {os.path.abspath(value) for value in named if isinstance(value, str)}  # noqa: PTH100
    files, notes = _list_files("measurement", settings.measurement, other)
    root = Path(os.path.commonpath([file.parent for file in files]))
    names = [printable(file.relative_to(root).with_suffix("").as_posix()) for file in files]
    _check_different("measurement", names)
    for name, file in zip(names, files, strict=True):
        if name.partition("/")[0] == SUMMARY:
            raise ValueError(f"measurement: {SUMMARY} is the table of all results; rename {file}")
    truths, more = _match_truths(settings.truth, files)
    snapshots = [
        Snapshot(name, str(file), truth)
        for name, file, truth in zip(names, files, truths, strict=True)
    ]
    return snapshots, [*notes, *more]


def settings_of_snapshot(settings: Reconstruct, snapshot: Snapshot) -> Reconstruct:
    """Return the settings of one snapshot of many."""
    return replace(settings, measurement=snapshot.measurement, truth=snapshot.truth)


def _list_files(role: str, value: str, other: set[str]) -> tuple[list[Path], list[str]]:
    path = Path(value).expanduser()
    if path.is_dir():
        entries, left_out = list_folder(path)
    else:
        matched = {entry: entry.is_symlink() for entry in sorted(_match(path))}
        entries, left_out = choose_links(matched, _fixed_part(path))
    found = sorted(Path(os.path.abspath(entry)) for entry in entries)  # noqa: PTH100
    # Of the two files of an ENVI image, the header stands for both.
    headers = {f for f in found if f.suffix == ".hdr"}
    if headers:
        found = [
            f for f in found if not headers & ({f.with_suffix(".hdr"), Path(f"{f}.hdr")} - {f})
        ]
    files = [f for f in found if _can_be(role, f) and str(f) not in other]
    for file in sorted({*found} - {*files}):
        unknown = "a folder" if file.is_dir() else f"unknown suffix {file.suffix!r}"
        left_out[file] = "named elsewhere" if str(file) in other else unknown
    if not files:
        wanted = "snapshot" if role == "measurement" else "cube"
        raise FileNotFoundError(
            f"{role}: no {wanted} in {value}; expected files {' '.join(READ_SUFFIXES)}"
            + (f"; {say_left_out(left_out)}" if left_out else "")
        )
    return files, [f"{role}: {say_left_out(left_out)}"] if left_out else []


def _can_be(role: str, path: Path) -> bool:
    if path.suffix.lower() in READ_SUFFIXES:
        return True
    return role == "truth" and path.is_dir() and has_images(path)


def _fixed_part(pattern: Path) -> Path:
    """Return the folder that a pattern names before its first part with * ? or [ ]."""
    return Path(*itertools.takewhile(lambda part: not glob.has_magic(part), pattern.parts))


def _match(pattern: Path) -> list[Path]:
    """Return what a pattern means; `**` follows no links, which could lead back to themselves."""
    parts = pattern.parts
    if "**" not in parts:
        return [Path(entry) for entry in glob.glob(str(pattern))]  # noqa: PTH207
    root = _fixed_part(pattern)
    below = [*parts[len(root.parts) :], *["*"] * (parts[-1] == "**")]
    asked = {part for part in below if part.startswith(".")}
    return [
        path
        for path in root.glob("/".join(below))
        if all(not part.startswith(".") or part in asked for part in path.relative_to(root).parts)
    ]


def _match_truths(value: Any, files: Sequence[Path]) -> tuple[list[str | None], list[str]]:
    if value is None or not is_many(value):
        return [None if value is None else str(value)] * len(files), []
    cubes, notes = _list_files("truth", value, set())
    _check_different("truth", [cube.stem for cube in cubes])
    by_stem = {cube.stem: str(cube) for cube in cubes}
    truths = [by_stem.get(file.stem) for file in files]
    absent = [file.stem for file, truth in zip(files, truths, strict=True) if truth is None]
    if len(absent) == len(files):
        raise FileNotFoundError(f"truth: none in {value} is called as a snapshot is: {absent[0]}")
    if absent:
        notes.append(f"truth: none for {len(absent)} of {len(files)}: {', '.join(absent[:5])}")
    return truths, notes


def _check_different(role: str, names: Sequence[str]) -> None:
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{role}: {count} files are called {name}; expected different names")
