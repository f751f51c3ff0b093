"""A job's life from its hosts' reports: it runs, ends, is lost, begins anew."""

from collections.abc import Collection
from dataclasses import replace

from hs_core.cluster import admission, copies, reports, states
from hs_core.cluster.book import row_with
from hs_core.cluster.given_up import as_lost
from hs_core.cluster.states import Happening
from hs_core.cluster.views import Views
from hs_core.cluster.why import exit_text
from hs_core.datasets import after_use
from hs_core.forms import ENOUGH_NOISE, NoiseScale, Shape, Spread
from hs_core.model import After, Dataset, Host, Job, JobState, OnPartition, Stored
from hs_core.names import HostName, JobId, UserName
from hs_core.reports import (
    CANNOT_FETCH,
    CANNOT_START,
    FINAL,
    LOST,
    NO_ACCOUNT,
    TIME_LIMIT,
    TOLD_TO_END,
    Exit,
    JobReport,
    Phase,
)


class Lives(Views):
    def _job_reported(self, row: Job, host: HostName, report: JobReport, now_s: float) -> None:
        before = row.reports.get(host)
        part = reports.merge(before, report, self._book.gpus.get(host, frozenset()))
        if before is None or before.exit is None:
            part = reports.followed(part) if reports.broken(row) else self._blamed(row, host, part)
        if before is not None and part.gpu_s == before.gpu_s and part == before:  # most have received more
            return
        if reports.has_process(part):
            self._restless.update(self._backup.begun(row))
        whole_before = row.report
        said = {**row.reports, host: part}
        whole = row.report_of(said)
        assert whole is not None
        happening = states.comes_to(whole)
        state = states.after(row, happening) if happening else row.state
        first_run_s = _began_s(whole, happening, now_s) if row.first_run_s is None else row.first_run_s
        state_bytes = whole.checkpoint_bytes or row.state_bytes
        new = row_with(row, reports=said, state=state, first_run_s=first_run_s, state_bytes=state_bytes)
        if row.spec.elastic is not None and part.noise_samples >= ENOUGH_NOISE:
            new = replace(new, noise=NoiseScale(examples=part.noise_scale, samples=part.noise_samples))
        if whole_before is None or not _weighs_alike(whole_before, whole):
            self._asking.stale = self._asking.stale or whole.exit is None or self.policy.needs.ends
        if reports.fell_back(before, part):
            new = self._fell_back(new, row, part, now_s)
        self._tell_state(row, new, now_s)
        account = self._account(now_s)
        for model, gpu_s in new.now_gpu_s_by_model.items():
            account.report(row.id, row.epoch, row.user, model, gpu_s=gpu_s, now_s=now_s)
        self._watch_starts(row, host, before, part, now_s)
        if host == row.host or row.portions:
            self._rate_reported(new, host, before, part, now_s)
        trial = self._said.trials.get(row.id)
        if trial is not None and row.step < trial.until_step <= new.step:
            self._asking.stale = True
        if row.spec.dataset and reports.begins_to_train(before, part):
            self._data_read(row, host)
        settled = self._settled(new, now_s)
        if reports.is_fetching(row) and not reports.is_fetching(settled):
            # Only now can it begin there: who called it back before would do so again and again.
            settled = replace(settled, settled_s=now_s)
            self._asking.stale = True
        alike = (
            settled is new and state is row.state and before is not None and _shown(before) == _shown(part)
        )
        self._put(settled, now_s, counters=alike)
        if whole.exit is not None:
            self._exited(new, whole.exit, now_s)
        elif part.exit is not None and not part.exit.ok and not reports.broken(row):
            self._asking.stale = True
            others = "the others go on" if row.portions else "the other parts are ended as well"
            why = exit_text(part.exit).removeprefix(f"{LOST}: ")
            if part.exit.why == TOLD_TO_END and not row.cancelled_by:  # as its server is to be empty by now
                why = "told to end"
            text = f"its {'copy' if row.portions else 'part'} on {host} ended ({why}): {others}"
            self._fact(now_s, "part-ended", text, job=row.id)

    def _watch_starts(
        self, row: Job, host: HostName, before: JobReport | None, part: JobReport, now_s: float
    ) -> None:
        """What it says of its server: one that cannot start it can, most likely, start no other; without an account, none of its user."""
        if part.start_fails > (before.start_fails if before is not None else 0):
            why = (part.exit.why if part.exit is not None else part.note).rpartition(f"{CANNOT_START}: ")[2]
            self._cannot_start(row, host, why, now_s)
        elif reports.came_up(before, part):
            self._starts(row.user, host, now_s)
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

    def _cannot_start(self, row: Job, host: HostName, why: str, now_s: float) -> None:
        quantum_s = self.settings.quantum_s
        if NO_ACCOUNT in why:
            key = row.user, host
            if key in self._unable.of_one:
                return
            self._unable.of_one.stays(key, now_s, quantum_s, why)
            until_s, whose = self._unable.of_one.until_s(key), f"no jobs of {row.user}"
            self._look_at_jobs_of(row.user)
        else:
            if host in self._unable.of_all:
                return
            self._unable.of_all.stays(host, now_s, quantum_s, why)
            until_s, whose = self._unable.of_all.until_s(host), "no jobs"
        self._book.touch(host)
        self._asking.stale = True
        text = f"{host} cannot start job {row.id}: {why}; for {until_s - now_s:g} s it is given {whose}"
        self._fact(now_s, "cannot-start", text, host=host)

    def _starts(self, user: UserName, host: HostName, now_s: float) -> None:
        if self._unable.of_all.tried(host):
            self._unable.of_all.forget(host)
            self._book.touch(host)
            self._asking.stale = True
            self._fact(now_s, "starts-again", f"{host} starts jobs again", host=host)
        if self._unable.of_one.tried((user, host)):
            self._unbar(user=user, host=host)
            self._fact(now_s, "starts-again", f"{host} starts jobs of {user} again", host=host)

    def _look_at_jobs_of(self, user: UserName) -> None:
        self._book.changed |= self._book.of_user.get(user, set())

    def _unbar(self, *, user: UserName | None = None, host: HostName | None = None) -> None:
        """What was the matter with accounts is over, most likely."""
        for key in self._unable.of_one.all_tried():
            if user in {None, key[0]} and host in {None, key[1]}:
                self._unable.of_one.forget(key)
                self._look_at_jobs_of(key[0])
                self._asking.stale = True

    def _blamed(self, row: Job, host: HostName, part: JobReport) -> JobReport:
        """Ranks fail where they cannot reach those on another server any more: while one is away, that is not the job's fault. One of which a new controller has not heard yet may be there."""
        ended = part.exit
        if ended is None or ended.ok or ended.why or row.portions:
            return part
        here = self._connected | self._absent.unknown
        away = [name for name in row.hosts if name != host and name not in here]
        if not away:
            return part
        were = "were" if len(away) > 1 else "was"
        why = f"{LOST}: {exit_text(ended)} on {host} while {', '.join(away)} {were} away"
        return replace(part, exit=replace(ended, why=why))

    def _data_read(self, row: Job, name: HostName) -> None:
        host = self._book.hosts[name]
        data = Dataset(name=row.spec.dataset, bytes=row.spec.dataset_bytes)
        datasets = after_use(host.datasets, data, self.settings.dataset_cache_bytes)
        if datasets != host.datasets:
            self._book.put_host(replace(host, datasets=datasets))
            self._event.hosts.add(name)

    def _rate_reported(
        self, row: Job, host: HostName, old: JobReport | None, new: JobReport, now_s: float
    ) -> None:
        turn_s = self._rates.turn_s(old, new, host if row.portions else "")
        if turn_s is None:
            return
        job_class = self._sight.class_of(row)
        live = self._book.live
        beside = {self._sight.class_of(live[job]) for job in new.beside if job in live}
        split = row.accumulation > 1
        shape = row.shape if isinstance(row.shape, Shape) else None  # a strategy's rates are of another class
        elastic = row.spec.elastic
        declared = elastic.on(row.spec.gang, row.spec.nodes) if elastic is not None else None
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
            self._event.profile = True
            self._asking.stale |= self._rates.count != known  # there is something new to decide by

    def _settled(self, row: Job, now_s: float) -> Job:
        """Once it stands where its checkpoint ended: from now on what its servers have is its newest."""
        stored = row.stored
        if stored is not None and (row.portions or stored.copies) and not row.state.ended:
            if not copies.arrived(row, stored):
                return row
            self._tell_arrival(row, stored, now_s)
            return replace(row, stored=None)
        if stored is None or row.state.ended or not reports.went_on_from(row, stored):
            return row
        if stored.is_unknown and reports.found_nothing(row):
            self._fact(now_s, "afresh", f"it began afresh on {', '.join(row.hosts)}", job=row.id)
        elif not stored.is_at(row.hosts) or stored.surpassed or row.id in self._flights:
            self._tell_arrival(row, stored, now_s)
        elif row.report is not None and row.report.checkpoint_generation < 0:
            return row  # they have the files, though they have not said so
        fetched = Stored(hosts=row.hosts, epoch=stored.epoch, generation=stored.generation, step=stored.step)
        said = row.report is not None and row.report.checkpoint_generation >= 0
        if not said:
            return replace(row, stored=None if stored.is_unknown else fetched)
        known = not (stored.is_at(row.hosts) or stored.in_folder or stored.surpassed)
        return replace(row, stored=None, origin=stored if known else None)

    def _fell_back(self, new: Job, old: Job, part: JobReport, now_s: float) -> Job:
        """Its processes found the checkpoint that they were to begin from torn or gone. A gang's all begin from the same one: the first part's word is enough."""
        told = any(said.fallbacks >= part.fallbacks for said in old.reports.values())
        if told or new.portions or (new.stored is not None and new.stored.copies):
            return new
        had, step = old.stored, max(0, part.began_step)
        lost_s = (
            reports.lost_work_gpu_s(new, step) if had is not None else 0.0
        )  # else its host has counted it
        text = f"its newest checkpoint cannot be used: {part.fallback_why or 'it does not say why'}; it goes on from step {step}"
        self._fact(now_s, "fell-back", text, job=new.id, data={"lost_gpu_s": round(lost_s, 3), "step": step})
        return replace(new, stored=None, origin=None, past_lost_gpu_s=new.past_lost_gpu_s + lost_s)

    def _tell_arrival(self, row: Job, stored: Stored, now_s: float) -> None:
        step, from_step, generation = row.step, stored.step, stored.generation
        report = row.report
        if report is not None and (stored.in_folder or stored.surpassed):  # what was found may be newer
            from_step = max(from_step, report.began_step)
            generation = max(generation, report.checkpoint_generation)
        flight = self._flights.pop(row.id, None)
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
        self._fact(now_s, kind, f"{text} on {', '.join(new.hosts)} at step {new.step}", job=new.id)

    # --- its end, or another beginning ------------------------------------------------------------------------------

    def _exited(self, row: Job, ended: Exit, now_s: float) -> None:
        evicted = self._doomed(now_s) & set(row.hosts)
        ended = reports.own_end(row) or ended
        if row.cancelled_by:
            self._end(row, Happening.GONE, ended, now_s)
        elif ended.why.startswith(LOST):
            why = ended.why.removeprefix(LOST).removeprefix(": ")
            self._lost(row, why or LOST, now_s)
        elif ended.why.startswith(CANNOT_FETCH) and self._backup.has(row.stored):
            # No fault of its own, nor anything that its owner could mend.
            self._cannot_be_had(row, f"the backup's checkpoint of it is gone ({ended.why})", now_s)
        elif ended.why.startswith(CANNOT_FETCH) and row.stored is not None and row.stored.in_folder:
            self._cannot_be_had(row, f"who had its checkpoint is lost ({ended.why})", now_s)
        elif evicted and not ended.ok:  # told to end: where it ended well its host would say so
            self._lost(row, f"{min(evicted)} was to be empty by now", now_s)
        elif ended.why == TOLD_TO_END:  # it was to be, and is not any more
            self._lost(row, f"{', '.join(row.hosts)} had been told to end it", now_s)
        elif ended.ok:
            self._end(row, Happening.SUCCEEDED, ended, now_s)
        elif self._may_try_again(row, ended):
            stored = self._newest(row) or self._perhaps(row)
            lost_s = reports.lost_work_gpu_s(row, stored.step if stored else 0)
            row = self._retried(row, ended, now_s, lost_s)
            self._again(row, stored, ended, now_s, lost_s)
        else:
            self._end(row, Happening.FAILED, ended, now_s)

    def _may_try_again(self, row: Job, ended: Exit) -> bool:
        return row.retries < row.spec.retry_max and ended.why not in FINAL

    def _retried(self, row: Job, ended: Exit, now_s: float, lost_s: float) -> Job:
        row = replace(row, retries=row.retries + 1)
        text = f"it failed ({exit_text(ended)}) and is tried again, {row.retries} of {row.spec.retry_max}"
        self._fact(now_s, "retried", text, job=row.id, data={"lost_gpu_s": round(lost_s, 3)})
        return row

    def _cannot_be_had(self, row: Job, why: str, now_s: float) -> None:
        lost_s = reports.lost_work_gpu_s(row, 0)
        row = replace(row, stored=None, past_lost_gpu_s=row.past_lost_gpu_s + lost_s)
        afresh = "" if reports.unknown(row) is not None else "; it starts afresh"
        self._lost(row, f"{why}{afresh}", now_s, counted_s=lost_s)

    def _lost_at(self, row: Job, host: HostName, why: str, now_s: float, *, forgot: bool = False) -> None:
        """What of it was on this host is dead. A gang ends as a whole: it is queued again when its other parts are gone. `forgot`: the host knows nothing of it."""
        if len(row.hosts) == 1:
            self._lost(row, why, now_s, forgot=forgot)
            return
        before = row.reports.get(host) or JobReport(job=row.id, epoch=row.epoch, phase=Phase.WAITING)
        if before.exit is None:
            gone = Exit(why=f"{LOST}: {why}")
            self._job_reported(row, host, replace(before, phase=Phase.EXITED, gpus=(), exit=gone), now_s)

    def _lost(
        self, row: Job, why: str, now_s: float, *, forgot: bool = False, counted_s: float = 0.0
    ) -> None:
        """Its incarnation is dead, through no fault of its own. `forgot`: its host, which may have its files still, knows nothing of it; `counted_s`: GPU-seconds
        that are lost by it as well, and are in its account already."""
        ended = Exit(why=LOST)
        if row.cancelled_by:
            self._end(row, Happening.GONE, ended, now_s)
            return
        stored = self._newest(row)
        again = f"; it goes on from step {stored.step}" if stored else ""
        if stored is not None and (doubted := reports.doubted(row, stored)) != stored:
            stored = doubted
            again += f", or from a newer checkpoint if one is in {row.spec.checkpoint_dir}"
        elif stored is not None and forgot and stored.is_at(row.hosts) and not stored.copies:
            stored = replace(stored, surpassed=True)
            again += ", or from a newer checkpoint if one is there"
        elif stored is None and (stored := self._perhaps(row)) is not None:
            again = f"; {self._unless_back(row, stored)}"
        elif stored is None and (stored := reports.unknown(row)) is not None:
            again = f"; without a checkpoint in {row.spec.checkpoint_dir} it starts afresh"
        elif stored is None and (row.step > 0 or (row.stored is not None and row.stored.step > 0)):
            again = "; no checkpoint of it is left to be had, it starts afresh"
        lost_s = reports.lost_work_gpu_s(row, stored.step if stored else 0)
        data: dict[str, str | int | float] = {"lost_gpu_s": round(counted_s + lost_s, 3)}
        self._fact(now_s, "lost", f"it was lost: {why}{again}", job=row.id, data=data)
        self._again(row, stored, ended, now_s, lost_s)

    def _newest(self, row: Job) -> Stored | None:
        """Its newest checkpoint that it may go on from."""
        return self._newest_on(row, self._keepers(row))

    def _perhaps(self, row: Job) -> Stored | None:
        """Its newest where none is within reach: it goes on from that if the servers that are cut off are back before it has a place, or its own folder has it."""
        if row.portions or (row.stored is not None and row.stored.copies):
            return None
        return self._newest_on(row, self._book.hosts) or reports.sought(row, reports.kept(row) or row.stored)

    def _unless_back(self, row: Job, stored: Stored) -> str:
        which = f"its checkpoint of step {stored.step}"
        if stored.in_folder:
            return f"it goes on from {which} if that is in {row.spec.checkpoint_dir}"
        gone = [name for name in stored.servers if name in self._absent.fenced]
        back = reports.back(replace(row, stored=stored), gone, beside=self._keepers(row))
        if row.spec.checkpoint_dir:
            return f"{which} is looked for in {row.spec.checkpoint_dir} unless {back} before it has a place"
        return f"it starts afresh unless {back} with {which} before it has a place"

    def _newest_on(self, row: Job, hosts: Collection[HostName]) -> Stored | None:
        """Of what these servers have."""
        if row.portions:
            mine = copies.kept(row, self._connected.__contains__) or copies.kept(row, hosts.__contains__)
        elif row.stored is not None and row.stored.copies and not copies.made(row, row.stored):
            mine = None  # it is not known yet whether there is an average
        else:
            mine = reports.kept(row)
        usable = (
            reports.among(row, mine, hosts) if mine is not None else None,
            reports.within(row, hosts),
            reports.still_there(row, hosts),
        )
        found = [kept for kept in usable if kept is not None]
        here = {kept: all(host in self._connected for host in kept.hosts) for kept in found}
        return max(found, key=lambda kept: (kept.step, here[kept], kept.epoch), default=None)

    def _keepers(self, row: Job) -> Collection[HostName]:
        """Servers from which it may have its checkpoint; who said `fence` does not wait for one that is cut off."""
        hosts = self._book.hosts.keys()
        return hosts - self._absent.fenced if row.spec.on_partition is OnPartition.FENCE else hosts

    def _again(self, was: Job, stored: Stored | None, ended: Exit, now_s: float, lost_s: float) -> None:
        """Queued for another incarnation; where its newest checkpoint is on its own servers, it keeps that home. `lost_s`: GPU-seconds of work since that."""
        row, report = replace(was, past_lost_gpu_s=was.past_lost_gpu_s + lost_s), was.report
        spent_s = row.past_run_s + (report.run_s if report else 0.0)
        if 0 < row.spec.max_duration_s <= spent_s:
            self._end(row, Happening.FAILED, replace(ended, why=TIME_LIMIT), now_s)
            return
        self._flights.pop(row.id, None)  # it did not arrive
        homes = [self._book.hosts.get(host) for host in row.hosts]
        stays = (
            stored is not None
            and not self._backup.awaits  # it may be elsewhere
            and not row.portions
            and stored.hosts == row.hosts
            and all(home is not None and self._takes(row, home) for home in homes)
            and self._models(row.hosts) == row.gpu_models  # else a server has others now
        )
        happenings = (Happening.REQUEUED, Happening.PLACED) if stays else (Happening.REQUEUED,)
        state = states.after(row, *happenings)
        hosts = row.hosts if stays else ()
        new = replace(
            self._next_epoch(row),
            state=state,
            hosts=hosts,
            shape=row.shape if stays or (stored is not None and isinstance(row.shape, Spread)) else None,
            stored=stored,
            portions=(),
            base_step=0,
            given_up=as_lost(was) if ended.why == LOST else (),
        )
        self._put(new, now_s)

    def _next_epoch(self, row: Job) -> Job:
        """Another incarnation may start; what this one received is kept in its account."""
        report = row.report
        self._asking.stale = True
        self._told.over(row, row.hosts)
        return replace(
            row,
            epoch=self._backup.epoch_after(row),
            restarts=row.restarts + 1,
            reports={},
            move=None,
            origin=None,
            accumulation=1,  # unless the policy lets it start beside another again
            past_gpu_s=row.gpu_s,
            past_gpu_s_by_model=dict(row.gpu_s_by_model),
            past_run_s=row.past_run_s + (report.run_s if report else 0.0),
            past_lost_gpu_s=row.past_lost_gpu_s + (report.lost_gpu_s if report else 0.0),
            past_switches=row.switches,
        )

    def _takes(self, row: Job, host: Host) -> bool:
        """Whether it could start there now."""
        able = len(host.healthy_gpus) >= row.gpus
        return host.name in self._connected and host.schedulable and able

    def _end(self, row: Job, happening: Happening, ended: Exit, now_s: float) -> None:
        state = states.after(row, happening)
        self._told.over(row, row.hosts)  # the next Wanted says so anyway
        over = replace(
            row, state=state, exit=ended, ended_s=now_s, move=None, stored=None, given_up=(), left_behind=()
        )
        self._put(over, now_s)
        self._asking.stale = (
            self._asking.stale
            or self.policy.needs.ends
            or self._book.makes_room_in_array(row)
            or any(map(self._idles_beside_gangs, row.hosts))
        )
        self._forget_job(row, now_s)
        self._fact(now_s, str(state), f"it {_ENDED_WORDS[state]} ({exit_text(ended)})", job=row.id)
        self._release_waiters(row.id, now_s)
        for gone in self._book.evict(spare=self._event.before):  # the driver is yet to look at these
            self._stories.pop(gone, None)

    def _idles_beside_gangs(self, name: HostName) -> bool:
        """It has parts of gangs over several servers, and GPUs that no other job there asks for: no server's own stride hands them to a gang."""
        if self._book.spanned.get(name, 0) <= 0:
            return False
        rows = [self._book.live[job] for job in self._book.at_host.get(name, ())]
        asked = sum([row.gpus for row in rows if row.nodes == 1 and not row.paused])
        return asked < len(self._book.gpus.get(name, ()))

    def _forget_job(self, row: Job, now_s: float) -> None:
        self._tickets.pop(row.id, None)
        self._since_s.pop(row.id, None)
        self._flights.pop(row.id, None)
        self._grounded.forget(row.id)
        self._orders.forget(row.id, row.hosts)
        self._sight.forget(row.id)
        self._rates.forget_job(row.id)
        self._restless.update(self._backup.over(row.id))
        self._account(now_s).forget(row.id)

    def _cancel(self, row: Job, by: str, now_s: float, *, why: str = "") -> None:
        if row.state.ended or row.state is JobState.CANCELLING:
            return
        self._asking.stale = True
        if row.hosts:
            state = states.after(row, Happening.CANCELLED)
            self._put(replace(row, state=state, cancelled_by=by, move=None), now_s)
            ends = "ends" if len(row.hosts) == 1 else "end"
            self._fact(now_s, "cancelled", f"{by} cancelled it; {', '.join(row.hosts)} {ends} it", job=row.id)
            return
        ended = Exit(why=why or f"cancelled by {by}")
        self._end(replace(row, cancelled_by=by), Happening.DROPPED, ended, now_s)

    def _release_waiters(self, job: JobId, now_s: float) -> None:
        """Of a chain, which may be of thousands, those that end with it come one after the other, never one within the other."""
        self._releasing.append(job)
        if len(self._releasing) > 1:
            return
        while self._releasing:
            self._released_by(self._releasing[0], now_s)
            self._releasing.popleft()

    def _released_by(self, job: JobId, now_s: float) -> None:
        state = self._book.jobs[job].state
        for waiter, conditions in sorted(self._book.waiters.get(job, {}).items()):
            row = self._book.live.get(waiter)
            if row is None:
                continue
            for condition in conditions:
                if admission.dependency(condition, state) is admission.Dependency.NEVER:
                    why = admission.never_text(After(job=job, condition=condition), state)
                    self._cancel(row, "its dependency", now_s, why=why)
                    break
            else:
                self._asking.stale = True
                self._book.met(waiter)


