"""Frames of a video file or of a TIFF stack, read by the library of that format and no other.

A library that guesses the format of a stranger's file may hand it to a program: PostScript goes to
Ghostscript, and a playlist opens other files and addresses.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from cassi.data.formats.tiff import open_tiff

_STACKS = (".tif", ".tiff")
_ALONE = {"protocol_whitelist": "file", "format_whitelist": "mov,matroska,avi,mpegts,mpeg,asf,gif"}
"""Options of FFmpeg: formats of one file."""


def open_video(path: Path) -> Iterator[np.ndarray]:
    """Return the frames `(H, W)` of a file; colours are summed, in float32.

    Args:
        path: a TIFF stack, by its suffix, or a video.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it holds no frames of a format that is read, or PyAV is not installed.
    """
    if not path.is_file():
        raise FileNotFoundError(f"source: no file {path}")
    frames = _read_stack(path) if path.suffix.lower() in _STACKS else _read_video(path)
    try:
        first = next(frames)
    except ImportError:
        raise ValueError("source: a video file takes PyAV; pip install 'cassi[live]'") from None
    except StopIteration:
        raise ValueError(f"source: expected frames in {path}, got none") from None
    except Exception as error:  # of the library, of any kind
        wanted = "expected a video (mp4, mkv, avi, …) or a TIFF stack"
        said = getattr(error, "strerror", None) or error
        raise ValueError(f"source: cannot read {path}: {wanted} ({said})") from None
    return chain([first], frames)


def _read_stack(path: Path) -> Iterator[np.ndarray]:
    with open_tiff(path) as stack:
        for page in stack.pages:
            yield _sum_colours(page.asarray(), page.axes.find("S"))


def _read_video(path: Path) -> Iterator[np.ndarray]:
    import av

    with av.open(str(path), container_options=_ALONE) as video:
        for frame in video.decode(video=0):
            parts = frame.format.components
            grey, deep = len(parts) == 1, parts[0].bits > 8
            kind = ("gray16le" if deep else "gray") if grey else ("rgb48le" if deep else "rgb24")
            yield _sum_colours(frame.to_ndarray(format=kind), -1 if grey else 2)


def _sum_colours(frame: np.ndarray, axis: int) -> np.ndarray:
    """Sum the colours along their axis, -1 where there are none; a fourth one is alpha."""
    return frame if axis < 0 else np.moveaxis(frame, axis, -1)[..., :3].sum(-1, dtype=np.float32)
