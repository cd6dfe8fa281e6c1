"""The program of the sandboxed reader, a process with few rights that opens files.

`sandboxed_reader.py` starts the process and sends it requests. The process imports numpy and the
library of the format, but not torch. While it reads a file, it limits its own address space,
memory, processor time, open files and written bytes, and it refuses to open other files. So the
readers of formats need not check the sizes in a header. A size that exceeds the limits leads to an
error, or ends the process.

A request is a line of JSON. The answer has up to three parts: a line of JSON with the limits, a
line of JSON with the description of the file or an error, and the bytes of a float32 array.
"""

import contextlib
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cassi.checks import check_fetched
from cassi.data.formats import arrays, envi, machine_memory, name_errors, tiff

MB = 1_000_000
BASE_MB, BYTES_PER_BYTE = 512, 64
"""Limit of memory: `BASE_MB`, plus `BYTES_PER_BYTE` bytes for each byte of the file, because the
file may be compressed. If the second number is larger, files may be compressed more. If it is
smaller, a hostile file is stopped earlier."""
BASE_SECONDS, MB_PER_SECOND = 8, 128
"""Limit of processor time: `BASE_SECONDS`, plus one second for each `MB_PER_SECOND` by which the
limit of memory exceeds `BASE_MB`."""
# A reader opens few files at a time. The others are modules that its library imports meanwhile.
_MAX_OPEN_FILES = 64
# An idle process ends after this time and frees its memory. The next request starts a new process.
_IDLE_SECONDS = 120
# A pointer of Git LFS is about 130 bytes long. A larger file cannot be a pointer and is not
# checked.
_MAX_POINTER_BYTES = 1024
# Libraries that read a format. They are imported before the limits are set, so that the memory and
# the time of the import do not count for the first file.
_FORMAT_LIBRARIES = {
    **dict.fromkeys((".tif", ".tiff"), ("tifffile",)),
    **dict.fromkeys(envi.SUFFIXES, ("spectral.io.envi",)),
    **dict.fromkeys((".h5", ".hdf5", ".hspy"), ("h5py",)),
    **dict.fromkeys((".mat", ".nc"), ("scipy.io", "h5py")),
    ".png": ("PIL.PngImagePlugin",),
    ".zarr": ("zarr",),
}
# Words, in lower case, of the errors of libraries that run out of memory but do not raise
# MemoryError.
_MEMORY_ERRORS = (
    *("allocate memory", "unable to allocate", "out of memory", "memory allocation failed"),
    *("can't start new thread", "not enough memory"),
)
# Audit events of Python (https://docs.python.org/3/library/audit_events.html) that no reader of a
# file needs: starting programs, changing files, the network.
_FORBIDDEN_EVENTS = (
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork"),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate"),
    *("socket.connect", "socket.bind", "shutil.rmtree"),
)

ReadResult = tuple["np.ndarray | None", "Mapping[str, object] | None"]


def _describe_stack(path: Path) -> ReadResult:
    with name_errors(f"cannot read {path} as {path.suffix.lower()}"):
        return None, tiff.describe_stack(path)


def _read_library(path: Path) -> ReadResult:
    with name_errors(f"cannot read {path} as a spectral library"):
        return envi.read_library(path)


CALLS: dict[str, Callable[..., ReadResult]] = {
    "array": arrays.read_array,
    "library": _read_library,
    "stack": _describe_stack,
}
"""Functions that a request can name. Each takes a path and returns an array or None, and a
description in values that JSON can hold."""


def serve(descriptor: int) -> None:
    """Answer requests until the parent closes the socket, or no request comes for two minutes."""
    # Ctrl-C also reaches this process. Its parent handles it and then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.addaudithook(_audit)
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rb") as requests:
        while select.select([connection], [], [], _IDLE_SECONDS)[0] and (
            line := requests.readline()
        ):
            if not _answer(connection, json.loads(line)):
                return


def send(connection: socket.socket, message: Mapping[str, object]) -> None:
    """Send a line of JSON."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def _answer(connection: socket.socket, request: Mapping[str, Any]) -> bool:
    """Answer one request; return False if the process must not answer another one."""
    with contextlib.suppress(OSError):  # the folder has been removed
        os.chdir(request["folder"])
    path, values = Path(request["path"]), None
    for name in _FORMAT_LIBRARIES.get(path.suffix.lower(), ()):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    files = [file for file in _find_files(path) if file.is_file()]
    stored_bytes = sum(file.stat().st_size for file in files)
    megabytes = request["megabytes"] or BASE_MB + BYTES_PER_BYTE * stored_bytes // MB
    seconds = BASE_SECONDS + max(0, megabytes - BASE_MB) // MB_PER_SECOND
    memory_share = _compute_memory_share() // MB
    send(connection, {"megabytes": megabytes, "seconds": seconds, "machine": memory_share})
    try:
        with _apply_limits(megabytes, seconds), _allow_only(path):
            with name_errors(f"cannot read {path}"):
                for file in (file for file in files if file.stat().st_size <= _MAX_POINTER_BYTES):
                    check_fetched(file, file.read_bytes())
            values, description = CALLS[request["call"]](path, **request["arguments"])
            if values is not None:
                # Values beyond float32 become infinite, and `io` refuses infinite values.
                with np.errstate(over="ignore", invalid="ignore"):
                    values = np.ascontiguousarray(values, np.float32)
        answer: dict[str, object] = {
            "description": description,
            "shape": getattr(values, "shape", None),
        }
    except Exception as error:
        answer = describe(error)
        if os.environ.get("CASSI_DEBUG", "0") not in ("", "0"):
            traceback.print_exc()
    send(connection, answer)
    if "error" not in answer and values is not None:
        connection.sendall(values.data.cast("B"))
    # After a failed allocation libraries may keep memory, so a new process reads the next file.
    return answer.get("error") != "memory"


def _find_files(path: Path) -> list[Path]:
    """Return the files of a path: those in the folder, or both parts of an ENVI image."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            return list(path.rglob("*"))
        if path.suffix.lower() in envi.SUFFIXES:
            return [file for file in path.parent.iterdir() if _is_pair(path, file)]
    return [path]


