"""How the commands use memory, and how much a computation takes."""

import ctypes
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

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


def use_huge_pages() -> None:
    """Let torch ask for large pages, and the C library return what is freed.

    What `keep_freed_memory` keeps falls to pieces in time: of a cube's size it held 3 to 19 times
    as much as was in use. Within a budget memory is mapped anew for every cube instead; in pages of
    2 MiB an iteration of GAP-TV then takes 15 ns a voxel, against 19 in small pages and 13 in kept
    memory. Neither do the compiled operators keep what their results leave. Takes effect if torch
    has not asked for much memory before.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    os.environ.setdefault("CASSI_KEEP_RESULTS", "0")


class _Counting(TorchDispatchMode):
    """Adds up the storages that operations return, while they are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from importing its compiler for this mode, which takes more than a second."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {storage.data_ptr() for storage in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            place = storage.data_ptr()
            if place and place not in self.known and place not in given:
                self._add(storage, place, storage.nbytes())
        return result

    def _add(self, storage: Any, place: int, size: int) -> None:
        self.known.add(place)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, place, size)

    def _drop(self, place: int, size: int) -> None:
        self.known.discard(place)
        self.now -= size


def _storages(values: Any) -> list[Any]:
    return [v.untyped_storage() for v in tree_iter(values) if isinstance(v, torch.Tensor)]


def peak_of(run: Callable[[], Any]) -> int:
    """Return the bytes that tensors made by a computation occupy at most at one time.

    Counted where torch allocates, so that the number does not depend on what the process has
    freed and kept; scratch memory inside an operation is not seen.
    """
    with _Counting() as count:
        run()
    return count.peak
