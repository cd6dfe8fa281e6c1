"""Run a command: Hydra's start, settings, one-line errors and the exit status.

The process of a command is set up here, too: signals, threads, device, lines on the progress, and
the folder for files of torch's compiler.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import os
import pkgutil
import re
import select
import signal
import stat
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from omegaconf import DictConfig

from cassi import links
from cassi.apps import folders
from cassi.apps.arguments import arrange, read_plugin_options
from cassi.apps.errors import (
    JobError,
    UsageError,
    debugging,
    describe_failure,
    to_usage_error,
)
from cassi.apps.printing import Failure, color_label, filter_output, note_folder, take_flags
from cassi.apps.reconstructors.parts import offer_parts
from cassi.apps.settings import read_settings
from cassi.apps.start import distrust_current_folder, print_version
from cassi.checks import printable
from cassi.plugins import load_plugins, plugin_lines
from cassi.threads import free_cores

if TYPE_CHECKING:
    import torch

# Seconds between two lines on the progress of a long step.
_PROGRESS_SECONDS = 3.0
# Seconds after which a lost signal is sent again; see `raise_terminated`.
_RESEND_SECONDS = 0.05
WORKER_NUMBER_VARIABLE = "CASSI_WORKER"
"""Environment variable with the number of this process among a command's processes on a machine."""

EXIT_FAILURE = 1
"""Exit status if some results are missing and the others are finished."""
EXIT_USAGE_ERROR = 2
"""Exit status after a mistake of the user, or an error of files, memory or other processes."""
# As in a shell, the status after a signal is 128 plus the number of the signal.
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
EXIT_OUTPUT_CLOSED = 141  # SIGPIPE: the program that read the output has ended


@dataclass(frozen=True)
class Run:
    """One run of a command, beside its settings.

    Attributes:
        folder: absolute path of the folder of the results.
        is_multirun: this run is one of several jobs, and its failure must not end the others.
        options: options of the command line, for commands that continue this run later.
    """

    folder: Path
    is_multirun: bool
    options: Sequence[str] = ()


def run_command(
    name: str,
    kind: type,
    job: str,
    rewrite: Callable[[list[str]], list[str]] = list,
    **arguments: Any,
) -> None:
    """Compose the config, run the job, and turn a user's mistake into one line and status 2.

    A defect of the program shows its traceback. With `CASSI_DEBUG=1` a mistake also shows its
    traceback. A defect of a plugin shows one line and the part of the traceback inside the plugin.

    Args:
        name: name of the command, `cassi-NAME`; NAME is also its primary config in `cassi.conf`.
        kind: class of its settings.
        job: "MODULE:FUNCTION". The function (settings, run) returns the number that a sweep
            minimises or maximises. Its module is imported, and torch with it, when the config is
            composed: `--help` and options with mistakes do not wait for torch.
        rewrite: function that changes the arguments of the command before Hydra gets them.
        arguments: further arguments of the job.
    """
    distrust_current_folder()
    if "--version" in sys.argv[1:]:
        print_version()  # Hydra's own flag prints Hydra's
    import hydra

    # Without this, Hydra prints its own account of an error, over many lines, and exits with
    # status 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    _reopen_outputs()
    write_whole_lines()
    decorate = hydra.main(
        version_base="1.3",
        config_path="pkg://cassi.conf",
        config_name=name.removeprefix("cassi-"),
    )
    flags, sys.argv[1:] = take_flags(sys.argv[1:])
    with filter_output(flags):
        _run(name, decorate, _Job(name, kind, job, arguments), rewrite)


def _run(
    name: str, decorate: Callable[[Any], Any], job: _Job, rewrite: Callable[[list[str]], list[str]]
) -> None:
    """Run a command, print its error in one line and end with the status of the error.

    This is the only place that prints a `UsageError`. A defect of the program goes on to Python,
    which prints its traceback.
    """
    try:
        _start_hydra(name, decorate, job, rewrite)
    except KeyboardInterrupt as stop:
        _fail(name, f"interrupted; {stop or 'give the same command again'}", EXIT_INTERRUPTED)
    except TerminationSignal as stop:
        _fail(name, f"terminated; {stop or 'give the same command again'}", EXIT_TERMINATED)
    except folders.FolderUnavailable as error:
        _fail(name, str(error), EXIT_USAGE_ERROR)
    except JobError as error:
        # The job has printed its error where it ran. This may be another machine, so the error is
        # printed here too.
        _fail(name, f"a job failed: {error}", EXIT_USAGE_ERROR)
    except UsageError as error:
        _fail(name, str(error), EXIT_USAGE_ERROR, error)


