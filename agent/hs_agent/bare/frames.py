"""What goes through the pipes of a process that reads or writes a job's files: a kind (J: JSON, D: data), a length, and so many bytes."""

import json
import struct
from typing import Any, BinaryIO

CHUNK = 256 << 10
MOST_BYTES = 1 << 20
FRAME = struct.Struct(">cI")


class TornError(Exception):
    """What is there, or what came, is not what it should be."""


class Pipe:
    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink = source, sink

    def read(self) -> tuple[bytes, bytes]:
        """(b"", b""): the other end is done, or gone."""
        head = self._source.read(FRAME.size)
        if len(head) < FRAME.size:
            return b"", b""
        kind, size = FRAME.unpack(head)
        if size > MOST_BYTES:
            raise TornError(f"a frame of {size} bytes")
        data = self._source.read(size)
        return (kind, data) if len(data) == size else (b"", b"")

    def data(self, data: bytes) -> None:
        self._sink.write(FRAME.pack(b"D", len(data)))
        self._sink.write(data)

    def say(self, **value: Any) -> None:
        # An error may name a file whose name is no UTF-8; half of a surrogate pair would go over no wire from here on.
        data = json.dumps(value, ensure_ascii=False).encode(errors="replace")
        self._sink.write(FRAME.pack(b"J", len(data)) + data)
        self._sink.flush()
