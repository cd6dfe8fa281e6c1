"""The job of `cassi-evaluate`: compare reconstructors on scenes; write tables and a report."""

import functools
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from cassi import metrics
from cassi.apps.command import (
    EXIT_FAILURE,
    Run,
    choose_device,
    prepare_process,
    refuse_torchrun,
)
from cassi.apps.errors import describe_failure
from cassi.apps.evaluate.problems import (
    describe_repeated_points,
    find_bands,
    find_cases,
    load_benchmark,
    preparation,
)
from cassi.apps.evaluate.results import Plan, Results
from cassi.apps.evaluate.rows import (
    NOMINAL,
    make_recipes,
    make_rows,
    read_reconstructors,
)
from cassi.apps.executors import LostWorker, make_once, open_workers, run_jobs
from cassi.apps.folders import check_shares
from cassi.apps.printing import color_label, is_quiet
from cassi.apps.settings import Evaluate, Reconstruct
from cassi.checks import printable
from cassi.data.benchmarks import Benchmark
from cassi.data.formats.cells import Json
from cassi.evaluation import Job, Record, RecordFolder, Runner
from cassi.shares import find_share

MAX_CURVE_POINTS = 40
"""Largest number of points of a convergence curve.

Each point needs a PSNR. With 40 points the PSNRs take little time beside the iterations, and a plot
would not show more points.
"""


@dataclass(frozen=True)
class EvaluationInputs:
    """The plain data from which a process makes an `Evaluation`; it can be pickled."""

    settings: Evaluate
    folder: Path
    reconstructors: dict[str, Reconstruct]


@dataclass(frozen=True)
class Evaluation:
    """The scenes, cameras and methods that the jobs of an evaluation use."""

    device: torch.device
    benchmark: Benchmark
    plan: Plan
    runner: Runner


def evaluate(settings: Evaluate, run: Run) -> float:
    """Evaluate what the settings name and write the results.

    Returns:
        The mean PSNR of the first reconstructor, dB, for sweeps.
    """
    refuse_torchrun()
    metrics.get_preset(settings.preset)
    prepare_process(settings)
    share = find_share("1/1" if run.is_multirun else settings.share)
    check_shares(run.folder, share)
    inputs = EvaluationInputs(settings, run.folder, read_reconstructors(settings))
    with open_workers(settings) as workers:
        evaluation = make_once(make_evaluation, inputs)
        plan, records = evaluation.plan, evaluation.runner.records
        if plan.is_sweep:
            for line in describe_repeated_points(
                evaluation.runner.prepare, plan.points, plan.scenes[0]
            ):
                print(f"{color_label('warning')} {printable(line)}", file=sys.stderr)
        results = Results(
            settings,
            run.folder,
            evaluation.benchmark,
            plan,
            records,
            evaluation.device,
            methods=list(inputs.reconstructors),
        )
        jobs = share.take(plan.jobs())
        bar = tqdm(total=len(jobs), unit="run", disable=not settings.progress or is_quiet())
        n_finished: Counter[str] = Counter()
        with bar:
            for job, job_result in run_jobs(workers, functools.partial(evaluate_job, inputs), jobs):
                if isinstance(job_result, LostWorker):
                    record = evaluation.runner.fail(job, job_result)
                else:
                    record = job_result
                bar.set_postfix_str(_label(record), refresh=False)
                bar.update()
                n_finished[record.scene] += 1
                if record.error:
                    message = f"{_label(record)} failed: {record.error}"
                    bar.write(printable(message), file=sys.stderr)
                # A scene is drawn when its last method is finished, so that the user of a long
                # evaluation can look at pictures before its end.
                if n_finished[record.scene] == len(plan.methods) and not plan.is_sweep:
                    results.finish_scene(record.scene)
    # If the jobs are not shared, this command has done all of them. If they are, some may remain.
    # The folder may also have records of other settings; the key of a job tells which ones count.
    all_jobs = plan.jobs() if share.count > 1 else ()
    n_remaining = sum(records.read(job, evaluation.runner.key(job)) is None for job in all_jobs)
    if n_remaining:
        print(f"{n_remaining} runs are left to other shares; the last one writes the tables")
        return float("nan")
    score, has_failures = results.finish()
    # A job of a multirun must not end the others; MergeJobs ends the command.
    if has_failures and not run.is_multirun:
        sys.exit(EXIT_FAILURE)
    return score


def evaluate_job(inputs: EvaluationInputs, job: Job) -> Record:
    """Run a method on a scene, write its record and return it; this is a job."""
    return make_once(make_evaluation, inputs).runner.run(job)


def make_evaluation(inputs: EvaluationInputs) -> Evaluation:
    """Make the scenes, cameras and methods, once in each process that does jobs."""
    settings = inputs.settings
    device = choose_device(settings.device)
    benchmark = load_benchmark(settings)
    points = find_cases(settings)
    prepare = preparation(points, benchmark, device)
    bands = find_bands(prepare, next(iter(points)), benchmark.scenes)
    has_guide = any(point_settings.guide.response is not None for point_settings in points.values())
    recipes, identities = make_recipes(inputs.reconstructors, bands, device, has_guide)
    knowledge = [NOMINAL] if settings.twin is None else settings.knowledge
    rows, hashes, views = make_rows(recipes, identities, knowledge, settings.align, has_guide)
    is_sweep = len(points) > 1
    # Report and figures are drawn from the cubes, which `Results.finish` removes afterwards.
    keeps_cubes = (settings.cubes or settings.report or settings.figures) and not is_sweep
    runner = Runner(
        prepare,
        rows,
        hashes,
        RecordFolder(inputs.folder / "records", keep_cubes=keeps_cubes),
        settings=_environment(device),
        views=views,
        seed=settings.seed,
        points=MAX_CURVE_POINTS if settings.figures and not is_sweep else 0,
        uncertainty=settings.uncertainty,
        repeats=settings.repeats,
        explain=describe_failure,
    )
    plan = Plan(list(points), benchmark.scenes, list(rows), is_sweep)
    return Evaluation(device, benchmark, plan, runner)


def _environment(device: torch.device) -> Json:
    from importlib.metadata import version

    versions = {name: version(name) for name in ("cassi", "torch")}
    return {"device": device.type, "threads": torch.get_num_threads(), **versions}


def _label(record: Record) -> str:
    return ", ".join(filter(None, (record.point, record.method, record.scene)))
