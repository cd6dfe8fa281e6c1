"""What lies in a folder, and what of it is left out; all lists of files begin here."""

import functools
import os
from collections.abc import Mapping
from pathlib import Path

_SHOWN = 5


def list_folder(folder: Path, within: Path | None = None) -> tuple[list[Path], dict[Path, str]]:
    """List what is in a folder and not hidden; links are followed that do not lead out of a tree.

    What came with a folder could lead to any file of the machine. The tree is what the user named,
    `within`, or the folder itself.

    Returns:
        Files and folders by name, links last; and why links are left out, by path.
    """
    with os.scandir(folder) as entries:  # it tells links without a look at each
        shown = [entry for entry in entries if not entry.name.startswith(".")]
    shown.sort(key=lambda entry: (entry.is_symlink(), entry.name))
    return choose_links({Path(entry.path): entry.is_symlink() for entry in shown}, within or folder)


def choose_links(entries: Mapping[Path, bool], within: Path) -> tuple[list[Path], dict[Path, str]]:
    """Keep links (those marked True) that lead below `within`, and to nothing that is kept already.

    Returns what is kept; and why the others are left out, by path.
    """
    root = Path(os.path.realpath(within))
    place = functools.cache(os.path.realpath)
    own = (path for path, link in entries.items() if not link)
    kept = {Path(place(path.parent), path.name): path for path in own}
    left_out: dict[Path, str] = {}
    for path in (path for path, link in entries.items() if link):
        target = Path(os.path.realpath(path))
        if not target.exists():
            left_out[path] = "its link leads nowhere"
        elif not target.is_relative_to(root):
            left_out[path] = f"its link leads out of {within}"
        elif target in kept:
            left_out[path] = f"a link to {kept[target].name}"
        else:
            kept[target] = path
    return list(kept.values()), left_out


def say_left_out(left_out: Mapping[Path, str]) -> str:
    """Say how many files are left out, and why, in a line."""
    listed = [f"{path.name} ({reason})" for path, reason in sorted(left_out.items())]
    more = ", …" if len(listed) > _SHOWN else ""
    return f"skipped {len(listed)} that cannot be one: {', '.join(listed[:_SHOWN])}{more}"
