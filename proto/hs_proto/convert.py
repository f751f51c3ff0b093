"""Protobuf messages ↔ the model. What comes over the wire is checked here, once; past this point it is the model.

Raises RefusedError naming field, value and what was expected. hsctl does without this module (it must not import the core).
"""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import TypeVar

from hs_core import forms, model, names, reports
from hs_core.copier import maker
from hs_core.errors import Kind, RefusedError
from hs_core.strategy import Strategy
from hs_core.wanted import Guest, Lend, Peer, Seat, Source, SourcePart, Turn, Wanted, WantedJob
from hs_proto.v1 import agent_pb2, common_pb2

Word = TypeVar("Word", bound=StrEnum)

GRPC_CODES = {
    Kind.INVALID: "INVALID_ARGUMENT",
    Kind.IMPOSSIBLE: "FAILED_PRECONDITION",
    Kind.NOT_FOUND: "NOT_FOUND",
    Kind.NOT_ALLOWED: "PERMISSION_DENIED",
    Kind.CONFLICT: "ABORTED",
    Kind.UNAVAILABLE: "UNAVAILABLE",
}
"""Kind of refusal → name of the gRPC status code; the kind itself travels as trailing metadata `hs-kind`."""


def word(kind: type[Word], value: str, field: str, default: Word | None = None) -> Word:
    """An enumeration's word; empty means `default` where there is one."""
    if not value and default is not None:
        return default
    try:
        return kind(value)
    except ValueError:
        raise RefusedError(f"{field}: {value!r} is not one of {', '.join(kind)}") from None


# --- JobSpec --------------------------------------------------------------------------------------------------------


def to_spec(pb: common_pb2.JobSpec) -> model.JobSpec:
    """Words and shapes are checked here; ranges and limits by `ClusterMachine` (it knows the cluster)."""
    after = tuple(
        model.After(
            job=names.JobId(a.job_id),
            condition=word(model.AfterCondition, a.condition, "after", model.AfterCondition.OK),
        )
        for a in pb.after
    )
    return model.JobSpec(
        name=pb.name,
        command=tuple(pb.command),
        gpus=pb.gpus,
        nodes=pb.nodes or 1,
        gpu_types=tuple(pb.gpu_types),
        gpu_memory_bytes=pb.gpu_memory_bytes,
        cpus=pb.cpus,
        memory_bytes=pb.memory_bytes,
        max_duration_s=pb.max_duration_s,
        priority=pb.priority,
        after=after,
        env=dict(pb.env),
        workdir=pb.workdir,
        output=pb.output,
        torchrun=pb.torchrun,
        migrate=word(model.Migrate, pb.migrate, "migrate", model.Migrate.AUTO),
        suspend=word(model.SuspendMode, pb.suspend, "suspend", model.SuspendMode.AUTO),
        on_partition=word(model.OnPartition, pb.on_partition, "on_partition", model.OnPartition.CONTINUE),
        retry_max=pb.retry_max,
        checkpoint_dir=pb.checkpoint_dir,
        checkpoint_interval_s=pb.checkpoint_interval_s,
        job_class=pb.job_class,
        steps=pb.steps,
        gpu_memory_fixed_bytes=pb.gpu_memory_fixed_bytes,
        accumulation_max=pb.accumulation_max or 1,
        dataset=pb.dataset,
        dataset_bytes=pb.dataset_bytes,
        elastic=_to_elastic(pb.elastic) if pb.HasField("elastic") else None,
        strategies=tuple(map(_to_strategy, pb.strategies)),
        topology=word(model.Topology, pb.topology, "topology", model.Topology.AUTO),
        array_id=names.JobId(pb.array_id) if pb.array_id else None,
        array_index=pb.array_index if pb.HasField("array_index") else None,
        array_limit=pb.array_limit,
    )


