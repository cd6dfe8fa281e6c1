"""Run the jobs of an evaluation that have no record yet: measure time, memory and quality."""

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
from cassi.metrics.measures import explain_infinite_ergas
from cassi.metrics.scores import evaluate_all
from cassi.pipeline.fit import Recipe, fit
from cassi.pipeline.judge import assess
from cassi.pipeline.reconstruct import reconstruct
from cassi.pipeline.snapshot import Result
from cassi.solvers.base import Iteration, Reconstructor

Prepare = Callable[[str, str], Problem]
"""A function (case of a benchmark, scene) → problem."""
View = Callable[[Problem], Problem]
"""A function from the common problem to the problem of methods that know more of the camera."""


@dataclass
class Runner:
    """Run jobs and keep a record of each.

    A job with a valid record is not repeated. A job that fails leaves a record with the reason.

    Attributes:
        prepare: makes the problem of a scene. Only the last problem is kept, so jobs of one scene
            should come one after another.
        methods: name → recipe that makes the method for its camera.
        identities: name → hash of all that the results of the method depend on.
        records: the folder that records are read from and written to.
        settings: all other settings that results depend on; records of other settings are invalid.
        views: name → view of the problem, for methods that do not use the common problem. The
            identity of such a method must depend on its view. The view of a scene is made once, for
            all methods that share it.
        seed: seed of torch's random numbers before each job.
        points: points of the convergence curve, see `measure`.
        uncertainty: estimate error bars, too, and score them if there is a truth.
        repeats: timed runs of each job; seconds are their median.
        explain: returns the reason of a failure in one line.
        seen: views of the last scene; for each, the problem and its seconds, or the exception.
        problem: case and scene of the last job, with the problem or the exception.
        flops: operations of each method for each camera and shape of a measurement.
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
        """Return the record of a job. A valid record of an earlier run is not made again."""
        method = self.methods[job.method]
        problem, key = self._make_problem(job), self.key(job)
        if isinstance(problem, Exception):
            return self.fail(job, problem)
        if self.records.is_done(job, key):
            record = self.records.read(job, key)
            if record is not None:
                return record
        # An evaluation of many hours must go on when one job fails, for whatever reason.
        try:
            problem, view_timing = self._make_view(job, problem)
            snapshot, reconstructor = fit(problem.snapshot, method)
            problem = replace(problem, snapshot=snapshot)
            return self._run_job(job, key, reconstructor, problem, view_timing)
        except Exception as error:
            return self.fail(job, error, key)

    def _run_job(
        self, job: Job, key: str, method: Reconstructor, problem: Problem, view_timing: Values
    ) -> Record:
        """Reconstruct a problem and write the record of the job."""
        camera = (job.method, type(problem.system), tuple(problem.y.shape))
        with torch.no_grad():
            if camera not in self.flops:
                self.flops[camera] = warm_up(method, problem)
            outcome = measure(method, problem, self.points, self.repeats, self.seed)
            scores = score(outcome, problem, job.scene)
            timing: Values = {"seconds": outcome.seconds}
            if self.repeats > 1:
                timing["least_seconds"] = outcome.min_seconds
            timing |= {"peak_memory_bytes": outcome.peak_memory} | view_timing
            if self.uncertainty:
                bar_scores, timing["uncertainty_seconds"] = self._score_bars(outcome, problem)
                scores |= bar_scores
        record = Record(
            *job,
            key=key,
            metrics=scores,
            timing=timing,
            about={"parameters": _count_weights(method), "flops": self.flops[camera]},
            curve=outcome.curve,
        )
        self.records.write(record, outcome.cube)
        return record

    def _score_bars(self, outcome: TimedResult, problem: Problem) -> tuple[Values, float]:
        """Estimate error bars; return their scores, and the seconds of the estimation."""
        bars = assess(outcome.result, self.seed).uncertainty
        assert bars is not None
        values: Values = {
            "std": float(bars.std.double().mean()),
            "uncertainty_warnings": float(len(bars.warnings)),
        }
        if problem.truth is not None:
            values |= error_bars.score(outcome.cube, bars.std[0].cpu(), problem.truth)
        return values, bars.seconds

    def key(self, job: Job) -> str:
        """Return the hash of all that a job's result depends on; "" if the problem failed."""
        problem = self._make_problem(job)
        if isinstance(problem, Exception):
            return ""
        # Options that are off have no entry, so that records of earlier versions stay valid.
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
        """Write a record with the reason of a failure, and return it."""
        record = Record(*job, key=key, error=self.explain(error))
        self.records.write(record)
        return record

    def _make_view(self, job: Job, problem: Problem) -> tuple[Problem, Values]:
        """Return the problem of the job's method, and the seconds that its view took."""
        view = self.views.get(job.method)
        if view is None:
            return problem, {}
        if view not in self.seen:
            start = time.perf_counter()
            try:
                view_problem = view(problem)
                self.seen[view] = view_problem, time.perf_counter() - start
            except Exception as error:
                # The error is kept, so that other methods with this view fail at once with it.
                self.seen[view] = error
        outcome = self.seen[view]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome[0], {"camera_seconds": outcome[1]}

    def _make_problem(self, job: Job) -> Problem | Exception:
        """Return the problem of a job's scene, or the exception that its preparation raised."""
        if self.problem is None or self.problem[:2] != (job.point, job.scene):
            problem: Problem | Exception
            try:
                problem = self.prepare(job.point, job.scene)
            except Exception as error:
                problem = error
            self.problem = (job.point, job.scene, problem)
            self.seen.clear()
        return self.problem[2]


