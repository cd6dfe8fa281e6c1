"""What all commands share: Hydra's start, settings, the process, one-line errors, exit status."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import select
import signal
import stat
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from omegaconf import DictConfig

from cassi import links
from cassi.apps import folders
from cassi.apps.arguments import arrange, told_plugins
from cassi.apps.errors import JobError, debugging, describe, describe_failure, is_usage_error
from cassi.apps.memory import keep_freed_memory, use_huge_pages
from cassi.apps.printing import Failure, marked, note_folder, printed, take_flags
from cassi.apps.reconstructors import store_parts
from cassi.apps.settings import read_settings
from cassi.apps.start import distrust_current_folder, print_version
from cassi.checks import printable
from cassi.data import door
from cassi.plugins import load_plugins, plugin_lines
from cassi.threads import free_cores

_PAUSE = 3.0  # seconds between lines on what is being tried
_MOMENT = 0.05  # seconds until a signal is sent again
WORKER = "CASSI_WORKER"
"""Environment variable: the number of this process among those of a command on its machine."""

FAILED = 1
"""Exit status where some results are missing and the rest is done."""
USAGE_ERROR = 2
INTERRUPTED = 130
TERMINATED = 143
"""Of a shell: 128 and the number of the signal."""
CLOSED = 141
"""The same for SIGPIPE: nobody reads what the command prints."""


@dataclass(frozen=True)
class Run:
    """What a job knows of the command beside its settings.

    Attributes:
        folder: where results go, absolute.
        is_multirun: one of several jobs, which a failure must not end.
        options: what stood on the command line, for commands that go on later.
    """

    folder: Path
    is_multirun: bool
    options: Sequence[str] = ()


Job = Callable[[Any, Run], Any]
"""(settings, run) → the number that a sweep minimises or maximises."""


def run_command(
    name: str, kind: type, job: Job, rewrite: Callable[[list[str]], list[str]] = list
) -> None:
    """Compose the config, run the job, and turn a user's mistake into one line and status 2.

    A defect of the program shows its traceback; with `CASSI_DEBUG=1` a mistake does so too. A
    defect of a plugin shows the lines of that alone, and one line.
    `name` is `cassi-…`, the rest of it the primary config in `cassi.conf`. `rewrite` makes the
    arguments that Hydra is given of those of the command.
    """
    distrust_current_folder()
    if "--version" in sys.argv[1:]:
        print_version()  # Hydra's own flag prints Hydra's
    import hydra

    # Hydra otherwise prints its own account of an error, over many lines, and exits with status 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    _open_closed()
    write_whole_lines()
    decorate = hydra.main(
        version_base="1.3",
        config_path="pkg://cassi.conf",
        config_name=name.removeprefix("cassi-"),
    )
    flags, sys.argv[1:] = take_flags(sys.argv[1:])
    with printed(flags):
        _run(name, decorate, _Job(name, kind, job), rewrite)


def _run(
    name: str, decorate: Callable[[Any], Any], job: _Job, rewrite: Callable[[list[str]], list[str]]
) -> None:
    try:
        _check_text(*sys.argv[1:], str(Path.cwd()))
        sys.argv[1:] = arrange(rewrite(sys.argv[1:]))
        if not any(option.startswith("-") for option in sys.argv[1:]):  # such as --help
            door.start()
        # Before the config is composed, which may name what they register.
        job.plugins = told_plugins(sys.argv[1:])
        load_plugins(job.plugins)
        store_parts()
        with folders.release_at_end(name):
            decorate(job)()
        if _is_output_closed():
            _close_output()
    except KeyboardInterrupt as stop:
        _fail(name, f"interrupted; {stop or 'give the same command again'}", INTERRUPTED)
    except Terminated as stop:
        _fail(name, f"terminated; {stop or 'give the same command again'}", TERMINATED)
    except folders.Taken as error:
        _fail(name, str(error), USAGE_ERROR)
    except JobError as error:
        # Printed where the job ran, which may be another machine's log.
        _fail(name, f"a job failed: {error}", USAGE_ERROR)
    except Exception as error:
        if not is_usage_error(error):
            raise
        if isinstance(error, BrokenPipeError) and _is_output_closed():
            _close_output()
        _fail(name, describe(error), USAGE_ERROR, error)


def _check_text(*texts: str) -> None:
    """Raise ValueError where a text cannot be written into a config, which is UTF-8."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{text}: expected a name in UTF-8; rename the file or folder"
            ) from None


