"""From the records of an evaluation to its files."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from cassi import ops
from cassi.apps.command import FAILED, choose_device
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


@dataclass(frozen=True)
class Results:
    """Writes tables, pictures and report.

    Attributes:
        methods: the reconstructors, each of which may have several rows; none of a multirun, whose
            rows alone are known.
    """

    settings: Evaluate
    root: Path
    benchmark: Benchmark
    plan: Plan
    records: RecordFolder
    device: torch.device
    methods: Sequence[str] = ()

    def finish_scene(self, scene: str) -> bytes | None:
        """Draw a scene and encode it for the report, if every method has a record of it."""
        found = self.plan.found(self.records, scene)
        if len(found) < len(self.plan.methods):
            return None
        return finish_scene(self.settings, self.root, self.records, found, self.benchmark.load)

    def finish(self) -> tuple[float, bool]:
        """Write all files, and say what failed.

        Returns:
            The mean PSNR of the first method, dB, NaN where unknown; and whether a scene failed.
        """
        settings, plan, root = self.settings, self.plan, self.root
        found = plan.found(self.records)
        described = _describe(settings) | self._preprocessed(found)
        rows = [replace(r, point="", method=row_name(r.method, r.point)) for r in found]
        names = [row_name(method, point) for point in plan.points for method in plan.methods]
        more: Json = {"preset": settings.preset, "settings": described}
        about = environment(self.device, ops.backend(self.device))
        print(write_results(root, rows, plan.scenes, names, environment=about, **more), end="")
        if settings.benchmark is not None and settings.twin is not None and self.methods:
            columns = {m: {c: row_name(m, k) for c, k in COLUMNS.items()} for m in self.methods}
            points = dict(zip(settings.benchmark.cases, plan.points, strict=True))
            protocol = asdict(settings.benchmark)
            print(write_benchmark(root, found, points, columns, protocol, **more), end="")
        if plan.swept and settings.figures:
            self._draw_cases(found)
        reported = not plan.swept and self._write_report()
        if not plan.swept and not settings.cubes:
            for record in found:
                self.records.cube(record.job).unlink(missing_ok=True)
        print(f"{len(found)} runs -> {root / 'results.md'}" if plan.swept else f"-> {root}")
        if reported:
            print(f"Open {root / 'report.html'} in a browser.")
        failed = [record for record in found if record.error]
        if failed:
            print(f"cassi-evaluate: {len(failed)} of {len(found)} runs failed", file=sys.stderr)
        first = [record for record in found if record.method == plan.methods[0]]
        scores = [record.metrics.get(f"psnr/{settings.preset}") for record in first]
        known = [value for value in scores if value is not None]
        return (sum(known) / len(known) if known else float("nan")), bool(failed)

    def _draw_cases(self, found: Sequence[Record]) -> None:
        plan, preset, number = self.plan, self.settings.preset, len(self.plan.scenes)
        levels: dict[str, dict[str, float | None]] = {}
        for point in plan.points:
            means = average([r for r in found if r.point == point], plan.methods)
            levels[point] = {name: row.get(f"psnr/{preset}") for name, row in means.items()}
        title = f"mean of {number} scene{'s' if number > 1 else ''}, {preset}"
        save_bars(self.root, "cases", levels, title)

    def _write_report(self) -> bool:
        """Draw what is not drawn yet, and write report.html where it is asked for."""
        encoded = {scene: self.finish_scene(scene) for scene in self.plan.scenes}
        drawn = {scene: item for scene, item in encoded.items() if item is not None}
        if not self.settings.report or not drawn:
            return False
        from cassi.viz.report import make_report
        from cassi.viz.sheet import write_bytes

        title = f"cassi-evaluate: {self.settings.data.name or 'scenes'}"
        wavelengths = self.benchmark.load(next(iter(drawn))).wavelengths
        page = make_report(
            list(drawn.values()), wavelengths, title=title, preset=self.settings.preset
        )
        write_bytes(self.root / "report.html", page)
        return True

    def _preprocessed(self, found: Sequence[Record]) -> Json:
        """Return what was done to the frames of measured scenes, by scene and step."""
        if self.benchmark.measurements is None:
            return {}
        scenes = dict.fromkeys(record.scene for record in found if not record.error)
        known = [scene for scene in scenes if scene in self.benchmark.files]
        return {"preprocessing": {s: self.benchmark.load(s).preprocessing for s in known}}


def _describe(settings: Evaluate) -> Json:
    """Return what decides the numbers, without where files lie and how many processes there are."""
    values: Json = {"system": settings.system, "noise": settings.noise, "seed": settings.seed}
    values |= {"threads": settings.threads, "reconstructors": settings.reconstructors}
    if settings.benchmark is not None:
        values["cases"] = settings.benchmark.cases
    if settings.mask is not None:  # in place of the data set's own
        drawn = isinstance(settings.mask, dict)
        values["mask"] = settings.mask if drawn else Path(str(settings.mask)).name
    if settings.twin is not None:
        values |= {"twin": asdict(settings.twin), "knowledge": settings.knowledge}
    if settings.guide.response is not None:
        values["guide"] = asdict(settings.guide)
    return values | {"data": settings.data.name}


class MergeJobs(Callback):
    """Writes into the folder of a multirun what a single run would have written.

    Jobs that differ in scenes and reconstructors alone make the table of all. Of others each is a
    case, whose rows say what differs.
    """

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Put the records of all jobs together."""
        root = Path(config.hydra.sweep.dir).resolve()
        jobs = sorted((path.parent for path in root.glob("*/records")), key=_number)
        sources = {job: RecordFolder(job / "records") for job in jobs}
        found = [(job, record) for job, source in sources.items() for record in source.all()]
        for leaving in (("scenes", "reconstructors"), ()):
            cases = _differences(jobs, leaving)
            names = {job: ", ".join(f"{k}={v}" for k, v in c.items()) for job, c in cases.items()}
            if len({(names[job], record.job) for job, record in found}) == len(found) > 0:
                break
        else:  # nothing is there, or nobody says what differs
            return
        swept = any(names.values())
        file = jobs[0] / ".hydra" / "config.yaml"
        if swept and file.is_file():  # the config of the multirun has no value of what differs
            config = cast(DictConfig, OmegaConf.load(file))
        mine = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
        settings = read_settings(mine, Evaluate, _options(jobs[0]))
        records = RecordFolder(root / "records", keep_cubes=settings.cubes and not swept)
        points = list(find_cases(settings))
        scenes = list(dict.fromkeys(record.scene for _, record in found))
        if swept:
            protocol = Protocol(name="multirun", cases={names[job]: cases[job] for job in jobs})
            settings = replace(settings, scenes=None, benchmark=protocol)
        benchmark = load_benchmark(settings)
        scenes.sort(key=[*benchmark.scenes, *scenes].index)
        if swept:
            named = [(", ".join(filter(None, (names[job], r.point))), r) for job, r in found]
            points = list(dict.fromkeys(point for point, _ in named))
            for point, record in named:
                records.write(replace(record, point=point))
        else:
            for job, record in found:
                records.copy(record, sources[job])
            settings = replace(settings, scenes=scenes)
            benchmark = load_benchmark(settings)
        methods = list(dict.fromkeys(record.method for _, record in found))
        plan = Plan(points, scenes, methods, swept)
        device = choose_device(settings.device)
        results = Results(settings, root, benchmark, plan, records, device)
        if results.finish()[1]:
            sys.exit(FAILED)


def _number(job: Path) -> tuple[int, str]:
    return len(job.name), job.name


def _options(job: Path) -> list[str]:
    file = job / ".hydra" / "overrides.yaml"
    return list(OmegaConf.load(file)) if file.is_file() else []


def _differences(jobs: Sequence[Path], leaving: Sequence[str] = ()) -> dict[Path, dict[str, str]]:
    """Return the options of each job, by name, in which jobs differ."""
    told = {job: [str(option).partition("=")[::2] for option in _options(job)] for job in jobs}
    common = set.intersection(*(set(options) for options in told.values()))
    return {
        job: {k: v for k, v in options if (k, v) not in common and k not in leaving}
        for job, options in told.items()
    }
