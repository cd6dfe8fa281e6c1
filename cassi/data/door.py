"""Files from outside are read by a process of their own, see `worker.py`.

It is started with the first file and kept; a limit that it exceeds ends it, and the next file
starts another. Arrays come back in shared memory.
"""

import atexit
import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cassi.checks import check_readable
from cassi.data.worker import receive, send

LIMIT = "CASSI_READ_MB"
"""Environment variable: how many MB reading one file may take, and time in proportion."""
_START = 120
"""Seconds in which the process starts and imports what a format takes."""
_SLOWER = 1.5
"""Times its processor time, what reading may last; the disk and other programs take their part."""
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

    Raises:
        OSError: it cannot be read, or no process started.
        ValueError: it is damaged, not supported, or takes more than it may.
    """
    check_readable(path)
    request = {
        "call": call,
        "path": str(path),
        "given": given,
        "folder": str(Path.cwd()),
        "megabytes": _stated_limit(),
    }
    return _process.ask(path, request)


def start() -> None:
    """Start the process, so that it is ready when the first file is to be read."""
    with _process.lock, contextlib.suppress(OSError):  # said when there is a file to read
        _process.start()


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

    def ask(self, path: Path, request: Mapping[str, object]) -> tuple[Any, Any]:
        """Send a request and wait for the answer."""
        with self.lock:
            fit = False
            try:
                limits, link = self._begin(request)
                seconds = math.ceil(_SLOWER * limits["seconds"])
                more = f"; if you trust it, set {LIMIT}={2 * limits['megabytes']}"
                what = f"{path}: reading it takes more than"
                much = f"{what} {limits['megabytes']} MB{more}"
                if limits["megabytes"] > limits["machine"]:
                    much = f"{what} the {limits['machine']} MB that this machine has for it"
                try:
                    received = receive(link, time.monotonic() + seconds)
                except TimeoutError:
                    raise ValueError(f"{what} {seconds} s{more}") from None
                if received is None:
                    ended = self.stop(patience=2.0)
                    if ended == -signal.SIGXCPU:
                        spent = f"{limits['seconds']} s of processor time"
                        raise ValueError(f"{what} {spent}{more}")
                    if ended == -signal.SIGKILL:  # the system had no more memory
                        raise ValueError(much)
                    name = signal.Signals(-ended).name if ended < 0 else f"status {ended}"
                    raise ValueError(
                        f"cannot read {path}: it is damaged, its reader crashed ({name})"
                    )
                answer, descriptor = received
                if answer.get("error") == "memory":
                    raise ValueError(much)
                fit = True
            finally:
                if not fit:  # else its next answer could be that of this request
                    self.stop()
        if "error" not in answer:
            shape = answer["shape"]
            return None if shape is None else _take(descriptor, shape), answer["about"]
        said = answer["given"]
        if answer["error"] == "OSError":
            raise OSError(*said[:2], said[2])
        if answer["error"] == "ValueError":
            raise ValueError(said[0])
        raise RuntimeError(f"{path}: {said[0]}")

    def _begin(self, request: Mapping[str, object]) -> tuple[dict[str, int], socket.socket]:
        """Send a request; return the limits and the link once the file is being read."""
        for _ in range(2):
            link = self.start()
            with contextlib.suppress(ConnectionError, TimeoutError):
                send(link, request)
                received = receive(link, time.monotonic() + _START)
                if received is not None:
                    return received[0], link
            self.stop()  # it may have ended for want of work
        raise OSError(f"the process that reads files does not start: {sys.executable}")

    def start(self) -> socket.socket:
        """Start the process where it does not run; return the socket to it."""
        if self.link is not None and self.running is not None and self.running.poll() is None:
            return self.link
        self.stop()
        mine, its = socket.socketpair()
        with its:
            debugging = os.environ.get("CASSI_DEBUG", "0") not in ("", "0")
            shown = None if debugging else subprocess.DEVNULL
            self.running = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(_ROOT), str(its.fileno()), *_places()],
                stdin=subprocess.DEVNULL,
                stdout=shown,
                stderr=shown,
                pass_fds=[its.fileno()],
                env=os.environ | _ONE_THREAD | _NO_PLUGINS,
            )
        self.link = mine
        return mine

    def stop(self, patience: float = 0.0) -> int:
        """End the process; return its status, negative for a signal."""
        if self.link is not None:
            self.link.close()
        running, self.link, self.running = self.running, None, None
        if running is None:
            return 0
        try:
            return running.wait(patience)  # of what killed it, if anything did
        except subprocess.TimeoutExpired:
            running.kill()
            return running.wait()

    def forget(self) -> None:
        """Leave the process to the one that started it: this one is a copy of that."""
        if self.link is not None:
            self.link.close()
        if self.running is not None:
            self.running.returncode = 0
        self.running, self.link, self.lock = None, None, threading.Lock()


def _places() -> list[str]:
    """Return where modules of this process lie, without the current folder: a stranger's, maybe.

    The process searches them last, so a `types.py` among them never stands for Python's own.
    """
    with contextlib.suppress(OSError):  # the folder is gone
        here = Path.cwd()
        return [place for place in sys.path if Path(place).is_absolute() and Path(place) != here]
    return []


def _take(descriptor: int | None, shape: list[int]) -> np.ndarray:
    if descriptor is None:
        raise RuntimeError("the process that reads files sent no array")
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        values = np.empty(shape, np.float32)
        rest = values.data.cast("B")
        while rest:
            number = file.readinto(rest)
            if not number:
                raise RuntimeError("the process that reads files sent too short an array")
            rest = rest[number:]
    return values


_process = _Process()
atexit.register(_process.stop, 2.0)
os.register_at_fork(after_in_child=_process.forget)


def stop() -> None:
    """End the process that reads; the next file starts another."""
    with _process.lock:
        _process.stop(patience=2.0)
