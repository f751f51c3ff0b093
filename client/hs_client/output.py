"""What a job says, as the controller hands it on: all of it once, wherever the connection breaks."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import grpc

from hs_client.line import Line, is_cut_off, is_lost
from hs_proto.v1 import controller_pb2 as wire

AGAIN_S = 1.0  # of a log that is followed after a tail, before the connection was lost: servers know to the second when it was written


@dataclass(slots=True)
class Had:
    """How far somebody is with a job's output. Mutable."""

    epoch: int = 0  # incarnation that said something last
    size: int = 0  # bytes of what it said


def told(
    line: Line, request: wire.LogsRequest, had: Had, stop: threading.Event | None
) -> Iterator[wire.LogsChunk]:
    """Chunk by chunk, each with the incarnation that said it. `request` is changed, and `had` counts on; until the job ends, or as `Line.open` has it."""
    tail_lines, since_s = request.tail_lines, request.since_s
    request.from_epoch = had.epoch
    began_s = heard_s = time.monotonic()
    skip = had.size
    said = False
    line.greet()
    for attempt in count():
        if attempt:
            now_s = time.monotonic()
            request.from_epoch = had.epoch
            # The same moment. Where the server tells it less exactly by now, some is said twice and nothing is left out.
            request.since_s = since_s and since_s + now_s - began_s
            if tail_lines < 0:  # all of the newest again, less what we have
                skip = had.size
            elif said or not tail_lines:
                # Nobody knows what a tail was: what has been written since, likewise.
                request.tail_lines, request.since_s = -1, now_s - heard_s + AGAIN_S
        try:
            for chunk in line.open(line.stub.Logs, request, stop=stop):
                if chunk.epoch != had.epoch:
                    had.epoch, had.size, skip = chunk.epoch, 0, 0
                chunk.data, skip = chunk.data[skip:], skip - min(skip, len(chunk.data))
                had.size += len(chunk.data)
                heard_s, said = time.monotonic(), said or bool(chunk.data)
                if chunk.data or (chunk.away and not attempt):
                    yield chunk
            return
        except grpc.RpcError as error:
            if stop is not None and stop.is_set():
                return
            if not request.follow or not (is_lost(error) or is_cut_off(error)):
                raise line.refusal(error) from None
        line.await_back()
