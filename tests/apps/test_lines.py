"""Lines of processes that share a terminal are printed whole."""

import io
import socket
import sys

import pytest

from cassi.apps.command import write_whole_lines


@pytest.mark.skipif(sys.platform != "linux", reason="needs sockets that keep writes apart")
def test_a_line_and_its_end_are_one_write(monkeypatch):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        for name in ("stdout", "stderr"):  # as of `python -u`, which torchrun starts
            file = io.FileIO(theirs.fileno(), "w", closefd=False)
            monkeypatch.setattr(sys, name, io.TextIOWrapper(file, write_through=True))
        write_whole_lines()
        print("one", 1, flush=True)
        print("two", file=sys.stderr)
        monkeypatch.undo()
        assert [ours.recv(100), ours.recv(100)] == [b"one 1\n", b"two\n"]