class _Job:
    """The job with its errors reported; an object, so that launchers can pickle it."""

    plugins: Sequence[str] = ()

    def __init__(self, name: str, kind: type, job: Job) -> None:
        self.name, self.kind, self.job = name, kind, job
        self.__module__, self.__name__, self.__qualname__ = job.__module__, "job", "job"

    def __call__(self, config: DictConfig) -> Any:
        from hydra.core.hydra_config import HydraConfig
        from hydra.types import RunMode

        hydra = HydraConfig.get()
        many = hydra.mode == RunMode.MULTIRUN
        folder = Path(hydra.runtime.output_dir).resolve()
        if many:  # in a process of a launcher
            links.guard(hydra.sweep.dir)
        try:
            # Not before: nothing is half done while Hydra composes, which may lose an exception.
            with raise_terminated(), plain_warnings():
                if folder.is_dir() and folders.may_hold(hydra):
                    folders.hold(folder)
                load_plugins(self.plugins)  # a launcher's process has none yet
                options = tuple(hydra.overrides.task)
                settings: Any = read_settings(config, self.kind, options)
                found = self.job(settings, Run(folder, many, options))
                note_folder(folder)
                return found
        except BaseException as error:
            stop = stopped_by(error)
            if stop is not None:
                place = f"sweep.dir={hydra.sweep.dir}" if many else f"run.dir={folder}"
                hint = f"go on with the same command and hydra.{place}"
                raise type(stop)(str(stop) or hint) from None
            if not isinstance(error, Exception):
                raise
            if isinstance(error, BrokenPipeError) and _is_output_closed():
                _close_output()
            lines = plugin_lines(error)
            if not is_usage_error(error):
                if many or not lines:
                    raise
                print("The lines of plugins; CASSI_DEBUG=1 shows all:", file=sys.stderr)
                print(*traceback.format_list(lines), sep="", end="", file=sys.stderr)
                _fail(self.name, describe_failure(error), FAILED, error)
            said = describe(error)
            if lines:
                said += f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno})"
            # One failing job of a sweep must not stop the others, so there it goes to Hydra.
            if many:
                print(f"{self.name}: {marked('error')} {said}", file=sys.stderr)
                raise JobError(said) from None
            _fail(self.name, said, USAGE_ERROR, error)


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings of the user's data in one line, as commands print theirs."""
    usual = warnings.formatwarning

    def in_a_line(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> str:
        if category is UserWarning:
            return f"{marked('warning')} {printable(str(message))}\n"
        return usual(message, category, *where, **more)

    warnings.formatwarning = in_a_line
    try:
        yield
    finally:
        warnings.formatwarning = usual


def _open_closed() -> None:
    """Let what is printed go nowhere where the shell has closed an output, as by `>&-`.

    A file that is opened next would take its number, and get what is printed.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_WRONLY)
            os.dup2(opened, number)
            if opened != number:
                os.close(opened)
            setattr(sys, name, open(number, "w", encoding="utf-8"))  # noqa: SIM115, PTH123


def write_whole_lines() -> None:
    """Hand each line and its end to the system together, also under `python -u`.

    The lines of processes that share a terminal would mix.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.write_through:
            stream.reconfigure(line_buffering=True, write_through=False)


def _fail(name: str, message: str, status: int, error: Exception | None = None) -> NoReturn:
    if error is not None and debugging():
        traceback.print_exception(error)
    with contextlib.suppress(BrokenPipeError):
        print(f"{name}: {marked('error')} {message}", file=sys.stderr)
    if status == INTERRUPTED and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends it without a word
    raise Failure(status, message)


def _is_output_closed() -> bool:
    """Tell whether nobody reads what is printed any more, as after `| head`."""
    try:
        watched = select.poll()
        watched.register(sys.stdout.fileno(), select.POLLOUT)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in watched.poll(0))
    except (OSError, ValueError):  # it is no file
        return False


def _close_output() -> None:
    # Python would flush once more when it ends, and complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(CLOSED)


def prepare_process(settings: Any, *, blocks: bool = False) -> None:
    """Set the threads of this process and how it uses memory, as settings say.

    Without a number of threads it takes what the machine has free, and no more than torch would.
    """
    use_huge_pages() if blocks else keep_freed_memory()
    chosen = settings.threads
    torch.set_num_threads(min(_most_threads(), free_cores()) if chosen is None else chosen)


