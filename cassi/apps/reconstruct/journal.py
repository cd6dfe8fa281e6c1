"""What is finished of a scene that is reconstructed block by block."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from cassi.apps.reconstruct.plan import Block
from cassi.data.checksums import seal, unseal
from cassi.data.formats.stacks import Stack, open_stack

Record = dict[str, Any]


class Journal:
    """The hidden folder of an unfinished scene: plan, cube, and a record of each finished block.

    All has a checksum; what does not fit it, or belongs to another run, is computed again.

    Args:
        folder: of the results.
        name: of the cube's file.
        identity: what makes two runs the same one.
    """

    def __init__(self, folder: Path, name: str, identity: str) -> None:
        self.folder, self.identity = folder / f".{name}.blocks", identity
        self.cube = self.folder / name
        self._plan, self._log = self.folder / "plan.json", self.folder / "blocks.jsonl"

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

    def plan(self) -> dict[str, Any] | None:
        """Return the plan of an earlier run that was the same; None where there is none."""
        try:
            plan = unseal(json.loads(self._plan.read_text()))
        except (OSError, ValueError, AttributeError):
            return None
        return plan if plan.get("identity") == self.identity and self.cube.exists() else None

    def reopen(self, shape: tuple[int, int, int]) -> Stack:
        """Return the unfinished cube; ValueError if it is not the one that was begun."""
        opened = open_stack(self.cube)
        if opened is None or opened[0].shape != shape:
            raise ValueError(f"{self.cube}: expected the unfinished cube; remove {self.folder}")
        return opened[0]

    def clear(self) -> None:
        """Forget what is there."""
        for file in self.folder.iterdir():
            if file.name != "lock":
                file.unlink()

    def begin(self, blocks: list[Block], about: dict[str, Any]) -> dict[str, Any]:
        """Remember the plan of a new run, whose cube is there already, and return it."""
        listed = [asdict(block) for block in blocks]
        plan = {"identity": self.identity, "blocks": listed, **about}
        _write(self._plan, json.dumps(seal(plan)), "w")
        return plan

    def records(self, stack: Stack, axis: int) -> list[Record]:
        """Return the records of the blocks that are finished and unharmed, from the first on."""
        found: list[Record] = []
        for line in self._log.read_text().splitlines() if self._log.exists() else []:
            try:
                record = unseal(json.loads(line))
                rows, columns = place(axis, record["lines"][0], record["lines"][1])
                same = _digest(stack.read(rows=rows, columns=columns)) == record["cube"]
            except (OSError, ValueError, AttributeError, KeyError):
                break
            if not same or record["block"] != len(found):
                break
            found.append(record)
        while found and not self._tail_is_whole(found[-1]):
            found.pop()
        kept = "".join(json.dumps(seal(record)) + "\n" for record in found)
        _write(self._log, kept, "w")
        return found

    def add(self, record: Record, part: np.ndarray, tail: np.ndarray | None) -> Record:
        """Remember a block, its values `(C, H', W')` on the disk, and what the next one needs."""
        record = record | {"cube": _digest(part)}
        if tail is not None:
            with self._tail(record["block"]).open("wb") as file:
                np.save(file, tail)
                os.fsync(file.fileno())
            record["tail"] = _digest(tail)
        _write(self._log, json.dumps(seal(record)) + "\n", "a")
        return record

    def tail(self, index: int) -> np.ndarray:
        """Return what block `index` left for the next one to be blended with."""
        return np.asarray(np.load(self._tail(index), allow_pickle=False))

    def remove(self) -> None:
        """Remove the folder, when the results stand under their names."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _tail(self, index: int) -> Path:
        return self.folder / f"tail-{index}.npy"

    def _tail_is_whole(self, record: Record) -> bool:
        try:
            return "tail" not in record or _digest(self.tail(record["block"])) == record["tail"]
        except (OSError, ValueError):
            return False


def place(axis: int, start: int, stop: int) -> tuple[slice, slice]:
    """Return the rows and the columns of lines start to stop along an axis, -2 or -1."""
    lines, rest = slice(start, stop), slice(None)
    return (lines, rest) if axis == -2 else (rest, lines)


def _digest(values: np.ndarray) -> str:
    total = hashlib.sha256()
    for plane in values:
        total.update(np.ascontiguousarray(plane, dtype="<f4").data)
    return total.hexdigest()


def _write(path: Path, text: str, mode: str) -> None:
    with path.open(mode) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
