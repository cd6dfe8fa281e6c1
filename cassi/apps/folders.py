"""The folder of a command's results: its name, its lock, and protection against links in it.

A folder that is named after the time is always a new one. A folder that the user names is locked,
so that no two commands write into it at the same time.
"""

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
from cassi.shares import ALL_JOBS, Share, find_share

# A command that was interrupted needs a moment to end, and the user may start the next one at once.
MAX_LOCK_WAIT_SECONDS = 2.0

# Name of the running command; a list, so that `release_at_end` can change its content.
_command_name: list[str] = [""]
# Locked folders, and the open file descriptor that holds each lock.
_descriptors: dict[Path, int] = {}
# Locked folders that other commands may lock, too, if they do other shares of the same jobs.
_shared_folders: set[Path] = set()
# If a sweep has `dry_run`, Hydra writes its files into these temporary folders.
_temporary_folders: list[tempfile.TemporaryDirectory[str]] = []
# Folders that this process made and named after the time: no other command writes into them.
_new_folders: set[Path] = set()


RESULT_PATTERNS = {
    "cassi-reconstruct": ".done .passes .*.blocks .*.zarr.* rgb.png bands.png spectra.* "
    "uncertainty.* convergence.csv metrics.json report.html results.csv",
    "cassi-evaluate": "results.* cases.* benchmark.* timing.json report.html figures records",
    "cassi-train": "checkpoints tensorboard metrics.csv model.* ema.*",
    "cassi-calibrate": "camera.yaml mask.npy calibration.*",
    "cassi-camera": "camera.json camera.png cube.*",
    "cassi-export": "network.* run.* operators.* snapshot.f32 cube.f32 export.json",
}
"""Patterns of the files and folders that each command writes into the folder of its results.

Files whose names are settings, such as `output.cube`, are not among them.
"""
# Patterns of the folders of a sweep's jobs.
_JOB_FOLDER_PATTERNS = ("[0-9]*", "job[0-9]*", "*=*")


class FolderUnavailable(BaseException):
    """A folder is not free, or not safe to write into.

    It is no `Exception`, because Hydra turns an `Exception` of a callback into a warning.
    """


class FolderReservation(Callback):
    """Gives a command its folder before Hydra writes into it.

    A folder named after the time is a new one. If another command made a folder in the same second,
    a number is added: `12-30-01_2`. A folder that the user names is locked. `--info` takes no lock.
    If a training has several processes, only the first one takes it. With `dry_run` no folder is
    made.

    Raises:
        FolderUnavailable: another command writes into the folder, or a link is in the way.
    """

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Make and lock the folder of a command that is no sweep."""
        if config.get("dry_run"):
            # Hydra gets the current folder. Without `output_subdir` it writes nothing there. The
            # setting `folder` keeps the folder that the results would go to.
            with read_write(config):
                config.folder = str(Path(config.hydra.run.dir).resolve())
                config.hydra.run.dir, config.hydra.output_subdir = ".", None
        else:
            _refuse_links(Path(config.hydra.run.dir), config)
        if not writes_folder(config.hydra):
            return
        try:
            share = find_share(config.share) if "share" in config else ALL_JOBS
        except ValueError as error:
            raise FolderUnavailable(str(error)) from None
        folder = _choose_folder(config, config.hydra.run)
        with contextlib.suppress(OSError):  # Hydra tries again, and its error says the reason
            folder.mkdir(parents=True, exist_ok=True)
        if folder.is_dir():
            try:
                lock_folder(folder, is_shared=share.count > 1)
            except ValueError as error:
                raise FolderUnavailable(str(error)) from None

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Make the folder of a sweep; the folders of its jobs are locked one by one, later.

        The folder of a job is named after the options that differ between jobs.
        """
        if config.get("dry_run"):
            # Hydra writes a description of the sweep even if its jobs write nothing.
            temporary = tempfile.TemporaryDirectory(prefix="cassi-")
            _temporary_folders.append(temporary)
            with read_write(config.hydra):
                config.hydra.sweep.dir = temporary.name
            _add_job_options(
                config.hydra, f"hydra.sweep.dir={temporary.name}", "hydra.output_subdir=null"
            )
            return
        initial_folder = config.hydra.sweep.dir
        _refuse_links(Path(initial_folder), config, _JOB_FOLDER_PATTERNS)
        if (folder := str(_choose_folder(config, config.hydra.sweep))) != initial_folder:
            _add_job_options(config.hydra, f"hydra.sweep.dir={quoted(folder)}")
        common = find_common_keys(OmegaConf.select(config, "hydra.overrides.task") or [])
        key = "hydra.job.config.override_dirname.exclude_keys"
        if common:
            names = [*(OmegaConf.select(config, key) or []), *common]
            _add_job_options(config.hydra, f"{key}=[{','.join(map(quoted, names))}]")


