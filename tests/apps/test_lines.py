"""Lines of processes that share a terminal are printed whole."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from cassi.apps.command import write_whole_lines
write_whole_lines()
print("one", 1, flush=True)
print("two", file=sys.stderr)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs sockets that keep writes apart")
def test_a_line_and_its_end_are_one_write():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        # As torchrun starts them.
        program = [sys.executable, "-u", "-c", PROGRAM]
        subprocess.run(program, stdout=theirs, stderr=theirs, check=True, timeout=300)
        assert [ours.recv(100), ours.recv(100)] == [b"one 1\n", b"two\n"]
