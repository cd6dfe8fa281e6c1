"""Files from outside are read by a process of their own, see `worker.py`.

It is started with the first file and kept; a limit that it exceeds ends it, and the next file
starts another.
"""

import atexit
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cassi.checks import check_readable
from cassi.data.worker import send

LIMIT = "CASSI_READ_MB"
"""Environment variable: how many MB reading one file may take, and time in proportion."""
_SLOWER = 1.5
"""Times its processor time, what reading may last; the disk and other programs take their part."""
_LONGEST = 1 << 24  # bytes of what is said of a file
_ROOT = Path(__file__).resolve().parents[1]
# The packages stand for themselves, without their `__init__`, which imports torch.
_PROGRAM = """
import sys, types
root, descriptor = sys.argv[1], int(sys.argv[2])
sys.path += [place for place in sys.argv[3:] if place not in sys.path]
for name in ("cassi", "cassi.data"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [root + name[5:].replace(".", "/")]
from cassi.data.worker import serve
serve(descriptor)
"""
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_ARENA_MAX"), "1"
)
_NO_PLUGINS = {"HDF5_PLUGIN_PRELOAD": "::"}


def read(call: str, path: Path, **given: Any) -> tuple[Any, Any]:
    """Have something read by the process for it.

    Args:
        call: "array" or "stack", see `worker.CALLS`.
        path: the file or folder, which is there.
        given: further arguments of the call, in values of JSON.

    Returns:
        A float32 array, or None; and what is said of it.
    """
    check_readable(path)
    request = {"call": call, "path": str(path), "given": given, "folder": str(Path.cwd())}
    return _process.ask(path, request | {"megabytes": _stated_limit()})


def start() -> None:
    """Start the process, so that it is ready when the first file is to be read."""
    with _process.lock, contextlib.suppress(OSError):  # said when there is a file to read
        _process.start()


def stop() -> None:
    """End the process that reads; the next file starts another."""
    with _process.lock:
        _process.stop(patience=2.0)


def process_number() -> int | None:
    """Return the number of the process, None where it does not run."""
    return None if _process.running is None else _process.running.pid


def _stated_limit() -> int | None:
    text = os.environ.get(LIMIT, "")
    if not text:
        return None
    if not text.isdecimal() or not 0 < int(text) < 1 << 32:
        raise ValueError(f"{LIMIT}: expected a whole number of MB, got {text!r}")
    return int(text)


