"""Records of finished jobs of an evaluation, in a folder that survives an interruption."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cassi.data.atomic import atomic_path
from cassi.data.formats.numpy import read_array
from cassi.data.store import Store, file_name

Values = dict[str, float | None]


class Job(NamedTuple):
    """One method on one scene, in one case of a benchmark ("" where there is only one case)."""

    point: str
    scene: str
    method: str


@dataclass(frozen=True)
class Record:
    """The result of one method on one scene.

    Attributes:
        point: case of a benchmark, "" where there is only one.
        scene: name of the scene.
        method: name of the method.
        key: hash of all that the result depends on.
        metrics: name → value, equal in every run; PSNR and SSIM as `psnr/PRESET`, `ssim/PRESET`.
        timing: values that differ from run to run: `seconds`, `peak_memory_bytes`, and
            `camera_seconds`, the time to find the camera if the method does not use the nominal
            one.
        about: `parameters` and `flops` of a network.
        curve: (seconds, PSNR in dB) during the iterations.
        error: the reason of a failure, or None.
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

    @property
    def job(self) -> Job:
        """The job of this record."""
        return Job(self.point, self.scene, self.method)


class RecordFolder:
    """A folder with the records of all jobs in one SQLite file, and the cubes beside it.

    Args:
        root: the folder; made when the first record is written.
        keep_cubes: write cubes; a record without its cube counts as not done.
    """

    def __init__(self, root: Path, keep_cubes: bool = True) -> None:
        self.root, self.keep_cubes, self.store = root, keep_cubes, Store(root)

    def cube(self, job: Job) -> Path:
        """Return the path of the cube of a job."""
        return self.root / f"{_job_name(job)}.npy"

    def read(self, job: Job, key: str | None = None) -> Record | None:
        """Return the record of a job; None if there is none, or if it has another key."""
        return self._parse_record(self.store.read(_job_name(job), key))

    def is_done(self, job: Job, key: str) -> bool:
        """Tell whether a job has a valid record, and a cube if cubes are kept."""
        if not self.store.is_done(_job_name(job), key):
            return False
        return not self.keep_cubes or self.cube(job).is_file()

    def write(self, record: Record, cube: Tensor | None = None) -> None:
        """Write a record and its cube `(C, H, W)`."""
        files: list[Path] = []
        if cube is not None and self.keep_cubes:
            files = [self.cube(record.job)]
            files[0].parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(files[0]) as temporary:
                np.save(temporary, cube.detach().cpu().float().numpy())
        # The record is written after the cube. A process that is killed in between leaves no
        # record, so the job is done again.
        self._write(record, files)

    def copy(self, record: Record, source: RecordFolder) -> None:
        """Copy a record from another folder, with its cube if there is one."""
        cube, target = source.cube(record.job), self.cube(record.job)
        if cube.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(target) as temporary:
                # Cubes are large, and a hard link takes no space. But some file systems have no
                # hard links, and no hard link leads to another file system. Then cubes are copied.
                try:
                    temporary.hardlink_to(cube)
                except OSError:
                    shutil.copyfile(cube, temporary)
        self._write(record, [target] if cube.is_file() else [])

    def _write(self, record: Record, files: list[Path]) -> None:
        has_result = record.error is None
        self.store.write(
            _job_name(record.job), record.key, asdict(record), files, is_result=has_result
        )

    def read_cube(self, job: Job) -> Tensor | None:
        """Return the cube `(C, H, W)` of a job, or None."""
        path = self.cube(job)
        return torch.from_numpy(read_array(path)) if path.is_file() else None

    def read_all(self) -> list[Record]:
        """Return every record, sorted by the names of the jobs."""
        records = map(self._parse_record, self.store.read_all().values())
        return [record for record in records if record is not None]

    def _parse_record(self, values: Mapping[str, Any] | None) -> Record | None:
        # Values of a report, or of another version of the package, do not have a record's fields.
        try:
            return None if values is None else Record(**values)
        except TypeError:
            return None


def _job_name(job: Job) -> str:
    """Return the name of a job in the store, and of its cube in the folder."""
    return "/".join(file_name(part) for part in job if part)
