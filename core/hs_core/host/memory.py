"""What of a host's mind survives its agent: to JSON-able values and back."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

from hs_core.errors import BrokenError
from hs_core.host.board import Board
from hs_core.host.hosted import HostedJob
from hs_core.host.last_words import LastWords
from hs_core.host.plain import plain, revive
from hs_core.host.switching import Usual
from hs_core.mechanism.stride import StrideQueue
from hs_core.names import GpuId, JobId
from hs_core.wanted import Turn

VERSION = 17
_NUMBERS = (
    "arrivals",
    "wanted_quantum_s",
    "edge_s",
    "quantum_s",
    "gang_ended_s",
    "heard_s",
    "fence_after_s",
    "lease_s",
)


_of_job = attrgetter(*(field.name for field in fields(HostedJob)))


class PlainJobs:
    """Jobs as they are saved. One that stands as it stood when it was saved last is the very same object: of thousands few are others since, and all are saved as any is started."""

    def __init__(self) -> None:
        self._last: dict[JobId, tuple[tuple[object, ...], dict[str, Any]]] = {}

    def of(self, jobs: Iterable[HostedJob]) -> list[dict[str, Any]]:
        last, now = self._last, {}
        for job in jobs:
            stands, before = _of_job(job), last.get(job.id)
            now[job.id] = stands, before[1] if before is not None and before[0] == stands else plain(job)
        self._last = now
        return [saved for _, saved in now.values()]


def save(board: Board, jobs: PlainJobs) -> dict[str, Any]:
    agenda = board.agenda
    return {
        "version": VERSION,
        "now_s": board.now_s,
        **{name: getattr(board, name) for name in _NUMBERS},
        "mean_suspend_s": board.suspending.mean_s,
        "mean_resume_s": board.resuming.mean_s,
        "turn": plain(board.turn),
        "agenda": {
            "synced": agenda.synced,
            "standing": plain(agenda.standing),
            "quantum": agenda.quantum,
            "known": [[quantum, plain(turn)] for quantum, turn in agenda.known.items()],
        },
        "stopping_classes": list(board.stopping_classes),
        "edgeless_classes": list(board.edgeless_classes),
        "free_bytes": board.free_bytes,
        "most_bytes": board.most_bytes,
        "class_bytes": dict(board.class_bytes),
        "class_device_bytes": dict(board.class_device_bytes),
        "class_moved_bytes": dict(board.class_moved_bytes),
        "drained": sorted(board.drained),
        "lends": sorted(board.lends),
        "kept": [[*key, *checkpoint] for key, checkpoint in sorted(board.kept.items())],
        "queue": board.queue.dump(),
        "jobs": jobs.of(board.jobs.values()),
        "last_words": board.last_words.dump(),
    }


def load(board: Board, saved: Mapping[str, Any], *, rebooted: bool, elsewhere: bool = False) -> None:
    if saved.get("version") != VERSION:
        raise BrokenError(f"the saved state has version {saved.get('version')}; this agent reads {VERSION}")
    for name in _NUMBERS:
        setattr(board, name, saved[name])
    board.suspending, board.resuming = Usual(saved["mean_suspend_s"]), Usual(saved["mean_resume_s"])
    board.turn = revive(Turn, saved["turn"])
    agenda, kept = board.agenda, saved["agenda"]
    agenda.synced, agenda.quantum = kept["synced"], kept["quantum"]
    agenda.standing = revive(Turn, kept["standing"])
    agenda.known = {quantum: revive(Turn, turn) for quantum, turn in kept["known"]}
    board.stopping_classes = dict.fromkeys(saved["stopping_classes"])
    board.edgeless_classes = dict.fromkeys(saved["edgeless_classes"])
    board.free_bytes, board.most_bytes = saved["free_bytes"], saved["most_bytes"]
    board.class_bytes = dict(saved["class_bytes"])
    board.class_device_bytes = dict(saved["class_device_bytes"])
    board.class_moved_bytes = dict(saved["class_moved_bytes"])
    board.drained = frozenset(GpuId(gpu) for gpu in saved["drained"])
    board.lends = frozenset((job, epoch) for job, epoch in saved["lends"])
    board.kept = {(job, epoch): (generation, step) for job, epoch, generation, step in saved["kept"]}
    board.queue = StrideQueue.load(saved["queue"])
    jobs = [revive(HostedJob, job) for job in saved["jobs"]]
    board.jobs = {job.id: job for job in jobs}
    if elsewhere:
        for job in jobs:
            job.wanted = replace(job.wanted, hold=True)
    board.last_words = LastWords.load(saved["last_words"], at_s=board.now_s if rebooted else None)
    if rebooted:
        _reboot(board, saved["now_s"])


def _reboot(board: Board, then_s: float) -> None:
    """The daemon says next which processes are gone; what is known is charged until the last word.

    Nobody knows for how long the controller was not heard: too long, for jobs that want to be fenced.
    """
    now_s = board.now_s
    for job in board.jobs.values():
        if job.charged_from_s is not None:
            job.free(then_s)
            job.begin(now_s)
        job.launched_s = None if job.launched_s is None else now_s
        job.going_s = None if job.going_s is None else now_s
        job.asked_s = job.deadline_s = job.start_deadline_s = job.resend_s = now_s
        job.hold_after_s = job.swap_after_s = job.checkpoint_after_s = job.reserve_at_s = job.fetch_at_s = (
            job.came_s
        ) = now_s
        job.start_at_s = job.since_s = now_s
        job.crowds_s = None
        job.stood_from_s = None if job.stood_from_s is None else now_s
        job.refused_edge_s = -1.0
    board.edge_s = now_s
    board.heard_s = now_s - board.fence_after_s
    board.gang_ended_s = None if board.gang_ended_s is None else now_s
