"""Read the limits that Linux sets on this process by its control groups (version 1 and 2)."""

from collections.abc import Iterator, Sequence
from pathlib import Path


def read_limits(
    root: Path, controller: str, v2_files: Sequence[str], v1_files: Sequence[str]
) -> Iterator[list[str]]:
    """Read the limits of this process's control group and of every group above it.

    Args:
        root: root of the file system, "/" except in tests.
        controller: "cpu" or "memory".
        v2_files: names of the files of version 2, which has one hierarchy for all controllers.
        v1_files: names of the files of version 1, where each controller has its own hierarchy.

    Yields:
        For each group, the words in its files. Within a hierarchy the process's own group comes
        first, and the root last.
    """
    mount = root / "sys/fs/cgroup"
    # In a container /proc may name groups that are not mounted, while the root is the container's
    # own group. So the roots of both versions are read too.
    groups = ["0::/", f"0:{controller}:/", *read_text(root / "proc/self/cgroup").splitlines()]
    for group in groups:
        # A line is NUMBER:CONTROLLERS:PATH, without controllers in version 2. Missing parts are "".
        _, controllers, group_path = (*group.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        hierarchy, file_names = (mount / controller, v1_files) if controllers else (mount, v2_files)
        group_folder = hierarchy / group_path.lstrip("/")
        for folder in (group_folder, *group_folder.parents):
            yield " ".join(read_text(folder / name) for name in file_names).split()
            if folder == hierarchy:
                break


def read_text(path: Path) -> str:
    """Read a small file of the system; return "" if it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
