"""What Linux's control groups leave a process, of all groups above it."""

from collections.abc import Iterator, Sequence
from pathlib import Path


def read_limits(
    root: Path, controller: str, unified: Sequence[str], own: Sequence[str]
) -> Iterator[list[str]]:
    """Read the limits of every group above this process, one list of words for each.

    Args:
        root: of the file system, where Linux tells this.
        controller: "cpu" or "memory".
        unified: names of the files of version 2, which has one hierarchy.
        own: those of version 1, where the controller has a hierarchy of its own.
    """
    mount = root / "sys/fs/cgroup"
    # A container may see its own group as the root.
    groups = ["0::/", f"0:{controller}:/", *read_text(root / "proc/self/cgroup").splitlines()]
    for group in groups:
        _, controllers, place = (*group.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        base, names = (mount / controller, own) if controllers else (mount, unified)
        inner = base / place.lstrip("/")
        for folder in (inner, *inner.parents):
            yield " ".join(read_text(folder / name) for name in names).split()
            if folder == base:
                break


def read_text(path: Path) -> str:
    """Read a small file of the system; "" where it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
