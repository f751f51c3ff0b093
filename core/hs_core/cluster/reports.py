"""What is believed of a host's word: counters only grow, and nonsense does not get in."""

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, replace
from math import isfinite
from operator import attrgetter

from hs_core.cluster import copies
from hs_core.model import Job, Stored, spans
from hs_core.names import GpuId, HostName
from hs_core.reports import (
    CANNOT_FETCH,
    CANNOT_START,
    FINAL,
    FOLLOWED,
    LOST,
    Exit,
    JobReport,
    Phase,
    report_with,
)

_COUNTERS = frozenset(
    [
        "step",
        "steps_per_s",
        "gpu_s",
        "run_s",
        "suspends",
        "resumes",
        "suspend_s",
        "resume_s",
        "lost_gpu_s",
        "tier",
        "host_memory_bytes",
        "noise_scale",
        "noise_samples",
    ]
)
_standing = attrgetter(*(one.name for one in fields(JobReport) if one.name not in _COUNTERS))
_MOST = 1e15  # of any counter in seconds or bytes: beyond is nonsense, and floats would stop counting
SENT = frozenset({9, 15})  # signals that somebody sent: its server may have been shut down
_TEXT = 1000  # characters of what a host tells people
_READY = frozenset({Phase.HELD, Phase.SWAPPED, Phase.FROZEN, Phase.RUNNING, Phase.CHECKPOINTED})
_HAS_PROCESS = frozenset({Phase.HELD, Phase.SWAPPED, Phase.FROZEN, Phase.RUNNING})
_BEFORE_PROCESS = frozenset({Phase.WAITING, Phase.STARTING, Phase.CHECKPOINTED})


def merge(old: JobReport | None, new: JobReport, gpus: AbstractSet[GpuId]) -> JobReport:
    """The newest word on where it stands; of every counter the largest said so far. `gpus` are its host's; one that its process has may be gone from there."""
    before = old or JobReport(job=new.job, epoch=new.epoch, phase=new.phase)
    if _believed(before, new, gpus):
        return new
    sane = (fell_back(before, new) or _kept_on(before, new)) and (
        -1 <= new.checkpoint_generation < 1 << 31 and -1 <= new.checkpoint_step < _MOST
    )
    newest_kept = new if sane else before
    return report_with(
        new,
        phase=Phase.EXITED if before.exit is not None else new.phase,
        gpus=tuple(gpu for gpu in new.gpus if gpu in gpus or gpu in before.gpus),
        step=_step(before, new),
        steps_per_s=_real(new.steps_per_s, 0.0),
        gpu_s=max(before.gpu_s, _real(new.gpu_s, 0.0)),
        run_s=max(before.run_s, _real(new.run_s, 0.0)),
        suspends=max(before.suspends, _whole(new.suspends)),
        resumes=max(before.resumes, _whole(new.resumes)),
        suspend_s=max(before.suspend_s, _real(new.suspend_s, 0.0)),
        resume_s=max(before.resume_s, _real(new.resume_s, 0.0)),
        lost_gpu_s=max(before.lost_gpu_s, _real(new.lost_gpu_s, 0.0)),
        device_memory_bytes=max(before.device_memory_bytes, _whole(new.device_memory_bytes)),
        host_memory_bytes=max(before.host_memory_bytes, _whole(new.host_memory_bytes)),
        noise_scale=_real(new.noise_scale, 0.0),
        noise_samples=_whole(new.noise_samples),
        note=new.note[:_TEXT],
        rendezvous=new.rendezvous[:_TEXT] or before.rendezvous,
        checkpoint_step=newest_kept.checkpoint_step,
        checkpoint_generation=newest_kept.checkpoint_generation,
        checkpoint_bytes=_whole(new.checkpoint_bytes) or before.checkpoint_bytes,
        fallbacks=max(before.fallbacks, _whole(new.fallbacks)),
        fallback_why=new.fallback_why[:_TEXT],
        began_step=new.began_step if -1 <= new.began_step < _MOST else before.began_step,
        carry=new.carry if _is_carry(new.carry) else before.carry,
        checkpoint_fails=_whole(new.checkpoint_fails),
        start_fails=_whole(new.start_fails),
        in_touch=new.in_touch if before.exit is None else before.in_touch,
        exit=before.exit or new.exit or (_unsaid() if new.phase is Phase.EXITED else None),
    )


