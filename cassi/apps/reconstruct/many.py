"""One process's share of many snapshots, with reading and writing beside the computing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

import torch
from omegaconf import DictConfig

from cassi.apps import results as outputs
from cassi.apps.inputs import Inputs, load_inputs
from cassi.apps.reconstruct.batch import can_share, recover_together
from cassi.apps.reconstruct.one import Method, Result, recover, write_results
from cassi.apps.reconstruct.snapshots import Snapshot, config_of
from cassi.apps.reconstruct_folders import Folders

BEHIND = 2
"""Results that wait to be written, at most: a slow disk slows the work and fills no memory."""

T = TypeVar("T")


class _Task(NamedTuple):
    snapshot: Snapshot
    config: DictConfig


class Worker:
    """Three threads: one reads the next snapshots, this one computes, one writes the last.

    A snapshot that fails leaves a line and a file that say why, and the others go on; where results
    cannot be written, that is the end of all.

    Args:
        config: of the command.
        device: where to reconstruct.
        method: what reconstructs.
        folders: where results go.
    """

    def __init__(
        self, config: DictConfig, device: torch.device, method: Method, folders: Folders
    ) -> None:
        self.config, self.device, self.method, self.folders = config, device, method, folders

    def run(self, chunks: Iterable[Sequence[Snapshot]]) -> None:
        """Reconstruct what is not done, the snapshots of a chunk together where that is possible.

        Raises:
            OSError: results cannot be written.
        """
        with (
            ThreadPoolExecutor(1, "reader") as reader,
            ThreadPoolExecutor(1, "writer") as writer,
            closing(self._read_ahead(chunks, reader)) as loaded,
        ):
            writing: deque[Future[None]] = deque()
            for task, outcome in (pair for chunk in loaded for pair in self._compute(chunk)):
                while len(writing) >= BEHIND:
                    writing.popleft().result()
                writing.append(writer.submit(self._write, task, outcome))
            for future in writing:
                future.result()

    def _read_ahead(
        self, chunks: Iterable[Sequence[Snapshot]], reader: ThreadPoolExecutor
    ) -> Generator[list[tuple[_Task, Inputs | Exception]]]:
        following: Future[list[tuple[_Task, Inputs | Exception]]] | None = None
        for chunk in chunks:
            left = [snapshot for snapshot in chunk if not self.folders.is_done(snapshot)]
            if not left:
                continue
            current, following = following, reader.submit(self._read, [self._task(s) for s in left])
            if current is not None:
                yield current.result()
        if following is not None:
            yield following.result()

    def _task(self, snapshot: Snapshot) -> _Task:
        return _Task(snapshot, config_of(self.config, snapshot))

    def _read(self, tasks: Sequence[_Task]) -> list[tuple[_Task, Inputs | Exception]]:
        return [(task, _attempt(load_inputs, task.config, self.device)) for task in tasks]

    def _compute(
        self, loaded: Sequence[tuple[_Task, Inputs | Exception]]
    ) -> Iterator[tuple[_Task, Result | Exception]]:
        groups: list[list[tuple[_Task, Inputs, Any]]] = []
        for task, inputs in loaded:
            fitted = inputs if isinstance(inputs, Exception) else _attempt(self.method.fit, inputs)
            if isinstance(fitted, Exception):
                yield task, fitted
                continue
            fits = (g for g in groups if can_share(g[0][1], fitted[0], fitted[1]))
            group = next(fits, None)
            if group is None:
                groups.append(group := [])
            group.append((task, *fitted))
        for group in groups:
            yield from self._recover(group)

    def _recover(
        self, group: Sequence[tuple[_Task, Inputs, Any]]
    ) -> Iterator[tuple[_Task, Result | Exception]]:
        seed, solver = self.config.seed, group[0][2]
        if len(group) > 1:
            together = _attempt(recover_together, [inputs for _, inputs, _ in group], solver, seed)
            if not isinstance(together, Exception):
                yield from zip((task for task, _, _ in group), together, strict=True)
                return
        for task, inputs, _ in group:
            yield task, _attempt(recover, inputs, solver, seed, visible=False)

    def _write(self, task: _Task, outcome: Result | Exception) -> None:
        if isinstance(outcome, Result):
            try:
                outcome.numbers["key"] = self.folders.find_key(task.snapshot)
                write_results(self.folders.path(task.snapshot), task.config, outcome)
                self.folders.forget_failure(task.snapshot)
                print(f"{task.snapshot.name}: {outputs.one_line(outcome.numbers)}", flush=True)
                return
            except OSError:
                raise
            except Exception as error:
                outcome = error
        self.folders.report_failure(task.snapshot, outcome)


def _attempt(function: Callable[..., T], *arguments: Any, **options: Any) -> T | Exception:
    try:
        return function(*arguments, **options)
    except Exception as error:
        return error
