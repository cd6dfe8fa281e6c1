"""Where frames come from: a folder that fills, a video file, a socket, a camera.

Every frame becomes a file, so that the process for untrusted files reads it (`cassi.data.door`).
"""

import json
import math
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cassi.data.io import READ_SUFFIXES

LARGEST = 2**28
"""Bytes of a frame of a socket."""
KINDS = ("uint8", "uint16", "uint32", "float32", "float64")
"""Number formats of a frame of a socket."""
_ARRAYS = set(READ_SUFFIXES) - {".tif", ".tiff"}
"""Of files that are no video."""
_SPOOLED = 4  # files of frames that are kept: the newest is read while others come


@dataclass(frozen=True)
class Frame:
    """A frame that has come.

    Attributes:
        name: of the frame, in messages and in the record.
        path: of its file; None where it is broken.
        came: when it was there, seconds since 1970.
        problem: why it is broken.
    """

    name: str
    path: Path | None
    came: float
    problem: str = ""


class Source(Protocol):
    """Gives frames."""

    def poll(self) -> list[Frame]:
        """Return the frames that have come since the last call, the oldest first."""

    def close(self) -> None:
        """Take no more."""


class FolderSource:
    """A folder that fills. A file counts when its size has stayed the same for 50 ms.

    The newest file that is there at the start is the first frame. Links and hidden files are left
    out.

    Raises:
        NotADirectoryError: it is no folder.
    """

    pause = 0.05

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.waiting: dict[str, tuple[int, float]] = {}
        found = self._list(-1)
        self.last = max((stamp for stamp, _, _ in found[:-1]), default=-1)

    def poll(self) -> list[Frame]:
        """Return new files in the order of their times."""
        now, ready = time.monotonic(), []
        waiting: dict[str, tuple[int, float]] = {}
        for stamp, name, size in self._list(self.last):
            known, since = self.waiting.get(name, (-1, now))
            since = since if known == size else now
            waiting[name] = size, since
            if now - since < self.pause:
                break  # later ones wait for it, so that the order holds
            ready.append((stamp, name))
        self.waiting = waiting
        if ready:
            self.last = ready[-1][0]
        return [Frame(Path(name).stem, self.folder / name, stamp / 1e9) for stamp, name in ready]

    def close(self) -> None:
        """Take no more."""

    def _list(self, after: int) -> list[tuple[int, str, int]]:
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                suffix = Path(entry.name).suffix.lower()
                if entry.name.startswith(".") or suffix not in READ_SUFFIXES or entry.is_symlink():
                    continue
                try:
                    facts = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # it was moved away
                    continue
                if facts.st_mtime_ns > after:
                    found.append((facts.st_mtime_ns, entry.name, facts.st_size))
        return sorted(found)


