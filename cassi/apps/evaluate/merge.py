"""One table of a multirun, when all its jobs are done."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from cassi.apps.evaluate import sweep_points
from cassi.apps.evaluate.data import load_benchmark
from cassi.apps.evaluate.results import Plan, finish
from cassi.apps.settings import choose_device
from cassi.data.atomic import atomic_path
from cassi.evaluation import Record, RecordFolder


class MergeJobs(Callback):
    """Writes into the folder of a multirun what a single run would have written.

    Jobs that differ in scenes and reconstructors make one table. Others, of which two have the same
    method on the same scene, have their own tables only.
    """

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Put the records of all jobs together."""
        root = Path(config.hydra.sweep.dir).resolve()
        sources = [RecordFolder(path) for path in sorted(root.glob("*/records"))]
        found = [(record, source) for source in sources for record in source.all()]
        if not found or len({record.job for record, _ in found}) < len(found):
            return
        mine = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
        assert isinstance(mine, DictConfig)
        records = RecordFolder(root / "records", keep_cubes=mine.cubes)
        for record, source in found:
            _copy(record, source, records)
        scenes = {record.scene for record, _ in found}
        mine.scenes = [name for name in load_benchmark(mine).scenes if name in scenes]
        methods = list(dict.fromkeys(record.method for record, _ in found))
        swept = mine.get("sweep") is not None
        plan = Plan(list(sweep_points(mine)), mine.scenes, methods, swept)
        finish(mine, root, load_benchmark(mine), plan, records, choose_device(mine.device))


def _copy(record: Record, source: RecordFolder, target: RecordFolder) -> None:
    cube = source.path(record.job, ".npy")
    if cube.is_file():
        place = target.path(record.job, ".npy")
        place.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(place) as temporary:
            try:
                temporary.hardlink_to(cube)  # cubes are large
            except OSError:
                shutil.copyfile(cube, temporary)
    target.write(record)
