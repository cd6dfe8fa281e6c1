"""The receiving end of ZeroMQ, with limits: messages of PUSH sockets over TCP (ZMTP 3).

libzmq itself keeps every part of a message until the last one has come, whatever their number, and
any number of connections. It has no setting against either.
"""

import contextlib
import selectors
import socket
import time
from collections.abc import Generator, Iterator
from ipaddress import ip_address

MOST_SENDERS = 4
"""Connections at a time. A further one replaces the one that has given least and is oldest."""
MOST_PARTS = 1000
"""Parts of a message; those beyond the second are counted and not kept."""
PATIENCE = 10
"""Seconds without a byte after which a sender in the middle of a message is cut off."""
POLL = 0.2
"""Seconds that a poll reads at most, where senders are faster."""
_CHUNK = 2**16
_MORE, _LONG, _COMMAND = 1, 2, 4  # flags of a frame
_READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x04PULL"
_HELLO = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20 + 32, b"\0")
_PING, _PONG = b"\x04PING", b"\x04PONG"

Message = list[bytes] | str
"""The first two parts of a message and an empty one for each further; or why it is none."""


class Receiver:
    """Listens, and returns messages in the order of their coming; all is done in `poll`.

    Args:
        host: to listen on; `*` is every interface.
        port: to listen on.
        largest: bytes of a message.

    Raises:
        OSError: the address is taken, or none of this machine's.
    """

    def __init__(self, host: str, port: int, largest: int) -> None:
        self.largest = largest
        host = {"*": "0.0.0.0"}.get(host, host).strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.listener = socket.create_server((host, port), family=family)
        self.listener.setblocking(False)
        self.is_private = ip_address(self.listener.getsockname()[0]).is_loopback
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.senders: list[_Sender] = []

    def poll(self) -> Iterator[Message]:
        """Yield the messages that have come, a chunk of each sender in its turn."""
        end = time.monotonic() + POLL
        while (ready := self.selector.select(0)) and time.monotonic() < end:
            for key, _ in ready:
                if key.data is None:
                    self._accept()
                else:
                    yield from self._read(key.data)
        for sender in self.senders[:]:
            if sender.is_busy and time.monotonic() - sender.heard > PATIENCE:
                yield from self._drop(sender, f"nothing more came for {PATIENCE} s")

    def close(self) -> None:
        """Listen no longer, and hang up."""
        for sender in self.senders[:]:
            self._drop(sender)
        self.selector.close()
        self.listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it has hung up again
            connection, _ = self.listener.accept()
            if len(self.senders) == MOST_SENDERS:
                self._drop(min(self.senders, key=lambda each: (each.count, each.heard)))
            connection.setblocking(False)
            sender = _Sender(connection, self.largest)
            self.senders.append(sender)
            self.selector.register(connection, selectors.EVENT_READ, sender)
            connection.send(_HELLO + bytes([_COMMAND, len(_READY)]) + _READY)

    def _read(self, sender: "_Sender") -> list[Message]:
        if sender not in self.senders:  # a newer one has its place
            return []
        try:
            return sender.read()
        except (EOFError, OSError):
            return self._drop(sender, "the sender hung up" if sender.is_busy else "")
        except ValueError as error:
            return self._drop(sender, str(error))

    def _drop(self, sender: "_Sender", problem: str = "") -> list[Message]:
        self.selector.unregister(sender.socket)
        sender.socket.close()
        self.senders.remove(sender)
        return [*sender.take(), *([f"message: {problem}"] if problem else [])]


class _Sender:
    """A connection, and how far its message has come."""

    def __init__(self, connection: socket.socket, largest: int) -> None:
        self.socket, self.largest = connection, largest
        self.heard, self.count = time.monotonic(), 0
        self.is_busy = True
        self._buffer, self._messages = bytearray(), list[Message]()
        self._talk = self._receive()
        self._wanted = next(self._talk)

    def read(self) -> list[Message]:
        """Return the messages that a chunk ends.

        Raises:
            EOFError: the sender has hung up.
            OSError: the connection is broken.
            ValueError: what comes is not to be read on.
        """
        try:
            chunk = self.socket.recv(_CHUNK)
        except BlockingIOError:
            return []
        if not chunk:
            raise EOFError
        self.heard = time.monotonic()
        self._buffer += chunk
        while len(self._buffer) >= self._wanted:
            with memoryview(self._buffer) as view:
                part = bytes(view[: self._wanted])
            del self._buffer[: self._wanted]
            self._wanted = self._talk.send(part)
        return self.take()

    def take(self) -> list[Message]:
        """Return what is whole, and forget it."""
        messages, self._messages = self._messages, []
        return messages

    def _receive(self) -> Generator[int, bytes, None]:
        """Ask for a number of bytes, again and again, and put messages together."""
        hello = yield len(_HELLO)
        if hello[0] != 0xFF or hello[10] < 3 or hello[12:17] != b"NULL\0":
            raise ValueError("expected a ZeroMQ sender of version 3 without a password")
        parts, size, count = list[bytes](), 0, 0
        while True:
            self.is_busy = count > 0
            (flags,) = yield 1
            self.is_busy = True
            length = int.from_bytes((yield 8 if flags & _LONG else 1), "big")
            if flags & _COMMAND:
                if length > 2**12:
                    raise ValueError(f"expected a command of at most 4096 bytes, got {length}")
                self._answer((yield length))
                continue
            size, count = size + length, count + 1
            if size > self.largest or count > MOST_PARTS:
                raise ValueError(
                    f"expected at most {self.largest} bytes in {MOST_PARTS} parts, got {size} in "
                    f"{count}"
                )
            part = yield length
            parts.append(part if count <= 2 else b"")
            if not flags & _MORE:
                self._messages.append(parts)
                self.count += 1
                parts, size, count = [], 0, 0

    def _answer(self, command: bytes) -> None:
        if command.startswith(b"\x05READY") and b"PUSH" not in command:
            raise ValueError("expected a PUSH socket")
        if command.startswith(_PING):  # its name, two bytes of time, and what is to be sent back
            echo = _PONG + command[len(_PING) + 2 :][:16]
            self.socket.send(bytes([_COMMAND, len(echo)]) + echo)
