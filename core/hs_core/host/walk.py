"""One walk over the jobs of a host: who could take a turn, and who gets which GPUs."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from hs_core.host.binding import choose
from hs_core.host.board import Board
from hs_core.host.demand import demand, load
from hs_core.host.host_memory import has_memory, starts, to_come, waits_text
from hs_core.host.hosted import HostedJob
from hs_core.host.mates import is_guest, mates, parting
from hs_core.host.room import coming_back, found_no_room, make_room, over_bytes, residents, spare_for_preload
from hs_core.host.seating import awaited, is_leaving, others_seats, seat_of
from hs_core.names import GpuId, JobId
from hs_core.reports import MEMORY_HELD, Phase, Tier
from hs_core.wanted import Turn


@dataclass(slots=True)
class Walk:
    """One walk over the queue: who gets which GPUs, and who has to make room."""

    board: Board
    order: list[JobId]
    rank: dict[JobId, int]
    there: dict[GpuId, list[HostedJob]]  # whose state lies on each GPU
    holders: dict[JobId, HostedJob]  # that have GPUs, or had when it began: few of the many that wait
    starts: dict[JobId, int]  # host memory that those take who are coming up, or are to be started
    claimed: dict[GpuId, JobId] = field(default_factory=dict)
    shared: dict[GpuId, JobId] = field(default_factory=dict)  # of the claimed: by whom else
    picks: list[HostedJob] = field(default_factory=list)
    parked: dict[JobId, Tier] = field(default_factory=dict)
    misfits: list[HostedJob] = field(default_factory=list)  # enough GPUs were left, but not its own
    outrun: set[JobId] = field(
        default_factory=set
    )  # there was no memory left for them, and would have been, had they come first
    crowded_out: list[HostedJob] = field(
        default_factory=list
    )  # nor then on their own GPUs: what was swapped, and in whose place others stay
    lacking: list[HostedJob] = field(
        default_factory=list
    )  # without a process, and there is no device memory to start one
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

    def bind(self, job: HostedJob, gpus: tuple[GpuId, ...]) -> None:
        job.gpus = gpus
        self.holders[job.id] = job
        if not job.alive:
            self.starts[job.id] = to_come(self.board, job)

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
        """Nobody else was given the GPUs of its process, but for mates that share them, or did until they leave; of a guest no more are its own than are meant to be."""
        board = self.board
        lent = {gpu for gpus in self.lent(job).values() for gpu in gpus}
        leaving = [other for other in job.beside if other in board.jobs and parting(job, board.jobs[other])]
        lent.update(gpu for other in leaving for gpu in self._given(other))
        runs = job.phase is Phase.RUNNING
        for gpu in job.gpus:
            if gpu in self.claimed and gpu not in lent:
                return False
            # Where a GPU went bad it may go on, but nothing comes back to it; on one that is not here any more nothing goes on.
            goes_on = runs and gpu in board.gpus and gpu not in board.drained
            if not (goes_on or board.usable_by(job, gpu)):
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
        return {mate: self._given(mate) for mate in (mates(turn, job.id) if turn.guests else ())}

    def _given(self, job: JobId) -> list[GpuId]:
        return [gpu for gpu, owner in self.claimed.items() if owner == job and gpu not in self.shared]

    def pick(self, job: HostedJob) -> bool:
        """Give it GPUs if it fits; a bound job only fits on its own."""
        board, free = self.board, self.free
        if job.alive:
            gpus = job.gpus if self._stays(job) else None
            if gpus is None and job.gang <= len(free):
                self.misfits.append(job)
        elif not self.has_memory(job):
            job.held_up = waits_text(board, job)
            return False
        elif self.board.turn.guests and (lent_by := self.lent(job)):
            gpus = self._beside(job, lent_by)
        else:
            others = awaited(board, job, self.claimed) if board.turn.seats else _leaving(self, job)
            if others:
                job.held_up = f"waits for GPUs that job {others[0]} is leaving"
                return False
            gpus = self.choose(job, [g for g in free if self.room(job, (g,)) is not None])
            if gpus is None and job.gang <= len(free):
                self._hold_up(job, "its GPUs' memory")
        if gpus is None:
            return False
        room = self.room(job, gpus)
        if room is None:
            self._hold_up(job, f"the memory of {board.names(gpus)}")
            return False
        self.take_room(job, room)
        job.held_up = ""
        self.bind(job, gpus)
        self.claim(job)
        self.picks.append(job)
        return True

    def _hold_up(self, job: HostedJob, what: str) -> None:
        """There are GPUs for it, and no memory."""
        job.held_up = f"{what} {MEMORY_HELD}"
        found_no_room(self.board, job.gpus if job.alive else self.free, set(self.claimed.values()))
        if not job.alive:
            self.lacking.append(job)
        if self.could_have(job, job.gpus if job.alive else None):
            self.outrun.add(job.id)
        elif job.alive:
            self.crowded_out.append(job)

    def could_have(self, job: HostedJob, gpus: tuple[GpuId, ...] | None = None) -> tuple[GpuId, ...]:
        """These GPUs, or whichever it would be started on, were nobody picked before it; () if the memory of those is held all the same."""
        board = self.board
        kept = {gpu for o in self.holders.values() if o is not job and board.immovable(o) for gpu in o.gpus}
        if gpus is None:
            usable = [gpu for gpu in board.gpus if board.usable(gpu) and gpu not in kept]
            gpus = self.choose(job, [gpu for gpu in usable if self._has_room_first(job, (gpu,))]) or ()
        return gpus if kept.isdisjoint(gpus) and self._has_room_first(job, gpus) else ()

    def _has_room_first(self, job: HostedJob, gpus: tuple[GpuId, ...]) -> bool:
        if _is_kept(self.board, job, gpus):
            return False
        return make_room(self.board, job, gpus, there=self.there, parked={}, rank=self.rank) is not None

    def beside(self, job: HostedJob) -> int:
        """How many of its GPUs its mates have for it."""
        meant = mates(self.board.turn, job.id)
        return sum(min(len(gpus), meant[mate]) for mate, gpus in self.lent(job).items())

    def has_memory(self, job: HostedJob) -> bool:
        return has_memory(self.board, job, self.starts, self.holders)

    def room(self, job: HostedJob, gpus: tuple[GpuId, ...]) -> dict[JobId, Tier] | None:
        if _is_kept(self.board, job, gpus):
            return None
        fixed = {self.claimed[gpu] for gpu in gpus if gpu in self.claimed}
        return make_room(
            self.board, job, gpus, there=self.there, parked=self.parked, rank=self.rank, fixed=fixed
        )

    def take_room(self, job: HostedJob, room: Mapping[JobId, Tier]) -> None:
        """Others leave so that it fits."""
        self.parked |= room
        job.coming_back |= job.phase is Phase.SWAPPED and Tier.SWAP in room.values()

    def _beside(self, job: HostedJob, lent: Mapping[JobId, list[GpuId]]) -> tuple[GpuId, ...] | None:
        """So many GPUs of each mate, free ones for the rest. A guest comes after its partners; they need not wait for it."""
        guest = is_guest(self.board.turn, job.id)
        chosen: list[GpuId] = []
        for mate, gpus in mates(self.board.turn, job.id).items():
            other = self.board.jobs.get(mate)
            offered = [gpu for gpu in lent[mate] if self.board.usable(gpu)]
            there = [gpu for gpu in offered if self.room(job, (gpu,)) is not None]
            if len(there) >= gpus:
                chosen += there[:gpus]
            elif (guest or mate in self.claimed.values()) and other is not None and not other.ended:
                much = len(offered) >= gpus
                job.held_up = (
                    f"needs more memory than job {mate} leaves on GPUs that it is to share"
                    if much
                    else f"waits for GPUs that it shares with job {mate}"
                )
                return None
        return self.with_rest(job, chosen, [gpu for gpu in self.free if self.room(job, (gpu,)) is not None])

    def with_rest(
        self, job: HostedJob, chosen: Collection[GpuId], allowed: Collection[GpuId]
    ) -> tuple[GpuId, ...] | None:
        """Those that it shares, and as many others as it needs besides."""
        left = job.gang - len(chosen)
        rest = self.choose(job, allowed, left) if left else ()
        place = {gpu: i for i, gpu in enumerate(self.board.gpus)}
        return None if rest is None else tuple(sorted((*chosen, *rest), key=place.__getitem__))

    def choose(
        self, job: HostedJob, allowed: Collection[GpuId], gpus: int | None = None
    ) -> tuple[GpuId, ...] | None:
        seat = seat_of(self.board, job, self.board.turn_of(job)) if gpus is None else ()
        if seat and set(seat) <= set(allowed):
            return seat
        if job.aim and gpus is None and set(job.aim) <= set(allowed):
            return job.aim
        count = gpus or job.gang
        if len(allowed) < count:
            return None
        gpu_rank: dict[GpuId, int] = {}
        kin: dict[GpuId, int] = {}
        for other in self.holders.values():
            for gpu in other.gpus:
                kin[gpu] = kin.get(gpu, 0) + (other.wanted.user == job.wanted.user)
                gpu_rank[gpu] = min(
                    gpu_rank.get(gpu, len(self.rank)), self.rank.get(other.id, len(self.rank))
                )
        host, sought = list(self.board.gpus), demand(self.board)
        tried = (
            choose(count, some, host, sought, gpu_rank, kin=kin)
            for some in (*apart(self.board, job, allowed), allowed)
        )
        return next((found for found in tried if found), None)


def _is_kept(board: Board, job: HostedJob, gpus: Collection[GpuId]) -> bool:
    """For a swapped one that has not come back while more is parked than may be: a third one there could not be swapped until it is."""
    if job.resident or job.phase is Phase.SWAPPED:
        return False
    back = [other for other in coming_back(board) if not set(gpus).isdisjoint(other.gpus)]
    return bool(back) and over_bytes(board) > 0 and any(has_turn(board, other) for other in back)


def _bound_beside(board: Board, job: HostedJob) -> set[GpuId]:
    """GPUs to which other gangs of the controller's turn are bound."""
    others = [board.jobs[gang] for gang in board.turn.gangs if gang in board.jobs and gang != job.id]
    return {gpu for other in others if other.alive for gpu in other.gpus}