def from_spec(spec: model.JobSpec) -> common_pb2.JobSpec:
    pb = common_pb2.JobSpec(
        name=spec.name,
        command=spec.command,
        gpus=spec.gpus,
        nodes=spec.nodes,
        gpu_types=spec.gpu_types,
        gpu_memory_bytes=spec.gpu_memory_bytes,
        cpus=spec.cpus,
        memory_bytes=spec.memory_bytes,
        max_duration_s=spec.max_duration_s,
        priority=spec.priority,
        after=[common_pb2.After(job_id=a.job, condition=a.condition) for a in spec.after],
        env=dict(spec.env),
        workdir=spec.workdir,
        output=spec.output,
        torchrun=spec.torchrun,
        migrate=spec.migrate,
        suspend=spec.suspend,
        on_partition=spec.on_partition,
        retry_max=spec.retry_max,
        checkpoint_dir=spec.checkpoint_dir,
        checkpoint_interval_s=spec.checkpoint_interval_s,
        job_class=spec.job_class,
        steps=spec.steps,
        gpu_memory_fixed_bytes=spec.gpu_memory_fixed_bytes,
        accumulation_max=spec.accumulation_max,
        dataset=spec.dataset,
        dataset_bytes=spec.dataset_bytes,
        array_limit=spec.array_limit,
        array_id=spec.array_id or 0,
        strategies=map(from_strategy, spec.strategies),
        topology=spec.topology,
    )
    if spec.array_index is not None:
        pb.array_index = spec.array_index
    if spec.elastic is not None:
        pb.elastic.CopyFrom(from_elastic(spec.elastic))
    return pb


def _to_elastic(pb: common_pb2.Elastic) -> forms.Elastic:
    return forms.Elastic(
        gpus_min=pb.gpus_min,
        gpus_max=pb.gpus_max,
        batch=pb.batch,
        batch_max=pb.batch_max,
        batch_per_gpu_max=pb.batch_per_gpu_max,
        noise_scale=pb.noise_scale,
    )


def from_elastic(elastic: forms.Elastic) -> common_pb2.Elastic:
    return common_pb2.Elastic(
        gpus_min=elastic.gpus_min,
        gpus_max=elastic.gpus_max,
        batch=elastic.batch,
        batch_max=elastic.batch_max,
        batch_per_gpu_max=elastic.batch_per_gpu_max,
        noise_scale=elastic.noise_scale,
    )


def _to_strategy(pb: common_pb2.Strategy) -> Strategy:
    return Strategy(pb.data or 1, pb.tensor or 1, pb.pipeline or 1, tuple(pb.layers))


def from_strategy(strategy: Strategy) -> common_pb2.Strategy:
    return common_pb2.Strategy(
        data=strategy.data, tensor=strategy.tensor, pipeline=strategy.pipeline, layers=strategy.layers
    )


def _to_shape(pb: common_pb2.Shape) -> forms.Shape:
    return forms.Shape(gpus=pb.gpus, per_gpu=pb.per_gpu, parts=pb.parts, nodes=pb.nodes or 1)


def from_shape(shape: forms.Form | None) -> common_pb2.Shape | None:
    if not isinstance(shape, forms.Shape):
        return None
    return common_pb2.Shape(gpus=shape.gpus, per_gpu=shape.per_gpu, parts=shape.parts, nodes=shape.nodes)


# --- devices, exits, reports ----------------------------------------------------------------------------------------


MOST_WHY_CHARS, MOST_TAIL_CHARS = 4000, 16_000  # of an exit: an agent sends half of that
MOST_WARNINGS, MOST_WARNING_CHARS = 32, 1000  # of a host, for people
MOST_GPUS, MOST_SLOWDOWNS = 1024, 256
"""Of a host, and of each GPU."""
MOST_INDEX, MOST_GPU_BYTES, MOST_CHARS = 1 << 16, 1 << 50, 256


def _label(text: str, field: str) -> str:
    """What names something, in lists and in the journal."""
    if len(text) > MOST_CHARS or not text.isprintable():
        raise RefusedError(
            f"{field}: {text[:MOST_CHARS]!r}: at most {MOST_CHARS} printable characters were expected"
        )
    return text


