"""Keep the finished passes or blocks of a reconstruction, so that a later command continues it."""

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
    """A hidden folder of records and their arrays. It exists until the results are written.

    Records and arrays have checksums. A record counts as missing if it is damaged, if one of its
    arrays is damaged, or if it is of another run.

    Args:
        folder: the hidden folder; the first record makes it.
        fingerprint: checksum of everything that the results depend on; it identifies the run.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder, self.fingerprint = folder, fingerprint
        self.store = Store(folder)

    def read(self, name: str) -> Json | None:
        """Return a record of this run whose arrays are undamaged, or None."""
        is_done = self.store.is_done(name, self.fingerprint)
        return self.store.read(name, self.fingerprint) if is_done else None

    def array(self, name: str) -> np.ndarray:
        """Return an array of a record that was read."""
        return np.asarray(np.load(self.folder / f"{name}.npy", allow_pickle=False))

    def write(self, name: str, record: Json, arrays: Mapping[str, np.ndarray]) -> None:
        """Write arrays under their names, then the record that makes them valid."""
        self.folder.mkdir(parents=True, exist_ok=True)
        files = [self.folder / f"{array_name}.npy" for array_name in arrays]
        for file, values in zip(files, arrays.values(), strict=True):
            with atomic_path(file) as temporary:
                np.save(temporary, values)
        self.store.write(name, self.fingerprint, record, files)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def fingerprint_snapshot(settings: str, snapshot: Snapshot) -> str:
    """Return a checksum that identifies a reconstruction: of settings, measurement and camera."""
    system = snapshot.camera.system
    values = (snapshot.y, *system.state_dict().values())
    content = (value.detach().cpu().contiguous().numpy().data for value in values)
    return digest_content([f"{settings} {system}", *content])


class Passes:
    """The checkpoint of a solver of several passes; see `cassi.solvers.base.Checkpoint`.

    It keeps the cube that the solver starts with, and the result of the last pass.

    Attributes:
        rows: rows of convergence.csv, which are stored with the result of each pass.
    """

    def __init__(self, folder: Path, settings: Reconstruct, snapshot: Snapshot) -> None:
        key = fingerprint_snapshot(fingerprint_settings(settings, on="cube"), snapshot)
        self.journal = Journal(folder / _PASSES, key)
        self.rows: list[Json] = []

    def read(self, name: str) -> Pass | None:
        """Return the result that an earlier run with the same fingerprint wrote, or None."""
        record = self.journal.read(name)
        if record is None:
            return None
        x = torch.from_numpy(self.journal.array(f"{name}-{record['passes']}"))
        self.rows.extend(record["rows"])
        # Before the first pass the checkpoint has only the first cube, which needs no message.
        if record["passes"]:
            print(f"passes: {record['passes']} finished already", flush=True)
        noise = None if record["noise"] is None else torch.tensor(record["noise"])
        history = [Iteration(**entry) for entry in record["history"]]
        return Pass(record["passes"], x, history, noise)

    def write(self, name: str, pass_result: Pass) -> None:
        """Write a result in place of the last one of this name."""
        history = [asdict(iteration) for iteration in pass_result.history]
        noise = None if pass_result.noise is None else pass_result.noise.tolist()
        record = {
            "passes": pass_result.passes,
            "history": history,
            "rows": self.rows,
            "noise": noise,
        }
        self.journal.write(
            name, record, {f"{name}-{pass_result.passes}": pass_result.x.cpu().numpy()}
        )
        # The array of the earlier pass is removed only now, after the new record is written.
        (self.journal.folder / f"{name}-{pass_result.passes - 1}.npy").unlink(missing_ok=True)


def forget_passes(folder: Path) -> None:
    """Remove the checkpoint of the passes, once the results are in their folder."""
    shutil.rmtree(folder / _PASSES, ignore_errors=True)
