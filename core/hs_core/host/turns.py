"""Whose turn it is: the quantum's edge, idle GPUs in between, and losers leaving before winners arrive."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from hs_core.host.binding import choose
from hs_core.host.board import Board, tickets_of
from hs_core.host.hosted import HostedJob
from hs_core.host.mates import are_mates, is_guest, mates
from hs_core.host.room import fits_now, make_room, residents, spare_for_preload
from hs_core.model import GpuId, JobId, Phase, Tier


@dataclass(slots=True)
class Walk:
    """One walk over the queue: who gets which GPUs, and who has to make room."""

    board: Board
    order: list[JobId]
    rank: dict[JobId, int]
    there: dict[GpuId, list[HostedJob]]  # whose state lies on each GPU
    claimed: dict[GpuId, JobId] = field(default_factory=dict)
    shared: dict[GpuId, JobId] = field(default_factory=dict)  # of the claimed: by whom else
    picks: list[HostedJob] = field(default_factory=list)
    parked: dict[JobId, Tier] = field(default_factory=dict)
    misfits: list[HostedJob] = field(default_factory=list)  # enough GPUs were left, but not its own
    coming: set[JobId] = field(
        default_factory=set
    )  # take no turn yet: they are brought to a step edge ahead of it

    @property
    def free(self) -> list[GpuId]:
        return [gpu for gpu in self.board.gpus if gpu not in self.claimed and self.board.usable(gpu)]

    def claim(self, job: HostedJob) -> None:
        for gpu in job.gpus:
            if self.claimed.setdefault(gpu, job.id) != job.id:
                self.shared.setdefault(gpu, job.id)

    def leave(self, job: HostedJob) -> None:
        """What it was given goes to others."""
        self.picks.remove(job)
        for gpu in job.gpus:
            if self.shared.get(gpu) == job.id:
                del self.shared[gpu]
            elif self.claimed.get(gpu) == job.id:
                if gpu in self.shared:
                    self.claimed[gpu] = self.shared.pop(gpu)
                else:
                    del self.claimed[gpu]

    def _stays(self, job: HostedJob) -> bool:
        """Nobody else was given the GPUs of its process, but for mates that share them; of a guest no more are its own than are meant to be."""
        board = self.board
        lent = {gpu for gpus in self.lent(job).values() for gpu in gpus}
        runs = job.phase is Phase.RUNNING  # where a GPU went bad it may go on, but nothing comes back to it
        for gpu in job.gpus:
            if gpu in self.claimed and gpu not in lent:
                return False
            if not board.usable_by(job, gpu) and not (runs and gpu not in board.drained):
                return False
        if not is_guest(board.turn, job.id):
            return True
        return sum(gpu not in self.claimed for gpu in job.gpus) <= job.gang - self.meant(job)

    def meant(self, job: HostedJob) -> int:
        """How many of its GPUs it is to share with mates that are here."""
        board = self.board
        found = mates(board.turn, job.id) if board.turn.guests else {}
        return sum(gpus for mate, gpus in found.items() if mate in board.jobs and not board.jobs[mate].ended)

    def lent(self, job: HostedJob) -> dict[JobId, list[GpuId]]:
        """By mate, GPUs that were given to it alone and on which the job may run beside it."""
        turn = self.board.turn
        return {
            mate: [gpu for gpu, owner in self.claimed.items() if owner == mate and gpu not in self.shared]
            for mate in (mates(turn, job.id) if turn.guests else ())
        }

    def pick(self, job: HostedJob) -> bool:
        """Give it GPUs if it fits; a bound job only fits on its own."""
        board, free = self.board, self.free
        if job.alive:
            gpus = job.gpus if self._stays(job) else None
            if gpus is None and job.gang <= len(free):
                self.misfits.append(job)
        elif self.board.turn.guests and (lent_by := self.lent(job)):
            gpus = self._beside(job, lent_by)
        else:
            gpus = self.choose(job, [g for g in free if self.room(job, (g,)) is not None])
            if gpus is None and job.gang <= len(free):
                job.held_up = "its GPUs' memory is held by jobs that can't be moved out"
        if gpus is None:
            return False
        room = self.room(job, gpus)
        if room is None:
            job.held_up = f"the memory of {board.names(gpus)} is held by jobs that can't be moved out"
            return False
        self.parked |= room
        job.held_up = ""
        job.gpus = gpus
        self.claim(job)
        self.picks.append(job)
        return True

    def beside(self, job: HostedJob) -> int:
        """How many of its GPUs its mates have for it."""
        meant = mates(self.board.turn, job.id)
        return sum(min(len(gpus), meant[mate]) for mate, gpus in self.lent(job).items())

    def room(self, job: HostedJob, gpus: tuple[GpuId, ...]) -> dict[JobId, Tier] | None:
        fixed = {self.claimed[gpu] for gpu in gpus if gpu in self.claimed}
        return make_room(
            self.board, job, gpus, there=self.there, parked=self.parked, rank=self.rank, fixed=fixed
        )

    def _beside(self, job: HostedJob, lent: Mapping[JobId, list[GpuId]]) -> tuple[GpuId, ...] | None:
        """So many GPUs of each mate, free ones for the rest. A guest comes after its partners; they need not wait for it."""
        guest = is_guest(self.board.turn, job.id)
        chosen: list[GpuId] = []
        for mate, gpus in mates(self.board.turn, job.id).items():
            other = self.board.jobs.get(mate)
            there = [gpu for gpu in lent[mate] if self.room(job, (gpu,)) is not None]
            if len(there) >= gpus:
                chosen += there[:gpus]
            elif (guest or mate in self.claimed.values()) and other is not None and not other.ended:
                much = len(lent[mate]) >= gpus
                job.held_up = (
                    f"needs more memory than job {mate} leaves on GPUs that it is to share"
                    if much
                    else f"waits for GPUs that it shares with job {mate}"
                )
                return None
        left = job.gang - len(chosen)
        free = [gpu for gpu in self.free if self.room(job, (gpu,)) is not None]
        rest = self.choose(job, free, left) if left else ()
        place = {gpu: i for i, gpu in enumerate(self.board.gpus)}
        return None if rest is None else tuple(sorted((*chosen, *rest), key=place.__getitem__))

    def choose(
        self, job: HostedJob, allowed: Collection[GpuId], gpus: int | None = None
    ) -> tuple[GpuId, ...] | None:
        gpu_rank: dict[GpuId, int] = {}
        for other in self.board.jobs.values():
            for gpu in other.gpus:
                gpu_rank[gpu] = min(
                    gpu_rank.get(gpu, len(self.rank)), self.rank.get(other.id, len(self.rank))
                )
        count, host, load = gpus or job.gang, list(self.board.gpus), self.board.load()
        apart = choose(count, self._apart(job, allowed), host, load, gpu_rank)
        return apart or choose(count, allowed, host, load, gpu_rank)

    def _apart(self, job: HostedJob, allowed: Collection[GpuId]) -> Collection[GpuId]:
        """Those that no other gang of the controller's turn is bound to: they are to run at once."""
        board = self.board
        if job.id not in board.turn.gangs:
            return allowed
        others = [board.jobs[gang] for gang in board.turn.gangs if gang in board.jobs and gang != job.id]
        bound = {gpu for other in others if other.alive for gpu in other.gpus}
        return [gpu for gpu in allowed if gpu not in bound]


