"""The receiving end of ZeroMQ, with limits: messages of PUSH sockets over TCP (ZMTP 3).

libzmq itself keeps every part of a message until the last one has come, whatever their number, and
any number of connections. It has no setting against either.
"""

import contextlib
import queue
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from ipaddress import ip_address

MOST_SENDERS = 4
"""Connections at a time. A further one replaces the one that has given least and is oldest."""
MOST_PARTS = 1000
"""Parts of a message; those beyond the second are counted and not kept."""
PATIENCE = 10.0
"""Seconds without a byte after which a sender in the middle of a message is cut off."""
POLL = 0.2
"""Seconds that a poll reads at most, where senders are faster."""
_IDLE = 0.01  # seconds that a poll waits for a message
_MORE, _LONG, _COMMAND = 1, 2, 4  # flags of a frame
_READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x04PULL"
_HELLO = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20 + 32, b"\0")
_PING, _PONG = b"\x04PING", b"\x04PONG"

Message = list[bytes] | str
"""The first two parts of a message and an empty one for each further; or why it is none."""


class Receiver(socketserver.ThreadingTCPServer):
    """Listens; each sender has a thread, which waits until its last message was taken.

    Args:
        host: to listen on; `*` is every interface.
        port: to listen on.
        largest: bytes of a message.

    Raises:
        OSError: the address is taken, or none of this machine's.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, largest: int) -> None:
        host = {"*": "0.0.0.0"}.get(host, host).strip("[]")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.largest = largest
        self.senders: list[_Sender] = []
        self.lock = threading.Lock()
        self.messages = queue.Queue[Message](1)
        super().__init__((host, port), _Sender)
        self.is_private = ip_address(self.socket.getsockname()[0]).is_loopback
        threading.Thread(target=self.serve_forever, args=[POLL], daemon=True).start()

    def poll(self) -> Iterator[Message]:
        """Yield the messages that have come."""
        end = time.monotonic() + POLL
        with contextlib.suppress(queue.Empty):
            while time.monotonic() < end:
                yield self.messages.get(timeout=_IDLE)

    def close(self) -> None:
        """Listen no longer, and hang up."""
        self.shutdown()
        self.server_close()
        with self.lock:
            while self.senders:
                self.drop(self.senders[0])

    def drop(self, sender: "_Sender") -> None:
        """Hang up, under the lock; the thread of the sender then ends without a word."""
        self.senders.remove(sender)
        with contextlib.suppress(OSError):
            sender.connection.shutdown(socket.SHUT_RDWR)


class _Sender(socketserver.StreamRequestHandler):
    """A connection: its messages go to the receiver, and why it was cut off."""

    server: Receiver
    count = 0

    def handle(self) -> None:
        with self.server.lock:
            if len(self.server.senders) == MOST_SENDERS:
                self.server.drop(min(self.server.senders, key=lambda sender: sender.count))
            self.server.senders.append(self)
        try:
            self._expect_more(True)
            self._greet()
            while True:
                self.server.messages.put(self._receive())
                self.count += 1
        except TimeoutError:
            problem = f"nothing more came for {PATIENCE:g} s"
        except (EOFError, OSError):
            problem = "the sender hung up" if self.expects_more else ""
        except ValueError as error:
            problem = str(error)
        with self.server.lock:
            if self not in self.server.senders:
                return
            self.server.senders.remove(self)
        if problem:
            self.server.messages.put(f"message: {problem}")

    def _expect_more(self, expects_more: bool) -> None:
        """Wait with patience in the middle of a message, and for ever between two."""
        self.expects_more = expects_more
        self.connection.settimeout(PATIENCE if expects_more else None)

    def _read(self, length: int) -> bytes:
        part = self.rfile.read(length)
        if len(part) < length:
            raise EOFError
        return part

    def _greet(self) -> None:
        self.connection.sendall(_HELLO + bytes([_COMMAND, len(_READY)]) + _READY)
        hello = self._read(len(_HELLO))
        if hello[0] != 0xFF or hello[10] < 3 or hello[12:17] != b"NULL\0":
            raise ValueError("expected a ZeroMQ sender of version 3 without a password")

    def _receive(self) -> Message:
        """Return the next message; commands before it and within it are answered."""
        parts = list[bytes]()
        size, flags = 0, _MORE
        while flags & (_MORE | _COMMAND):
            self._expect_more(bool(parts))
            (flags,) = self._read(1)
            self._expect_more(True)
            length = int.from_bytes(self._read(8 if flags & _LONG else 1), "big")
            if flags & _COMMAND:
                self._answer(length)
                continue
            size += length
            if size > self.server.largest or len(parts) == MOST_PARTS:
                raise ValueError(
                    f"expected at most {self.server.largest} bytes in {MOST_PARTS} parts, got "
                    f"{size} in {len(parts) + 1}"
                )
            part = self._read(length)
            parts.append(part if len(parts) < 2 else b"")
        return parts

    def _answer(self, length: int) -> None:
        if length > 2**12:
            raise ValueError(f"expected a command of at most 4096 bytes, got {length}")
        command = self._read(length)
        if command.startswith(b"\x05READY") and b"PUSH" not in command:
            raise ValueError("expected a PUSH socket")
        if command.startswith(_PING):  # its name, two bytes of time, and what is to be sent back
            echo = _PONG + command[len(_PING) + 2 :][:16]
            self.connection.sendall(bytes([_COMMAND, len(echo)]) + echo)
