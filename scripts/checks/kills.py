"""Kill commands at random moments, and look at what is left and how they go on.

    python scripts/checks/kills.py --kills 100 --seed 0

Tiny runs of cassi-reconstruct (one snapshot, and a folder of three), cassi-evaluate and cassi-train
are sent SIGKILL or SIGTERM at moments drawn uniformly over the time that they compute (Linux).
After each kill, every final file has to be readable and as its checksum says, and after SIGTERM the
command has to have said so in one line. Then the same command is given again, and maybe killed
again, until it completes; there must be no temporary file left, and the results have to be those of
a run that nobody disturbed: the cube's bytes, results.json byte for byte, weights, optimizer and
metrics.csv of the training bit for bit. One line is printed per kill and per end; the exit status
is 1 where something was not as it should be.

A run is a fork of a process that has imported everything and computed nothing, so that the kills
fall on the commands' own work; --fresh starts an interpreter each time instead.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

from cassi import read_cube, write_cube
from cassi.data.atomic import SUMS, check_archive, check_sums, unseal
from cassi.models.load import read_card
from cassi.training.tensors import read_tensors

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


TERMINATED = 143


def check_file(file: Path) -> None:
    """Read a final file to its end.

    Raises:
        Exception: it cannot be read, or is not what its checksum says.
    """
    if file.name == SUMS:
        check_sums(file.parent)
    elif file.suffix == ".json":
        content = json.loads(file.read_text())
        if "records" in file.parts:
            unseal(content)
    elif file.suffix in (".npy", ".npz", ".tif"):
        read_cube(file, axes=None)
    elif file.suffix == ".csv":
        with file.open(newline="") as stream:
            rows = list(csv.reader(stream, strict=True))
        if len({len(row) for row in rows}) != 1:
            raise ValueError("rows of different lengths")
    elif file.suffix == ".ckpt":
        read_tensors(file)
    elif file.suffix == ".safetensors":
        read_card(file)
    elif file.suffix == ".png":
        from PIL import Image

        with Image.open(file) as picture:
            picture.load()
    elif file.suffix == ".html":
        if not file.read_text(encoding="utf-8").rstrip().endswith("</html>"):
            raise ValueError("it is cut")
    elif file.suffix == ".yaml":
        from omegaconf import OmegaConf

        OmegaConf.load(file)
    elif file.suffix == ".pt":
        check_archive(file)
    elif file.suffix not in (".md", ".tex", ".bin", ".drawn"):
        raise ValueError("no check for this kind of file")


def final_files(folder: Path) -> Iterator[Path]:
    """Yield the files that are not temporary, nor Hydra's own copies of the configuration."""
    for file in sorted(folder.rglob("*")):
        parts = file.relative_to(folder).parts
        if file.is_file() and not any(part.startswith(".") for part in parts):
            yield file


def find_faults(folder: Path) -> list[str]:
    """Say of every final file what is wrong with it."""
    faults = []
    for file in final_files(folder):
        try:
            check_file(file)
        except Exception as error:
            faults.append(f"{file.relative_to(folder)}: {type(error).__name__}: {error}")
    return faults


def find_differences(case: Case, folder: Path, whole: Path) -> list[str]:
    """Say what a completed run has left, or made otherwise than the undisturbed one."""
    faults = [f"{name}: other bytes" for name in case.same if not _same(folder, whole, name)]
    for name in case.checkpoints:
        a, b = (_read_state(place / name) for place in (folder, whole))
        keys = [key for key in a.keys() | b.keys() if not _equal(a.get(key), b.get(key))]
        faults += [f"{name}: another {key}" for key in sorted(keys)]
    left = folder.rglob(".*cassi-*")
    return faults + [f"{file.relative_to(folder)}: was left" for file in left]


def _same(folder: Path, whole: Path, name: str) -> bool:
    return (folder / name).read_bytes() == (whole / name).read_bytes()


def _read_state(file: Path) -> dict[str, Any]:
    if file.suffix == ".safetensors":  # its bytes are in another order in each process
        return {**load_file(file), "card": asdict(read_card(file))}
    # Paths differ, and so does the time that Lightning's timers have seen.
    state = read_tensors(file)
    return {key: value for key, value in state.items() if key not in ("callbacks", "loops")}


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def judge_end(number: int, status: int, log: Path) -> list[str]:
    """Say what is wrong with how a command ended after a signal."""
    text = log.read_text(errors="replace")
    faults = [f"a traceback: {text[-2000:]}"] if "Traceback" in text else []
    if number == signal.SIGKILL:
        return faults
    # Before the command has taken charge of the signal the system ends it, and at the very end it
    # may be done all the same.
    if status not in (TERMINATED, -signal.SIGTERM, 0):
        faults.append(f"exit status {status}")
    if "ignored" in text:
        faults.append(f"ignored: {text[text.index('ignored') - 20 :][:300]!r}")
    said = [line for line in text.splitlines() if "terminated; " in line]
    if status == TERMINATED and len(said) != 1:
        faults.append(f"{len(said)} lines about it")
    return faults


