"""Do the jobs that are not done yet, and measure what each costs."""

from __future__ import annotations

import contextlib
import ctypes
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from torch import Tensor

from cassi import metrics
from cassi import uncertainty as error_bars
from cassi.data.store import fingerprint
from cassi.evaluation.problems import Problem
from cassi.evaluation.records import Job, Record, RecordFolder, Values
from cassi.metrics.measures import explain_infinite
from cassi.metrics.scores import evaluate_all
from cassi.pipeline.fit import Recipe, fit
from cassi.pipeline.judge import assess
from cassi.pipeline.reconstruct import reconstruct
from cassi.pipeline.snapshot import Result
from cassi.solvers.base import Iteration, Reconstructor

Prepare = Callable[[str, str], Problem]
"""(case of a benchmark, scene) → what every method starts from."""
View = Callable[[Problem], Problem]
"""What every method starts from → what one that knows more starts from."""


@dataclass
class Runner:
    """Does jobs and keeps a record of each.

    A job with a valid record is not repeated. A job that fails leaves a record with the reason.

    Attributes:
        prepare: makes the problem of a scene; that of the last one is kept.
        methods: what makes each for its camera, by name.
        identities: of each method, a hash of all that its results depend on.
        records: where records are read and written.
        settings: all other settings that results depend on; records of other settings are invalid.
        views: problems of methods, by name, that do not use the common one; their identities must
            differ too. The view of a scene is made once, for all methods that share it.
        seed: of torch's random numbers before each job.
        points: see `measure`.
        uncertainty: estimate error bars too, and score them where there is a truth.
        repeats: timed runs of each job; seconds are their median.
        explain: returns the reason of a failure in one line.
    """

    prepare: Prepare
    methods: Mapping[str, Recipe]
    identities: Mapping[str, str]
    records: RecordFolder
    settings: Mapping[str, object]
    views: Mapping[str, View] = field(default_factory=dict)
    seed: int = 0
    points: int = 0
    uncertainty: bool = False
    repeats: int = 1
    explain: Callable[[Exception], str] = str
    seen: dict[View, tuple[Problem, float] | Exception] = field(default_factory=dict)
    problem: tuple[str, str, Problem | Exception] | None = None
    flops: dict[tuple[str, type, tuple[int, ...]], int | None] = field(default_factory=dict)

    def run(self, job: Job) -> Record:
        """Return the record of a job, of an earlier run where that is valid."""
        method = self.methods[job.method]
        problem, key = self._problem(job), self.key(job)
        if isinstance(problem, Exception):
            return self.fail(job, problem)
        if self.records.is_done(job, key):
            found = self.records.read(job, key)
            if found is not None:
                return found
        try:
            problem, more = self._view(job, problem)
            snapshot, fitted = fit(problem.snapshot, method)
            return self._do(job, key, fitted, replace(problem, snapshot=snapshot), more)
        except Exception as error:
            return self.fail(job, error, key)

    def _do(
        self, job: Job, key: str, method: Reconstructor, problem: Problem, more: Values
    ) -> Record:
        camera = (job.method, type(problem.system), tuple(problem.y.shape))
        with torch.no_grad():
            if camera not in self.flops:
                self.flops[camera] = warm_up(method, problem)
            measured = measure(method, problem, self.points, self.repeats, self.seed)
            bars: Values = {}
            if self.uncertainty:
                bars, seconds = self._bars(measured, problem)
                more = more | {"uncertainty_seconds": seconds}
        timing: Values = {"seconds": measured.seconds}
        if self.repeats > 1:
            timing["least_seconds"] = measured.least
        record = Record(
            *job,
            key=key,
            metrics=score(measured, problem, job.scene) | bars,
            timing=timing | {"peak_memory_bytes": measured.peak_memory} | more,
            about={"parameters": _count(method), "flops": self.flops[camera]},
            curve=measured.curve,
        )
        self.records.write(record, measured.cube)
        return record

    def _bars(self, measured: Measured, problem: Problem) -> tuple[Values, float]:
        """Return how well error bars hold, and what it took to estimate them."""
        found = assess(measured.result, self.seed).uncertainty
        assert found is not None
        values: Values = {
            "std": float(found.std.double().mean()),
            "uncertainty_warnings": float(len(found.warnings)),
        }
        if problem.truth is not None:
            values |= error_bars.score(measured.cube, found.std[0].cpu(), problem.truth)
        return values, found.seconds

    def key(self, job: Job) -> str:
        """Return the hash of all that a job's result depends on; "" without a problem."""
        problem = self._problem(job)
        if isinstance(problem, Exception):
            return ""
        return fingerprint(
            {
                "settings": self.settings,
                "seed": self.seed,
                "problem": problem.digest,
                "method": self.identities[job.method],
                "curve": self.points > 0,
                **({"uncertainty": True} if self.uncertainty else {}),
                **({"repeats": self.repeats} if self.repeats > 1 else {}),
            }
        )

    def fail(self, job: Job, error: Exception, key: str = "") -> Record:
        """Keep a record of why a job has no result, and return it."""
        record = Record(*job, key=key, error=self.explain(error))
        self.records.write(record)
        return record

    def _view(self, job: Job, problem: Problem) -> tuple[Problem, Values]:
        """Return what the job's method starts from, and what it took to know that."""
        view = self.views.get(job.method)
        if view is None:
            return problem, {}
        if view not in self.seen:
            start = time.perf_counter()
            try:
                found = view(problem)
                self.seen[view] = found, time.perf_counter() - start
            except Exception as error:
                self.seen[view] = error
        known = self.seen[view]
        if isinstance(known, Exception):
            raise known
        return known[0], {"camera_seconds": known[1]}

    def _problem(self, job: Job) -> Problem | Exception:
        if self.problem is None or self.problem[:2] != (job.point, job.scene):
            found: Problem | Exception
            try:
                found = self.prepare(job.point, job.scene)
            except Exception as error:
                found = error
            self.problem = (job.point, job.scene, found)
            self.seen.clear()
        return self.problem[2]


