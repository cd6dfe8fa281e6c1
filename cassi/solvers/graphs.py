"""CUDA graphs: an iteration is recorded once and then launched as a whole."""

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
"""Tensors and numbers → tensors. A body reads no value on the host, and stores nothing."""
Runner = Callable[..., tuple[Tensor, ...]]
"""(body, *arguments) → the results of the body."""

# Bytes of all arguments of a graph. With more, kernels take longer than the host needs to launch
# them, so a graph saves no time, while it keeps copies of its arguments and results. 16 snapshots
# of 256×256 have 160 MB.
MAX_ARGUMENT_BYTES = 1 << 28


def directly(body: Body, *values: float | Tensor) -> tuple[Tensor, ...]:
    """Run a body operation by operation."""
    return body(*values)


def begin_graphs(device: torch.device) -> Runner:
    """Return the runner for the iterations of one run: `Graphs` on a GPU, else `directly`."""
    return Graphs() if device.type == "cuda" else directly


class Graphs:
    """Runs bodies as CUDA graphs, one for each name of a body and each kind of arguments.

    A kind is shapes, layouts and dtypes. The first call of a kind runs operation by operation, as a
    warm-up. The second call records a graph. It and all later calls copy their arguments into
    the buffers of the graph, launch it, and return copies of its results. Numbers become tensors,
    so that their values may change. Other tensors that the body uses must keep memory and values.

    A body that cannot be recorded runs operation by operation. A warning says so once.
    """

    def __init__(self, cuda: Recorder | None = None) -> None:
        self.cuda = Recorder() if cuda is None else cuda
        self.works = True
        # None stands for a kind that was run once, without a graph.
        self._graphs: dict[tuple[object, ...], _BufferedGraph | None] = {}

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
        graph = self._graphs.get(kind)
        if graph is not None:
            return graph(values)
        tensors = [value for value in values if isinstance(value, Tensor)]
        dtype, device = tensors[0].dtype, tensors[0].device
        # A graph can change tensors only. The warm-up gets numbers as tensors too.
        arguments = [
            v if isinstance(v, Tensor) else torch.full((), v, dtype=dtype, device=device)
            for v in values
        ]
        if sum(v.numel() * v.itemsize for v in tensors) > MAX_ARGUMENT_BYTES:
            return body(*arguments)
        if kind not in self._graphs:
            self._graphs[kind] = None
            return body(*arguments)
        try:
            graph = self._graphs[kind] = _BufferedGraph(self.cuda, body, arguments)
        except RuntimeError as error:
            # torch refuses an operation that a graph cannot hold, such as a read by the host.
            self.works = False
            reason = str(error).strip().splitlines()[0]
            warnings.warn(
                f"the iteration runs without a CUDA graph ({reason})", RuntimeWarning, stacklevel=2
            )
            return body(*arguments)
        return graph(values)


class _Memory(threading.local):
    """A thread's recording streams: for each launching stream one, with its first graph."""

    def __init__(self) -> None:
        self.recordings: dict[
            torch.cuda.Stream, tuple[torch.cuda.Stream, torch.cuda.CUDAGraph]
        ] = {}


_MEMORY = _Memory()


class Recorder:
    """Records graphs as `torch.cuda.graph` does, but keeps the memory of the device.

    `torch.cuda.graph` waits for the device and returns its free memory, so that later operations
    allocate again. Here the graphs of one thread and stream share one memory pool. That is safe:
    no two of them run at once, and `Graphs` copies their results out of it.
    """

    def CUDAGraph(self) -> torch.cuda.CUDAGraph:
        """Return an empty graph."""
        return torch.cuda.CUDAGraph()

    @contextlib.contextmanager
    def graph(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        """Record the operations of the `with` block."""
        stream = torch.cuda.current_stream()
        # CUDA does not record on the default stream.
        side_stream, first_graph = _MEMORY.recordings.get(stream) or (torch.cuda.Stream(), None)
        with torch.cuda.stream(side_stream):
            graph.capture_begin(pool=None if first_graph is None else first_graph.pool())
            try:
                yield
            finally:
                graph.capture_end()
        _MEMORY.recordings.setdefault(stream, (side_stream, graph))


class _BufferedGraph:
    """A graph with the buffers of its arguments and results."""

    def __init__(self, cuda: Recorder, body: Body, arguments: list[Tensor]) -> None:
        self.inputs = [torch.empty_like(value) for value in arguments]
        _copy(self.inputs, arguments)
        self.graph = cuda.CUDAGraph()
        # The content of each buffer: a number, or a tensor with its version.
        self.contents: dict[int, float | tuple[weakref.ref[Tensor], int]] = {}
        with cuda.graph(self.graph):
            self.outputs = list(body(*self.inputs))
        # Many bodies return some arguments unchanged. These results are the arguments of the call
        # and need no copy: the dict has the argument's index, or None for a result of its own.
        indices = {id(value): index for index, value in enumerate(self.inputs)}
        self.argument_of = {i: indices.get(id(value)) for i, value in enumerate(self.outputs)}

    def __call__(self, values: Sequence[Any]) -> tuple[Tensor, ...]:
        stale_indices = []
        for index, value in enumerate(values):
            if not isinstance(value, Tensor):
                if self.contents.get(index) != value:
                    self.inputs[index].fill_(value)
                self.contents[index] = value
            elif not self._holds(index, value):
                stale_indices.append(index)
        _copy([self.inputs[i] for i in stale_indices], [values[i] for i in stale_indices])
        self.graph.replay()
        results = {
            i: torch.empty_like(self.outputs[i])
            for i, index in self.argument_of.items()
            if index is None
        }
        _copy(list(results.values()), [self.outputs[i] for i in results])
        return tuple(
            results[i] if index is None else values[index] for i, index in self.argument_of.items()
        )

    def _holds(self, index: int, value: Tensor) -> bool:
        """Tell whether a buffer holds a tensor already, and record that it will."""
        if value.is_inference():  # has no version counter, so it may have changed
            return False
        content = self.contents.get(index)
        self.contents[index] = weakref.ref(value), value._version
        return isinstance(content, tuple) and content[0]() is value and content[1] == value._version


def _copy(targets: list[Tensor], values: list[Tensor]) -> None:
    """Copy tensors with one launch for each dtype."""
    for dtype in {value.dtype for value in values}:
        indices = [i for i, value in enumerate(values) if value.dtype == dtype]
        torch._foreach_copy_([targets[i] for i in indices], [values[i] for i in indices])
