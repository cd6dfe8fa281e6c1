"""How much memory a computation takes at its peak."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class _Count(TorchDispatchMode):
    """Adds up the storages that operations return, while they are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {
            value.untyped_storage().data_ptr()
            for value in tree_iter((args, kwargs))
            if isinstance(value, torch.Tensor)
        }
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
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


def peak_of(run: Callable[[], Any]) -> int:
    """Return the bytes that tensors made by a computation occupy at most at one time.

    Counted where torch allocates, so that the number does not depend on what the process has
    freed and kept; scratch memory inside an operation is not seen.
    """
    with _Count() as count:
        run()
    return count.peak
