"""The one dominant reason why a job is where it is, with the evidence and what comes next."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from hs_core.cluster import gpus_out, reports
from hs_core.cluster.admission import CONDITION_WORDS
from hs_core.cluster.fits import Misfit
from hs_core.model import After, Host, Job, JobState, Move, OnPartition
from hs_core.names import GpuId, HostName, JobId
from hs_core.reports import CANNOT_START, FOR_GPU_MEMORY, FOR_MEMORY, LAUNCH_FAILED, UNSTOPPED, Exit, Phase
from hs_core.words import counted, listed


class Reason(StrEnum):
    """Stable codes: scripts compare them."""

    RUNNING = "running"
    STARTING = "starting"
    WAITING_FOR_TURN = "waiting-for-turn"  # on its host, others' quantum now
    WAITING_FOR_GPUS = "waiting-for-gpus"  # the policy has not given it GPUs yet
    PAUSED = "paused"
    DEPENDENCY = "dependency"
    ARRAY_LIMIT = "array-limit"
    NO_HOST = "no-host"  # no server has ever joined
    READ_ONLY = "read-only"  # the controller cannot write its journal, and gives nobody anything new
    HOST_AWAY = "host-away"
    HOST_DRAINED = "host-drained"  # all servers that could hold it are to take nobody new
    HOST_TROUBLE = "host-trouble"  # its server cannot start it: its disk is full, say
    SOURCE_AWAY = "source-away"  # it goes on from a checkpoint, and the server that has it is not connected
    MOVING = "moving"  # to another server, or on to another number of GPUs, and stopped for that
    TOO_LARGE = "too-large"
    MODEL_ABSENT = "model-absent"
    MEMORY_TOO_SMALL = "memory-too-small"
    GPU_UNHEALTHY = "gpu-unhealthy"
    ENDING = "ending"
    SUCCEEDED = "ended:succeeded"
    FAILED = "ended:failed"
    CANCELLED = "ended:cancelled"


AWAY = "away"
NEARLY = 0.05  # of what its tickets come to: nobody cares for less

CANNOT_WRITE = "the controller cannot write its journal just now: nothing new is decided, running jobs go on"

REASON_OF_MISFIT = {
    "gpu_types": Reason.MODEL_ABSENT,
    "gpu_memory_bytes": Reason.MEMORY_TOO_SMALL,
    "memory_bytes": Reason.MEMORY_TOO_SMALL,
    "gpus": Reason.TOO_LARGE,
    "nodes": Reason.TOO_LARGE,
    "hosts": Reason.NO_HOST,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    reason: Reason
    text: str
    next_step: str
    expected_wait_s: float = -1.0  # -1: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What the answer is made of."""

    job: Job
    hosts: tuple[Host, ...]  # its home
    away: tuple[HostName, ...]  # those of its home that are not connected …
    without: tuple[HostName, ...]  # … and those where a copy is, while others are connected
    open_after: After | None  # a condition on another job that is still open
    array_full: bool
    array_first: Sequence[JobId]  # for whom what is left of its room is kept: they wait as well
    misfit: Misfit | None  # no known server could hold it
    healthy_misfit: Misfit | None  # no server could with the GPUs that are healthy
    closed: Mapping[HostName, str]  # all that could hold it, and why they take nobody, where not enough do
    unable: Mapping[
        HostName, str
    ]  # servers that cannot start jobs now, and why: of its home, or, without one, of all
    source_away: tuple[HostName, ...]  # not connected, and it needs the checkpoint that they have
    unsaved: str  # why it could not leave when it was last to move; empty: it could, or was not asked
    evicted: bool  # its server was to be empty by now
    policy_says: str
    policy_chose: str  # why it runs as it does: "as tp=2: …"
    trial: str  # how far its profiling run is; empty: there is none
    idle: tuple[GpuId, ...]  # of its server, where its process cannot go to others than its own
    unsliced: Mapping[
        JobId, int
    ]  # others that run on its server and cannot be suspended, and GPUs that they have
    central: bool  # the controller chooses who runs on its host
    in_turn: bool  # and has chosen it for the quantum that is now …
    in_its_way: Sequence[JobId]  # but these, which are of no turn now, have not left its GPUs …
    turn_in_s: float  # … or for the next one, which begins then; -1: it has not
    turn_after_s: float  # it is a gang and has one only then, if nothing changes; -1: that is not known
    share_gpus: float  # what its tickets come to on its host
    part: float  # of all quanta it runs in so many there, by these and by who fits beside whom
    waited_s: float  # since it last changed its state
    quantum_s: float
    looks_on: bool  # the controller cannot write its journal: what is known is what was written last