def happened_s(report: JobReport, said_s: float | None, now_s: float, *, least_s: float) -> float:
    """When it came to stand as it says, by the controller's clock: it was `said_s`, by its host's own, when it said so. Clocks of hosts are not compared with others', only
    what has gone by on one; nor is it before `least_s`, what is known already, or later than now."""
    ago_s = said_s - report.since_s if said_s is not None and report.since_s > 0 else 0.0
    if not ago_s > 0.0:  # nor one that is no number
        return now_s
    return min(now_s, max(least_s, now_s - ago_s))


def _believed(before: JobReport, new: JobReport, gpus: AbstractSet[GpuId]) -> bool:
    """Nearly every report: there is nothing in it that `merge` would put otherwise."""
    return (
        before.exit is None
        and new.exit is None
        and new.phase is not Phase.EXITED
        and before.fallbacks == new.fallbacks
        and _kept_on(before, new)
        and new.checkpoint_generation < 1 << 31
        and new.checkpoint_step < _MOST
        and 0 <= new.checkpoint_bytes < _MOST
        and (new.checkpoint_bytes > 0 or before.checkpoint_bytes == 0)
        and 0 <= new.step < _MOST
        and 0.0 <= new.steps_per_s <= _MOST
        and before.gpu_s <= new.gpu_s <= _MOST
        and before.run_s <= new.run_s <= _MOST
        and before.suspends <= new.suspends < _MOST
        and before.resumes <= new.resumes < _MOST
        and before.suspend_s <= new.suspend_s <= _MOST
        and before.resume_s <= new.resume_s <= _MOST
        and before.lost_gpu_s <= new.lost_gpu_s <= _MOST
        and before.device_memory_bytes <= new.device_memory_bytes < _MOST
        and before.host_memory_bytes <= new.host_memory_bytes < _MOST
        and 0.0 <= new.noise_scale <= _MOST
        and 0 <= new.noise_samples < _MOST
        and _is_carry(new.carry)
        and 0 <= new.checkpoint_fails < _MOST
        and 0 <= new.start_fails < _MOST
        and len(new.note) <= _TEXT
        and len(new.fallback_why) <= _TEXT
        and -1 <= new.began_step < _MOST
        and len(new.rendezvous) <= _TEXT
        and (new.rendezvous != "" or before.rendezvous == "")
        and gpus >= set(new.gpus)
    )


def _is_carry(value: float | None) -> bool:
    return value is None or -1.0 <= value <= 1.0


def carried(row: Job) -> float | None:
    """What a job brings of its turns from the server that it has left: of one that is in a server's stride."""
    if row.nodes > 1 or row.portions or len(row.hosts) != 1:
        return None
    report = row.reports.get(row.hosts[0])
    return report.carry if report is not None else None


def _step(before: JobReport, new: JobReport) -> int:
    if not 0 <= new.step < _MOST:
        return before.step
    # An agent that has lost what it knew of a job only knows how it ended: that takes back no steps.
    forgot = new.exit is not None and new.run_s < before.run_s
    return max(before.step, new.step) if forgot else new.step


def fell_back(before: JobReport | None, new: JobReport) -> bool:
    """Its process could not begin from its newest checkpoint: what it says of it now counts, though it is less."""
    return (before.fallbacks if before is not None else 0) < new.fallbacks < _MOST


def _kept_on(before: JobReport, new: JobReport) -> bool:
    """No checkpoint was taken back."""
    return (
        before.checkpoint_generation <= new.checkpoint_generation
        and before.checkpoint_step <= new.checkpoint_step
    )


