"""Sources of cassi-live: what a frame is, and what is skipped."""

import contextlib
import json
import os
import socket
import sys
import threading
import time
import types
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
import tifffile

from cassi.apps.live import sources, zmtp
from cassi.apps.live.sources import FolderSource, SpooledSource, open_source, unpack


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


def test_a_time_in_the_future_hides_no_later_frame(tmp_path):
    source = FolderSource(tmp_path)
    for name, stamp in (("future", 4e9), ("b", 5), ("a", 3), ("b", 5)):
        np.save(tmp_path / ".new.npy", np.ones((2, 2)))
        os.utime(tmp_path / ".new.npy", (stamp, stamp))
        (tmp_path / ".new.npy").rename(tmp_path / f"{name}.npy")  # b is replaced in the end
        (frame,) = poll(source)
        assert frame.name == name
        assert frame.arrived_at <= time.time()
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
        (b'{"dtype": "uint8", "shape": [true, true]}', 1, "whole numbers"),
        (b'{"dtype": NaN, "shape": [1, 1]}', 1, "expected one of"),
    ],
)
def test_a_message_that_is_no_frame_is_refused(header, size, said):
    with pytest.raises(ValueError, match=said):
        unpack([header, bytes(size)])


def header_of(frame):
    return json.dumps({"dtype": str(frame.dtype), "shape": frame.shape}).encode()


@pytest.fixture
def opened(tmp_path):
    source = open_source("zmq://127.0.0.1:39217", tmp_path / "spool")
    yield source
    source.stop()


def test_a_socket_gives_frames_and_names_broken_ones(opened, tmp_path):
    zmq = pytest.importorskip("zmq")
    sender = zmq.Context.instance().socket(zmq.PUSH)
    sender.setsockopt(zmq.HEARTBEAT_IVL, 50)
    sender.connect("tcp://127.0.0.1:39217")
    frame = np.arange(6, dtype=np.uint16).reshape(2, 3)
    sender.send_multipart([json.dumps({"dtype": "uint16", "shape": [2, 3]}).encode(), frame])
    (found,) = poll(opened)
    assert np.array_equal(np.load(found.path), frame)
    sender.send_multipart([b"no header", b""])
    (broken,) = poll(opened)
    with pytest.raises(OSError, match=r"cannot listen on tcp://127\.0\.0\.1:39217"):
        open_source("zmq://127.0.0.1:39217", tmp_path / "spool")
    assert broken.path is None
    assert "JSON" in broken.problem
    large = np.random.default_rng(0).random((800, 900), np.float32)
    for message in ([b"a"] * 40, [b""], [header_of(large), large]):
        sender.send_multipart(message)
    names = []
    while not names or names[-1].problem:
        names += poll(opened)
    assert [each.problem.partition("got ")[2] for each in names] == ["40 parts", "1 parts", ""]
    assert np.array_equal(np.load(names[-1].path), large)
    sender.close(0)


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
READY = b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"GET / HTTP/1.1\r\n" + bytes(64), "version 3"),
        (GREETING.replace(b"NULL", b"PLAI"), "without a password"),
        (GREETING + READY.replace(b"PUSH", b"PAIR"), "a PUSH socket"),
        (GREETING + READY + b"\x06" + bytes([255] * 8), "a command of at most"),
        (GREETING + READY + b"\x02" + bytes([255] * 8), "at most 268435456 bytes"),
        (GREETING + READY + b"\x03" + (2**28 - 9).to_bytes(8, "big")[:7], "nothing more came"),
        (GREETING + READY + b"\x01\x00" * 1001, "in 1000 parts, got 0 in 1001"),
    ],
)
def test_who_sends_no_frames_is_cut_off(opened, monkeypatch, data, problem):
    monkeypatch.setattr(zmtp, "MAX_SILENCE_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", 39217)) as stranger:
        stranger.sendall(data)
        assert problem in poll(opened)[0].problem
        assert opened.receiver.senders == []


def test_a_message_of_many_large_parts_is_not_kept(opened, monkeypatch):
    monkeypatch.setattr(opened.receiver, "max_bytes", 2**20)
    part = b"\x03" + (2**18).to_bytes(8, "big") + bytes(2**18)
    with socket.create_connection(("127.0.0.1", 39217)) as stranger:
        stranger.sendall(GREETING + READY)
        sending = threading.Thread(target=send_all, args=(stranger, part * 40))
        sending.start()
        assert "at most 1048576 bytes" in poll(opened)[0].problem
        sending.join()


def send_all(sender, data):
    with contextlib.suppress(OSError):
        sender.sendall(data)


