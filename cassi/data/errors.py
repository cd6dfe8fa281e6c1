"""What the system says when a file cannot be read or written."""

from __future__ import annotations

import errno

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""No room on the disk, or none left of what the user may fill: making room helps."""
UNWRITABLE = DISK_FULL | {errno.EROFS}
"""Nothing can be written there, whatever it is: others would fail as this one did."""
DISK_ERRORS = UNWRITABLE | {errno.EFBIG, errno.EIO}
"""All that is the disk's fault and not the file's."""


def describe_oserror(error: OSError) -> str:
    """Say in one line which file it was, what is wrong with it, and what to do."""
    if not error.strerror:
        return next((line.strip() for line in str(error).splitlines() if line.strip()), "OSError")
    place = "" if error.filename is None else f"{error.filename}: "
    room = "; make room, then the same command goes on" if error.errno in DISK_FULL else ""
    return f"{place}{error.strerror}{room}"
