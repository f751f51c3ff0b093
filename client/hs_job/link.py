"""The socket to the agent: one daemon thread reads, anyone writes; when the agent goes away it dials again."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
import warnings
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional

MAX_BYTES = 64 * 1024
_FIRST_PAUSE_S = 0.05
_LAST_PAUSE_S = 1.0
_SEND_TIMEOUT_S = 2.0
_KEPT = 64
# What the next hello does not say anyway: kept until some agent has taken it.
_LASTING = frozenset({"held", "failed", "saved", "restored"})

Message = Dict[str, Any]


def frame(message: Message) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    return struct.pack(">I", len(body)) + body


def _timeval(seconds: float) -> bytes:
    return struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))


class Frames:
    """Cuts a byte stream into messages; what is no message is refused."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> List[Message]:
        self._buffer += data
        messages: List[Message] = []
        while len(self._buffer) >= 4:
            (size,) = struct.unpack_from(">I", self._buffer)
            if size > MAX_BYTES:
                raise ValueError(f"a message of {size} bytes; the limit is {MAX_BYTES}")
            if len(self._buffer) < 4 + size:
                break
            message = json.loads(bytes(self._buffer[4 : 4 + size]))
            del self._buffer[: 4 + size]
            if isinstance(message, dict):
                messages.append(message)
        return messages


class Link:
    """`greet` gives the messages to begin each connection with; `hear` takes what comes; `lost` is told of its end; `tick` runs now and then, `apart` while nobody is there."""

    def __init__(
        self,
        path: str,
        lock: Any,
        *,
        greet: Callable[[], List[Message]],
        hear: Callable[[Message], None],
        lost: Callable[[], None],
        tick: Callable[[], None],
        apart: Callable[[], None],
    ) -> None:
        self.tick_s = 1.0
        self._path = path
        self._greet, self._hear, self._lost, self._tick, self._apart = greet, hear, lost, tick, apart
        self._lock = lock  # its owner's, reentrant: a message and the state it tells of change as one
        self._socket: Optional[socket.socket] = None
        self._outbox: Deque[Message] = deque(maxlen=_KEPT)
        self._thread = threading.Thread(target=self._run, name="heteroshare", daemon=True)

    def start(self) -> None:
        # From Python 3.12 on, `os.fork()` beside any thread warns. This one is ours, and a child does without it.
        warnings.filterwarnings(
            "ignore", r"This process .* is multi-threaded, use of fork", DeprecationWarning
        )
        self._thread.start()

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def send(self, message: Message) -> bool:
        """Sent now, or (where it is of lasting interest) with the next connection."""
        with self._lock:
            if self._write(message):
                return True
            if message["type"] in _LASTING:
                self._outbox.append(message)
            return False

    def close_in_child(self) -> None:
        """After fork: the copy of the descriptor must not keep the connection open. No lock: its owner may not exist here."""
        peer, self._socket = self._socket, None
        if peer is not None:
            peer.close()

    def _write(self, message: Message) -> bool:
        if self._socket is None:
            return False
        try:
            self._socket.sendall(frame(message))
        except OSError:
            self._hang_up()
            return False
        return True

    def _hang_up(self) -> None:
        peer, self._socket = self._socket, None
        if peer is not None:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)  # wakes the reader, which closes it

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            peer = self._dial()
            if peer is None:
                self._apart()
                time.sleep(pause_s)
                pause_s = min(_LAST_PAUSE_S, pause_s * 2)
                continue
            try:
                if self._talk(peer):
                    pause_s = _FIRST_PAUSE_S
            except (OSError, ValueError):
                pass
            with self._lock:
                self._hang_up()
            peer.close()
            self._lost()
            time.sleep(pause_s)
            pause_s = min(_LAST_PAUSE_S, pause_s * 2)

    def _dial(self) -> Optional[socket.socket]:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(_SEND_TIMEOUT_S))
            peer.connect(self._path)
        except OSError:
            peer.close()
            return None
        return peer

    def _talk(self, peer: socket.socket) -> bool:
        """Until the connection ends; whether the agent ever said a word."""
        with self._lock:
            for message in self._greet():
                peer.sendall(frame(message))
            self._socket = peer
            while self._outbox:
                if not self._write(self._outbox[0]):
                    return False
                self._outbox.popleft()
        frames, spoke = Frames(), False
        waits_s = due = 0.0
        while True:
            if waits_s != self.tick_s:  # also where the agent's first word was how often it wants to hear
                waits_s = self.tick_s
                due = time.monotonic() + waits_s
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(waits_s))
            # The kernel's timeout, not poll and then recv: each call's return waits for the training thread's interpreter lock.
            try:
                data = peer.recv(MAX_BYTES)
            except BlockingIOError:
                data = None
            if time.monotonic() >= due:
                self._tick()
                due = time.monotonic() + self.tick_s
            if data is None:
                continue
            if not data:
                return spoke
            for message in frames.feed(data):
                spoke = True
                self._hear(message)