def _leaving(this: Walk, job: HostedJob) -> list[JobId]:
    """Who is about to leave GPUs on which it would be in no other gang's way: where the controller alone decides all of its turn are to run at once."""
    board = this.board
    if job.part or job.id not in board.turn.gangs or fills(board):
        return []
    bound = _bound_beside(board, job)
    room = sum(gpu not in bound for gpu in this.free)
    if room >= job.gang:
        return []
    left = {
        gpu: owner
        for gpu, owner in this.claimed.items()
        if gpu not in bound and board.usable(gpu) and is_leaving(board.jobs[owner])
    }
    return sorted(left.values()) if room + len(left) >= job.gang else []


def apart(board: Board, job: HostedJob, allowed: Collection[GpuId]) -> Iterator[Collection[GpuId]]:
    """Of these first those that no other gang of the controller's turn is bound to, or is to have: they are to run at once.

    Where the controller alone decides, one that starts ahead of its turn is likely to be in the next one, beside them. And whoever cannot be moved
    out of its way is likely to be there, too.
    """
    alone = not fills(board)
    if job.id not in board.turn.gangs and not alone:
        return
    bound = _bound_beside(board, job)
    bound |= others_seats(board, job)
    if alone:
        stay = [other for other in board.jobs.values() if other.alive and not other.can_checkpoint]
        kept = bound.union(*(other.gpus for other in stay if other is not job))
        yield [gpu for gpu in allowed if gpu not in kept]
    yield [gpu for gpu in allowed if gpu not in bound]