def _start_hydra(
    name: str, decorate: Callable[[Any], Any], job: _Job, rewrite: Callable[[list[str]], list[str]]
) -> None:
    """Load the plugins, let Hydra compose the config and call the job.

    Raises:
        UsageError: the options, the config or the job have an error that the user can mend.
    """
    try:
        _check_text(*sys.argv[1:], str(Path.cwd()))
        sys.argv[1:] = arrange(rewrite(sys.argv[1:]))
        if not any(option.startswith("-") for option in sys.argv[1:]):  # such as --help
            from cassi.data import sandboxed_reader

            sandboxed_reader.start()
        # Plugins are loaded before the config is composed, because a config may name networks and
        # priors that plugins register.
        job.plugins = read_plugin_options(sys.argv[1:])
        load_plugins(job.plugins)
        offer_parts()
        with folders.release_at_end(name):
            decorate(job)()
        if _is_output_closed():
            _close_output()
    except _ErrorCarrier as carrier:
        raise carrier.error from carrier.error.__cause__
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_output_closed():
            _close_output()
        if (usage_error := to_usage_error(error)) is None:
            raise
        raise usage_error from error


def _check_text(*texts: str) -> None:
    """Raise ValueError if a text cannot be written into a config, which is UTF-8."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{text}: expected a name in UTF-8; rename the file or folder"
            ) from None


class _ErrorCarrier(BaseException):
    """Carries an error of the job past Hydra, which prints its own account of an `Exception`."""

    def __init__(self, error: UsageError) -> None:
        super().__init__(error)
        self.error = error


class _Job:
    """The job of a command, as Hydra calls it. It is an object, so that launchers can pickle it."""

    plugins: Sequence[str] = ()

    def __init__(self, name: str, kind: type, job: str, arguments: Mapping[str, Any]) -> None:
        self.name, self.kind, self.job, self.arguments = name, kind, job, arguments
        # Hydra names the job after its module.
        self.__module__, self.__name__, self.__qualname__ = kind.__name__.lower(), "job", "job"

    def __call__(self, config: DictConfig) -> Any:
        from hydra.core.hydra_config import HydraConfig
        from hydra.types import RunMode

        hydra = HydraConfig.get()
        is_multirun = hydra.mode == RunMode.MULTIRUN
        folder = Path(hydra.runtime.output_dir).resolve()
        if is_multirun:
            # A launcher may run this job in a new process, where no folders are guarded yet.
            links.guard_folders(hydra.sweep.dir)
        try:
            # SIGTERM raises an exception only from here on. While Hydra composes the config, it may
            # swallow an exception. So until here SIGTERM ends the process by its default action.
            # This is safe, because no result is half written yet.
            with raise_terminated(), plain_warnings():
                if folder.is_dir() and folders.writes_folder(hydra):
                    folders.lock_folder(folder)
                load_plugins(self.plugins)  # the process of a launcher has not loaded them
                job = _import_job(self.job)
                options = tuple(hydra.overrides.task)
                settings: Any = read_settings(config, self.kind, options)
                result = job(settings, Run(folder, is_multirun, options), **self.arguments)
                note_folder(folder)
                return result
        except BaseException as error:
            stop = find_signal(error)
            if stop is not None:
                option = f"sweep.dir={hydra.sweep.dir}" if is_multirun else f"run.dir={folder}"
                hint = f"go on with the same command and hydra.{option}"
                raise type(stop)(str(stop) or hint) from None
            if not isinstance(error, Exception):
                raise
            if isinstance(error, BrokenPipeError) and _is_output_closed():
                _close_output()
            lines = plugin_lines(error)
            usage_error = to_usage_error(error)
            if usage_error is None:
                if is_multirun or not lines:
                    raise
                print("The lines of plugins; CASSI_DEBUG=1 shows all:", file=sys.stderr)
                print(*traceback.format_list(lines), sep="", end="", file=sys.stderr)
                _fail(self.name, describe_failure(error), EXIT_FAILURE, error)
            message = str(usage_error)
            if lines:
                message += f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno})"
            # One failing job of a sweep must not stop the others. Hydra raises a JobError only
            # after all jobs, so the message is printed here, where the job runs.
            if is_multirun:
                print(f"{self.name}: {color_label('error')} {message}", file=sys.stderr)
                raise JobError(message) from None
            usage_error = UsageError(message)
            usage_error.__cause__ = error
            raise _ErrorCarrier(usage_error) from error


@functools.cache
def _import_job(name: str) -> Callable[..., Any]:
    """Import "MODULE:FUNCTION" and what it imports, torch above all; return the function."""
    # The objects of modules stay until the process ends. Python's collector of cycles would go
    # through them again and again, for a fifth of the time of the import.
    gc.disable()
    try:
        job: Callable[..., Any] = pkgutil.resolve_name(name)
        return job
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Print a warning about the user's data in one line, without its place in the code."""
    format_warning = warnings.formatwarning

    def format_line(
        message: Warning | str, category: type[Warning], *location: Any, **options: Any
    ) -> str:
        if category is UserWarning:
            return f"{color_label('warning')} {printable(str(message))}\n"
        return format_warning(message, category, *location, **options)

    warnings.formatwarning = format_line
    try:
        yield
    finally:
        warnings.formatwarning = format_warning


