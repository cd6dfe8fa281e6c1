"""A small camera on disk, and the command run inside this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import cassi


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    status: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Callable[[], None], str], Command]:
    """Run a command with arguments; results go to ``tmp_path / "run"`` if not told otherwise."""

    def bind(main: Callable[[], None], name: str) -> Command:
        def run(*arguments: str) -> Outcome:
            monkeypatch.chdir(tmp_path)
            told = "--multirun" in arguments or any("run.dir=" in item for item in arguments)
            chosen = [] if told else [f"hydra.run.dir={tmp_path / 'run'}"]
            monkeypatch.setattr(sys, "argv", [name, *arguments, *chosen])
            capsys.readouterr()
            try:
                main()
                status = 0
            except SystemExit as stop:
                status = int(stop.code or 0)
            captured = capsys.readouterr()
            return Outcome(status, captured.out, captured.err)

        return run

    return bind


@pytest.fixture
def reconstruct(command: Callable[[Callable[[], None], str], Command]) -> Command:
    """Run cassi-reconstruct."""
    from cassi.apps.reconstruct import main

    return command(main, "cassi-reconstruct")


@pytest.fixture
def train(command: Callable[[Callable[[], None], str], Command]) -> Command:
    """Run cassi-train."""
    from cassi.apps.train import main

    return command(main, "cassi-train")


@dataclass(frozen=True)
class Camera:
    """Files of a 12 x 17 scene with 5 bands, step −1."""

    measurement: Path
    mask: Path
    truth: Path
    system: cassi.SDCassi
    cube: torch.Tensor


@pytest.fixture
def camera(tmp_path: Path) -> Camera:
    """Write measurement, mask and truth of a small camera."""
    generator = torch.Generator().manual_seed(7)
    mask = (torch.rand(12, 17, generator=generator) > 0.5).float() * 0.9 + 0.1
    ramp = torch.linspace(0.2, 1, 17).expand(12, 17)
    cube = torch.stack([ramp * (0.5 + 0.1 * c) for c in range(5)])[None]
    system = cassi.SDCassi(mask, bands=5, step=-1)
    files = Camera(tmp_path / "y.npy", tmp_path / "mask.npy", tmp_path / "truth.npz", system, cube)
    np.save(files.mask, mask.numpy())
    np.save(files.measurement, system(cube)[0, 0].numpy())
    cassi.write_cube(files.truth, cube, wavelengths=[450, 500, 550, 600, 650])
    return files
