"""The GPUs of one round, promised pool by pool and then handed out: what policies that move jobs from round to round are made of.

A policy first chooses who runs on which GPU model (`promises`); only then are servers found (`seating`), the largest gangs first, so that what it
chose fits together; where it does not, who was chosen first has GPUs first (`precedence`). What finds no room after all leaves it to the next in line (`spare`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from hs_core.forms import Spread
from hs_core.mechanism.afresh import placed_afresh
from hs_core.mechanism.choices import Choices
from hs_core.mechanism.floor import floor
from hs_core.mechanism.later import Later
from hs_core.mechanism.laying import Laying
from hs_core.mechanism.layouts import Layouts
from hs_core.mechanism.packing import Packer, as_they_are
from hs_core.mechanism.placing import Home, by_arrival
from hs_core.mechanism.precedence import Precedence
from hs_core.mechanism.promises import Promises
from hs_core.mechanism.seating import Seating, over
from hs_core.mechanism.slots import Slots
from hs_core.model import Migrate
from hs_core.names import HostName, JobId
from hs_core.pairs import misfit
from hs_core.policy import HostFacts, JobFacts, Memory, Snapshot, Verdict


class Seats:
    def __init__(self, snapshot: Snapshot, *, spreads: bool = False) -> None:
        """`spreads`: jobs that may be laid over any number of servers are, where one has no room and they bear it."""
        self._snapshot = snapshot
        self._spreads = spreads
        self._slots = Slots(snapshot)
        self._floor = floor(snapshot.hosts)
        self._hosts = self._floor.hosts
        self.models = self._floor.models  # newest first
        self._choices = Choices(snapshot, spreads=spreads)
        self._seating = Seating(snapshot, spreads=spreads)
        self._promises = Promises(snapshot, self._slots, self._choices)
        self._precedence = Precedence(snapshot, self._seating, self._promises.able)
        self._laying: Laying | None = None  # where a round's line has had servers found

    # --- who could run, and where ---------------------------------------------------------------------------------

    def bound(self, job: JobFacts) -> bool:
        """It has its GPUs at its home whatever is decided: it cannot be suspended, or its server is away."""
        return self._slots.has_turn(job)

    def goes(self, job: JobFacts) -> bool:
        """It is leaving its home, and has its GPUs where it goes."""
        return self._slots.goes(job)

    def free(self, model: str) -> int:
        """GPUs of the pool that are promised to nobody yet."""
        return self._promises.free(model)

    def choices(self, job: JobFacts) -> tuple[str, ...]:
        """GPU models on which it could run in this round if it were alone: where it comes up first or is being measured, then as `Estimates.fastest` has it."""
        return self._choices.of(job, self._slots)

    def suits(self, job: JobFacts) -> tuple[str, ...]:
        """The same, though it may have its GPUs for something else in this round (`Snapshot.reserved`), or where it is going."""
        return self._choices.suits(job, self._slots)

    def outrun(self, job: JobFacts) -> bool:
        """As `Slots.outrun`, at its home."""
        return self._slots.outrun(job, self._slots.home(job))

    def room(self, name: HostName) -> int:
        """GPUs of a server that are nobody's yet."""
        return self._slots.free(name)

    def holds(self, job: JobFacts, model: str, room: Mapping[HostName, int]) -> bool:
        """Whether servers of that pool that take new jobs hold it with so many GPUs free on each."""
        there = sum(room[host.name] >= job.per_node for host in self._floor.fitting(job, model))
        return there >= job.nodes

    def holds_at_home(self, job: JobFacts, model: str, room: Mapping[HostName, int]) -> bool:
        """Its own servers do, and are of that pool."""
        return self._slots.model_of(job) == model and all(
            room[name] >= job.per_node for name in self._slots.home(job)
        )

    def tied(self, job: JobFacts) -> bool:
        """To its home, however many moves are left."""
        return bool(self._slots.home(job)) and not (
            job.movable and (not job.started or job.migrate is not Migrate.NEVER)
        )

    def may_go(self, job: JobFacts, host: HostFacts) -> bool:
        """Whether it could leave its home, if it has one, for that server, as far as the job and the budget allow."""
        return self._slots.may_go(job, host)

    # --- choosing -------------------------------------------------------------------------------------------------

    def choose(self, job: JobFacts, model: str) -> bool:
        """Promise the job its gang of that pool; False if too few are left or it can't go there."""
        return self._promises.make(job, model, self._slots)

    def choose_any(self, job: JobFacts) -> bool:
        """Of its fastest pool with room; False if it fits nowhere."""
        return self._promises.make_any(job, self._slots)

    def serve(self, order: Iterable[JobFacts]) -> None:
        """Each its fastest pool with room, in that order; who fits nowhere is passed over."""
        self._promises.serve(order, self._slots)

    def chosen(self) -> Mapping[JobId, str]:
        """GPU model of each that was chosen."""
        return {job_id: model for job_id, (_, model) in self._promises.chosen.items()}

    def keep(self, job: JobFacts, *, leaves: bool = False) -> bool:
        """Who runs, comes up or is on its way goes on so, whoever else is chosen; False if it has no GPUs. `leaves`: a server that is drained, if there is room elsewhere."""
        home = self._slots.home(job)
        has = job.id in self._snapshot.running or job.coming
        if not home or not has or job.id in self._promises.chosen or not self._slots.reachable(job):
            return self._slots.goes(job)
        if not self._slots.runs(job):
            if not (self._slots.offer(job) if leaves else self._slots.take(job, home, "")):
                return False
            self._promises.give(self._slots.home(job), job.per_node)
        return True

    def kept(self, jobs: Iterable[JobFacts]) -> frozenset[JobId]:
        """`keep` of each, who runs before who comes up. Who leaves a server that is drained has GPUs that the others leave."""
        running, slots = self._snapshot.running, self._slots
        order = sorted(jobs, key=lambda job: (job.id not in running, slots.should_leave(job)))
        return frozenset([job.id for job in order if self.keep(job, leaves=True)])

    # --- GPUs at once ---------------------------------------------------------------------------------------------

    def take(self, job: JobFacts, home: Home, why: str) -> bool:
        """These GPUs and no others; `why` it would leave its home. False if they aren't free."""
        return self._slots.take(job, home, why)

    def stay(self, job: JobFacts, home: Home) -> bool:
        """It keeps the GPUs that it has; False if it is still on the way to these: they wait for it."""
        slots = self._slots
        if slots.goes(job):
            return False
        if slots.runs(job):
            return True
        if slots.home(job) == home:
            return slots.take(job, home, "")
        here: Home = ()
        if job.id in self._snapshot.running and slots.take(job, slots.home(job), ""):
            here = slots.home(job)
        # Where it has GPUs already it will need no others.
        slots.reserve(job, tuple(name for name in home if name not in here))
        return False

    def share_again(
        self, job: JobFacts, beside: Mapping[HostName, Mapping[JobId, int]], jobs: Mapping[JobId, JobFacts]
    ) -> bool:
        """It runs on where it does, beside the same jobs; False if it or one of them is not there yet, or is no more, or if they turn out not to fit. `jobs`: all, by id."""
        slots = self._slots
        there = all(
            slots.runs_at(partner, name)
            and misfit(self._snapshot, self._hosts[name], job, job.accumulation, jobs[partner]) is None
            for name, gpus in beside.items()
            for partner in gpus
        )
        return there and slots.home(job) == tuple(beside) and slots.share(job, beside)

    def rest(self, job: JobFacts, *, stays: bool = False) -> bool:
        """GPUs that nobody has yet, where that moves nobody; False if there are none. `stays`: only at its home, where it has one."""
        slots = self._slots
        home = slots.home(job)
        tied = home and job.started and slots.free(home[0]) < job.per_node
        if slots.runs(job) or tied or not (slots.may_find_some(job) and slots.reachable(job)):
            return slots.runs(job)
        at_home = bool(home) and slots.has_room(job, home)
        free_to_go = not job.started and (not home or (job.movable and not stays))
        if not (at_home or free_to_go):
            return False
        if at_home and slots.model_of(job) in self.choices(job) and slots.take(job, home, ""):
            return True
        return free_to_go and any(slots.start(job, model) for model in self.choices(job))

    def press_in(self, job: JobFacts, claims: Mapping[HostName, int]) -> bool:
        """On its fastest pool with room: GPUs that nobody has taken yet, of the fewest of those who are to follow (`claims`: theirs, by server)."""
        return self._slots.may_find_some(job) and self._seating.seat(
            self._slots, job, self.choices(job), claims
        )

    # --- the line of a round --------------------------------------------------------------------------------------

    def lay(self, chosen: Iterable[tuple[JobFacts, str]]) -> frozenset[JobId]:
        """These and nobody else are promised GPUs, and given servers, the largest first: who of them found some. May be said again: then it is begun anew."""
        if self._laying is None:
            self._laying = Laying(
                self._snapshot,
                self._slots,
                self._promises,
                seating=self._seating,
                precedence=self._precedence,
            )
        found = self._laying.lay(chosen)
        self._slots = self._laying.slots
        return found

    def add(self, job: JobFacts, model: str) -> bool:
        """Beside those that have been given servers; False if none of the pool has room left for it as these stand."""
        assert self._laying is not None, "others have been laid"
        return self._laying.add(job, model)

    # --- handing out ----------------------------------------------------------------------------------------------

    def verdict(
        self,
        memory: Memory,
        why: Mapping[JobId, str],
        spare: Sequence[JobFacts] | None = None,
        *,
        homes: Mapping[JobId, Home] | None = None,
        renamed: bool = False,
        packs: bool = False,
        strategies: bool = False,
        within: Mapping[JobId, JobId] | None = None,
        mates: Mapping[JobId, JobId] | None = None,
        stays: str = "",
    ) -> Verdict:
        """`spare`: who may have GPUs that nobody else can use, first come first; None: all others, by arrival.

        `homes`: servers of the chosen that the policy has found itself; they fit together.
        `renamed`: also tried placed afresh and as tight as can be, with servers renamed so that the fewest move (Tesserae, 3.2 and 3.3);
        of the two the one with more GPUs in use, then with fewer moves, is taken.
        `strategies`: of those that jobs declare it is chosen who has which. `within` a round that is on, with these pairs (guest → partner), nobody is restarted for that; `why` as `Slots.verdict` has it there.
        `stays`: as `Slots.verdict`. `mates`: beside whom others run, if that one has GPUs. `packs`: who then waits may join who was placed; `memory` has, and is given, those pairs as "beside".
        """
        self._say_how_spread()
        before = self._slots.copy() if renamed else None
        seated = self._hand_out(homes or {})
        self._choices.forget()
        if before is not None:
            seated = self._or_afresh(seated, before)
        chosen = self._promises.chosen
        missed = {job_id: job for job_id, (job, _) in chosen.items() if job_id not in seated}
        left = sorted(self._snapshot.jobs, key=by_arrival)
        if spare is not None:
            left = [*missed.values(), *(job for job in spare if job.id not in missed)]
        self._fill(left, seated, mates or {})
        if missed:
            others = why
            why = Later(lambda: {**others, **{job.id: self._why_missed(job) for job in missed.values()}})
        pairs = dict(within or {})
        layouts = None
        if strategies and any(job.strategies for job in self._snapshot.jobs):
            layouts = Layouts(self._snapshot, self._slots, restarts=within is None)
        packer = Packer(self._snapshot, self._slots, layouts.choices if layouts is not None else as_they_are)
        if packs:
            pairs = packer.pack(left, _beside(memory))
            memory = {"beside": {str(job): other for job, other in sorted(pairs.items())}} if pairs else {}
        if layouts is not None:
            layouts.lay({job.id: job for job in self._snapshot.jobs}, pairs, packer)
        return self._slots.verdict(
            memory, why, spreads=self._spreads, stays=stays, within_a_round=within is not None
        )

    def _say_how_spread(self) -> None:
        """Of those that are laid over servers already."""
        for job in self._snapshot.jobs if self._spreads else ():
            if isinstance(job.shape, Spread):
                self._slots.say(job, f"{over(job.nodes)}: so it had room when it was placed")

    def _hand_out(self, homes: Mapping[JobId, Home]) -> set[JobId]:
        """Who of the chosen found servers."""
        if self._laying is not None:
            return self._laying.seated
        self._slots, seated = self._precedence.in_order(self._slots, self._promises.chosen, homes)
        return seated

    def _or_afresh(self, stayed: set[JobId], before: Slots) -> set[JobId]:
        """Placed afresh, if that has more GPUs in use, or as many with fewer moves, and leaves out nobody who was chosen first. `before`: nothing was handed out."""
        if not self._slots.moved:
            return stayed
        chosen = self._promises.chosen
        homes = placed_afresh(self._snapshot, before, self._seating, chosen)
        seated = self._precedence.hand_out(before, chosen, homes)
        costs = (self._slots.gpus_left, self._slots.moved), (before.gpus_left, before.moved)
        if costs[0] <= costs[1] or self._comes_first(stayed, seated):
            return stayed
        self._slots = before
        return seated

    def _fill(
        self, left: Sequence[JobFacts], seated: Collection[JobId], mates: Mapping[JobId, JobId]
    ) -> None:
        """GPUs that nobody has yet, to these in turn; who has a mate joins it, or has some where that one has none."""
        for job in left:
            if job.id not in seated and job.id not in mates:
                self.press_in(job, {})
        if mates:
            Packer(self._snapshot, self._slots).join(mates)
            for job in left:
                if job.id in mates and not self._slots.runs(job):
                    self.press_in(job, {})

    def _comes_first(self, seated: Collection[JobId], others: Collection[JobId]) -> bool:
        """Of those that only one of these has, who was chosen first is in `seated`."""
        return next(
            (job in seated for job in self._promises.chosen if (job in seated) != (job in others)), False
        )

    def _why_missed(self, job: JobFacts) -> str:
        _, model = self._promises.chosen[job.id]
        servers = (
            "server that can take it has" if job.nodes == 1 else f"{job.nodes} servers that can take it have"
        )
        return f"it was to run, but no {servers} {job.per_node} {model} left beside jobs that come before it"


def _beside(memory: Memory) -> dict[JobId, JobId]:
    """Pairs (guest → partner) of the round before."""
    return {JobId(int(job)): JobId(other) for job, other in memory.get("beside", {}).items()}
