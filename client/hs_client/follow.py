"""Staying with a job until it ends: its output, its changes of state, its exit status."""

import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hs_client.api import Client
from hs_client.ends import ENDED, exit_code
from hs_client.errors import ConflictError, HeteroShareError, UnavailableError, WaitTimeoutError
from hs_client.output import Had
from hs_proto.v1 import controller_pb2 as wire

LOG_GRACE_S = (
    5.0  # after the end a log may still be on its way; an agent that went away must not hold us forever
)

_HOW_LONG = re.compile(r"in about \d+ s|very soon")  # of a reason: the same one a moment later says less

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Broke:
    error: HeteroShareError


def follow(client: Client, job_id: int, *, report: Report) -> int:
    """Write the job's output to standard output until it has ended, over all its incarnations."""
    changes: queue.Queue[wire.JobView | _Broke] = queue.Queue()
    ended = threading.Event()
    threading.Thread(target=_watch, args=(client, job_id, changes, ended, report), daemon=True).start()
    shown_epoch, had = -1, Had()
    while True:
        view = _next(changes)
        if view.state in ENDED and (view.epoch == shown_epoch or not _has_log(view)):
            return _told(view, report)
        if view.epoch > shown_epoch and _has_log(view):
            if _copy_log(client, view, had, ended, report):
                shown_epoch = max(view.epoch, had.epoch)
            if view.state in ENDED:
                return _told(view, report)


def _watch(
    client: Client,
    job_id: int,
    changes: "queue.Queue[wire.JobView | _Broke]",
    ended: threading.Event,
    report: Report,
) -> None:
    last = ""
    try:
        for view in client.watch(job_id):
            line = f"{view.state}{': ' + view.reason_text if view.reason_text else ''}"
            untimed = _HOW_LONG.sub("", line)
            # Its turns come and go all the time; only what a person waits for is told, and not again for being nearer.
            if view.state in {"queued", "paused", "cancelling"} and untimed != last:
                report(f"job {job_id} {line}")
            elif view.state == "running" and not last:
                report(f"job {job_id} runs on {', '.join(view.hosts) or view.host}")
            last = untimed if view.state != "suspended" else last
            changes.put(view)
            if view.state in ENDED:
                threading.Timer(LOG_GRACE_S, ended.set).start()
    except HeteroShareError as error:
        ended.set()
        changes.put(_Broke(error))


def _next(changes: "queue.Queue[wire.JobView | _Broke]") -> wire.JobView:
    """The newest change."""
    change = changes.get()
    while not changes.empty():
        change = changes.get()
    if isinstance(change, _Broke):
        raise change.error
    return change


def _has_log(view: wire.JobView) -> bool:
    return (
        bool(view.started_at)
        or view.state in {"starting", "running", "suspended"}
        or bool(view.host and view.state in ENDED)
    )


def _copy_log(client: Client, view: wire.JobView, had: Had, ended: threading.Event, report: Report) -> bool:
    """All of its output has been shown, `had` before or now. Else there was none to be had, and the next change is another chance."""
    try:
        for chunk in client.output(view.id, follow=True, stop=ended, had=had):
            write_chunk(chunk, report)
    except (ConflictError, UnavailableError) as error:
        report(f"no output of job {view.id} just now: {error}")
        return False
    return True


def write_chunk(chunk: wire.LogsChunk, report: Report) -> None:
    if chunk.away:
        report(f"what the job said on {', '.join(chunk.away)} is missing here: not connected")
    sys.stdout.buffer.write(chunk.data)
    sys.stdout.buffer.flush()


def _told(view: wire.JobView, report: Report) -> int:
    report(f"job {view.id} {outcome(view)}")
    if view.state == "failed" and len(view.hosts) > 1:  # what is above is of the first server
        report(f"`hsctl show {view.id}` has the last lines of the server where it ended first")
    return exit_code(view)


def outcome(view: wire.JobView) -> str:
    """`failed: exit code 3`, `failed: signal 9 (time limit)`."""
    parts = []
    if view.HasField("exit") and view.state != "succeeded":
        if view.exit.signal:
            parts.append(f"signal {view.exit.signal}")
        elif view.exit.code:
            parts.append(f"exit code {view.exit.code}")
        if view.exit.why:
            parts.append(view.exit.why)
    return view.state + (": " + ", ".join(parts) if parts else "")


def wait_all(
    client: Client, job_ids: Sequence[int], *, report: Report, timeout_s: float | None = None
) -> int:
    """The first exit status that is not 0, in the order of the jobs; one that is late counts as a timeout."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    codes = []
    for job_id in job_ids:
        left = None if deadline is None else max(0.001, deadline - time.monotonic())
        try:
            view = client.wait(job_id, timeout_s=left)
        except WaitTimeoutError:
            raise WaitTimeoutError(f"job {job_id} has not ended within {timeout_s:g} s; it goes on") from None
        except KeyboardInterrupt:
            report(f"job {job_id} goes on")
            raise
        report(f"job {job_id} {outcome(view)}")
        codes.append(exit_code(view))
    return next((code for code in codes if code), 0)
