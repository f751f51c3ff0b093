"""What the controller's mind is tested with: a plain policy, short builders, and scenarios as text.

Authors of policies test with the same: `World(policy)`, then one line per thing that happens (`do`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from hs_core.cluster.machine import ClusterMachine
from hs_core.cluster.state import Outcome, Settings, State
from hs_core.errors import RefusedError
from hs_core.events import (
    ClusterEvent,
    Direct,
    HostJoined,
    HostLeft,
    HostReported,
    JobsCancelled,
    JobsPaused,
    JobsSubmitted,
    JobsUnpaused,
    QuantumEnded,
    Turn,
    UserSet,
    Wake,
    Wanted,
    WantedJob,
)
from hs_core.model import (
    After,
    AfterCondition,
    Exit,
    Gpu,
    GpuId,
    Host,
    HostName,
    JobId,
    JobReport,
    JobSpec,
    Phase,
    UserName,
)
from hs_core.policy import HostFacts, JobFacts, Memory, Needs, Plan, Policy, Snapshot, Verdict

GiB = 1 << 30

# --- builders -----------------------------------------------------------------------------------------------------


def a_host(
    name: str, model: str = "V100", gpus: int = 4, *, boot: str = "boot-1", memory_gib: int = 16
) -> Host:
    devices = tuple(
        Gpu(id=GpuId(f"GPU-{name}-{i}"), index=i, model=model, memory_bytes=memory_gib * GiB)
        for i in range(gpus)
    )
    return Host(name=HostName(name), boot_id=boot, gpus=devices)


def a_spec(name: str = "train", **wishes: object) -> JobSpec:
    return replace(JobSpec(name=name, command=("python", "train.py")), **wishes)  # type: ignore[arg-type]


def sick(host: Host, count: int = 1) -> tuple[Gpu, ...]:
    """The host's GPUs with the first `count` unhealthy."""
    return tuple(
        replace(gpu, healthy=gpu.index >= count, why_unhealthy="XID 79" if gpu.index < count else "")
        for gpu in host.gpus
    )


# --- a plain policy -----------------------------------------------------------------------------------------------


def plain_policy(*, every_quantum: bool = False) -> Policy:
    """Each job to the server with the fewest wanted GPUs that can hold it; a user's tickets split by gang size."""

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        homes: dict[JobId, tuple[HostName, ...]] = {job.id: job.hosts for job in snapshot.jobs if job.hosts}
        load = {host.name: 0 for host in snapshot.hosts}
        for job in snapshot.jobs:
            if job.host is not None:
                load[job.host] += job.gang
        for job in sorted(snapshot.jobs, key=lambda j: (j.arrival_s, j.id)):
            able = [host for host in snapshot.hosts if job.host is None and _can_hold(host, job)]
            if able:
                best = min(able, key=lambda host: (Fraction(load[host.name], host.gpus), host.name))
                homes[job.id] = (best.name,)
                load[best.name] += job.gang
        demand: dict[UserName, int] = {}
        for job in snapshot.jobs:
            demand[job.user] = demand.get(job.user, 0) + job.gang
        tickets = {
            job.id: snapshot.tickets[job.user] * job.gang / demand[job.user]
            for job in snapshot.jobs
            if job.id in homes
        }
        why = {
            job.id: f"no server has {job.gang} GPUs for it" for job in snapshot.jobs if job.id not in homes
        }
        plan = Plan(homes=homes, turns={host.name: Turn() for host in snapshot.hosts}, tickets=tickets)
        decisions = int(memory.get("decisions", 0)) + 1
        return Verdict(plan=plan, memory={"decisions": decisions}, why=why)

    return Policy(name="plain", needs=Needs(every_quantum=every_quantum), decide=decide)


def _can_hold(host: HostFacts, job: JobFacts) -> bool:
    model = not job.gpu_types or host.model in job.gpu_types
    memory = job.gpu_memory_bytes <= host.gpu_memory_bytes
    return host.connected and host.accepts and job.gang <= host.gpus and model and memory


# --- scenarios ----------------------------------------------------------------------------------------------------