def to_gpu(pb: common_pb2.Gpu) -> model.Gpu:
    """Raises RefusedError where it makes no sense: an agent answers for its own host, and no more is to come of what it says."""
    for field, text in (("id", pb.id), ("model", pb.model)):
        if not _label(text, f"gpus: {field}"):
            raise RefusedError(f"gpus: {field}: empty; a name was expected")
    for field, value, most in (
        ("index", pb.index, MOST_INDEX),
        ("memory_bytes", pb.memory_bytes, MOST_GPU_BYTES),
    ):
        if value > most:
            raise RefusedError(f"gpus: {field} of {pb.id!r}: {value}; at most {most} was expected")
    return model.Gpu(
        id=names.GpuId(pb.id),
        index=pb.index,
        model=pb.model,
        memory_bytes=pb.memory_bytes,
        healthy=pb.healthy,
        why_unhealthy=pb.why_unhealthy[:MOST_CHARS],
        slowdowns=_to_slowdowns(pb),
    )


def _to_slowdowns(pb: common_pb2.Gpu) -> tuple[model.Slowdown, ...]:
    """Raises RefusedError where one is no slowdown."""
    if len(pb.slowdowns) > MOST_SLOWDOWNS:
        raise RefusedError(
            f"slowdowns of GPU {pb.index}: {len(pb.slowdowns)}; at most {MOST_SLOWDOWNS} were expected"
        )
    for said in pb.slowdowns:
        _label(said.job_class, f"slowdowns of GPU {pb.index}")
        if not model.LEAST_SLOWDOWN <= said.times <= model.MOST_SLOWDOWN:
            raise RefusedError(
                f"slowdown of GPU {pb.index} for {said.job_class!r}: {said.times}; "
                f"expected {model.LEAST_SLOWDOWN:g} to {model.MOST_SLOWDOWN:g}"
            )
    return tuple(model.Slowdown(job_class=said.job_class, times=said.times) for said in pb.slowdowns)


def from_gpu(gpu: model.Gpu, *, utilization_percent: int = 0, memory_used_bytes: int = 0) -> common_pb2.Gpu:
    return common_pb2.Gpu(
        id=gpu.id,
        index=gpu.index,
        model=gpu.model,
        memory_bytes=gpu.memory_bytes,
        healthy=gpu.healthy,
        why_unhealthy=gpu.why_unhealthy,
        slowdowns=[common_pb2.Slowdown(job_class=said.job_class, times=said.times) for said in gpu.slowdowns],
        utilization_percent=utilization_percent,
        memory_used_bytes=memory_used_bytes,
    )


def to_exit(pb: common_pb2.Exit) -> reports.Exit:
    return reports.Exit(
        code=pb.code, signal=pb.signal, why=pb.why[:MOST_WHY_CHARS], log_tail=pb.log_tail[-MOST_TAIL_CHARS:]
    )


def from_exit(ended: reports.Exit) -> common_pb2.Exit:
    return common_pb2.Exit(code=ended.code, signal=ended.signal, why=ended.why, log_tail=ended.log_tail)


# Thousands of reports come in a second: their words are looked up, and only those that are none are asked about.
_says = maker(reports.JobReport)
_PHASES = {phase.value: phase for phase in reports.Phase}
_TIERS = {"": reports.Tier.NONE, **{tier.value: tier for tier in reports.Tier}}


