"""What tests of several folders make their inputs of."""

import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path

import torch

import cassi.solvers
from cassi.models.registry import find_model, list_models

ALGORITHMS = {
    name: value
    for name, value in ((name, getattr(cassi.solvers, name)) for name in cassi.solvers.__all__)
    if inspect.isclass(value) and hasattr(value, "init") and hasattr(value, "step")
    if not getattr(value, "_is_protocol", False)
    # One that needs a network has tests of its own.
    if all(p.default is not p.empty for p in inspect.signature(value).parameters.values())
}
"""Every exported algorithm that can be made without arguments."""


ROOT = Path(__file__).resolve().parents[1]


def python(*arguments, **environment):
    """Run Python in the root of the repository; return what it prints, or fail with it."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def rand(*shape, seed=0, low=0.0, dtype=torch.float64):
    """Draw from [low, low + 1), the same numbers for the same seed and sum of the sides."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.rand(shape, generator=generator, dtype=torch.float64) + low).to(dtype)


def seeded(seed=0):
    """Return random numbers that start at a seed."""
    return torch.Generator().manual_seed(seed)


def uniform(*shape, seed=0, dtype=torch.float32):
    """Draw from [0, 1), whatever the shape the first numbers of a seed."""
    return torch.rand(shape, generator=seeded(seed), dtype=dtype)


def disc(bands, size):
    """Return a scene `(1, C, size, size)` of two spectra: a disc before a ground."""
    at = torch.linspace(0, 1, bands).view(-1, 1, 1)
    rows, columns = torch.arange(size).view(-1, 1), torch.arange(size)
    inside = ((rows - size / 2).square() + (columns - size / 3).square()) < (size / 4) ** 2
    return torch.where(inside, 0.3 + 0.7 * at, 0.8 - 0.6 * at)[None]


def distinct_networks():
    """Return the networks that differ in more than the number of stages, one name of each."""
    kinds = {}
    for name in list_models(shipped=False):
        entry = find_model(name)
        other = {key: value for key, value in entry.settings.items() if key != "stages"}
        kinds.setdefault((entry.make, str(other)), name)
    return list(kinds.values())


def smooth_scene(bands, height, width, disk=False):
    """Return smooth spectra `(1, C, H, W)`, two beside an edge, and with a disk a third."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    at = torch.linspace(0, 1, bands).view(-1, 1, 1)
    left = 0.3 + 0.4 * at + 0.2 * torch.sin(columns / 25)
    right = 0.8 - 0.5 * at + 0.2 * torch.cos(rows / 30)
    cube = torch.where(columns < 50, left, right)
    if disk:
        inside = (rows - 40) ** 2 + (columns - 70) ** 2 < 400
        cube = torch.where(inside, 0.9 - 0.8 * (at - 0.5).abs(), cube)
    return cube[None]


def invert(tries, number):
    """A job: return 1 / number; that of 0 kills its process, and leaves a byte of each try."""
    if number == 0:
        with tries.open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
    return 1 / number


def workers_of(process):
    """Return the numbers of the workers that a process has spawned, or Dask for it."""
    found = []
    for task in Path(f"/proc/{process}/task").glob("*"):
        for child in (task / "children").read_text().split():
            command = Path(f"/proc/{child}/cmdline").read_bytes().lower()
            known = any(name in command for name in (b"spawn_main", b"dask worker"))
            found += [int(child)] if known else []
    return found