def walk(board: Board) -> Walk:
    order = list(board.queue.order())
    return Walk(board, order, {job: i for i, job in enumerate(order)}, residents(board))


def able(board: Board, job: HostedJob) -> bool:
    """It could take a turn that starts now."""
    return (
        job.id in board.queue
        and not job.wanted.paused
        and not job.passed_over
        and job.asked is None
        and (job.startable if not job.alive else job.phase is not Phase.CHECKPOINTED)
    )


def local(board: Board, job: HostedJob) -> bool:
    """The host's own stride may pick it; a job over several hosts runs on the controller's word only."""
    return not job.part and able(board, job)


def stride(board: Board, this: Walk, have: Collection[HostedJob]) -> None:
    """The walk by (pass, arrival, id) over jobs other than those that `have` GPUs; then GPUs that stay idle go to jobs without a process.

    A turn that begins with an import of torch blocks its GPUs for many seconds, so a job first comes to a step edge outside any turn.
    """
    for id_ in this.order:
        job = board.jobs[id_]
        if job in have or not local(board, job):
            continue
        if comes_ahead(board, this, job):
            this.coming.add(id_)
        else:
            this.pick(job)
    for id_ in this.order:
        job = board.jobs[id_]
        if id_ in this.coming and not job.alive and not job.part and this.pick(job):
            this.coming.discard(id_)
    # What these picks left too little memory for waits for its turn like everybody.
    this.coming = {id_ for id_ in this.coming if comes_ahead(board, this, board.jobs[id_])}


