"""Frames of a video file or of a TIFF stack, read by the library of that format and no other.

A library that guesses the format of an untrusted file may start a program or a connection:
PostScript goes to Ghostscript, and a playlist opens other files and addresses.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from cassi.data.formats.tiff import open_tiff

_STACK_SUFFIXES = (".tif", ".tiff")
# PyAV's format of a frame's array, by (whether it is grey, whether it has more than 8 bits).
_PIXEL_FORMATS = {
    (True, True): "gray16le",
    (True, False): "gray",
    (False, True): "rgb48le",
    (False, False): "rgb24",
}
# FFmpeg may open this one file and no other, and only as a format that refers to no other file.
_FFMPEG_OPTIONS = {
    "protocol_whitelist": "file",
    "format_whitelist": "mov,matroska,avi,mpegts,mpeg,asf,gif",
}


def open_video(path: Path) -> Iterator[np.ndarray]:
    """Return the frames `(H, W)` of a file, with their colours summed in float32.

    Args:
        path: a TIFF stack, by its suffix, or a video.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file holds no frames of a supported format, or PyAV is not installed.
    """
    if not path.is_file():
        raise FileNotFoundError(f"source: no file {path}")
    frames = _read_stack(path) if path.suffix.lower() in _STACK_SUFFIXES else _read_video(path)
    try:
        first = next(frames)
    except ImportError:
        raise ValueError("source: a video file needs PyAV; pip install 'cassi[live]'") from None
    except StopIteration:
        raise ValueError(f"source: expected frames in {path}, got none") from None
    except Exception as error:  # the libraries raise exceptions of many kinds
        expectation = "expected a video (mp4, mkv, avi, …) or a TIFF stack"
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"source: cannot read {path}: {expectation} ({reason})") from None
    return chain([first], frames)


def _read_stack(path: Path) -> Iterator[np.ndarray]:
    with open_tiff(path) as stack:
        for page in stack.pages:
            yield _sum_colours(page.asarray(), page.axes.find("S"))


def _read_video(path: Path) -> Iterator[np.ndarray]:
    import av

    with av.open(str(path), container_options=_FFMPEG_OPTIONS) as video:
        for frame in video.decode(video=0):
            components = frame.format.components
            is_grey, is_deep = len(components) == 1, components[0].bits > 8
            values = frame.to_ndarray(format=_PIXEL_FORMATS[is_grey, is_deep])
            yield _sum_colours(values, -1 if is_grey else 2)


def _sum_colours(frame: np.ndarray, axis: int) -> np.ndarray:
    """Sum red, green and blue, but not alpha, along `axis`; -1 means a frame without colours."""
    return frame if axis < 0 else np.moveaxis(frame, axis, -1)[..., :3].sum(-1, dtype=np.float32)