def _real(value: float, otherwise: float) -> float:
    return value if isfinite(value) and 0 <= value <= _MOST else otherwise


def _whole(value: int) -> int:
    return value if 0 <= value < _MOST else 0


def _unsaid() -> Exit:
    return Exit(why="its host did not say how it ended")


def followed(part: JobReport) -> JobReport:
    """Of a part that ended because another one had: that one's exit is the job's. Its time limit it reached by itself, or ended with its own agent."""
    if part.exit is None or part.exit.ok or part.exit.why in FINAL or part.exit.why.startswith(LOST):
        return part
    return replace(part, exit=replace(part.exit, why=FOLLOWED))


def own_end(row: Job) -> Exit | None:
    """How a gang has failed all of whose servers were cut off from the controller, and not from one another: none of these is to blame. None: that is not so."""
    parts = [row.reports.get(host) for host in row.hosts]
    ends = [part.exit for part in parts if part is not None and part.exit is not None and part.in_touch]
    if row.portions or len(parts) < 2 or len(ends) < len(parts):
        return None
    own = [end for end in ends if (end.code or end.signal) and end.why not in FINAL]
    if len(own) < len(ends) or any(end.signal in SENT for end in own):
        return None
    first = next((end for end in own if end.why != FOLLOWED), own[0])
    return replace(first, why="") if first.why.startswith((LOST, FOLLOWED)) else first


def broken(row: Job) -> bool:
    """A part of it has failed or is lost: the other parts are to end as well. Copies go on without one another, until one is through."""
    if len(row.hosts) < 2:
        return False
    if row.portions:
        return copies.through(row)
    parts = [row.reports.get(host) for host in row.hosts]
    return any(p is not None and p.exit is not None and not p.exit.ok for p in parts)


def is_held_up(report: JobReport) -> bool:
    """It has no process there, and can have none for now."""
    return report.note.startswith((CANNOT_FETCH, CANNOT_START))


def is_fetching(row: Job) -> bool:
    """The checkpoint that it goes on from lies elsewhere, and a server of its home has yet to have it; one that cannot have it is held up."""
    return any(
        part is None or (_is_without(part, row.stored) and not is_held_up(part))
        for part in _parts_that_fetch(row)
    )


def has_come_along(row: Job) -> bool:
    """What lay elsewhere when it was given its home is there by now, and nothing but its turn is missing."""
    parts = _parts_that_fetch(row)
    return bool(parts) and all(part is not None and not _is_without(part, row.stored) for part in parts)


def _parts_that_fetch(row: Job) -> tuple[JobReport | None, ...]:
    """What servers say of one whose checkpoint lay elsewhere: what each has of it can be told from that."""
    stored = row.stored
    if stored is None or stored.in_folder or row.portions or stored.is_at(row.hosts):
        return ()
    return tuple(map(row.reports.get, row.hosts))


def _is_without(part: JobReport, stored: Stored | None) -> bool:
    return stored is not None and part.phase is Phase.WAITING and part.checkpoint_step < stored.step


def came_up(before: JobReport | None, new: JobReport) -> bool:
    """A process of it was started there since: it stands, runs, or has ended."""
    if before is not None and before.phase not in _BEFORE_PROCESS:
        return False
    return new.phase in _HAS_PROCESS or (new.exit is not None and not new.exit.why)


def began_afresh(before: JobReport | None, new: JobReport) -> bool:
    """A process of it did, and did not look for a checkpoint first."""
    return new.began_step == 0 and not new.fallbacks and (before is None or before.began_step != 0)


def found_nothing(row: Job) -> bool:
    """Of what was to be looked for: it began afresh, whatever it has written since."""
    report = row.report
    return report is not None and (
        report.began_step == 0 or max(report.began_step, report.checkpoint_generation) < 0
    )


def has_process(report: JobReport | None) -> bool:
    """Whether it has something on its host that it would lose elsewhere: a process, or the checkpoint of one."""
    return report is not None and report.phase is not Phase.WAITING