def to_report(pb: common_pb2.JobReport) -> reports.JobReport:
    return _says(
        job=names.JobId(pb.job_id),
        epoch=pb.epoch,
        phase=_PHASES.get(pb.phase) or word(reports.Phase, pb.phase, "phase"),
        gpus=tuple(map(names.GpuId, pb.gpus)),
        step=pb.step,
        steps_per_s=pb.steps_per_s,
        gpu_s=pb.gpu_s,
        run_s=pb.run_s,
        suspends=pb.suspends,
        resumes=pb.resumes,
        suspend_s=pb.suspend_s,
        resume_s=pb.resume_s,
        lost_gpu_s=pb.lost_gpu_s,
        tier=_TIERS.get(pb.tier) or word(reports.Tier, pb.tier, "tier", reports.Tier.NONE),
        sliceable=pb.sliceable,
        note=pb.note,
        device_memory_bytes=pb.device_memory_bytes,
        host_memory_bytes=pb.host_memory_bytes,
        noise_scale=pb.noise_scale,
        noise_samples=pb.noise_samples,
        checkpoint_step=pb.checkpoint_step,
        checkpoint_generation=pb.checkpoint_generation,
        checkpoint_bytes=pb.checkpoint_bytes,
        fallbacks=pb.fallbacks,
        fallback_why=pb.fallback_why,
        began_step=pb.began_step,
        checkpoint_fails=pb.checkpoint_fails,
        start_fails=pb.start_fails,
        nodes=pb.nodes,
        rank=pb.rank,
        carry=pb.carry if pb.HasField("carry") else None,
        in_touch=pb.in_touch,
        rendezvous=pb.rendezvous,
        can_checkpoint=pb.can_checkpoint,
        single=pb.single,
        beside=tuple(map(names.JobId, pb.beside)),
        in_turn=pb.in_turn,
        since_s=pb.since_s,
        exit=to_exit(pb.exit) if pb.HasField("exit") else None,
    )


def from_report(report: reports.JobReport) -> common_pb2.JobReport:
    return common_pb2.JobReport(
        job_id=report.job,
        epoch=report.epoch,
        phase=report.phase,
        gpus=report.gpus,
        step=report.step,
        steps_per_s=report.steps_per_s,
        gpu_s=report.gpu_s,
        run_s=report.run_s,
        suspends=report.suspends,
        resumes=report.resumes,
        suspend_s=report.suspend_s,
        resume_s=report.resume_s,
        lost_gpu_s=report.lost_gpu_s,
        tier=report.tier,
        sliceable=report.sliceable,
        note=report.note,
        device_memory_bytes=report.device_memory_bytes,
        host_memory_bytes=report.host_memory_bytes,
        noise_scale=report.noise_scale,
        noise_samples=report.noise_samples,
        checkpoint_step=report.checkpoint_step,
        checkpoint_generation=report.checkpoint_generation,
        checkpoint_bytes=report.checkpoint_bytes,
        fallbacks=report.fallbacks,
        fallback_why=report.fallback_why,
        began_step=report.began_step,
        checkpoint_fails=report.checkpoint_fails,
        start_fails=report.start_fails,
        nodes=report.nodes,
        rank=report.rank,
        carry=report.carry,
        in_touch=report.in_touch,
        rendezvous=report.rendezvous,
        since_s=report.since_s,
        can_checkpoint=report.can_checkpoint,
        single=report.single,
        beside=report.beside,
        in_turn=report.in_turn,
        exit=from_exit(report.exit) if report.exit is not None else None,
    )


def to_host(hello: agent_pb2.Hello) -> model.Host:
    """Raises RefusedError where the agent offers nothing, or GPUs of several models (a host is of one pool)."""
    if not names.HOST_NAME.fullmatch(hello.host):
        raise RefusedError(f"host: {hello.host[:MOST_CHARS]!r}: {names.A_HOST_NAME} was expected")
    gpus = to_gpus(hello.gpus)
    if not gpus:
        raise RefusedError(f"host {hello.host!r} offers no GPU")
    models = sorted({g.model for g in gpus})
    if len(models) > 1:
        raise RefusedError(
            f"host {hello.host!r} offers GPUs of several models ({', '.join(models)}); one model a host is supported"
        )
    return model.Host(
        name=names.HostName(hello.host),
        boot_id=_label(hello.boot_id, "boot_id"),
        gpus=gpus,
        warnings=tuple(text[:MOST_WARNING_CHARS] for text in hello.warnings[:MOST_WARNINGS]),
        version=_label(hello.version, "version"),
        peer=_label(hello.peer, "peer"),
        setup=_label(hello.setup, "setup"),
        memory_bytes=hello.memory_bytes if hello.memory_bytes < 1 << 63 else 0,
    )


