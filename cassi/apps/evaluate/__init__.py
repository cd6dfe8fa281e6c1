"""cassi-evaluate: reconstructors and scenes in, tables, pictures and a report out."""

import functools
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from cassi import metrics
from cassi.apps.command import (
    FAILED,
    Run,
    choose_device,
    prepare_process,
    refuse_torchrun,
    run_command,
)
from cassi.apps.errors import describe_failure
from cassi.apps.evaluate.problems import (
    find_bands,
    find_cases,
    load_benchmark,
    preparation,
    repeated_points,
)
from cassi.apps.evaluate.results import Plan, Results
from cassi.apps.evaluate.rows import (
    NOMINAL,
    make_recipes,
    make_rows,
    read_reconstructors,
)
from cassi.apps.executors import LostWorker, once, open_executor, run_jobs
from cassi.apps.folders import check_shares
from cassi.apps.printing import is_quiet, marked
from cassi.apps.settings import Evaluate, Reconstruct
from cassi.checks import printable
from cassi.data.benchmarks import Benchmark
from cassi.data.formats.cells import Json
from cassi.evaluation import Job, Record, RecordFolder, Runner
from cassi.shares import find_share

POINTS = 40
"""Of a convergence curve: as many as a plot shows, and few beside the iterations' time."""


@dataclass(frozen=True)
class Given:
    """What a process makes all of that it needs for any job."""

    settings: Evaluate
    folder: Path
    reconstructors: dict[str, Reconstruct]


@dataclass(frozen=True)
class Made:
    """What is made of it."""

    device: torch.device
    benchmark: Benchmark
    plan: Plan
    runner: Runner


def main() -> None:
    """Run the command."""
    run_command("cassi-evaluate", Evaluate, evaluate)


def evaluate(settings: Evaluate, run: Run) -> float:
    """Evaluate what the settings name and write the results.

    Returns:
        The mean PSNR of the first reconstructor in dB, for sweeps.
    """
    refuse_torchrun()
    metrics.get_preset(settings.preset)
    prepare_process(settings)
    share = find_share("1/1" if run.is_multirun else settings.share)
    check_shares(run.folder, share)
    given = Given(settings, run.folder, read_reconstructors(settings))
    with open_executor(settings) as workers:
        made = once(make, given)
        plan, records = made.plan, made.runner.records
        if plan.swept:
            for line in repeated_points(made.runner.prepare, plan.points, plan.scenes[0]):
                print(f"{marked('warning')} {printable(line)}", file=sys.stderr)
        methods = list(given.reconstructors)
        results = Results(settings, run.folder, made.benchmark, plan, records, made.device, methods)
        jobs = share.take(plan.jobs())
        bar = tqdm(total=len(jobs), unit="run", disable=not settings.progress or is_quiet())
        seen: Counter[str] = Counter()
        with bar:
            for job, found in run_jobs(workers, functools.partial(evaluate_job, given), jobs):
                record = made.runner.fail(job, found) if isinstance(found, LostWorker) else found
                bar.set_postfix_str(_label(record), refresh=False)
                bar.update()
                seen[record.scene] += 1
                if record.error:
                    said = f"{_label(record)} failed: {record.error}"
                    bar.write(printable(said), file=sys.stderr)
                # Now rather than at the end, so that a long run can be looked at.
                if seen[record.scene] == len(plan.methods) and not plan.swept:
                    results.finish_scene(record.scene)
    # Records of other settings may lie there; without shares all have been done anew.
    runs = plan.jobs() if share.count > 1 else ()
    left = sum(records.read(job, made.runner.key(job)) is None for job in runs)
    if left:
        print(f"{left} runs are left to other shares; the last one writes the tables")
        return float("nan")
    score, failed = results.finish()
    # A job of a multirun must not end the others; MergeJobs ends the command.
    if failed and not run.is_multirun:
        sys.exit(FAILED)
    return score


def evaluate_job(given: Given, job: Job) -> Record:
    """Run a method on a scene and keep its record: a job."""
    return once(make, given).runner.run(job)


def make(given: Given) -> Made:
    """Make scenes, cameras and methods, in each process that does jobs."""
    settings = given.settings
    device = choose_device(settings.device)
    benchmark = load_benchmark(settings)
    points = find_cases(settings)
    prepare = preparation(points, benchmark, device)
    bands = find_bands(prepare, next(iter(points)), benchmark.scenes)
    guide = any(each.guide.response is not None for each in points.values())
    recipes, identities = make_recipes(given.reconstructors, bands, device, guide)
    knowledge = [NOMINAL] if settings.twin is None else settings.knowledge
    made, hashes, views = make_rows(recipes, identities, knowledge, settings.align, guide)
    swept = len(points) > 1
    cubes = (settings.cubes or settings.report or settings.figures) and not swept
    runner = Runner(
        prepare,
        made,
        hashes,
        RecordFolder(given.folder / "records", keep_cubes=cubes),
        settings=_environment(device),
        views=views,
        seed=settings.seed,
        points=POINTS if settings.figures and not swept else 0,
        uncertainty=settings.uncertainty,
        repeats=settings.repeats,
        explain=describe_failure,
    )
    return Made(device, benchmark, Plan(list(points), benchmark.scenes, list(made), swept), runner)


def _environment(device: torch.device) -> Json:
    from importlib.metadata import version

    versions = {name: version(name) for name in ("cassi", "torch")}
    return {"device": device.type, "threads": torch.get_num_threads(), **versions}


def _label(record: Record) -> str:
    return ", ".join(filter(None, (record.point, record.method, record.scene)))