def _is_pair(path: Path, file: Path) -> bool:
    """Tell whether a file may be the other part of an ENVI image, or the path itself."""
    has_same_stem = file.name.split(".")[0] == path.name.split(".")[0]
    return path.suffix.lower() in envi.SUFFIXES and file.parent == path.parent and has_same_stem


def _compute_memory_share() -> int:
    """Return the memory that reading may take, bytes: three quarters of the machine's memory."""
    # The rest is left to the caller and to other programs. If memory ran out, Linux would kill one
    # of them.
    return max(3 * machine_memory() // 4, BASE_MB * MB)


@contextlib.contextmanager
def _apply_limits(megabytes: int, seconds: int) -> Iterator[None]:
    """Limit the resources that the block may use in addition to those already in use."""
    # proc(5): the first number is the size of the address space, the sixth is that of data and
    # stack, both in pages.
    page_counts = Path("/proc/self/statm").read_text("ascii").split()
    page_bytes, max_bytes = os.sysconf("SC_PAGE_SIZE"), megabytes * MB
    usage = resource.getrusage(resource.RUSAGE_SELF)
    new_limits = {
        resource.RLIMIT_AS: int(page_counts[0]) * page_bytes + max_bytes,
        # This limit does not count mapped files, so a file that is larger than the memory of the
        # machine can still be mapped.
        resource.RLIMIT_DATA: int(page_counts[5]) * page_bytes
        + min(max_bytes, _compute_memory_share()),
        resource.RLIMIT_CPU: int(usage.ru_utime + usage.ru_stime) + 1 + seconds,
        resource.RLIMIT_FSIZE: max_bytes,
        resource.RLIMIT_NOFILE: _MAX_OPEN_FILES,
    }
    old_limits = {kind: resource.getrlimit(kind) for kind in new_limits}
    try:
        for kind, value in new_limits.items():
            soft, hard = old_limits[kind]
            finite_limits = [n for n in (soft, hard) if n != resource.RLIM_INFINITY]
            resource.setrlimit(kind, (min([value, *finite_limits]), hard))
        yield
    finally:
        for kind, limits in old_limits.items():
            resource.setrlimit(kind, limits)


# The file or folder that may be opened now. It is None between two requests; then all files may be
# opened.
_allowed_path: Path | None = None
_PACKAGE = str(Path(__file__).parents[1])
# Folders from which Python and its libraries read. If the requested file itself lies in such a
# folder, only code may be opened there, so that no data beside the file is read.
_LIBRARY_FOLDERS = {
    os.path.realpath(path) for path in (*sys.path, sys.prefix, sys.base_prefix, _PACKAGE)
}
_LIBRARY_FOLDERS |= {"/proc/self", f"/proc/{os.getpid()}", "/sys"}
_CODE_SUFFIXES = (".py", ".pyc", ".so")


@contextlib.contextmanager
def _allow_only(path: Path) -> Iterator[None]:
    """Let Python open this file or folder only, and only to read it."""
    global _allowed_path
    _allowed_path = Path(os.path.realpath(path))
    try:
        yield
    finally:
        _allowed_path = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise PermissionError for events that reading a file does not need (hook of `sys`)."""
    if _allowed_path is None or (event != "open" and event not in _FORBIDDEN_EVENTS):
        return
    if event != "open":
        raise PermissionError(f"{event} while a file is read")
    path, flags = arguments[0], arguments[2] or 0
    if isinstance(path, int):
        return
    target = Path(os.path.realpath(os.fsdecode(path)))
    if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) == 0:
        is_code = target.suffix in _CODE_SUFFIXES
        folders = [
            folder
            for folder in _LIBRARY_FOLDERS
            if is_code or not _allowed_path.is_relative_to(folder)
        ]
        if any(target.is_relative_to(folder) for folder in (str(_allowed_path), *folders)):
            return
        if _is_pair(_allowed_path, target):
            return
    raise PermissionError(f"expected to read {_allowed_path.name} alone, it leads to {target}")


def describe(error: BaseException) -> dict[str, object]:
    """Return an error in values of JSON: lack of memory, a bad file, or a defect of a reader."""
    # A library may wrap the MemoryError, so the whole chain is searched.
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause).lower()
        if isinstance(cause, MemoryError) or any(words in text for words in _MEMORY_ERRORS):
            return {"error": "memory"}
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, OSError) and error.errno is not None:
        file_name = None if error.filename is None else os.fsdecode(error.filename)
        return {"error": "OSError", "arguments": [error.errno, error.strerror, file_name]}
    if isinstance(error, ValueError):
        return {"error": "ValueError", "arguments": [str(error)]}
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
    return {"error": "defect", "arguments": [text]}
