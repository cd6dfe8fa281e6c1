"""CUDA graphs: an iteration that is recorded once and then launched as a whole."""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

Body = Callable[..., tuple[Tensor, ...]]
"""Tensors and numbers → tensors. It reads no value on the host, and keeps nothing."""
Runner = Callable[..., tuple[Tensor, ...]]
"""Runs a body: it takes the body and its arguments, and returns what the body does."""

LARGEST = 1 << 28
"""Bytes of the arguments, at most: kernels on more take longer than the host needs to launch them,
and a graph keeps copies of its arguments and results. 16 snapshots of 256×256 have 160 MB."""


def directly(body: Body, *values: float | Tensor) -> tuple[Tensor, ...]:
    """Run a body operation by operation."""
    return body(*values)


def begin_graphs(device: torch.device) -> Runner:
    """Return what runs the body of one run's iterations: `Graphs` where there are CUDA graphs."""
    return Graphs() if device.type == "cuda" else directly


class Graphs:
    """Runs bodies as CUDA graphs, one for each name and kind of arguments: shapes, layouts, dtypes.

    The first call of a kind runs operation by operation, which warms up. The second records, and
    that and all later ones copy their arguments into the buffers that were recorded, launch the
    graph, and return copies of its results. Numbers become tensors, so that they may change.
    What the body uses beside its arguments must stay where it is, unchanged.

    A body that cannot be recorded runs operation by operation; a warning says so, once.
    """

    def __init__(self, cuda: Recorder | None = None) -> None:
        self.cuda = Recorder() if cuda is None else cuda
        self.works = True
        self._recorded: dict[tuple[object, ...], _Recorded | None] = {}

    def __call__(self, body: Body, *values: float | Tensor) -> tuple[Tensor, ...]:
        """Return what the body returns for these tensors and numbers, in memory of their own."""
        if not self.works or torch.is_grad_enabled():
            return body(*values)
        kind = (
            body.__name__,
            *(
                (v.shape, v.stride(), v.dtype, v.device) if isinstance(v, Tensor) else None
                for v in values
            ),
        )
        recorded = self._recorded.get(kind)
        if recorded is not None:
            return recorded(values)
        tensors = [value for value in values if isinstance(value, Tensor)]
        like = tensors[0]
        given = [
            v if isinstance(v, Tensor) else torch.full((), v, dtype=like.dtype, device=like.device)
            for v in values
        ]
        if sum(v.numel() * v.itemsize for v in tensors) > LARGEST:
            return body(*given)
        if kind not in self._recorded:
            self._recorded[kind] = None
            return body(*given)
        try:
            recorded = self._recorded[kind] = _Recorded(self.cuda, body, given)
        except RuntimeError as error:
            self.works = False
            reason = str(error).strip().splitlines()[0]
            warnings.warn(
                f"the iteration runs without a CUDA graph ({reason})", RuntimeWarning, stacklevel=2
            )
            return body(*given)
        return recorded(values)


class _Memory(threading.local):
    """Of a thread: for each stream that launches graphs, one to record on, and the first graph."""

    def __init__(self) -> None:
        self.known: dict[torch.cuda.Stream, tuple[torch.cuda.Stream, torch.cuda.CUDAGraph]] = {}


_MEMORY = _Memory()


class Recorder:
    """Records as `torch.cuda.graph`, which waits for the device and gives its free memory back.

    All that runs afterwards then allocates anew. Here graphs of one thread and stream record into
    the same memory, which stays: no two of them run at once, and `Graphs` keeps none of its results
    there.
    """

    def CUDAGraph(self) -> torch.cuda.CUDAGraph:
        """Return an empty graph."""
        return torch.cuda.CUDAGraph()

    @contextlib.contextmanager
    def graph(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        """Record what runs inside."""
        place = torch.cuda.current_stream()
        side, first = _MEMORY.known.get(place) or (torch.cuda.Stream(), None)
        with torch.cuda.stream(side):
            graph.capture_begin(pool=None if first is None else first.pool())
            try:
                yield
            finally:
                graph.capture_end()
        _MEMORY.known.setdefault(place, (side, graph))


class _Recorded:
    """A graph with the buffers of its arguments and results."""

    def __init__(self, cuda: Recorder, body: Body, given: list[Tensor]) -> None:
        self.inputs = [torch.empty_like(value) for value in given]
        _copy(self.inputs, given)
        self.graph = cuda.CUDAGraph()
        # What the buffers hold: numbers, tensors with their version.
        self.held: dict[int, float | tuple[weakref.ref[Tensor], int]] = {}
        with cuda.graph(self.graph):
            self.outputs = list(body(*self.inputs))
        # What the body hands on is not copied back.
        places = {id(value): place for place, value in enumerate(self.inputs)}
        self.handed = {i: places.get(id(value)) for i, value in enumerate(self.outputs)}

    def __call__(self, values: Sequence[Any]) -> tuple[Tensor, ...]:
        tensors = []
        for place, value in enumerate(values):
            if not isinstance(value, Tensor):
                if self.held.get(place) != value:
                    self.inputs[place].fill_(value)
                self.held[place] = value
            elif not self._holds(place, value):
                tensors.append(place)
        _copy([self.inputs[i] for i in tensors], [values[i] for i in tensors])
        self.graph.replay()
        made = {i: torch.empty_like(self.outputs[i]) for i, at in self.handed.items() if at is None}
        _copy(list(made.values()), [self.outputs[i] for i in made])
        return tuple(made[i] if at is None else values[at] for i, at in self.handed.items())

    def _holds(self, place: int, value: Tensor) -> bool:
        """Tell whether a buffer holds a tensor already, and note that it will."""
        if value.is_inference():  # has no version
            return False
        known = self.held.get(place)
        self.held[place] = weakref.ref(value), value._version
        return isinstance(known, tuple) and known[0]() is value and known[1] == value._version


def _copy(into: list[Tensor], values: list[Tensor]) -> None:
    """Copy tensors; a launch for each dtype."""
    for dtype in {value.dtype for value in values}:
        some = [i for i, value in enumerate(values) if value.dtype == dtype]
        torch._foreach_copy_([into[i] for i in some], [values[i] for i in some])