def _refuse_links(folder: Path, config: Any, job_patterns: Sequence[str] = ()) -> None:
    """Refuse links in a folder of results.

    A link that has the name of a result is refused at once. From now on every write through a link
    in this folder is refused, too. Otherwise a folder of somebody else could make a command change
    files elsewhere.

    Args:
        folder: folder of the results.
        config: config of the command.
        job_patterns: patterns of the folders of a sweep's jobs.
    """
    config_values = (
        OmegaConf.select(config, key) for key in ("hydra.output_subdir", "output.cube")
    )
    names = [
        *RESULT_PATTERNS.get(_command_name[0], "").split(),
        *(glob.escape(str(name)) for name in config_values if name),
    ]
    links.guard_folders(folder)
    try:
        links.check_names(folder, names)
        for job_folder in (f for pattern in job_patterns for f in folder.absolute().glob(pattern)):
            links.check_parents(f"{job_folder}/")
            links.check_names(job_folder, names)
    except PermissionError as error:
        raise FolderUnavailable(printable(str(error))) from None


def _add_job_options(hydra: Any, *options: str) -> None:
    """Add options of Hydra that take part when the configs of a sweep's jobs are composed."""
    if OmegaConf.select(hydra, "overrides.hydra") is not None:
        with read_write(hydra):
            hydra.overrides.hydra += list(options)