@functools.cache
def _most_threads() -> int:
    """Return the threads that torch began with."""
    return torch.get_num_threads()


def refuse_torchrun() -> None:
    """Raise ValueError in one of several processes that torchrun has started."""
    if "MASTER_ADDR" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        count = os.environ.get("LOCAL_WORLD_SIZE", "4")
        raise ValueError(
            "torchrun is for cassi-train; without it, give processes="
            f"{count}, or cluster=dask for several machines"
        )


def announce(name: str, visible: bool = True) -> Callable[[str], None]:
    """Return what says on stderr, every few seconds, what is being tried."""
    start = last = time.perf_counter()

    def watch(tried: str) -> None:
        nonlocal last
        now = time.perf_counter()
        if visible and now - last > _PAUSE:
            print(f"{name}: {now - start:.0f} s, {tried}", file=sys.stderr, flush=True)
            last = now

    return watch


def choose_device(name: str) -> torch.device:
    """Return the device of that name; `auto` takes a GPU where there is one.

    Of several processes of a command on a machine, each has a GPU of its own where the name has no
    number.
    """
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
    return torch.device("cuda", int(os.environ.get(WORKER, "0")) % count)


def compile_privately() -> None:
    """Have torch's compiler keep its files in a folder of the user's alone.

    Its default is a name below the shared temporary folder that can be guessed. Who makes that
    folder first chooses the programs that are loaded from it. `TORCHINDUCTOR_CACHE_DIR` wins.
    OSError where others can write into the folder.
    """
    name = "TORCHINDUCTOR_CACHE_DIR"
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = home / "cassi-torchinductor"
    if name in os.environ:
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    there = folder.lstat()
    if there.st_uid != os.getuid() or not stat.S_ISDIR(there.st_mode) or there.st_mode & 0o022:
        raise PermissionError(
            f"{folder}: expected a folder that its owner, you, alone can write to; set {name}=DIR"
        )
    os.environ[name] = str(folder)


class Terminated(BaseException):
    """The process was asked to end; like KeyboardInterrupt not an `Exception`."""


@contextlib.contextmanager
def raise_terminated() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` within a block, and lose no signal in it.

    What a handler raises inside of `__del__` or a callback of a weak reference is ignored. So the
    signal is sent again a moment later.
    """
    usual = sys.unraisablehook
    numbers = {KeyboardInterrupt: signal.SIGINT, Terminated: signal.SIGTERM}

    def send_again(ignored: sys.UnraisableHookArgs) -> None:
        number = numbers.get(ignored.exc_type)
        if number is None:
            usual(ignored)
        else:
            threading.Timer(_MOMENT, os.kill, (os.getpid(), number)).start()

    sys.unraisablehook = send_again
    try:
        with _handle(_terminate):
            yield
    finally:
        sys.unraisablehook = usual


def stopped_by(error: BaseException) -> KeyboardInterrupt | Terminated | None:
    """Return the signal behind an error: itself, or what was being handled when it arose.

    What cleans up after an exception may fail because of what the signal left half done: OmegaConf
    restores the flags of a list whose last element is not there yet.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, KeyboardInterrupt | Terminated):
            return seen
        seen = seen.__context__
    return None


def leave_to_lightning(trainer: Any) -> contextlib.AbstractContextManager[None]:
    """Let Lightning end after the step in hand, once it has come to its steps.

    Lightning's own handler, which it registers then, calls the one that was there after itself.
    """

    def terminate_unless_noted(number: int, frame: Any) -> None:
        if not trainer.received_sigterm:
            raise Terminated

    return _handle(terminate_unless_noted)


def end_at_once(trainer: Any, _: Any) -> None:
    """Let SIGTERM end each of several processes now; to be called when the steps begin.

    Lightning's handler waits there for the other processes, which may be waiting for this one.
    """
    if trainer.world_size == 1:
        return

    def terminate_all(number: int, frame: Any) -> NoReturn:
        kill = getattr(trainer.strategy.launcher, "kill", None)
        if kill is not None:  # of the processes that this one has started
            kill(number)
        raise Terminated

    signal.signal(signal.SIGTERM, terminate_all)


def _terminate(number: int, frame: Any) -> NoReturn:
    raise Terminated


@contextlib.contextmanager
def _handle(handler: Callable[[int, Any], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers, and is given signals
        return
    earlier = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)