def _count_weights(method: Reconstructor) -> int | None:
    """Return the number of weights of a network; None for a method without one."""
    network = method.network
    return None if network is None else sum(p.numel() for p in network.parameters())


@torch.no_grad()
def score(outcome: TimedResult, problem: Problem, scene: str = "scene") -> Values:
    """Compute every metric of a result; warn, with the scene's name, of an infinite one.

    There is a `psnr/PRESET` and an `ssim/PRESET` for every preset. The `residual` is ‖y − Ax‖/‖y‖.
    For the residual, if the cube was computed on a spectral grid, x is the cube on this grid.
    """
    cube, solution = outcome.cube, outcome.result.solution
    values: Values = {}
    if problem.truth is not None:
        if (reason := explain_infinite_ergas(cube, problem.truth)) is not None:
            warnings.warn(f"{scene}: {reason}", stacklevel=2)
        for preset, scores in evaluate_all(cube, problem.truth).items():
            values |= {f"{name}/{preset}": scores[name] for name in ("psnr", "ssim")}
            values |= {n: value for n, value in scores.items() if n not in ("psnr", "ssim")}
    y, system = problem.y, problem.system
    if solution.along is None:
        prediction = system(cube[None].to(y.device, y.dtype))
    else:
        prediction = solution.measured(system)
    residual_norm = (y - prediction).double().norm()
    # The bound keeps a black measurement from giving 0/0.
    values["residual"] = (residual_norm / y.double().norm().clamp_min(1e-300)).item()
    return values


@dataclass(frozen=True)
class TimedResult:
    """A result, its cube `(C, H, W)` on the CPU, and its cost in time and memory."""

    result: Result
    cube: Tensor
    seconds: float  # median of the runs
    peak_memory: int | None  # bytes
    curve: list[tuple[float, float]]  # (seconds, PSNR in dB)
    min_seconds: float  # of the fastest run


