"""The process that reads files: limited, and without torch. `door.py` starts it and asks it.

It imports numpy and the library of the format alone. Around each file it limits its own addresses,
memory, processor time, open files and written bytes, and refuses to open anything else. So readers
may believe a file: what it claims beyond these limits ends in an error, or ends the process.

A request is a line of JSON. The answer is one with the limits, one with what the file says, and the
bytes of a float32 array.
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
from cassi.data.formats import arrays, blaming, envi, machine_memory, tiff

MB = 1_000_000
BASE_MB, EACH_BYTE = 512, 64
"""What reading may take: so much, and so many bytes for each of the file."""
BASE_SECONDS, MB_A_SECOND = 8, 128
"""Processor time: so much, and a second for each of so many MB beyond the base."""
_OPEN_FILES = 64
_IDLE = 120
"""Seconds without a request, after which it ends; the next request starts another."""
_POINTER = 1024
"""Bytes of a file that may be a pointer of Git LFS, at most."""
_LIBRARIES = {
    **dict.fromkeys((".tif", ".tiff"), ("tifffile",)),
    **dict.fromkeys(envi.SUFFIXES, ("spectral.io.envi",)),
    **dict.fromkeys((".h5", ".hdf5", ".hspy"), ("h5py",)),
    **dict.fromkeys((".mat", ".nc"), ("scipy.io", "h5py")),
    ".png": ("PIL.PngImagePlugin",),
    ".zarr": ("zarr",),
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


def serve(descriptor: int) -> None:
    """Answer requests until nobody is there to ask."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.addaudithook(_audit)
    with socket.socket(fileno=descriptor) as link, link.makefile("rb") as requests:
        while select.select([link], [], [], _IDLE)[0] and (line := requests.readline()):
            if not _answer(link, json.loads(line)):
                return


def send(link: socket.socket, message: Mapping[str, object]) -> None:
    """Send a line of JSON."""
    link.sendall(json.dumps(message).encode() + b"\n")


def _answer(link: socket.socket, request: Mapping[str, Any]) -> bool:
    """Answer one request; tell whether this process is fit for another."""
    with contextlib.suppress(OSError):  # a folder that is gone
        os.chdir(request["folder"])
    path, values = Path(request["path"]), None
    for name in _LIBRARIES.get(path.suffix.lower(), ()):  # counts as none of the file's reading
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    files = [file for file in _files_of(path) if file.is_file()]
    stored = sum(file.stat().st_size for file in files)
    megabytes = request["megabytes"] or BASE_MB + EACH_BYTE * stored // MB
    seconds = BASE_SECONDS + max(0, megabytes - BASE_MB) // MB_A_SECOND
    send(link, {"megabytes": megabytes, "seconds": seconds, "machine": _machine_share() // MB})
    try:
        with _limits(megabytes, seconds), _only(path):
            with blaming(f"cannot read {path}"):
                for file in (file for file in files if file.stat().st_size <= _POINTER):
                    check_fetched(file, file.read_bytes())
            values, about = CALLS[request["call"]](path, **request["given"])
            if values is not None:
                # Values beyond float32 become infinite, which the caller sees.
                with np.errstate(over="ignore", invalid="ignore"):
                    values = np.ascontiguousarray(values, np.float32)
        answer: dict[str, object] = {"about": about, "shape": getattr(values, "shape", None)}
    except Exception as error:
        answer = describe(error)
        if os.environ.get("CASSI_DEBUG", "0") not in ("", "0"):
            traceback.print_exc()
    send(link, answer)
    if "error" not in answer and values is not None:
        link.sendall(values.data.cast("B"))
    return answer.get("error") != "memory"


def _files_of(path: Path) -> list[Path]:
    """Return what is read with a file: all below a folder, both parts of an ENVI image."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            return list(path.rglob("*"))
        if path.suffix.lower() in envi.SUFFIXES:
            return [file for file in path.parent.iterdir() if _is_pair(path, file)]
    return [path]


def _is_pair(path: Path, file: Path) -> bool:
    """Tell whether these may be the two parts of an ENVI image."""
    alike = file.name.split(".")[0] == path.name.split(".")[0]
    return path.suffix.lower() in envi.SUFFIXES and file.parent == path.parent and alike


def _machine_share() -> int:
    """Return how many bytes of the machine's memory reading may take, so that it never runs out."""
    return max(3 * machine_memory() // 4, BASE_MB * MB)


@contextlib.contextmanager
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
_HOMES = {os.path.realpath(path) for path in (*sys.path, sys.prefix, sys.base_prefix, _PACKAGE)}
_HOMES |= {"/proc/self", f"/proc/{os.getpid()}", "/sys"}
"""What Python and its libraries read; where the file lies there too, this is code alone."""
_CODE = (".py", ".pyc", ".so")


@contextlib.contextmanager
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
        homes = [home for home in _HOMES if code or not _allowed.is_relative_to(home)]
        if any(place.is_relative_to(home) for home in (str(_allowed), *homes)):
            return
        if _is_pair(_allowed, place):
            return
    raise PermissionError(f"expected to read {_allowed.name} alone, it leads to {place}")


def describe(error: BaseException) -> dict[str, object]:
    """Return what is said of an error: want of memory, the file's fault, or a defect."""
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
