"""Folders of results: a new one for each command, and one command for each folder."""

import contextlib
import fcntl
import glob
import itertools
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, read_write

from cassi import links
from cassi.apps.arguments import quoted
from cassi.checks import printable
from cassi.data.atomic import describe_oserror
from cassi.shares import ALL, Share, find_share

_PATIENCE = 2.0
"""Seconds to wait for a command that is about to end."""

_name: list[str] = [""]
"""Of the command that this process does."""
_held: dict[Path, int] = {}
_spare: list[tempfile.TemporaryDirectory[str]] = []
"""Folders of sweeps that are to leave nothing."""
_shared: set[Path] = set()
"""Of those that are held, what other shares of the same command may hold too."""
_new: set[Path] = set()
"""Named after the time, so that no other command knows of them."""


WRITTEN = {
    "cassi-reconstruct": ".done .passes .*.blocks .*.zarr.* rgb.png bands.png spectra.* "
    "uncertainty.* convergence.csv metrics.json report.html results.csv",
    "cassi-evaluate": "results.* cases.* benchmark.* timing.json report.html figures records",
    "cassi-train": "checkpoints tensorboard metrics.csv model.* ema.*",
    "cassi-calibrate": "camera.yaml mask.npy calibration.*",
    "cassi-camera": "camera.json camera.png cube.*",
    "cassi-export": "network.* run.* operators.* snapshot.f32 cube.f32 export.json",
}
"""Patterns of what a command writes into its folder, beside what its settings name."""
_JOBS = ("[0-9]*", "job[0-9]*", "*=*")
"""Patterns of the folders of a sweep's jobs."""


class Taken(BaseException):
    """A folder is not free, or not safe to write into.

    No `Exception`: Hydra makes warnings of those of a callback.
    """


class OneCommand(Callback):
    """Gives a command its folder before Hydra writes into it.

    A folder named after the time is a new one. Where another command has made that of the same
    second, a number follows: `12-30-01_2`. A folder that the user names is locked. `--info` locks
    none, nor does a process that follows another. With `dry_run` no folder is made.
    Raises `Taken` where another command writes the folder, or a link is in the way.
    """

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Make and lock the folder of a command that is no sweep."""
        if config.get("dry_run"):
            with read_write(config):  # `folder` still says where results would go
                config.folder = str(Path(config.hydra.run.dir).resolve())
                config.hydra.run.dir, config.hydra.output_subdir = ".", None
        else:
            _guard(Path(config.hydra.run.dir), config)
        if not may_hold(config.hydra):
            return
        try:
            share = find_share(config.share) if "share" in config else ALL
        except ValueError as error:
            raise Taken(str(error)) from None
        folder = _reserve(config, config.hydra.run)
        with contextlib.suppress(OSError):  # where none can be made, Hydra says why
            folder.mkdir(parents=True, exist_ok=True)
        if folder.is_dir():
            try:
                hold(folder, shared=share.count > 1)
            except ValueError as error:
                raise Taken(str(error)) from None

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Make the folder of a sweep; those of its jobs are locked one by one.

        They are named after what differs between jobs.
        """
        if config.get("dry_run"):
            spare = tempfile.TemporaryDirectory(prefix="cassi-")  # Hydra writes what the sweep is
            _spare.append(spare)
            with read_write(config.hydra):
                config.hydra.sweep.dir = spare.name
            _tell_jobs(config.hydra, f"hydra.sweep.dir={spare.name}", "hydra.output_subdir=null")
            return
        told = config.hydra.sweep.dir
        _guard(Path(told), config, _JOBS)
        if (folder := str(_reserve(config, config.hydra.sweep))) != told:
            _tell_jobs(config.hydra, f"hydra.sweep.dir={quoted(folder)}")
        common = common_keys(OmegaConf.select(config, "hydra.overrides.task") or [])
        key = "hydra.job.config.override_dirname.exclude_keys"
        if common:
            names = [*(OmegaConf.select(config, key) or []), *common]
            _tell_jobs(config.hydra, f"{key}=[{','.join(map(quoted, names))}]")


def _guard(folder: Path, config: Any, jobs: Sequence[str] = ()) -> None:
    """Let nothing be written through links in a folder; refuse those that are in the way now.

    `jobs` are patterns of the folders of a sweep's jobs.
    """
    own = (OmegaConf.select(config, key) for key in ("hydra.output_subdir", "output.cube"))
    names = [*WRITTEN.get(_name[0], "").split(), *(glob.escape(str(name)) for name in own if name)]
    links.guard(folder)
    try:
        links.check_names(folder, names)
        for job in (job for pattern in jobs for job in folder.absolute().glob(pattern)):
            links.check_parents(f"{job}/")
            links.check_names(job, names)
    except PermissionError as error:
        raise Taken(printable(str(error))) from None


def _tell_jobs(hydra: Any, *options: str) -> None:
    """Add options of Hydra's from which the configs of a sweep's jobs are composed."""
    if OmegaConf.select(hydra, "overrides.hydra") is not None:
        with read_write(hydra):
            hydra.overrides.hydra += list(options)