def comes_ahead(board: Board, this: Walk, job: HostedJob) -> bool:
    """It is on its way to its first step edge, or will be soon: as long as its turn can wait."""
    if job.alive:
        return job.ahead and job.phase is Phase.STARTING
    if board.now_s >= job.came_s + board.config.ahead_patience_s:
        return False
    return board.config.preload > 0 and may_start_ahead(board, job) and ahead_on(board, this, job) is not None


def fills(board: Board) -> bool:
    """The local stride has a say.

    With `local` off the controller alone decides, except when a gang of its turn ended a whole quantum ago and it has
    not answered: it is away, and the jobs it left here fill the idle GPUs.
    """
    ended_s = board.gang_ended_s
    return board.turn.local or (ended_s is not None and board.now_s >= ended_s + board.quantum_s)


# --- the edge


def edge(board: Board) -> None:
    """A quantum begins. Forced ones first, then the walk by (pass, arrival, id); losers are told to stop."""
    for job in board.jobs.values():
        job.passed_over = False
        if not job.alive:
            job.gpus = ()
    _deal(board, None)


def change(board: Board) -> None:
    """The controller changed its mind within the quantum: its gangs come first; others keep theirs where that goes."""
    have = [job for job in board.in_order if job.in_turn and job.alive and local(board, job)]
    for job in board.jobs.values():
        if not job.alive:
            job.gpus = ()
    _deal(board, have)


def _deal(board: Board, have: Collection[HostedJob] | None) -> None:
    for job in sorted(board.in_order, key=lambda job: job.id in board.turn.gangs):
        if job.phase is not Phase.STARTING or not job.occupying:
            continue
        part = job.part and job.id not in board.turn.gangs
        if part or any(
            other.occupying for other in board.rivals(job)
        ):  # they were to share GPUs, and are no more
            job.free(board.now_s)  # goes on starting, like one started ahead of its turn
    this = walk(board)
    forced = [job for job in board.in_order if board.immovable(job)]
    for job in forced:
        this.claim(job)
    this.picks += [job for job in forced if job.id in board.queue]
    pick_gangs(board, this, this.picks)
    for job in have or ():
        if job not in this.picks:
            this.pick(job)
    if fills(board):
        stride(board, this, list(this.picks))
    moving = movers(board, this)
    for job in board.jobs.values():
        job.in_turn = job in this.picks and job.phase not in (Phase.SUSPENDING, Phase.KILLING)
    if have is None:
        for job in board.jobs.values():
            job.waited_quanta = 0 if job.in_turn or not has_turn(board, job) else job.waited_quanta + 1
        charge(board, this, forced)
    elif fresh := [job.id for job in this.picks if job not in have and job not in forced]:
        board.queue.charge(fresh, board.left_of_quantum(), absent=absent(board, this))
    for job in board.in_order:
        if job.phase is Phase.RUNNING and not job.in_turn and job.occupying:
            board.suspend(job, Tier.CHECKPOINT if job in moving else this.parked.pop(job.id, Tier.HOLD))
        elif job in moving:
            board.ask(job, Tier.CHECKPOINT)
    park(board, this)


