"""Where frames come from: a folder that fills, a video file, a socket, a camera.

Every frame becomes a file, so that the process for untrusted files reads it (`cassi.data.door`).
"""

import json
import math
import os
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cassi.apps.live.video import open_video
from cassi.apps.live.zmtp import Message, Receiver
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


class Source:
    """Gives frames."""

    def poll(self) -> list[Frame]:
        """Return the frames that have come since the last call, the oldest first.

        Raises:
            OSError: there will be no more.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Take no more."""


class FolderSource(Source):
    """A folder that fills. A file counts when it has stayed the same for 50 ms.

    The newest file that is there at the start is the first frame. Files are known by name, inode,
    time and size; a time alone may be wrong. Links and hidden files are left out.
    """

    pause = 0.05

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listed = self._list()
        self.taken = set(list(self.listed)[:-1])
        self.looked = time.time()

    def poll(self) -> list[Frame]:
        """Return files that two looks found the same, in the order of their times.

        Raises:
            OSError: the folder is gone.
        """
        now, came = time.time(), self.looked
        if 0 <= now - came < self.pause:  # a clock that was set back begins anew
            return []
        before, self.listed, self.looked = self.listed, self._list(), now
        same = {facts: name for facts, name in self.listed.items() if facts in before}
        new = [name for facts, name in same.items() if facts not in self.taken]
        self.taken = set(same)
        return [Frame(Path(name).stem, self.folder / name, came) for name in new]

    def _list(self) -> dict[tuple[int, str, int, int], str]:
        """Return the names of files by what they are known by, sorted by their times."""
        files = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                is_array = entry.name.lower().endswith(READ_SUFFIXES)
                if entry.name.startswith(".") or not is_array or entry.is_symlink():
                    continue
                with suppress(FileNotFoundError):  # it was moved away
                    facts = entry.stat(follow_symlinks=False)
                    known = (facts.st_mtime_ns, entry.name, facts.st_ino, facts.st_size)
                    files[known] = entry.name
        return dict(sorted(files.items()))


class SpooledSource(Source):
    """A source whose frames become .npy files; the newest few are kept.

    Args:
        spool: folder for the files, of which the caller disposes.
    """

    def __init__(self, spool: Path) -> None:
        self.spool, self.count = spool, 0
        self.paths = deque[Path]()
        spool.mkdir(parents=True, exist_ok=True)

    def put(self, array: np.ndarray) -> Frame:
        """Write a frame, and forget an old one."""
        frame = self.broken("")
        path = self.spool / f"{frame.name}.npy"
        np.save(path, array, allow_pickle=False)
        self.paths.append(path)
        if len(self.paths) > _SPOOLED:
            self.paths.popleft().unlink(missing_ok=True)
        return Frame(frame.name, path, frame.came)

    def broken(self, problem: str) -> Frame:
        """Return a frame without a file."""
        self.count += 1
        return Frame(f"{self.count - 1:06d}", None, time.time(), problem)


class VideoSource(SpooledSource):
    """A video file or a TIFF stack: every frame in turn, none is dropped."""

    def __init__(self, path: Path, spool: Path) -> None:
        self.path, self.frames = path, open_video(path)
        super().__init__(spool)

    def poll(self) -> list[Frame]:
        """Return the next frame.

        Raises:
            EOFError: there is none.
        """
        try:
            return [self.put(next(self.frames))]
        except StopIteration:
            raise EOFError(f"{self.path} has no more frames") from None
        except Exception as error:  # of the library: the rest of the file is lost
            self.frames = iter(())
            return [self.broken(f"{self.path} cannot be read on: {error}")]


class SocketSource(SpooledSource):
    """A ZeroMQ socket. A message has two parts: `{"dtype": …, "shape": […]}` in JSON, and bytes."""

    def __init__(self, host: str, port: int, spool: Path) -> None:
        try:
            self.receiver = Receiver(host, port, LARGEST)
        except OSError as error:
            text = f"source: cannot listen on tcp://{host}:{port}: {error.strerror or error}"
            raise OSError(text) from None
        super().__init__(spool)
        if not self.receiver.is_private:
            print(
                f"source: zmq://{host}:{port} listens beyond this machine; anyone in this network "
                "can send frames",
                file=sys.stderr,
            )

    def poll(self) -> list[Frame]:
        """Return what has come."""
        frames = []
        for message in self.receiver.poll():
            try:
                frames.append(self.put(unpack(message)))
            except ValueError as error:
                frames.append(self.broken(str(error)))
        return frames

    def close(self) -> None:
        """Close the socket."""
        self.receiver.close()


def unpack(parts: Message) -> np.ndarray:
    """Return the frame of a message.

    Raises:
        ValueError: it is none.
    """
    if isinstance(parts, str):
        raise ValueError(parts)
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
    if not all(type(side) is int and 0 < side <= 2**16 for side in sides):
        raise ValueError("message: expected a shape of whole numbers from 1 to 65536")
    wanted = math.prod(sides) * np.dtype(kind).itemsize
    if len(parts[1]) != wanted:
        raise ValueError(f"message: expected {wanted} bytes for this shape, got {len(parts[1])}")
    return np.frombuffer(parts[1], kind).reshape(sides)


class CameraSource(SpooledSource):
    """The first GenICam camera that a driver (a .cti file) finds, by harvesters.

    Raises:
        ValueError: harvesters is not installed, or finds no camera.
    """

    def __init__(self, driver: Path, spool: Path) -> None:
        try:
            from harvesters.core import Harvester
        except ImportError:
            raise ValueError(
                "source: genicam:// takes harvesters; pip install harvesters"
            ) from None
        super().__init__(spool)
        self.harvester = Harvester()
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
            return [self.put(np.array(part.data).reshape(part.height, part.width))]

    def close(self) -> None:
        """Stop the camera."""
        self.camera.stop()
        self.camera.destroy()
        self.harvester.reset()


def open_source(value: str, spool: Path) -> Source:
    """Open what `source=` names: zmq://HOST:PORT, genicam://FILE.cti, a folder, or a video file.

    Args:
        value: of the command line.
        spool: folder for frames that do not come as files.
    """
    kind, separator, rest = value.partition("://")
    if separator and kind == "zmq":
        host, _, port = rest.rpartition(":")
        if not (host and port.isdecimal() and 0 < int(port[:6]) < 2**16):
            raise ValueError(f"source: expected zmq://HOST:PORT, a port to 65535, got {value}")
        return SocketSource(host, int(port), spool)
    if separator and kind == "genicam":
        return CameraSource(Path(rest), spool)
    if separator:
        raise ValueError(f"source: expected zmq://, genicam://, a folder or a file, got {value}")
    path = Path(value).expanduser()
    if path.is_file() and path.suffix.lower() in _ARRAYS:
        raise ValueError(f"source: expected a folder or a video file, got {path}; give its folder")
    return FolderSource(path) if path.is_dir() else VideoSource(path, spool)