def to_gpus(pbs: Sequence[common_pb2.Gpu]) -> tuple[model.Gpu, ...]:
    """Of one host. Raises RefusedError."""
    if len(pbs) > MOST_GPUS:
        raise RefusedError(f"gpus: {len(pbs)} of them; at most {MOST_GPUS} were expected")
    gpus = tuple(to_gpu(pb) for pb in pbs)
    twice = [gpu for gpu, times in Counter(gpu.id for gpu in gpus).items() if times > 1]
    if twice:
        raise RefusedError(f"gpus: {twice[0]!r} is there twice; each once was expected")
    return gpus


# --- what is wanted of a host ---------------------------------------------------------------------------------------


def to_wanted(pb: agent_pb2.Wanted) -> Wanted:
    return Wanted(
        term=pb.term,
        seq=pb.seq,
        quantum_s=pb.quantum_s,
        turn=_to_turn(pb.turn),
        jobs=tuple(to_wanted_job(j) for j in pb.jobs),
        quantum=pb.quantum,
        edge_in_s=pb.edge_in_s if pb.HasField("edge_in_s") else None,
        next_turn=_to_turn(pb.next_turn) if pb.HasField("next_turn") else None,
        lends=tuple(map(_to_lend, pb.lends)),
        drained_gpus=frozenset(names.GpuId(gpu) for gpu in pb.drained_gpus),
        fence_after_s=pb.fence_after_s,
        lease_s=pb.lease_s,
    )


def _to_turn(pb: agent_pb2.Turn) -> Turn:
    guests = tuple(
        Guest(job=names.JobId(g.job_id), beside=tuple(map(names.JobId, g.beside)), gpus=tuple(g.gpus))
        for g in pb.guests
    )
    seats = tuple(Seat(job=names.JobId(seat.job_id), gpus=tuple(seat.gpus)) for seat in pb.seats)
    gangs = tuple(names.JobId(j) for j in pb.gangs)
    return Turn(gangs=gangs, local=pb.local, guests=guests, seats=seats)


def _from_turn(turn: Turn) -> agent_pb2.Turn:
    guests = [agent_pb2.Guest(job_id=g.job, beside=g.beside, gpus=g.gpus) for g in turn.guests]
    seats = [agent_pb2.Seat(job_id=seat.job, gpus=seat.gpus) for seat in turn.seats]
    return agent_pb2.Turn(gangs=turn.gangs, local=turn.local, guests=guests, seats=seats)


def from_wanted(wanted: Wanted) -> agent_pb2.Wanted:
    return agent_pb2.Wanted(
        term=wanted.term,
        seq=wanted.seq,
        quantum_s=wanted.quantum_s,
        turn=_from_turn(wanted.turn),
        jobs=[from_wanted_job(j) for j in wanted.jobs],
        quantum=wanted.quantum,
        edge_in_s=wanted.edge_in_s,
        next_turn=None if wanted.next_turn is None else _from_turn(wanted.next_turn),
        lends=list(map(_from_lend, wanted.lends)),
        drained_gpus=sorted(wanted.drained_gpus),
        fence_after_s=wanted.fence_after_s,
        lease_s=wanted.lease_s,
    )


def _to_lend(pb: agent_pb2.Lend) -> Lend:
    return Lend(
        job=names.JobId(pb.job_id), epoch=pb.epoch, generation=pb.generation, grant=pb.grant, copy=pb.copy
    )


def _from_lend(lend: Lend) -> agent_pb2.Lend:
    return agent_pb2.Lend(
        job_id=lend.job, epoch=lend.epoch, generation=lend.generation, grant=lend.grant, copy=lend.copy
    )


