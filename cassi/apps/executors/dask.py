"""Jobs on a Dask cluster: of this machine, one that is there, or workers that are jobs of SLURM, ….

Lost workers, and how often their jobs are tried again, are the scheduler's: after the fourth worker
it gives a job up, by its setting `distributed.scheduler.allowed-failures`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cassi.apps.command import WORKER
from cassi.apps.settings import Cluster
from cassi.threads import free_cores

LOCAL = "127.0.0.1"
SETTINGS = {
    "distributed.comm.timeouts.connect": "20s",  # as long a lost scheduler is looked for
    "distributed.scheduler.allowed-failures": 2,  # of a cluster that is started here
}


@contextmanager
def open_cluster(told: Cluster, processes: int | None = None) -> Iterator[Executor]:
    """Yield the executor of a cluster; one that is started here ends with the block.

    Args:
        told: which cluster.
        processes: of one on this machine, where it does not say how many.

    Raises:
        OSError: nobody answers at the address.
        ValueError: a package is missing, or the options do not fit.
    """
    dask, distributed = _load("dask"), _load("distributed")
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(SETTINGS))
        place = told.address or stack.enter_context(_start(told, processes))
        named = "scheduler_file" if told.address and Path(told.address).is_file() else "address"
        client: Any = stack.enter_context(distributed.Client(**{named: place}))
        client.register_plugin(_numbering())
        print(f"cluster: {client.scheduler.address}, dashboard {client.dashboard_link}", flush=True)
        yield client.get_executor(pure=False, resources=dict(told.resources))


def _start(told: Cluster, processes: int | None) -> Any:
    if told.kind == "local":
        return _load("distributed").LocalCluster(
            n_workers=told.workers or processes or free_cores(),
            threads_per_worker=1,
            host=LOCAL,
            dashboard_address=f"{LOCAL}:0",
            resources=dict(told.resources),
        )
    classes = {name.lower(): made for name, made in vars(_load("dask_jobqueue")).items()}
    try:
        cluster = classes[f"{told.kind}cluster"](**told.options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"cluster.options: {error}") from None
    cluster.adapt(minimum=told.least, maximum=told.workers)
    return cluster


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(f"cluster: it takes {name}; pip install 'cassi[dask]'") from None


def _numbering() -> Any:
    plugin: Any = _load("distributed").WorkerPlugin

    class Numbering(plugin):
        """Tells a worker of this machine's cluster its number, by which it takes its GPU."""

        name = "cassi-number"

        def setup(self, worker: Any) -> None:
            if isinstance(worker.name, int):
                os.environ[WORKER] = str(worker.name)

    return Numbering()
