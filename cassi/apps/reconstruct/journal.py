"""What is finished of an unfinished reconstruction: passes of a method, blocks of a scene."""

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from cassi.apps.reconstructors import fingerprint_settings
from cassi.apps.settings import Reconstruct
from cassi.data.atomic import atomic_path, digest_content
from cassi.data.formats.cells import Json
from cassi.data.store import Store
from cassi.pipeline.snapshot import Snapshot
from cassi.solvers.base import Iteration, Pass

_PASSES = ".passes"


class Journal:
    """A hidden folder of records, each with arrays beside it, until the results are there.

    All has a checksum; what does not fit it, or belongs to another run, counts as missing.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder, self.fingerprint = folder, fingerprint
        self.store = Store(folder)

    def read(self, name: str) -> Json | None:
        """Return a record whose arrays are whole, or None."""
        is_done = self.store.is_done(name, self.fingerprint)
        return self.store.read(name, self.fingerprint) if is_done else None

    def array(self, name: str) -> np.ndarray:
        """Return an array of a record that was read."""
        return np.asarray(np.load(self.folder / f"{name}.npy", allow_pickle=False))

    def write(self, name: str, record: Json, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep arrays under their names, then the record."""
        self.folder.mkdir(parents=True, exist_ok=True)
        files = [self.folder / f"{each}.npy" for each in arrays]
        for file, values in zip(files, arrays.values(), strict=True):
            with atomic_path(file) as temporary:
                np.save(temporary, values)
        self.store.write(name, self.fingerprint, record, files)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def fingerprint_snapshot(settings: str, snapshot: Snapshot) -> str:
    """Return what tells a reconstruction from any other: of settings, measurement and camera."""
    system = snapshot.camera.system
    values = (snapshot.y, *system.state_dict().values())
    content = (value.detach().cpu().contiguous().numpy().data for value in values)
    return digest_content([f"{settings} {system}", *content])


class Passes:
    """First cube and result of the last pass: a `cassi.solvers.base.Checkpoint`.

    Attributes:
        rows: of convergence.csv, kept and read with the result.
    """

    def __init__(self, folder: Path, settings: Reconstruct, snapshot: Snapshot) -> None:
        key = fingerprint_snapshot(fingerprint_settings(settings, on="cube"), snapshot)
        self.journal = Journal(folder / _PASSES, key)
        self.rows: list[Json] = []

    def read(self, name: str) -> Pass | None:
        """Return what an earlier run that was the same kept under a name, or None."""
        kept = self.journal.read(name)
        if kept is None:
            return None
        x = torch.from_numpy(self.journal.array(f"{name}-{kept['passes']}"))
        self.rows.extend(kept["rows"])
        if kept["passes"]:
            print(f"passes: {kept['passes']} finished already", flush=True)
        noise = None if kept["noise"] is None else torch.tensor(kept["noise"])
        history = [Iteration(**each) for each in kept["history"]]
        return Pass(kept["passes"], x, history, noise)

    def write(self, name: str, done: Pass) -> None:
        """Keep a result in place of the last one of this name."""
        history = [asdict(each) for each in done.history]
        noise = None if done.noise is None else done.noise.tolist()
        record = {"passes": done.passes, "history": history, "rows": self.rows, "noise": noise}
        self.journal.write(name, record, {f"{name}-{done.passes}": done.x.cpu().numpy()})
        (self.journal.folder / f"{name}-{done.passes - 1}.npy").unlink(missing_ok=True)


def forget_passes(folder: Path) -> None:
    """Remove what is kept of passes, when the results stand in their folder."""
    shutil.rmtree(folder / _PASSES, ignore_errors=True)