def walk(board: Board) -> Walk:
    order = list(board.queue.order())
    holders = {job.id: job for job in board.jobs.values() if job.gpus}
    rank = {job: i for i, job in enumerate(order)}
    return Walk(board, order, rank, residents(board), holders, starts(board, holders.values()))


def able(board: Board, job: HostedJob) -> bool:
    """It could take a turn that starts now."""
    return (
        job.id in board.queue.jobs
        and not job.wanted.paused
        and not job.passed_over
        and not job.portion_done
        and job.asked is None
        and (job.startable if not job.alive else job.phase is not Phase.CHECKPOINTED)
    )


def local(board: Board, job: HostedJob) -> bool:
    """The host's own stride may pick it; a job over several hosts runs on the controller's word only."""
    return not job.part and able(board, job)


def has_turn(board: Board, job: HostedJob) -> bool:
    return able(board, job) and (job.id in board.turn.gangs or (fills(board) and not job.part))


def fills(board: Board) -> bool:
    """The local stride has a say.

    With `local` off the controller alone decides, except when a gang of its turn ended a whole quantum ago and it has
    not answered: it is away, and the jobs it left here fill the idle GPUs.
    """
    ended_s = board.gang_ended_s
    return board.turn.local or (ended_s is not None and board.now_s >= ended_s + board.quantum_s)