def pick_gangs(board: Board, this: Walk, have: Collection[HostedJob]) -> None:
    """The turn's, guests last. One that is on its way to its first step edge takes its turn when it stands there."""
    turn = board.turn
    guests = [guest.job for guest in turn.guests]
    for gang in sorted(turn.gangs, key=guests.__contains__) if guests else turn.gangs:
        job = board.jobs.get(gang)
        if job is None or job in have or not able(board, job):
            continue
        if job.part and comes_ahead(board, this, job):
            this.coming.add(job.id)
        elif not gives_way(board, job):
            this.pick(job)


def gives_way(board: Board, part: HostedJob) -> bool:
    """To one of this host that is bound to the same GPUs, has waited for several turns, and can no more be moved than the part.

    The controller does not know of bindings: by number there is room for all, so that the part has every turn. Its other hosts
    lose a quantum by it.
    """
    if not part.part or not part.alive or part.can_checkpoint or not board.sliceable(part):
        return False
    run = [job for job in board.jobs.values() if has_turn(board, job)]
    if sum(job.gang for job in run) > sum(map(board.usable, board.gpus)):
        return False
    bound = [job for job in board.on(part.gpus) if job is not part and job in run]
    waited = [job for job in bound if job.waited_quanta >= board.config.move_lag_strides]
    return any(not job.part and not job.can_checkpoint for job in waited)


def has_turn(board: Board, job: HostedJob) -> bool:
    return able(board, job) and (job.id in board.turn.gangs or (fills(board) and not job.part))


def charge(board: Board, this: Walk, immovable: Collection[HostedJob]) -> None:
    """Passes of those in this turn. What the walk did not choose by pass (gangs, unsliceable jobs) counts as forced."""
    forced = [
        j.id
        for j in this.picks
        if j.id in board.turn.gangs or (board.immovable(j) and not board.sliceable(j))
    ]
    blocked = {gpu for job in immovable for gpu in job.gpus}
    could = [
        id_
        for id_ in this.order
        if able(board, board.jobs[id_])
        and not board.jobs[id_].held_up
        and id_ not in this.coming
        and blocked.isdisjoint(board.jobs[id_].gpus)
    ]
    chosen = [job.id for job in this.picks if job.id not in forced]
    before = board.queue.virtual_time()
    board.queue.charge(chosen, forced=forced, able=could, absent=absent(board, this))
    board.advance = board.queue.virtual_time() - before


def absent(board: Board, this: Walk) -> list[JobId]:
    """On their way to their first step edge: neither they nor the others shall pay for that time."""
    return [id_ for id_ in this.coming if board.jobs[id_].gpu_s == 0]


def charge_missed(board: Board, quanta: int) -> None:
    jobs = [job.id for job in board.jobs.values() if job.in_turn and job.id in board.queue]
    if jobs:
        board.queue.charge(jobs, Fraction(quanta))


def park(board: Board, this: Walk) -> None:
    for id_, tier in this.parked.items():
        job = board.jobs[id_]
        if job.asked is None and job.phase is Phase.HELD:
            job.asked_s = board.now_s
            board.ask(job, tier)


