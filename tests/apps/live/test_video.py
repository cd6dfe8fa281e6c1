"""Videos and stacks: their frames, and nothing else that a file could start or open."""

import os

import numpy as np
import pytest
import tifffile

from cassi.apps.live.video import open_video

PLAYLIST = "#EXTM3U\n#EXTINF:1,\nvideo.mp4\n#EXT-X-ENDLIST\n"
NO_VIDEOS = {
    "postscript": "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n",
    "playlist": PLAYLIST,
    "list": "ffconcat version 1.0\nfile video.mp4\n",
    "empty": "",
}


@pytest.fixture
def write_video(tmp_path):
    av = pytest.importorskip("av", reason="needs the extra live")

    def write(name, codec, kind, frames):
        height, width = frames[0].shape[:2]
        with av.open(str(tmp_path / name), "w") as file:
            stream = file.add_stream(codec, rate=5)
            stream.width, stream.height, stream.pix_fmt = width, height, kind
            shown = "rgb24" if frames[0].ndim == 3 else kind
            for frame in frames:
                file.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format=shown)))
            file.mux(stream.encode())
        return tmp_path / name

    return write


def test_colours_of_a_video_are_summed(write_video):
    frames = [np.full((16, 32, 3), value, np.uint8) for value in (0, 60, 120)]
    found = list(open_video(write_video("video.mp4", "mpeg4", "yuv420p", frames)))
    assert [frame.shape for frame in found] == [(16, 32)] * 3
    assert [frame.mean() for frame in found] == pytest.approx([0, 180, 360], abs=10)


@pytest.mark.parametrize(("kind", "dtype"), [("gray", np.uint8), ("gray16le", np.uint16)])
def test_values_of_a_grey_video_stay(write_video, kind, dtype):
    frames = np.arange(3 * 16 * 32).reshape(3, 16, 32).astype(dtype)
    found = list(open_video(write_video("video.mkv", "ffv1", kind, list(frames))))
    assert np.array_equal(found, frames)


@pytest.mark.parametrize("place", ["contig", "separate"])
def test_colours_of_a_stack_are_summed(tmp_path, place):
    shape = (4, 6, 3) if place == "contig" else (3, 4, 6)
    colours = np.arange(72).astype(np.uint8).reshape(shape)
    tifffile.imwrite(tmp_path / "a.tif", colours, photometric="rgb", planarconfig=place)
    (frame,) = open_video(tmp_path / "a.tif")
    assert np.array_equal(frame, colours.sum(shape.index(3)))


@pytest.mark.parametrize("kind", NO_VIDEOS)
@pytest.mark.parametrize("suffix", ["mp4", "tif", "eps"])
def test_what_is_no_video_is_refused_and_starts_nothing(
    write_video, tmp_path, monkeypatch, kind, suffix
):
    write_video("video.mp4", "mpeg4", "yuv420p", [np.zeros((16, 32, 3), np.uint8)])
    mark = tmp_path / "mark"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/gs").write_text(f"#!/bin/sh\ntouch {mark}\n")
    (tmp_path / "bin/gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    path = tmp_path / f"x.{suffix}"
    path.write_text(NO_VIDEOS[kind])
    with pytest.raises(ValueError, match=rf"^source: cannot read .*{path.name}: expected a video"):
        open_video(path)
    assert not mark.exists()
