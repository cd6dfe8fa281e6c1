"""What an evaluation has found out so far, in files that survive a stop."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from cassi.data.atomic import atomic_path
from cassi.data.checksums import digest, seal, unseal
from cassi.data.formats.numpy import read_array
from cassi.evaluation.jobs import Job

Values = dict[str, float | None]


@dataclass(frozen=True)
class Record:
    """What one method did on one scene.

    Attributes:
        point: of a sweep, "" without one.
        scene: name.
        method: name.
        key: hash of all that the result depends on.
        metrics: name → value, the same in every run; PSNR and SSIM as `psnr/PRESET`.
        timing: `seconds` and `peak_memory_bytes`, which differ from run to run.
        about: `parameters` and `flops` of a network.
        curve: (seconds, PSNR in dB) during the iterations.
        error: why there is no result, or None.
        cube: SHA-256 of the cube's file, or None.
    """

    point: str
    scene: str
    method: str
    key: str
    metrics: Values = field(default_factory=dict)
    timing: Values = field(default_factory=dict)
    about: dict[str, int | None] = field(default_factory=dict)
    curve: list[tuple[float, float]] = field(default_factory=list)
    error: str | None = None
    cube: str | None = field(default=None, compare=False)

    @property
    def job(self) -> Job:
        """What it is the record of."""
        return Job(self.point, self.scene, self.method)


class RecordFolder:
    """One small file per job, and its cube beside it.

    A record appears whole or not at all, and after its cube. One that is damaged, or whose cube is,
    counts as not there, with a warning.

    Args:
        root: the folder; made when the first record is written.
        keep_cubes: write cubes, and take a record without one as not done.
    """

    def __init__(self, root: Path, keep_cubes: bool = True) -> None:
        self.root, self.keep_cubes = root, keep_cubes

    def path(self, job: Job, suffix: str = ".json") -> Path:
        """Return where the record of a job is, or its cube with the suffix `.npy`."""
        folder = self.root / _file_name(job.point) if job.point else self.root
        return folder / _file_name(job.scene) / f"{_file_name(job.method)}{suffix}"

    def read(self, job: Job, key: str | None = None) -> Record | None:
        """Return the record of a job; None where there is none, or it has another key."""
        return self._parse(self.path(job), key)

    def is_done(self, job: Job, key: str) -> bool:
        """Tell whether a job need not be done again."""
        record = self.read(job, key)
        if record is None or record.error is not None:
            return False
        return not self.keep_cubes or self._has_cube(record)

    def write(self, record: Record, cube: Tensor | None = None) -> None:
        """Keep a record and its cube `(C, H, W)`."""
        path = self.path(record.job)
        path.parent.mkdir(parents=True, exist_ok=True)
        if cube is not None and self.keep_cubes:
            with atomic_path(self.path(record.job, ".npy")) as temporary:
                np.save(temporary, cube.detach().cpu().float().numpy())
                record = replace(record, cube=digest(temporary))
        with atomic_path(path) as temporary:
            text = json.dumps(seal(asdict(record)), indent=1)
            temporary.write_text(f"{text}\n", encoding="utf-8")

    def read_cube(self, job: Job) -> Tensor | None:
        """Return the cube `(C, H, W)` of a job, or None."""
        path = self.path(job, ".npy")
        return torch.from_numpy(read_array(path)) if path.is_file() else None

    def all(self) -> list[Record]:
        """Return every record, sorted by its path."""
        found = (self._parse(path, None) for path in sorted(self.root.rglob("*.json")))
        return [record for record in found if record is not None]

    def _has_cube(self, record: Record) -> bool:
        path = self.path(record.job, ".npy")
        if not path.is_file():
            return False
        whole = record.cube == digest(path)
        if not whole:
            warnings.warn(f"{path}: it is damaged, and made again", stacklevel=3)
        return whole

    def _parse(self, path: Path, key: str | None) -> Record | None:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError:
            return None
        try:
            record = Record(**unseal(json.loads(text)))
        except (ValueError, TypeError, RecursionError):
            warnings.warn(
                f"{path}: it is damaged or of another version, and made again", stacklevel=3
            )
            return None
        return record if key in (None, record.key) else None


def hash_key(value: Mapping[str, Any]) -> str:
    """Return a hash of a value made of dicts, lists, numbers and texts."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _file_name(name: str) -> str:
    # A name may hold anything, a file name not: "snr_db=10" stays readable, "a/b" is escaped.
    safe = quote(name, safe=" =,+()[]")
    return f"%{safe[1:]}" if safe.startswith(".") else safe