@dataclass(frozen=True)
class Run:
    """A process that has been started."""

    number: int
    log: Path

    def ends_before(self, seconds: float, pause: float) -> bool:
        """Wait until it has computed so long, and then a pause; tell whether it ended first.

        A busy machine makes it wait in between, so that the clock says nothing of where it is.
        """
        while _cpu_seconds(self.number) < seconds:
            if self._has_ended():
                return True
            time.sleep(0.02)
        time.sleep(pause)
        return self._has_ended()

    def _has_ended(self) -> bool:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.number, options) is not None

    def wait(self) -> int:
        """Return the exit status, negative after a signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self.number, 0)[1])


def start(case: Case, folder: Path, fresh: bool) -> Run:
    """Start a command; what it prints goes to a file beside its folder."""
    log = folder.with_suffix(".log")
    arguments = [case.module, *case.options, f"hydra.run.dir={folder}"]
    if fresh:
        with log.open("w") as stream:
            command = [sys.executable, "-m", *arguments]
            return Run(subprocess.Popen(command, stdout=stream, stderr=stream).pid, log)
    number = os.fork()
    if number:
        return Run(number, log)
    status = 1
    try:
        with log.open("w") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        sys.argv = arguments
        import_module(case.module).main()
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    except BaseException:  # the interpreter would say so, which this one does not live to
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _cpu_seconds(process: int) -> float:
    """Return the seconds that a process has computed, to 10 ms."""
    # The name, in brackets, may hold spaces; user and system time are fields 14 and 15.
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Checker:
    """Kills, looks, goes on, compares.

    Attributes:
        cases: by name.
        root: where they run; the undisturbed runs are in `whole-NAME`.
        fresh: start an interpreter for each run.
    """

    cases: dict[str, Case]
    root: Path
    fresh: bool

    def run_undisturbed(self, name: str) -> float:
        """Make the run that the others are compared with, and return its seconds of computing."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run = start(self.cases[name], self.root / f"whole-{name}", self.fresh)
        faults = find_faults(self.root / f"whole-{name}") if run.wait() == 0 else ["it failed"]
        if faults:
            raise RuntimeError(f"{name}: {'; '.join(faults)}: {run.log.read_text()[-2000:]}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def kill_many(self, kills: int, seed: int, seconds: dict[str, float]) -> Counter[str]:
        """Kill runs, one case after the other, until there were so many kills.

        Returns:
            How often what was killed how, and the numbers of kills, ends and faults.
        """
        draw, counts = random.Random(seed), Counter[str]()
        names = sorted(self.cases)
        draw.shuffle(names)
        while counts["kills"] < kills:
            name = names[counts["runs to their end"] % len(names)]
            folder = self.root / f"{name}-{seed}-{counts['runs to their end']}"
            # The first run is killed for sure, those that go on rather than not.
            while counts["kills"] < kills and (not folder.exists() or draw.random() < 0.65):
                number = draw.choice([signal.SIGKILL, signal.SIGTERM])
                moment = draw.uniform(0, seconds[name])
                run = start(self.cases[name], folder, self.fresh)
                if run.ends_before(moment, draw.uniform(0, 0.1)):
                    self._judge_whole(name, folder, run, counts)
                    continue
                os.kill(run.number, number)
                status = run.wait()
                faults = judge_end(number, status, run.log) + find_faults(folder)
                if status == 0:
                    faults += find_differences(self.cases[name], folder, self._whole(name))
                counts.update({"kills": 1, f"{name} {number.name}": 1, "faults": bool(faults)})
                result = "; ".join(faults) or "every final file valid"
                say(f"{name} {number.name} after {moment:.2f} s, status {status}: {result}")
            self._judge_whole(name, folder, start(self.cases[name], folder, self.fresh), counts)
            counts["runs to their end"] += 1
        return counts

    def _whole(self, name: str) -> Path:
        return self.root / f"whole-{name}"

    def _judge_whole(self, name: str, folder: Path, run: Run, counts: Counter[str]) -> None:
        status, faults = run.wait(), find_faults(folder)
        if status == 0:
            faults += find_differences(self.cases[name], folder, self._whole(name))
        else:
            faults.append(f"exit status {status}: {run.log.read_text()[-500:]}")
        counts["faults"] += bool(faults)
        result = "; ".join(faults) or "as if nothing had happened"
        say(f"{name} to its end: {result}")


say = partial(print, flush=True)


def main() -> None:
    """Read the options, and check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--fresh", action="store_true", help="a new interpreter for each run")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    if not arguments.fresh:
        slow = ("lightning.pytorch", "matplotlib.figure", "PIL.Image", "tifffile", "cassi.viz")
        apps = ("reconstruct", "evaluate", "train")
        for module in (*slow, "cassi.training.module", *(f"cassi.apps.{app}" for app in apps)):
            import_module(module)
    with tempfile.TemporaryDirectory(prefix="cassi-kills-") as place:
        (Path(place) / "data").mkdir()
        cases = make_cases(Path(place) / "data")
        checker = Checker(cases, Path(place), arguments.fresh)
        jobs = range(arguments.jobs)
        shares = [len(range(job, arguments.kills, arguments.jobs)) for job in jobs]
        seeds = [arguments.seed * 1000 + job for job in jobs]
        with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("fork")) as pool:
            seconds = dict(zip(cases, pool.map(checker.run_undisturbed, cases), strict=True))
            say("undisturbed:", ", ".join(f"{name} {s:.1f} s" for name, s in seconds.items()))
            parts = list(pool.map(checker.kill_many, shares, seeds, [seconds] * len(jobs)))
    counts = sum(parts, Counter[str](faults=0))
    say(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    say(f"{counts['kills']} kills, {counts['faults']} faults")
    sys.exit(counts["faults"] > 0)


if __name__ == "__main__":
    main()