def movers(board: Board, this: Walk) -> list[HostedJob]:
    """Jobs to be moved to other GPUs of this host through a checkpoint.

    First by pass, or as the controller lists them: those that would fit GPUs left idle, were they not bound to others. Then, one at a time, one that
    fell behind its due by several of its turns because its own GPUs carry more tickets than others.
    """
    under_way = [
        job
        for job in board.jobs.values()
        if job.asked is Tier.CHECKPOINT or (job.phase is Phase.CHECKPOINTED and job.alive)
    ]
    idle = len(this.free) - sum(j.gang for j in under_way)
    moving: list[HostedJob] = []
    wished = this.order if fills(board) else [id_ for id_ in board.turn.gangs if id_ in board.jobs]
    for job in map(board.jobs.__getitem__, wished):
        if job in this.picks:
            continue
        needed = job.gang - this.beside(job)
        if is_guest(board.turn, job.id) and needed > job.gang - this.meant(job):
            continue  # its partners have no GPUs for it yet
        if needed <= idle and movable(board, this, job):
            moving.append(job)
            idle -= needed
    if not moving and not under_way:
        moving += displaced(board, this)
    if not moving and not under_way and fills(board):
        late = [
            j
            for j in this.misfits
            if j not in this.picks and movable(board, this, j) and (bound_to_none(board, j) or lags(board, j))
        ]
        moving += late[:1]
    for job in moving:
        board.tell("moving", "moved to other GPUs through a checkpoint", job)
    return moving


def displaced(board: Board, this: Walk) -> list[HostedJob]:
    """There is room for one that cannot be moved if those on its GPUs are: these move in its place."""
    for job in list(this.misfits):
        if job in this.picks or not board.sliceable(job) or bound_to_none(board, job):
            continue
        holders = [other for other in this.picks if not set(other.gpus).isdisjoint(job.gpus)]
        left = set(this.free).union(*(other.gpus for other in holders)) - set(job.gpus)
        if not holders or sum(other.gang for other in holders) > len(left):
            continue
        if all(movable(board, this, other) and lands_beside(board, other, job) for other in holders):
            for other in holders:
                this.leave(other)
            if this.pick(job):
                return holders
            for other in holders:
                this.pick(other)
    return []


def lands_beside(board: Board, holder: HostedJob, job: HostedJob) -> bool:
    """Started anew it would not be bound to the same GPUs again."""
    load = board.load()
    for gpu in holder.gpus:
        if gpu in load and holder.id in board.queue:
            load[gpu] -= tickets_of(holder) / holder.gang
    gpus = choose(holder.gang, [g for g in board.gpus if board.usable(g)], list(board.gpus), load, {})
    return gpus is not None and set(gpus).isdisjoint(job.gpus)


def movable(board: Board, this: Walk, job: HostedJob) -> bool:
    """A part of a job over several hosts takes all of it along: they go on together in a later turn."""
    return (
        (local(board, job) or (job.id in board.turn.gangs and able(board, job)))
        and job.alive
        and job.ready
        and not job.wanted.leave
        and job.can_checkpoint
        and board.now_s >= job.checkpoint_after_s
        and job.phase in (Phase.HELD, Phase.SWAPPED, Phase.RUNNING)
        and board.sliceable(job)
        and (
            any(gpu in this.claimed or not board.usable_by(job, gpu) for gpu in job.gpus)
            or is_guest(board.turn, job.id)
        )
    )


def bound_to_none(board: Board, job: HostedJob) -> bool:
    """It would wait for its GPUs for ever: sick, gone, drained."""
    return not all(board.usable_by(job, gpu) for gpu in job.gpus)


def lags(board: Board, job: HostedJob) -> bool:
    """Behind the virtual time by several of its strides."""
    stride = job.gang / tickets_of(job)
    return -board.queue.passes()[job.id] >= board.config.move_lag_strides * stride


# --- inside the quantum


def fill(board: Board) -> None:
    """GPUs that became idle, or were, are given at once; whoever gets them pays for the rest of the quantum."""
    if board.now_s >= board.next_edge_s or not (board.turn.local or board.turn.gangs):
        return
    have = [job for job in board.jobs.values() if job.in_turn or job.occupying]
    if len(have) == len(board.jobs):
        return
    taken = {gpu for job in have for gpu in job.gpus}
    had = {job.id for job in have}
    full = all(gpu in taken or not board.usable(gpu) for gpu in board.gpus)
    if full and had.issuperset(guest.job for guest in board.turn.guests):
        return
    this = walk(board)
    for job in have:
        this.claim(job)
    pick_gangs(board, this, have)
    if board.turn.local and this.free:
        stride(board, this, [*have, *this.picks])
    part = board.left_of_quantum()
    for job in this.picks:
        job.in_turn = True
    if this.picks:
        board.queue.charge([job.id for job in this.picks], part, absent=absent(board, this))
    park(board, this)


