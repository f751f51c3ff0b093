"""When the policy is asked, about what, and what becomes of its verdict."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from hs_core.cluster import admission, checkpoints, reports, states
from hs_core.cluster.book import row_with
from hs_core.cluster.cadence import Cadence
from hs_core.cluster.contents import Contents
from hs_core.cluster.last_said import LOCAL
from hs_core.cluster.moves import Moves
from hs_core.cluster.standing import still
from hs_core.cluster.states import Happening
from hs_core.cluster.trade_facts import trade_fact
from hs_core.errors import Kind, RefusedError
from hs_core.events.cluster import PolicyAnswered
from hs_core.failures import Failure
from hs_core.forms import Form
from hs_core.model import Job, MoveReason
from hs_core.names import HostName, JobId, UserName
from hs_core.policy import JobFacts, Plan, Snapshot, Trial, Verdict
from hs_core.question import Question


class Decisions:
    def __init__(self, contents: Contents, moves: Moves, cadence: Cadence) -> None:
        self._contents = contents
        self._asking = contents.asking
        self._backup = contents.backup
        self._book = contents.book
        self._doomed = contents.doomed
        self._edges = contents.edges
        self._fact = contents.fact
        self._put = contents.put
        self._rates = contents.rates
        self._restless = contents.restless
        self._said = contents.said
        self._settings = contents.settings
        self._sight = contents.sight
        self._untold = contents.untold
        self._moves = moves
        self._cadence = cadence

    def _snapshot(self, now_s: float) -> Snapshot:
        """What is planned is the quantum after the one that is now."""
        jobs = self._sight.jobs(self._doomed(now_s))
        if stays := self._coming_up(self._sight.shown(self._doomed(now_s))):
            jobs = tuple([stays.get(job.id, job) for job in jobs])
        return Snapshot(
            now_s=now_s,
            quantum_s=self._settings.quantum_s,
            quantum=self._edges.quantum + 1,
            hosts=self._contents.servers_shown.all(),
            jobs=jobs,
            tickets=self._sight.tickets(),
            rates=dict(self._rates.known),
            rates_within=dict(self._rates.within),
            interference=dict(self._rates.interference),
            slowdowns=self._contents.slowdowns.table(
                self._sight.classes(), self._book.hosts_sorted(), self._book.hosts_version
            )
            if self._contents.policy.needs.by_gpu
            else {},
            speeds={key: dict(known) for key, known in self._rates.speeds.items()},
            running=self._sight.running(),
            migrations_left=self._contents.budget.left(now_s),
            seed=self._settings.seed,
            profiling=self._settings.profiling,
        )

    def _coming_up(self, shown: Mapping[JobId, JobFacts]) -> dict[JobId, JobFacts]:
        """Who has its turn in the quantum that is now, and does not run yet, stays for it, where turns come one ahead: given another home at each edge it would never run."""
        if self._edges.at_s is None:
            return {}
        hosts, turns, spanned = self._book.hosts, self._said.turns, self._book.spanned
        running = self._sight.running()
        found: dict[JobId, JobFacts] = {}
        for name, parts in spanned.items():
            for job in turns.get(name, LOCAL).gangs if parts > 0 else ():
                facts = shown.get(job)
                if facts is None or job in running or facts.held_up or not facts.movable:
                    continue
                there = all(
                    job in turns.get(home, LOCAL).gangs
                    and hosts[home].schedulable
                    and facts.per_node <= len(hosts[home].healthy_gpus)
                    for home in facts.hosts
                )
                if there and name in facts.hosts and not self._book.live[job].portions:
                    found[job] = replace(facts, movable=False)
        return found

    def what_if(self, tickets: Mapping[UserName, float], now_s: float) -> Question | None:
        """What to ask the policy to learn what it would entitle to with the jobs of now, had these users so many tickets; None: there are no jobs.

        Changes nothing. Raises RefusedError where one is not known, or its tickets are not a number that is allowed.
        """
        for name, count in tickets.items():
            admission.check_user(name, count, None, self._settings.limits)
            if name not in self._book.users:
                raise RefusedError(f"tickets: there is no user {name!r}", Kind.NOT_FOUND)
        snapshot = self._snapshot(now_s)
        asked = {name: Fraction(str(tickets.get(name, has))) for name, has in snapshot.tickets.items()}
        if not snapshot.jobs:
            return None
        return Question(
            policy=self._contents.policy,
            snapshot=replace(snapshot, tickets=asked),
            memory=self._contents.memory,
        )

    def decide(self, now_s: float) -> None:
        self._asking.begins(now_s)
        snapshot = self._snapshot(now_s)
        if not snapshot.jobs and not self._said.trades:
            # Nobody to decide about, and no trade to take back: the policy keeps its memory until there is.
            self._edges.keep(now_s, needed=False)
            self._said.forget()
            self._restless |= self._contents.connected
            return
        question = Question(policy=self._contents.policy, snapshot=snapshot, memory=self._contents.memory)
        if self._settings.decides_apart:
            self._asking.question = self._contents.event.question = question
        elif self._settings.outlives_policy:
            self._answered(question, question.answer(), now_s)
        else:
            self._answered(question, question.verdict(), now_s)

    def policy_answered(self, event: PolicyAnswered) -> None:
        if event.question is not self._asking.question:
            return  # it was given up, or another mind asked
        self._asking.question = None
        self._asking.took_s = max(0.0, event.now_s - event.question.snapshot.now_s)
        self._answered(event.question, event.answer, event.now_s)

    def _answered(self, question: Question, answer: Verdict | Failure, now_s: float) -> None:
        if isinstance(answer, Failure):
            # What it said before stands.
            self._fails(answer, now_s)
            self._edges.keep(now_s, needed=True)  # it is asked again at each
            return
        if self._said.failure is not None:
            self._said.failure = None
            text = f"the policy {self._contents.policy.name} decides again"
            self._fact(now_s, "policy-recovered", text, deed=True)
        snapshot, verdict = question.snapshot, answer
        if verdict.memory != self._contents.memory:
            self._contents.memory = verdict.memory
            self._contents.event.meta = True
        decided = verdict.plan
        if self._settings.decides_apart:
            shown = self._sight.shown(self._doomed(now_s))
            shown = {**shown, **self._coming_up(shown)}
            decided, again = still(decided, snapshot, self._contents.servers_shown.all(), shown)
            self._asking.stale = self._asking.stale or again
        self._settle_homes(snapshot, decided, now_s)
        self._settle_accumulation(decided, now_s)
        self._take_up(verdict, decided, now_s)
        self._edges.keep(now_s, needed=self._contents.policy.needs.every_quantum or bool(self._book.spanning))
        if self._edges.at_s is None:
            self._restless.update(self._cadence.told_of_edges())  # there are none any more

    def _fails(self, failure: Failure, now_s: float) -> None:
        known, self._said.failure = self._said.failure, failure
        if known is None or known.place != failure.place:
            text = (
                f"the policy {self._contents.policy.name} failed: {failure.text}; what it said last stands, and who has no home waits. "
                "`hsctl policy set` puts another one in office"
            )
            self._fact(now_s, "policy-failed", text, deed=True)

    def _settle_homes(self, snapshot: Snapshot, decided: Plan, now_s: float) -> None:
        homes = decided.homes
        forked = self._book.forked | decided.copies.keys()
        alike = not forked and not decided.shapes
        for facts in snapshot.jobs:
            home = homes.get(facts.id)
            if alike and home is facts.hosts:
                continue  # as nearly all
            shape = decided.shapes.get(facts.id, facts.shape)
            same = home == facts.hosts and shape == facts.shape
            if home is None or (same and facts.id not in forked):
                continue
            row = self._book.live[facts.id]
            weights = decided.copies.get(facts.id, ())
            if same and not (weights or (row.portions and len(home) == 1)):
                continue  # it goes on with what it has
            if not facts.hosts and row.hosts:
                self._bring_away(row, home, shape, now_s)
            elif not facts.hosts:
                self._place(row, home, shape, now_s)
            elif not facts.started:
                self._moves.rehome(row, home, shape, now_s, weights)
            elif row.move is None and (facts.movable or not same):
                why = decided.moves.get(facts.id, (MoveReason.ROUND, "its copies are averaged"))
                self._moves.begin(row, home, shape, why, now_s, portions=weights, free=same)

    def _bring_away(self, row: Job, home: tuple[HostName, ...], shape: Form | None, now_s: float) -> None:
        """From where it cannot be started. The checkpoint of one that had a process is fetched from there."""
        if reports.has_process(row.report):
            text = f"{', '.join(row.hosts)} cannot start it"
            self._moves.begin(row, home, shape, (MoveReason.TROUBLE, text), now_s, free=True)
        else:
            self._moves.rehome(row, home, shape, now_s)

    def _settle_accumulation(self, decided: Plan, now_s: float) -> None:
        for job, accumulation in decided.accumulation.items():
            row = self._book.live[job]
            if row.accumulation != accumulation:
                self._put(replace(row, accumulation=accumulation), now_s)
                self._restless.update(row.hosts)

    def _place(self, row: Job, home: tuple[HostName, ...], shape: Form | None, now_s: float) -> None:
        if self._contents.reach.out_of_reach(row):
            row = self._without_its_servers(row, now_s)
        if row.stored is not None:
            row = replace(row, stored=checkpoints.at_hand(row.stored, self._contents.connected))
        state = states.after(row, Happening.PLACED)
        models = self._contents.models_of(home)
        new = row_with(row, hosts=home, gpu_models=models, shape=shape, state=state, settled_s=now_s)
        self._put(new, now_s)
        text = f"it lives on {', '.join(home)} ({new.gpu_model})" + (f" with {shape}" if shape else "")
        stored = row.stored
        if stored is not None and stored.is_unknown:
            text += ", and goes on from a checkpoint if one is in the folder that its user named"
        elif stored is not None and stored.hosts != home:
            text += f" and goes on from its checkpoint of step {stored.step} {stored.where}"
        self._fact(now_s, "placed", text, job=row.id, host=home[0], data={"epoch": new.epoch})

    def _without_its_servers(self, row: Job, now_s: float) -> Job:
        """There is a place for it, and who has its checkpoint is still cut off."""
        stored, epoch = row.stored, self._backup.epoch_after(row)
        assert stored is not None
        text = f"its checkpoint of step {stored.step} {stored.where} is out of reach"
        if (sought := checkpoints.sought(row, stored)) is not None:
            text += f"; it is looked for in {row.spec.checkpoint_dir}"
            self._fact(now_s, "source-away", text, job=row.id)
            return replace(row, epoch=epoch, stored=sought, origin=None)
        lost_s = checkpoints.lost_work_gpu_s(row, 0)
        data: dict[str, str | int | float] = {"lost_gpu_s": round(lost_s, 3)}
        self._fact(now_s, "lost", f"{text}; it starts afresh", job=row.id, data=data)
        lost_s += row.past_lost_gpu_s
        return replace(row, epoch=epoch, stored=None, origin=None, past_lost_gpu_s=lost_s)

    def _take_up(self, verdict: Verdict, decided: Plan, now_s: float) -> None:
        heavier: set[HostName] = set()
        weights: dict[int, float] = {}  # by identity: many jobs share a few fractions
        before = self._said.tickets
        for job, tickets in decided.tickets.items():
            if before.get(job) is tickets:
                continue
            weight = weights.get(id(tickets))
            if weight is None:
                weight = weights[id(tickets)] = float(tickets)
            if self._contents.tickets.get(job) != weight:
                self._contents.tickets[job] = weight
                heavier.update(self._book.live[job].hosts)
        for name in heavier - self._restless - self._untold:
            (self._restless if self._is_crowded(name) else self._untold).add(name)
        old, new = self._said.planned_turns, decided.turns
        if old is not new:
            self._restless.update(
                name for name in {*old, *new} if old.get(name, LOCAL) != new.get(name, LOCAL)
            )
        self._said.planned_turns = new
        self._restless |= self._said.in_step ^ decided.in_step
        self._said.in_step = decided.in_step
        self._said.tickets = decided.tickets
        self._said.why, self._said.waits = verdict.why, verdict.waits
        self._said.within_a_round = verdict.within_a_round
        if not verdict.within_a_round:
            self._said.waits_in_round = verdict.waits
        self._said.ahead, self._said.quantum = verdict.ahead, self._edges.quantum
        self._said.how = verdict.how
        self._tell_trials(decided.trials, now_s)
        self._said.entitled = verdict.entitled
        self._said.base = verdict.base
        self._said.trades = verdict.trades
        self._contents.event.facts += [trade_fact(news, now_s) for news in verdict.news]

    def _tell_trials(self, trials: Mapping[JobId, Trial], now_s: float) -> None:
        before, self._said.trials = self._said.trials, trials
        for job, trial in before.items():
            row = self._book.live.get(job)
            if row is not None and trials.get(job) != trial:
                rate = self._rates.known.get((self._contents.classes.of(row), trial.model))
                found = f"{rate:.3g} a second" if rate is not None else "no rate was found"
                data: dict[str, str | int | float] = {"model": trial.model, "rate": rate or 0.0}
                self._fact(now_s, "profiled", f"it was {trial.text(row.step)}, {found}", job=job, data=data)
        for job, trial in trials.items():
            if before.get(job) != trial:
                text = f"it runs to be profiled on {trial.model}, for {trial.batches} mini-batches"
                self._fact(now_s, "profiling", text, job=job, data={"model": trial.model})

    def _is_crowded(self, name: HostName) -> bool:
        """Its jobs take turns. Where all of them run at once tickets change nothing, and with many users they change all the time."""
        there = self._book.at_host.get(name, ())
        if len(there) < 2:
            return False  # what lives there fits
        return sum(self._book.live[job].gpus for job in there) > len(self._book.hosts[name].healthy_gpus)
