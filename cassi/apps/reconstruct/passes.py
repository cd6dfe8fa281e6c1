"""What is finished of a reconstruction in several passes."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cassi.apps.inputs import Inputs
from cassi.apps.reconstructors import fingerprint_settings
from cassi.apps.settings import Reconstruct
from cassi.data.atomic import atomic_path
from cassi.data.checksums import digest_content
from cassi.data.store import Store
from cassi.methods import Pass
from cassi.solvers import Iteration

_HIDDEN, _NAME = ".passes", "pass"


class Passes:
    """The hidden folder of an unfinished reconstruction: the result of its last pass.

    It is a `cassi.methods.Checkpoint`. What is damaged, or of another measurement or other
    settings, is computed again.

    Args:
        folder: of the results.
        settings: of the command.
        inputs: the measurement and its camera.

    Attributes:
        rows: of convergence.csv, kept and read with the result.
    """

    def __init__(self, folder: Path, settings: Reconstruct, inputs: Inputs) -> None:
        self.folder = folder / _HIDDEN
        self.store = Store(self.folder)
        values = (inputs.measurement, *inputs.system.state_dict().values())
        content = (value.detach().cpu().contiguous().numpy().data for value in values)
        key = f"{fingerprint_settings(settings, on='cube')} {inputs.system}"
        self.fingerprint = digest_content([key, *content])
        self.rows: list[dict[str, Any]] = []

    def read(self) -> Pass | None:
        """Return the result of the last pass of an earlier run that was the same, or None."""
        kept = self.store.read(_NAME, self.fingerprint)
        if kept is None or not self.store.is_done(_NAME, self.fingerprint):
            return None
        x = torch.from_numpy(np.load(self._cube(kept["passes"]), allow_pickle=False))
        self.rows.extend(kept["rows"])
        print(f"passes: {kept['passes']} finished already", flush=True)
        return Pass(kept["passes"], x, [Iteration(**each) for each in kept["history"]])

    def write(self, done: Pass) -> None:
        """Keep the result of a pass in place of the one before it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._cube(done.passes)
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.save(file, done.x.cpu().numpy())
            file.flush()
            os.fsync(file.fileno())
        history = [asdict(each) for each in done.history]
        values = {"passes": done.passes, "history": history, "rows": self.rows}
        self.store.write(_NAME, self.fingerprint, values, [path])
        self._cube(done.passes - 1).unlink(missing_ok=True)

    def _cube(self, passes: int) -> Path:
        return self.folder / f"pass-{passes}.npy"


def forget_passes(folder: Path) -> None:
    """Remove what is kept of passes, when the results stand in their folder."""
    shutil.rmtree(folder / _HIDDEN, ignore_errors=True)
