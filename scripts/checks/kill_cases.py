"""The tiny runs that are killed by `check_kills.py`: what is started, and what must come out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from cassi import write_cube

NANOMETRES = [450, 500, 550, 600, 650]


@dataclass(frozen=True)
class Case:
    """A command, and what makes two of its runs equal.

    Attributes:
        module: of the command.
        options: without the folder.
        same: files whose bytes do not depend on the run.
        checkpoints: files of tensors, of which the state of the training is compared.
    """

    module: str
    options: tuple[str, ...]
    same: tuple[str, ...]
    checkpoints: tuple[str, ...] = ()


def make_cases(data: Path) -> dict[str, Case]:
    """Write three scenes, their snapshots and a mask; return the commands on them."""
    from cassi import SDCassi

    generator = torch.Generator().manual_seed(3)
    mask = (torch.rand(24, 24, generator=generator) > 0.5).float() * 0.9 + 0.1
    np.save(data / "mask.npy", mask.numpy())
    system = SDCassi(mask, bands=5, step=1)
    for folder in ("cubes", "snapshots"):
        (data / folder).mkdir()
    for name in ("one", "three", "two"):
        patches = torch.rand(5, 6, 6, generator=generator)
        cube = patches.repeat_interleave(4, 1).repeat_interleave(4, 2)
        write_cube(data / "cubes" / f"{name}.npz", cube, NANOMETRES)
        np.save(data / "snapshots" / f"{name}.npy", system(cube[None])[0, 0].numpy())
    camera = (f"mask={data / 'mask.npy'}", "system.step=1")
    solver = ("solver=gap", "prior=tv", "solver.iterations=20", "threads=1")
    one = (*camera, *solver, "output.progress=false", "output.cube=cube.npy")
    methods = "reconstructors=[{name: a, method: gap_tv, overrides: {solver.iterations: 10}},"
    methods += "{name: b, method: gap_tv, overrides: {solver.iterations: 20}}]"
    nm = ",".join(map(str, NANOMETRES))
    return {
        "reconstruct": Case(
            "cassi.apps.reconstruct",
            (f"measurement={data / 'snapshots' / 'one.npy'}", *one),
            ("cube.npy",),
        ),
        "snapshots": Case(
            "cassi.apps.reconstruct",
            (f"measurement={data / 'snapshots'}", *one, "output.pictures=false"),
            ("one/cube.npy", "three/cube.npy", "two/cube.npy"),
        ),
        "evaluate": Case(
            "cassi.apps.evaluate",
            (
                *(*camera, "data=folder", f"data.root={data / 'cubes'}"),
                *(f"data.wavelengths=[{nm}]", methods, "figures=false", "report=true"),
                *("cubes=true", "progress=false"),
            ),
            ("results.json",),
        ),
        "train": Case(
            "cassi.apps.train",
            (
                *("model=gap_net", "model.stages=1", "data.crop=16", "data.validation.crop=16"),
                *("data.batch_size=1", "data.steps_per_epoch=6", "trainer.max_steps=24"),
                *("trainer.enable_progress_bar=false", "trainer.accelerator=cpu", "threads=1"),
                *("trainer.log_every_n_steps=1", "callbacks=ema", "callbacks.ema.decay=0.9"),
                *("callbacks.last.every_minutes=null", "callbacks.last.every_n_train_steps=4"),
                *("logger=csv", "ckpt=last"),
            ),
            ("metrics.csv",),
            (
                *("model.safetensors", "ema.safetensors"),
                *("checkpoints/last.ckpt", "checkpoints/best.ckpt"),
            ),
        ),
    }
