"""Kill commands at random moments, and check the files that are left and the resumed runs.

    python -m scripts.checks.kills --kills 100 --seed 0
    python -m scripts.checks.kills --renames --only train

Tiny runs of cassi-reconstruct (one snapshot, and a folder of three), cassi-evaluate, cassi-train
and cassi-calibrate get SIGKILL or SIGTERM after a random CPU time (Linux). After each kill, every
final file must be readable and match its checksum, and no process that the command started may
still run. After SIGTERM the command must have printed one line about it. Then the same command is
started again, and maybe killed again, until it completes. Then no temporary file may be left, and
the results must equal those of an undisturbed run bit for bit. Compared are the cube and
results.json, and for a training its weights, optimizer state and metrics.csv. One line is printed
per kill and per completed run. The exit status is 1 if there was a fault.

With `--renames`, one run is killed after its first rename, another after its second, and so on.
That covers all states of the files, because nothing changes under a final name between renames.

A run is a fork of a process that has imported all modules and computed nothing. So the kills come
during the command's own work.
"""

import argparse
import contextlib
import csv
import ctypes
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from PIL import Image
from safetensors.torch import load_file
from torch.utils._pytree import tree_flatten

from cassi import read_cube, write_cube
from cassi.data import sandboxed_reader
from cassi.data.atomic import check_archive
from cassi.data.store import Store
from cassi.models.load import read_card
from cassi.training.tensors import read_tensors

NANOMETRES = [450, 500, 550, 600, 650]


@dataclass(frozen=True)
class Case:
    """A command, and the files by which two of its runs are compared.

    Attributes:
        module: module of the command.
        options: options without the folder.
        equal_files: files whose bytes do not depend on the run.
        checkpoints: files of tensors, which must hold the same state of the training.
    """

    module: str
    options: tuple[str, ...]
    equal_files: tuple[str, ...]
    checkpoints: tuple[str, ...] = ()


