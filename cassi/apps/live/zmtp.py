"""A receiver of ZeroMQ messages with limits: PUSH sockets over TCP, protocol ZMTP 3.

libzmq keeps all parts of a message until the last one has arrived, and takes any number of
connections. It has no setting that limits either, so a sender in the network could fill the memory.
"""

import contextlib
import queue
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from ipaddress import ip_address

MAX_SENDERS = 4
"""Largest number of connections at one time.

A further connection replaces the one that sent the fewest messages. If several sent equally few,
the oldest of them is replaced.
"""
MAX_PARTS = 1000
"""Largest number of parts of a message. The content of parts beyond the second is not kept."""
MAX_SILENCE_SECONDS = 10.0
"""A sender that stops in the middle of a message for this time is cut off."""
MAX_POLL_SECONDS = 0.2
"""A poll ends after this time, even if more messages arrive."""
_MESSAGE_WAIT_SECONDS = 0.01
# Flags of a ZMTP frame: more parts follow, the length has 8 bytes, the frame is a command.
_MORE_FLAG, _LONG_FLAG, _COMMAND_FLAG = 1, 2, 4
_READY_COMMAND = b"\x05READY\x0bSocket-Type\x00\x00\x00\x04PULL"
# Signature, version 3.1, mechanism NULL (no password), and zeros up to 64 bytes.
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20 + 32, b"\0")
_PING_COMMAND, _PONG_COMMAND = b"\x04PING", b"\x04PONG"

Message = list[bytes] | str
"""The parts of a message, or an error in words. Parts beyond the second are empty."""


class Receiver(socketserver.ThreadingTCPServer):
    """Listens at an address. Each sender has a thread, which waits until its message is taken.

    Args:
        host: address to listen on; `*` is every interface.
        port: port to listen on.
        max_bytes: largest size of a message.

    Raises:
        OSError: the address is taken, or is no address of this machine.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, max_bytes: int) -> None:
        host = {"*": "0.0.0.0"}.get(host, host).strip("[]")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.max_bytes = max_bytes
        self.senders: list[_Sender] = []
        self.lock = threading.Lock()
        # The queue holds one message. So a fast sender waits for the reader, and messages do not
        # fill the memory.
        self.messages = queue.Queue[Message](1)
        super().__init__((host, port), _Sender)
        self.is_private = ip_address(self.socket.getsockname()[0]).is_loopback
        threading.Thread(target=self.serve_forever, args=[MAX_POLL_SECONDS], daemon=True).start()

    def poll(self) -> Iterator[Message]:
        """Yield the messages that have arrived."""
        end = time.monotonic() + MAX_POLL_SECONDS
        with contextlib.suppress(queue.Empty):
            while time.monotonic() < end:
                yield self.messages.get(timeout=_MESSAGE_WAIT_SECONDS)

    def stop(self) -> None:
        """Stop listening, and close all connections."""
        self.shutdown()
        self.server_close()
        with self.lock:
            while self.senders:
                self.drop(self.senders[0])

    def drop(self, sender: "_Sender") -> None:
        """Close a connection. The caller holds the lock; the sender's thread ends by itself."""
        self.senders.remove(sender)
        with contextlib.suppress(OSError):
            sender.connection.shutdown(socket.SHUT_RDWR)


class _Sender(socketserver.StreamRequestHandler):
    """One connection: it hands its messages to the receiver, and an error if it is cut off."""

    server: Receiver
    n_messages = 0

    def handle(self) -> None:
        with self.server.lock:
            # Dropping the sender with the fewest messages keeps the real camera connected, even if
            # others open connections and send nothing.
            if len(self.server.senders) == MAX_SENDERS:
                self.server.drop(min(self.server.senders, key=lambda sender: sender.n_messages))
            self.server.senders.append(self)
        try:
            self._limit_silence(True)
            self._exchange_greetings()
            while True:
                self.server.messages.put(self._receive())
                self.n_messages += 1
        except TimeoutError:
            problem = f"nothing more came for {MAX_SILENCE_SECONDS:g} s"
        except (EOFError, OSError):
            problem = "the sender hung up" if self.expects_more else ""
        except ValueError as error:
            problem = str(error)
        with self.server.lock:
            if self not in self.server.senders:  # dropped by the receiver, which needs no message
                return
            self.server.senders.remove(self)
        if problem:
            self.server.messages.put(f"message: {problem}")

    def _limit_silence(self, expects_more: bool) -> None:
        """Limit the silence within a message; between two messages, wait without limit."""
        self.expects_more = expects_more
        self.connection.settimeout(MAX_SILENCE_SECONDS if expects_more else None)

    def _read(self, length: int) -> bytes:
        part = self.rfile.read(length)
        if len(part) < length:
            raise EOFError
        return part

    def _exchange_greetings(self) -> None:
        self.connection.sendall(
            _GREETING + bytes([_COMMAND_FLAG, len(_READY_COMMAND)]) + _READY_COMMAND
        )
        greeting = self._read(len(_GREETING))
        # Byte 0 begins the signature, byte 10 is the major version, byte 12 begins the mechanism.
        if greeting[0] != 0xFF or greeting[10] < 3 or greeting[12:17] != b"NULL\0":
            raise ValueError("expected a ZeroMQ sender of version 3 without a password")

    def _receive(self) -> Message:
        """Return the next message, and answer the commands before and within it."""
        parts = list[bytes]()
        n_bytes, flags = 0, _MORE_FLAG
        while flags & (_MORE_FLAG | _COMMAND_FLAG):
            self._limit_silence(bool(parts))
            (flags,) = self._read(1)
            self._limit_silence(True)
            length = int.from_bytes(self._read(8 if flags & _LONG_FLAG else 1), "big")
            if flags & _COMMAND_FLAG:
                self._answer(length)
                continue
            n_bytes += length
            if n_bytes > self.server.max_bytes or len(parts) == MAX_PARTS:
                raise ValueError(
                    f"expected at most {self.server.max_bytes} bytes in {MAX_PARTS} parts, got "
                    f"{n_bytes} in {len(parts) + 1}"
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
        # A ping consists of its name, two bytes of time to live, and up to 16 bytes to send back.
        if command.startswith(_PING_COMMAND):
            echo = _PONG_COMMAND + command[len(_PING_COMMAND) + 2 :][:16]
            self.connection.sendall(bytes([_COMMAND_FLAG, len(echo)]) + echo)
