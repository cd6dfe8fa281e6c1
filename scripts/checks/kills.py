"""Kill commands at random moments, and look at what is left and how they go on.

    python -m scripts.checks.kills --kills 100 --seed 0
    python -m scripts.checks.kills --renames --only train

Tiny runs of cassi-reconstruct (one snapshot, and a folder of three), cassi-evaluate, cassi-train
and cassi-calibrate are sent SIGKILL or SIGTERM at moments drawn uniformly over the time that they
compute (Linux). After each kill, every final file has to be readable and as its checksum says, no
process that the command started may live on, and after SIGTERM the command has to have said so in
one line. Then the same command is given again, and maybe killed again, until it completes; there
must be no temporary file left, and the results have to be those of a run that nobody disturbed: the
cube's bytes, results.json byte for byte, weights, optimizer and metrics.csv of the training bit for
bit. One line is printed per kill and per end; the exit status is 1 where something was not as it
should be. With `--renames` a run is killed right behind each of its renames, one after the other:
between those nothing changes under a final name.

A run is a fork of a process that has imported everything and computed nothing, so that the kills
fall on the commands' own work.
"""

import argparse
import contextlib
import csv
import ctypes
import difflib
import itertools
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from safetensors.torch import load_file

from cassi import read_cube, write_cube
from cassi.data import door
from cassi.data.atomic import check_archive
from cassi.data.store import Store
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
    large = (torch.rand(96, 96, generator=generator) > 0.5).float() * 0.9 + 0.1
    np.save(data / "large-mask.npy", large.numpy())
    frame = SDCassi(large, bands=5, step=1)(torch.ones(1, 5, 96, 96))[0, 0]
    np.save(data / "large.npy", frame.numpy())
    mask = large[:24, :24]
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
        "calibrate": Case(
            "cassi.apps.calibrate",
            (
                *(f"measurement={data / 'large.npy'}", f"mask={data / 'large-mask.npy'}"),
                *("system.step=1", "system.bands=5", "solver=gap", "prior=tv", "threads=1"),
                "solver.iterations=3",
            ),
            ("mask.npy",),
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


KILLED, TERMINATED = 137, 143


def check_file(file: Path) -> None:
    """Read a final file to its end.

    Raises:
        Exception: it cannot be read, or is not what its checksum says.
    """
    if file.suffix == ".json":
        json.loads(file.read_text())
    elif file.suffix == ".sqlite":
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Store(file.parent).all()
    elif file.suffix == ".npy":
        np.load(file, allow_pickle=False)
    elif file.suffix in (".npz", ".tif"):
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
    faults = []
    for name in case.same:
        a, b = ((place / name).read_bytes() for place in (whole, folder))
        if a != b:
            before, after = ([repr(line) for line in content.splitlines()] for content in (a, b))
            changed = list(difflib.unified_diff(before, after, "undisturbed", "this one", n=0))[:12]
            faults.append(f"{name}: other bytes: {' '.join(changed)[:2000]}")
    for name in case.checkpoints:
        here, there = (_read_state(place / name) for place in (folder, whole))
        keys = [k for k in here.keys() | there.keys() if not _equal(here.get(k), there.get(k))]
        faults += [f"{name}: another {key}" for key in sorted(keys)]
    left = folder.rglob(".*cassi-*")
    return faults + [f"{file.relative_to(folder)}: was left" for file in left]


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


PATIENCE = 15
"""Seconds until a process that reads files, and has nobody left to ask it, has ended."""


def adopt_orphans() -> None:
    """Make this process the parent of those whose own parent ends before them."""
    if ctypes.CDLL(None).prctl(36, 1, 0, 0, 0):  # PR_SET_CHILD_SUBREAPER
        raise OSError("prctl failed")


def await_orphans() -> list[str]:
    """Wait until what a command has started has ended, and name what has not."""
    until, own = time.monotonic() + PATIENCE, door.process_number()
    while left := [number for number in _children() if number != own and not _has_ended(number)]:
        if time.monotonic() > until:
            names = [Path(f"/proc/{number}/cmdline").read_text()[:80] for number in left]
            for number in left:
                os.kill(number, signal.SIGKILL)
                os.waitpid(number, 0)
            return [f"process left: {name!r}" for name in names]
        time.sleep(0.02)
    return []


def _children() -> list[int]:
    return [int(n) for n in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _has_ended(number: int) -> bool:
    return os.waitpid(number, os.WNOHANG)[0] == number


def ends_before(number: int, seconds: float, pause: float) -> bool:
    """Wait until a process has computed so long, and then a pause; tell whether it ended first.

    A busy machine makes it wait in between, so that the clock says nothing of where it is.
    """

    def has_ended() -> bool:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, number, options) is not None

    while not has_ended():
        # The name, in brackets, may hold spaces; user and system time are fields 14 and 15.
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        if (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") >= seconds:
            time.sleep(pause)
            break
        time.sleep(0.02)
    return has_ended()


def start(case: Case, folder: Path, begin: Callable[[], object] = lambda: None) -> int:
    """Start a command as a fork; what it prints goes to a file beside its folder.

    Args:
        case: the command.
        folder: of its results.
        begin: is called in its process first.

    Returns:
        The number of its process.
    """
    number = os.fork()
    if number:
        return number
    status = 1
    try:
        with folder.with_suffix(".log").open("w") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        begin()
        sys.argv = [case.module, *case.options, f"hydra.run.dir={folder}"]
        import_module(case.module).main()
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    except BaseException:  # the interpreter would say so, which this one does not live to
        traceback.print_exc()
    finally:
        for out in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                out.flush()
        os._exit(status)


def end_at_rename(count: int) -> None:
    """Let this process end without a word right behind so many renames and hard links."""
    left = itertools.count(count - 1, -1)

    def ending(change: Callable[..., None]) -> Callable[..., None]:
        def change_and_end(*names: Any, **given: Any) -> None:
            change(*names, **given)
            if next(left) == 0:
                os._exit(KILLED)

        return change_and_end

    for name in ("rename", "replace", "link"):
        setattr(os, name, ending(getattr(os, name)))


def wait(number: int) -> int:
    """Return the exit status of a process, negative after a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


@dataclass(frozen=True)
class Checker:
    """Kills, looks, goes on, compares.

    Attributes:
        cases: by name.
        root: where they run; the undisturbed runs are in `whole-NAME`.
        counts: how often what was killed how, and the numbers of kills, ends and faults.
    """

    cases: dict[str, Case]
    root: Path
    counts: Counter[str]

    def run_undisturbed(self, name: str) -> float:
        """Make the run that the others are compared with, and return its seconds of computing."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        whole = self.root / f"whole-{name}"
        status = wait(start(self.cases[name], whole))
        faults = find_faults(whole) if status == 0 else ["it failed"]
        if faults:
            said = whole.with_suffix(".log").read_text()[-2000:]
            raise RuntimeError(f"{name}: {'; '.join(faults)}: {said}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def kill_many(self, kills: int, seed: int, seconds: dict[str, float]) -> None:
        """Kill runs, one case after the other, until there were so many kills."""
        draw, counts = random.Random(seed), self.counts
        names = sorted(self.cases)
        draw.shuffle(names)
        while counts["kills"] < kills:
            name = names[counts["runs to their end"] % len(names)]
            case, folder = self.cases[name], self.root / f"{name}-{counts['runs to their end']}"
            # The first run is killed for sure, those that go on rather than not.
            while counts["kills"] < kills and (not folder.exists() or draw.random() < 0.65):
                sent = draw.choice([signal.SIGKILL, signal.SIGTERM])
                moment, number = draw.uniform(0, seconds[name]), start(case, folder)
                if ends_before(number, moment, draw.uniform(0, 0.1)):
                    self.judge_whole(name, folder, wait(number))
                    continue
                os.kill(number, sent)
                status = wait(number)
                faults = judge_end(sent, status, folder.with_suffix(".log"))
                faults += await_orphans() + find_faults(folder)
                if status == 0:
                    faults += find_differences(case, folder, self.root / f"whole-{name}")
                counts.update({"kills": 1, f"{name} {sent.name}": 1, "faults": bool(faults)})
                result = "; ".join(faults) or "every final file valid"
                say(f"{name} {sent.name} after {moment:.2f} s, status {status}: {result}")
            self.judge_whole(name, folder, wait(start(case, folder)))
            counts["runs to their end"] += 1

    def kill_at_renames(self) -> None:
        """Kill a run of each case behind its first rename, another behind its second, and so on."""
        for name, case in self.cases.items():
            for count in itertools.count(1):
                folder = self.root / f"{name}-renamed-{count}"
                if wait(start(case, folder, partial(end_at_rename, count))) != KILLED:
                    break
                self.counts["kills"] += 1
                faults = await_orphans() + find_faults(folder)
                self.counts["faults"] += bool(faults)
                say(
                    f"{name} behind rename {count}: {'; '.join(faults) or 'every final file valid'}"
                )
                self.judge_whole(name, folder, wait(start(case, folder)))

    def conclude(self) -> NoReturn:
        """Print the counts, and end with status 1 where there were faults."""
        counts = self.counts
        say(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
        say(f"{counts['kills']} kills, {counts['faults']} faults")
        sys.exit(counts["faults"] > 0)

    def judge_whole(self, name: str, folder: Path, status: int) -> None:
        """Count and print what is wrong with a run that came to its end."""
        faults = await_orphans() + find_faults(folder)
        if status == 0:
            faults += find_differences(self.cases[name], folder, self.root / f"whole-{name}")
        else:
            said = folder.with_suffix(".log").read_text()[-500:]
            faults.append(f"exit status {status}: {said}")
        self.counts["faults"] += bool(faults)
        say(f"{name} to its end: {'; '.join(faults) or 'as if nothing had happened'}")


say = partial(print, flush=True)


def prepare() -> None:
    """Import what the commands do, for their forks, and take charge of what they leave."""
    adopt_orphans()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    slow = ("lightning.pytorch", "matplotlib.figure", "PIL.Image", "tifffile", "cassi.viz")
    apps = ("reconstruct", "evaluate", "train", "calibrate")
    for module in (*slow, "cassi.training.module", *(f"cassi.apps.{app}" for app in apps)):
        import_module(module)


def main() -> None:
    """Read the options, and check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="name of a case")
    parser.add_argument("--renames", action="store_true", help="kill behind every rename instead")
    arguments = parser.parse_args()
    prepare()
    with tempfile.TemporaryDirectory(prefix="cassi-kills-") as place:
        (Path(place) / "data").mkdir()
        cases = make_cases(Path(place) / "data")
        if arguments.only:
            cases = {arguments.only: cases[arguments.only]}
        checker = Checker(cases, Path(place), Counter(faults=0))
        seconds = {name: checker.run_undisturbed(name) for name in checker.cases}
        say("undisturbed:", ", ".join(f"{name} {s:.1f} s" for name, s in seconds.items()))
        if arguments.renames:
            checker.kill_at_renames()
        else:
            checker.kill_many(arguments.kills, arguments.seed, seconds)
    checker.conclude()


if __name__ == "__main__":
    main()