def warm_up(method: Reconstructor, problem: Problem) -> int | None:
    """Run a method once before it is timed, so that compilation and allocations are not timed.

    A solver does one iteration. A network recovers a whole cube, and its operations are counted.
    The network gets a grey scene, so that the count does not depend on the scene of the problem.

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
    counter.mod_tracker = cast(Any, _NoModuleTracker())
    grey_cube = problem.y.new_full((1, *system.cube_shape), 0.5)
    # The counter may not know an operation, or a network may fail only on a grey scene. Then the
    # operations have no count, and the network still warms up.
    try:
        with counter:
            method.run(system(grey_cube), system)
        return int(counter.get_total_flops())
    except Exception:
        method.run(problem.y, system)
        return None


class _NoModuleTracker(contextlib.nullcontext[None]):
    """Replaces the tracker of torch's counter, which attributes operations to modules.

    Its hooks need the gradients of the modules' inputs, and a reconstruction computes none.
    """

    parents = ("Global",)


def measure(
    method: Reconstructor,
    problem: Problem,
    points: int = 0,
    repeats: int = 1,
    seed: int = 0,
) -> TimedResult:
    """Reconstruct, and measure time and memory.

    Seconds are wall-clock time without the time of computing the curve. The device has no work left
    when the clock starts and stops. The peak memory on a GPU is the largest rise of the memory that
    torch allocated. On a CPU it is the largest rise of the resident memory of this process, as
    Linux counts it, with libraries and torch's caches. Cube, memory and curve come from the first
    of `repeats` runs. The curve has about `points` pairs (seconds, PSNR in dB). A network has no
    curve.

    Raises:
        ValueError: if the cube has a wrong shape or is not finite.
    """
    device = problem.y.device
    curve = None
    if points and problem.truth is not None and method.network is None:
        curve = _Curve(problem.truth, method.iterations, max(1, method.iterations // points))
    memory = PeakMemory(device)
    _synchronize(device)
    start = time.perf_counter()
    result = reconstruct(problem.snapshot, method, seed, callback=curve)
    cube = result.solution.x.float()
    _synchronize(device)
    times = [time.perf_counter() - start - (curve.pause if curve else 0.0)]
    psnr_curve = [(clock - start, psnr) for clock, psnr in curve.points] if curve else []
    peak = memory.read()
    if tuple(cube.shape) != (1, *problem.system.cube_shape):
        raise ValueError(
            f"expected a cube of {(1, *problem.system.cube_shape)}, got {tuple(cube.shape)}"
        )
    if not bool(cube.isfinite().all()):
        raise ValueError("the cube is not finite; it diverged")
    # Further runs are for the time alone, so they compute no curve.
    for _ in range(repeats - 1):
        start = time.perf_counter()
        reconstruct(problem.snapshot, method, seed)
        _synchronize(device)
        times.append(time.perf_counter() - start)
    return TimedResult(result, cube[0].detach().cpu(), median(times), peak, psnr_curve, min(times))


@dataclass
class _Curve:
    """Callback that computes the PSNR of some iterations, and sums the time of doing so."""

    truth: Tensor
    last: int  # number of the last iteration
    stride: int
    pause: float = 0.0  # seconds
    # (clock time minus earlier pauses in seconds, PSNR in dB)
    points: list[tuple[float, float]] = field(default_factory=list)

    def __call__(self, statistics: Iteration, x: Tensor) -> None:
        if statistics.index % self.stride and statistics.index not in (1, self.last):
            return
        _synchronize(x.device)
        begin = time.perf_counter()
        value = metrics.psnr(x[0].float().cpu(), self.truth).item()
        self.points.append((begin - self.pause, value))
        self.pause += time.perf_counter() - begin


class PeakMemory:
    """The largest rise of the memory in use since this object was made."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.initial: int | None = torch.cuda.memory_allocated(device)
            return
        self.initial = None
        # glibc keeps freed memory, and a run that reuses this memory would seem to need none. So
        # the memory is returned to the system first.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        # Writing 5 resets the peak of the resident memory. Systems other than Linux have no such
        # file, and a container may forbid writing to it; there is no peak then.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
            self.initial = _read_memory_status("VmRSS")

    def highest(self) -> int | None:
        """Return the peak, bytes, including memory used before; None if it is not known."""
        if self.initial is None:
            return None
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return _read_memory_status("VmHWM")

    def read(self) -> int | None:
        """Return the rise up to the peak, bytes; None if it is not known."""
        highest = self.highest()
        return None if highest is None or self.initial is None else max(highest - self.initial, 0)


def _read_memory_status(name: str) -> int:
    """Return a value of /proc/self/status, converted from kilobytes to bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status: no {name}")


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
