"""A job's life from its hosts' reports: it comes up, runs, goes on from its checkpoint, is no more."""

from collections.abc import Mapping
from dataclasses import replace

from hs_core.cluster import checkpoints, copies, reports, states
from hs_core.cluster.anew import Anew
from hs_core.cluster.book import row_with
from hs_core.cluster.contents import Contents
from hs_core.cluster.exits import Exits
from hs_core.cluster.starts import Starts
from hs_core.cluster.states import Happening
from hs_core.cluster.why import exit_text
from hs_core.datasets import after_use
from hs_core.forms import ENOUGH_NOISE, NoiseScale, Shape
from hs_core.model import Dataset, Job, JobState, Stored
from hs_core.names import HostName
from hs_core.reports import CANNOT_START, LOST, TOLD_TO_END, Exit, JobReport, Phase


class Lives:
    def __init__(self, contents: Contents, starts: Starts, anew: Anew, exits: Exits) -> None:
        self._contents = contents
        self._asking = contents.asking
        self._book = contents.book
        self._fact = contents.fact
        self._put = contents.put
        self._rates = contents.rates
        self._unforked = contents.unforked
        self._starts = starts
        self._anew = anew
        self._exits = exits

    def reported(
        self, row: Job, host: HostName, report: JobReport, now_s: float, said_s: float | None = None
    ) -> None:
        """`said_s`: then, by its host's clock."""
        before = row.reports.get(host)
        part = self._merged(row, host, before, report)
        if before is not None and part.gpu_s == before.gpu_s and part == before:  # most have received more
            return
        if reports.has_process(part):
            self._contents.restless.update(self._contents.backup.begun(row))
        if before is not None and _only_counts(row, before, part):
            self._take_counters(row, host, before, part, now_s)
            return
        at_s = now_s
        if before is None or before.phase is not part.phase:
            at_s = reports.happened_s(part, said_s, now_s, least_s=row.known_until_s)
        said = {**row.reports, host: part}
        whole = row.report_of(said)
        assert whole is not None
        new = _with_noise(_come_to(row, said, whole, at_s), part)
        self._watch_weight(row.report, whole)
        if reports.fell_back(before, part):
            new = self._fell_back(new, row, part, now_s)
        self._tell_state(row, new, now_s)
        self._charge(new, now_s)
        self._watch_starts(row, host, before, part, now_s)
        if row.portions:
            self._watch_copy(row, host, before, part, now_s)
        if host == row.host or row.portions:
            self._rate_reported(new, host, before, part, now_s)
        self._watch_steps(row, new.step, host, before, part)
        settled = self._arrived(row, self._settled(new, now_s), now_s)
        alike = settled is new and new.state is row.state
        alike = alike and before is not None and _shown(before) == _shown(part)
        self._put(settled, now_s, counters=alike, at_s=at_s)
        if whole.exit is not None:
            self._exits.exited(new, whole.exit, now_s, at_s)
        elif part.exit is not None and not part.exit.ok and not reports.broken(row):
            self._part_ended(row, host, part.exit, now_s)

    def _merged(self, row: Job, host: HostName, before: JobReport | None, report: JobReport) -> JobReport:
        """What is known of its part there by now; the first word of an end says whose fault that was."""
        part = reports.merge(before, report, self._book.gpus.get(host, frozenset()))
        if before is not None and before.exit is not None:
            return part
        return reports.followed(part) if reports.broken(row) else self.blamed(row, host, part)

    def _watch_weight(self, before: JobReport | None, whole: JobReport) -> None:
        """A policy may decide otherwise by what is new."""
        if before is None or not _weighs_alike(before, whole):
            self._asking.stale = self._asking.stale or whole.exit is None or self._contents.policy.needs.ends

    def _charge(self, row: Job, now_s: float) -> None:
        account = self._contents.account(now_s)
        for model, gpu_s in row.now_gpu_s_by_model.items():
            account.report(row.id, row.epoch, row.user, model, gpu_s=gpu_s, now_s=now_s)

    def _arrived(self, row: Job, settled: Job, now_s: float) -> Job:
        """Only once it has fetched its checkpoint it can begin there: who called it back before would do so again and again."""
        if not checkpoints.is_fetching(row) or checkpoints.is_fetching(settled):
            return settled
        self._asking.stale = True
        return replace(settled, settled_s=now_s)

    def _part_ended(self, row: Job, host: HostName, ended: Exit, now_s: float) -> None:
        """And not well: of a gang nothing goes on without it."""
        self._asking.stale = True
        others = "the others go on" if row.portions else "the other parts are ended as well"
        why = exit_text(ended).removeprefix(f"{LOST}: ")
        if ended.why == TOLD_TO_END and not row.cancelled_by:  # as its server is to be empty by now
            why = "told to end"
        text = f"its {'copy' if row.portions else 'part'} on {host} ended ({why}): {others}"
        self._fact(now_s, "part-ended", text, job=row.id)

    def _take_counters(
        self, row: Job, host: HostName, before: JobReport, part: JobReport, now_s: float
    ) -> None:
        """Nearly every report: it did, and received, more."""
        new = row_with(row, reports={host: part})
        self._contents.account(now_s).report(
            row.id, row.epoch, row.user, row.gpu_models[0], gpu_s=part.gpu_s, now_s=now_s
        )
        self._rate_reported(new, host, before, part, now_s)
        self._watch_steps(row, new.step, host, before, part)
        self._contents.put_counted(new)

    def _watch_steps(
        self, row: Job, step: int, host: HostName, before: JobReport | None, part: JobReport
    ) -> None:
        """It is at `step` by now: a profiling run may be over by that, and data have been read."""
        self._contents.abroad.says(row.id, part)
        trial = self._contents.said.trials.get(row.id)
        if trial is not None and row.step < trial.until_step <= step:
            self._asking.stale = True
        if row.spec.dataset and reports.begins_to_train(before, part):
            self._data_read(row, host)

    def _watch_starts(
        self, row: Job, host: HostName, before: JobReport | None, part: JobReport, now_s: float
    ) -> None:
        """What it says of its server: one that cannot start it can, most likely, start no other; without an account, none of its user."""
        if part.start_fails > (before.start_fails if before is not None else 0):
            why = (part.exit.why if part.exit is not None else part.note).rpartition(f"{CANNOT_START}: ")[2]
            self._starts.cannot_start(row, host, why, now_s)
        elif reports.came_up(before, part):
            self._contents.unable.for_memory.forget(row.id)
            self._starts.started(row.user, host, now_s)
        if (
            reports.began_afresh(before, part)
            and not row.portions
            and row.stored is not None
            and row.stored.step > 0
        ):
            known = f"its checkpoint of step {row.stored.step} {row.stored.where}"
            self._fact(
                now_s, "afresh", f"it began afresh on {host}, which knows nothing of {known}", job=row.id
            )

    def _watch_copy(
        self, row: Job, host: HostName, before: JobReport | None, part: JobReport, now_s: float
    ) -> None:
        at = row.id, host
        if part.exit is not None and (before is None or before.exit is None):
            if copies.fails_at_start(row, part) and at not in self._unforked:
                self._starts.copy_failed(row, host, exit_text(part.exit), now_s)
        elif part.step > row.base_step and self._unforked.tried(at):
            self._unforked.forget(at)

    def blamed(self, row: Job, host: HostName, part: JobReport) -> JobReport:
        """Ranks fail where they cannot reach those on another server any more: while one is away, that is not the job's fault. One of which a new controller has not heard yet may be there."""
        ended = part.exit
        if ended is None or ended.ok or ended.why or row.portions:
            return part
        here = self._contents.connected | self._contents.absent.unknown
        away = [name for name in row.hosts if name != host and name not in here]
        if not away:
            return part
        were = "were" if len(away) > 1 else "was"
        why = f"{LOST}: {exit_text(ended)} on {host} while {', '.join(away)} {were} away"
        return replace(part, exit=replace(ended, why=why))

    def _data_read(self, row: Job, name: HostName) -> None:
        host = self._book.hosts[name]
        data = Dataset(name=row.spec.dataset, bytes=row.spec.dataset_bytes)
        datasets = after_use(host.datasets, data, self._contents.settings.dataset_cache_bytes)
        if datasets != host.datasets:
            self._book.put_host(replace(host, datasets=datasets))
            self._contents.event.hosts.add(name)

    def _rate_reported(
        self, row: Job, host: HostName, old: JobReport | None, new: JobReport, now_s: float
    ) -> None:
        turn_s = self._rates.turn_s(old, new, host if row.portions else "")
        if turn_s is None:
            return
        job_class = self._contents.classes.of(row)
        live = self._book.live
        beside = {self._contents.classes.of(live[job]) for job in new.beside if job in live}
        split = row.accumulation > 1
        elastic = row.spec.elastic
        declared = elastic.on(row.spec.gang, row.spec.nodes) if elastic is not None else None
        # A strategy's rates are of another class.
        shape = row.shape if isinstance(row.shape, Shape) and row.shape != declared else None
        known = self._rates.count
        models = (row.gpu_models[row.hosts.index(host)],) if row.portions else row.gpu_models
        whole = row.report if len(row.hosts) > 1 and not row.portions else new
        gpus = whole.gpus if whole is not None and len(whole.gpus) == row.gang else ()
        if self._rates.measured(
            job_class,
            models,
            new.steps_per_s,
            turn_s,
            now_s,
            beside=beside,
            split=split,
            shape=shape,
            declared=declared,
            gpus=gpus,
        ):
            self._contents.event.profile = True
            self._asking.stale |= self._rates.count != known  # there is something new to decide by

    def _settled(self, row: Job, now_s: float) -> Job:
        """Once it stands where its checkpoint ended: from now on what its servers have is its newest."""
        stored = row.stored
        if stored is not None and (row.portions or stored.copies) and not row.state.ended:
            if not copies.arrived(row, stored):
                return row
            self._tell_arrival(row, stored, now_s)
            return replace(row, stored=None)
        if stored is None or row.state.ended or not checkpoints.went_on_from(row, stored):
            return row
        if stored.is_unknown and checkpoints.found_nothing(row):
            self._fact(now_s, "afresh", f"it began afresh on {', '.join(row.hosts)}", job=row.id)
        elif not stored.is_at(row.hosts) or stored.surpassed or row.id in self._contents.flights:
            self._tell_arrival(row, stored, now_s)
        elif row.report is not None and row.report.checkpoint_generation < 0:
            return row  # they have the files, though they have not said so
        self._contents.abroad.arrives(row, stored, self._from_step(row, stored))
        fetched = Stored(hosts=row.hosts, epoch=stored.epoch, generation=stored.generation, step=stored.step)
        said = row.report is not None and row.report.checkpoint_generation >= 0
        if not said:
            return replace(row, stored=None if stored.is_unknown else fetched)
        apart = not stored.is_at(row.hosts) or stored.also  # a part of it is not only where its node lives
        known = apart and not (stored.in_folder or stored.surpassed)
        return replace(row, stored=None, origin=stored if known else None)

    def _fell_back(self, new: Job, old: Job, part: JobReport, now_s: float) -> Job:
        """The checkpoint that it was to begin from is torn or gone: its processes found it so, or its server, which has fetched the one before that.
        A gang's processes all begin from the same one: the first part's word is enough.
        """
        told = any(said.fallbacks >= part.fallbacks for said in old.reports.values())
        if told or new.portions or (new.stored is not None and new.stored.copies):
            return new
        had, fetched = old.stored, part.began_step < 0 <= part.checkpoint_generation
        step = max(0, part.checkpoint_step if fetched else part.began_step)
        lost_s = (
            checkpoints.lost_work_gpu_s(new, step) if had is not None else 0.0
        )  # else its host has counted it
        text = f"its newest checkpoint cannot be used: {part.fallback_why or 'it does not say why'}; it goes on from step {step}"
        self._fact(now_s, "fell-back", text, job=new.id, data={"lost_gpu_s": round(lost_s, 3), "step": step})
        stored = None  # what its servers have
        if had is not None and fetched:  # until a process has taken it up it is also kept where it was
            stored = replace(had, generation=part.checkpoint_generation, step=step)
        return replace(new, stored=stored, origin=None, past_lost_gpu_s=new.past_lost_gpu_s + lost_s)

    def _from_step(self, row: Job, stored: Stored) -> int:
        """Where its process began; of what is looked for a newer one may have been found, of which it says nothing before it has taken it up."""
        report = row.report
        if report is None or not (stored.in_folder or stored.surpassed):
            return stored.step
        return max(stored.step, report.began_step if report.began_step >= 0 else report.checkpoint_step)

    def _tell_arrival(self, row: Job, stored: Stored, now_s: float) -> None:
        step, from_step, generation = row.step, self._from_step(row, stored), stored.generation
        report = row.report
        if report is not None and (stored.in_folder or stored.surpassed):
            generation = max(generation, report.checkpoint_generation)
        flight = self._contents.flights.pop(row.id, None)
        since_s = row.settled_s if flight is None else flight[1]
        data: dict[str, str | int | float] = {
            "from": ",".join(stored.servers),
            "to": ",".join(row.hosts),
            "step": from_step,
            "generation": generation,
            "start_s": round(max(0.0, now_s - since_s), 3),
        }
        if flight is None:
            text = f"it goes on from step {from_step} on {', '.join(row.hosts)}, at step {step}"
            self._fact(now_s, "restored", text, job=row.id, data=data)
            return
        move, left_s = flight
        total_s = max(0.0, now_s - move.since_s)
        took = f"in {total_s:.1f} s, at step {step}"
        data |= {
            "reason": str(move.reason),
            "checkpoint_s": round(max(0.0, left_s - move.since_s), 3),
            "total_s": round(total_s, 3),
        }
        # Also where it has all been fetched by now, and those it is from are lost.
        here = stored.hosts == row.hosts
        reshaped = here or (len(stored.hosts) != len(row.hosts) and not stored.copies)
        if reshaped and row.shape is not None:
            there = "" if here else f" ({', '.join(row.hosts)})"
            self._fact(
                now_s, "reshaped", f"it goes on with {row.shape}{there}, {took}", job=row.id, data=data
            )
            return
        whence = "" if here or stored.in_folder else f" from {', '.join(stored.servers)}"
        text = f"it moved{whence} to {', '.join(row.hosts)} {took}"
        self._fact(now_s, "migrated", text, job=row.id, data=data)

    def _tell_state(self, old: Job, new: Job, now_s: float) -> None:
        if old.state is new.state or new.state not in _STATE_FACTS or new.report is None:
            return
        if new.report.phase is Phase.WAITING:
            return  # never launched: nothing was suspended
        kind, text = _STATE_FACTS[new.state]
        if new.state is JobState.SUSPENDED and new.first_run_s is None:
            kind, text = "ready", "it is up and waits for its first turn"
        text += f" on {', '.join(new.hosts)} at step {new.step}"
        self._fact(now_s, kind, text, job=new.id, data={"epoch": new.epoch})

    def lost_at(self, row: Job, host: HostName, why: str, now_s: float, *, forgot: bool = False) -> None:
        """What of it was on this host is dead. A gang ends as a whole: it is queued again when its other parts are gone. `forgot`: the host knows nothing of it."""
        if len(row.hosts) == 1:
            self._anew.lost(row, why, now_s, forgot=forgot)
            return
        before = row.reports.get(host) or JobReport(job=row.id, epoch=row.epoch, phase=Phase.WAITING)
        if before.exit is None:
            gone = Exit(why=f"{LOST}: {why}")
            self.reported(row, host, replace(before, phase=Phase.EXITED, gpus=(), exit=gone), now_s)
        elif row is not self._book.live.get(row.id):
            # It had ended there, and what it has left is known otherwise now.
            self._put(row, now_s)