def common_keys(options: Sequence[str]) -> list[str]:
    """Return the keys of those options of a sweep that are the same for all jobs.

    None where no option differs, as of a sweeper that chooses the values itself.

    >>> common_keys(["seed=0,1", "data.crop=[16,32]", "model=mst_s"])
    ['data.crop', 'model']
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(list(options))
    swept = {option.key_or_group for option in parsed if option.is_sweep_override()}
    kept = dict.fromkeys(option.key_or_group for option in parsed)
    return sorted(kept.keys() - swept) if swept else []


def may_hold(hydra: Any) -> bool:
    """Tell whether a command is the one that writes its folder, of Hydra's own settings.

    Of `--info` nothing of Hydra goes into a folder. Of the processes of a training the first
    writes: those that torchrun, Lightning or srun starts.
    """
    ranks = ["RANK", "LOCAL_RANK"]
    ranks += ["SLURM_PROCID"] if hydra.job.name == "cassi-train" else []
    follows = any(os.environ.get(name, "0") != "0" for name in ranks)
    return hydra.output_subdir is not None and not follows


def _reserve(config: DictConfig, place: DictConfig) -> Path:
    """Return the folder of a run or a sweep; a new one where its name is the time."""
    folder = Path(place.dir)
    raw: Any = OmegaConf.to_container(place, resolve=False)
    if "${now:" in raw["dir"]:
        try:
            folder = _make_new(folder)
        except OSError as error:
            option = "hydra.run.dir" if place is config.hydra.run else "hydra.sweep.dir"
            reason = describe_oserror(error)
            raise Taken(f"{option}: cannot make {reason}; give {option}=DIR") from None
        with read_write(config.hydra):
            place.dir = str(folder)
    return folder


def _make_new(folder: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        free = folder if number == 1 else folder.with_name(f"{folder.name}_{number}")
        with contextlib.suppress(FileExistsError):
            free.mkdir()
            _new.add(free.resolve())
            break
    return free


@contextlib.contextmanager
def release_at_end(command: str = "") -> Iterator[None]:
    """Unlock what this process has locked at the end of a block, and remove spare folders."""
    _name[0] = command
    try:
        yield
    finally:
        _let_go()
        links.release()
        while _spare:
            _spare.pop().cleanup()


def _let_go() -> None:
    """Close what is locked. Where a forked process does so, its parent still holds the lock."""
    _shared.clear()
    while _held:
        os.close(_held.popitem()[1])


os.register_at_fork(after_in_child=_let_go)


def hold(folder: Path, shared: bool = False) -> None:
    """Lock a folder until the command ends or is killed. It is there.

    File systems without locks are left as they are, and between machines that share a folder there
    is none.
    `shared` lets other shares of the same command hold it too. Raises ValueError where another
    command holds it, also two seconds later.
    """
    folder = folder.resolve()
    if folder in _held:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < until:
                time.sleep(0.05)
                continue
            owner = _owner(descriptor)
            os.close(descriptor)
            raise ValueError(
                f"{folder} is being written by {owner}; wait for its end, or set hydra.run.dir=DIR"
            ) from None
        except OSError:  # there are no locks
            os.close(descriptor)
            return
        _held[folder] = descriptor
        _shared.update({folder} if shared else ())
        return


def hold_alone(folder: Path) -> None:
    """Let no other share hold a folder: what is done there is work for one."""
    folder = folder.resolve()
    if folder in _shared:
        _shared.remove(folder)
        os.close(_held.pop(folder))
        hold(folder)


def is_new(folder: Path) -> bool:
    """Tell whether a folder, or that of its sweep, is named after the time: nothing was in it."""
    return not _new.isdisjoint([folder.resolve(), *folder.resolve().parents])


def check_shares(folder: Path, share: Share) -> None:
    """Raise ValueError where shares of one work have a folder each, named after the time."""
    if share.count > 1 and folder.resolve() in _new:
        raise ValueError(
            f"share {share}, of {share.source}: expected a folder that all shares write into; give "
            "hydra.run.dir=DIR, or share=1/1 for all"
        )


def _owner(descriptor: int) -> str:
    """Name the process that holds a folder, its machine, and when it started."""
    place = os.fstat(descriptor)
    inode = f"{os.major(place.st_dev):02x}:{os.minor(place.st_dev):02x}:{place.st_ino}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text("ascii").splitlines():
            words = line.split()
            if words[1:2] == ["FLOCK"] and inode in words:
                return f"process {words[4]} on {socket.gethostname()}{_since(words[4])}"
    return "another command"


def _since(process: str) -> str:
    with contextlib.suppress(OSError, ValueError, IndexError):
        # After the name, which may hold anything, the 20th word is the start in ticks.
        ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
        up = float(Path("/proc/uptime").read_text().split()[0])
        began = time.time() - up + int(ticks) / os.sysconf("SC_CLK_TCK")
        return time.strftime(" since %Y-%m-%d %H:%M:%S", time.localtime(began))
    return ""
