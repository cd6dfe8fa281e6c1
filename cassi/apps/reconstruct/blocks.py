"""cassi-reconstruct with a memory budget: a scene block by block, never whole in memory."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from cassi.apps.executors import LostWorker, Submit, once, run_jobs
from cassi.apps.memory import peak_of
from cassi.apps.printing import is_quiet
from cassi.apps.reconstruct.journal import Journal, Record, place
from cassi.apps.reconstruct.scene import finish, take_truth
from cassi.apps.reconstructors import fingerprint_settings
from cassi.apps.settings import UNCERTAINTY, Output, Reconstruct
from cassi.apps.snapshot import fit, make_recipe, read
from cassi.checks import whole_number
from cassi.data.atomic import digest_content
from cassi.data.formats.cells import Json
from cassi.data.formats.stacks import STACK_SUFFIXES, Stack, create_stack
from cassi.pipeline.find import on_grid
from cassi.pipeline.snapshot import Snapshot
from cassi.solvers import Iteration, Statistics
from cassi.solvers.base import Reconstructor
from cassi.solvers.heldout import brightest
from cassi.solvers.linear_system import seen
from cassi.systems import System
from cassi.systems.grid import measuring
from cassi.uncertainty import estimate
from cassi.uncertainty.bootstrap import Probe, Trial, bootstrap
from cassi.uncertainty.mask_shift import MaskShift

_READ = 64  # rows at a time, for what is estimated from the whole measurement; a multiple of 16
_PROBED = 96  # rows of which error bars ask what they must know of the whole scene
_ESTIMATES = ("level", "noise", "gain")  # of the whole scene, for every block
_PROBE = 32  # rows of the strip on which memory is measured


def reconstruct_in_blocks(
    settings: Reconstruct, folder: Path, submit: Submit | None = None
) -> float:
    """Reconstruct what settings name within `memory_budget`, and write the results.

    Args:
        settings: of one scene.
        folder: of the results.
        submit: has blocks computed in other processes, each within the budget; None: this one.

    Returns:
        The relative residual.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: budget, halo, camera or format do not fit.
    """
    budget, output = parse_size(settings.memory_budget), settings.output
    _check_output(output)
    key = fingerprint_settings(settings, on="cube")
    names = [output.cube, *([UNCERTAINTY] if settings.uncertainty else [])]
    settings, truth = take_truth(settings)
    scene = once(load_scene, settings)
    snapshot, parts, reconstructor = scene.snapshot, scene.parts, scene.reconstructor
    for note in snapshot.notes:
        print(note)
    halo = reconstructor.halo if settings.halo is None else settings.halo
    halo = whole_number("halo", halo, 0, 2**31)

    known = snapshot.camera.wavelengths
    fingerprint = parts.fingerprint(f"{key} {names} {known} {parts.system}")
    journal = Journal(folder, output.cube, fingerprint)
    with journal.locked():
        plan = journal.plan(names)
        if plan is None:
            plan, stacks = _begin(settings, scene, journal, names, halo, budget)
        else:
            stacks = [journal.reopen(name, parts.system.cube_shape) for name in names]
        records = _compute_blocks(settings, scene, journal, plan, stacks, submit)
        residual = finish(settings, folder, snapshot, stacks, records, plan, truth, reconstructor)
        journal.remove()
    return residual


def _check_output(output: Output) -> None:
    """Refuse results that cannot be written block by block."""
    if Path(output.cube).suffix.lower() not in STACK_SUFFIXES:
        allowed = " ".join(STACK_SUFFIXES)
        raise ValueError(f"output.cube: with memory_budget expected {allowed}, got {output.cube}")
    if output.bands != "wavelengths":
        raise ValueError("output.bands: expected wavelengths with memory_budget; leave it out")
    if output.wavelengths is not None:
        raise ValueError("output.wavelengths: expected null with memory_budget; leave it out")


@dataclass(frozen=True)
class Scene:
    """What every block of a scene is cut from, and what reconstructs it."""

    snapshot: Snapshot
    parts: Parts
    reconstructor: Reconstructor


def load_scene(settings: Reconstruct) -> Scene:
    """Read what settings name, once in a process.

    Raises:
        OSError: a file cannot be read.
        ValueError: files, camera and reconstructor do not fit.
    """
    recipe = make_recipe(settings)
    snapshot, reconstructor = fit(on_grid(read(settings, recipe)), recipe)
    return Scene(snapshot, Parts(snapshot, reconstructor), reconstructor)


def _begin(
    settings: Reconstruct, scene: Scene, journal: Journal, names: list[str], halo: int, budget: int
) -> tuple[Json, list[Stack]]:
    """Plan the blocks of a new run, and make the files that they are written into."""
    torch.manual_seed(settings.seed)
    clock = _Clock()
    parts, reconstructor = scene.parts, scene.reconstructor
    per_line = parts.bytes_per_line(reconstructor, settings.uncertainty)
    lines = lines_that_fit(budget, parts.y, per_line)
    blocks = [asdict(block) for block in plan_blocks(parts.length, lines, halo)]
    journal.clear()
    shape, wavelengths = parts.system.cube_shape, scene.snapshot.camera.wavelengths
    stacks = [create_stack(journal.folder / name, shape, wavelengths) for name in names]
    probe = asdict(parts.probe(reconstructor, lines)) if settings.uncertainty else None
    plan = {"blocks": blocks, "halo": halo, "probe": probe, "preparation": clock.read()}
    return journal.begin(plan), stacks


def _compute_blocks(
    settings: Reconstruct,
    scene: Scene,
    journal: Journal,
    plan: Json,
    stacks: Sequence[Stack],
    submit: Submit | None,
) -> list[Record]:
    """Compute and write the blocks of a plan that are not finished; return all records."""
    parts, iterations = scene.parts, scene.reconstructor.iterations
    blocks = [Block(**block) for block in plan["blocks"]]
    records = journal.records(stacks, parts.axis, len(blocks))
    probed = None if plan["probe"] is None else read_probe(plan["probe"])
    done = f", {len(records)} finished already" if records else ""
    rows = f"{len(blocks)} of about {blocks[0].stop} rows"
    print(f"blocks: {rows}, halo {plan['halo']}{done}", flush=True)
    total, begun = len(blocks) * iterations, len(records) * iterations
    hidden = not settings.output.progress or is_quiet()
    with tqdm(total=total, initial=begun, unit="it", disable=hidden) as bar:

        def follow(*_: Any) -> None:  # what tqdm returns would stop the solver
            bar.update()

        found = parts.statistics.estimate(*_ESTIMATES).items()
        estimates = {name: value.cpu() for name, value in found}
        job = partial(compute_block, settings, tuple(blocks), probed, estimates)
        here, left = submit is None, range(len(records), len(blocks))
        job = partial(job, callback=follow) if here else job
        for index, solved in _in_order(run_jobs(submit, job, left), left.start):
            bar.set_postfix_str(f"block {index + 1}/{len(blocks)}")
            bar.update(0 if here else iterations)
            tail = journal.tail(index - 1) if index else None
            record, part, rest = join_block(parts, blocks, index, plan["halo"] // 4, tail, solved)
            del solved
            for stack, values in zip(stacks, np.split(part, len(stacks)), strict=True):
                stack.write(values, *place(parts.axis, *record["lines"]))
            records.append(journal.add(record, part, rest))
            del part
    return records


def compute_block(
    settings: Reconstruct,
    blocks: Sequence[Block],
    probed: Probe | None,
    estimates: Mapping[str, Tensor],
    index: int,
    callback: Callable[..., Any] | None = None,
) -> Solved:
    """Reconstruct one block of what settings name: a job. See `solve_block`.

    `estimates` are those of the whole scene, by name: found once for all processes.
    """
    scene = once(load_scene, settings)
    scene.parts.statistics.take(estimates)
    torch.manual_seed(settings.seed)
    told = (scene.parts, scene.reconstructor, blocks, index, callback, probed, settings.seed)
    return solve_block(*told)


def _in_order(
    found: Iterator[tuple[int, Solved | LostWorker]], following: int
) -> Iterator[tuple[int, Solved]]:
    """Yield blocks in their order; those that are ready early wait."""
    waiting: dict[int, Solved] = {}
    for index, solved in found:
        if isinstance(solved, LostWorker):
            raise solved
        waiting[index] = solved
        del solved
        while following in waiting:
            yield following, waiting.pop(following)
            following += 1


class Parts:
    """Cuts a measurement and its camera into parts that know of the whole.

    Raises:
        ValueError: the camera mixes rows and columns.
    """

    def __init__(self, snapshot: Snapshot, reconstructor: Reconstructor | None = None) -> None:
        self.reconstructor = reconstructor
        self.snapshot, self.system, self.y = snapshot, snapshot.camera.system, snapshot.y
        if self.system.part_axis is None:
            self.system.part(0, 1)  # refuses, and says why
        self.axis: int = -2 if self.system.part_axis is None else self.system.part_axis
        self.length = self.system.cube_shape[self.axis]
        self.statistics = Statistics(self._all, self.axis)

    @property
    def wide(self) -> bool:
        """Whether light is wider than the camera's bands: a sensor's frame of all light."""
        return self.snapshot.is_raw

    def part(self, start: int, stop: int) -> tuple[Tensor, System]:
        """Return the measurement of lines start to stop, and their camera."""
        y = self.y.narrow(self.axis, start, stop - start).contiguous()
        return y, self.system.part(start, stop)

    def misfit(self, x: Tensor, start: int) -> float:
        """Return ‖y − Ax‖² of the lines of a cube `(C, H', W')` that begin at start."""
        y, camera = self.part(start, start + x.shape[self.axis])
        camera = measuring(camera, self.reconstructor)
        return float((y - camera(x[None])).double().square().sum())

    def probe(self, reconstructor: Reconstructor, lines: int) -> Probe:
        """Ask the brightest lines what error bars must know of the whole scene."""
        y, camera = brightest(seen(self.y, self.system), self.system, min(lines, _PROBED))
        found = reconstructor.run(y, camera, statistics=self.statistics).checked()
        told = {"wide": self.wide, "along": found.along}
        trial = Trial(y, camera, reconstructor, self.statistics, **told)  # type: ignore[arg-type]
        return bootstrap(trial, found.x).probed

    def bytes_per_line(self, reconstructor: Reconstructor, uncertainty: bool = False) -> float:
        """Measure the memory of a strip, whose working set grows with its lines."""
        self.statistics.estimate(*_ESTIMATES)  # now: of the scene, not of the strip
        lines = min(_PROBE, self.length)
        y, camera = self.part(0, lines)

        def run() -> None:
            x = reconstructor.run(y, camera, statistics=self.statistics).x
            if uncertainty:
                nothing = Probe(0.0, 0.0)
                told = {"probed": nothing, "statistics": self.statistics}
                estimate(y, camera, reconstructor, x, **told)  # type: ignore[arg-type]

        return peak_of(run) / lines

    def fingerprint(self, settings: str) -> str:
        """Return what tells this reconstruction from any other: of settings and content."""
        values = (self.y, *self.system.state_dict().values())
        content = (v.detach().cpu().contiguous().numpy().data for v in values)
        return digest_content([settings, *content])

    def _all(self) -> Any:
        for start in range(0, self.length, _READ):
            stop = min(start + _READ, self.length)
            with torch.no_grad():
                yield self.y.narrow(self.axis, start, stop - start), self.system.part(start, stop)


@dataclass(frozen=True)
class Solved:
    """A block with its halo.

    Attributes:
        x: `(C, H', W')`, or `(2C, H', W')` with the standard deviations behind the cube.
        record: numbers of the block.
    """

    x: np.ndarray
    record: Record


def solve_block(
    scene: Parts,
    reconstructor: Reconstructor,
    blocks: Sequence[Block],
    index: int,
    callback: Callable[..., Any] | None,
    probed: Probe | None = None,
    seed: int = 0,
) -> Solved:
    """Reconstruct one block.

    Args:
        scene: the measurement and its camera.
        reconstructor: a solver or a network.
        blocks: all of them.
        index: of this one.
        callback: of the reconstructor.
        probed: of the whole scene, where standard deviations are asked for.
        seed: of what is drawn for them.

    Raises:
        ValueError: nothing finite comes out.
    """
    block = blocks[index]
    clock = _Clock()
    y, camera = scene.part(block.first, block.last)
    solution = reconstructor.run(y, camera, callback=callback, statistics=scene.statistics)
    solution.checked()
    x, more = solution.x[0], {}
    if probed is not None:
        told = {"probed": probed, "statistics": scene.statistics, "seed": seed, "wide": scene.wide}
        told["along"] = solution.along
        found = estimate(y, camera, reconstructor, solution.x, **told)  # type: ignore[arg-type]
        x = torch.cat((x, found.std[0]))
        more = {"uncertainty": {"sources": found.sources, "warnings": list(found.warnings)}}
    record = {
        "reason": solution.reason,
        **clock.read(),
        **more,
        "history": [_row(index, step) for step in solution.history],
    }
    return Solved(x.cpu().numpy(), record)


def join_block(
    scene: Parts,
    blocks: Sequence[Block],
    index: int,
    blend: int,
    tail: np.ndarray | None,
    solved: Solved,
) -> tuple[Record, np.ndarray, np.ndarray | None]:
    """Blend one block with the one before.

    Args:
        scene: the measurement and its camera.
        blocks: all of them.
        index: of this one.
        blend: rows before and after a seam over which two blocks fade into each other.
        tail: what the block before returned for that.
        solved: the block; its values are changed.

    Returns:
        Numbers of the block; its own values; what the next block is blended with, None after the
        last.
    """
    block, last = blocks[index], index == len(blocks) - 1
    x = torch.from_numpy(solved.x)
    start = block.start if index == 0 else block.start - blend
    stop = block.stop if last else block.stop - blend
    rest = None
    if not last:
        beyond = x.narrow(scene.axis, stop - block.first, 2 * blend)
        rest = np.ascontiguousarray(beyond.numpy())
    own = x.narrow(scene.axis, start - block.first, stop - start)
    if tail is not None and blend:
        seam = own.narrow(scene.axis, 0, 2 * blend)
        weight = _weights(2 * blend, seam).unsqueeze(-1 if scene.axis == -2 else 0)
        seam.copy_(torch.lerp(torch.from_numpy(tail).to(seam), seam, weight))
    record = {
        "block": index,
        "lines": [start, stop],
        "misfit": scene.misfit(own[: scene.system.cube_shape[0]].to(scene.y.device), start),
        **solved.record,
    }
    return record, own.numpy(), rest


def read_probe(values: Json) -> Probe:
    """Return what a plan says that the brightest lines said."""
    moved = values["mask_shift"]
    return Probe(**values | {"mask_shift": MaskShift(**moved | {"shift": tuple(moved["shift"])})})


class _Clock:
    """Seconds of the clock and of the processor since it was made."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """Return both."""
        wall, cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        return {"seconds": wall, "cpu_seconds": cpu}


def _weights(count: int, like: Tensor) -> Tensor:
    """A smooth rise from 0 to 1, which its mirror image completes to 1."""
    at = (torch.arange(count, device=like.device, dtype=like.dtype) + 0.5) / count
    return 0.5 - 0.5 * torch.cos(torch.pi * at)


def _row(index: int, step: Iteration) -> Json:
    found = {"residual": step.residual, "seconds": step.seconds, "change": step.change}
    return {"block": index + 1, "iteration": step.index, **found, "sigma": step.sigma}


_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_UNITS |= {f"{unit}iB": 2 ** (10 * (k + 1)) for k, unit in enumerate("KMGT")}
_UNITS |= {f"{unit}B": 10 ** (3 * (k + 1)) for k, unit in enumerate("kMGT")}
_PROCESS = 384 * 2**20  # what Python, torch and the libraries take themselves
_IMAGES = 8  # of the measurement's size: itself, mask, gram, what is estimated from it
_GRID = 16  # blocks begin where networks, which work on coarser grids, also have a whole pixel
_MARGIN = 1.1  # scratch memory within operations, and pages half used


@dataclass(frozen=True)
class Block:
    """Rows of a scene, or columns where the camera disperses along rows.

    Attributes:
        start: first row of its own.
        stop: the one after its last.
        first: first row that is computed with it, start - halo or 0.
        last: the one after the last computed.
    """

    start: int
    stop: int
    first: int
    last: int


def parse_size(text: object) -> int:
    """Return the bytes of a size such as 4GiB, 500MB, or a number.

    Raises:
        ValueError: it is no size, or not positive.

    >>> parse_size("4GiB") == 4 * 2**30
    True
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([A-Za-z]*)\s*", str(text))
    try:
        size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    except (KeyError, ValueError):
        size = 0
    if size < 1:
        raise ValueError(f"memory_budget: expected a size such as 4GiB or 500MB, got {text!r}")
    return size


