"""The GPUs of one round, promised pool by pool and then handed out: what policies that move jobs from round to round are made of.

A policy first chooses who runs on which GPU model (`choose`); only then are servers found, the largest gangs first, so that what it
chose fits together; where it does not, who was chosen first has GPUs first. A job stays where it is if that server is in its model and has room (Gavel, OSDI'20, 5: no move without need); others go
where they take GPUs from the fewest that could have stayed. What finds no room after all leaves it to the next in line (`spare`).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from types import MappingProxyType

from hs_core.forms import Spread
from hs_core.mechanism.estimates import estimated
from hs_core.mechanism.floor import Shape, floor, shape_of
from hs_core.mechanism.later import Later
from hs_core.mechanism.layouts import Layouts
from hs_core.mechanism.packing import Packer, as_they_are
from hs_core.mechanism.placing import Home, by_arrival, fits, is_cold, takes_new
from hs_core.mechanism.renaming import rename
from hs_core.mechanism.slots import Slots
from hs_core.mechanism.spreading import largest, measured, numbers
from hs_core.model import Migrate
from hs_core.names import HostName, JobId
from hs_core.pairs import misfit
from hs_core.policy import HostFacts, JobFacts, Memory, Snapshot, Verdict

BEARABLE = 0.9
"""The part of its speed that a job keeps over more servers, at least, if it is to be spread. Tiresias goes by the skew of a model's tensors, and has no such number."""

PASSES = 4
"""After so many in which those who were passed over go before the largest, all go in the order in which they were chosen."""

MEASURED = 5  # quanta in which a class is measured where a job of it has come; what shares its GPUs all the time never is


