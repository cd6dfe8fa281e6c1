"""Read files in the sandboxed reader, a process with few rights that runs `reader_process.py`.

The process starts with the first file and serves all later ones. If the process exceeds a limit, it
ends, and the next file starts a new process.
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
from cassi.data.reader_process import send

LIMIT_VARIABLE = "CASSI_READ_MB"
"""Environment variable: the memory, in MB, that reading one file may take. The limit of processor
time is computed from this memory."""
# Limit of the elapsed time of reading, divided by the limit of processor time. It is above 1
# because the process also waits for the disk and for other programs.
_MAX_ELAPSED_RATIO = 1.5
# Longest line of JSON that is accepted from the process. A line contains metadata of the file,
# which may be hostile.
_MAX_ANSWER_BYTES = 1 << 24
_ROOT = Path(__file__).resolve().parents[1]
# Empty modules take the place of the packages `cassi` and `cassi.data`, so that no `__init__` file
# runs that could import torch: with torch the process would start slowly and need more memory.
_PROGRAM = """
import sys, types
root, descriptor = sys.argv[1], int(sys.argv[2])
sys.path += [folder for folder in sys.argv[3:] if folder not in sys.path]
for name in ("cassi", "cassi.data"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [root + name[5:].replace(".", "/")]
from cassi.data.reader_process import serve
serve(descriptor)
"""
# Every thread and every arena of malloc reserves memory, which would count towards the limit.
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_ARENA_MAX"), "1"
)
# "::" makes HDF5 load no filter plugins, which are shared libraries that the file chooses.
_NO_PLUGINS = {"HDF5_PLUGIN_PRELOAD": "::"}


def read(call: str, path: Path, **arguments: Any) -> tuple[Any, Any]:
    """Read a file or folder in the sandboxed reader.

    Args:
        call: "array", "library" or "stack", see `reader_process.CALLS`.
        path: an existing file or folder.
        arguments: further arguments of the call, in values of JSON.

    Returns:
        A float32 array, or None; and the description that the call returns.

    Raises:
        OSError: the file cannot be opened, or the process does not start.
        ValueError: the file is damaged or of another form, or it exceeds a limit.
        RuntimeError: a reader has a defect.
    """
    check_readable(path)
    request = {
        "call": call,
        "path": str(path),
        "arguments": arguments,
        "folder": str(Path.cwd()),
    }
    return _reader.ask(path, request | {"megabytes": _read_limit()})


def start() -> None:
    """Start the process early, so that it is ready for the first file."""
    # `read` tries again and reports the error.
    with _reader.lock, contextlib.suppress(OSError):
        _reader.start()


def stop() -> None:
    """End the process; the next file starts a new one."""
    with _reader.lock:
        _reader.stop(patience=2.0)


def process_id() -> int | None:
    """Return the process id, or None if the process does not run."""
    return None if _reader.process is None else _reader.process.pid


def _read_limit() -> int | None:
    """Return the limit of memory (MB) that the user has set, or None."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    if not text:
        return None
    if not text.isdecimal() or not 0 < int(text) < 1 << 32:
        raise ValueError(f"{LIMIT_VARIABLE}: expected a whole number of MB, got {text!r}")
    return int(text)


class _Reader:
    """The reader process and the socket to it. A request holds `lock` until it is answered."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.connection: socket.socket | None = None
        self.answers: Any = None  # buffered reader of the socket

    def ask(self, path: Path, request: Mapping[str, object]) -> tuple[Any, Any]:
        """Send a request; return array and description of the answer, or raise its error."""
        with self.lock:
            is_reusable, is_late = False, threading.Event()
            limits = self._send_request(request)
            seconds = math.ceil(_MAX_ELAPSED_RATIO * limits["seconds"])
            timer = threading.Timer(seconds, self._kill_late, [is_late])
            timer.start()
            try:
                answer, values = self._receive_answer()
                if answer is None:
                    status = self.stop(patience=2.0)
                    if is_late.is_set():
                        raise ValueError(
                            f"{path}: reading it takes more than {seconds} s"
                            f"{_describe_remedy(limits)}"
                        )
                    raise ValueError(_describe_end(path, limits, status))
                if answer.get("error") == "memory":
                    raise ValueError(_describe_memory_limit(path, limits))
                is_reusable = True
            finally:
                timer.cancel()
                # After an exception, also KeyboardInterrupt, the answer to this request may still
                # come. The next request would take it for its own, so the process ends.
                if not is_reusable:
                    self.stop()
        if "error" not in answer:
            return values, answer["description"]
        arguments = answer["arguments"]
        if answer["error"] == "OSError":
            number, reason, file_name = arguments
            raise OSError(number, reason, file_name)
        if answer["error"] == "ValueError":
            raise ValueError(arguments[0])
        raise RuntimeError(f"{path}: {arguments[0]}")

    def _send_request(self, request: Mapping[str, object]) -> dict[str, int]:
        """Send a request; return the limits that the reader process applies to it."""
        # An idle process ends by itself, perhaps just now. Then the second attempt starts a new
        # process.
        for _ in range(2):
            connection = self.start()
            with contextlib.suppress(ConnectionError):
                send(connection, request)
                if line := self.answers.readline(_MAX_ANSWER_BYTES):
                    limits: dict[str, int] = json.loads(line)
                    return limits
            self.stop()
        raise OSError(f"the process that reads files does not start: {sys.executable}")

    def _receive_answer(self) -> tuple[dict[str, Any] | None, np.ndarray | None]:
        """Return the answer and its array; (None, None) if the process has ended."""
        with contextlib.suppress(ConnectionError, ValueError):
            answer = json.loads(self.answers.readline(_MAX_ANSWER_BYTES))
            if answer.get("shape") is None:
                return answer, None
            values = np.empty(answer["shape"], np.float32)
            if self.answers.readinto(values.data.cast("B")) == values.nbytes:
                return answer, values
        return None, None

    def _kill_late(self, is_late: threading.Event) -> None:
        """Kill a process that takes too long; `ask` then receives no answer."""
        is_late.set()
        if self.process is not None:
            self.process.kill()

    def start(self) -> socket.socket:
        """Return the socket of the process; start the process if it does not run."""
        if self.connection is not None and self.process is not None and self.process.poll() is None:
            return self.connection
        self.stop()
        own_end, reader_end = socket.socketpair()
        self.connection, self.answers = own_end, own_end.makefile("rb")
        is_debugging = os.environ.get("CASSI_DEBUG", "0") not in ("", "0")
        output = None if is_debugging else subprocess.DEVNULL
        with reader_end:
            # -P: the current folder is not searched for modules.
            command = [sys.executable, "-P", "-c", _PROGRAM]
            self.process = subprocess.Popen(
                [*command, str(_ROOT), str(reader_end.fileno()), *_list_module_folders()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[reader_end.fileno()],
                env=os.environ | _ONE_THREAD | _NO_PLUGINS,
            )
        return own_end

    def stop(self, patience: float = 0.0) -> int:
        """End the process, or kill it after `patience` seconds; return its status.

        A status of -n means that signal n ended the process.
        """
        if self.connection is not None:
            self.answers.close()
            self.connection.close()
        process, self.connection, self.answers, self.process = self.process, None, None, None
        if process is None:
            return 0
        try:
            # The process ends when its socket closes. If it crashed before, its status names the
            # signal.
            return process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def forget(self) -> None:
        """Drop the reader in a forked child: only the parent may go on using it."""
        if self.connection is not None:
            os.close(self.connection.detach())
        if self.process is not None:
            # This process cannot wait for the reader, which is a child of its parent. If a status
            # is set, Popen does not try.
            self.process.returncode = 0
        # This reference keeps the buffered reader open. Closing it takes its lock, which a thread
        # of the parent may have held at the fork. That thread does not exist here, so closing could
        # wait forever.
        self.answers_of_parent = self.answers
        self.process, self.connection, self.answers, self.lock = None, None, None, threading.Lock()


def _describe_memory_limit(path: Path, limits: Mapping[str, int]) -> str:
    beginning = f"{path}: reading it takes more than"
    # A higher limit would not help if the machine itself has less memory.
    if limits["megabytes"] > limits["machine"]:
        return f"{beginning} the {limits['machine']} MB that this machine has for it"
    return f"{beginning} {limits['megabytes']} MB{_describe_remedy(limits)}"


def _describe_remedy(limits: Mapping[str, int]) -> str:
    """Return the end of a message: how to set twice the limit."""
    return f"; if you trust it, set {LIMIT_VARIABLE}={2 * limits['megabytes']}"


def _describe_end(path: Path, limits: Mapping[str, int], status: int) -> str:
    """Return a message that says why the process ended, from its status."""
    if status == -signal.SIGXCPU:
        limit = f"{limits['seconds']} s of processor time"
        return f"{path}: reading it takes more than {limit}{_describe_remedy(limits)}"
    # Linux kills a process with SIGKILL when the memory of the machine runs out.
    if status == -signal.SIGKILL:
        return _describe_memory_limit(path, limits)
    name = signal.Signals(-status).name if status < 0 else f"status {status}"
    return f"cannot read {path}: it is damaged, its reader crashed ({name})"


def _list_module_folders() -> list[str]:
    """Return the folders in which this process finds modules, for the reader to search last.

    The current folder is left out, because it may hold files of a stranger. The reader searches
    these folders after its own. So a `types.py` in one of them never replaces Python's module.
    """
    try:
        current_folder = Path.cwd()
    except OSError:  # the folder has been removed
        return []
    folders = (Path(entry) for entry in sys.path)
    return [str(folder) for folder in folders if folder.is_absolute() and folder != current_folder]


_reader = _Reader()
atexit.register(_reader.stop, 2.0)
os.register_at_fork(after_in_child=_reader.forget)
