"""`breaks.json`: of whom the mind of this host was hearing when it broke, over restarts of the agent; and what is done about that."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from hs_agent import procs
from hs_agent.folder import Key, read_json, write_atomically
from hs_agent.now_and_then import NowAndThen
from hs_core.events.host import (
    CastOut,
    ControllerHeard,
    DeviceMemorySeen,
    GpusSeen,
    HostEvent,
    HostMemorySeen,
    JobCondemned,
    JobExited,
    LaunchFailed,
    NothingFetched,
    WantedChanged,
)
from hs_core.host.blame import (
    FORGOTTEN_S,
    Break,
    is_tried_first,
    stands_until_s,
    suspects,
    to_end,
    unsolved,
)
from hs_core.names import JobId

KEPT = 16
_WHAT = {
    WantedChanged: "what the controller wants",
    CastOut: "that it was removed from the cluster",
    ControllerHeard: "that the controller is there",
    NothingFetched: "that checkpoints are nowhere",
    GpusSeen: "the health of its GPUs",
    HostMemorySeen: "how much memory it has left",
    DeviceMemorySeen: "how much memory jobs have on their GPUs",
}

log = structlog.get_logger("breaks")


class Breaks:
    """`now_s`: since boot. After a reboot no process is left that could say it again."""

    def __init__(self, state_dir: Path, now_s: float) -> None:
        self._path = state_dir / "breaks.json"
        kept = read_json(self._path) or {}
        self._breaks: list[Break] = []
        self._ended: dict[Key, float] = {}
        try:
            if kept.get("boot_id") == procs.boot_id():
                self._breaks = [_revived(each) for each in kept["breaks"]]
                self._ended = {Key(JobId(int(j)), int(e)): float(at_s) for j, e, at_s in kept["ended"]}
        except (KeyError, TypeError, ValueError) as error:
            log.warning("breaks.json is damaged, and not gone by", why=str(error))
            self._breaks, self._ended = [], {}
        self._forget(now_s)
        who = to_end(self._breaks, self._ended, now_s)
        if who is not None:
            self._ended[Key(*who)] = now_s
            self._save()
        self.unsolved = unsolved(self._breaks, self._ended.values(), now_s)
        self.stands_until_s = stands_until_s(self.unsolved)
        self._left_out: dict[str, str] = {}
        self._complaints: dict[str, NowAndThen] = {}

    def _forget(self, now_s: float) -> None:
        self._breaks = [each for each in self._breaks if now_s - each.at_s < FORGOTTEN_S][-KEPT:]
        self._ended = {key: at_s for key, at_s in self._ended.items() if now_s - at_s < FORGOTTEN_S}

    @property
    def condemned(self) -> tuple[Key, ...]:
        return tuple(self._ended)

    def hears(self, event: HostEvent) -> bool:
        """Of who is to end for what it says nothing is taken in but that it has."""
        if not self._ended or isinstance(event, JobCondemned | JobExited | LaunchFailed):
            return True
        job, epoch = getattr(event, "job", None), getattr(event, "epoch", None)
        return job is None or epoch is None or Key(job, epoch) not in self._ended

    def tried_first(self, event: HostEvent) -> bool:
        """On a copy of the mind."""
        return is_tried_first(event, self.unsolved)

    def leave_out(self, event: HostEvent, error: Exception) -> None:
        """It broke the copy."""
        what, why = _what(event), _said(error)
        self._left_out[what] = why
        if self._complaints.setdefault(what, NowAndThen()).is_due(why, event.now_s):
            log.error("what breaks the mind of this host is left out", what=what, exc_info=error)

    def take(self, event: HostEvent) -> None:
        """It did the copy no harm: whatever it said before, it is heard again."""
        self._left_out.pop(_what(event), None)

    def note(self, event: HostEvent | None, error: Exception, now_s: float) -> None:
        """Before this agent ends. `event`: None: as it began."""
        who = suspects(event, error)
        self._breaks.append(Break(at_s=now_s, suspects=who, why=_said(error)))
        amid = type(event).__name__ if event is not None else "its beginning"
        log.error("the mind of this host broke", amid=amid, jobs=[str(Key(*each)) for each in who])
        self._save()

    def text(self, now_s: float) -> str:
        """For administrators; empty: it has not broken for long."""
        self._forget(now_s)
        if not self._breaks:
            return ""
        times = "once" if len(self._breaks) == 1 else f"{len(self._breaks)} times"
        jobs = ", ".join(str(key.job) for key in self._ended)
        what = f" (ended for what they said: job {jobs})" if jobs else ""
        if now_s < self.stands_until_s:
            what += f" and stands still for {self.stands_until_s - now_s:.0f} s more: jobs go on as they are, nothing else is done"
        out = "".join(
            f"; it leaves out {what}, by which it would: {why}" for what, why in self._left_out.items()
        )
        return f"the agent broke {times} within the hour{what}: an error of HeteroShare, please report it; the last one: {self._breaks[-1].why}{out}"

    def _save(self) -> None:
        value = {
            "boot_id": procs.boot_id(),
            "breaks": [{"at_s": b.at_s, "suspects": b.suspects, "why": b.why} for b in self._breaks[-KEPT:]],
            "ended": [[key.job, key.epoch, at_s] for key, at_s in self._ended.items()],
        }
        try:
            write_atomically(self._path, json.dumps(value).encode())
        except OSError as error:
            log.error("breaks.json cannot be written", why=error.strerror or str(error))


def _what(event: HostEvent) -> str:
    return _WHAT.get(type(event), type(event).__name__)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _revived(kept: Mapping[str, Any]) -> Break:
    who = tuple((JobId(int(job)), int(epoch)) for job, epoch in kept["suspects"])
    return Break(at_s=float(kept["at_s"]), suspects=who, why=str(kept["why"]))
