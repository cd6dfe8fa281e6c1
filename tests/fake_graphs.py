"""A stand-in for CUDA graphs: it records operations, and does them again on the same memory.

It refuses while recording what CUDA would: a value read by the host, a copy from or to the host.
"""

import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2"}


class CUDAGraph:
    """Operations in order, each with the tensors that it was given and that it made."""

    def __init__(self):
        self.operations = []
        self.replays = 0

    def replay(self):
        """Do them again: each result goes where the recorded one lies."""
        self.replays += 1
        for func, args, kwargs, results in self.operations:
            again = func(*args, **kwargs)
            if func.is_view or func._schema.is_mutable:
                continue  # the same memory
            for old, new in zip(tree_leaves(results), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor):  # some tell how the host goes on
                    old.copy_(new)


class _Recording(TorchDispatchMode):
    def __init__(self, into):
        super().__init__()
        self.into = into

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        if name in READS:
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        given = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        results = func(*args, **kwargs)
        made = [v for v in tree_leaves(results) if isinstance(v, torch.Tensor)]
        if len({v.device for v in (*given, *made)}) > 1:
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}, copies")
        self.into.operations.append((func, args, kwargs, results))
        return results


class FakeCuda:
    """What `cassi.solvers.graphs.Graphs` takes of torch.cuda."""

    def __init__(self):
        self.graphs = []

    def CUDAGraph(self):  # as torch names it
        """Return an empty graph."""
        self.graphs.append(CUDAGraph())
        return self.graphs[-1]

    @contextlib.contextmanager
    def graph(self, graph):
        """Record what runs inside."""
        with _Recording(graph):
            yield