def explain(scene: Scene) -> Why:
    if scene.job.state.ended:
        return explain_end(scene.job)
    why = _of_live(scene)
    if not scene.looks_on:
        return why
    if why.reason is Reason.WAITING_FOR_GPUS:
        # Of whom the policy has chosen nothing is known, nor which GPUs are free.
        on = f"its turn on {_at(scene.job)}, which goes on without a word" if scene.job.hosts else "GPUs"
        why = replace(why, reason=Reason.READ_ONLY, text=f"it waits for {on}")
    return replace(
        why,
        text=f"{why.text}; {CANNOT_WRITE}",
        next_step="it is decided about again when there is room on the controller's disk: tell an administrator"
        if why.reason is Reason.READ_ONLY
        else why.next_step,
    )


def _of_live(scene: Scene) -> Why:
    job = scene.job
    if job.state is JobState.CANCELLING:
        return _ending(scene, f"was cancelled by {job.cancelled_by} and is being ended")
    if job.state is JobState.PAUSED:
        return _paused(job)
    if not job.hosts:
        return _without_home(scene)
    if scene.away:
        return _host_away(scene)
    if job.report is not None and job.report.phase is Phase.KILLING:
        return _ending(scene, "is being ended")
    if scene.evicted:
        return _ending(scene, f"is being ended: {_at(job)} was to be empty by now; it is queued again")
    if job.state is JobState.RUNNING:
        moving = (
            f"; it is about to {_what_next(job.move, job)}{_in_its_way(job)}" if job.move is not None else ""
        )
        comes_up = job.report is not None and job.report.phase is Phase.STARTING
        trial = (
            f"; {scene.trial}"
            if scene.trial
            else gpus_out.on_drained(job, scene.hosts, scene.unsaved) or _unstopped(job)
        )
        early = "; its process has not got to a first step yet" if comes_up else ""
        return Why(
            reason=Reason.RUNNING,
            text=f"it runs on {_at(job)}, on {counted(job.gang, 'GPU')}{_each(scene)}{_as(scene)}{early}{trial}{moving}",
            next_step="it is asked again by itself, less and less often: see that its checkpoint can be written"
            if scene.unsaved and scene.unsaved in trial
            else "nothing to do",
            expected_wait_s=0.0,
        )
    return _on_its_host(scene)


def _unstopped(job: Job) -> str:
    """Ranks of it hang, or have gone apart: it is charged for turns that are others'."""
    said = next((part.note for part in job.reports.values() if part.note.startswith(UNSTOPPED)), "")
    return f"; it {said}" if said else ""


_GOING = (Phase.STARTING, Phase.RUNNING, Phase.SUSPENDING)


def _paused(job: Job) -> Why:
    if reports.cannot_pause(job):
        note = job.report.note if job.report is not None else ""
        return Why(
            reason=Reason.PAUSED,
            text=f"it was paused by its owner, but runs on {_at(job)}: it cannot be stopped{f' ({note})' if note else ''}",
            next_step=f"`hsctl cancel {job.id}` ends it",
        )
    going = job.report is not None and job.report.phase in _GOING
    rest = f"; its process on {_at(job)} goes on until it can be stopped" if going else ""
    return Why(
        reason=Reason.PAUSED,
        text=f"it is paused by its owner{rest}",
        next_step=f"`hsctl resume {job.id}` lets it go on",
    )


def _each(scene: Scene) -> str:
    if not scene.job.portions:
        return ""
    away = f"; not connected: {', '.join(scene.without)}" if scene.without else ""
    return f" each, as {len(scene.job.portions)} copies{away}"


def _as(scene: Scene) -> str:
    if scene.policy_chose and scene.job.move is None:
        return f", {scene.policy_chose}"
    return f", as {scene.job.strategy.text}" if scene.job.strategy is not None else ""


def _what_next(move: Move, job: Job) -> str:
    if move.portions:
        return f"train as {len(move.portions)} copies on {', '.join(move.to)}"
    if job.portions:
        return f"become one again on {', '.join(move.to)}"
    if not reshapes(job, move):
        return f"move to {', '.join(move.to)}"
    return f"be restarted with {move.shape}" + (f" on {', '.join(move.to)}" if move.to != job.hosts else "")


