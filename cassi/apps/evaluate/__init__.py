"""cassi-evaluate: reconstructors and scenes in, tables, pictures and a report out."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from cassi import metrics
from cassi.apps.command import (
    FAILED,
    Run,
    choose_device,
    follow_first_process,
    prepare_process,
    run_command,
)
from cassi.apps.errors import describe_failure
from cassi.apps.evaluate.problems import find_bands, load_benchmark, preparation, sweep_points
from cassi.apps.evaluate.results import Plan, Results
from cassi.apps.evaluate.rows import add_rows, align_rows, make_reconstructors
from cassi.apps.settings import Evaluate
from cassi.checks import printable
from cassi.evaluation import Record, RecordFolder, View, join_processes, run_jobs

POINTS = 40
"""Of a convergence curve: as many as a plot shows, and few beside the iterations' time."""


def main() -> None:
    """Run the command."""
    follow_first_process()
    run_command("cassi-evaluate", Evaluate, evaluate)


def evaluate(settings: Evaluate, run: Run) -> float:
    """Evaluate what the settings name and write the results.

    Returns:
        The mean PSNR of the first reconstructor in dB, for sweeps.
    """
    queue = join_processes()
    folder = Path(queue.share(str(run.folder)))
    metrics.get_preset(settings.preset)
    device = choose_device(settings.device)
    prepare_process(settings)
    benchmark = load_benchmark(settings)
    points = sweep_points(settings)
    prepare = preparation(points, benchmark, device)
    bands = find_bands(prepare, next(iter(points)), benchmark.scenes)
    made, identities = make_reconstructors(settings, bands, device)
    views: dict[str, View] = {}
    methods = list(made)
    if settings.twin is not None:
        made, identities, views = add_rows(made, identities, settings.knowledge)
    if settings.align:
        identities, views = align_rows(identities, views)
    swept = len(points) > 1 or settings.sweep is not None
    plan = Plan(list(points), benchmark.scenes, list(made), swept)
    cubes = (settings.cubes or settings.report or settings.figures) and not swept
    records = RecordFolder(folder / "records", keep_cubes=cubes)
    results = Results(settings, folder, benchmark, plan, records, device, methods)
    jobs = plan.jobs()
    bar = tqdm(total=len(jobs), unit="run", disable=not settings.progress or queue.rank > 0)

    seen: Counter[str] = Counter()

    def report(record: Record) -> None:
        bar.set_postfix_str(_label(record), refresh=False)
        bar.update()
        seen[record.scene] += 1
        if record.error:
            print(
                printable(f"{_label(record)} failed: {record.error}"), file=sys.stderr, flush=True
            )
        # Now rather than at the end, so that a long run can be looked at.
        if seen[record.scene] == len(made) and not swept:
            results.finish_scene(record.scene)

    with bar:
        run_jobs(
            jobs,
            queue,
            prepare,
            made,
            identities,
            records,
            settings=_environment(device),
            views=views,
            seed=settings.seed,
            uncertainty=settings.uncertainty,
            repeats=settings.repeats,
            points=POINTS if settings.figures and not swept else 0,
            report=report,
            explain=describe_failure,
        )
    queue.wait()
    if queue.rank > 0:
        return float("nan")
    score, failed = results.finish()
    # A job of a multirun must not end the others; MergeJobs ends the command.
    if failed and not run.is_multirun:
        sys.exit(FAILED)
    return score


def _environment(device: torch.device) -> dict[str, Any]:
    from importlib.metadata import version

    versions = {name: version(name) for name in ("cassi", "torch")}
    return {"device": device.type, "threads": torch.get_num_threads(), **versions}


def _label(record: Record) -> str:
    return ", ".join(filter(None, (record.point, record.method, record.scene)))
