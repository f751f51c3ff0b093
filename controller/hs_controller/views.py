"""What is in memory, as the messages that people are shown."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache

from hs_controller.config import Config
from hs_controller.links import Hub
from hs_controller.mind import Mind
from hs_controller.pieces import Pieces
from hs_controller.rows import Event, Usage
from hs_core.ages import Stage
from hs_core.cluster import ClusterMachine, Reason, WayRate, Why, explain_end
from hs_core.job_class import job_class
from hs_core.model import Host, Job, JobState, User
from hs_core.names import JobId, UserName
from hs_core.policy import Trade
from hs_core.reports import JobReport
from hs_proto import convert
from hs_proto.v1 import controller_pb2


def why_of(machine: ClusterMachine, job: Job, now_s: float) -> Why:
    """Of one that ended the machine may know nothing any more; the answer is the same."""
    return explain_end(job) if job.state.ended else machine.why(job.id, now_s)


def job_view(machine: ClusterMachine, job: Job, now_s: float, *, mine: bool) -> controller_pb2.JobView:
    """`mine` is false for those who may not read its log: they do not get the log's tail either."""
    spec, report = job.spec, job.report
    view = controller_pb2.JobView(
        id=job.id,
        name=spec.name,
        user=job.user,
        state=job.state,
        gpus=job.gang,
        gpu_types=spec.gpu_types,
        host=job.host or "",
        gpu_model=job.gpu_model,
        submitted_at=job.arrival_s,
        started_at=job.first_run_s or 0.0,
        ended_at=job.ended_s or 0.0,
        epoch=job.epoch,
        step=job.step,
        gpu_s=job.gpu_s,
        run_s=job.past_run_s + (report.run_s if report else 0.0),
        lost_gpu_s=job.past_lost_gpu_s + (report.lost_gpu_s if report else 0.0),
        sliceable=report.sliceable if report else True,
        checkpoint_step=report.checkpoint_step if report else -1,
        priority=spec.priority,
        hosts=job.hosts,
        nodes=job.nodes,
        migrations=job.migrations,
        array_id=spec.array_id or 0,
        accumulation=job.accumulation,
        elastic=convert.from_elastic(spec.elastic) if spec.elastic is not None else None,
        shape=convert.from_shape(job.shape),
        strategies=map(convert.from_strategy, spec.strategies),
        strategy=convert.from_strategy(job.strategy) if job.strategy is not None else None,
    )
    if job.noise is not None:
        view.noise_scale, view.noise_samples = job.noise.examples, job.noise.samples
    view.copies.extend(_copies(job))
    if spec.array_index is not None:
        view.array_index = spec.array_index
    if job.move is not None:
        view.moving_to, view.moving_why = ", ".join(job.move.to), job.move.text or job.move.reason
    switches = job.switches
    view.suspends, view.resumes = switches.suspends, switches.resumes
    view.suspend_s, view.resume_s = switches.suspend_s, switches.resume_s
    if report is not None:
        _add_report(view, report, ended=job.state.ended)
    _add_checkpoint(view, job)
    if job.exit is not None:
        view.exit.CopyFrom(convert.from_exit(job.exit))
        if not mine:
            view.exit.ClearField("log_tail")
    _add_mind(view, machine, job, now_s)
    return view


def _add_report(view: controller_pb2.JobView, report: JobReport, *, ended: bool) -> None:
    """What its hosts say of it."""
    view.gpu_ids.extend(report.gpus if not ended else ())
    view.beside.extend(report.beside if not ended else ())
    view.steps_per_s = report.steps_per_s
    view.tier, view.note = report.tier, report.note
    view.gpu_memory_bytes, view.host_memory_bytes = report.device_memory_bytes, report.host_memory_bytes


def _add_checkpoint(view: controller_pb2.JobView, job: Job) -> None:
    """The newest, and which servers have it."""
    if job.report is not None and job.report.checkpoint_step >= 0:
        view.checkpoint_on.extend(job.hosts)
    elif job.stored is not None:
        view.checkpoint_step = job.stored.step
        view.checkpoint_on.extend(job.stored.hosts)