def test_strangers_take_no_place_from_a_sender(opened):
    zmq = pytest.importorskip("zmq")
    sender = zmq.Context.instance().socket(zmq.PUSH)
    sender.connect("tcp://127.0.0.1:39217")
    frame = np.ones((2, 3), np.uint8)
    sender.send_multipart([header_of(frame), frame])
    assert poll(opened)[0].path
    with contextlib.ExitStack() as idle:
        for _ in range(50):
            idle.enter_context(socket.create_connection(("127.0.0.1", 39217)))
        poll(opened, 0.2)
        assert len(opened.receiver.senders) == zmtp.MAX_SENDERS
        noise = idle.enter_context(socket.create_connection(("127.0.0.1", 39217)))
        noise.sendall(GREETING + READY + b"\x00\x01x" * 20_000)
        sender.send_multipart([header_of(frame), frame])
        frames = []
        while not any(each.path for each in frames):
            frames += poll(opened)
    sender.close(0)


@pytest.mark.parametrize("host", ["*", "0.0.0.0"])
def test_a_socket_that_others_reach_is_said_to_be_one(tmp_path, capsys, host):
    open_source(f"zmq://{host}:39217", tmp_path).stop()
    (line,) = capsys.readouterr().err.splitlines()
    assert "anyone in this network can send frames" in line
    open_source("zmq://localhost:39217", tmp_path).stop()
    assert capsys.readouterr().err == ""


def test_few_files_of_a_spool_are_kept(tmp_path):
    spool = SpooledSource(tmp_path)
    for index in range(10):
        spool.put(np.full((2, 2), index))
        spool.make_broken("between frames")
    assert len(list(tmp_path.iterdir())) == 4


def test_a_video_gives_every_frame_and_ends(tmp_path):
    frames = np.arange(5 * 16 * 20).astype(np.uint8).reshape(5, 16, 20)
    tifffile.imwrite(tmp_path / "video.tif", frames, photometric="minisblack")
    source = open_source(str(tmp_path / "video.tif"), tmp_path / "spool")
    for frame in frames:
        shown = np.load(source.poll()[0].path)
        assert shown.dtype == np.uint8
        assert np.array_equal(shown, frame)
    with pytest.raises(EOFError, match=r"video\.tif has no more frames"):
        source.poll()
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    with pytest.raises(ValueError, match=r"source: cannot read .*broken\.mp4"):
        open_source(str(tmp_path / "broken.mp4"), tmp_path / "spool")


def test_a_video_that_ends_in_an_error_is_read_up_to_there(tmp_path, monkeypatch):
    def frames(path):
        yield np.full((4, 5), 3.0, np.float32)
        raise OSError("cut short")

    monkeypatch.setattr(sources, "open_video", frames)
    source = open_source(str(tmp_path / "a.mp4"), tmp_path / "spool")
    assert np.array_equal(np.load(source.poll()[0].path), np.full((4, 5), 3))
    assert source.poll()[0].problem == f"{tmp_path / 'a.mp4'} cannot be read further: cut short"
    with pytest.raises(EOFError):
        source.poll()


def test_a_camera_of_harvesters(tmp_path, monkeypatch):
    part = types.SimpleNamespace(data=np.arange(6), height=2, width=3)
    buffer, module = MagicMock(), MagicMock()
    buffer.payload.components = [part]
    harvester = module.Harvester.return_value
    harvester.device_info_list = [1]
    harvester.create.return_value.try_fetch.side_effect = [buffer, None]
    monkeypatch.setitem(sys.modules, "harvesters", MagicMock())
    monkeypatch.setitem(sys.modules, "harvesters.core", module)
    source = open_source("genicam://driver.cti", tmp_path / "spool")
    assert np.load(source.poll()[0].path).shape == (2, 3)
    assert source.poll() == []  # in time
    source.stop()
    harvester.create.return_value.destroy.assert_called_once()
    harvester.device_info_list = []
    with pytest.raises(ValueError, match=r"source: driver\.cti finds no camera"):
        open_source("genicam://driver.cti", tmp_path / "spool")


@pytest.mark.parametrize(
    ("value", "library", "package"),
    [
        ("a.mp4", "av", "cassi"),
        ("genicam://driver.cti", "harvesters.core", "harvesters"),
    ],
)
def test_what_a_source_needs_is_named(tmp_path, monkeypatch, value, library, package):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.chdir(tmp_path)
    Path("a.mp4").touch()
    with pytest.raises(ValueError, match=rf"source: .* needs .*; pip install '?{package}"):
        open_source(value, tmp_path)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("ftp://there", "expected zmq://"),
        ("nothing.mp4", "no file"),
        ("zmq://127.0.0.1:99999", "a port to 65535"),
        ("zmq://:5555", "zmq://HOST:PORT"),
        (f"zmq://127.0.0.1:{'5' * 5000}", "a port to 65535"),
        ("frame.npy", "give its folder"),
    ],
)
def test_what_is_no_source_is_refused(tmp_path, monkeypatch, value, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "frame.npy").touch()
    with pytest.raises((ValueError, OSError), match=said):
        open_source(value, tmp_path)
