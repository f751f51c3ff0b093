"""What the controller's mind is tested with: scenarios as text (builders and a plain policy are in `plain`).

Authors of policies test with the same: `World(policy)`, then one line per thing that happens (`do`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hs_core.cluster.machine import ClusterMachine
from hs_core.cluster.plain import GiB, Shapes, Wishes, a_host, a_spec, plain_policy, sick
from hs_core.cluster.state import Outcome, Settings, State
from hs_core.errors import RefusedError
from hs_core.events.cluster import (
    ClusterEvent,
    Consult,
    Direct,
    GiveUp,
    GpusDrained,
    HostDrained,
    HostJoined,
    HostLeft,
    HostRemoved,
    HostReported,
    HostUndrained,
    JobsCancelled,
    JobsPaused,
    JobsSubmitted,
    JobsUnpaused,
    PolicyAnswered,
    PolicySet,
    QuantumEnded,
    UserRemoved,
    UserSet,
    Wake,
)
from hs_core.forms import Elastic, Form, Shape
from hs_core.model import After, AfterCondition, JobSpec, Migrate, MoveReason, OnPartition, Topology
from hs_core.names import GpuId, HostName, JobId, UserName
from hs_core.policy import Policy
from hs_core.question import Question
from hs_core.reports import Exit, JobReport, Phase
from hs_core.strategy import parse
from hs_core.wanted import NOBODY, Turn, Wanted, WantedJob

__all__ = ["EVERYTHING", "World", "a_host", "a_spec", "plain_policy", "sick"]

EVERYTHING = (1 << 62, 0)
"""A host has taken in all that was wanted of it."""
NOTHING = (0, 0)

RESTORED = 1000
"""First epoch after a backup was put back."""

# --- scenarios ----------------------------------------------------------------------------------------------------


@dataclass
class World:
    """Drives a machine by lines of text and says what came of each.

        user alice 100                     host n1 V100:4 [boot=b2 memory=64 setup=s2] [7:0=running …]   leave n1
        submit alice train gpus=2 count=3 after=1:ok array_limit=2 gpu_types=V100 retry_max=1 …
        cancel|pause|unpause alice 1 2     report n1 1:0=running gpu_s=8 step=40      report n1 1:0=exited code=1
        gpus n1 sick=1                     tick          why 1          jobs           restart
        backup                             restore       what was backed up last, as `hs-controller restore` leaves it
        drain n1 [reason=disk] [by=90]     undrain n1    remove n1 [force]      drain-gpus n1 0 2
        @30                                it is 30 s now
        answer                             where the policy is asked beside the machine: it answers
        shape 1 4x16x2                     where a policy listens to `shapes`: 4 GPUs, 16 examples on each, in 2 parts
        shape 1 tp=2,pp=2                  or in this strategy, of those of `strategies=dp=4;tp=2,pp=2`
        wish 1 n2,n3 [balance [because …]] where a policy that listens to `wishes` is to move it; `wish 1`: nowhere else

    What comes after `last` in a `host` line it says in last words. A report names a job as `id:epoch=phase`; counters after it belong to it. `report-unheard`: by a host that has not heard yet what is wanted of it. Who drains is root.
    """

    policy: Policy
    settings: Settings = field(default_factory=Settings)
    now_s: float = 0.0
    ahead_s: float = (
        0.0  # of servers' clocks, by which they say since when jobs stand as they do (`since_s=`)
    )
    machine: ClusterMachine = field(init=False)
    outcome: Outcome = field(default_factory=Outcome)
    wanted: dict[HostName, Wanted] = field(default_factory=dict)
    wake_s: float | None = None
    question: Question | None = None  # the newest that the policy was asked beside the machine
    wishes: Wishes = field(default_factory=dict)  # the one that its policy was made with
    shapes: Shapes = field(default_factory=dict)  # and this
    copy: State | None = None  # the newest backup
    remembered: dict[HostName, Wanted] = field(
        default_factory=dict
    )  # by the hosts, whatever controller it was

    def __post_init__(self) -> None:
        self.start(State())

    def start(self, state: State) -> None:
        """A controller takes office over this state; no host is connected to it yet."""
        self.machine = ClusterMachine(self.policy, self.settings, state)
        self.machine.begin_term(state.term + 1)
        self.wanted.clear()
        self.wake_s = None

    def handle(self, event: ClusterEvent) -> Outcome:
        self.outcome = self.machine.handle(event)
        if isinstance(event, QuantumEnded):
            self.wake_s = None  # it is over; where there is to be another, it is said
        self.policy = self.machine.policy  # as the journal has it, over restarts
        for command in self.outcome.commands:
            match command:
                case Direct():
                    self.wanted[command.host] = self.remembered[command.host] = command.wanted
                case Wake():
                    self.wake_s = command.at_s
                case Consult():
                    self.question = command.question
        return self.outcome

    def play(self, script: str) -> str:
        """The timeline of a script: each of its lines, and below it what came of it."""
        out: list[str] = []
        for raw in script.splitlines():
            line = raw.strip()
            if not line or line.startswith("#"):
                continue
            out.append(line)
            out += [f"    {told}" for told in self.do(line)]
        return "\n".join(out) + "\n"

    def do(self, line: str) -> list[str]:
        verb, *words = line.split()
        if verb.startswith("@"):
            self.now_s = float(verb[1:])
            return []
        if verb == "why":
            return [self._why(JobId(int(words[0])))]
        if verb == "jobs":
            return [self._row(job.id) for job in self.machine.jobs(ended=True)]
        if verb == "wish":
            self._wish(words)
            return []
        if verb == "shape":
            self.shapes[JobId(int(words[0]))] = _form(words[1])
            return []
        if verb == "restart":
            self.start(self.machine.state)
            return []
        if verb == "backup":
            self.copy = self.machine.state
            return []
        if verb == "restore":
            assert self.copy is not None, "there is no backup"
            self.start(self._put_back(self.copy))
            return []
        try:
            outcome = self.handle(self.event(verb, words))
        except RefusedError as refused:
            return [f"refused, {refused.kind}: {refused}"]
        return _told(outcome)

    def _put_back(self, copy: State) -> State:
        past = self.machine.next_job_id
        return replace(
            copy,
            term=self.machine.term + RESTORED,
            first_epoch=RESTORED,
            restored=True,
            next_job_id=past,
            unknown=(copy.next_job_id, past),
        )

    def _remembered(self, host: HostName, reports: Sequence[JobReport]) -> tuple[WantedJob, ...]:
        """What it was told of jobs that it has and that the controller asks for."""
        first, past = self.machine.unknown
        has = {(report.job, report.epoch) for report in reports if first <= report.job < past}
        wanted = self.remembered.get(host)
        return tuple(job for job in wanted.jobs if (job.job, job.epoch) in has) if wanted else ()

    def event(self, verb: str, words: Sequence[str]) -> ClusterEvent:
        now_s = self.now_s
        match verb:
            case "drain" | "undrain" | "remove" | "drain-gpus":
                return self._admin(verb, HostName(words[0]), words[1:])
            case "policy":
                return PolicySet(now_s=now_s, name=words[0], by=UserName("root"))
            case "user":
                tickets = float(words[1]) if len(words) > 1 else None
                return UserSet(now_s=now_s, name=UserName(words[0]), tickets=tickets)
            case "remove-user":
                return UserRemoved(now_s=now_s, name=UserName(words[0]), by=UserName("root"))
            case "submit":
                return JobsSubmitted(now_s=now_s, user=UserName(words[0]), specs=_specs(words[1], words[2:]))
            case "cancel":
                return JobsCancelled(now_s=now_s, by=UserName(words[0]), jobs=_ids(words[1:]))
            case "pause":
                return JobsPaused(now_s=now_s, by=UserName(words[0]), jobs=_ids(words[1:]))
            case "unpause":
                return JobsUnpaused(now_s=now_s, by=UserName(words[0]), jobs=_ids(words[1:]))
            case "host":
                model, gpus = words[1].split(":")
                own = ("boot=", "peer=", "memory=", "setup=")
                said = dict(word.split("=", 1) for word in words[2:] if word.startswith(own))
                rest = [word for word in words[2:] if not word.startswith(own)]
                at = rest.index("last") if "last" in rest else len(rest)
                told, last_words = _reports(rest[:at]), _reports(rest[at + 1 :])
                boot, memory = said.get("boot", "boot-1"), int(said.get("memory", 0))
                host = a_host(words[0], model, int(gpus), boot=boot, peer=said.get("peer"))
                host = replace(host, memory_bytes=memory * GiB, setup=said.get("setup", ""))
                return HostJoined(
                    now_s=now_s,
                    host=host,
                    reports=told,
                    last_words=last_words,
                    said_s=now_s + self.ahead_s,
                    told=self._remembered(host.name, told),
                )
            case "report" | "report-unheard":
                return HostReported(
                    now_s=now_s,
                    host=HostName(words[0]),
                    reports=_reports(words[1:]),
                    heard=EVERYTHING if verb == "report" else NOTHING,
                    said_s=now_s + self.ahead_s,
                )
            case "gpus":
                known = self.machine.host(HostName(words[0]))
                assert known is not None, f"no host {words[0]}"
                gpus_now = sick(known, int(words[1].removeprefix("sick=")))
                return HostReported(now_s=now_s, host=known.name, reports=(), gpus=gpus_now)
            case "leave":
                return HostLeft(now_s=now_s, host=HostName(words[0]))
            case "answer":
                assert self.question is not None, "nothing was asked"
                return PolicyAnswered(now_s=now_s, question=self.question, answer=self.question.answer())
            case "tick":
                return QuantumEnded(now_s=now_s)
            case _:
                raise ValueError(f"no such thing can happen: {verb}")

    def _admin(self, verb: str, host: HostName, words: Sequence[str]) -> ClusterEvent:
        now_s, by = self.now_s, UserName("root")
        if verb == "undrain":
            return HostUndrained(now_s=now_s, by=by, host=host)
        if verb == "remove":
            return HostRemoved(now_s=now_s, by=by, host=host, force="force" in words)
        if verb == "drain-gpus":
            gpus = frozenset(GpuId(f"GPU-{host}-{word}") for word in words)
            return GpusDrained(now_s=now_s, by=by, host=host, gpus=gpus)
        said = dict(word.split("=", 1) for word in words)
        by_s = float(said["by"]) if "by" in said else None
        return HostDrained(now_s=now_s, by=by, host=host, reason=said.get("reason", ""), deadline_s=by_s)

    def _wish(self, words: Sequence[str]) -> None:
        job = JobId(int(words[0]))
        self.wishes.pop(job, None)
        if len(words) > 1:
            to = tuple(HostName(name) for name in words[1].split(","))
            reason = MoveReason(words[2]) if len(words) > 2 else MoveReason.BALANCE
            self.wishes[job] = (to, reason, " ".join(words[3:]))

    def _why(self, job: JobId) -> str:
        why = self.machine.why(job, self.now_s)
        wait = "" if why.expected_wait_s < 0 else f" (wait {why.expected_wait_s:.0f} s)"
        return f"{why.reason}{wait}: {why.text} / {why.next_step}"

    def _row(self, job: JobId) -> str:
        row = self.machine.job(job)
        at = f" at {' '.join(row.hosts)}" if row.hosts else ""
        ended = f", {row.exit.why or row.exit.code}" if row.exit else ""
        lost = f", {row.past_lost_gpu_s:g} lost" if row.past_lost_gpu_s else ""
        move = f", moving to {' '.join(row.move.to)}" if row.move else ""
        kept = row.stored
        there = f"at {' '.join(kept.hosts)}" if kept and kept.hosts else "in its folder"
        stored = f", from step {kept.step} of epoch {kept.epoch} {there}" if kept else ""
        at += f" on {row.shape}" if row.shape is not None else ""
        if row.portions:
            at += f" as copies of {' '.join(map(str, row.portions))} from step {row.base_step}"
        return f"{job}:{row.epoch} {row.state}{at}, {row.gpu_s:g} GPU-s{lost}{move}{stored}{ended}"


def _told(outcome: Outcome) -> list[str]:
    lines = []
    for fact in outcome.facts:
        of = f"job {fact.job} " if fact.job is not None else ""
        lines.append(f"{of}{fact.kind}: {fact.text}")
    for command in outcome.commands:
        match command:
            case Direct():
                lines.append(f"→ {command.host} {_wanted(command.wanted)}")
            case Wake():
                lines.append(f"→ wake at {command.at_s:g}")
            case Consult():
                lines.append("→ asks the policy")
            case GiveUp():
                lines.append("→ gives up what the policy was asked before")
    return lines


def _wanted(wanted: Wanted) -> str:
    jobs = ", ".join(_wanted_job(job) for job in wanted.jobs) or "nothing"
    lends = "".join(f", lends {lend.job}:{lend.epoch} #{lend.generation}" for lend in wanted.lends)
    drained = f", not on {' '.join(sorted(wanted.drained_gpus))}" if wanted.drained_gpus else ""
    coming = ""
    if wanted.next_turn is not None:
        coming = f"; quantum {wanted.quantum} ends in {wanted.edge_in_s:g} s, then{_turn(wanted.next_turn) or ' local'}"
    turn = f",{_turn(wanted.turn)}" if _turn(wanted.turn) else ""
    return f"({wanted.term}, {wanted.seq}): {jobs}{lends}{drained}{turn}{coming}"


def _turn(turn: Turn) -> str:
    gangs = f" turn of {' '.join(str(job) for job in turn.gangs)}" if turn.gangs else ""
    return f"{gangs}{'' if turn.local else ', not local'}"


def _wanted_job(job: WantedJob) -> str:
    marks = "".join(
        f" {mark}"
        for mark, said in (
            ("paused", job.paused),
            ("cancelled", job.cancelled),
            ("hold", job.hold),
            ("leave", job.leave),
        )
        if said
    )
    limit = f" limit {job.time_limit_s:g} s" if job.time_limit_s else ""
    of = f" node {job.node_rank} of {' '.join(peer.address for peer in job.nodes)}" if job.nodes else ""
    meet = f" at {job.rendezvous}" if job.rendezvous else ""
    source = job.source
    had = ""
    if source is not None:
        lender = "its folder" if source.peer == NOBODY else source.peer.address
        had = f" from {'its folder or ' if source.look else ''}{lender} {source.epoch}#{source.generation}"
    if source is not None and (source.rank, source.nodes) != (job.node_rank, max(1, len(job.nodes))):
        had += f" (part {source.rank} of {source.nodes})"
    if source is not None and source.parts:
        parts = " ".join(f"{p.peer.address} {p.epoch}#{p.generation}*{p.steps}" for p in source.parts)
        had = f" from the average {source.generation} of {parts}"
    if job.copy >= 0:
        of = f" copy {job.copy} of {job.copies} to step {job.last_step}"
    shape = f" on {job.shape}" if job.shape is not None else ""
    needs = f" and {job.needs_bytes / GiB:g} GiB of each GPU" if job.needs_bytes else ""
    return f"{job.job}:{job.epoch} with {job.tickets:.4g}{needs}{shape}{limit}{of}{meet}{had}{marks}"


def _specs(name: str, words: Sequence[str]) -> tuple[JobSpec, ...]:
    wishes: dict[str, object] = {}
    count = 1
    array = False
    for word in words:
        key, value = word.split("=", 1)
        match key:
            case "count":
                count = int(value)
            case "array":
                count, array = int(value), True
            case "gpu_types":
                wishes[key] = tuple(value.split(","))
            case "after":
                wishes[key] = tuple(_after(text) for text in value.split(","))
            case "elastic":
                numbers = [int(number) for number in value.split(",")]
                wishes[key] = Elastic(
                    **dict(
                        zip(
                            ("gpus_min", "gpus_max", "batch", "batch_max", "batch_per_gpu_max"),
                            numbers,
                            strict=True,
                        )
                    )
                )
            case "strategies":
                wishes[key] = tuple(map(parse, value.split(";")))
            case "env":
                wishes[key] = dict([value.split(":", 1)])
            case "command":
                wishes[key] = tuple(value.split())
            case "workdir" | "output" | "job_class" | "dataset" | "checkpoint_dir":
                wishes[key] = value
            case "topology":
                wishes[key] = Topology(value)
            case "on_partition":
                wishes[key] = OnPartition(value)
            case "migrate":
                wishes[key] = Migrate(value)
            case "max_duration_s":
                wishes[key] = float(value)
            case _:
                wishes[key] = int(value)
    spec = a_spec(name, **wishes)
    return tuple(replace(spec, array_index=i) if array else spec for i in range(count))


def _after(text: str) -> After:
    job, _, condition = text.partition(":")
    return After(job=JobId(int(job)), condition=AfterCondition(condition or "ok"))


def _form(text: str) -> Form:
    if "=" in text:
        return parse(text)
    numbers, _, nodes = text.partition("/")
    gpus, per_gpu, parts = map(int, numbers.split("x"))
    return Shape(gpus=gpus, per_gpu=per_gpu, parts=parts, nodes=int(nodes or 1))


def _ids(words: Sequence[str]) -> tuple[JobId, ...]:
    return tuple(JobId(int(word)) for word in words)


def _reports(words: Sequence[str]) -> tuple[JobReport, ...]:
    found: list[JobReport] = []
    ended: Mapping[str, str] = {}
    for word in words:
        key, value = word.split("=", 1)
        if ":" in key:
            job, epoch = key.split(":")
            found.append(JobReport(job=JobId(int(job)), epoch=int(epoch), phase=Phase(value)))
            ended = {}
        elif key in {"code", "signal", "why"}:
            ended = {**ended, key: value.replace("_", " ")}
            code, signal = int(ended.get("code", 0)), int(ended.get("signal", 0))
            found[-1] = replace(found[-1], exit=Exit(code=code, signal=signal, why=ended.get("why", "")))
        elif key in ("can_checkpoint", "in_turn", "sliceable", "in_touch"):
            found[-1] = replace(found[-1], **{key: value == "yes"})  # type: ignore[arg-type]
        elif key == "rendezvous":
            found[-1] = replace(found[-1], rendezvous=value)
        elif key in {"note", "fallback_why"}:
            found[-1] = replace(found[-1], **{key: value.replace("_", " ")})  # type: ignore[arg-type]
        elif key == "gpus":
            found[-1] = replace(found[-1], gpus=tuple(GpuId(gpu) for gpu in value.split(",")))
        elif key == "beside":
            found[-1] = replace(found[-1], beside=_ids(value.split(",")))
        else:
            number: object = float(value) if key.endswith("_s") or key == "carry" else int(value)
            found[-1] = replace(found[-1], **{key: number})  # type: ignore[arg-type]
    return tuple(found)