class _Process:
    """The process, and the socket to it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: subprocess.Popen[bytes] | None = None
        self.link: socket.socket | None = None
        self.answers: Any = None  # what comes through it, buffered

    def ask(self, path: Path, request: Mapping[str, object]) -> tuple[Any, Any]:
        """Send a request and wait for the answer."""
        with self.lock:
            fit, late = False, threading.Event()
            limits = self._begin(request)
            seconds = math.ceil(_SLOWER * limits["seconds"])
            timer = threading.Timer(seconds, self._end_late, [late])
            timer.start()
            try:
                answer, values = self._receive()
                if answer is None:
                    ended = self.stop(patience=2.0)
                    raise ValueError(_why_it_ended(path, limits, ended, seconds * late.is_set()))
                if answer.get("error") == "memory":
                    raise ValueError(_too_much_memory(path, limits))
                fit = True
            finally:
                timer.cancel()
                if not fit:  # else its next answer could be that of this request
                    self.stop()
        if "error" not in answer:
            return values, answer["about"]
        said = answer["given"]
        if answer["error"] == "OSError":
            raise OSError(*said[:2], said[2])
        if answer["error"] == "ValueError":
            raise ValueError(said[0])
        raise RuntimeError(f"{path}: {said[0]}")

    def _begin(self, request: Mapping[str, object]) -> dict[str, int]:
        """Send a request; return the limits once the file is being read."""
        for _ in range(2):
            link = self.start()
            with contextlib.suppress(ConnectionError):
                send(link, request)
                if line := self.answers.readline(_LONGEST):
                    limits: dict[str, int] = json.loads(line)
                    return limits
            self.stop()  # it may have ended for want of work
        raise OSError(f"the process that reads files does not start: {sys.executable}")

    def _receive(self) -> tuple[dict[str, Any] | None, np.ndarray | None]:
        """Return what is said of a file and its array; None where the process has ended."""
        with contextlib.suppress(ConnectionError, ValueError):
            answer = json.loads(self.answers.readline(_LONGEST))
            if answer.get("shape") is None:
                return answer, None
            values = np.empty(answer["shape"], np.float32)
            if self.answers.readinto(values.data.cast("B")) == values.nbytes:
                return answer, values
        return None, None

    def _end_late(self, late: threading.Event) -> None:
        late.set()
        if self.running is not None:
            self.running.kill()

    def start(self) -> socket.socket:
        """Start the process where it does not run; return the socket to it."""
        if self.link is not None and self.running is not None and self.running.poll() is None:
            return self.link
        self.stop()
        mine, its = socket.socketpair()
        self.link, self.answers = mine, mine.makefile("rb")
        debugging = os.environ.get("CASSI_DEBUG", "0") not in ("", "0")
        shown = None if debugging else subprocess.DEVNULL
        with its:
            self.running = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(_ROOT), str(its.fileno()), *_places()],
                stdin=subprocess.DEVNULL,
                stdout=shown,
                stderr=shown,
                pass_fds=[its.fileno()],
                env=os.environ | _ONE_THREAD | _NO_PLUGINS,
            )
        return mine

    def stop(self, patience: float = 0.0) -> int:
        """End the process; return its status, negative for a signal."""
        if self.link is not None:
            self.answers.close()
            self.link.close()
        running, self.link, self.answers, self.running = self.running, None, None, None
        if running is None:
            return 0
        try:
            return running.wait(patience)  # of what killed it, if anything did
        except subprocess.TimeoutExpired:
            running.kill()
            return running.wait()

    def leave(self) -> None:
        """Leave the process to the one that started it: this one is a copy of that."""
        if self.link is not None:
            os.close(self.link.detach())
        if self.running is not None:
            self.running.returncode = 0
        # Kept, since closing it could wait for a thread that is not in this copy.
        self.left = self.answers
        self.running, self.link, self.answers, self.lock = None, None, None, threading.Lock()


def _too_much_memory(path: Path, limits: Mapping[str, int]) -> str:
    what = f"{path}: reading it takes more than"
    if limits["megabytes"] > limits["machine"]:
        return f"{what} the {limits['machine']} MB that this machine has for it"
    return f"{what} {limits['megabytes']} MB{_remedy(limits)}"


def _remedy(limits: Mapping[str, int]) -> str:
    return f"; if you trust it, set {LIMIT}={2 * limits['megabytes']}"


def _why_it_ended(path: Path, limits: Mapping[str, int], ended: int, seconds: int) -> str:
    """Say why the process ended: its status, and the seconds after which it was too late, or 0."""
    if seconds:
        return f"{path}: reading it takes more than {seconds} s{_remedy(limits)}"
    if ended == -signal.SIGXCPU:
        spent = f"{limits['seconds']} s of processor time"
        return f"{path}: reading it takes more than {spent}{_remedy(limits)}"
    if ended == -signal.SIGKILL:  # the system had no more memory
        return _too_much_memory(path, limits)
    name = signal.Signals(-ended).name if ended < 0 else f"status {ended}"
    return f"cannot read {path}: it is damaged, its reader crashed ({name})"


def _places() -> list[str]:
    """Return where modules of this process lie, without the current folder: a stranger's, maybe.

    The process searches them last, so a `types.py` among them never stands for Python's own.
    """
    with contextlib.suppress(OSError):  # the folder is gone
        here = Path.cwd()
        return [place for place in sys.path if Path(place).is_absolute() and Path(place) != here]
    return []


_process = _Process()
atexit.register(_process.stop, 2.0)
os.register_at_fork(after_in_child=_process.leave)