def cannot_pause(row: Job) -> bool:
    """Paused by its owner it runs on: a server of it cannot stop it."""
    return row.paused and any(
        part.phase is Phase.RUNNING and not part.sliceable for part in row.reports.values()
    )


def taken_up(row: Job) -> bool:
    """What it goes on from is needed no more: every part has a process that has it; of copies, which go on without one another, one has, or had and has left it in a checkpoint."""
    parts = [row.reports.get(name) for name in row.hosts]
    if row.portions:
        return any(
            part is not None and has_process(part) and (part.exit is None or part.checkpoint_generation >= 0)
            for part in parts
        )
    return bool(parts) and not broken(row) and all(map(has_process, parts))


def can_be_had(row: Job, hosts: Collection[HostName]) -> bool:
    """All that it is to go on from, where these servers are all that is left."""
    stored = row.stored
    if stored is None or row.cancelled_by or taken_up(row):
        return True
    return _is_whole(within(row, hosts), stored)


def _is_whole(rest: Stored | None, stored: Stored) -> bool:
    return rest is not None and (rest.step, len(rest.copies)) == (stored.step, len(stored.copies))


def begins_to_train(old: JobReport | None, new: JobReport) -> bool:
    """The first word of steps that it has done there, or of its good end; of one incarnation once, but for an end."""
    if new.exit is not None and new.exit.ok and (old is None or old.exit is None):
        return True
    if new.phase not in (Phase.RUNNING, Phase.EXITED) or new.step <= 0:
        return False
    if old is None or old.step <= 0:
        return True
    return old.phase is not Phase.RUNNING and old.suspends == 0 and old.exit is None


def stands_alike(old: JobReport, new: JobReport) -> bool:
    """Nothing is new but what it did, received and used meanwhile."""
    return _standing(old) == _standing(new)


def cannot_leave(report: JobReport | None) -> bool:
    """Its process is up, and has no way to write a checkpoint."""
    return report is not None and report.phase in _HAS_PROCESS and not report.can_checkpoint


def can_leave(report: JobReport | None) -> bool:
    """It could write a checkpoint and go, or has done so."""
    if report is None or report.phase is Phase.WAITING:
        return True
    return report.phase is Phase.CHECKPOINTED or (report.phase in _HAS_PROCESS and report.can_checkpoint)


def left(row: Job) -> Stored | None:
    """Every part has written the same checkpoint and let its process go."""
    parts = [row.reports.get(host) for host in row.hosts]
    first = parts[0]
    if first is None or first.checkpoint_generation < 0:
        return None
    for part in parts:
        if part is None or part.phase is not Phase.CHECKPOINTED:
            return None
        if part.checkpoint_generation != first.checkpoint_generation:
            return None
    return _kept(row, first.checkpoint_generation)


def half_up(row: Job) -> bool:
    """A part comes up and another has no process: told to leave, that one would not be started, and the first would wait for it."""
    phases = {part.phase for part in row.reports.values()}
    return Phase.STARTING in phases and not phases.isdisjoint((Phase.WAITING, Phase.CHECKPOINTED))


def left_apart(row: Job) -> bool:
    """Every part has let its process go; one did not hear of the last checkpoint, from which all could go on."""
    parts = [row.reports.get(host) for host in row.hosts]
    return all(p is not None and p.phase is Phase.CHECKPOINTED for p in parts) and left(row) is None


def kept(row: Job) -> Stored | None:
    """The newest checkpoint that the present incarnation's servers say they have."""
    assert not row.portions, f"job {row.id} has copies: their checkpoints are parts of one"
    report = row.report
    if report is None or report.checkpoint_generation < 0:
        return None
    return _kept(row, report.checkpoint_generation)


def _kept(row: Job, generation: int) -> Stored:
    step = max(0, min(row.reports[host].checkpoint_step for host in row.hosts))
    return Stored(
        hosts=row.hosts, epoch=row.epoch, generation=generation, step=step, also=_also(row, generation)
    )


