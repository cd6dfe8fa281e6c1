"""One table of a multirun, when all its jobs are done."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from cassi.apps.command import FAILED, choose_device
from cassi.apps.evaluate.problems import load_benchmark, sweep_points
from cassi.apps.evaluate.results import Plan, Results
from cassi.apps.settings import Evaluate, read_settings
from cassi.evaluation import RecordFolder


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
        settings = read_settings(mine, Evaluate)
        records = RecordFolder(root / "records", keep_cubes=settings.cubes)
        for record, source in found:
            records.copy(record, source)
        scenes = {record.scene for record, _ in found}
        listed = [name for name in load_benchmark(settings).scenes if name in scenes]
        settings = replace(settings, scenes=listed)
        methods = list(dict.fromkeys(record.method for record, _ in found))
        plan = Plan(list(sweep_points(settings)), listed, methods, settings.sweep is not None)
        device = choose_device(settings.device)
        results = Results(settings, root, load_benchmark(settings), plan, records, device)
        if results.finish()[1]:
            sys.exit(FAILED)