def _add_mind(view: controller_pb2.JobView, machine: ClusterMachine, job: Job, now_s: float) -> None:
    """What the controller has decided of it, and why it does not run, or is not known to."""
    if not job.state.ended and machine.policy.needs.fair:
        view.tickets = machine.job_tickets(job.id)
        view.entitled_gpus = machine.job_share_gpus(job.id)
    why = _why_not(machine, job, now_s)
    if why is not None:
        view.reason, view.reason_text = why.reason, why.text


def _why_not(machine: ClusterMachine, job: Job, now_s: float) -> Why | None:
    """None: it runs."""
    if job.state is JobState.RUNNING and not machine.cut_off(job) and not machine.looks_on:
        return None
    return why_of(machine, job, now_s)


def holds(machine: ClusterMachine, job: Job, words: Iterable[str], now_s: float) -> bool:
    """Whether each of the words, in small letters, is in what the job's line on the page shows."""
    shown = [str(job.id), array_label(job), job.spec.name, job.user, job.state, *job.hosts, job.gpu_model]
    text = " ".join(shown).lower()
    missing = tuple(word for word in words if word not in text)
    if not missing or not _of_a_reason(missing):
        return not missing
    why = _why_not(machine, job, now_s)  # asked for last: it takes longest
    return why is not None and all(word in why.reason for word in missing)


@lru_cache(64)
def _of_a_reason(words: tuple[str, ...]) -> bool:
    return any(all(word in reason for word in words) for reason in Reason)


def array_label(job: Job) -> str:
    """`12_3`: task 3 of array 12; empty: it is of none."""
    index = job.spec.array_index
    return f"{job.spec.array_id}_{index}" if job.spec.array_id and index is not None else ""


def count(totals: controller_pb2.JobTotals, job: Job) -> None:
    report = job.report
    totals.jobs += 1
    totals.queued += job.state is JobState.QUEUED
    totals.lost_gpu_s += job.past_lost_gpu_s + (report.lost_gpu_s if report else 0.0)


def _copies(job: Job) -> Iterator[controller_pb2.CopyView]:
    for host, gpu_model, portion in zip(job.hosts, job.gpu_models, job.portions, strict=False):
        report = job.reports.get(host)
        steps = max(0, report.step - job.base_step) if report is not None else 0
        phase = report.phase if report is not None else ""
        yield controller_pb2.CopyView(
            host=host, gpu_model=gpu_model, steps=steps, portion=portion, phase=phase
        )


def job_detail(
    machine: ClusterMachine, job: Job, story: Iterable[Event], now_s: float, *, mine: bool
) -> controller_pb2.JobDetail:
    spec = convert.from_spec(job.spec)
    if not mine:
        for name in spec.env:
            spec.env[name] = "(hidden)"
    return controller_pb2.JobDetail(
        view=job_view(machine, job, now_s, mine=mine),
        spec=spec,
        job_class=job_class(job.user, job.spec),
        story=[event_view(event) for event in story],
        rates=_rates(machine, job),
        dataset_hosts=_dataset_hosts(machine, job.spec.dataset),
        way_rates=map(_way_rate, machine.way_rates(job)),
        ages=_ages(job, now_s),
        now=now_s,
    )


def _ages(job: Job, now_s: float) -> controller_pb2.Ages:
    spent_s = job.ages_at(now_s).spent_s
    return controller_pb2.Ages(**{f"{stage}_s": spent_s.get(stage, 0.0) for stage in Stage})


def _way_rate(way: WayRate) -> controller_pb2.WayRate:
    return controller_pb2.WayRate(
        gpu_model=way.model,
        steps_per_s=way.steps_per_s,
        nodes=way.nodes,
        strategy=convert.from_strategy(way.strategy) if way.strategy is not None else None,
        shape=convert.from_shape(way.shape),
        beside=way.beside,
    )


def _dataset_hosts(machine: ClusterMachine, dataset: str) -> list[str]:
    hosts = machine.hosts() if dataset else ()
    return sorted(host.name for host in hosts if any(data.name == dataset for data in host.datasets))


def _rates(machine: ClusterMachine, job: Job) -> list[controller_pb2.Rate]:
    """What was measured of its class; of a job that ended long ago nothing is looked up."""
    if machine.find(job.id) is None:
        return []
    return [
        controller_pb2.Rate(
            gpu_model=rate.model,
            steps_per_s=rate.steps_per_s,
            samples=rate.samples,
            speedup=rate.speedup,
            newest_at=rate.newest_s,
        )
        for rate in machine.rates(job.id)
    ]