class Spool:
    """Keeps arrays as .npy files, the newest few.

    Args:
        folder: for the files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, frame: np.ndarray) -> Frame:
        """Write a frame, and forget an old one."""
        name = f"{self.count:06d}"
        path = self.folder / f"{name}.npy"
        np.save(path, frame, allow_pickle=False)
        self.folder.joinpath(f"{self.count - _SPOOLED:06d}.npy").unlink(missing_ok=True)
        self.count += 1
        return Frame(name, path, time.time())

    def broken(self, problem: str) -> Frame:
        """Return a broken frame."""
        self.count += 1
        return Frame(f"{self.count - 1:06d}", None, time.time(), problem)

    def close(self) -> None:
        """Remove the files."""
        for path in self.folder.glob("*.npy"):
            path.unlink(missing_ok=True)


class VideoSource:
    """A video file, read by imageio: every frame in turn, none is dropped.

    Colours are summed to one channel.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: imageio is not installed, or cannot read it.
    """

    def __init__(self, path: Path, spool: Spool) -> None:
        try:
            import imageio.v3 as imageio
        except ImportError:
            raise ValueError(
                "source: a video file takes imageio; pip install 'imageio[pyav]'"
            ) from None
        if not path.is_file():
            raise FileNotFoundError(f"source: no file {path}")
        self.spool = spool
        try:
            found = imageio.imiter(path)
            self.frames = _each(chain([next(found)], found))
        except Exception as error:
            raise ValueError(f"source: imageio cannot read {path}: {error}") from None

    def poll(self) -> list[Frame]:
        """Return the next frame; none at the end."""
        try:
            frame = next(self.frames)
        except StopIteration:
            return []
        except Exception as error:  # of the library: the rest of the file is lost
            self.frames = _each(())
            return [self.spool.broken(f"imageio cannot read on: {error}")]
        return [self.spool.put(frame)]

    def close(self) -> None:
        """Remove the files."""
        self.spool.close()


def _each(found: Iterable[Any]) -> Iterator[np.ndarray]:
    """Yield frames `(H, W)`; imageio may give all pages of a file at once, and colours last."""
    for array in map(np.asarray, found):
        if array.ndim == 3 and array.shape[-1] in (3, 4):
            yield array[..., :3].astype(np.float32).sum(-1)
        elif array.ndim > 2:
            yield from _each(array)
        else:
            yield array


class SocketSource:
    """A ZeroMQ socket. A message has two parts: `{"dtype": …, "shape": […]}` in JSON, and bytes.

    Args:
        address: `tcp://127.0.0.1:5555`, to listen on.
        spool: for the frames.

    Raises:
        OSError: the address is taken.
        ValueError: pyzmq is not installed.
    """

    def __init__(self, address: str, spool: Spool) -> None:
        try:
            import zmq
        except ImportError:
            raise ValueError("source: zmq:// takes pyzmq; pip install pyzmq") from None
        self.zmq, self.spool = zmq, spool
        self.socket: Any = zmq.Context.instance().socket(zmq.PULL)
        self.socket.setsockopt(zmq.RCVHWM, 4)
        self.socket.setsockopt(zmq.MAXMSGSIZE, LARGEST)
        self.socket.setsockopt(zmq.LINGER, 0)
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:
            raise OSError(f"source: cannot listen on {address}: {error}") from None

    def poll(self) -> list[Frame]:
        """Return what has come."""
        found: list[Frame] = []
        while len(found) < 64:
            try:
                parts = self.socket.recv_multipart(self.zmq.NOBLOCK)
            except self.zmq.Again:
                break
            try:
                found.append(self.spool.put(unpack(parts)))
            except ValueError as error:
                found.append(self.spool.broken(str(error)))
        return found

    def close(self) -> None:
        """Close the socket, and remove the files."""
        self.socket.close()
        self.spool.close()


def unpack(parts: list[bytes]) -> np.ndarray:
    """Return the frame of a message.

    Raises:
        ValueError: it is none.
    """
    if len(parts) != 2 or len(parts[0]) > 1000:
        raise ValueError(f"message: expected a header and bytes, got {len(parts)} parts")
    try:
        header = json.loads(parts[0])
        kind, shape = header["dtype"], header["shape"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("message: expected a header with dtype and shape in JSON") from None
    sides = shape if isinstance(shape, list) else []
    if kind not in KINDS or len(sides) not in (2, 3):
        raise ValueError(f"message: expected one of {', '.join(KINDS)} and 2 or 3 axes")
    if not all(isinstance(side, int) and 0 < side <= 2**16 for side in sides):
        raise ValueError("message: expected a shape of whole numbers above 0")
    wanted = math.prod(sides) * np.dtype(kind).itemsize
    if len(parts[1]) != wanted:
        raise ValueError(f"message: expected {wanted} bytes for this shape, got {len(parts[1])}")
    return np.frombuffer(parts[1], kind).reshape(sides)


class CameraSource:
    """The first GenICam camera that a driver (a .cti file) finds, by harvesters.

    Raises:
        ValueError: harvesters is not installed, or finds no camera.
    """

    def __init__(self, driver: Path, spool: Spool) -> None:
        try:
            from harvesters.core import Harvester
        except ImportError:
            raise ValueError(
                "source: genicam:// takes harvesters; pip install harvesters"
            ) from None
        self.spool, self.harvester = spool, Harvester()
        self.harvester.add_file(str(driver))
        self.harvester.update()
        if not self.harvester.device_info_list:
            self.harvester.reset()
            raise ValueError(f"source: {driver} finds no camera")
        self.camera = self.harvester.create()
        self.camera.start()

    def poll(self) -> list[Frame]:
        """Return the next frame, if one comes within 0.1 s."""
        buffer = self.camera.try_fetch(timeout=0.1)
        if buffer is None:
            return []
        with buffer:
            part = buffer.payload.components[0]
            frame = np.array(part.data).reshape(part.height, part.width)
        return [self.spool.put(frame)]

    def close(self) -> None:
        """Stop the camera, and remove the files."""
        self.camera.stop()
        self.camera.destroy()
        self.harvester.reset()
        self.spool.close()


def open_source(value: str, spool: Path) -> Source:
    """Open what `source=` names: zmq://HOST:PORT, genicam://FILE.cti, a folder, or a video file.

    Args:
        value: of the command line.
        spool: folder for frames that do not come as files.

    Raises:
        OSError, ValueError: it cannot be opened.
    """
    kind, found, rest = value.partition("://")
    if found and kind == "zmq":
        port = rest.rpartition(":")[2]
        if not (port.isdecimal() and 0 < int(port) < 2**16):  # the library takes the rest of one
            raise ValueError(f"source: expected zmq://HOST:PORT, a port to 65535, got {value}")
        return SocketSource(f"tcp://{rest}", Spool(spool))
    if found and kind == "genicam":
        return CameraSource(Path(rest), Spool(spool))
    if found:
        raise ValueError(f"source: expected zmq://, genicam://, a folder or a file, got {value}")
    path = Path(value).expanduser()
    if path.is_file() and path.suffix.lower() in _ARRAYS:
        raise ValueError(f"source: expected a folder or a video file, got {path}; give its folder")
    return FolderSource(path) if path.is_dir() else VideoSource(path, Spool(spool))
