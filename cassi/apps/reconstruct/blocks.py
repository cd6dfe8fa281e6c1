"""Reconstruct one scene block by block, so that its cube is never whole in memory."""

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

from cassi.apps.executors import AnyWorkers, LostWorker, make_once, run_jobs
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
from cassi.pipeline.find import add_grid
from cassi.solvers import Iteration
from cassi.uncertainty import estimate
from cassi.uncertainty.bootstrap import Probe
from cassi.uncertainty.mask_shift import MaskShift

_PLAN = "plan"


@dataclass(frozen=True)
class SolvedBlock:
    """The result of one block."""

    # A NumPy array: torch would keep the memory of a tensor shared between the two processes.
    x: np.ndarray
    """The block with its halo, `(C, H', W')`. If there are error bars, `(2·C, H', W')`: first the
    bands, then their standard deviations."""
    record: Json


def reconstruct_in_blocks(settings: Reconstruct, folder: Path, workers: AnyWorkers = None) -> float:
    """Reconstruct one scene within `memory_budget`, and write the results.

    Args:
        settings: settings of the command.
        folder: folder of the results.
        workers: processes that compute the blocks, each process within the budget. If None, this
            process computes all blocks.

    Returns:
        The relative residual.

    Raises:
        ValueError: the budget is too small, or an output cannot be written block by block.
    """
    budget, output = parse_size(settings.memory_budget), settings.output
    _check_output(output)
    key = fingerprint_settings(settings, on="cube")
    names = [output.cube, *([UNCERTAINTY] if settings.uncertainty else [])]
    settings, truth = take_truth(settings)
    scene = make_once(load_scene, settings)
    for note in scene.snapshot.notes:
        print(note)
    halo = scene.reconstructor.halo if settings.halo is None else settings.halo
    halo = whole_number("halo", halo, 0, 2**31)
    # The unfinished files contain the wavelengths, and there is one file for each name. So a run
    # with other names or wavelengths must not continue with these files.
    key = f"{key} {names} {scene.snapshot.camera.wavelengths}"
    fingerprint = fingerprint_snapshot(key, scene.snapshot)
    journal = Journal(folder / f".{output.cube}.blocks", fingerprint)
    plan = journal.read(_PLAN)
    if plan is not None and all((journal.folder / name).exists() for name in names):
        stacks = [_reopen(journal.folder / name, scene) for name in names]
    else:
        plan, stacks = _plan_run(settings, scene, journal, names, halo, budget)
    records = _compute_blocks(settings, scene, journal, plan, stacks, workers)
    residual = finish(settings, folder, scene, stacks, records, plan, truth)
    journal.remove()
    return residual


def _check_output(output: Output) -> None:
    """Raise ValueError for an output that cannot be written block by block."""
    if Path(output.cube).suffix.lower() not in STACK_SUFFIXES:
        suffixes = " ".join(STACK_SUFFIXES)
        raise ValueError(f"output.cube: with memory_budget expected {suffixes}, got {output.cube}")
    if output.bands != "wavelengths":
        raise ValueError("output.bands: expected wavelengths with memory_budget; leave it out")
    if output.wavelengths is not None:
        raise ValueError("output.wavelengths: expected null with memory_budget; leave it out")


def load_scene(settings: Reconstruct) -> Parts:
    """Read the scene that settings name, and return it as `Parts`, with its camera and method."""
    recipe = make_recipe(settings)
    return Parts(*fit(add_grid(read(settings, recipe)), recipe))


def _plan_run(
    settings: Reconstruct, scene: Parts, journal: Journal, names: list[str], halo: int, budget: int
) -> tuple[Json, list[Stack]]:
    """Plan the blocks of a new run, and make the files that they are written into."""
    torch.manual_seed(settings.seed)
    clocks_at_start = _read_clocks()
    lines = lines_that_fit(budget, scene.y, scene.bytes_per_line(settings.uncertainty))
    blocks = [asdict(block) for block in plan_blocks(scene.length, lines, halo)]
    journal.remove()
    # tifffile resolves links before it opens a file, so `cassi.links` would not see them.
    check_parents(f"{journal.folder.absolute()}/")
    journal.folder.mkdir(parents=True, exist_ok=True)
    shape, wavelengths = scene.system.cube_shape, scene.snapshot.camera.wavelengths
    stacks = [create_stack(journal.folder / name, shape, wavelengths) for name in names]
    probe = asdict(scene.probe(lines)) if settings.uncertainty else None
    plan = {
        "blocks": blocks,
        "halo": halo,
        "probe": probe,
        "preparation": _seconds_since(clocks_at_start),
    }
    journal.write(_PLAN, plan, {})
    return plan, stacks