def to_wanted_job(pb: agent_pb2.WantedJob) -> WantedJob:
    return WantedJob(
        job=names.JobId(pb.job_id),
        epoch=pb.epoch,
        user=names.UserName(pb.user),
        run_as=pb.run_as,
        job_class=pb.job_class,
        spec=to_spec(pb.spec),
        tickets=pb.tickets,
        paused=pb.paused,
        cancelled=pb.cancelled,
        time_limit_s=pb.time_limit_s,
        node_rank=pb.node_rank,
        nodes=tuple(_to_peer(peer) for peer in pb.nodes),
        rendezvous=pb.rendezvous,
        hold=pb.hold,
        leave=pb.leave,
        source=_to_source(pb.source) if pb.HasField("source") else None,
        grant=pb.grant,
        accumulation=pb.accumulation or 1,
        restarts=pb.restarts,
        carry=pb.carry if pb.HasField("carry") else None,
        copy=pb.copy,
        copies=pb.copies or 1,
        last_step=pb.last_step,
        needs_bytes=pb.needs_bytes,
        arrival_s=pb.arrival_s,
        seal=pb.seal,
        shape=_to_form(pb),
    )


def _to_form(pb: agent_pb2.WantedJob) -> forms.Form | None:
    strategy = _to_strategy(pb.strategy) if pb.HasField("strategy") else None
    if pb.spread:
        return forms.Spread(nodes=pb.spread, strategy=strategy)
    if strategy is not None:
        return strategy
    return _to_shape(pb.shape) if pb.HasField("shape") else None


def _to_peer(pb: agent_pb2.Peer) -> Peer:
    return Peer(host=names.HostName(pb.host), address=pb.address)


def _from_peer(peer: Peer) -> agent_pb2.Peer:
    return agent_pb2.Peer(host=peer.host, address=peer.address)


def _to_source(pb: agent_pb2.Source) -> Source:
    parts = tuple(
        SourcePart(peer=_to_peer(p.peer), epoch=p.epoch, generation=p.generation, copy=p.copy, steps=p.steps)
        for p in pb.parts
    )
    return Source(
        peer=_to_peer(pb.peer),
        epoch=pb.epoch,
        generation=pb.generation,
        step=pb.step,
        rank=pb.rank,
        nodes=pb.nodes or 1,
        parts=parts,
        look=pb.look,
    )


def _from_source(source: Source | None) -> agent_pb2.Source | None:
    if source is None:
        return None
    parts = [
        agent_pb2.SourcePart(
            peer=_from_peer(p.peer), epoch=p.epoch, generation=p.generation, copy=p.copy, steps=p.steps
        )
        for p in source.parts
    ]
    return agent_pb2.Source(
        peer=_from_peer(source.peer),
        epoch=source.epoch,
        generation=source.generation,
        step=source.step,
        rank=source.rank,
        nodes=source.nodes,
        parts=parts,
        look=source.look,
    )


def from_wanted_job(job: WantedJob) -> agent_pb2.WantedJob:
    return agent_pb2.WantedJob(
        job_id=job.job,
        epoch=job.epoch,
        user=job.user,
        run_as=job.run_as,
        job_class=job.job_class,
        spec=from_spec(job.spec),
        tickets=job.tickets,
        paused=job.paused,
        cancelled=job.cancelled,
        time_limit_s=job.time_limit_s,
        node_rank=job.node_rank,
        nodes=[_from_peer(peer) for peer in job.nodes],
        rendezvous=job.rendezvous,
        hold=job.hold,
        leave=job.leave,
        source=_from_source(job.source),
        grant=job.grant,
        accumulation=job.accumulation,
        restarts=job.restarts,
        carry=job.carry,
        copy=job.copy,
        copies=job.copies,
        last_step=job.last_step,
        needs_bytes=job.needs_bytes,
        arrival_s=job.arrival_s,
        seal=job.seal,
        shape=from_shape(job.shape),
        strategy=from_strategy(strategy) if (strategy := forms.strategy_of(job.shape)) else None,
        spread=job.shape.nodes if isinstance(job.shape, forms.Spread) else 0,
    )