def _reopen_outputs() -> None:
    """Open the null device as stdout or stderr if the shell has closed it, as by `>&-`."""
    # Without this, the next file that is opened would get the number 1 or 2, and all printed text
    # would be written into it.
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_WRONLY)
            os.dup2(descriptor, number)
            if descriptor != number:
                os.close(descriptor)
            setattr(sys, name, open(number, "w", encoding="utf-8"))  # noqa: SIM115, PTH123


def write_whole_lines() -> None:
    """Write each line together with its end, also under `python -u`."""
    # `python -u` writes the end of a line by itself, so that the lines of processes that share a
    # terminal would mix.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.write_through:
            stream.reconfigure(line_buffering=True, write_through=False)


def _fail(name: str, message: str, status: int, error: Exception | None = None) -> NoReturn:
    if error is not None and debugging():
        traceback.print_exception(error)
    with contextlib.suppress(BrokenPipeError):
        print(f"{name}: {color_label('error')} {message}", file=sys.stderr)
    if status == EXIT_INTERRUPTED and threading.current_thread() is threading.main_thread():
        # A second Ctrl-C then ends the process at once, without another message.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise Failure(status, message)


def _is_output_closed() -> bool:
    """Tell whether the program that reads the output has ended, as after `| head`."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLOUT)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):  # stdout is no file
        return False


def _close_output() -> None:
    # Python flushes stdout at its end, and would print an error if stdout is closed.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(EXIT_OUTPUT_CLOSED)


def prepare_process(settings: Any, *, blocks: bool = False) -> None:
    """Set the threads of this process and the way in which it uses memory.

    If `settings.threads` is None, the process uses as many threads as processors are free, but no
    more than torch had at the start.

    Args:
        settings: settings of the command.
        blocks: the process computes blocks, for which huge pages are used. Otherwise freed memory
            is kept for the next tensors.
    """
    import torch

    from cassi.apps.memory import keep_freed_memory, use_huge_pages

    use_huge_pages() if blocks else keep_freed_memory()
    n_threads = settings.threads
    torch.set_num_threads(min(_initial_threads(), free_cores()) if n_threads is None else n_threads)


@functools.cache
def _initial_threads() -> int:
    """Return the number of threads that torch had at the first call."""
    import torch

    return torch.get_num_threads()


def refuse_torchrun() -> None:
    """Raise ValueError if torchrun has started this process and others."""
    if "MASTER_ADDR" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        count = os.environ.get("LOCAL_WORLD_SIZE", "4")
        raise ValueError(
            "torchrun is for cassi-train; without it, give processes="
            f"{count}, or cluster=dask for several machines"
        )


def make_progress_printer(name: str, show: bool = True) -> Callable[[str], None]:
    """Return a function that prints its text on stderr, at most every few seconds."""
    started_at = printed_at = time.perf_counter()

    def print_progress(step: str) -> None:
        nonlocal printed_at
        current = time.perf_counter()
        if show and current - printed_at > _PROGRESS_SECONDS:
            print(f"{name}: {current - started_at:.0f} s, {step}", file=sys.stderr, flush=True)
            printed_at = current

    return print_progress


def choose_device(name: str) -> torch.device:
    """Return the device of a name; `auto` takes a GPU if there is one.

    If the name has no number, the processes of a command on one machine are spread over its GPUs.

    Raises:
        ValueError: there is no such device.
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name in ("cpu", "cpu:0"):
        return torch.device(name)
    if not re.fullmatch(r"cuda(:\d{1,3})?", name):
        raise ValueError(f"device: expected auto, cpu, cuda or cuda:N, got {name!r}")
    device, count = torch.device(name), torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise ValueError(
            f"device: {name} is not there (CUDA devices: {count}); use device=auto or device=cpu"
        )
    if device.index is not None:
        return device
    return torch.device("cuda", int(os.environ.get(WORKER_NUMBER_VARIABLE, "0")) % count)


