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

# Largest size of all arguments of a graph, bytes. Kernels on larger arguments take longer than the
# host needs to launch them. A graph would then save no time, but its buffers would take memory. The
# arguments for 16 snapshots of 256×256 have 160 MB, below this limit.
MAX_ARGUMENT_BYTES = 1 << 28


def run_directly(body: Body, *values: float | Tensor) -> tuple[Tensor, ...]:
    """Run a body operation by operation."""
    return body(*values)


def begin_graphs(device: torch.device) -> Runner:
    """Return the runner for the iterations of one run: `Graphs` on a GPU, else `run_directly`."""
    return Graphs() if device.type == "cuda" else run_directly


class Graphs:
    """A runner with CUDA graphs: one graph for each body and each kind of arguments.

    The kind is the arguments' shapes, layouts, dtypes and devices. The first call of a kind runs
    operation by operation, as a warm-up. The second call records a graph. This and all later calls
    copy their arguments into the buffers of the graph, launch it, and return copies of its results.
    Numbers become tensors, so that their values may change. Tensors that the body uses beside its
    arguments must keep their memory and values.

    If a body cannot be recorded, this and all later bodies run operation by operation, after one
    warning.
    """

    def __init__(self, cuda: Recorder | None = None) -> None:
        self.cuda = Recorder() if cuda is None else cuda
        self.is_enabled = True
        # None stands for a kind that was run once, without a graph.
        self._graphs: dict[tuple[object, ...], _BufferedGraph | None] = {}

    def __call__(self, body: Body, *values: float | Tensor) -> tuple[Tensor, ...]:
        """Return the results of a body for these arguments, in memory of their own."""
        if not self.is_enabled or torch.is_grad_enabled():
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
        # Only tensors can change from launch to launch of a graph, so numbers become tensors. The
        # warm-up gets them in the same form.
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
            self.is_enabled = False
            reason = str(error).strip().splitlines()[0]
            warnings.warn(
                f"the iteration runs without a CUDA graph ({reason})", RuntimeWarning, stacklevel=2
            )
            return body(*arguments)
        return graph(values)


class _RecordingStreams(threading.local):
    """For each launching stream of a thread: the stream that records, and its first graph."""

    def __init__(self) -> None:
        self.by_launching: dict[
            torch.cuda.Stream, tuple[torch.cuda.Stream, torch.cuda.CUDAGraph]
        ] = {}


_STREAMS = _RecordingStreams()


class Recorder:
    """Records graphs as `torch.cuda.graph` does, but keeps the memory of the device.

    `torch.cuda.graph` waits for the device and gives its free memory back, so that later operations
    allocate again. Here the graphs of one thread and stream share one memory pool. That is safe:
    no two of these graphs run at once, and `Graphs` copies their results out of the pool.
    """

    def CUDAGraph(self) -> torch.cuda.CUDAGraph:
        """Return an empty graph."""
        return torch.cuda.CUDAGraph()

    @contextlib.contextmanager
    def graph(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        """Record the operations of the `with` block."""
        stream = torch.cuda.current_stream()
        # CUDA does not record on the default stream.
        side_stream, first_graph = _STREAMS.by_launching.get(stream) or (torch.cuda.Stream(), None)
        with torch.cuda.stream(side_stream):
            graph.capture_begin(pool=None if first_graph is None else first_graph.pool())
            try:
                yield
            finally:
                graph.capture_end()
        _STREAMS.by_launching.setdefault(stream, (side_stream, graph))


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
        # A body may return some arguments unchanged. The caller then gets its own arguments back,
        # without a copy. The dict has the index of the argument for each result, or None for a
        # result that the body computes.
        indices = {id(value): index for index, value in enumerate(self.inputs)}
        self.argument_of = {i: indices.get(id(value)) for i, value in enumerate(self.outputs)}

    def __call__(self, values: Sequence[Any]) -> tuple[Tensor, ...]:
        stale_indices = []
        for index, value in enumerate(values):
            if not isinstance(value, Tensor):
                if self.contents.get(index) != value:
                    self.inputs[index].fill_(value)
                self.contents[index] = value
            elif not self._update_content(index, value):
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

    def _update_content(self, index: int, value: Tensor) -> bool:
        """Record that a buffer gets a tensor; return whether it holds the tensor already."""
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