def reshapes(job: Job, move: Move) -> bool:
    """It is restarted in another shape, where it is or over another number of servers: more than a move."""
    if move.portions or job.portions:
        return False
    return move.to == job.hosts or len(move.to) != len(job.hosts)


def _without_home(scene: Scene) -> Why:
    job = scene.job
    if scene.open_after is not None:
        other = scene.open_after.job
        return Why(
            reason=Reason.DEPENDENCY,
            text=f"it runs once job {other} has {CONDITION_WORDS[scene.open_after.condition]}",
            next_step=f"it {_goes_on(job)} by itself; `hsctl why {other}` says where that one stands",
        )
    if scene.misfit is not None:
        return _misfit(scene.misfit)
    if scene.array_first:
        first = scene.array_first
        jobs = f"{'job' if len(first) == 1 else 'jobs'} {listed(first)}"
        return Why(
            reason=Reason.ARRAY_LIMIT,
            text=f"its array may have {counted(job.spec.array_limit, 'job')} under way at once, and {jobs} of it, waiting too, "
            f"{'comes' if len(first) == 1 else 'come'} first",
            next_step=f"`hsctl why {first[0]}` says what {'that one' if len(first) == 1 else 'the first of them'} waits for",
        )
    if scene.array_full:
        return Why(
            reason=Reason.ARRAY_LIMIT,
            text=f"its array may have {counted(job.spec.array_limit, 'job')} under way at once, and has",
            next_step=f"it {_goes_on(job)} when {'that one' if job.spec.array_limit == 1 else 'one of them'} ends",
        )
    if scene.healthy_misfit is not None:
        return _unhealthy(f"it {scene.healthy_misfit.text}", _goes_on(job))
    if scene.source_away:
        return _source_away(scene)
    return _closed(scene) if scene.closed else _for_gpus(scene)


def _closed(scene: Scene) -> Why:
    """Too few of the servers that could hold it take anybody now."""
    job, closed = scene.job, scene.closed
    away = [name for name, why in closed.items() if why == AWAY]
    unable = [name for name in closed if name in scene.unable]
    drained = len(closed) > len(away) + len(unable)
    kinds = ["away"] * bool(away) + ["drained"] * drained + ["unable to start it"] * bool(unable)
    states = ", ".join(away if kinds == ["away"] else (f"{name} ({why})" for name, why in closed.items()))
    text = f"{_short_of_servers(job)} {', '.join(kinds[:-1])}{' or ' * (len(kinds) > 1)}{kinds[-1]}: {states}"
    if unable:
        return Why(
            reason=Reason.HOST_TROUBLE,
            text=text,
            next_step="they are tried again by themselves; tell an administrator: `hsctl nodes` says it too",
        )
    when = f"it is placed when {'one of them is' if job.nodes == 1 else 'enough of them are'}"
    if away:
        or_not = ", or drained no longer" if drained else ""
        step = f"{when} back{or_not}; tell an administrator if that takes long"
        return Why(reason=Reason.HOST_AWAY, text=text, next_step=step)
    return Why(
        reason=Reason.HOST_DRAINED,
        text=text,
        next_step=f"{when} drained no longer (`hsctl node undrain`), or when another joins that could hold it",
    )


def _short_of_servers(job: Job) -> str:
    if job.nodes == 1:
        return "every server that could hold it is"
    return f"it needs {job.nodes} servers at once, and too many of those that could hold it are"


def _misfit(misfit: Misfit) -> Why:
    reason = REASON_OF_MISFIT[misfit.field]
    if reason is Reason.NO_HOST:
        return Why(
            reason=reason,
            text="no server has joined the cluster yet",
            next_step="it is placed when an agent connects; `hsctl nodes` lists the servers",
        )
    return Why(
        reason=reason,
        text=f"it can never run on the servers that are left: it {misfit.text}",
        next_step="cancel it and submit it with a smaller wish, or wait for such a server to join",
    )


def _unhealthy(text: str, goes_on: str) -> Why:
    return Why(
        reason=Reason.GPU_UNHEALTHY,
        text=f"too few healthy GPUs: {text}",
        next_step=f"it {goes_on} when they are repaired, or drained no longer; `hsctl gpus` shows them",
    )


