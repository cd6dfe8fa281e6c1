"""A device that pretends: tensors of the CPU that claim to be on another device.

Tests without a GPU find with it what a GPU would refuse (tensors of two devices in one operation)
and what would make it wait: values read by the host, and copies between host and device.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)


class _Module(_DummyBackendModule):
    """What torch asks a device for."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Return what autocast takes."""
        return [torch.bfloat16, torch.float16]


@functools.cache
def _register() -> None:
    """Let torch know the device; for the rest of the process, and it can be done once."""
    _setup_privateuseone_for_python_backend(backend_module=_Module())


DEVICE = torch.device("privateuseone", 0)
"""Torch makes tensors for it, and no code of ours knows it."""
_READS = {
    "_local_scalar_dense",
    "is_nonzero",
    "equal",
    "nonzero",
    "masked_select",
    "_linalg_check_errors",
}
_READS |= {"_unique2", "unique_dim", "unique_consecutive", "bincount"}
_COPIES = {"_to_copy", "copy_"}
_ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_MIXED = {"index", "index_put_", "index_put", "_index_put_impl_"}
"""Operations that take indices of the host, and copy them."""


class Pretended(Tensor):
    """A tensor that claims to be on `DEVICE`."""

    value: Tensor

    @staticmethod
    def __new__(cls, value: Tensor) -> Pretended:
        """Return the tensor with the value's shape and layout."""
        return torch.Tensor._make_wrapper_subclass(
            cls,
            value.shape,
            strides=value.stride(),
            storage_offset=value.storage_offset(),
            dtype=value.dtype,
            layout=value.layout,
            device=DEVICE,
            requires_grad=value.requires_grad,
        )

    def __init__(self, value: Tensor) -> None:
        """Keep the value, which is on the CPU."""
        self.value = value

    def tolist(self) -> Any:
        """Return the values, which the host reads."""
        if Watched.running is not None:
            Watched.running.reads["tolist"] += 1
        return self.value.tolist()

    def __repr__(self) -> str:
        """Return the value's text; the one of torch reads the values."""
        return f"Pretended({tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run what torch asks for past the mode, as `is_nonzero` within `quantile`."""
        if Watched.running is None:
            raise RuntimeError(f"{func}: a Pretended tensor is used outside of Watched()")
        return Watched.running.__torch_dispatch__(func, types, args, kwargs)


class Watched(TorchDispatchMode):
    """Runs operations on `DEVICE`, and counts them.

    Attributes:
        operations: how often each ran on the device, views and allocations left out.
        reads: which operations made the host wait for a value.
        copies: which copied between host and device.
        decompositions: how many matrices or batches of them had their eigenvectors found, on the
            host too.
    """

    running: ClassVar[Watched | None] = None

    def __init__(self) -> None:
        super().__init__()
        _register()
        self.operations: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self.decompositions = 0

    def __enter__(self) -> Any:
        """Begin; torch.tensor(…, device=…) makes a tensor of the host first, which is seen."""
        torch._C._set_only_lift_cpu_tensors(True)
        Watched.running = self
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        """End."""
        torch._C._set_only_lift_cpu_tensors(False)
        Watched.running = None
        super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation on the values."""
        kwargs, name = dict(kwargs or {}), func.overloadpacket.__name__
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        inner = {id(value.value): value for value in given if isinstance(value, Pretended)}
        asked = kwargs.get("device")
        there = asked == DEVICE if asked is not None else bool(inner)
        if asked == DEVICE:
            kwargs["device"] = torch.device("cpu")
        self.decompositions += name == "_linalg_eigh"
        if inner:
            self._count(func, name, given, there)
        out = func(*tree_map(_value, args), **tree_map(_value, kwargs))
        if name == "copy_":
            return args[0]

        def wrapped(value: Any) -> Any:
            if not (there and isinstance(value, Tensor)):
                return value
            known = inner.get(id(value))  # in place: the same tensor
            return Pretended(value) if known is None else known

        return tree_map(wrapped, out)

    def _count(self, func: Any, name: str, given: list[Tensor], there: bool) -> None:
        outside = [v for v in given if not isinstance(v, Pretended) and v.ndim > 0]
        if outside and name not in _COPIES | _MIXED:
            shapes = [tuple(value.shape) for value in outside]
            raise RuntimeError(f"{func}: tensors of two devices; on the host: {shapes}")
        masks = name in _MIXED and any(value.dtype == torch.bool for value in given[1:])
        if name in _READS or masks:
            self.reads[name] += 1
        if (name in _COPIES or name in _MIXED) and (outside or not there):
            self.copies[name] += 1
        if not func.is_view and name not in _ALLOCATIONS:
            self.operations[name] += 1


def _value(value: Any) -> Any:
    return value.value if isinstance(value, Pretended) else value