def _count(method: Reconstructor) -> int | None:
    """Return the number of weights of a network."""
    network = method.network
    return None if network is None else sum(p.numel() for p in network.parameters())


@torch.no_grad()
def score(measured: Measured, problem: Problem, scene: str = "scene") -> Values:
    """Compute every metric of a result; a warning names a scene whose mean is infinite.

    `psnr/PRESET` and `ssim/PRESET` stand for every preset. The relative `residual` is that of the
    bands that the cube was computed on.
    """
    cube, solution = measured.cube, measured.result.solution
    values: Values = {}
    if problem.truth is not None:
        if (why := explain_infinite(cube, problem.truth)) is not None:
            warnings.warn(f"{scene}: {why}", stacklevel=2)
        for preset, scores in evaluate_all(cube, problem.truth).items():
            values |= {f"{name}/{preset}": scores[name] for name in ("psnr", "ssim")}
            values |= {n: value for n, value in scores.items() if n not in ("psnr", "ssim")}
    y, system = problem.y, problem.system
    bands = solution.along is None
    seen = system(cube[None].to(y.device, y.dtype)) if bands else solution.measured(system)
    misfit = (y - seen).double().norm()
    values["residual"] = (misfit / y.double().norm().clamp_min(1e-300)).item()
    return values


@dataclass(frozen=True)
class Measured:
    """A result, its cube `(C, H, W)` on the CPU and what it cost: median and least seconds."""

    result: Result
    cube: Tensor
    seconds: float
    peak_memory: int | None
    curve: list[tuple[float, float]]
    least: float


