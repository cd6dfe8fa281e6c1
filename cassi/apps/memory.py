"""How the commands allocate memory, and how much memory a computation needs."""

import ctypes
import os
import platform
import re
import resource
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from cassi.control_groups import read_text
from cassi.data.formats import machine_memory

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD in malloc.h


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next cube of the same size.

    glibc returns blocks of more than 32 MB to the system at once, and the system maps the next one
    page by page again. 100 iterations on 28×660×660 then take 16 s, against 7 s with kept memory.
    Other C libraries stay as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    # Blocks of up to 1 GiB come from the heap, which keeps up to 2 GiB of free memory at its end.
    mallopt(_MMAP_THRESHOLD, 1 << 30)
    mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)


def use_huge_pages() -> None:
    """Let torch ask for large pages, and let the C library return freed memory.

    This is for commands with a memory budget. They cannot use `keep_freed_memory`: kept memory
    becomes fragmented, and held 8 to 19 cubes where 3.2 cubes were in use, see
    docs/development/experiments/blocks.md. So the system maps new memory for every cube. An
    iteration of GAP-TV then takes 15 ns a voxel in pages of 2 MiB, and 19 ns in small pages. It
    would take 13 ns in kept memory. The compiled operators keep no memory of their results either.
    Call this function before torch allocates much memory.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    os.environ.setdefault("CASSI_KEEP_RESULTS", "0")


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes, of the allocator on a GPU, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if platform.system() == "Darwin" else 1024  # Linux counts in KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def free_memory(root: Path = Path("/")) -> int:
    """Return how many bytes of memory further processes may use.

    Args:
        root: root of the file system, "/" except in tests.
    """
    limit = machine_memory(root) - peak_memory(torch.device("cpu"))
    # Linux alone has this file.
    text = read_text(root / "proc/meminfo")
    available = re.search(r"^MemAvailable: *(\d+) kB", text, re.MULTILINE)
    return max(0, limit if available is None else min(limit, int(available[1]) << 10))


class _AllocationCounter(TorchDispatchMode):
    """Sums the bytes of all storages that operations return, as long as they are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.current_bytes = self.peak_bytes = 0
        self.addresses: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from importing its compiler for this mode: the import takes over a second."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        input_addresses = {storage.data_ptr() for storage in _list_storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _list_storages(result):
            address = storage.data_ptr()
            # A view shares the storage of an input, and an empty tensor has the address 0.
            if address and address not in self.addresses and address not in input_addresses:
                self._add(storage, address, storage.nbytes())
        return result

    def _add(self, storage: Any, address: int, n_bytes: int) -> None:
        self.addresses.add(address)
        self.current_bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self.current_bytes)
        # A reference to the storage would keep it alive, and so change the peak.
        weakref.finalize(storage, self._drop, address, n_bytes)

    def _drop(self, address: int, n_bytes: int) -> None:
        self.addresses.discard(address)
        self.current_bytes -= n_bytes


def _list_storages(values: Any) -> list[Any]:
    tensors = (value for value in tree_iter(values) if isinstance(value, torch.Tensor))
    return [tensor.untyped_storage() for tensor in tensors]


def peak_of(run: Callable[[], Any]) -> int:
    """Return the largest number of bytes that the new tensors of a computation occupy at one time.

    The tensors are counted, not the memory of the process. So the number does not depend on freed
    memory that the process keeps. Scratch memory inside an operation is not counted.
    """
    with _AllocationCounter() as counter:
        run()
    return counter.peak_bytes