def compile_privately() -> None:
    """Make torch's compiler keep its files in a folder that only the user can write to.

    `TORCHINDUCTOR_CACHE_DIR`, if it is set, names the folder instead.

    Raises:
        OSError: others can write into the folder.
    """
    # By default torch uses a folder with a predictable name in the shared temporary folder. Another
    # user could make this folder first, and put programs into it that torch then loads.
    name = "TORCHINDUCTOR_CACHE_DIR"
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = home / "cassi-torchinductor"
    if name in os.environ:
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o022:
        raise PermissionError(
            f"{folder}: expected a folder that its owner, you, alone can write to; set {name}=DIR"
        )
    os.environ[name] = str(folder)


class TerminationSignal(BaseException):
    """SIGTERM asked the process to end. Like KeyboardInterrupt, it is no `Exception`."""


@contextlib.contextmanager
def raise_terminated() -> Iterator[None]:
    """Within a block, let SIGTERM raise `TerminationSignal`.

    If Python ignores the exception of SIGTERM or Ctrl-C, the signal is sent again.
    """
    # Python ignores an exception that a handler raises inside `__del__` or a callback of a weak
    # reference. It then calls this hook, which sends the signal again a moment later.
    unraisable_hook = sys.unraisablehook
    numbers = {KeyboardInterrupt: signal.SIGINT, TerminationSignal: signal.SIGTERM}

    def send_again(unraisable: sys.UnraisableHookArgs) -> None:
        number = numbers.get(unraisable.exc_type)
        if number is None:
            unraisable_hook(unraisable)
        else:
            threading.Timer(_RESEND_SECONDS, os.kill, (os.getpid(), number)).start()

    sys.unraisablehook = send_again
    try:
        with _handle(_terminate):
            yield
    finally:
        sys.unraisablehook = unraisable_hook


def find_signal(error: BaseException) -> KeyboardInterrupt | TerminationSignal | None:
    """Return the signal that led to an error; None if there was none."""
    # Code that cleans up after a signal may fail itself, because the signal left an object half
    # done. For example, OmegaConf restores the flags of a list whose last element does not exist
    # yet. The signal is then in the context of the error.
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt | TerminationSignal):
            return cause
        cause = cause.__context__
    return None


def leave_to_lightning(trainer: Any) -> contextlib.AbstractContextManager[None]:
    """Let SIGTERM end a training: before its first step at once, later after the current step."""
    # When the steps begin, Lightning registers its own handler, which also calls the handler below.
    # If Lightning has noted the signal, the handler below must not raise.

    def terminate_unless_noted(number: int, frame: Any) -> None:
        if not trainer.received_sigterm:
            raise TerminationSignal

    return _handle(terminate_unless_noted)


def end_at_once(trainer: Any, _: Any) -> None:
    """Let SIGTERM end each of several processes at once; called when the steps begin."""
    # Lightning's handler would wait for the other processes, which may be waiting for this one.
    if trainer.world_size == 1:
        return

    def terminate_all(number: int, frame: Any) -> NoReturn:
        kill = getattr(trainer.strategy.launcher, "kill", None)
        if kill is not None:  # this process has started the others
            kill(number)
        raise TerminationSignal

    signal.signal(signal.SIGTERM, terminate_all)


def _terminate(number: int, frame: Any) -> NoReturn:
    raise TerminationSignal


@contextlib.contextmanager
def _handle(handler: Callable[[int, Any], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets only the main thread set handlers, and runs them there
        return
    earlier_handler = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier_handler)
