"""cassi-reconstruct with a memory budget: a scene block by block, never whole in memory."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from tqdm import tqdm

from cassi.apps.block_solve import solve_block
from cassi.apps.inputs import load_inputs
from cassi.apps.reconstruct.journal import Journal, place
from cassi.apps.reconstruct.one import Method
from cassi.apps.reconstruct.plan import Block, lines_that_fit, parse_size, plan_blocks
from cassi.apps.reconstruct.scene import finish, take_truth
from cassi.apps.scene_parts import SceneParts
from cassi.apps.settings import whole_number
from cassi.data.formats.stacks import STACK_SUFFIXES, create_stack
from cassi.solvers import Iteration, Solver

_HALO = {True: 40, False: 96}  # of solvers and of networks, see docs/guides/big-scenes.md


def reconstruct_big(
    config: DictConfig,
    folder: Path,
    method: Method,
    device: torch.device,
    *,
    key: str | None = None,
) -> float:
    """Reconstruct what a config names within `memory_budget`, and write the results.

    Args:
        config: of the command.
        folder: where results go.
        method: what reconstructs.
        device: where.
        key: of what the results depend on, for metrics.json.

    Returns:
        The relative residual.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: budget, halo, camera or format do not fit.
    """
    budget, seed = parse_size(config.memory_budget), config.seed
    name = str(config.output.cube)
    if Path(name).suffix.lower() not in STACK_SUFFIXES:
        allowed = " ".join(STACK_SUFFIXES)
        raise ValueError(f"output.cube: with memory_budget expected {allowed}, got {name}")
    truth = take_truth(config)
    inputs, solver = method.fit(load_inputs(config, device))
    for note in inputs.notes:
        print(note)
    scene = SceneParts(inputs)
    halo = _HALO[isinstance(solver, Solver)] if config.halo is None else config.halo
    halo = whole_number("halo", halo, 0, 2**31)

    journal = Journal(folder, name, scene.identity(config))
    with journal.locked():
        plan = journal.plan()
        if plan is None:
            torch.manual_seed(seed)
            wall, cpu = time.perf_counter(), time.process_time()
            lines = lines_that_fit(budget, inputs.measurement, scene.bytes_per_line(solver))
            blocks = plan_blocks(scene.length, lines, halo)
            journal.clear()
            stack = create_stack(journal.cube, scene.system.cube_shape, inputs.wavelengths)
            spent = {
                "seconds": time.perf_counter() - wall,
                "cpu_seconds": time.process_time() - cpu,
            }
            plan = journal.begin(blocks, {"halo": halo, "preparation": spent})
        else:
            stack = journal.reopen(scene.system.cube_shape)
            blocks = [Block(**block) for block in plan["blocks"]]
        records = journal.records(stack, scene.axis)
        blend = plan["halo"] // 4
        done = f", {len(records)} finished already" if records else ""
        print(f"blocks: {len(blocks)} of about {blocks[0].stop} rows, halo {plan['halo']}{done}")
        sys.stdout.flush()
        with _progress(config, len(blocks), len(records), solver.iterations) as bar:
            for index in range(len(records), len(blocks)):
                bar.set_postfix_str(f"block {index + 1}/{len(blocks)}")
                torch.manual_seed(seed)
                tail = journal.tail(index - 1) if index else None
                count = _Count(bar)
                record, part, rest = solve_block(scene, solver, blocks, index, blend, tail, count)
                stack.write(part, *place(scene.axis, *record["lines"]))
                records.append(journal.add(record, part, rest))
                del part
        residual = finish(config, folder, inputs, journal.cube, stack, records, plan, truth, key)
        journal.remove()
    return residual


def _progress(config: DictConfig, blocks: int, done: int, iterations: int) -> Any:
    visible = config.output.progress
    return tqdm(
        total=blocks * iterations, initial=done * iterations, unit="it", disable=not visible
    )


class _Count:
    """Moves a progress bar on; the callback of a solver."""

    def __init__(self, bar: Any) -> None:
        self.bar = bar

    def __call__(self, iteration: Iteration, _: torch.Tensor) -> None:
        self.bar.update()