def _also(row: Job, generation: int) -> tuple[HostName, ...]:
    """As `Stored.also`: where its parts changed places, who wrote one has it beside the one that it took up."""
    origin = row.stored or row.origin
    if origin is None or origin.copies or origin.surpassed or origin.generation != generation:
        return ()
    if spans(row.spec):  # whose parts are alike anyway
        return ()
    if origin.is_at(row.hosts):
        return origin.also
    wrote = tuple(name if name in row.hosts else HostName("") for name in origin.hosts)
    return wrote if any(wrote) and wrote != row.hosts else ()


def at_hand(stored: Stored, hosts: Collection[HostName]) -> Stored:
    """The same, each part from one of these servers where one of them has it."""
    if not stored.also or all(name in hosts for name in stored.hosts):
        return stored
    pairs = zip(stored.hosts, stored.also, strict=True)
    there = tuple(also if name not in hosts and also in hosts else name for name, also in pairs)
    return stored if there == stored.hosts else replace(stored, hosts=there, also=())


def taken(row: Job) -> tuple[int, ...]:
    """By node rank of its home, which of the servers that have its stored checkpoint it goes on from.

    Ranks of an elastic job are alike, so where the number of servers is another each takes up what lies there, or what any of the old ones wrote.
    """
    assert row.stored is not None
    there = row.stored.hosts
    if not spans(row.spec):
        return tuple(range(len(row.hosts)))
    if row.stored.in_folder:
        return tuple(rank % row.stored.nodes for rank in range(len(row.hosts)))
    return tuple(
        there.index(name) if name in there else rank % len(there) for rank, name in enumerate(row.hosts)
    )


def among(row: Job, stored: Stored, hosts: Collection[HostName]) -> Stored | None:
    """What can be gone on from where these servers are all that is left: of an elastic job, whose ranks are alike, any part of it; of copies those; else all or nothing."""
    if stored.in_folder:
        return stored
    if stored.copies or not spans(row.spec):
        return copies.among(at_hand(stored, hosts), hosts)
    left = [at for at, name in enumerate(stored.hosts) if name in hosts]
    if not left or len(left) == len(stored.hosts):
        return stored if left else None
    there = tuple(stored.hosts[at] for at in left)
    return replace(stored, hosts=there, ranks=tuple(map(stored.rank, left)), of=stored.nodes)


def back(row: Job, away: Sequence[HostName], beside: Collection[HostName] = ()) -> str:
    """For people: which of those that are away have to be back until its stored checkpoint can be had. `beside`: servers that are not away."""
    assert row.stored is not None
    enough = [name for name in away if _is_whole(among(row, row.stored, {*beside, name}), row.stored)]
    if enough:
        return f"{' or '.join(enough)} is back"
    return f"{', '.join(away)} {'are' if len(away) > 1 else 'is'} back"


def within(row: Job, hosts: Collection[HostName]) -> Stored | None:
    """What its stored checkpoint comes to where these servers are all that is left: a part may also be where it has been fetched to by now."""
    stored = row.stored
    if stored is not None and (gone := _gone_from(row, stored)):
        hosts = set(hosts) - gone
    found = among(row, stored, hosts) if stored is not None else None
    if stored is None or found is not None or stored.copies or row.portions or not row.hosts:
        return found
    come = {name for name in row.hosts if name in hosts and _has(row.reports.get(name), stored)}
    if spans(row.spec):
        return among(row, replace(stored, hosts=row.hosts, ranks=(), of=0), come)
    pairs = zip(stored.hosts, row.hosts, strict=True)
    at = tuple(was if was in hosts else now for was, now in pairs if was in hosts or now in come)
    return replace(stored, hosts=at, also=()) if len(at) == len(stored.hosts) else None


