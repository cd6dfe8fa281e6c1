"""What tests of several folders make their inputs of."""

import contextlib
import csv
import faulthandler
import functools
import inspect
import os
import signal
import sqlite3
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

import cassi.solvers
from cassi.data.io import write_cube
from cassi.data.store import Store
from cassi.models.registry import find_model, list_models
from cassi.systems.examples import EXAMPLES

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


def python(*arguments, cwd=ROOT, **environment):
    """Run Python, in the root of the repository; return what it prints, or fail with it."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def run_command(name, arguments, folder, outputs, environment):
    """Run a command in this process, a new one: in a folder, its outputs into two files."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, path in enumerate(outputs, 1):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # of tests below nohup it is ignored
    faulthandler.register(signal.SIGUSR2)
    torch.set_num_threads(1)
    sys.argv = [f"cassi-{name}", *arguments]
    import_module(f"cassi.apps.{name}").main()


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


def before_a_push(values, kept, others="release"):
    """Return parameters of a test: `make test` has those that are kept, others have a mark.

    A value may be a tuple of several arguments.
    """
    mark = getattr(pytest.mark, others)
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=[] if value in kept else [mark],
        )
        for value in values
    ]


def diagonal(*axes):
    """Return combinations that have every value: as many as the longest axis."""
    axes = [list(axis) for axis in axes]
    longest = max(map(len, axes))
    return [tuple(axis[i % len(axis)] for axis in axes) for i in range(longest)]


def first_of_each(names, kind):
    """Return the first name of each kind, in their order."""
    return list({kind(name): name for name in reversed(list(names))}.values())[::-1]


@functools.cache
def _class_and_closed_form():
    """Return of each example camera its class, and whether it has a closed form."""
    made = ((name, make()) for name, make in EXAMPLES.items())
    return {name: (type(system), system.has_closed_form) for name, system in made}


def systems_of_each_class():
    """Return one name of `EXAMPLES` for each class of cameras."""
    return first_of_each(EXAMPLES, lambda name: _class_and_closed_form()[name][0])


def quick_systems():
    """Return names of `EXAMPLES`: one of each class, and all with a closed form."""
    one = systems_of_each_class()
    return [name for name in EXAMPLES if _class_and_closed_form()[name][1] or name in one]


def kind_of_network(name):
    """Return what networks have in common that differ in the number of stages only."""
    entry = find_model(name)
    return entry.make, str({key: v for key, v in entry.settings.items() if key != "stages"})


def distinct_networks():
    """Return the networks that differ in more than the number of stages, one name of each."""
    return first_of_each(list_models(shipped=False), kind_of_network)


SMALL = {
    "stages": 2,
    "size": (64, 64),
    "start": 3,
    "training_start": 3,
    "channels": 8,
}


def small_settings(name):
    """Return the settings that make a network small, of those that it knows."""
    known = inspect.signature(find_model(name).make).parameters
    return {key: value for key, value in SMALL.items() if key in known}


def networks_of_each_class():
    """Return one name for each class of networks, of `s`, `m` and `l` the smallest."""
    return first_of_each(distinct_networks()[::-1], lambda name: find_model(name).make)


every_network = pytest.mark.parametrize(
    "name", before_a_push(distinct_networks(), networks_of_each_class(), "thorough")
)
"""A test of all networks: of those that differ in size or in what they repeat, CI has one."""


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


def read_rows(path):
    """Return the rows of a table."""
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def snapshots_in(folder):
    """Return the rows of the table of many snapshots by their names."""
    return {row["name"]: row for row in read_rows(folder / "results.csv")}


def cubes_in(folder):
    """Return the bytes of the cubes of many snapshots by their names."""
    return {path.parent.name: path.read_bytes() for path in folder.glob("*/cube.tif")}


def stamps(folder, pattern="*/*.json"):
    """Return when each file of a pattern was written."""
    return {path: path.stat().st_mtime_ns for path in folder.glob(pattern)}


def runs_in(folder):
    """Return what the runs of an evaluation took: another time where one was done again."""
    return {name: str(values["timing"]) for name, values in Store(folder).read_all().items()}