def _host_away(scene: Scene) -> Why:
    job = scene.job
    servers = "server" if len(scene.away) == 1 else "servers"
    is_ = "is" if len(scene.away) == 1 else "are"
    fenced = job.spec.on_partition is OnPartition.FENCE
    return Why(
        reason=Reason.HOST_AWAY,
        text=f"its {servers} {', '.join(scene.away)} {is_} not connected; what it was doing there goes on",
        next_step="it asked to be started again elsewhere if that takes long"
        if fenced
        else f"its state is known again when the {servers} {is_} back; an administrator can remove a server that will not come back",
    )


def _source_away(scene: Scene) -> Why:
    names = ", ".join(scene.source_away)
    back = reports.back(scene.job, scene.source_away)
    step = scene.job.stored.step if scene.job.stored is not None else 0
    spec = scene.job.spec
    fenced = spec.on_partition is OnPartition.FENCE and not scene.job.hosts
    else_ = f"that is looked for in {spec.checkpoint_dir}" if spec.checkpoint_dir else "it starts afresh"
    return Why(
        reason=Reason.SOURCE_AWAY,
        text=f"it goes on from its checkpoint of step {step}, which is on {names}, not connected now",
        next_step=f"it goes on when {back}; it asked to be fenced, so where that takes long and there is room for it elsewhere {else_}"
        if fenced
        else f"it goes on when {back}; an administrator can remove a server that will not come back",
    )


def _moving(job: Job) -> Why:
    assert job.move is not None
    why = f": {job.move.text}" if job.move.text else f" ({job.move.reason})"
    if reshapes(job, job.move):
        there = f" on {', '.join(job.move.to)}" if job.move.to != job.hosts else ""
        return Why(
            reason=Reason.MOVING,
            text=f"it is being restarted with {job.move.shape}{there}{why}; it is told to stop and to write its checkpoint",
            next_step="nothing to do: it goes on from its checkpoint, or as before if that fails",
            expected_wait_s=0.0,
        )
    return Why(
        reason=Reason.MOVING,
        text=f"it is moving from {_at(job)} to {', '.join(job.move.to)}{why}; it is told to stop and to write its checkpoint{_in_its_way(job)}",
        next_step="it goes on there by itself",
    )


def _in_its_way(job: Job) -> str:
    """What its servers say of it."""
    notes = dict.fromkeys(part.note for part in job.reports.values() if part.note)
    return f" ({'; '.join(notes)})" if notes else ""


def _starting(job: Job) -> Why:
    text = f"it is being started on {_at(job)}"
    if job.unconfirmed:
        text += f" once {', '.join(job.unconfirmed)}, where it was to start before, has said that it does not"
    if job.nodes > 1 and not job.reports:
        text += ", its servers are told of one another"
    if job.stored is not None:
        source = "" if job.stored.hosts == job.hosts else f" {job.stored.where}"
        text += f" from its checkpoint of step {job.stored.step}{source}"
    return Why(reason=Reason.STARTING, text=text, next_step=f"`hsctl logs {job.id}` shows what it says")


_ELSEWHERE = "it goes to another server that has room for it, or is tried again by itself; tell an administrator: `hsctl nodes` says it too"


def _on_its_host(scene: Scene) -> Why:
    job = scene.job
    phase = job.report.phase if job.report else None
    if job.move is not None:
        return _moving(job)
    if scene.source_away and phase in {None, Phase.WAITING}:
        return _source_away(scene)
    if trouble := _told(job, CANNOT_START):
        return Why(
            reason=Reason.HOST_TROUBLE,
            text=f"it {trouble}",
            next_step=_ELSEWHERE,
        )
    if scene.unable and phase in {None, Phase.WAITING, Phase.CHECKPOINTED}:
        states = (f"{name} cannot start it ({why})" for name, why in scene.unable.items())
        return Why(
            reason=Reason.HOST_TROUBLE,
            text=f"it waits on {_at(job)}, and {', '.join(states)}",
            next_step=_ELSEWHERE,
        )
    stored = job.stored
    fetched = stored is not None and (stored.surpassed or not stored.is_at(job.hosts))
    brought = phase is Phase.WAITING and fetched and not _for_memory(job)
    if phase in {None, Phase.STARTING} or brought:
        return _starting(job)
    misfit = scene.healthy_misfit.text if scene.healthy_misfit is not None else ""
    for host in scene.hosts:
        if lacks := gpus_out.lacking(job, host):
            return _unhealthy(lacks + gpus_out.why_it_stays(job, misfit), _goes_on(job))
    if scene.central or job.nodes > 1:
        return _for_gpus(scene)
    return _for_turn(scene)