def _reopen(path: Path, scene: Parts) -> Stack:
    """Open the file of an unfinished cube."""
    stack, _ = open_stack(path) or (None, None)
    if stack is None or stack.shape != scene.system.cube_shape:
        raise ValueError(f"{path}: expected the unfinished cube; remove {path.parent}")
    return stack


def _compute_blocks(
    settings: Reconstruct,
    scene: Parts,
    journal: Journal,
    plan: Json,
    stacks: Sequence[Stack],
    workers: AnyWorkers,
) -> list[Json]:
    """Compute and write the blocks of a plan that are not finished; return all records."""
    iterations = scene.reconstructor.iterations
    blocks = [Block(**block) for block in plan["blocks"]]
    records = _read_finished_records(scene, journal, stacks, len(blocks))
    finished_text = f", {len(records)} finished already" if records else ""
    rows = f"{len(blocks)} of about {blocks[0].stop} rows"
    print(f"blocks: {rows}, halo {plan['halo']}{finished_text}", flush=True)
    total_iterations, finished_iterations = len(blocks) * iterations, len(records) * iterations
    is_bar_hidden = not settings.output.progress or is_quiet()
    with tqdm(
        total=total_iterations, initial=finished_iterations, unit="it", disable=is_bar_hidden
    ) as bar:

        def update_bar(*_: Any) -> None:
            # Not a lambda: `bar.update` returns true now and then, which would stop the solver.
            bar.update()

        estimate_tensors = scene.statistics.estimate(*ESTIMATES).items()
        estimates = {name: value.cpu().numpy() for name, value in estimate_tensors}
        job = partial(compute_block, settings, blocks, _read_probe(plan), estimates)
        job = partial(job, callback=update_bar) if workers is None else job
        remaining_indices = range(len(records), len(blocks))
        results = run_jobs(workers, job, remaining_indices)
        # In order, because each block is blended with the end of the block before it.
        for index, solved_block in _in_block_order(results, remaining_indices.start):
            bar.set_postfix_str(f"block {index + 1}/{len(blocks)}")
            if workers is not None:  # else `update_bar` has counted the iterations
                bar.update(iterations)
            tail = journal.array(f"tail-{index - 1}") if index else None
            # Blocks are blended over a quarter of the halo. Rows farther out lie so close to the
            # border of the computed rows that their context is too small.
            record, own_values, next_tail = join_block(
                scene, blocks, index, plan["halo"] // 4, tail, solved_block
            )
            del solved_block  # frees its memory before the next block comes
            for stack, values in zip(stacks, np.split(own_values, len(stacks)), strict=True):
                stack.write(values, *scene.place(*record["lines"]))
            record["cube"] = _digest(own_values)
            arrays = {} if next_tail is None else {f"tail-{index}": next_tail}
            # The record says that the block is finished, so it is written after the values.
            journal.write(f"block-{index}", record, arrays)
            records.append(record)
            del own_values
    return records


def _read_finished_records(
    scene: Parts, journal: Journal, stacks: Sequence[Stack], count: int
) -> list[Json]:
    """Return the records of the finished blocks, up to the first whose values have changed."""
    records: list[Json] = []
    for index in range(count):
        record = journal.read(f"block-{index}")
        if record is None:
            break
        rows, columns = scene.place(*record["lines"])
        values_of_stacks = [stack.read(rows=rows, columns=columns) for stack in stacks]
        if _digest(np.concatenate(values_of_stacks)) != record["cube"]:
            break
        records.append(record)
    return records


def _in_block_order(
    results: Iterator[tuple[int, SolvedBlock | LostWorker]], next_index: int
) -> Iterator[tuple[int, SolvedBlock]]:
    """Yield the results of jobs in the order of the blocks, from `next_index` on."""
    waiting: dict[int, SolvedBlock] = {}
    for index, solved_block in results:
        if isinstance(solved_block, LostWorker):
            raise solved_block
        waiting[index] = solved_block
        del solved_block
        while next_index in waiting:
            yield next_index, waiting.pop(next_index)
            next_index += 1