def why_view(job: Job, why: Why) -> controller_pb2.WhyReply:
    return controller_pb2.WhyReply(
        job_id=job.id,
        state=job.state,
        reason=why.reason,
        text=why.text,
        next_step=why.next_step,
        expected_wait_s=why.expected_wait_s,
    )


def event_view(event: Event) -> controller_pb2.Event:
    fact = event.fact
    return controller_pb2.Event(
        seq=event.seq,
        at=fact.now_s,
        kind=fact.kind,
        text=fact.text,
        job_id=fact.job or 0,
        user=fact.user or "",
        host=fact.host or "",
        data={key: str(value) for key, value in fact.data.items()},
        deed=fact.deed,
    )


class Users:
    """What an administrator is told of users. `admins`: names of accounts that may all."""

    def __init__(self, mind: Mind, config: Config, admins: Collection[str], now_s: float) -> None:
        self._machine, self._config, self._admins = mind.machine, config, admins
        self._gpu_s = dict[UserName, float]()
        for (name, _), usage in mind.ledger.totals.items():
            self._gpu_s[name] = self._gpu_s.get(name, 0.0) + usage.gpu_s
        self._tokens = Counter(row.user for row in mind.registry.usable(now_s))

    def view(self, user: User) -> controller_pb2.UserView:
        name = user.name
        return controller_pb2.UserView(
            name=name,
            tickets=user.tickets,
            run_as=user.run_as,
            admin=name in self._admins,
            configured=name in self._config.users,
            live_jobs=self._machine.live_of(name),
            spec_bytes=self._machine.spec_bytes(name),
            gpu_s=self._gpu_s.get(name, 0.0),
            tokens=self._tokens[name],
        )


# --- shares, usage --------------------------------------------------------------------------------------------------


async def shares(mind: Mind, window_s: float, now_s: float, pieces: Pieces) -> controller_pb2.SharesReply:
    machine, ledger = mind.machine, mind.ledger
    entitled, base, demand = machine.entitled(), machine.base(), machine.demand()
    known: dict[UserName, User] = {user.name: user for user in machine.users()}
    if machine.looks_on:
        # Nothing was heard since, which is not to say that nobody has received anything.
        now_s = ledger.newest_s
    models = machine.models()
    # Of a pool that has no servers any more there is what was received in the window, or was due, if anything was.
    had = [
        account
        for account in ledger.totals
        if account[1] in models
        or ledger.received_gpus(account, window_s, now_s) > 0
        or ledger.due_gpus(account, window_s, now_s) > 0
    ]
    accounts = sorted({*entitled, *base, *demand, *had})
    covered_s = ledger.covered_s(window_s, now_s)
    reply = controller_pb2.SharesReply(
        window_s=covered_s,
        pools=await pools(machine, pieces),
        read_only=machine.looks_on,
        policy=machine.policy.name,
        fair=machine.policy.needs.fair,
    )
    for account in accounts:
        name, model = account
        user = known.get(name)
        reply.shares.add(
            user=name,
            gpu_model=model,
            tickets=user.tickets if user else 0.0,
            demand_gpus=demand.get(account, 0.0),
            entitled_gpus=entitled.get(account, 0.0),
            received_gpus=ledger.received_gpus(account, window_s, now_s),
            received_gpu_s=ledger.totals.get(account, Usage()).gpu_s,
            base_gpus=base.get(account, 0.0),
            due_gpus=ledger.due_gpus(account, window_s, now_s),
        )
        await pieces.rest()
    return reply


async def pools(machine: ClusterMachine, pieces: Pieces) -> list[controller_pb2.Pool]:
    found: dict[str, controller_pb2.Pool] = {}
    for host in machine.hosts():
        pool = found.setdefault(host.model, controller_pb2.Pool(gpu_model=host.model))
        pool.gpus += len(host.gpus)
        if host.name not in machine.connected:
            pool.away += len(host.gpus)
            continue
        busy = {
            gpu
            for row in machine.jobs_at(host.name)
            if (report := row.reports.get(host.name)) is not None and report.occupies
            for gpu in report.gpus
        }
        # Of a drained server nobody is given any more; who still runs there has what it has.
        usable = {gpu.id for gpu in host.healthy_gpus} if host.schedulable else set()
        there = busy & {gpu.id for gpu in host.gpus}
        pool.healthy += len(usable | there)
        pool.busy += len(there)
        await pieces.rest()
    return [found[model] for model in sorted(found)]