def damage_record(folder, name, old, new):
    """Change the text of a record, and not its checksum."""
    with contextlib.closing(sqlite3.connect(Store(folder).file, isolation_level=None)) as opened:
        change = "UPDATE results SET record = replace(record, ?, ?) WHERE name = ?"
        assert opened.execute(change, (old, new, name)).rowcount == 1


def wait_until(condition, process=None, seconds=200):
    """Wait for something that a process brings about, if it goes on."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def write_scene(folder, size, bands, centres):
    """Write `truth.tif` and `mask.npy` of a smooth scene `(C, size, size)`; return the scene.

    Args:
        folder: of the files.
        size: rows and columns.
        bands: from 450 to 650 nm.
        centres: of the spectra that it is mixed of, 0 for the first band and 1 for the last.
    """
    random = seeded()
    maps = torch.rand(1, len(centres), size // 8, size // 8, generator=random)
    maps = torch.nn.functional.interpolate(maps, size=(size, size), mode="bicubic")[0].clamp(0, 1)
    wave = torch.linspace(0, 1, bands)
    spectra = torch.stack([torch.exp(-(((wave - c) / 0.4) ** 2)) for c in centres])
    x = torch.einsum("khw,kc->chw", maps, spectra) / 2
    write_cube(folder / "truth.tif", x, wavelengths=np.linspace(450, 650, bands))
    mask = (torch.rand(size, size, generator=random) > 0.5).numpy().astype(np.uint8)
    np.save(folder / "mask.npy", mask)
    return x


def write_toolbox(root, side, crop, cubes=None):
    """Write a small folder `datasets` of the MST toolbox; return it.

    Args:
        root: the folder.
        side: of the training scenes, pixels.
        crop: of masks and test scenes, pixels.
        cubes: values (H, W, 28) in [0, 1] for the training scenes, at least of that side.
    """
    rng = np.random.default_rng(0)

    def write(name, **content):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        savemat(root / name, content, do_compression=True)

    if cubes is None:
        cubes = [rng.random((side, side, 28)) for _ in range(3)]
    counts = [(cube[:side, :side] * 65535).astype(np.uint16) for cube in cubes]
    write("cave_1024_28/scene1.mat", img_expand=counts[0])
    write("cave_1024_28/scene10.mat", img=counts[1].astype(np.float64))
    write("cave_1024_28/scene2.mat", img_expand=counts[2] * 1.1, img=counts[0])
    write("cave_1024_28/scene206.mat", img_expand=counts[0])
    for number in (1, 2):
        write(f"CAVE_512_28/scene{number}.mat", data_slice=counts[number])
        write(f"KAIST_CVPR2021/{number}.mat", HSI=1.4 * rng.random((side, side, 28)) - 0.2)
    for number in range(1, 11):
        values = rng.random((crop, crop, 28)) - 0.01
        write(f"TSA_simu_data/Truth/scene{number:02}.mat", img=values)
    mask = rng.random((crop, crop)) * 0.9 + 0.1
    shifted = np.zeros((crop, crop + 54, 28))
    for band in range(28):
        shifted[:, 2 * band : 2 * band + crop, band] = mask
    write("TSA_simu_data/mask.mat", mask=mask)
    write("TSA_simu_data/mask_3d_shift.mat", mask_3d_shift=shifted)
    write("TSA_real_data/mask.mat", mask=mask)
    for number in range(1, 6):
        meas = rng.random((crop, crop + 54))
        write(f"TSA_real_data/Measurements/scene{number}.mat", meas_real=meas)
    return root


def invert(tries, number):
    """A job: return 1 / number; that of 0 kills its process, and leaves a byte of each try."""
    if number == 0:
        with tries.open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
    return 1 / number


def workers_of(process):
    """Return the numbers of the workers that a process has forked, or Dask has spawned for it."""
    found = []
    for child in _children(process):
        command = Path(f"/proc/{child}/cmdline").read_bytes().lower()
        found += _children(child) if b"forkserver" in command else []
        found += [child] if b"spawn_main" in command or b"dask worker" in command else []
    return found


def _children(process):
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]