def lines_that_fit(budget: int, y: Tensor, bytes_per_line: float) -> int:
    """Return how many rows of a scene may be worked on at once.

    Args:
        budget: for the whole process, bytes.
        y: the measurement.
        bytes_per_line: memory that one row takes at the peak of the computation.

    Raises:
        ValueError: the budget does not suffice for a single one.
    """
    fixed = _PROCESS + _IMAGES * y.numel() * y.element_size()
    lines = int((budget - fixed) / (_MARGIN * bytes_per_line))
    if lines < 1:
        least = (fixed + 64 * _MARGIN * bytes_per_line) / 2**30
        raise ValueError(
            f"memory_budget: expected at least {least:.2f} GiB for this scene, "
            f"got {budget / 2**30:.2f} GiB"
        )
    return lines


def plan_blocks(length: int, lines: int, halo: int) -> list[Block]:
    """Cut a scene into blocks of nearly equal size.

    Args:
        length: rows of the scene.
        lines: rows that fit into memory.
        halo: rows that are computed beyond either end of a block.

    Raises:
        ValueError: the halo leaves no room for a block.
    """
    if length <= lines:
        return [Block(0, length, 0, length)]
    own = lines - 2 * halo - _GRID
    if own < max(halo, 1):
        raise ValueError(
            f"memory_budget: it fits {lines} rows of the scene, with halo={halo} expected at least "
            f"{3 * max(halo, 1) + _GRID}; give more memory or a smaller halo"
        )
    count = math.ceil(length / own)
    ends = [_GRID * round(index * length / count / _GRID) for index in range(count)] + [length]
    return [
        Block(start, stop, max(0, start - halo), min(length, stop + halo))
        for start, stop in pairwise(ends)
    ]