def _for_turn(scene: Scene) -> Why:
    job = scene.job
    gpus = sum(len(host.healthy_gpus) for host in scene.hosts)
    due, part = min(1.0, scene.share_gpus / job.gang), scene.part
    if due <= 0 or part <= 0:
        return _for_gpus(scene)
    if (bound := _bound(scene, scene.idle)) is not None:
        return bound
    if job.gang > gpus - sum(scene.unsliced.values()):
        return _behind_unsliced(scene, gpus)
    one_in = 1 / part
    wait_s = _until_turn(one_in, scene.waited_s, scene.quantum_s)
    share = f"its share is {scene.share_gpus:.3g} of {counted(gpus, 'GPU')}"
    runs = f"it runs 1 quantum of {one_in:.3g}" if one_in >= 1.05 else "it runs nearly all the time"
    turns = (
        f"so {runs}"
        if part > (1 - NEARLY) * due
        else f"and as not all jobs there fit beside one another {runs}"
    )
    return Why(
        reason=Reason.WAITING_FOR_TURN,
        text=f"it waits for its turn on {_at(job)}: {share}, {turns}; unless jobs come or go, next turn {_in(_soon(wait_s))}{_for_memory(job, ', or later: it ')}",
        next_step=_by_itself(job),
        expected_wait_s=wait_s,
    )


def _bound(scene: Scene, idle: Collection[GpuId]) -> Why | None:
    """Its process cannot leave GPUs of which one is out of use, or which others have while as many of these are idle; None: it is not so."""
    job = scene.job
    for host in scene.hosts:
        if bound := gpus_out.bound_beside(job, host, idle):
            return Why(
                reason=Reason.WAITING_FOR_TURN,
                text=f"it waits for its turn on {_at(job)}: {bound}",
                next_step="it does not go on there before the GPU is mended; `hsctl node drain` with a deadline takes it to another server, from its newest checkpoint"
                if gpus_out.sick_of(job, host)
                else "it goes on by itself; one that keeps its state with `hs_job` (docs/training-scripts.md) can go to where there is room",
            )
    return None


def _behind_unsliced(scene: Scene, gpus: int) -> Why:
    """Whatever its share: these end before it has its turn there, or it leaves."""
    job, others = scene.job, sorted(scene.unsliced)
    one = len(others) == 1
    has = f"{'job' if one else 'jobs'} {listed(others)} {'has' if one else 'have'}"
    return Why(
        reason=Reason.WAITING_FOR_TURN,
        text=f"it waits for its turn on {_at(job)}: {has} {sum(scene.unsliced.values())} of {counted(gpus, 'GPU')} there"
        " and cannot be suspended",
        next_step=f"it {_goes_on(job)} when {'that one ends' if one else 'enough of them have ended'}, or on another server if it is moved to one",
    )


def _in_its_turn(scene: Scene) -> Why | None:
    """The controller has given it GPUs, and it does not run yet."""
    job = scene.job
    if not scene.in_turn and scene.turn_in_s < 0:
        return None
    if held_up := _for_gpu_memory(job):
        return Why(reason=Reason.WAITING_FOR_GPUS, text=held_up, next_step=_by_itself(job))
    if scene.in_turn and scene.in_its_way:
        others = f"{'job' if len(scene.in_its_way) == 1 else 'jobs'} {listed(scene.in_its_way)}"
        have = "has" if len(scene.in_its_way) == 1 else "have"
        text = (
            f"it has its turn on {_at(job)} now, and {_goes_on(job)} as soon as {others} {have} left its GPUs"
        )
        return Why(reason=Reason.WAITING_FOR_TURN, text=text, next_step="nothing to do")
    if scene.in_turn:
        text = f"it has its turn on {_at(job)} now, and is about to {'go on' if _has_run(job) else 'start'}"
        return Why(reason=Reason.WAITING_FOR_TURN, text=text, next_step="nothing to do", expected_wait_s=0.0)
    return Why(
        reason=Reason.WAITING_FOR_TURN,
        text=f"it has its turn on {_at(job)} in the next quantum, as planned now: {_in(_soon(scene.turn_in_s))}",
        next_step=f"it {_goes_on(job)} by itself",
        expected_wait_s=scene.turn_in_s,
    )