def _gone_from(row: Job, stored: Stored) -> set[HostName]:
    """Servers whose part of it took up what it had written itself, and has let go of it. What is another's is kept until nobody needs it."""
    if stored.copies or row.portions:
        return set()
    same = (home for was, home in zip(stored.hosts, row.hosts, strict=False) if was == home)
    return {name for name in same if (part := row.reports.get(name)) and _has_let_go(part, stored)}


def sought(row: Job, stored: Stored | None) -> Stored | None:
    """A checkpoint whose servers are lost, as one that is looked for in the folder that its user named: on a shared file system others see it. None: it named none.

    What copies wrote counts as parts of their average, and is fetched from where it is known to be.
    """
    if stored is None or not row.spec.checkpoint_dir or row.portions or stored.copies:
        return None
    return replace(stored, hosts=(), ranks=(), also=(), of=stored.nodes, surpassed=False)


def unknown(row: Job) -> Stored | None:
    """Of one that nobody heard to have written any, whatever is in the folder that its user named. None: it named none."""
    if row.stored is not None and row.stored.copies:
        return None
    return sought(row, Stored(hosts=row.hosts, epoch=row.epoch, generation=0, step=0))


def doubted(row: Job, stored: Stored) -> Stored:
    """A checkpoint that is known of, where its last incarnation may have got further than it was heard to.

    In a folder that its user named that one may have written others, and let go of this one: two are kept there, whoever wrote them.
    """
    if not row.spec.checkpoint_dir or row.portions or stored.copies or stored.in_folder:
        return stored
    return replace(stored, surpassed=True)


def still_there(row: Job, hosts: Collection[HostName]) -> Stored | None:
    """What it went on from, where these servers are all that is left: who wrote a part of that has it still beside the one that it took up."""
    left = [name for name in row.hosts if name in hosts]
    parts = [row.reports.get(name) for name in left]
    if (
        row.origin is None
        or row.portions
        or not all(part is not None and _has(part, row.origin) for part in parts)
    ):
        return None
    return within(replace(row, stored=row.origin), left)


def _has(part: JobReport | None, stored: Stored) -> bool:
    """This part of it has fetched what it is to go on from, or has it. Two generations are kept, so it may have written another since."""
    return part is not None and part.checkpoint_generation in (stored.generation, stored.generation + 1)


def went_on_from(row: Job, stored: Stored) -> bool:
    """The present incarnation stands where that checkpoint ended, or beyond; or every part of it has written another since, and one has let go of that."""
    parts = [part for host in row.hosts if (part := row.reports.get(host)) is not None]
    if len(parts) < len(row.hosts):
        return False
    if all(part.phase in _READY and part.step >= stored.step for part in parts):
        return True
    written = all(part.checkpoint_generation > stored.generation for part in parts)
    return written and any(_has_let_go(part, stored) for part in parts)


def looks_at_home(row: Job, home: tuple[HostName, ...]) -> bool:
    """Its server has forgotten it, and may have a newer checkpoint than is known, which no other would find: it is to start there once more."""
    stored = row.stored
    return bool(
        stored is not None and stored.surpassed and stored.is_at(home) and not row.spec.checkpoint_dir
    )


def _has_let_go(part: JobReport, stored: Stored) -> bool:
    """Of what it took up where that lay: two generations are kept. Of what is looked for the one that is found may be newer than what was known."""
    looked = stored.in_folder or stored.surpassed
    return not looked and part.checkpoint_generation > stored.generation + 1


def lost_work_gpu_s(row: Job, kept_step: int) -> float:
    """GPU-seconds since the checkpoint that is left of an incarnation that died, or of what it was to go on from; steps taken as equally long.

    The host cannot say it any more.
    """
    report = row.report
    had = row.stored.step if row.stored is not None else 0
    step = max(report.step if report is not None else 0, had if kept_step < had else 0)
    useful = max(0.0, row.gpu_s - row.past_lost_gpu_s - (report.lost_gpu_s if report is not None else 0.0))
    if step <= 0:
        return min(report.gpu_s, useful) if report is not None else 0.0
    return useful * (1.0 - min(1.0, max(0, kept_step) / step))
