"""How the commands use memory."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, for the next cube of the same size.

    glibc returns blocks of more than 32 MB to the system at once, and the next one is mapped page
    by page again: 100 iterations on 28×660×660 take 16 s so, 7 s without. Other C libraries are
    left alone.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_MMAP_THRESHOLD, 1 << 30)
    mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