def _until_turn(one_in: float, waited_s: float, quantum_s: float) -> float:
    """Turns begin at edges: who waits does so for a whole quantum at least, and where its time has passed until the next edge."""
    wait_s = max(1, round(one_in - 1)) * quantum_s - waited_s
    return wait_s if wait_s > 0 else quantum_s - waited_s % quantum_s


def _for_memory(job: Job, before: str = "") -> str:
    """That its server has too little for its process; else nothing. Turns of those who have theirs come first, whatever shares say."""
    said = _told(job, FOR_MEMORY)
    return f"{before}{said}" if said else ""


def _for_gpu_memory(job: Job) -> str:
    """That a policy lets it run and its server cannot, as others hold the memory of GPUs; else nothing."""
    said = next(filter(None, (_told(job, beginning) for beginning in FOR_GPU_MEMORY)), "")
    return f"its turn is not given to it on {_at(job)}: {said}" if said else ""


def _told(job: Job, beginning: str) -> str:
    """What a server of it says that begins so; else nothing."""
    return next((part.note for part in job.reports.values() if part.note.startswith(beginning)), "")


def _soon(wait_s: float) -> str:
    return f"about {wait_s:.0f} s" if wait_s >= 1 else "very soon"


def _in(soon: str) -> str:
    return soon if soon == "very soon" else f"in {soon}"


def _has_run(job: Job) -> bool:
    return job.first_run_s is not None


def _goes_on(job: Job) -> str:
    return "goes on" if _has_run(job) else "starts"


def _by_itself(job: Job) -> str:
    return f"it {_goes_on(job)} by itself; `hsctl share` shows who has what"


def _for_gpus(scene: Scene) -> Why:
    job = scene.job
    if (bound := _bound(scene, scene.idle if scene.in_turn else ())) is not None:
        return bound
    memory = _for_memory(job, "it ")
    if not memory and (why := _in_its_turn(scene)) is not None:
        return why
    if not memory and scene.turn_after_s >= 0 and scene.policy_says and not _for_gpu_memory(job):
        return Why(
            reason=Reason.WAITING_FOR_TURN,
            text=f"{scene.policy_says}; next turn, as planned now, {_in(_soon(scene.turn_after_s))}",
            next_step=_by_itself(job),
            expected_wait_s=scene.turn_after_s,
        )
    return Why(
        reason=Reason.WAITING_FOR_GPUS,
        text=memory
        or scene.policy_says
        or _for_gpu_memory(job)
        or f"it waits for {counted(job.gang, 'GPU')} to be free",
        next_step=_by_itself(job),
    )


def _ending(scene: Scene, what: str) -> Why:
    if away := scene.away or scene.without:
        return Why(
            reason=Reason.HOST_AWAY,
            text=f"it {what}, but its server {', '.join(away)} is not connected",
            next_step="it ends when the server is back",
        )
    return Why(reason=Reason.ENDING, text=f"it {what}", next_step="its GPUs are free in a few seconds")


def explain_end(job: Job) -> Why:
    """For this the job is enough: it may have ended long ago."""
    reason = {
        JobState.SUCCEEDED: Reason.SUCCEEDED,
        JobState.FAILED: Reason.FAILED,
        JobState.CANCELLED: Reason.CANCELLED,
    }[job.state]
    ended = job.exit or Exit()
    step = "nothing to do"
    if reason is Reason.FAILED:
        step = f"`hsctl logs {job.id}` shows what it said"
        if ended.why.startswith(LAUNCH_FAILED):
            before = job.epoch > 0 or job.step > 0
            said = f"{step} before" if before else "it said nothing, as it never began"
            step = f"{said}: submit it again when that is mended"
    text = f"it {job.state}" if reason is not Reason.CANCELLED else f"it was cancelled by {job.cancelled_by}"
    how = exit_text(ended)
    return Why(reason=reason, text=f"{text}: {how}" if how and how not in text else text, next_step=step)


def exit_text(ended: Exit) -> str:
    if ended.why:
        return ended.why
    if ended.signal:
        return f"signal {ended.signal}"
    return f"exit code {ended.code}"


def _at(job: Job) -> str:
    return ", ".join(job.hosts)
