"""What is written of a scene whose cube is too large for the memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from cassi import ops
from cassi.apps import results as outputs
from cassi.apps.inputs import Inputs
from cassi.apps.reconstruct.journal import Record
from cassi.apps.scene_scores import Readable, read, score_bands
from cassi.data.atomic import atomic_folder
from cassi.data.formats.stacks import Stack, open_stack

_SHOWN = 512  # pixels along the longer side of pictures
_COUNTED = ("block", "lines", "seconds", "cpu_seconds", "reason")


def take_truth(config: DictConfig) -> Stack | None:
    """Take the truth out of a config where it can be read in parts and the measurement is given."""
    if config.truth is None or config.measurement is None:
        return None
    if config.axes.truth is not None or config["keys"].truth is not None:
        return None
    path = Path(str(config.truth))
    opened = open_stack(path) if path.is_file() else None
    if opened is None:
        return None
    stack, wavelengths = opened
    with_truth = OmegaConf.to_container(config.system)
    if isinstance(with_truth, dict) and with_truth.get("bands") is None:
        config.system.bands = stack.shape[0]
    if config.wavelengths is None and wavelengths is not None:
        config.wavelengths = list(wavelengths)
    config.truth = None
    return stack


def finish(
    config: DictConfig,
    folder: Path,
    inputs: Inputs,
    cube: Path,
    stack: Stack,
    records: list[Record],
    plan: dict[str, Any],
    truth: Stack | None,
    key: str | None = None,
) -> float:
    """Write the cube under its name with tables and pictures beside it, all or none.

    Returns:
        The relative residual.
    """
    reference: Readable | None = truth
    if truth is None and inputs.truth is not None:
        reference = inputs.truth[0]
    if reference is not None and tuple(reference.shape) != stack.shape:
        raise ValueError(f"truth: expected {stack.shape}, got {tuple(reference.shape)}")
    numbers = summarize(inputs, records, plan)
    if key is not None:
        numbers["key"] = key
    if reference is not None:
        numbers["metrics"] = score_bands(stack, reference)
    with atomic_folder(folder) as stage:
        try:  # a second name, so that nothing is lost if what follows fails
            os.link(cube, stage / cube.name)
        except OSError:  # no such names on this file system
            cube.rename(stage / cube.name)
        rows = [row for record in records for row in record["history"]]
        outputs.write_table(stage / "convergence.csv", rows)
        if config.output.pictures:
            small, true = shrink(stack), None if reference is None else shrink(reference)
            factor = shrink_factor(stack.shape)
            output = config.output.copy()
            if output.points is not None and factor > 1:
                output.points = [[int(i) // factor for i in point] for point in output.points]
            outputs.save_pictures(stage, output, small, inputs.wavelengths, true)
            if output.report:
                page, name = stage / "report.html", Path(str(config.measurement)).stem
                outputs.save_report(page, output, name, small, inputs.wavelengths, true, numbers)
        numbers["peak_memory_bytes"] = outputs.peak_memory(inputs.measurement.device)
        files = sorted(file.name for file in stage.iterdir())
        outputs.write_json(stage / "metrics.json", numbers | {"files": files})
    print(outputs.one_line(numbers), f"-> {folder}", sep="\n")
    return float(numbers["relative_residual"])


def summarize(inputs: Inputs, records: list[Record], plan: dict[str, Any]) -> dict[str, Any]:
    """Collect the numbers of metrics.json from the records of the blocks."""
    y = inputs.measurement
    misfit = sum(record["misfit"] for record in records)
    device = y.device
    return {
        **{
            name: sum(part[name] for part in (plan["preparation"], *records))
            for name in ("seconds", "cpu_seconds")
        },
        "iterations": max(len(record["history"]) for record in records),
        "stopped_by": ", ".join(sorted({record["reason"] for record in records})),
        "relative_residual": (misfit / float(y.double().square().sum())) ** 0.5,
        "cube_shape": list(inputs.system.cube_shape),
        "measurement_shape": list(inputs.system.measurement_shape),
        "halo": plan["halo"],
        "preparation": plan["preparation"],
        "blocks": [{name: record[name] for name in _COUNTED} for record in records],
        **outputs.environment(device, ops.backend(device)),
        "preprocessing": inputs.preprocessing,
        "inputs": inputs.notes,
    }


def shrink_factor(shape: tuple[int, ...]) -> int:
    """Return the side of the blocks of pixels that are averaged for pictures."""
    return -(-max(shape[1:]) // _SHOWN)


def shrink(cube: Readable) -> torch.Tensor:
    """Return means over blocks of pixels, small enough for pictures: `(C, H', W')`."""
    factor = shrink_factor(tuple(cube.shape))
    planes = []
    for band in range(cube.shape[0]):
        plane = read(cube, slice(band, band + 1))[0]
        height, width = (max(1, side // factor) for side in plane.shape)
        plane = plane[: height * factor, : width * factor]
        blocks = plane.reshape(height, -1, width, plane.shape[1] // width)
        planes.append(blocks.mean(axis=(1, 3)))
    return torch.from_numpy(np.stack(planes))
