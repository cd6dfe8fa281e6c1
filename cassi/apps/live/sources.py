"""Sources of frames: a folder that another program fills, a video file, a socket, a camera.

Every frame becomes a file, so that the sandboxed reader opens it (`cassi.data.sandboxed_reader`).
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

MAX_MESSAGE_BYTES = 2**28
"""Largest message of a socket, bytes."""
DTYPES = ("uint8", "uint16", "uint32", "float32", "float64")
"""Number formats of frames of a socket."""
# Files with these suffixes hold one frame. A TIFF file may be a stack, and counts as a video.
_ARRAY_SUFFIXES = set(READ_SUFFIXES) - {".tif", ".tiff"}
# More than one file is kept, because newer frames arrive while a frame is read.
_MAX_SPOOLED_FILES = 4


@dataclass(frozen=True)
class Frame:
    """A frame that has arrived.

    Attributes:
        name: name of the frame, in messages and in the record.
        path: path of its file; None for a broken frame.
        arrived_at: when the frame was there, seconds since 1970.
        problem: why the frame is broken; "" for a good one.
    """

    name: str
    path: Path | None
    arrived_at: float
    problem: str = ""


class Source:
    """A source of frames, which is asked for them again and again."""

    def poll(self) -> list[Frame]:
        """Return the frames that have arrived since the last call, the oldest first.

        Raises:
            OSError: the source has ended.
        """
        raise NotImplementedError

    def stop(self) -> None:
        """Close the files and connections of the source."""


class FolderSource(Source):
    """A folder that another program fills. A file counts when it has not changed for 50 ms.

    The newest file at the start is the first frame. A file is identified by name, inode, time and
    size: the time alone is not enough, because a clock can be set back. Links and hidden files are
    left out. With a larger `stable_seconds` every frame comes later; with a smaller one a file may
    be read while it is still written.
    """

    stable_seconds = 0.05

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = self._list()
        # Older files are not reconstructed, but the newest one shows the user a cube at once.
        self.seen_files = set(list(self.files)[:-1])
        self.listed_at = time.time()

    def poll(self) -> list[Frame]:
        """Return the new files that were the same in the last two listings, the oldest first.

        Raises:
            OSError: the folder is gone.
        """
        time_now, previous_time = time.time(), self.listed_at
        # A negative difference means that the clock was set back. The folder is listed even then;
        # otherwise no frame would come until the clock has caught up.
        if 0 <= time_now - previous_time < self.stable_seconds:
            return []
        previous_files, self.files, self.listed_at = self.files, self._list(), time_now
        stable_files = {
            identity: name for identity, name in self.files.items() if identity in previous_files
        }
        new_names = [
            name for identity, name in stable_files.items() if identity not in self.seen_files
        ]
        self.seen_files = set(stable_files)
        return [Frame(Path(name).stem, self.folder / name, previous_time) for name in new_names]

    def _list(self) -> dict[tuple[int, str, int, int], str]:
        """Return the names of the files by (time, name, inode, size), sorted by time."""
        files = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                is_array = entry.name.lower().endswith(READ_SUFFIXES)
                if entry.name.startswith(".") or not is_array or entry.is_symlink():
                    continue
                with suppress(FileNotFoundError):  # removed or renamed since the folder was listed
                    status = entry.stat(follow_symlinks=False)
                    identity = (status.st_mtime_ns, entry.name, status.st_ino, status.st_size)
                    files[identity] = entry.name
        return dict(sorted(files.items()))


class SpooledSource(Source):
    """A source whose frames become .npy files; the newest few are kept.

    Args:
        spool: folder for the files; the caller removes it.
    """

    def __init__(self, spool: Path) -> None:
        self.spool, self.n_frames = spool, 0
        self.paths = deque[Path]()
        spool.mkdir(parents=True, exist_ok=True)

    def put(self, array: np.ndarray) -> Frame:
        """Write a frame into the spool, and delete the oldest file if there are too many."""
        frame = self.make_broken("")
        path = self.spool / f"{frame.name}.npy"
        np.save(path, array, allow_pickle=False)
        self.paths.append(path)
        if len(self.paths) > _MAX_SPOOLED_FILES:
            self.paths.popleft().unlink(missing_ok=True)
        return Frame(frame.name, path, frame.arrived_at)

    def make_broken(self, problem: str) -> Frame:
        """Return the next frame as a broken one, without a file."""
        self.n_frames += 1
        return Frame(f"{self.n_frames - 1:06d}", None, time.time(), problem)


class VideoSource(SpooledSource):
    """A video file or a TIFF stack: each call gives one frame, so that none is dropped."""

    def __init__(self, path: Path, spool: Path) -> None:
        self.path, self.frames = path, open_video(path)
        super().__init__(spool)

    def poll(self) -> list[Frame]:
        """Return the next frame.

        Raises:
            EOFError: there are no more frames.
        """
        try:
            return [self.put(next(self.frames))]
        except StopIteration:
            raise EOFError(f"{self.path} has no more frames") from None
        # The libraries raise exceptions of many kinds. The rest of the file cannot be read.
        except Exception as error:
            self.frames = iter(())
            return [self.make_broken(f"{self.path} cannot be read further: {error}")]


class SocketSource(SpooledSource):
    """A ZeroMQ socket. A message has two parts: `{"dtype": …, "shape": […]}` in JSON, and bytes."""

    def __init__(self, host: str, port: int, spool: Path) -> None:
        try:
            self.receiver = Receiver(host, port, MAX_MESSAGE_BYTES)
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
        """Return the frames of all messages that have arrived."""
        frames = []
        for message in self.receiver.poll():
            try:
                frames.append(self.put(unpack(message)))
            except ValueError as error:
                frames.append(self.make_broken(str(error)))
        return frames

    def stop(self) -> None:
        """Close the socket."""
        self.receiver.stop()


def unpack(parts: Message) -> np.ndarray:
    """Return the frame `(H', W')` or `(H', W', C)` of a message.

    Every value of the header is checked: anyone in the network may have sent it.

    Raises:
        ValueError: the message is no frame.
    """
    if isinstance(parts, str):
        raise ValueError(parts)
    if len(parts) != 2 or len(parts[0]) > 1000:
        raise ValueError(f"message: expected a header and bytes, got {len(parts)} parts")
    try:
        header = json.loads(parts[0])
        dtype, shape = header["dtype"], header["shape"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("message: expected a header with dtype and shape in JSON") from None
    shape_list = shape if isinstance(shape, list) else []
    if dtype not in DTYPES or len(shape_list) not in (2, 3):
        raise ValueError(f"message: expected one of {', '.join(DTYPES)} and 2 or 3 axes")
    # A JSON `true` is an int for isinstance, so the type is compared.
    if not all(type(side) is int and 0 < side <= 2**16 for side in shape_list):
        raise ValueError("message: expected a shape of whole numbers from 1 to 65536")
    n_bytes = math.prod(shape_list) * np.dtype(dtype).itemsize
    if len(parts[1]) != n_bytes:
        raise ValueError(f"message: expected {n_bytes} bytes for this shape, got {len(parts[1])}")
    return np.frombuffer(parts[1], dtype).reshape(shape_list)


class CameraSource(SpooledSource):
    """The first GenICam camera that a driver (a .cti file) lists, read by the package harvesters.

    Raises:
        ValueError: harvesters is not installed, or finds no camera.
    """

    def __init__(self, driver: Path, spool: Path) -> None:
        try:
            from harvesters.core import Harvester
        except ImportError:
            raise ValueError(
                "source: genicam:// needs harvesters; pip install harvesters"
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
        # The driver reuses the buffer after this block, so the image is copied.
        with buffer:
            image = buffer.payload.components[0]
            return [self.put(np.array(image.data).reshape(image.height, image.width))]

    def stop(self) -> None:
        """Stop the camera."""
        self.camera.stop()
        self.camera.destroy()
        self.harvester.reset()


def open_source(value: str, spool: Path) -> Source:
    """Open the source that `source=` names.

    Args:
        value: zmq://HOST:PORT, genicam://FILE.cti, a folder, or a video file.
        spool: folder for frames that do not come as files.

    Raises:
        OSError: the source cannot be opened.
        ValueError: the value names no source.
    """
    scheme, separator, address = value.partition("://")
    if separator and scheme == "zmq":
        # An IPv6 address has colons, too, so the port follows the last one.
        host, _, port = address.rpartition(":")
        if not (host and port.isdecimal() and 0 < int(port[:6]) < 2**16):
            raise ValueError(f"source: expected zmq://HOST:PORT, a port to 65535, got {value}")
        return SocketSource(host, int(port), spool)
    if separator and scheme == "genicam":
        return CameraSource(Path(address), spool)
    if separator:
        raise ValueError(f"source: expected zmq://, genicam://, a folder or a file, got {value}")
    path = Path(value).expanduser()
    if path.is_file() and path.suffix.lower() in _ARRAY_SUFFIXES:
        raise ValueError(f"source: expected a folder or a video file, got {path}; give its folder")
    return FolderSource(path) if path.is_dir() else VideoSource(path, spool)