def make_cases(data: Path) -> dict[str, Case]:
    """Write three scenes, their snapshots and a mask; return the commands on them."""
    from cassi import SDCassi

    generator = torch.Generator().manual_seed(3)
    large_mask = (torch.rand(64, 64, generator=generator) > 0.5).float() * 0.9 + 0.1
    np.save(data / "large-mask.npy", large_mask.numpy())
    frame = SDCassi(large_mask, bands=5, step=1)(torch.ones(1, 5, 64, 64))[0, 0]
    np.save(data / "large.npy", frame.numpy())
    mask = large_mask[:24, :24]
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
    snapshot_options = (*camera, *solver, "output.progress=false", "output.cube=cube.npy")
    methods = "reconstructors=[{name: a, method: gap_tv, overrides: {solver.iterations: 10}},"
    methods += "{name: b, method: gap_tv, overrides: {solver.iterations: 20}}]"
    nm = ",".join(map(str, NANOMETRES))
    return {
        "reconstruct": Case(
            "cassi.apps.reconstruct",
            (f"measurement={data / 'snapshots' / 'one.npy'}", *snapshot_options),
            ("cube.npy",),
        ),
        "snapshots": Case(
            "cassi.apps.reconstruct",
            (f"measurement={data / 'snapshots'}", *snapshot_options, "output.pictures=false"),
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


def _check_rows(file: Path) -> None:
    with file.open(newline="") as stream:
        rows = list(csv.reader(stream, strict=True))
    if len({len(row) for row in rows}) != 1:
        raise ValueError("rows of different lengths")


def _check_store(file: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Store(file.parent).read_all()


def _check_page(file: Path) -> None:
    if not file.read_text(encoding="utf-8").rstrip().endswith("</html>"):
        raise ValueError("its end is missing")


# Functions that read the whole of a final file, by suffix.
CHECKS: dict[str, Callable[[Path], object]] = {
    ".json": lambda file: json.loads(file.read_text()),
    ".sqlite": _check_store,
    ".npy": np.load,
    ".npz": partial(read_cube, axes=None),
    ".tif": partial(read_cube, axes=None),
    ".csv": _check_rows,
    ".ckpt": read_tensors,
    ".safetensors": read_card,
    ".png": lambda file: Image.open(file).load(),
    ".html": _check_page,
    ".yaml": OmegaConf.load,
    ".pt": check_archive,
    **dict.fromkeys((".md", ".tex", ".bin", ".drawn", ""), Path.read_bytes),
}


def final_files(folder: Path) -> Iterator[Path]:
    """Yield all files except temporary ones and Hydra's own copies of the configuration."""
    for file in sorted(folder.rglob("*")):
        parts = file.relative_to(folder).parts
        if file.is_file() and not any(part.startswith(".") for part in parts):
            yield file


def find_faults(folder: Path) -> list[str]:
    """Return a text for every final file that cannot be read."""
    faults = []
    for file in final_files(folder):
        try:
            CHECKS[file.suffix](file)
        except Exception as error:
            faults.append(f"{file.relative_to(folder)}: {type(error).__name__}: {error}")
    return faults


def find_differences(case: Case, folder: Path, reference: Path) -> list[str]:
    """Return how a completed run differs from the undisturbed one, and its temporary files."""
    faults = []
    for name in case.equal_files:
        if (reference / name).read_bytes() != (folder / name).read_bytes():
            faults.append(f"{name}: other bytes")
    for name in case.checkpoints:
        state, expected = (_read_state(root / name) for root in (folder, reference))
        keys = state.keys() | expected.keys()
        keys = {key for key in keys if not _is_equal(state.get(key), expected.get(key))}
        faults += [f"{name}: another {key}" for key in sorted(keys)]
    temporary_files = folder.rglob(".*cassi-*")
    return faults + [f"{file.relative_to(folder)}: temporary file" for file in temporary_files]


def _read_state(file: Path) -> dict[str, Any]:
    """Return the contents of a checkpoint that must be equal in all runs."""
    # The order of the tensors in a safetensors file differs from process to process.
    if file.suffix == ".safetensors":
        return {**load_file(file), "card": asdict(read_card(file))}
    # Callbacks contain paths, and loops contain the times of Lightning's timers. Both differ from
    # run to run.
    state = read_tensors(file)
    return {key: value for key, value in state.items() if key not in ("callbacks", "loops")}


def _is_equal(a: Any, b: Any) -> bool:
    (a, a_tree), (b, b_tree) = tree_flatten(a), tree_flatten(b)
    pairs = zip(a, b, strict=False)
    return a_tree == b_tree and all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in pairs
    )


def judge_end(signal_number: int, status: int, log: Path) -> list[str]:
    """Return the faults in a command's exit status and output after a signal."""
    text = log.read_text(errors="replace")
    faults = [f"a traceback: {text[-2000:]}"] if "Traceback" in text else []
    # Besides TERMINATED, two exit statuses are right: -SIGTERM if the command has not installed its
    # handler yet, and 0 if the command is done before it handles the signal.
    if signal_number == signal.SIGTERM and status not in (TERMINATED, -signal.SIGTERM, 0):
        faults.append(f"exit status {status}")
    if status == TERMINATED and text.count("terminated; ") != 1:
        faults.append(f"expected one line about the signal: {text[-500:]}")
    return faults


# If a command is killed, its sandboxed reader must end by itself within so many seconds.
ORPHAN_SECONDS = 15


def await_orphans() -> list[str]:
    """Wait until all processes that a command has started end; name and kill those that do not."""
    deadline, reader = time.monotonic() + ORPHAN_SECONDS, sandboxed_reader.process_id()
    while orphans := [n for n in _children() if n != reader and not _has_ended(n)]:
        if time.monotonic() > deadline:
            names = [Path(f"/proc/{process_id}/cmdline").read_text()[:80] for process_id in orphans]
            for process_id in orphans:
                os.kill(process_id, signal.SIGKILL)
                os.waitpid(process_id, 0)
            return [f"process left: {name!r}" for name in names]
        time.sleep(0.02)
    return []


def _children() -> list[int]:
    return [int(n) for n in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _has_ended(process_id: int) -> bool:
    return os.waitpid(process_id, os.WNOHANG)[0] == process_id


def ends_before(process_id: int, seconds: float, pause: float) -> bool:
    """Wait until a process has used so much CPU time, and then pause; tell whether it has ended.

    CPU time is used because, on a busy machine, wall-clock time does not say how far the process
    is.
    """

    def has_ended() -> bool:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, process_id, options) is not None

    while not has_ended():
        # The name, in brackets, may contain spaces. User and system time are fields 14 and 15, or
        # 11 and 12 counted from 0 behind the name.
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
        if (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") >= seconds:
            time.sleep(pause)
            break
        time.sleep(0.02)
    return has_ended()


def start(case: Case, folder: Path, begin: Callable[[], object] = lambda: None) -> int:
    """Start a command in a fork of this process; its output goes to a file beside its folder.

    Args:
        case: the command.
        folder: the folder of its results.
        begin: function that the new process calls first.

    Returns:
        The process id of the new process.
    """
    process_id = os.fork()
    if process_id:
        return process_id
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
    # The interpreter would print the traceback when it ends, but os._exit leaves that out.
    except BaseException:
        traceback.print_exc()
    finally:
        for output in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                output.flush()
        os._exit(status)


def end_at_rename(count: int) -> None:
    """Let this process end, as by SIGKILL, directly after so many renames and hard links."""
    remaining = itertools.count(count - 1, -1)

    def end_after(change: Callable[..., None]) -> Callable[..., None]:
        def change_and_end(*names: Any, **options: Any) -> None:
            change(*names, **options)
            if next(remaining) == 0:
                os._exit(KILLED)

        return change_and_end

    for name in ("rename", "replace", "link"):
        setattr(os, name, end_after(getattr(os, name)))


def wait(process_id: int) -> int:
    """Wait for process `process_id`; return its exit status, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1])


@dataclass(frozen=True)
class Checker:
    """Kills runs, checks what is left, resumes and compares them.

    Attributes:
        cases: the cases by name.
        root: folder of all runs; the folder of an undisturbed run is called `whole-NAME`.
        counts: numbers of kills and faults.
    """

    cases: dict[str, Case]
    root: Path
    counts: Counter[str]

    def run_undisturbed(self, name: str) -> float:
        """Run a case without a kill, to compare the others with, and return its CPU seconds."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_seconds = usage.ru_utime + usage.ru_stime
        folder = self.root / f"whole-{name}"
        status = wait(start(self.cases[name], folder))
        if faults := find_faults(folder) if status == 0 else ["it failed"]:
            output = folder.with_suffix(".log").read_text()[-2000:]
            raise RuntimeError(f"{name}: {'; '.join(faults)}: {output}")
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime - cpu_seconds

    def kill_many(self, kills: int, seed: int) -> None:
        """Kill runs of all cases in turn, until there were so many kills."""
        draw, names = random.Random(seed), sorted(self.cases)
        seconds = {name: self.run_undisturbed(name) for name in names}
        draw.shuffle(names)
        for run in itertools.count():
            name = names[run % len(names)]
            folder = self.root / f"{name}-{run}"
            # The first run of a folder is always killed, and resumed ones in 65 % of all cases.
            is_resumed = False
            while self.counts["kills"] < kills and (not is_resumed or draw.random() < 0.65):
                is_resumed = True
                signal_number = draw.choice([signal.SIGKILL, signal.SIGTERM])
                moment, process_id = draw.uniform(0, seconds[name]), start(self.cases[name], folder)
                if ends_before(process_id, moment, draw.uniform(0, 0.1)):
                    self.judge(f"{name} to its end", name, folder, wait(process_id))
                    continue
                os.kill(process_id, signal_number)
                status = wait(process_id)
                faults = judge_end(signal_number, status, folder.with_suffix(".log"))
                self.counts["kills"] += 1
                title = f"{name} {signal_number.name} after {moment:.2f} s, status {status}"
                self.judge(title, name, folder, 0 if status == 0 else None, faults)
            status = wait(start(self.cases[name], folder))
            self.judge(f"{name} to its end", name, folder, status)
            if self.counts["kills"] >= kills:
                return

    def kill_at_renames(self) -> None:
        """Kill a run of each case after its first rename, another after its second, and so on."""
        for name, case in self.cases.items():
            self.run_undisturbed(name)
            for count in itertools.count(1):
                folder = self.root / f"{name}-renamed-{count}"
                if wait(start(case, folder, partial(end_at_rename, count))) != KILLED:
                    break
                self.counts["kills"] += 1
                self.judge(f"{name} behind rename {count}", name, folder, None)
                self.judge(f"{name} to its end", name, folder, wait(start(case, folder)))

    def judge(
        self, title: str, name: str, folder: Path, status: int | None, faults: Sequence[str] = ()
    ) -> None:
        """Count and print the faults of a run; its status is None if it was killed."""
        faults = [*faults, *await_orphans(), *find_faults(folder)]
        if status == 0:
            faults += find_differences(self.cases[name], folder, self.root / f"whole-{name}")
        elif status is not None:
            output = folder.with_suffix(".log").read_text()[-500:]
            faults.append(f"exit status {status}: {output}")
        self.counts["faults"] += bool(faults)
        print(f"{title}: {'; '.join(faults) or 'right'}", flush=True)


def prepare() -> None:
    """Import the modules that the forks need, and let orphaned processes become children."""
    # PR_SET_CHILD_SUBREAPER: if a command is killed, its processes become children of this one.
    if ctypes.CDLL(None).prctl(36, 1, 0, 0, 0):
        raise OSError("prctl failed")
    # A fork would wait forever for threads that only exist in its parent.
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    libraries = ("lightning.pytorch", "matplotlib.figure", "tifffile", "cassi.viz")
    apps = ("reconstruct", "evaluate", "train", "calibrate")
    for module in (*libraries, "cassi.training.module", *(f"cassi.apps.{app}" for app in apps)):
        import_module(module)


def main() -> int:
    """Run the check; return 1 if there were faults."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="name of a case")
    parser.add_argument("--renames", action="store_true", help="kill after every rename instead")
    options = parser.parse_args()
    prepare()
    counts = Counter(kills=0, faults=0)
    with tempfile.TemporaryDirectory(prefix="cassi-kills-") as folder:
        (Path(folder) / "data").mkdir()
        cases = make_cases(Path(folder) / "data")
        cases = {name: case for name, case in cases.items() if options.only in (None, name)}
        checker = Checker(cases, Path(folder), counts)
        if options.renames:
            checker.kill_at_renames()
        else:
            checker.kill_many(options.kills, options.seed)
    print(f"{counts['kills']} kills, {counts['faults']} faults")
    return int(counts["faults"] > 0)


if __name__ == "__main__":
    sys.exit(main())
