"""The process that reads files: limited, and without torch. `door.py` starts it and asks it.

It imports numpy and the library of the format alone. Around each file it limits its own addresses,
memory, processor time, open files and written bytes, and refuses to open anything else.
"""

import contextlib
import importlib
import importlib.util
import json
import mmap
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cassi.data.formats import (
    arrays,
    blaming,
    check_folder,
    envi,
    machine_memory,
    tiff,
    zarr,
)

MB = 1_000_000
BASE_MB, EACH_BYTE = 512, 64
"""What reading may take: so much, and so many bytes for each of the file."""
BASE_SECONDS, MB_A_SECOND = 8, 128
"""Processor time: so much, and a second for each of so many MB beyond the base."""
_OPEN_FILES = 64
_IDLE = 120
"""Seconds without a request, after which it ends; the next request starts another."""
_LONGEST = 1 << 24  # bytes of a message
_LIBRARIES = {
    **dict.fromkeys((".tif", ".tiff"), ("tifffile",)),
    **dict.fromkeys((".hdr", *filter(None, envi.DATA_SUFFIXES)), ("spectral.io.envi",)),
    **dict.fromkeys((".h5", ".hdf5", ".hspy"), ("h5py",)),
    ".mat": ("scipy.io", "h5py"),
    ".nc": ("scipy.io", "h5py"),
    ".png": ("PIL.PngImagePlugin",),
}
_NO_MEMORY = (
    *("allocate memory", "unable to allocate", "out of memory", "memory allocation failed"),
    *("can't start new thread", "not enough memory"),
)
_NEVER = (
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork"),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate"),
    *("socket.connect", "socket.bind", "shutil.rmtree"),
)

Values = tuple["np.ndarray | None", "Mapping[str, object] | None"]


def _describe_stack(path: Path) -> Values:
    with blaming(f"cannot read {path} as {path.suffix.lower()}"):
        return None, tiff.describe_stack(path)


CALLS: dict[str, Callable[..., Values]] = {
    "array": arrays.read_array,
    "stack": _describe_stack,
}
"""What can be asked for; each gives an array, or None, and values that JSON can hold."""


def send(link: socket.socket, message: Mapping[str, object], descriptor: int | None = None) -> None:
    """Send a message, and an open file with it."""
    body = json.dumps(message).encode()
    if len(body) > _LONGEST:
        raise ValueError(f"expected a message of at most {_LONGEST} bytes, got {len(body)}")
    given = [] if descriptor is None else [descriptor]
    socket.send_fds(link, [len(body).to_bytes(8, "little")], given)
    link.sendall(body)