def may_start_ahead(board: Board, job: HostedJob) -> bool:
    """Where it turned out to have no step hook, it could still be kept off the GPU; where that is known, it would train there."""
    known = board.config.can_freeze or job.wanted.job_class in board.stopping_classes
    return job.hookable and known and not board.is_edgeless(job) and able(board, job)


def ahead_on(board: Board, this: Walk, job: HostedJob) -> tuple[GpuId, ...] | None:
    """GPUs that it can be bound to now without pushing out anybody's memory."""
    if not this.has_memory(job):
        return None
    allowed, turn = _allowed_ahead(board, this, job), board.turn_of(job)
    if is_guest(turn, job.id):
        return _beside_partners(board, this, turn, job, allowed)
    gpus = this.choose(job, allowed)
    return None if gpus is None or _would_move(board, job, gpus, allowed) else gpus


def _would_move(board: Board, job: HostedJob, gpus: Collection[GpuId], allowed: Collection[GpuId]) -> bool:
    """For want of memory elsewhere it would be bound to GPUs that it has been moved from, or so much more sought after than others that it would be: it had better wait for its turn."""
    usable = [gpu for gpu in board.gpus if board.usable(gpu)]
    if len(allowed) == len(usable) or set(gpus) == set(job.aim) or job.part or not fills(board):
        return False
    if set(gpus) == set(job.left):
        return True
    bound = load(board, without=job.id)
    best = choose(job.gang, usable, list(board.gpus), bound, {})
    more = sum(bound[gpu] for gpu in gpus) - sum(bound[gpu] for gpu in best or gpus)
    return more >= board.config.move_evening_quanta * job.gang


def _allowed_ahead(board: Board, this: Walk, job: HostedJob) -> list[GpuId]:
    blocked = {gpu for other in this.holders.values() if other.phase is Phase.KILLING for gpu in other.gpus}
    aimed = all(map(board.usable, job.aim))  # else it would be back where it has left, for want of memory
    return [
        gpu
        for gpu in (job.aim if job.aim and aimed else board.gpus)
        if board.usable(gpu)
        and gpu not in blocked
        and spare_for_preload(board, job, gpu, this.holders.values(), this.picks)
    ]


def _has_room_ahead(board: Board, this: Walk, job: HostedJob) -> bool:
    """There are GPUs for `ahead_on`; which ones is not asked, as this is asked of everybody who waits."""
    turn = board.turn_of(job)
    if is_guest(turn, job.id):
        return ahead_on(board, this, job) is not None
    allowed = _allowed_ahead(board, this, job)
    if len(allowed) < job.gang or not this.has_memory(job):
        return False
    return sum(map(board.usable, board.gpus)) == len(allowed) or ahead_on(board, this, job) is not None


def _beside_partners(
    board: Board, this: Walk, turn: Turn, job: HostedJob, allowed: Collection[GpuId]
) -> tuple[GpuId, ...] | None:
    """Where it is to be a guest: on other GPUs it would have no turn until it is moved, and some cannot be moved.

    While its partners have no GPUs it is not started ahead: in its turn it comes after them.
    """
    guests = {guest.job for guest in turn.guests} - {job.id}
    taken = {gpu for guest in guests if guest in board.jobs for gpu in board.jobs[guest].gpus}
    chosen: list[GpuId] = []
    for mate, gpus in mates(turn, job.id).items():
        partner = board.jobs.get(mate)
        if partner is None or partner.ended:
            continue
        moves = partner.asked is Tier.CHECKPOINT or partner.phase is Phase.CHECKPOINTED
        there = [gpu for gpu in partner.gpus if gpu in allowed and gpu not in taken]
        if moves or len(there) < gpus:
            return None
        chosen += there[:gpus]
        taken.update(partner.gpus)
    return this.with_rest(job, chosen, [gpu for gpu in allowed if gpu not in taken])


def comes_ahead(board: Board, this: Walk, job: HostedJob) -> bool:
    """It is on its way to its first step edge, or will be soon: as long as its turn can wait."""
    if job.alive:
        return job.ahead and job.phase is Phase.STARTING
    if board.now_s >= job.came_s + board.config.ahead_patience_s:
        return False
    return board.config.preload > 0 and may_start_ahead(board, job) and _has_room_ahead(board, this, job)
