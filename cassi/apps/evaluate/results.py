"""Write the tables, pictures and report of an evaluation from its records."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from cassi import ops
from cassi.apps.command import EXIT_FAILURE, choose_device
from cassi.apps.evaluate.pictures import finish_scene
from cassi.apps.evaluate.problems import find_cases, load_benchmark
from cassi.apps.evaluate.rows import row_name
from cassi.apps.results import environment
from cassi.apps.settings import Evaluate, Protocol, read_settings
from cassi.data.benchmarks import Benchmark
from cassi.data.formats.cells import Json
from cassi.evaluation import Job, Record, RecordFolder, write_results
from cassi.evaluation.protocols import COLUMNS, write_benchmark
from cassi.evaluation.tables import average
from cassi.viz.figures import save_bars


@dataclass(frozen=True)
class Plan:
    """The points, scenes and methods of an evaluation, in the order of the tables.

    A point is a case of a benchmark, or a job of a multirun. Without cases there is one point,
    named "".
    """

    points: Sequence[str]
    scenes: Sequence[str]
    methods: Sequence[str]
    is_sweep: bool = False

    def jobs(self) -> list[Job]:
        """Return every job. The jobs of a scene follow each other, so the scene is read once."""
        return [Job(p, s, m) for p in self.points for s in self.scenes for m in self.methods]

    def read_records(self, records: RecordFolder, scene: str | None = None) -> list[Record]:
        """Return the records that exist, of one scene or of all."""
        jobs = [job for job in self.jobs() if scene in (None, job.scene)]
        records_or_none = [records.read(job) for job in jobs]
        return [record for record in records_or_none if record is not None]


@dataclass(frozen=True)
class Results:
    """Writes tables, pictures and report.

    Attributes:
        settings: settings of the command.
        root: folder of the results.
        benchmark: the data set.
        plan: points, scenes and methods of the tables.
        records: the folder of the records.
        device: the device of the runs, which the tables name.
        methods: names of the reconstructors. Each may have several rows in the tables. The names
            are empty for a multirun, whose records only have the names of rows.
    """

    settings: Evaluate
    root: Path
    benchmark: Benchmark
    plan: Plan
    records: RecordFolder
    device: torch.device
    methods: Sequence[str] = ()

    def finish_scene(self, scene: str) -> bytes | None:
        """Draw a scene, and encode it for the report; return None before every method has run."""
        scene_records = self.plan.read_records(self.records, scene)
        # Pictures compare all methods, so a scene waits for the last one.
        if len(scene_records) < len(self.plan.methods):
            return None
        return finish_scene(
            self.settings, self.root, self.records, scene_records, self.benchmark.load
        )

    def finish(self) -> tuple[float, bool]:
        """Write all files and print how many runs failed.

        Returns:
            The mean PSNR of the first method, dB (NaN without a truth), and whether a run failed.
        """
        settings, plan, root = self.settings, self.plan, self.root
        records = plan.read_records(self.records)
        result_settings = _describe_settings(settings) | self._collect_corrections(records)
        rows = [replace(r, point="", method=row_name(r.method, r.point)) for r in records]
        names = [row_name(method, point) for point in plan.points for method in plan.methods]
        table = write_results(
            root,
            rows,
            plan.scenes,
            names,
            preset=settings.preset,
            settings=result_settings,
            environment=environment(self.device, ops.backend(self.device)),
        )
        print(table, end="")
        if settings.benchmark is not None and settings.twin is not None and self.methods:
            columns = {m: {c: row_name(m, k) for c, k in COLUMNS.items()} for m in self.methods}
            points = dict(zip(settings.benchmark.cases, plan.points, strict=True))
            protocol = asdict(settings.benchmark)
            table = write_benchmark(
                root,
                records,
                points,
                columns,
                protocol,
                preset=settings.preset,
                settings=result_settings,
            )
            print(table, end="")
        if plan.is_sweep and settings.figures:
            self._draw_cases(records)
        has_report = not plan.is_sweep and self._write_report()
        # The cubes were written for pictures and report, which are finished now.
        if not plan.is_sweep and not settings.cubes:
            for record in records:
                self.records.cube(record.job).unlink(missing_ok=True)
        print(f"{len(records)} runs -> {root / 'results.md'}" if plan.is_sweep else f"-> {root}")
        if has_report:
            print(f"Open {root / 'report.html'} in a browser.")
        failed_records = [record for record in records if record.error]
        if failed_records:
            message = f"cassi-evaluate: {len(failed_records)} of {len(records)} runs failed"
            print(message, file=sys.stderr)
        first_records = [record for record in records if record.method == plan.methods[0]]
        scores = [record.metrics.get(f"psnr/{settings.preset}") for record in first_records]
        defined_scores = [value for value in scores if value is not None]
        mean = sum(defined_scores) / len(defined_scores) if defined_scores else float("nan")
        return mean, bool(failed_records)

    def _draw_cases(self, records: Sequence[Record]) -> None:
        plan, preset, n_scenes = self.plan, self.settings.preset, len(self.plan.scenes)
        levels: dict[str, dict[str, float | None]] = {}
        for point in plan.points:
            means = average([record for record in records if record.point == point], plan.methods)
            levels[point] = {name: row.get(f"psnr/{preset}") for name, row in means.items()}
        title = f"mean of {n_scenes} scene{'s' if n_scenes > 1 else ''}, {preset}"
        save_bars(self.root, "cases", levels, title)

    def _write_report(self) -> bool:
        """Draw the scenes that are not drawn yet; write report.html if the settings want it."""
        code_by_scene = {scene: self.finish_scene(scene) for scene in self.plan.scenes}
        drawn_scenes = {scene: item for scene, item in code_by_scene.items() if item is not None}
        if not self.settings.report or not drawn_scenes:
            return False
        from cassi.viz.report import make_report
        from cassi.viz.sheet import write_bytes

        title = f"cassi-evaluate: {self.settings.data.name or 'scenes'}"
        wavelengths = self.benchmark.load(next(iter(drawn_scenes))).wavelengths
        page = make_report(
            list(drawn_scenes.values()), wavelengths, title=title, preset=self.settings.preset
        )
        write_bytes(self.root / "report.html", page)
        return True

    def _collect_corrections(self, records: Sequence[Record]) -> Json:
        """Return the corrections of the frames of measured scenes, by scene and step."""
        if self.benchmark.measurements is None:
            return {}
        scenes = dict.fromkeys(record.scene for record in records if not record.error)
        frame_scenes = [scene for scene in scenes if scene in self.benchmark.files]
        steps = {scene: self.benchmark.load(scene).preprocessing for scene in frame_scenes}
        return {"preprocessing": steps}


def _describe_settings(settings: Evaluate) -> Json:
    """Return the settings that the numbers depend on, without paths and numbers of processes."""
    values: Json = {"system": settings.system, "noise": settings.noise, "seed": settings.seed}
    values |= {"threads": settings.threads, "reconstructors": settings.reconstructors}
    if settings.benchmark is not None:
        values["cases"] = settings.benchmark.cases
    if settings.mask is not None:  # in place of the data set's own
        is_mask_drawn = isinstance(settings.mask, dict)
        values["mask"] = settings.mask if is_mask_drawn else Path(str(settings.mask)).name
    if settings.twin is not None:
        values |= {"twin": asdict(settings.twin), "knowledge": settings.knowledge}
    if settings.guide.response is not None:
        values["guide"] = asdict(settings.guide)
    return values | {"data": settings.data.name}


class MergeJobs(Callback):
    """Writes into the folder of a multirun what a single run would have written.

    If the jobs differ only in scenes and reconstructors, their records make one table. Otherwise
    each job is a case, and the names of its rows contain the options in which the jobs differ.
    """

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Put the records of all jobs together."""
        root = Path(config.hydra.sweep.dir).resolve()
        jobs = sorted((path.parent for path in root.glob("*/records")), key=_sort_key)
        sources = {job: RecordFolder(job / "records") for job in jobs}
        job_records = [
            (job, record) for job, source in sources.items() for record in source.read_all()
        ]
        # First try one table. If two jobs then have a record of the same scene and method, the jobs
        # differ in another option, and each job becomes a case.
        for ignored_options in (("scenes", "reconstructors"), ()):
            cases = _find_differences(jobs, ignored_options)
            names = {job: ", ".join(f"{k}={v}" for k, v in c.items()) for job, c in cases.items()}
            row_names = {(names[job], record.job) for job, record in job_records}
            if job_records and len(row_names) == len(job_records):
                break
        else:
            # There are no records, or two jobs with equal options have records of the same name.
            return
        is_sweep = any(names.values())
        file = jobs[0] / ".hydra" / "config.yaml"
        # The options in which jobs differ have no value in the config of the multirun.
        if is_sweep and file.is_file():
            config = cast(DictConfig, OmegaConf.load(file))
        own_config = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
        settings = read_settings(own_config, Evaluate, _read_options(jobs[0]))
        records = RecordFolder(root / "records", keep_cubes=settings.cubes and not is_sweep)
        points = list(find_cases(settings))
        scenes = list(dict.fromkeys(record.scene for _, record in job_records))
        if is_sweep:
            protocol = Protocol(name="multirun", cases={names[job]: cases[job] for job in jobs})
            settings = replace(settings, scenes=None, benchmark=protocol)
        benchmark = load_benchmark(settings)
        # The tables have the order of the data set, as jobs may have finished in any order.
        scenes.sort(key=[*benchmark.scenes, *scenes].index)
        if is_sweep:
            point_records = [
                (", ".join(filter(None, (names[job], record.point))), record)
                for job, record in job_records
            ]
            points = list(dict.fromkeys(point for point, _ in point_records))
            for point, record in point_records:
                records.write(replace(record, point=point))
        else:
            for job, record in job_records:
                records.copy(record, sources[job])
            settings = replace(settings, scenes=scenes)
            benchmark = load_benchmark(settings)
        methods = list(dict.fromkeys(record.method for _, record in job_records))
        plan = Plan(points, scenes, methods, is_sweep)
        device = choose_device(settings.device)
        results = Results(settings, root, benchmark, plan, records, device)
        if results.finish()[1]:
            sys.exit(EXIT_FAILURE)


def _sort_key(job: Path) -> tuple[int, str]:
    # The names of the folders are numbers: 10 comes after 9, although "10" sorts before "9".
    return len(job.name), job.name


def _read_options(job: Path) -> list[str]:
    file = job / ".hydra" / "overrides.yaml"
    return list(OmegaConf.load(file)) if file.is_file() else []


def _find_differences(
    jobs: Sequence[Path], ignored_options: Sequence[str] = ()
) -> dict[Path, dict[str, str]]:
    """Return the options of each job, by name, in which jobs differ."""
    options_by_job = {
        job: [str(option).partition("=")[::2] for option in _read_options(job)] for job in jobs
    }
    common = set.intersection(*(set(options) for options in options_by_job.values()))
    return {
        job: {
            key: value
            for key, value in options
            if (key, value) not in common and key not in ignored_options
        }
        for job, options in options_by_job.items()
    }