_STATE_FACTS = {
    JobState.STARTING: ("starting", "its process is coming up"),
    JobState.RUNNING: ("running", "it runs"),
    JobState.SUSPENDED: ("suspended", "it is suspended"),
}

_ENDED_WORDS = {
    JobState.SUCCEEDED: "succeeded",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
}


def _shown(report: JobReport) -> tuple[Phase, bool, bool, bool, int, int, bool, bool]:
    """What of a part's report policies see, but for its counters."""
    memory_bytes, over, held_up = (
        report.device_memory_bytes,
        report.exit is not None,
        reports.is_held_up(report),
    )
    can = report.can_checkpoint, report.single
    sizes = memory_bytes, report.checkpoint_bytes
    return report.phase, *can, report.sliceable, *sizes, over, held_up


def _began_s(whole: JobReport, happening: Happening | None, now_s: float) -> float | None:
    """When it ran for the first time: now, or, of one that ends before anybody has heard that it runs, as long ago as it ran."""
    if happening is Happening.RAN:
        return now_s
    return now_s - whole.run_s if whole.exit is not None and whole.run_s > 0 else None


def _weighs_alike(old: JobReport, new: JobReport) -> bool:
    """A policy would not decide differently for what is new."""
    if old.sliceable != new.sliceable or reports.is_held_up(old) != reports.is_held_up(new):
        return False
    if old.phase is new.phase and old.can_checkpoint == new.can_checkpoint:
        return True
    started = reports.has_process(old) == reports.has_process(new)
    return started and reports.can_leave(old) == reports.can_leave(new)
