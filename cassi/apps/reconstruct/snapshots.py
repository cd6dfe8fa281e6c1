"""List the snapshots that a command reconstructs: the files of a folder or of a pattern."""

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
from cassi.data.formats.listing import describe_left_out, leave_out_links, list_folder
from cassi.data.formats.planes import has_images
from cassi.data.io import READ_SUFFIXES

SUMMARY = "results.csv"
"""The table beside the folders of the results."""


class SnapshotFiles(NamedTuple):
    """The files of one of several snapshots."""

    name: str
    """Name of the folder of its results."""
    measurement: str
    truth: str | None = None


def is_many(value: Any) -> bool:
    """Tell whether a config value means several snapshots: a folder, or a pattern with * ? or [ ].

    A list of files is one snapshot of several shots.
    """
    if isinstance(value, list):
        return False
    path = Path(str(value)).expanduser()
    # A file may have brackets in its name, and a Zarr store is a folder; each is one snapshot.
    if value is None or (path.suffix.lower() in READ_SUFFIXES and path.exists()):
        return False
    return path.is_dir() or glob.has_magic(str(value))


def find_snapshots(settings: Reconstruct) -> tuple[list[SnapshotFiles], list[str]]:
    """List the snapshots of a command in the order of their names, with notes on skipped files.

    `measurement` is a folder or a pattern. Every readable file of the folder is a snapshot; folders
    inside it are skipped. Links are followed unless they lead out of the folder.

    The results of a snapshot have the name of its file, without suffix and with unprintable
    characters escaped. If a pattern matches files of several folders, the folders below the common
    one are part of the name.

    Raises:
        ValueError: two snapshots have the same name, or one has the name of the table.
        FileNotFoundError: there is no snapshot, or no truth for any snapshot.
    """
    input_settings = (
        settings.mask,
        settings.truth,
        settings.dark,
        settings.flat,
        settings.bad_pixels,
    )
    other_inputs = set()
    for value in input_settings:
        for name in value if isinstance(value, list) else [value]:
            if isinstance(name, str):
                # `Path.resolve` would take a link and its target for one input.
                other_inputs.add(os.path.abspath(name))  # noqa: PTH100
    files, notes = _list_files("measurement", settings.measurement, other_inputs)
    root = Path(os.path.commonpath([file.parent for file in files]))
    names = [printable(file.relative_to(root).with_suffix("").as_posix()) for file in files]
    _check_different("measurement", names)
    for name, file in zip(names, files, strict=True):
        if name.partition("/")[0] == SUMMARY:
            raise ValueError(f"measurement: {SUMMARY} is the table of all results; rename {file}")
    truths, truth_notes = _match_truths(settings.truth, files)
    snapshots = [
        SnapshotFiles(name, str(file), truth)
        for name, file, truth in zip(names, files, truths, strict=True)
    ]
    return snapshots, [*notes, *truth_notes]


def settings_of_snapshot(settings: Reconstruct, snapshot: SnapshotFiles) -> Reconstruct:
    """Return the settings of one snapshot of many."""
    return replace(settings, measurement=snapshot.measurement, truth=snapshot.truth)


def _list_files(
    role: str, folder_or_pattern: str, other_inputs: set[str]
) -> tuple[list[Path], list[str]]:
    """Return the files of a folder or pattern that fit a role, and a note on the other files."""
    path = Path(folder_or_pattern).expanduser()
    if path.is_dir():
        entries, left_out = list_folder(path)
    else:
        is_link_by_path = {entry: entry.is_symlink() for entry in sorted(_match(path))}
        entries, left_out = leave_out_links(is_link_by_path, _fixed_part(path))
    paths = sorted(Path(os.path.abspath(entry)) for entry in entries)  # noqa: PTH100
    # An ENVI image has two files: its header is listed, and the file beside it is left out.
    headers = {f for f in paths if f.suffix == ".hdr"}
    if headers:
        paths = [
            f for f in paths if not headers & ({f.with_suffix(".hdr"), Path(f"{f}.hdr")} - {f})
        ]
    files = [f for f in paths if _can_be(role, f) and str(f) not in other_inputs]
    for file in sorted({*paths} - {*files}):
        reason = "a folder" if file.is_dir() else f"unknown suffix {file.suffix!r}"
        left_out[file] = "named elsewhere" if str(file) in other_inputs else reason
    if not files:
        kind = "snapshot" if role == "measurement" else "cube"
        raise FileNotFoundError(
            f"{role}: no {kind} in {folder_or_pattern}; expected files {' '.join(READ_SUFFIXES)}"
            + (f"; {describe_left_out(left_out)}" if left_out else "")
        )
    return files, [f"{role}: {describe_left_out(left_out)}"] if left_out else []


def _can_be(role: str, path: Path) -> bool:
    if path.suffix.lower() in READ_SUFFIXES:
        return True
    return role == "truth" and path.is_dir() and has_images(path)


def _fixed_part(pattern: Path) -> Path:
    """Return the folder that a pattern names before its first part with * ? or [ ]."""
    return Path(*itertools.takewhile(lambda part: not glob.has_magic(part), pattern.parts))


def _match(pattern: Path) -> list[Path]:
    """Return the paths that match a pattern."""
    parts = pattern.parts
    if "**" not in parts:
        return [Path(entry) for entry in glob.glob(str(pattern))]  # noqa: PTH207
    # `glob.glob` follows links under `**`. With a link to a folder above, it would never end.
    root = _fixed_part(pattern)
    pattern_parts = list(parts[len(root.parts) :])
    if parts[-1] == "**":  # `Path.glob` would return folders alone
        pattern_parts.append("*")
    hidden_parts = {part for part in pattern_parts if part.startswith(".")}
    # As in a shell, `*` does not match hidden names. `Path.glob` would match them.
    return [
        path
        for path in root.glob("/".join(pattern_parts))
        if all(
            not part.startswith(".") or part in hidden_parts
            for part in path.relative_to(root).parts
        )
    ]


def _match_truths(value: Any, files: Sequence[Path]) -> tuple[list[str | None], list[str]]:
    if value is None or not is_many(value):
        return [None if value is None else str(value)] * len(files), []
    cubes, notes = _list_files("truth", value, set())
    _check_different("truth", [cube.stem for cube in cubes])
    path_by_stem = {cube.stem: str(cube) for cube in cubes}
    truths = [path_by_stem.get(file.stem) for file in files]
    absent = [file.stem for file, truth in zip(files, truths, strict=True) if truth is None]
    if len(absent) == len(files):
        raise FileNotFoundError(
            f"truth: no file in {value} has the name of a snapshot, such as {absent[0]}"
        )
    if absent:
        notes.append(f"truth: none for {len(absent)} of {len(files)}: {', '.join(absent[:5])}")
    return truths, notes


def _check_different(role: str, names: Sequence[str]) -> None:
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{role}: {count} files are called {name}; expected different names")