def receive(link: socket.socket, until: float) -> tuple[dict[str, Any], int | None] | None:
    """Receive a message, and the open file that comes with it.

    Args:
        link: to the other process.
        until: when it is too late, as `time.monotonic` counts.

    Returns:
        None where the other process has gone.

    Raises:
        TimeoutError: it is too late.
    """
    body, descriptor, length = b"", None, None
    while length is None or len(body) < length:
        ready, _, _ = select.select([link], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise TimeoutError
        try:
            if length is None:
                head, given, _, _ = socket.recv_fds(link, 8, 1)
                if len(head) < 8:
                    return None
                descriptor, length = next(iter(given), None), int.from_bytes(head, "little")
                if length > _LONGEST:
                    return None
            else:
                part = link.recv(min(length - len(body), 1 << 20))
                if not part:
                    return None
                body += part
        except ConnectionError:
            return None
    return json.loads(body), descriptor


def serve(descriptor: int) -> None:
    """Answer requests until nobody is there to ask."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.addaudithook(_audit)
    with socket.socket(fileno=descriptor) as link:
        going = True
        while going:
            try:
                received = receive(link, time.monotonic() + _IDLE)
            except TimeoutError:
                return
            if received is None:
                return
            with contextlib.suppress(BrokenPipeError):
                going = _answer(link, received[0])


def _answer(link: socket.socket, request: Mapping[str, Any]) -> bool:
    """Answer one request; tell whether this process is fit for another."""
    with contextlib.suppress(OSError):  # a folder that is gone
        os.chdir(request["folder"])
    path = Path(request["path"])
    megabytes = request["megabytes"] or BASE_MB + EACH_BYTE * _prepare(path) // MB
    seconds = BASE_SECONDS + max(0, megabytes - BASE_MB) // MB_A_SECOND
    send(link, {"megabytes": megabytes, "seconds": seconds, "machine": _machine_share() // MB})
    shared: int | None = None
    try:
        with _limits(megabytes, seconds):
            with _only(path):
                values, about = CALLS[request["call"]](path, **request["given"])
            shape = None if values is None else values.shape
            if values is not None:
                shared = _share(values)
            del values
        answer: dict[str, object] = {"about": about, "shape": shape}
    except Exception as error:
        answer = _describe(error)
        if os.environ.get("CASSI_DEBUG", "0") not in ("", "0"):
            traceback.print_exc()
    send(link, answer, shared)
    if shared is not None:
        os.close(shared)
    return answer.get("error") != "memory"


def _prepare(path: Path) -> int:
    """Import what a file takes, which counts as none of its reading; return its size in bytes."""
    libraries: tuple[str, ...] = _LIBRARIES.get(path.suffix.lower(), ())
    stored = 0
    with contextlib.suppress(OSError, ValueError):  # said when the file is read
        if path.suffix.lower() in arrays.FOLDERS:
            stored = check_folder(path)
            strange = zarr.open_chunks(path) is None
            libraries = ("zarr",) if strange and importlib.util.find_spec("zarr") else ()
        elif path.is_dir():
            libraries = ("PIL.PngImagePlugin", "tifffile")
            files = [file for file in path.iterdir() if file.suffix.lower() in _LIBRARIES]
            stored = sum(file.lstat().st_size for file in files)
        elif "spectral.io.envi" in libraries:
            stored = sum(file.lstat().st_size for file in path.parent.glob("*") if _of(path, file))
        else:
            stored = path.stat().st_size
    for name in libraries:
        importlib.import_module(name)
    return stored


def _of(path: Path, file: Path) -> bool:
    """Tell whether a file may be the other one of the two of an ENVI image."""
    return file.name.split(".")[0] == path.name.split(".")[0]


def _machine_share() -> int:
    """Return how many bytes of the machine's memory reading may take, so that it never runs out."""
    return max(3 * machine_memory() // 4, BASE_MB * MB)


@contextmanager
def _limits(megabytes: int, seconds: int) -> Iterator[None]:
    pages = Path("/proc/self/statm").read_text("ascii").split()
    page, size = os.sysconf("SC_PAGE_SIZE"), megabytes * MB
    used = resource.getrusage(resource.RUSAGE_SELF)
    wanted = {
        resource.RLIMIT_AS: int(pages[0]) * page + size,
        # Without maps of files, so that a large file can be read within the machine's memory.
        resource.RLIMIT_DATA: int(pages[5]) * page + min(size, _machine_share()),
        resource.RLIMIT_CPU: int(used.ru_utime + used.ru_stime) + 1 + seconds,
        resource.RLIMIT_FSIZE: size,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
    }
    before = {kind: resource.getrlimit(kind) for kind in wanted}
    try:
        for kind, value in wanted.items():
            soft, hard = before[kind]
            known = [n for n in (soft, hard) if n != resource.RLIM_INFINITY]
            resource.setrlimit(kind, (min([value, *known]), hard))
        yield
    finally:
        for kind, limits in before.items():
            resource.setrlimit(kind, limits)


_allowed: Path | None = None
_PACKAGE = str(Path(__file__).parents[1])
_HOMES = {os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, _PACKAGE)}
_HOMES |= {"/proc/self", f"/proc/{os.getpid()}", "/sys"}
_IMPORTED = {os.path.realpath(path) for path in sys.path if path}
"""Modules lie there; where the file does too, as beside a script, others are not to be read."""
_CODE = (".py", ".pyc", ".so")


@contextmanager
def _only(path: Path) -> Iterator[None]:
    """Let Python open this file or folder alone, to read it."""
    global _allowed
    _allowed = Path(os.path.realpath(path))
    try:
        yield
    finally:
        _allowed = None


def _audit(event: str, given: tuple[Any, ...]) -> None:
    if _allowed is None or (event != "open" and event not in _NEVER):
        return
    if event != "open":
        raise PermissionError(f"{event} while a file is read")
    path, flags = given[0], given[2] or 0
    if isinstance(path, int):
        return
    place = Path(os.path.realpath(os.fsdecode(path)))
    if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) == 0:
        code = place.suffix in _CODE
        homes = {path for path in _IMPORTED if code or not _allowed.is_relative_to(path)}
        if any(place.is_relative_to(home) for home in (str(_allowed), *_HOMES, *homes)):
            return
        pair = _allowed.suffix.lower() in (".hdr", *envi.DATA_SUFFIXES)
        if pair and place.parent == _allowed.parent and _of(_allowed, place):
            return
    raise PermissionError(f"expected to read {_allowed.name} alone, it leads to {place}")


def _share(values: np.ndarray) -> int:
    """Write an array as float32 into memory that has no name, and return its descriptor."""
    descriptor = os.memfd_create("cassi-array", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, 4 * values.size)
        with mmap.mmap(descriptor, 4 * values.size) as mapped:
            target = np.frombuffer(mapped, np.float32).reshape(values.shape)
            # Values beyond float32 become infinite, which the caller sees.
            with np.errstate(over="ignore", invalid="ignore"):
                target[...] = values
            del target
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _describe(error: BaseException) -> dict[str, object]:
    link: BaseException | None = error
    while link is not None:
        said = str(link).lower()
        if isinstance(link, MemoryError) or any(words in said for words in _NO_MEMORY):
            return {"error": "memory"}
        link = link.__cause__ or link.__context__
    if isinstance(error, OSError) and error.errno is not None:
        named = None if error.filename is None else os.fsdecode(error.filename)
        return {"error": "OSError", "given": [error.errno, error.strerror, named]}
    if isinstance(error, ValueError):
        return {"error": "ValueError", "given": [str(error)]}
    place = traceback.extract_tb(error.__traceback__)[-1]
    said = f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"
    return {"error": "defect", "given": [said]}