def find_common_keys(options: Sequence[str]) -> list[str]:
    """Return the keys of those options of a sweep that have one value for all jobs.

    The list is empty if no option differs, for example if the sweeper chooses the values itself.

    >>> find_common_keys(["seed=0,1", "data.crop=[16,32]", "model=mst_s"])
    ['data.crop', 'model']
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    overrides = OverridesParser.create().parse_overrides(list(options))
    swept_keys = {option.key_or_group for option in overrides if option.is_sweep_override()}
    all_keys = dict.fromkeys(option.key_or_group for option in overrides)
    return sorted(all_keys.keys() - swept_keys) if swept_keys else []


def writes_folder(hydra: Any) -> bool:
    """Tell whether this process writes into the folder of its command.

    With `--info` Hydra writes nothing. A training may have several processes, which torchrun,
    Lightning or srun starts; only the first one writes.

    Args:
        hydra: the settings of Hydra itself.
    """
    ranks = ["RANK", "LOCAL_RANK"]
    ranks += ["SLURM_PROCID"] if hydra.job.name == "cassi-train" else []
    is_follower = any(os.environ.get(name, "0") != "0" for name in ranks)
    return hydra.output_subdir is not None and not is_follower


def _choose_folder(config: DictConfig, node: DictConfig) -> Path:
    """Return the folder of a run or a sweep. If its name is the time, make a new folder.

    Args:
        config: config of the command.
        node: `hydra.run` or `hydra.sweep`.
    """
    folder = Path(node.dir)
    # Only the text before interpolation shows whether the name is the time.
    template: Any = OmegaConf.to_container(node, resolve=False)
    if "${now:" in template["dir"]:
        try:
            folder = _make_numbered(folder)
        except OSError as error:
            option = "hydra.run.dir" if node is config.hydra.run else "hydra.sweep.dir"
            reason = describe_oserror(error)
            raise FolderUnavailable(f"{option}: cannot make {reason}; give {option}=DIR") from None
        with read_write(config.hydra):
            node.dir = str(folder)
    return folder


def _make_numbered(folder: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        candidate = folder if number == 1 else folder.with_name(f"{folder.name}_{number}")
        with contextlib.suppress(FileExistsError):
            candidate.mkdir()
            _new_folders.add(candidate.resolve())
            break
    return candidate


@contextlib.contextmanager
def release_at_end(command: str = "") -> Iterator[None]:
    """At the end of a block, release all locks of this process and remove temporary folders."""
    _command_name[0] = command
    try:
        yield
    finally:
        _close_locks()
        links.release()
        while _temporary_folders:
            _temporary_folders.pop().cleanup()


def _close_locks() -> None:
    """Close the descriptors that hold the locks."""
    _shared_folders.clear()
    while _descriptors:
        os.close(_descriptors.popitem()[1])


# A forked process inherits the descriptors, and would keep a folder locked after its parent was
# killed. Closing them in the child leaves the parent's lock as it is.
os.register_at_fork(after_in_child=_close_locks)


def lock_folder(folder: Path, is_shared: bool = False) -> None:
    """Lock an existing folder until the command ends or is killed.

    The lock holds among the processes of one machine. On a file system without locks nothing is
    locked.

    Args:
        folder: folder of the results.
        is_shared: let other shares of the same command lock it, too.

    Raises:
        ValueError: another command holds the lock, and still does after two seconds.
    """
    folder = folder.resolve()
    if folder in _descriptors:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    deadline = time.monotonic() + MAX_LOCK_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            owner = _name_owner(descriptor)
            os.close(descriptor)
            raise ValueError(
                f"{folder} is being written by {owner}; wait for its end, or set hydra.run.dir=DIR"
            ) from None
        except OSError:  # the file system has no locks
            os.close(descriptor)
            return
        _descriptors[folder] = descriptor
        if is_shared:
            _shared_folders.add(folder)
        return


def lock_folder_exclusively(folder: Path) -> None:
    """Lock a folder for this share alone, because its work there cannot be shared."""
    folder = folder.resolve()
    if folder in _shared_folders:
        _shared_folders.remove(folder)
        os.close(_descriptors.pop(folder))
        lock_folder(folder)


def is_new(folder: Path) -> bool:
    """Tell whether this process made the folder, or the folder of its sweep.

    Such a folder holds no earlier results.
    """
    return not _new_folders.isdisjoint([folder.resolve(), *folder.resolve().parents])


def check_shares(folder: Path, share: Share) -> None:
    """Raise ValueError if each share of a command would write into a folder of its own.

    A folder named after the time is such a folder: the shares start at different times.
    """
    if share.count > 1 and folder.resolve() in _new_folders:
        raise ValueError(
            f"share {share}, of {share.source}: expected a folder that all shares write into; give "
            "hydra.run.dir=DIR, or share=1/1 for all"
        )


def _name_owner(descriptor: int) -> str:
    """Name the process that holds the lock of a folder, its machine, and when it started."""
    status = os.fstat(descriptor)
    inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    # Linux alone has this file. A line is: number, FLOCK, kind, mode, process, device and inode, …
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text("ascii").splitlines():
            words = line.split()
            if words[1:2] == ["FLOCK"] and inode in words:
                return f"process {words[4]} on {socket.gethostname()}{_format_start_time(words[4])}"
    return "another command"


def _format_start_time(process: str) -> str:
    with contextlib.suppress(OSError, ValueError, IndexError):
        # The second field is the name of the program in brackets, which may hold blanks and
        # brackets. After its last bracket the 20th word is the start time in clock ticks.
        ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        started_at = time.time() - uptime + int(ticks) / os.sysconf("SC_CLK_TCK")
        return time.strftime(" since %Y-%m-%d %H:%M:%S", time.localtime(started_at))
    return ""
