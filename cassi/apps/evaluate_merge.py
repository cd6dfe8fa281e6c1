"""One table of a multirun, when all its jobs are done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from cassi.apps.evaluate_data import load_benchmark
from cassi.apps.evaluate_results import Plan, finish
from cassi.apps.settings import choose_device
from cassi.evaluation import RecordFolder

FAILED = 1


class MergeJobs(Callback):
    """Writes into the sweep's folder what a single run would have written."""

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Read the records of all jobs."""
        root = Path(config.hydra.sweep.dir).resolve()
        records = RecordFolder(root / "records")
        found = records.all()
        if not found:
            return
        mine = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
        assert isinstance(mine, DictConfig)
        mine.scenes = sorted({record.scene for record in found})
        points = list(dict.fromkeys(record.point for record in found))
        methods = list(dict.fromkeys(record.method for record in found))
        benchmark = load_benchmark(mine)
        plan = Plan(points, benchmark.scenes, methods)
        finish(mine, root, benchmark, plan, records, choose_device(mine.device), fail=FAILED)
