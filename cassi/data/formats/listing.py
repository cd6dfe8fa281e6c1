"""List the files of a folder, without links that lead out of it."""

import functools
import os
from collections.abc import Mapping
from pathlib import Path

# A message names at most so many files, and gives the total number.
_MAX_LISTED = 5


def list_folder(folder: Path, tree: Path | None = None) -> tuple[list[Path], dict[Path, str]]:
    """List a folder, without hidden entries and without links that lead out of a tree.

    A link in the folder of a stranger could lead to any file of the machine. The tree is the folder
    that the user named: `tree`, or the folder itself.

    Returns:
        Files and folders, sorted by name, links last. For each link that is left out, the reason by
        path.
    """
    with os.scandir(folder) as entries:  # entries know whether they are links, without a stat
        visible_entries = [entry for entry in entries if not entry.name.startswith(".")]
    visible_entries.sort(key=lambda entry: (entry.is_symlink(), entry.name))
    return leave_out_links(
        {Path(entry.path): entry.is_symlink() for entry in visible_entries}, tree or folder
    )


def leave_out_links(entries: Mapping[Path, bool], tree: Path) -> tuple[list[Path], dict[Path, str]]:
    """Leave out links that lead out of `tree`, or to a file that is already in the list.

    Args:
        entries: for each path whether it is a link.
        tree: the folder in which the targets of links must be.

    Returns:
        The paths that are kept. For each link that is left out, the reason by path.
    """
    root = Path(os.path.realpath(tree))
    # Files and folders come first, so that a link to one of them is left out. The last part of
    # their path is no link, so only their folder is resolved, once for all files in it.
    real_path = functools.cache(os.path.realpath)
    file_paths = (path for path, is_link in entries.items() if not is_link)
    kept_paths = {Path(real_path(path.parent), path.name): path for path in file_paths}
    left_out: dict[Path, str] = {}
    for path in (path for path, is_link in entries.items() if is_link):
        target = Path(os.path.realpath(path))
        if not target.exists():
            left_out[path] = "its link leads nowhere"
        elif not target.is_relative_to(root):
            left_out[path] = f"its link leads out of {tree}"
        elif target in kept_paths:
            left_out[path] = f"a link to {kept_paths[target].name}"
        else:
            kept_paths[target] = path
    return list(kept_paths.values()), left_out


def describe_left_out(left_out: Mapping[Path, str]) -> str:
    """Return a line that says how many files are left out, and why."""
    reasons = [f"{path.name} ({reason})" for path, reason in sorted(left_out.items())]
    ellipsis = ", …" if len(reasons) > _MAX_LISTED else ""
    return (
        f"skipped {len(reasons)} that cannot be one: {', '.join(reasons[:_MAX_LISTED])}{ellipsis}"
    )
