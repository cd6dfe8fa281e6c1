"""What is finished of an unfinished reconstruction: blocks of a scene, passes of a method."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from cassi.apps.reconstructors import fingerprint_settings
from cassi.apps.settings import Reconstruct
from cassi.data.atomic import atomic_path, digest_content
from cassi.data.formats.cells import Json
from cassi.data.formats.stacks import Stack, open_stack
from cassi.data.store import Store
from cassi.pipeline.snapshot import Snapshot
from cassi.solvers.base import Iteration, Pass

Record = Json
_PLAN = "plan"


class Journal:
    """The hidden folder of an unfinished scene: plan, cube, and a record of each finished block.

    All has a checksum; what does not fit it, or belongs to another run, is computed again.
    """

    def __init__(self, folder: Path, name: str, fingerprint: str) -> None:
        self.folder, self.fingerprint = folder / f".{name}.blocks", fingerprint
        self.store = Store(self.folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from working on the same scene; ValueError where one does."""
        import fcntl

        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"{self.folder.parent}: another process reconstructs this scene here; "
                    "wait for it, or choose another hydra.run.dir"
                ) from None
            yield

    def plan(self, names: Sequence[str]) -> Json | None:
        """Return the plan of an earlier run that was the same and left these files, or None."""
        there = all((self.folder / name).exists() for name in names)
        return self.store.read(_PLAN, self.fingerprint) if there else None

    def reopen(self, name: str, shape: tuple[int, int, int]) -> Stack:
        """Return an unfinished cube; ValueError if it is not the one that was begun."""
        path = self.folder / name
        opened = open_stack(path)
        if opened is None or opened[0].shape != shape:
            raise ValueError(f"{path}: expected the unfinished cube; remove {self.folder}")
        return opened[0]

    def clear(self) -> None:
        """Forget what is there."""
        for file in self.folder.iterdir():
            if file.is_dir():
                shutil.rmtree(file)
            elif file.name != "lock":
                file.unlink()

    def begin(self, plan: Json) -> Json:
        """Remember the plan of a new run, whose cube is there already, and return it."""
        self.store.write(_PLAN, self.fingerprint, plan)
        return plan

    def records(self, stacks: Sequence[Stack], axis: int, count: int) -> list[Record]:
        """Return the records of the blocks that are finished and unharmed, from the first on.

        Args:
            stacks: the unfinished cube, and what is written beside it.
            axis: of its lines.
            count: number of blocks.
        """
        found: list[Record] = []
        for index in range(count):
            record = self.store.read(_name(index), self.fingerprint)
            if record is None or not self.store.is_done(_name(index), self.fingerprint):
                break
            rows, columns = place(axis, *record["lines"])
            parts = [stack.read(rows=rows, columns=columns) for stack in stacks]
            if _digest(np.concatenate(parts)) != record["cube"]:
                break
            found.append(record)
        return found

    def add(self, record: Record, part: np.ndarray, tail: np.ndarray | None) -> Record:
        """Remember a block, its values `(C, H', W')` on the disk, and what the next one needs."""
        name, files = _name(record["block"]), []
        if tail is not None:
            files.append(self._tail(record["block"]))
            with files[0].open("wb") as file:
                np.save(file, tail)
                os.fsync(file.fileno())
        record = record | {"cube": _digest(part)}
        self.store.write(name, self.fingerprint, record, files)
        return record

    def tail(self, index: int) -> np.ndarray:
        """Return what block `index` left for the next one to be blended with."""
        return np.asarray(np.load(self._tail(index), allow_pickle=False))

    def remove(self) -> None:
        """Remove the folder, when the results stand under their names."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _tail(self, index: int) -> Path:
        return self.folder / f"tail-{index}.npy"


def place(axis: int, start: int, stop: int) -> tuple[slice, slice]:
    """Return the rows and the columns of lines start to stop along an axis, -2 or -1."""
    lines, rest = slice(start, stop), slice(None)
    return (lines, rest) if axis == -2 else (rest, lines)


def _name(index: int) -> str:
    return f"block-{index}"


def _digest(values: np.ndarray) -> str:
    return digest_content(np.ascontiguousarray(plane, dtype="<f4").data for plane in values)


_HIDDEN = ".passes"


class Passes:
    """The hidden folder of an unfinished reconstruction: first cube and result of its last pass.

    It is a `cassi.solvers.base.Checkpoint`. What is damaged, or of another measurement or other
    settings, is computed again.

    Attributes:
        rows: of convergence.csv, kept and read with the result.
    """

    def __init__(self, folder: Path, settings: Reconstruct, snapshot: Snapshot) -> None:
        self.folder = folder / _HIDDEN
        self.store = Store(self.folder)
        values = (snapshot.y, *snapshot.camera.system.state_dict().values())
        content = (value.detach().cpu().contiguous().numpy().data for value in values)
        key = f"{fingerprint_settings(settings, on='cube')} {snapshot.camera.system}"
        self.fingerprint = digest_content([key, *content])
        self.rows: list[Json] = []

    def read(self, name: str) -> Pass | None:
        """Return what an earlier run that was the same kept under a name, or None."""
        kept = self.store.read(name, self.fingerprint)
        if kept is None or not self.store.is_done(name, self.fingerprint):
            return None
        x = torch.from_numpy(np.load(self._cube(name, kept["passes"]), allow_pickle=False))
        self.rows.extend(kept["rows"])
        if kept["passes"]:
            print(f"passes: {kept['passes']} finished already", flush=True)
        noise = None if kept["noise"] is None else torch.tensor(kept["noise"])
        history = [Iteration(**each) for each in kept["history"]]
        return Pass(kept["passes"], x, history, noise)

    def write(self, name: str, done: Pass) -> None:
        """Keep a result in place of the last one of this name."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._cube(name, done.passes)
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.save(file, done.x.cpu().numpy())
            file.flush()
            os.fsync(file.fileno())
        history = [asdict(each) for each in done.history]
        noise = None if done.noise is None else done.noise.tolist()
        values = {"passes": done.passes, "history": history, "rows": self.rows, "noise": noise}
        self.store.write(name, self.fingerprint, values, [path])
        self._cube(name, done.passes - 1).unlink(missing_ok=True)

    def _cube(self, name: str, passes: int) -> Path:
        return self.folder / f"{name}-{passes}.npy"


def forget_passes(folder: Path) -> None:
    """Remove what is kept of passes, when the results stand in their folder."""
    shutil.rmtree(folder / _HIDDEN, ignore_errors=True)