@dataclass
class World:
    """Drives a machine by lines of text and says what came of each.

        user alice 100                     host n1 V100:4 [boot=b2] [7:0=running …]   leave n1
        submit alice train gpus=2 count=3 after=1:ok array_limit=2 gpu_types=V100 retry_max=1 …
        cancel|pause|unpause alice 1 2     report n1 1:0=running gpu_s=8 step=40      report n1 1:0=exited code=1
        gpus n1 sick=1                     tick          why 1          jobs           restart
        @30                                it is 30 s now

    A report names a job as `id:epoch=phase`; counters after it belong to it.
    """

    policy: Policy
    settings: Settings = field(default_factory=Settings)
    now_s: float = 0.0
    machine: ClusterMachine = field(init=False)
    outcome: Outcome = field(default_factory=Outcome)
    wanted: dict[HostName, Wanted] = field(default_factory=dict)
    wake_s: float | None = None

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
        for command in self.outcome.commands:
            match command:
                case Direct():
                    self.wanted[command.host] = command.wanted
                case Wake():
                    self.wake_s = command.at_s
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
        if verb == "restart":
            self.start(self.machine.state)
            return []
        try:
            outcome = self.handle(self.event(verb, words))
        except RefusedError as refused:
            return [f"refused, {refused.kind}: {refused}"]
        return _told(outcome)

    def event(self, verb: str, words: Sequence[str]) -> ClusterEvent:
        now_s = self.now_s
        match verb:
            case "user":
                tickets = float(words[1]) if len(words) > 1 else None
                return UserSet(now_s=now_s, name=UserName(words[0]), tickets=tickets)
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
                boots = [word.removeprefix("boot=") for word in words if word.startswith("boot=")]
                told = _reports([word for word in words[2:] if not word.startswith("boot=")])
                host = a_host(words[0], model, int(gpus), boot=boots[0] if boots else "boot-1")
                return HostJoined(now_s=now_s, host=host, reports=told)
            case "report":
                return HostReported(now_s=now_s, host=HostName(words[0]), reports=_reports(words[1:]))
            case "gpus":
                known = self.machine.host(HostName(words[0]))
                assert known is not None, f"no host {words[0]}"
                gpus_now = sick(known, int(words[1].removeprefix("sick=")))
                return HostReported(now_s=now_s, host=known.name, reports=(), gpus=gpus_now)
            case "leave":
                return HostLeft(now_s=now_s, host=HostName(words[0]))
            case "tick":
                return QuantumEnded(now_s=now_s)
            case _:
                raise ValueError(f"no such thing can happen: {verb}")

    def _why(self, job: JobId) -> str:
        why = self.machine.why(job, self.now_s)
        wait = "" if why.expected_wait_s < 0 else f" (wait {why.expected_wait_s:.0f} s)"
        return f"{why.reason}{wait}: {why.text} / {why.next_step}"

    def _row(self, job: JobId) -> str:
        row = self.machine.job(job)
        at = f" at {row.host}" if row.host is not None else ""
        ended = f", {row.exit.why or row.exit.code}" if row.exit else ""
        return f"{job}:{row.epoch} {row.state}{at}, {row.gpu_s:g} GPU-s{ended}"


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
    return lines


def _wanted(wanted: Wanted) -> str:
    jobs = ", ".join(_wanted_job(job) for job in wanted.jobs) or "nothing"
    turn = wanted.turn
    gangs = f", turn of {' '.join(str(job) for job in turn.gangs)}" if turn.gangs else ""
    return f"({wanted.term}, {wanted.seq}): {jobs}{gangs}{'' if turn.local else ', not local'}"


def _wanted_job(job: WantedJob) -> str:
    marks = "".join([" paused" if job.paused else "", " cancelled" if job.cancelled else ""])
    limit = f" limit {job.time_limit_s:g} s" if job.time_limit_s else ""
    return f"{job.job}:{job.epoch} with {job.tickets:.4g}{limit}{marks}"


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
            case "env":
                wishes[key] = dict([value.split(":", 1)])
            case "command":
                wishes[key] = tuple(value.split())
            case "workdir" | "output" | "job_class":
                wishes[key] = value
            case "max_duration_s":
                wishes[key] = float(value)
            case _:
                wishes[key] = int(value)
    spec = a_spec(name, **wishes)
    return tuple(replace(spec, array_index=i) if array else spec for i in range(count))


def _after(text: str) -> After:
    job, _, condition = text.partition(":")
    return After(job=JobId(int(job)), condition=AfterCondition(condition or "ok"))


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
        else:
            number: object = float(value) if key.endswith("_s") else int(value)
            found[-1] = replace(found[-1], **{key: number})  # type: ignore[arg-type]
    return tuple(found)
