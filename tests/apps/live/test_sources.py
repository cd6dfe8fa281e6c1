"""Sources of cassi-live: what a frame is, and what is skipped."""

import json
import os
import sys
import time
import types

import numpy as np
import pytest

from cassi.apps.live.sources import FolderSource, Spool, open_source, unpack


def poll(source, seconds=5.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := source.poll():
            return found
        time.sleep(0.02)
    return []


def test_a_folder_gives_new_files_in_the_order_of_their_times(tmp_path):
    np.save(tmp_path / "old.npy", np.ones((2, 2)))
    os.utime(tmp_path / "old.npy", (1, 1))
    np.save(tmp_path / "first.npy", np.ones((2, 2)))
    os.utime(tmp_path / "first.npy", (2, 2))
    source = FolderSource(tmp_path)
    assert [frame.name for frame in poll(source)] == ["first"]
    (tmp_path / "note.txt").write_text("no frame")
    (tmp_path / "link.npy").symlink_to("old.npy")
    np.save(tmp_path / "b.npy", np.ones((2, 2)))
    os.utime(tmp_path / "b.npy", (3, 3))
    np.save(tmp_path / "a.npy", np.ones((2, 2)))
    os.utime(tmp_path / "a.npy", (4, 4))
    names = [frame.name for _ in range(2) for frame in poll(source, 0.5)]
    assert names == ["b", "a"]
    assert poll(source, 0.2) == []


@pytest.mark.parametrize(
    ("header", "size", "said"),
    [
        (b"{", 4, "JSON"),
        (b" " * 1001, 4, "expected a header and bytes"),
        (b'{"dtype": "object", "shape": [1, 1]}', 8, "expected one of"),
        (b'{"dtype": "uint8", "shape": [2, -2]}', 4, "whole numbers"),
        (b'{"dtype": "uint8", "shape": [2, 2]}', 5, "expected 4 bytes"),
        (b'{"dtype": "uint8", "shape": [2]}', 2, "2 or 3 axes"),
    ],
)
def test_a_message_that_is_no_frame_is_refused(header, size, said):
    with pytest.raises(ValueError, match=said):
        unpack([header, bytes(size)])


def test_a_socket_gives_frames_and_names_broken_ones(tmp_path):
    zmq = pytest.importorskip("zmq")
    source = open_source("zmq://127.0.0.1:39217", tmp_path / "spool")
    sender = zmq.Context.instance().socket(zmq.PUSH)
    sender.connect("tcp://127.0.0.1:39217")
    frame = np.arange(6, dtype=np.uint16).reshape(2, 3)
    sender.send_multipart([json.dumps({"dtype": "uint16", "shape": [2, 3]}).encode(), frame])
    (found,) = poll(source)
    assert np.array_equal(np.load(found.path), frame)
    sender.send_multipart([b"no header", b""])
    (broken,) = poll(source)
    with pytest.raises(OSError, match=r"cannot listen on tcp://127\.0\.0\.1:39217"):
        open_source("zmq://127.0.0.1:39217", tmp_path / "spool")
    assert broken.path is None
    assert "JSON" in broken.problem
    sender.close(0)
    source.close()
    assert not list((tmp_path / "spool").iterdir())


def test_few_files_of_a_spool_are_kept(tmp_path):
    spool = Spool(tmp_path)
    for index in range(10):
        spool.put(np.full((2, 2), index))
    assert len(list(tmp_path.iterdir())) == 4


def test_a_video_gives_every_frame(tmp_path):
    imageio = pytest.importorskip("imageio.v3")
    frames = np.arange(5 * 16 * 20).astype(np.uint8).reshape(5, 16, 20)
    imageio.imwrite(tmp_path / "video.tif", frames)
    source = open_source(str(tmp_path / "video.tif"), tmp_path / "spool")
    for frame in frames:
        assert np.array_equal(np.load(source.poll()[0].path).squeeze(), frame)
    assert source.poll() == []
    source.close()
    assert not list((tmp_path / "spool").iterdir())
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    with pytest.raises(ValueError, match=r"imageio cannot read .*broken\.mp4"):
        open_source(str(tmp_path / "broken.mp4"), tmp_path / "spool")


def test_a_video_that_ends_in_an_error_is_read_up_to_there(tmp_path, monkeypatch):
    imageio = pytest.importorskip("imageio.v3")

    def frames(path):
        yield np.ones((4, 5, 3), np.uint8)
        raise OSError("cut short")

    monkeypatch.setattr(imageio, "imiter", frames)
    (tmp_path / "a.mp4").touch()
    source = open_source(str(tmp_path / "a.mp4"), tmp_path / "spool")
    assert np.array_equal(np.load(source.poll()[0].path), np.full((4, 5), 3))
    assert source.poll()[0].problem == "imageio cannot read on: cut short"
    assert source.poll() == []


def test_a_camera_of_harvesters(tmp_path, monkeypatch):
    class Buffer:
        part = types.SimpleNamespace(data=np.arange(6), height=2, width=3)
        payload = types.SimpleNamespace(components=[part])

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

    buffers = [Buffer(), None]
    camera = types.SimpleNamespace(
        start=lambda: None,
        stop=lambda: None,
        destroy=lambda: None,
        try_fetch=lambda timeout: buffers.pop(0),
    )
    harvester = types.SimpleNamespace(
        add_file=lambda path: None,
        update=lambda: None,
        reset=lambda: None,
        device_info_list=[1],
        create=lambda: camera,
    )
    module = types.ModuleType("harvesters.core")
    module.Harvester = lambda: harvester
    monkeypatch.setitem(sys.modules, "harvesters", types.ModuleType("harvesters"))
    monkeypatch.setitem(sys.modules, "harvesters.core", module)
    source = open_source("genicam://driver.cti", tmp_path / "spool")
    assert np.load(source.poll()[0].path).shape == (2, 3)
    assert source.poll() == []  # in time
    source.close()
    harvester.device_info_list = []
    with pytest.raises(ValueError, match=r"source: driver\.cti finds no camera"):
        open_source("genicam://driver.cti", tmp_path / "spool")


@pytest.mark.parametrize(
    ("value", "library", "package"),
    [
        ("a.mp4", "imageio.v3", "imageio"),
        ("zmq://127.0.0.1:39218", "zmq", "pyzmq"),
        ("genicam://driver.cti", "harvesters.core", "harvesters"),
    ],
)
def test_what_a_source_needs_is_named(tmp_path, monkeypatch, value, library, package):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ValueError, match=rf"source: .* takes .*; pip install '?{package}"):
        open_source(value, tmp_path)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("ftp://there", "expected zmq://"),
        ("nothing.mp4", "no file"),
        ("zmq://127.0.0.1:99999", "a port to 65535"),
        ("frame.npy", "give its folder"),
    ],
)
def test_what_is_no_source_is_refused(tmp_path, monkeypatch, value, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "frame.npy").touch()
    with pytest.raises((ValueError, OSError), match=said):
        open_source(value, tmp_path)
