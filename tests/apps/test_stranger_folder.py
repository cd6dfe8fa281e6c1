"""Commands that are started in a folder of a stranger's: nothing in it is run or obeyed."""

import os
import subprocess
import sys
import time
import tomllib
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest
import tifffile
import torch
from shared import ROOT, python, wait_until

import cassi

OPTIONAL = ("imagecodecs", "sitecustomize", "usercustomize", "cupy", "mkl", "numexpr", "zarr")
CAMERA = ("mask=in/mask.tif", "system.bands=5")
SOLVER = ("solver=gap", "prior=tv", "solver.iterations=2")
DAY, FRAME = "measurement=in/day", "measurement=in/day/0.tif"
SCENES = ("data=folder", "data.root=in/cubes", CAMERA[0], "reconstructors=[gap_tv]")
TRAINING = (
    *("model=gap_net", "model.stages=1", "data.crop=16", "data.validation.crop=16"),
    *("data.steps_per_epoch=1", "trainer.max_steps=1", "trainer.accelerator=cpu"),
)
RUNS = {
    "cassi": ("camera", *CAMERA),
    "cassi-calibrate": (FRAME, *CAMERA, "solver.iterations=2", "radius=1"),
    "cassi-camera": (FRAME, *CAMERA),
    "cassi-evaluate": (*SCENES, "processes=2"),
    "cassi-export": (FRAME, *CAMERA, *SOLVER, "format=torch_export"),
    "cassi-reconstruct": (DAY, *CAMERA, *SOLVER, "processes=2"),
    "cassi-train": (*TRAINING, f"logger=[csv{',wandb' * (find_spec('wandb') is not None)}]"),
}
"""Options of each command that ends by itself."""
LAUNCHERS = {
    "Dask": ("cassi-reconstruct", DAY, *CAMERA, *SOLVER, "cluster=dask", "cluster.workers=1"),
    "joblib": (
        *("cassi-evaluate", "--multirun", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"),
        *(*SCENES, "scenes=[zero],[one]", "hydra.sweep.dir=run"),
    ),
    "Lightning": ("cassi-train", *TRAINING, "logger=csv", "trainer=ddp_cpu"),
}
PAGES = {"cassi-live": ("source=in/day", *CAMERA), "cassi-view": ()}


@pytest.fixture
def hostile(tmp_path):
    """A folder where every module writes its name into `mark`, and the environment of commands."""
    place, mark, programs = (tmp_path / name for name in ("stranger", "mark", "bin"))
    for folder in ("in/day", "in/cubes", "wandb"):
        (place / folder).mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(64, 64, generator=generator)
    cube = torch.linspace(0.2, 1, 64).expand(1, 5, 64, 64).contiguous()
    for name in ("zero", "one"):
        cassi.write_cube(place / f"in/cubes/{name}.tif", cube, [450, 500, 550, 600, 650])
    for number in range(2):
        frame = cassi.SDCassi(mask, bands=5)(cube)[0, 0].numpy()
        tifffile.imwrite(place / f"in/day/{number}.tif", frame)
    tifffile.imwrite(place / "in/mask.tif", mask.numpy())
    for name in {*sys.stdlib_module_names, *packages_distributions(), *OPTIONAL} - {"cassi"}:
        text = f"with open({str(mark)!r}, 'a') as mark: mark.write({name!r} + '\\n')\n"
        (place / f"{name}.py").write_text(text)
    (place / "matplotlibrc").write_text("text.usetex: True\n")
    (place / "wandb/settings").write_text("[default]\nbase_url = http://stranger.invalid\n")
    programs.mkdir()
    for name in ("latex", "dvipng", "git", "gs"):
        (programs / name).write_text(f"#!/bin/sh\necho {name} >> {mark}\nexit 1\n")
        (programs / name).chmod(0o755)
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    return place, mark, {"PATH": path, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}


def touched(mark):
    return mark.read_text().split() if mark.exists() else []


def run(hostile, name, *options):
    place, mark, environment = hostile
    folder = () if "--multirun" in options else ("hydra.run.dir=run",)
    command = [Path(sys.executable).with_name(name), *options, *folder]
    done = subprocess.run(
        command, cwd=place, env=os.environ | environment, capture_output=True, text=True
    )
    assert touched(mark) == []
    assert done.returncode == 0, done.stderr
    assert "stranger.invalid" not in done.stdout + done.stderr  # where wandb would go


def test_every_command_is_tried():
    written = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert {*RUNS, *PAGES} == set(written)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_command_runs_nothing_of_its_folder(hostile, name):
    run(hostile, name, *RUNS[name])


@pytest.mark.release
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launchers_run_nothing_of_the_folder(hostile, launcher):
    run(hostile, *LAUNCHERS[launcher])


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_runs_nothing_of_its_folder(hostile, open_tab, name):
    place, mark, environment = hostile
    command = [Path(sys.executable).with_name(name), *PAGES[name], "--no-browser"]
    options = {"cwd": place, "env": os.environ | environment, "text": True}
    with subprocess.Popen(command, stdout=subprocess.PIPE, **options) as process:
        try:
            if name == "cassi-view":
                address = process.stdout.readline().split()[-1]
                page = open_tab(address, "http://127.0.0.1:", harmless=("",))
                page.get_by_role("button", name="Take the example").click(timeout=200_000)
            wait_until(lambda: "cassi.data.reader_process" in started_by(process.pid), process)
            time.sleep(1)  # the reader imports what it takes
        finally:
            process.terminate()
    assert touched(mark) == []


def started_by(number):
    """Return the command lines of the processes that a process has started."""
    threads = Path(f"/proc/{number}/task").glob("*/children")
    children = " ".join(path.read_text() for path in threads).split()
    return " ".join(Path(f"/proc/{child}/cmdline").read_text() for child in children)


def test_python_reads_files_without_the_folder(hostile):
    place, mark, _ = hostile
    program = (
        "import sys; sys.path[0] = '/'; import cassi; print(cassi.read_mask('in/mask.tif').shape)"
    )
    assert "64, 64" in python("-P", "-c", program, cwd=place, PYTHONPATH="")
    assert touched(mark) == []
