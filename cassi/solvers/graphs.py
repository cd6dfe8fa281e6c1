"""CUDA graphs: an iteration that is recorded once and then launched as a whole."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Body = Callable[..., tuple[Tensor, ...]]
"""Tensors and numbers → tensors. It reads no value on the host, and keeps nothing."""


def directly(body: Body, *values: Any) -> tuple[Tensor, ...]:
    """Run a body operation by operation."""
    return body(*values)


def begin_graphs(device: torch.device) -> Any:
    """Return what runs the body of one run's iterations: `Graphs` where there are CUDA graphs."""
    return Graphs() if device.type == "cuda" else directly


class Graphs:
    """Runs a body as a CUDA graph, one for each kind of arguments: shapes, layouts and dtypes.

    The first call of a kind runs operation by operation, which warms up. The second records, and
    that and all later ones copy their arguments into the buffers that were recorded, launch the
    graph, and return copies of its results. Numbers become tensors, so that they may change.
    What the body uses beside its arguments must stay where it is, unchanged.

    A body that cannot be recorded runs operation by operation; a warning says so, once.

    Args:
        cuda: has `CUDAGraph` and `graph`; torch.cuda if None.
    """

    def __init__(self, cuda: Any = None) -> None:
        self.cuda = torch.cuda if cuda is None else cuda
        self.works = True
        self._recorded: dict[tuple[Any, ...], _Recorded | None] = {}

    def __call__(self, body: Body, *values: Any) -> tuple[Tensor, ...]:
        """Return what the body returns for these tensors and numbers, in memory of their own."""
        if not self.works or torch.is_grad_enabled():
            return body(*values)
        like = next(value for value in values if isinstance(value, Tensor))
        given = [v if isinstance(v, Tensor) else torch.full_like(like[:0].sum(), v) for v in values]
        kind = tuple((v.shape, v.stride(), v.dtype, v.device) for v in given)
        if kind not in self._recorded:
            self._recorded[kind] = None
            return body(*given)
        recorded = self._recorded[kind]
        if recorded is None:
            try:
                recorded = self._recorded[kind] = _Recorded(self.cuda, body, given)
            except RuntimeError as error:
                self.works = False
                reason = str(error).strip().splitlines()[0]
                warnings.warn(
                    f"the iteration runs without a CUDA graph ({reason})",
                    RuntimeWarning,
                    stacklevel=2,
                )
                return body(*given)
        return recorded(given)


class _Recorded:
    """A graph with the buffers of its arguments and results."""

    def __init__(self, cuda: Any, body: Body, given: list[Tensor]) -> None:
        self.inputs = [torch.empty_like(value).copy_(value) for value in given]
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.outputs = list(body(*self.inputs))

    def __call__(self, given: list[Tensor]) -> tuple[Tensor, ...]:
        torch._foreach_copy_(self.inputs, given)
        self.graph.replay()
        results = [torch.empty_like(value) for value in self.outputs]
        torch._foreach_copy_(results, self.outputs)
        return tuple(results)