def warm_up(method: Reconstructor, problem: Problem) -> int | None:
    """Run once what the first run pays for: kernels, caches, allocations.

    A solver does one iteration; a network the whole cube, while its operations are counted. It
    recovers a grey scene, so that the count of a camera does not depend on the scene.

    Returns:
        Floating-point operations as `torch.utils.flop_counter` counts them, two per multiply-add;
        None for a solver, and for a network that cannot be counted.
    """
    system = problem.system
    if method.network is None:
        method.run(problem.y, system, callback=lambda *_: True)
        return None
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    counter.mod_tracker = cast(Any, _NoModules())
    grey = problem.y.new_full((1, *system.cube_shape), 0.5)
    try:
        with counter:
            method.run(system(grey), system)
        return int(counter.get_total_flops())
    except Exception:  # of the counter, or of a network that fails on this scene only
        method.run(problem.y, system)
        return None


class _NoModules(contextlib.nullcontext[None]):
    """In the place of torch's hooks in modules, which need gradients of what modules are given."""

    parents = ("Global",)


def measure(
    method: Reconstructor,
    problem: Problem,
    points: int = 0,
    repeats: int = 1,
    seed: int = 0,
) -> Measured:
    """Reconstruct, and measure time and memory.

    Seconds are wall-clock time between two points at which the device has nothing left to do, less
    what the curve took. The peak memory is, on a GPU, what torch allocated beyond what was there
    before; on a CPU the rise of this process's resident memory as Linux counts it, libraries and
    torch's caches included. Cube, memory and the curve of about so many `points` (seconds, PSNR)
    are those of the first of `repeats` runs.
    """
    device = problem.y.device
    curve = None
    if points and problem.truth is not None and method.network is None:
        curve = _Curve(problem.truth, method.iterations, max(1, method.iterations // points))
    memory = PeakMemory(device)
    _wait(device)
    start = time.perf_counter()
    result = reconstruct(problem.snapshot, method, seed, callback=curve)
    cube = result.solution.x.float()
    _wait(device)
    times = [time.perf_counter() - start - (curve.pause if curve else 0.0)]
    peak = memory.read()
    if tuple(cube.shape) != (1, *problem.system.cube_shape):
        raise ValueError(
            f"expected a cube of {(1, *problem.system.cube_shape)}, got {tuple(cube.shape)}"
        )
    if not bool(cube.isfinite().all()):
        raise ValueError("the cube is not finite; it diverged")
    for _ in range(repeats - 1):
        start = time.perf_counter()
        reconstruct(problem.snapshot, method, seed)
        _wait(device)
        times.append(time.perf_counter() - start)
    taken = [(at - start, value) for at, value in curve.points] if curve else []
    return Measured(result, cube[0].detach().cpu(), median(times), peak, taken, min(times))


@dataclass
class _Curve:
    """Takes the PSNR of some iterations of a run, and the time that it pauses the run for that."""

    truth: Tensor
    last: int
    stride: int
    pause: float = 0.0  # seconds
    points: list[tuple[float, float]] = field(default_factory=list)  # (clock less pause, dB)

    def __call__(self, statistics: Iteration, x: Tensor) -> None:
        if statistics.index % self.stride and statistics.index not in (1, self.last):
            return
        _wait(x.device)
        begin = time.perf_counter()
        value = metrics.psnr(x[0].float().cpu(), self.truth).item()
        self.points.append((begin - self.pause, value))
        self.pause += time.perf_counter() - begin


class PeakMemory:
    """The highest memory from now on, beyond what is in use now."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.before: int | None = torch.cuda.memory_allocated(device)
            return
        self.before = None
        # Else a run that reuses what an earlier one freed would seem to need nothing.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        with contextlib.suppress(OSError):  # no Linux, or not allowed
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak of the resident memory
            self.before = _status("VmRSS")

    def highest(self) -> int | None:
        """Return bytes, what was in use before included; None where the system does not tell."""
        if self.before is None:
            return None
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return _status("VmHWM")

    def read(self) -> int | None:
        """Return the rise in bytes, or None where the system does not tell."""
        highest = self.highest()
        return None if highest is None or self.before is None else max(highest - self.before, 0)


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status: no {name}")


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
