"""From the records of an evaluation to its files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from cassi import ops
from cassi.apps.evaluate.pictures import Pictures
from cassi.apps.results import environment
from cassi.config import plain
from cassi.data.atomic import write_sums
from cassi.data.benchmarks import Benchmark
from cassi.data.checksums import SUMS
from cassi.evaluation import Job, Record, RecordFolder, write_results, write_sweep

FAILED = 1
"""Exit status where a scene failed and the rest is done."""
RESULTS = ("results.*", "sweep.*", "timing.json", "report.html", "figures/**/*")


@dataclass(frozen=True)
class Plan:
    """What is evaluated, in the order of the tables."""

    points: Sequence[str]
    scenes: Sequence[str]
    methods: Sequence[str]
    swept: bool = False

    def jobs(self) -> list[Job]:
        """Return every job, those of a scene together."""
        return [Job(p, s, m) for p in self.points for s in self.scenes for m in self.methods]

    def found(self, records: RecordFolder, scene: str | None = None) -> list[Record]:
        """Return the records there are, of one scene or of all."""
        jobs = [job for job in self.jobs() if scene in (None, job.scene)]
        known = [records.read(job) for job in jobs]
        return [record for record in known if record is not None]


def finish_scene(
    config: DictConfig,
    root: Path,
    benchmark: Benchmark,
    plan: Plan,
    records: RecordFolder,
    scene: str,
) -> bytes | None:
    """Draw a scene and encode it for the report, if every method has a record of it."""
    found = plan.found(records, scene)
    if len(found) < len(plan.methods):
        return None
    return _pictures(config, root, benchmark, plan, records).finish_scene(scene, found)


def finish(
    config: DictConfig,
    root: Path,
    benchmark: Benchmark,
    plan: Plan,
    records: RecordFolder,
    device: torch.device,
    fail: int | None = FAILED,
) -> float:
    """Write tables, pictures and report.

    Args:
        config: of the command.
        root: where results go.
        benchmark: the scenes.
        plan: what was evaluated.
        records: what was found.
        device: where methods ran.
        fail: exit status where a scene failed; None returns all the same.

    Returns:
        The mean PSNR of the first method, dB; NaN where unknown.
    """
    (root / SUMS).unlink(missing_ok=True)
    found = plan.found(records)
    more: dict[str, Any] = {
        "preset": config.preset,
        "settings": describe(config) | preprocessed(benchmark, found),
        "environment": environment(device, ops.backend(device)),
    }
    if plan.swept:
        values = dict(zip(plan.points, plain(config.sweep["values"]), strict=True))
        sweep: dict[str, Any] = {"parameter": config.sweep.parameter, "label": config.sweep.label}
        write_sweep(root, found, values, plan.scenes, plan.methods, **sweep, **more)
        print(f"{len(found)} runs -> {root / 'sweep.csv'}")
    else:
        print(write_results(root, found, plan.scenes, plan.methods, **more), end="")
        encoded = [finish_scene(config, root, benchmark, plan, records, s) for s in plan.scenes]
        if config.report and any(encoded):
            pictures = _pictures(config, root, benchmark, plan, records)
            scenes = [item for item in encoded if item is not None]
            title = f"cassi-evaluate: {config.data.get('name') or 'scenes'}"
            drawn = next(s for s, e in zip(plan.scenes, encoded, strict=True) if e is not None)
            pictures.write_report(scenes, benchmark.load(drawn).wavelengths, title)
        if not config.cubes:
            for record in found:
                records.path(record.job, ".npy").unlink(missing_ok=True)
        print(f"-> {root}")
        if config.report and any(encoded):
            print(f"Open {root / 'report.html'} in a browser.")
    written = (file for name in RESULTS for file in root.glob(name) if file.is_file())
    write_sums(root, (file for file in written if not file.name.startswith(".")))
    failed = [record for record in found if record.error]
    if failed:
        print(f"cassi-evaluate: {len(failed)} of {len(found)} runs failed", file=sys.stderr)
        if fail is not None:
            sys.exit(fail)
    first = (r.metrics.get(f"psnr/{config.preset}") for r in found if r.method == plan.methods[0])
    known = [value for value in first if value is not None]
    return sum(known) / len(known) if known else float("nan")


def describe(config: DictConfig) -> dict[str, Any]:
    """Return what decides the numbers, without where files lie and how many processes there are."""
    parts = ("system", "noise", "mismatch", "seed", "threads", "reconstructors")
    return {name: plain(config.get(name)) for name in parts} | {"data": config.data.get("name")}


def preprocessed(benchmark: Benchmark, found: Sequence[Record]) -> dict[str, Any]:
    """Return what was done to the frames of measured scenes, by scene and step."""
    if benchmark.measurements is None:
        return {}
    scenes = dict.fromkeys(record.scene for record in found if not record.error)
    return {"preprocessing": {scene: benchmark.load(scene).preprocessing for scene in scenes}}


def _pictures(
    config: DictConfig, root: Path, benchmark: Benchmark, plan: Plan, records: RecordFolder
) -> Pictures:
    return Pictures(
        root,
        records,
        plan.methods,
        benchmark.load,
        preset=config.preset,
        figures=config.figures,
        report=config.report,
    )