_STATE_FACTS = {
    JobState.STARTING: ("starting", "its process is coming up"),
    JobState.RUNNING: ("running", "it runs"),
    JobState.SUSPENDED: ("suspended", "it is suspended"),
}


def _only_counts(row: Job, before: JobReport, part: JobReport) -> bool:
    """Of a job that stands as it stood, on one server, nothing is new but what its counters say: then nothing of its row is, nor what is told of it."""
    if len(row.hosts) != 1 or row.portions or row.stored is not None or row.spec.elastic is not None:
        return False
    if row.first_run_s is None or part.checkpoint_bytes not in (0, row.state_bytes):
        return False
    happening = states.comes_to(part)
    return (
        reports.stands_alike(before, part)
        and (happening is None or states.after(row, happening) is row.state)
        and part.exit is None
    )


def _shown(report: JobReport) -> tuple[object, ...]:
    """What of a part's report policies see, but for its counters."""
    memory_bytes, over, held_up = (
        report.device_memory_bytes,
        report.exit is not None,
        reports.is_held_up(report),
    )
    can = report.can_checkpoint, report.single
    sizes = memory_bytes, report.checkpoint_bytes
    return report.phase, *can, report.sliceable, *sizes, over, held_up, report.gpus


def _come_to(row: Job, said: Mapping[HostName, JobReport], whole: JobReport, at_s: float) -> Job:
    """Where it is by what its servers say by now, which as one is `whole`: it came to that `at_s`."""
    happening = states.comes_to(whole)
    state = states.after(row, happening) if happening else row.state
    first_run_s = row.first_run_s
    if first_run_s is None:
        first_run_s = _began_s(whole, happening, at_s, row.arrival_s)
    state_bytes = whole.checkpoint_bytes or row.state_bytes
    return row_with(row, reports=said, state=state, first_run_s=first_run_s, state_bytes=state_bytes)


def _with_noise(row: Job, part: JobReport) -> Job:
    """An elastic job's, once it is known well enough."""
    if row.spec.elastic is None or part.noise_samples < ENOUGH_NOISE:
        return row
    return row_with(row, noise=NoiseScale(examples=part.noise_scale, samples=part.noise_samples))


def _began_s(whole: JobReport, happening: Happening | None, now_s: float, least_s: float) -> float | None:
    """When it ran for the first time: now, or, of one that ends before anybody has heard that it runs, as long ago as it ran."""
    if happening is Happening.RAN:
        return now_s
    return max(least_s, now_s - whole.run_s) if whole.exit is not None and whole.run_s > 0 else None


def _weighs_alike(old: JobReport, new: JobReport) -> bool:
    """A policy would not decide differently for what is new."""
    if old.sliceable != new.sliceable or reports.is_held_up(old) != reports.is_held_up(new):
        return False
    if old.phase is new.phase and old.can_checkpoint == new.can_checkpoint:
        return True
    started = reports.has_process(old) == reports.has_process(new)
    return started and reports.can_leave(old) == reports.can_leave(new)