def compute_block(
    settings: Reconstruct,
    blocks: Sequence[Block],
    probe: Probe | None,
    estimates: Mapping[str, np.ndarray],
    index: int,
    callback: Callable[..., Any] | None = None,
) -> SolvedBlock:
    """Reconstruct one block of the scene that settings name; this is a job.

    Args:
        settings: settings of the command.
        blocks: all blocks of the scene.
        probe: numbers of the whole scene that error bars need. None leaves error bars out.
        estimates: `ESTIMATES` of the whole scene, by name. One process computes these for all
            blocks.
        index: number of the block, from 0.
        callback: a function that is called at every iteration.
    """
    scene, block = make_once(load_scene, settings), blocks[index]
    scene.statistics.take({name: torch.from_numpy(array) for name, array in estimates.items()})
    torch.manual_seed(settings.seed)
    clocks_at_start = _read_clocks()
    y, camera = scene.part(block.first, block.last)
    method, statistics = scene.reconstructor, scene.statistics
    solution = method.run(y, camera, callback=callback, statistics=statistics).checked()
    x, uncertainty_record = solution.x[0], {}
    if probe is not None:
        bars = estimate(
            y,
            camera,
            method,
            solution.x,
            probed=probe,
            statistics=statistics,
            seed=settings.seed,
            wide=scene.snapshot.is_raw,
            along=solution.along,
        )
        x = torch.cat((x, bars.std[0]))
        sources = {"sources": bars.sources, "warnings": list(bars.warnings)}
        uncertainty_record = {"uncertainty": sources}
    history = [_convergence_row(index, step) for step in solution.history]
    record = {
        "reason": solution.reason,
        **_seconds_since(clocks_at_start),
        **uncertainty_record,
        "history": history,
    }
    return SolvedBlock(x.cpu().numpy(), record)


def join_block(
    scene: Parts,
    blocks: Sequence[Block],
    index: int,
    blend: int,
    tail: np.ndarray | None,
    solved_block: SolvedBlock,
) -> tuple[Json, np.ndarray, np.ndarray | None]:
    """Blend one block with the block before it.

    Over `blend` rows on either side of the seam, the earlier block fades out and this block fades
    in.

    Args:
        scene: the whole scene.
        blocks: all blocks of the scene.
        index: number of this block, from 0.
        blend: rows of the blend on either side of a seam.
        tail: the rows of the earlier block around the seam; None for the first block.
        solved_block: the result of this block. Its values are changed in place.

    Returns:
        The record of the block, its own values, and its tail for the next block. The last block has
        the tail None.
    """
    block, last = blocks[index], index == len(blocks) - 1
    x = torch.from_numpy(solved_block.x)
    start = block.start if index == 0 else block.start - blend
    stop = block.stop if last else block.stop - blend
    next_tail = None
    if not last:
        overlap = x.narrow(scene.axis, stop - block.first, 2 * blend)
        next_tail = np.ascontiguousarray(overlap.numpy())
    own_values = x.narrow(scene.axis, start - block.first, stop - start)
    if tail is not None and blend:
        seam = own_values.narrow(scene.axis, 0, 2 * blend)
        weight = _seam_weights(2 * blend, seam).unsqueeze(-1 if scene.axis == -2 else 0)
        seam.copy_(torch.lerp(torch.from_numpy(tail).to(seam), seam, weight))
    squared_residual = scene.squared_residual(
        own_values[: scene.system.cube_shape[0]].to(scene.y.device), start
    )
    record = {
        "block": index,
        "lines": [start, stop],
        "misfit": squared_residual,
        **solved_block.record,
    }
    return record, own_values.numpy(), next_tail


def _read_probe(plan: Json) -> Probe | None:
    values = plan["probe"]
    if values is None:
        return None
    # JSON has lists where the dataclass has a tuple.
    shift = values["mask_shift"] | {"shift": tuple(values["mask_shift"]["shift"])}
    return Probe(**values | {"mask_shift": MaskShift(**shift)})


def _read_clocks() -> tuple[float, float]:
    """Return seconds of the wall clock and of the processor."""
    return time.perf_counter(), time.process_time()


def _seconds_since(clocks_at_start: tuple[float, float]) -> dict[str, float]:
    wall, cpu = _read_clocks()
    return {"seconds": wall - clocks_at_start[0], "cpu_seconds": cpu - clocks_at_start[1]}


def _seam_weights(count: int, seam: Tensor) -> Tensor:
    """Return weights `(count,)` that rise smoothly from 0 to 1."""
    # A raised cosine. The weights of the other block are its mirror image, and both add up to 1.
    position = (torch.arange(count, device=seam.device, dtype=seam.dtype) + 0.5) / count
    return 0.5 - 0.5 * torch.cos(torch.pi * position)


def _convergence_row(index: int, step: Iteration) -> Json:
    return {
        "block": index + 1,
        "iteration": step.index,
        "residual": step.residual,
        "seconds": step.seconds,
        "change": step.change,
        "sigma": step.sigma,
    }


def _digest(values: np.ndarray) -> str:
    return digest_content(np.ascontiguousarray(plane, dtype="<f4").data for plane in values)
