"""cassi-reconstruct with a memory budget: a scene block by block, never whole in memory."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from cassi.apps.executors import LostWorker, Workers, once, run_jobs
from cassi.apps.printing import is_quiet
from cassi.apps.reconstruct.journal import Journal, fingerprint_snapshot
from cassi.apps.reconstruct.parts import ESTIMATES, Parts
from cassi.apps.reconstruct.plan import Block, lines_that_fit, parse_size, plan_blocks
from cassi.apps.reconstruct.scene import finish, take_truth
from cassi.apps.reconstructors import fingerprint_settings
from cassi.apps.settings import UNCERTAINTY, Output, Reconstruct
from cassi.apps.snapshot import fit, make_recipe, read
from cassi.checks import whole_number
from cassi.data.atomic import digest_content
from cassi.data.formats.cells import Json
from cassi.data.formats.stacks import STACK_SUFFIXES, Stack, create_stack, open_stack
from cassi.links import check_parents
from cassi.pipeline.find import on_grid
from cassi.solvers import Iteration
from cassi.uncertainty import estimate
from cassi.uncertainty.bootstrap import Probe
from cassi.uncertainty.mask_shift import MaskShift

_PLAN = "plan"


@dataclass(frozen=True)
class Solved:
    """A block with its halo, `(C, H', W')`, or with standard deviations behind it, and its numbers.

    Processes hand over NumPy's arrays as they are; tensors would be shared between them.
    """

    x: np.ndarray
    record: Json


def reconstruct_in_blocks(
    settings: Reconstruct, folder: Path, workers: Workers | None = None
) -> float:
    """Reconstruct one scene within `memory_budget`, and write the results.

    Each of the workers keeps to the budget; None: this process computes the blocks.

    Returns:
        The relative residual.
    """
    budget, output = parse_size(settings.memory_budget), settings.output
    _check_output(output)
    key = fingerprint_settings(settings, on="cube")
    names = [output.cube, *([UNCERTAINTY] if settings.uncertainty else [])]
    settings, truth = take_truth(settings)
    scene = once(load_scene, settings)
    for note in scene.snapshot.notes:
        print(note)
    halo = scene.reconstructor.halo if settings.halo is None else settings.halo
    halo = whole_number("halo", halo, 0, 2**31)
    key = f"{key} {names} {scene.snapshot.camera.wavelengths}"
    fingerprint = fingerprint_snapshot(key, scene.snapshot)
    journal = Journal(folder / f".{output.cube}.blocks", fingerprint)
    plan = journal.read(_PLAN)
    if plan is not None and all((journal.folder / name).exists() for name in names):
        stacks = [_reopen(journal.folder / name, scene) for name in names]
    else:
        plan, stacks = _begin(settings, scene, journal, names, halo, budget)
    records = _compute_blocks(settings, scene, journal, plan, stacks, workers)
    residual = finish(settings, folder, scene, stacks, records, plan, truth)
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


def load_scene(settings: Reconstruct) -> Parts:
    """Read what settings name, once in a process."""
    recipe = make_recipe(settings)
    return Parts(*fit(on_grid(read(settings, recipe)), recipe))


def _begin(
    settings: Reconstruct, scene: Parts, journal: Journal, names: list[str], halo: int, budget: int
) -> tuple[Json, list[Stack]]:
    """Plan the blocks of a new run, and make the files that they are written into."""
    torch.manual_seed(settings.seed)
    began = _clocks()
    lines = lines_that_fit(budget, scene.y, scene.bytes_per_line(settings.uncertainty))
    blocks = [asdict(block) for block in plan_blocks(scene.length, lines, halo)]
    journal.remove()
    check_parents(f"{journal.folder.absolute()}/")  # who writes a TIFF follows links before
    journal.folder.mkdir(parents=True, exist_ok=True)
    shape, wavelengths = scene.system.cube_shape, scene.snapshot.camera.wavelengths
    stacks = [create_stack(journal.folder / name, shape, wavelengths) for name in names]
    probe = asdict(scene.probe(lines)) if settings.uncertainty else None
    plan = {"blocks": blocks, "halo": halo, "probe": probe, "preparation": _since(began)}
    journal.write(_PLAN, plan, {})
    return plan, stacks


def _reopen(path: Path, scene: Parts) -> Stack:
    """Return an unfinished cube."""
    opened = open_stack(path)
    if opened is None or opened[0].shape != scene.system.cube_shape:
        raise ValueError(f"{path}: expected the unfinished cube; remove {path.parent}")
    return opened[0]


def _compute_blocks(
    settings: Reconstruct,
    scene: Parts,
    journal: Journal,
    plan: Json,
    stacks: Sequence[Stack],
    workers: Workers | None,
) -> list[Json]:
    """Compute and write the blocks of a plan that are not finished; return all records."""
    iterations = scene.reconstructor.iterations
    blocks = [Block(**block) for block in plan["blocks"]]
    records = _finished(scene, journal, stacks, len(blocks))
    done = f", {len(records)} finished already" if records else ""
    rows = f"{len(blocks)} of about {blocks[0].stop} rows"
    print(f"blocks: {rows}, halo {plan['halo']}{done}", flush=True)
    total, begun = len(blocks) * iterations, len(records) * iterations
    hidden = not settings.output.progress or is_quiet()
    with tqdm(total=total, initial=begun, unit="it", disable=hidden) as bar:

        def follow(*_: Any) -> None:  # what tqdm returns would stop the solver
            bar.update()

        found = scene.statistics.estimate(*ESTIMATES).items()
        estimates = {name: value.cpu().numpy() for name, value in found}
        job = partial(compute_block, settings, blocks, _read_probe(plan), estimates)
        job = partial(job, callback=follow) if workers is None else job
        left = range(len(records), len(blocks))
        for index, solved in _in_order(run_jobs(workers, job, left), left.start):
            bar.set_postfix_str(f"block {index + 1}/{len(blocks)}")
            bar.update(0 if workers is None else iterations)
            tail = journal.array(f"tail-{index - 1}") if index else None
            record, part, rest = join_block(scene, blocks, index, plan["halo"] // 4, tail, solved)
            del solved
            for stack, values in zip(stacks, np.split(part, len(stacks)), strict=True):
                stack.write(values, *scene.place(*record["lines"]))
            record["cube"] = _digest(part)
            rests = {} if rest is None else {f"tail-{index}": rest}
            journal.write(f"block-{index}", record, rests)
            records.append(record)
            del part
    return records


def _finished(scene: Parts, journal: Journal, stacks: Sequence[Stack], count: int) -> list[Json]:
    """Return the records of the blocks that are finished and unharmed, from the first on."""
    found: list[Json] = []
    for index in range(count):
        record = journal.read(f"block-{index}")
        if record is None:
            break
        rows, columns = scene.place(*record["lines"])
        parts = [stack.read(rows=rows, columns=columns) for stack in stacks]
        if _digest(np.concatenate(parts)) != record["cube"]:
            break
        found.append(record)
    return found


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


def compute_block(
    settings: Reconstruct,
    blocks: Sequence[Block],
    probed: Probe | None,
    estimates: Mapping[str, np.ndarray],
    index: int,
    callback: Callable[..., Any] | None = None,
) -> Solved:
    """Reconstruct one block of what settings name: a job.

    `estimates` are those of the whole scene, by name, found once for all processes; so is `probed`,
    where standard deviations are asked for.
    """
    scene, block = once(load_scene, settings), blocks[index]
    scene.statistics.take({name: torch.from_numpy(each) for name, each in estimates.items()})
    torch.manual_seed(settings.seed)
    began = _clocks()
    y, camera = scene.part(block.first, block.last)
    method, statistics = scene.reconstructor, scene.statistics
    solution = method.run(y, camera, callback=callback, statistics=statistics).checked()
    x, more = solution.x[0], {}
    if probed is not None:
        bars = estimate(
            *(y, camera, method, solution.x),
            probed=probed,
            statistics=statistics,
            seed=settings.seed,
            wide=scene.snapshot.is_raw,
            along=solution.along,
        )
        x = torch.cat((x, bars.std[0]))
        more = {"uncertainty": {"sources": bars.sources, "warnings": list(bars.warnings)}}
    history = [_row(index, step) for step in solution.history]
    record = {"reason": solution.reason, **_since(began), **more, "history": history}
    return Solved(x.cpu().numpy(), record)


def join_block(
    scene: Parts,
    blocks: Sequence[Block],
    index: int,
    blend: int,
    tail: np.ndarray | None,
    solved: Solved,
) -> tuple[Json, np.ndarray, np.ndarray | None]:
    """Blend one block with the one before; over `blend` rows either side of a seam both fade.

    `tail` is what the block before has left for that. The values of `solved` are changed.

    Returns:
        Numbers of the block; its own values; what it leaves for the next, None after the last.
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
    misfit = scene.misfit(own[: scene.system.cube_shape[0]].to(scene.y.device), start)
    record = {"block": index, "lines": [start, stop], "misfit": misfit, **solved.record}
    return record, own.numpy(), rest


def _read_probe(plan: Json) -> Probe | None:
    values = plan["probe"]
    if values is None:
        return None
    moved = values["mask_shift"]
    return Probe(**values | {"mask_shift": MaskShift(**moved | {"shift": tuple(moved["shift"])})})


def _clocks() -> tuple[float, float]:
    """Return the seconds of the clock and of the processor."""
    return time.perf_counter(), time.process_time()


def _since(began: tuple[float, float]) -> dict[str, float]:
    wall, cpu = _clocks()
    return {"seconds": wall - began[0], "cpu_seconds": cpu - began[1]}


def _weights(count: int, like: Tensor) -> Tensor:
    """A smooth rise from 0 to 1, which its mirror image completes to 1."""
    at = (torch.arange(count, device=like.device, dtype=like.dtype) + 0.5) / count
    return 0.5 - 0.5 * torch.cos(torch.pi * at)


def _row(index: int, step: Iteration) -> Json:
    found = {"residual": step.residual, "seconds": step.seconds, "change": step.change}
    return {"block": index + 1, "iteration": step.index, **found, "sigma": step.sigma}


def _digest(values: np.ndarray) -> str:
    return digest_content(np.ascontiguousarray(plane, dtype="<f4").data for plane in values)