def advance(board: Board) -> bool:
    """Winners arrive where everybody else has left. True if one had to be passed over, so that others may fill in."""
    passed = False
    for job in board.in_order:
        if (
            not job.in_turn
            or job.occupying
            or job.asked is not None
            or (job.phase is Phase.CHECKPOINTED and job.alive)
        ):
            continue
        if any(other.occupying for other in board.rivals(job)):
            continue
        if not fits_now(board, job):
            passed |= not wait_for_room(board, job)
            continue
        job.begin(board.now_s)
        if not job.alive:
            board.launch(job)
        elif job.phase is not Phase.STARTING:
            board.resume(job)
    return passed


def wait_for_room(board: Board, job: HostedJob) -> bool:
    """Memory it was promised is not free yet: is somebody still leaving, or can another?"""
    this = walk(board)
    room = this.room(job, job.gpus)
    if room is None:
        pass_over(job, f"the memory of {board.names(job.gpus)} is held by jobs that can't be moved out")
        return False
    this.parked = room
    park(board, this)
    return True


def pass_over(job: HostedJob, why: str) -> None:
    job.in_turn, job.passed_over, job.held_up = False, True, why
    if not job.alive:
        job.gpus = ()


def make_way(board: Board, job: HostedJob) -> None:
    """This job holds its GPUs and can't be stopped: others that count on them leave their turn."""
    for other in board.in_order:
        if other is job or not other.in_turn or set(other.gpus).isdisjoint(job.gpus):
            continue
        if are_mates(board.turn, job.id, other.id):
            continue
        coming_up = other.phase is Phase.STARTING
        if board.immovable(other) and not coming_up:
            continue
        running = other.occupying
        pass_over(other, f"job {job.id} does not leave {board.names(other.gpus)}")
        if coming_up:
            other.free(board.now_s)  # like one started ahead of its turn
        elif running:
            board.suspend(other, Tier.HOLD)


def may_start_ahead(board: Board, job: HostedJob) -> bool:
    """Where it turned out to have no step hook, it could still be kept off the GPU; where that is known, it would train there."""
    known = board.config.can_freeze or job.wanted.job_class in board.hooking_classes
    return job.hookable and known and not board.never_hooks(job) and able(board, job)


def ahead_on(board: Board, this: Walk, job: HostedJob) -> tuple[GpuId, ...] | None:
    """GPUs that it can be bound to now without pushing out anybody's memory."""
    blocked = {gpu for other in board.jobs.values() if other.phase is Phase.KILLING for gpu in other.gpus}
    allowed = [
        g
        for g in board.gpus
        if board.usable(g) and g not in blocked and spare_for_preload(board, job, g, this.picks)
    ]
    return this.choose(job, allowed)


def preload(board: Board) -> None:
    """Start the next jobs ahead of their turn, so that a turn does not begin with an import of torch.

    Parts of jobs over several hosts first, however many: their other parts wait for them.
    """
    coming = [
        job
        for job in board.jobs.values()
        if not job.alive
        and not job.in_turn
        and (job.part or board.turn.local)
        and may_start_ahead(board, job)
    ]
    if not coming or board.config.preload == 0:
        return
    # One whose memory is known is accounted for once it stands; of the others only a few may lie on the GPUs untried.
    room = board.config.preload - sum(
        job.ahead and not job.part and (job.phase is Phase.STARTING or job.memory_bytes == 0)
        for job in board.jobs.values()
    )
    this = walk(board)
    for job in sorted(coming, key=lambda job: (not job.part, this.rank[job.id])):
        if room <= 0 and not job.part:
            return
        gpus = ahead_on(board, this, job)
        if gpus is None:
            continue
        job.gpus = gpus
        board.launch(job)
        room -= not job.part