class Seats:
    def __init__(self, snapshot: Snapshot, *, spreads: bool = False) -> None:
        """`spreads`: jobs that may be laid over any number of servers are, where one has no room and they bear it."""
        self._snapshot = snapshot
        self._spreads = spreads
        self._slots = Slots(snapshot)
        self._floor = floor(snapshot.hosts)
        self._hosts = self._floor.hosts
        self.models = self._floor.models  # newest first
        self._estimates = estimated(snapshot, self.models)
        self._free = dict.fromkeys(self.models, 0)
        stays = self._asked_where_closed()
        for name, host in self._hosts.items():
            if host.connected:
                free = self._slots.free(name)
                self._free[host.model] += free if takes_new(host) else min(free, stays[name])
        self._chosen: dict[JobId, tuple[JobFacts, str]] = {}
        self._served = set[JobId]()  # chosen in an order that holds from pool to pool
        self._moves_left = self._slots.moves_left
        # Until GPUs are handed out, nothing changes about where a job could go.
        self._choices: dict[JobId, tuple[str, ...]] = {}
        self._before: Slots | None = None  # anything was handed out, if anything was
        self._seated: set[JobId] | None = None  # who found servers; None: nothing was handed out yet
        self._full: set[tuple[str, Shape, Home]] = set()  # jobs like these find none any more

    def _asked_where_closed(self) -> Counter[HostName]:
        """GPUs that those ask for who live on servers that take no new jobs: nobody else can have any there."""
        asked = Counter[HostName]()
        for job in self._snapshot.jobs if self._floor.closed else ():
            if not self._slots.runs(job):
                for name in self._slots.home(job):
                    asked[name] += job.per_node
        return asked

    # --- who could run, and where ---------------------------------------------------------------------------------

    def bound(self, job: JobFacts) -> bool:
        """It has its GPUs at its home whatever is decided: it cannot be suspended, or its server is away."""
        return self._slots.has_turn(job)

    def goes(self, job: JobFacts) -> bool:
        """It is leaving its home, and has its GPUs where it goes."""
        return self._slots.goes(job)

    def free(self, model: str) -> int:
        """GPUs of the pool that are promised to nobody yet."""
        return self._free[model]

    def choices(self, job: JobFacts) -> tuple[str, ...]:
        """GPU models on which it could run in this round if it were alone: where it comes up first or is being measured, then as `Estimates.fastest` has it."""
        return () if self._slots.runs(job) else self.suits(job)

    def suits(self, job: JobFacts) -> tuple[str, ...]:
        """The same, though it may have its GPUs for something else in this round (`Snapshot.reserved`), or where it is going."""
        found = self._choices.get(job.id)
        if found is None:
            able = self._pools_for(job)
            found = self._estimates.fastest(job.job_class, able)
            if (here := self._first_here(job)) in found:
                found = (here, *(model for model in found if model != here))
            self._choices[job.id] = found
        return found

    def _pools_for(self, job: JobFacts) -> tuple[str, ...]:
        """As it asks, or over any number of servers where it may be laid so."""
        if not (self._spreads and job.spreads):
            return self._slots.pools_for(job)
        laid = (replace(job, nodes=nodes) for nodes in job.spreads)
        found = {model for form in laid for model in self._slots.pools_for(form)}
        return tuple(model for model in self.models if model in found)

    def _first_here(self, job: JobFacts) -> str | None:
        """The model of its home, where it comes up for the first time, or has come up and is being measured: it is not sent to one that was before it is known which is faster.

        Who has run and comes up elsewhere goes where its GPUs of this round are, as those who run do: to wait until it is up would cost it those and a move besides.
        """
        home = self._slots.home(job)
        if not home or self._slots.waits_for_repair(job):
            return None
        here, asked = self._hosts[home[0]].model, self._snapshot
        is_new = asked.now_s - job.settled_s < MEASURED * asked.quantum_s
        is_newcomer = job.coming and not job.attained_gpu_s
        return here if is_newcomer or (is_new and (job.job_class, here) not in asked.rates) else None

    def room(self, name: HostName) -> int:
        """GPUs of a server that are nobody's yet."""
        return self._slots.free(name)

    def holds(self, job: JobFacts, model: str, room: Mapping[HostName, int]) -> bool:
        """Whether servers of that pool that take new jobs hold it with so many GPUs free on each."""
        there = sum(room[host.name] >= job.per_node for host in self._floor.fitting(job, model))
        return there >= job.nodes

    def holds_at_home(self, job: JobFacts, model: str, room: Mapping[HostName, int]) -> bool:
        """Its own servers do, and are of that pool."""
        return self._lives_on(job) == model and all(
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

    def rate(self, job: JobFacts, model: str) -> float:
        """Mini-batches a second of the whole gang; 0.0 where it was not measured."""
        return self._snapshot.rates.get((job.job_class, model), 0.0)

    # --- choosing -------------------------------------------------------------------------------------------------

    def choose(self, job: JobFacts, model: str) -> bool:
        """Promise the job its gang of that pool; False if too few are left or it can't go there."""
        if job.id in self._chosen or self._free[model] < job.gang or model not in self.choices(job):
            return False
        if job.started and self._lives_on(job) != model and not self._slots.should_leave(job):
            if self._moves_left <= 0:
                return False
            self._moves_left -= 1
        self._free[model] -= job.gang
        self._chosen[job.id] = (job, model)
        return True

    def _lives_on(self, job: JobFacts) -> str:
        home = self._slots.home(job)
        return self._hosts[home[0]].model if home else ""

    def keep(self, job: JobFacts, *, leaves: bool = False) -> bool:
        """Who runs, comes up or is on its way goes on so, whoever else is chosen; False if it has no GPUs. `leaves`: a server that is drained, if there is room elsewhere."""
        home = self._slots.home(job)
        has = job.id in self._snapshot.running or job.coming
        if not home or not has or job.id in self._chosen or not self._slots.reachable(job):
            return self._slots.goes(job)
        if not self._slots.runs(job):
            if not (self._slots.offer(job) if leaves else self._slots.take(job, home, "")):
                return False
            for name in self._slots.home(job):  # of several models, where another policy gave it these
                self._free[self._hosts[name].model] -= job.per_node
        return True

    def kept(self, jobs: Iterable[JobFacts]) -> frozenset[JobId]:
        """`keep` of each, who runs before who comes up. Who leaves a server that is drained has GPUs that the others leave."""
        running, slots = self._snapshot.running, self._slots
        order = sorted(jobs, key=lambda job: (job.id not in running, slots.should_leave(job)))
        return frozenset([job.id for job in order if self.keep(job, leaves=True)])

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
        if slots.runs(job) or not slots.reachable(job):
            return slots.runs(job)
        home = slots.home(job)
        if home and self._hosts[home[0]].model in self.choices(job) and slots.take(job, home, ""):
            return True
        free_to_go = not job.started and (not home or (job.movable and not stays))
        return free_to_go and any(slots.start(job, model) for model in self.choices(job))

    def press_in(self, job: JobFacts, claims: Mapping[HostName, int]) -> bool:
        """On its fastest pool with room: GPUs that nobody has taken yet, of the fewest of those who are to follow (`claims`: theirs, by server)."""
        return self._seat(job, self.choices(job), claims)

    def serve(self, order: Iterable[JobFacts]) -> None:
        """Each its fastest pool with room, in that order; who fits nowhere is passed over."""
        for job in order:
            self.choose_any(job)

    def choose_any(self, job: JobFacts) -> bool:
        if not any(self.choose(job, model) for model in self.choices(job)):
            return False
        self._served.add(job.id)
        return True

    def chosen(self) -> Mapping[JobId, str]:
        """GPU model of each that was chosen."""
        return {job_id: model for job_id, (_, model) in self._chosen.items()}

    def lay(self, chosen: Iterable[tuple[JobFacts, str]]) -> frozenset[JobId]:
        """These and nobody else are promised GPUs, and given servers, the largest first: who of them found some. May be said again: then it is begun anew."""
        if self._before is None:
            self._before = self._slots
        self._slots, self._moves_left = self._before.copy(), self._before.moves_left
        self._full.clear()
        for job, model in [*self._chosen.values()]:
            self._forget(job, model)
        for job, model in chosen:
            self.choose(job, model)
        self._seated = self._hand_out({}, self._chosen)
        for job, model in [entry for job_id, entry in self._chosen.items() if job_id not in self._seated]:
            self._forget(job, model)
        return frozenset(self._seated)

    def add(self, job: JobFacts, model: str) -> bool:
        """Beside those that have been given servers; False if none of the pool has room left for it as these stand."""
        assert self._seated is not None, "others have been laid"
        home = self._slots.home(job)
        is_free = self._slots.ways(job, (model,)) and all(name in self._floor.calm for name in home)
        like = model, shape_of(job), () if is_free else home
        moves_left = self._moves_left
        if like in self._full or not self.choose(job, model):
            return False
        if self._seat(job, (model,), {}):
            self._seated.add(job.id)
            return True
        self._full.add(like)
        self._forget(job, model)
        self._moves_left = moves_left
        return False

    def _forget(self, job: JobFacts, model: str) -> None:
        del self._chosen[job.id]
        self._free[model] += job.gang

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
    ) -> Verdict:
        """`spare`: who may have GPUs that nobody else can use, first come first; None: all others, by arrival.

        `homes`: servers of the chosen that the policy has found itself; they fit together.
        `renamed`: also tried placed afresh and as tight as can be, with servers renamed so that the fewest move (Tesserae, 3.2 and 3.3);
        of the two the one with more GPUs in use, then with fewer moves, is taken.
        `strategies`: of those that jobs declare it is chosen who has which. `within` a round that is on, with these pairs (guest → partner), nobody is restarted for that.
        `mates`: beside whom others run, if that one has GPUs. `packs`: who then waits may join who was placed; `memory` has, and is given, those pairs as "beside".
        """
        for job in self._snapshot.jobs if self._spreads else ():
            if isinstance(job.shape, Spread):
                self._slots.say(job, f"over {_servers(job.nodes)}: so it had room when it was placed")
        before = self._slots.copy() if renamed else None
        seated = self._in_order(homes or {}) if self._seated is None else self._seated
        self._choices.clear()
        if before is not None and self._slots.moved:
            stayed, self._slots = self._slots, before
            seated_afresh = self._hand_out(self._renamed(), self._chosen)
            costs = (stayed.gpus_left, stayed.moved), (self._slots.gpus_left, self._slots.moved)
            if costs[0] <= costs[1] or self._comes_first(seated, seated_afresh):
                self._slots = stayed
            else:
                seated = seated_afresh
        # A promise counts GPUs on drained servers too, as many as those ask for who are there: only they can have them.
        missed = {job_id: job for job_id, (job, _) in self._chosen.items() if job_id not in seated}
        left = sorted(self._snapshot.jobs, key=by_arrival)
        if spare is not None:
            left = [*missed.values(), *(job for job in spare if job.id not in missed)]
        for job in left:
            if job.id not in seated and job.id not in (mates or ()):
                self._seat(job, self.choices(job), {})
        if mates:
            Packer(self._snapshot, self._slots).join(mates)
            for job in left:
                if job.id in mates and not self._slots.runs(job):
                    self._seat(job, self.choices(job), {})
        if missed:
            others = why
            why = Later(lambda: {**others, **{job.id: self._why_missed(job) for job in missed.values()}})
        layouts = None
        if strategies and any(job.strategies for job in self._snapshot.jobs):
            layouts = Layouts(self._snapshot, self._slots, restarts=within is None)
        packer = Packer(self._snapshot, self._slots, layouts.choices if layouts is not None else as_they_are)
        pairs = dict(within or {})
        if packs:
            before_pairs = {JobId(int(job)): JobId(other) for job, other in memory.get("beside", {}).items()}
            pairs = packer.pack(left, before_pairs)
            memory = {"beside": {str(job): other for job, other in sorted(pairs.items())}} if pairs else {}
        if layouts is not None:
            layouts.lay({job.id: job for job in self._snapshot.jobs}, pairs, packer)
        return self._slots.verdict(memory, why, spreads=self._spreads)

    def _renamed(self) -> dict[JobId, Home]:
        """Homes of the chosen that can leave theirs; those that cannot have their GPUs afterwards."""
        slots = self._slots
        for job, model in sorted(self._chosen.values(), key=lambda entry: by_arrival(entry[0])):
            if not slots.may_leave(job):
                self._seat(job, (model,), {})
        groups: dict[tuple[str, int, int, int], list[HostName]] = {}
        room: dict[HostName, int] = {}
        for host in sorted(self._snapshot.hosts, key=lambda host: host.name):
            if takes_new(host):
                room[host.name] = free = slots.free(host.name)
                groups.setdefault((host.model, free, host.gpus, host.gpu_memory_bytes), []).append(host.name)
        planned: dict[JobId, Home] = {}
        left = [entry for entry in self._chosen.values() if not slots.runs(entry[0])]
        for job, model in sorted(
            left, key=lambda entry: (-entry[0].per_node, -entry[0].gang, by_arrival(entry[0]))
        ):
            able = [
                name
                for name, free in room.items()
                if free >= job.per_node and self._hosts[name].model == model and fits(job, self._hosts[name])
            ]
            if len(able) >= job.nodes:
                planned[job.id] = home = tuple(sorted(able, key=lambda name: (room[name], name))[: job.nodes])
                for name in home:
                    room[name] -= job.per_node
        names: dict[HostName, HostName] = {}
        for (_, free, _, _), servers in groups.items():
            names |= rename(servers, free, planned, self._snapshot)
        return {job: tuple(names[name] for name in home) for job, home in planned.items()}

    def _in_order(self, targets: Mapping[JobId, Home]) -> set[JobId]:
        """As `_hand_out`; but nobody goes without while who was chosen later has GPUs, unless those before it leave it none."""
        before, passes = self._slots.copy(), 0
        ahead: dict[JobId, int] = {}
        seated = self._hand_out(targets, self._chosen)
        while passed := self._passed_over(seated).difference(ahead):
            passes += 1
            first = [job for job in self._chosen if passes > PASSES or job in passed or job in ahead]
            ahead = {job: at for at, job in enumerate(first)}
            self._slots = before.copy()
            seated = self._hand_out(targets, self._chosen, ahead)
        if ahead:
            # Where these fit together by themselves, the largest first, none need leave for who went ahead.
            alone = {job: (self._chosen[job][0], self._lives_on(self._chosen[job][0])) for job in seated}
            kept, self._slots = self._slots, before
            if self._hand_out(targets, alone) != seated:
                self._slots = kept
        return seated

    def _passed_over(self, seated: Collection[JobId]) -> set[JobId]:
        """Who found no GPUs though who was chosen later has some on which it could run."""
        passed, later = set[JobId](), set[str]()
        if len(seated) < len(self._chosen):
            for job, model in reversed(self._chosen.values()):
                if job.id in seated:
                    later.add(self._lives_on(job))
                elif not later.isdisjoint(self._able(job, model)):
                    passed.add(job.id)
        return passed

    def _able(self, job: JobFacts, model: str) -> tuple[str, ...]:
        """Where it comes before who was chosen later: on what it was promised, and if all were served in turn, on all others."""
        return (model, *self.choices(job)) if job.id in self._served else (model,)

    def _comes_first(self, seated: Collection[JobId], others: Collection[JobId]) -> bool:
        """Of those that only one of these has, who was chosen first is in `seated`."""
        return next((job in seated for job in self._chosen if (job in seated) != (job in others)), False)

    def _why_missed(self, job: JobFacts) -> str:
        _, model = self._chosen[job.id]
        servers = (
            "server that can take it has" if job.nodes == 1 else f"{job.nodes} servers that can take it have"
        )
        return f"it was to run, but no {servers} {job.per_node} {model} left beside jobs that come before it"

    def _hand_out(
        self,
        targets: Mapping[JobId, Home],
        chosen: Mapping[JobId, tuple[JobFacts, str]],
        ahead: Mapping[JobId, int] = MappingProxyType({}),
    ) -> set[JobId]:
        """The largest first; of equal ones those that cannot leave, those at home, then by arrival. Who found GPUs.

        `ahead`: before all others, in that order; not only on the model that was promised, if it matters less than the order.
        """
        slots, hosts, running = self._slots, self._hosts, self._snapshot.running
        claims = dict.fromkeys(hosts, 0)  # GPUs that chosen jobs would stay on
        line = []
        for job, model in chosen.values():
            home, gang, per_node = slots.home(job), job.gang, job.per_node
            stays = bool(home) and hosts[home[0]].model == model
            for name in home if stays else ():
                claims[name] += per_node
            moves_on = not (stays and job.id in running)
            place = ahead.get(job.id, len(ahead))
            rank = (place, slots.may_leave(job), -per_node, -gang, moves_on, not stays, job.arrival_s, job.id)
            line.append((rank, job, model, home if stays else ()))
        line.sort(key=itemgetter(0))
        seated = set[JobId]()
        for (_, _, less, *_), job, model, claimed in line:
            for name in claimed:
                claims[name] += less
            found = slots.runs(job) or self._seat(job, (model,), claims, targets.get(job.id, ()))
            if found or (job.id in ahead and self._seat(job, self._able(job, model), claims)):
                seated.add(job.id)
        return seated

    def _seat(
        self, job: JobFacts, models: Sequence[str], claims: Mapping[HostName, int], target: Home = ()
    ) -> bool:
        slots, home = self._slots, self._slots.home(job)
        if target and (target == home or all(self._may_enter(job, self._hosts[name]) for name in target)):
            text = f"its GPUs of this round are on {', '.join(target)}"
            if self._spreads and job.spreads:
                laid = slots.spread(job, target, f"over {_servers(len(target))}: so it is slowed least")
            else:
                laid = slots.take(job, target, text)
            if laid:
                return True
        drained = self._floor.drained and any(not self._hosts[name].accepts for name in home)
        if home and self._hosts[home[0]].model in models and not drained and slots.take(job, home, ""):
            return True
        if self._spreads and job.spreads:
            return any(self._lay(job, model, claims) for model in models)
        for model in models:
            there = self._least_disturbing(job, model, claims)
            if there and slots.take(job, there, f"its GPUs of this round are {model} on {', '.join(there)}"):
                return True
        return drained and bool(models) and slots.take(job, home, "")

    def _may_enter(self, job: JobFacts, host: HostFacts) -> bool:
        return self._slots.may_go(job, host) and host.name not in job.barred

    def _lay(self, job: JobFacts, model: str, claims: Mapping[HostName, int]) -> bool:
        """Over the fewest servers that have room, as long as it bears that."""
        able = self._floor.fitting(replace(job, nodes=job.gang), model)
        over = numbers(job, largest(able))
        for nodes in over:
            bears, why = self._bears(job, model, nodes, over[0])
            there = self._least_disturbing(replace(job, nodes=nodes), model, claims) if bears else ()
            if there and self._slots.spread(job, there, why):
                return True
        return False

    def _bears(self, job: JobFacts, model: str, nodes: int, fewest: int) -> tuple[bool, str]:
        """Who was measured to lose by it is not spread over more servers than it must be (Tiresias, 3.3); and how it runs so."""
        if nodes <= fewest:
            return True, f"over {_servers(nodes)}, as few as can be"
        tight, loose = (measured(self._snapshot, job, model, count) for count in (fewest, nodes))
        text = f"over {_servers(nodes)}: fewer had no room"
        if not (tight and loose):
            return True, f"{text}, and how much slower it is so was not measured"
        text += f", and it does {loose:.3g} steps/s so, {tight:.3g} over {_servers(fewest)}"
        return loose >= BEARABLE * tight, text

    def _least_disturbing(self, job: JobFacts, model: str, claims: Mapping[HostName, int]) -> Home:
        """Servers of the pool where it takes GPUs from the fewest that could stay, then the fullest, those that have its data, then by name; () if none."""
        able = self._floor.fitting(job, model)
        if len(able) < job.nodes or not self._slots.ways(job, (model,)):
            return ()
        per_node, nodes, free, found = job.per_node, job.nodes, self._slots.free, []
        for host in able:
            name = host.name
            left = free(name) - per_node
            if left >= 0:
                claimed = claims.get(name, 0) - left
                found.append((max(0, claimed), left, is_cold(job, host), name))
        if len(found) < nodes:
            return ()
        if nodes == 1:
            return (min(found)[-1],)
        found.sort()
        return tuple([name for _, _, _, name in found[:nodes]])


def _servers(count: int) -> str:
    return "one server" if count == 1 else f"{count} servers"
