"""A small camera on disk, and the commands run inside this process."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from shared import read_rows, run_command

import cassi
from cassi import plugins
from cassi.models import registry


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    name: str
    status: int
    out: str
    err: str

    def ok(self):
        """Itself, of a command that succeeded."""
        assert self.status == 0, self.err
        return self

    @property
    def refusal(self):
        """The one line of an error; beside a progress bar nothing else may be said."""
        assert self.status == 2, self.err
        lines = [line for line in self.err.splitlines() if line.strip()]
        assert [line for line in lines if "error" in line.lower()] == lines[-1:]
        assert lines[-1].startswith(f"cassi-{self.name}: error: ")
        assert "Traceback" not in self.err
        return lines[-1]


MODULES = {"camera": "camera.command"}
"""Of `cassi.apps`, where it is not called as the command is."""


@pytest.fixture
def commands(tmp_path, monkeypatch, capsys):
    """Make what runs a command; results go to ``tmp_path / "run"`` if not told otherwise."""

    def choose(name):
        def run(*arguments):
            monkeypatch.chdir(tmp_path)
            monkeypatch.setenv("PYTHONSAFEPATH", "1")  # the command sets it, and no test after it
            told = "--multirun" in arguments or any("run.dir=" in item for item in arguments)
            chosen = [] if told else [f"hydra.run.dir={tmp_path / 'run'}"]
            monkeypatch.setattr(sys, "argv", [f"cassi-{name}", *arguments, *chosen])
            # Hydra would compose the config once more for hydra.mode, which no file of ours has.
            monkeypatch.setattr("hydra._internal.hydra.Hydra.get_mode", lambda *_, **__: None)
            capsys.readouterr()
            try:
                import_module(f"cassi.apps.{MODULES.get(name, name)}").main()
                status = 0
            except SystemExit as stop:
                status = int(stop.code or 0)
            captured = capsys.readouterr()
            return Outcome(name, status, captured.out, captured.err)

        return run

    return choose


def _fixture(name, called=None):
    @pytest.fixture(name=called or name)
    def run(commands):
        return commands(name)

    return run


reconstruct, evaluate, train, calibrate, export = map(
    _fixture, ("reconstruct", "evaluate", "train", "calibrate", "export")
)
show = _fixture("camera", "show")


@dataclass(frozen=True)
class Fork:
    """A command that was started in a fork; what `subprocess.Popen` offers of it."""

    process: Any
    out: Path
    err: Path

    @property
    def pid(self):
        return self.process.pid

    @property
    def returncode(self):
        return self.process.exitcode

    def poll(self):
        return self.process.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def wait(self, timeout=None):
        self.process.join(timeout)
        if self.returncode is None:
            self.send_signal(signal.SIGUSR2)  # it writes where its threads are
            self.process.join(1)
        assert self.returncode is not None, f"it goes on\n{self.err.read_text()}"
        return self.returncode

    def communicate(self, timeout=None):
        self.wait(timeout)
        return self.out.read_text(), self.err.read_text()


@pytest.fixture(scope="session")
def server():
    """Forks of a process that has imported the commands and computed nothing start at once."""
    context = multiprocessing.get_context("forkserver")
    apps = (f"cassi.apps.{name}.job" for name in ("reconstruct", "evaluate", "train"))
    context.set_forkserver_preload(["cassi.training.module", "cassi.viz", *apps])
    return context


def heed_signals():
    """In the background SIGINT is ignored, and below nohup SIGHUP; a child would inherit that."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def start(server, tmp_path_factory):
    """Start a command beside the test, in one thread: in a fork, or as a Python of its own.

    Where it starts processes itself, these begin as the user's do.
    """

    def run(name, *arguments, launcher=(), fork=True, **environment):
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        starts = any(word.startswith(("processes=", "cluster=")) for word in arguments)
        # Lightning starts further processes by the module, without what stood before the options.
        module = ["cassi.apps.train"] if name == "train" else ["cassi", name]
        if launcher or starts or not fork:
            return subprocess.Popen(
                [sys.executable, *launcher, "-m", *module, *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | environment,
                preexec_fn=heed_signals,
            )
        folder = tmp_path_factory.mktemp("started")
        files = (folder / "out", folder / "err")
        call = (name, arguments, Path.cwd(), files, dict(os.environ) | environment)
        process = server.Process(target=run_command, args=call)
        process.start()
        return Fork(process, *files)

    return run


@pytest.fixture
def ranks():
    """What torchrun says in the environments of two processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    both = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    both |= {"NODE_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    return [both | {"RANK": rank, "LOCAL_RANK": rank} for rank in "01"]


@pytest.fixture
def own_plugins(monkeypatch):
    """Let a test's plugins be its own."""
    monkeypatch.setattr(plugins, "_PARTS_BY_KIND", {kind: {} for kind in plugins.KINDS})
    monkeypatch.setattr(plugins, "_PLUGINS", {})
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name in ("mine", "mymod", "evil"):
            del sys.modules[name]


@pytest.fixture
def results(tmp_path):
    """Read a file of numbers in a folder of results, a table as a list of rows."""

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    def read(name="metrics.json", folder="run"):
        path = tmp_path / folder / name
        if path.suffix == ".csv":
            return read_rows(path)
        return json.loads(path.read_text(), parse_constant=refuse)

    return read


@dataclass(frozen=True)
class Camera:
    """Files of a 12 x 17 scene with 5 bands, step −1."""

    measurement: Path
    mask: Path
    truth: Path
    system: cassi.SDCassi
    cube: torch.Tensor

    def given(self, *roles):
        """Return the options that name files, the measurement and the mask if not told which."""
        files = [f"{role}={getattr(self, role)}" for role in roles or ("measurement", "mask")]
        return [*files, "system.step=-1"]


@pytest.fixture
def write_day(camera, tmp_path):
    """Write snapshots of a moving scene into the folder `day`; return the options for them."""

    def write(names, iterations=3):
        (tmp_path / "day").mkdir(exist_ok=True)
        for index, name in enumerate(names):
            frame = camera.system(camera.cube.roll(index, -1))[0, 0].numpy()
            np.save(tmp_path / "day" / f"{name}.npy", frame)
        solver = ("solver=gap", "prior=tv", f"solver.iterations={iterations}")
        given = (f"measurement={tmp_path / 'day'}", *camera.given("mask"))
        return (*given, *solver, "output.pictures=false")

    return write


@pytest.fixture
def camera(tmp_path):
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
