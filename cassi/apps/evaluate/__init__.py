"""cassi-evaluate: reconstructors and scenes in, tables, pictures and a report out."""

from __future__ import annotations

import copy
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from cassi import metrics
from cassi.apps.command import run_command
from cassi.apps.evaluate.data import load_benchmark
from cassi.apps.evaluate.methods import make_methods
from cassi.apps.evaluate.problems import find_bands, preparation
from cassi.apps.evaluate.results import FAILED, Plan, finish, finish_scene
from cassi.apps.memory import keep_freed_memory
from cassi.apps.processes import follow_first_process, own_device
from cassi.apps.reconstructors import store_models
from cassi.apps.settings import choose_device, whole_number
from cassi.config import plain
from cassi.evaluation import Record, RecordFolder, join_processes, run_jobs

POINTS = 40
"""Of a convergence curve: as many as a plot shows, and few beside the iterations' time."""


def main() -> None:
    """Run the command."""
    store_models()
    follow_first_process()
    run_command("cassi-evaluate", "evaluate", evaluate)


def evaluate(config: DictConfig) -> float:
    """Evaluate what the config names and write the results into Hydra's output folder.

    Returns:
        The mean PSNR of the first reconstructor in dB, for sweeps.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    hydra = HydraConfig.get()
    queue = join_processes()
    folder = Path(queue.share(str(Path(hydra.runtime.output_dir).resolve())))
    device = _check(config)
    benchmark = load_benchmark(config)
    points = sweep_points(config)
    prepare = preparation(points, benchmark, device)
    bands = find_bands(prepare, next(iter(points)), benchmark.scenes)
    methods = make_methods(config, bands, device)
    plan = Plan(
        list(points), benchmark.scenes, list(methods), swept=config.get("sweep") is not None
    )
    cubes = bool(config.cubes or config.report or config.figures) and not plan.swept
    records = RecordFolder(folder / "records", keep_cubes=cubes)
    jobs = plan.jobs()
    bar = tqdm(total=len(jobs), unit="run", disable=not config.progress or queue.rank > 0)

    seen: Counter[str] = Counter()

    def report(record: Record) -> None:
        bar.set_postfix_str(_label(record), refresh=False)
        bar.update()
        seen[record.scene] += 1
        if record.error:
            print(f"{_label(record)} failed: {record.error}", file=sys.stderr, flush=True)
        # Now rather than at the end, so that a long run can be looked at.
        if seen[record.scene] == len(methods) and not plan.swept:
            finish_scene(config, folder, benchmark, plan, records, record.scene)

    with bar:
        run_jobs(
            jobs,
            queue,
            prepare,
            methods,
            records,
            settings=_settings(device),
            seed=config.seed,
            points=POINTS if config.figures and not plan.swept else 0,
            report=report,
        )
    queue.wait()
    if queue.rank > 0:
        return float("nan")
    # A job of a multirun must not end the others; MergeJobs ends the command.
    fail = FAILED if hydra.mode != RunMode.MULTIRUN else None
    return finish(config, folder, benchmark, plan, records, device, fail)


def sweep_points(config: DictConfig) -> dict[str, DictConfig]:
    """Return the config of each point of the sweep, by name; one without a name if nothing is.

    Raises:
        ValueError: the sweep names no value of the config.
    """
    if config.get("sweep") is None:
        return {"": config}
    key, values = config.sweep.parameter, plain(config.sweep["values"])
    if not isinstance(values, list) or not values or len(set(values)) < len(values):
        raise ValueError(f"sweep.values: expected different numbers, got {values!r}")
    points: dict[str, DictConfig] = {}
    for value in values:
        here = copy.deepcopy(config)
        try:
            OmegaConf.update(here, key, value)
        except Exception:
            raise ValueError(f"sweep.parameter: no config value {key!r}") from None
        points[f"{key}={value:g}"] = here
    return points


def _check(config: DictConfig) -> torch.device:
    metrics.get_preset(config.preset)
    for name in ("cubes", "report", "figures", "progress"):
        if not isinstance(config[name], bool):
            raise ValueError(f"{name}: expected true or false, got {config[name]!r}")
    whole_number("seed", config.seed, 0, 2**63 - 1)
    torch.set_num_threads(whole_number("threads", config.threads, 1, 1024))
    keep_freed_memory()
    return own_device(choose_device(config.device))


def _settings(device: torch.device) -> dict[str, Any]:
    from importlib.metadata import version

    versions = {name: version(name) for name in ("cassi", "torch")}
    return {"device": device.type, "threads": torch.get_num_threads(), **versions}


def _label(record: Record) -> str:
    return ", ".join(filter(None, (record.point, record.method, record.scene)))