def usage_rows(totals: Mapping[tuple[UserName, str], Usage], user: str) -> controller_pb2.UsageReply:
    reply = controller_pb2.UsageReply()
    for (name, model), usage in sorted(totals.items()):
        if user and name != user:
            continue
        reply.rows.add(
            user=name,
            gpu_model=model,
            gpu_s=usage.gpu_s,
            lost_gpu_s=usage.lost_gpu_s,
            jobs=usage.jobs,
            suspends=usage.suspends,
            entitled_gpu_s=usage.entitled_gpu_s,
        )
    return reply


# --- nodes ----------------------------------------------------------------------------------------------------------


async def nodes(mind: Mind, hub: Hub, pieces: Pieces) -> controller_pb2.ListNodesReply:
    known = {host.name: host for host in mind.machine.hosts()}
    for name in hub.names():  # one that joined while the journal cannot be written
        link = hub.link(name)
        assert link is not None
        known.setdefault(name, link.host)
    reply = controller_pb2.ListNodesReply()
    for name in sorted(known):
        reply.nodes.append(node(mind, known[name], hub))
        await pieces.rest()
    return reply


def node(mind: Mind, host: Host, hub: Hub) -> controller_pb2.NodeView:
    link = hub.link(host.name)
    rows = mind.machine.jobs_at(host.name)
    drain = host.drain
    cannot_start = mind.machine.cannot_start(host.name)
    view = controller_pb2.NodeView(
        name=host.name,
        state="up" if link else "away",
        version=link.version if link else host.version,
        gpus=link.gpus if link else [convert.from_gpu(gpu) for gpu in host.gpus],
        warnings=(
            *host.warnings,
            *(link.troubles if link else ()),
            *filter(None, [link.unlike if link else "", cannot_start]),
        ),
        last_report_at=hub.heard_s(host.name),
        draining=drain is not None,
        drain_reason=drain.reason if drain else "",
        drain_deadline_at=(drain.deadline_s or 0.0) if drain else 0.0,
        jobs=len(rows),
        drained_gpus=sorted(gpu.index for gpu in host.gpus if gpu.id in host.drained_gpus),
        certificate_until=mind.registry.certificate_until_s(host.name),
        datasets=[data.name for data in host.datasets],
        needed_by=mind.machine.needing(host.name),
    )
    if link is not None and link.memory is not None:
        view.memory_bytes = link.memory.total_bytes
        view.memory_available_bytes = link.memory.available_bytes
    bound: dict[str, list[JobId]] = {}
    running: dict[str, list[Job]] = {}
    for job in rows:
        report = job.reports.get(host.name)
        for gpu in report.gpus if report is not None else ():
            if report is not None and report.occupies:
                running.setdefault(gpu, []).append(job)
            else:
                bound.setdefault(gpu, []).append(job.id)
    for device in host.gpus:
        use = view.uses.add(gpu_id=device.id, bound_jobs=bound.get(device.id, ()))
        there = sorted(running.get(device.id, ()), key=lambda job: job.id)
        if there:
            use.running_job, use.user = there[0].id, there[0].user
        if len(there) > 1:
            use.second_job, use.second_user = there[1].id, there[1].user
    return view


# --- trades -----------------------------------------------------------------------------------------------------------


def trade(one: Trade) -> controller_pb2.TradeView:
    return controller_pb2.TradeView(
        at=one.since_s,
        fast=one.fast,
        slow=one.slow,
        gives=one.giver,
        receives=one.taker,
        fast_gpus=float(one.fast_gpus),
        slow_gpus=float(one.slow_gpus),
        price=one.price,
        giver_speedup=one.giver_speedup,
        taker_speedup=one.taker_speedup,
    )


def undone_trade(event: Event) -> controller_pb2.TradeView:
    """As the audit tells it: its data are a TradeView's fields, and why it was undone."""
    data = dict(event.fact.data)
    why = str(data.pop("why", ""))
    return controller_pb2.TradeView(**data, undone=event.fact.now_s, why_undone=why)  # type: ignore[arg-type]
