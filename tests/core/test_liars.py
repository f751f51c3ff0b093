"""Processes of a job, and agents, may say what they like, and when they like: that is of that job, or that host, and breaks nothing that is others' as well."""

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from hs_core.cluster.harness import World
from hs_core.cluster.state import Settings
from hs_core.events.host import (
    Checkpoint,
    DeviceMemorySeen,
    HostEvent,
    JobExited,
    JobFroze,
    Kill,
    Launch,
    Resume,
    Suspend,
    WantedChanged,
    Woke,
)
from hs_core.gang import GangMachine
from hs_core.host import HostConfig, HostMachine
from hs_core.model import Gpu, JobSpec, SuspendMode
from hs_core.names import GpuId, HostName, JobId, UserName
from hs_core.policies import find
from hs_core.reports import Exit, Phase, Tier
from hs_core.wanted import Peer, Turn, Wanted, WantedJob

ALL = ("hold", "swap", "checkpoint")
NODES = (Peer(host=HostName("a"), address="a:1"), Peer(host=HostName("b"), address="b:1"))


def job(number: int, *, gpus: int = 1, nodes: int = 1, memory_bytes: int = 1, **spec: Any) -> WantedJob:
    several = {"nodes": NODES, "rendezvous": "127.0.0.1:1"} if nodes > 1 else {}
    return WantedJob(
        job=JobId(number),
        epoch=1,
        user=UserName(f"u{number}"),
        run_as="u",
        job_class=f"c{number}",
        spec=JobSpec(
            name="j", command=("train",), gpus=gpus, nodes=nodes, gpu_memory_bytes=memory_bytes, **spec
        ),
        tickets=1.0,
        **several,
    )


class Host:
    """A host's machine and its jobs' gangs, put together as an agent does."""

    def __init__(self, gpus: int, *jobs: WantedJob, **config: Any) -> None:
        there = [Gpu(id=GpuId(f"G{n}"), index=n, model="V100", memory_bytes=16 << 30) for n in range(gpus)]
        self.now_s = 1000.0
        self.machine = HostMachine(tuple(there), HostConfig(**config), now_s=self.now_s)
        self.jobs = {one.job: one for one in jobs}
        self.gangs: dict[JobId, GangMachine] = {}
        self.seq = 0

    def handle(self, *events: HostEvent) -> None:
        todo = deque(events)
        while todo:
            for command in self.machine.handle(todo.popleft()).commands:
                todo += self.done(command)

    def done(self, command: Any) -> Iterable[HostEvent]:
        at: dict[str, Any] = {"now_s": self.now_s, "job": getattr(command, "job", None), "epoch": 1}
        match command:
            case Launch():
                nodes = max(1, len(command.wanted.nodes))
                self.gangs[command.wanted.job] = GangMachine(command.wanted.job, 1, nodes=nodes)
            case Suspend(tier=Tier.FREEZE):
                yield JobFroze(**at)
            case Suspend() | Resume() | Checkpoint() if command.job in self.gangs:
                gang = self.gangs[command.job]
                yield from [gang.for_node(each, 0) for each in gang.order(command, self.now_s).events]
            case Kill() if self.gangs.pop(command.job, None):
                yield JobExited(**at, exit=Exit(signal=9))

    def want(
        self, *turn: int, jobs: Iterable[int] = (), paused: Iterable[int] = (), local: bool = False
    ) -> None:
        self.seq += 1
        wanted = [replace(self.jobs[JobId(n)], paused=n in paused) for n in jobs or self.jobs]
        gangs = tuple(map(JobId, turn))
        said = Wanted(
            term=1, seq=self.seq, quantum_s=20.0, turn=Turn(gangs=gangs, local=local), jobs=tuple(wanted)
        )
        self.handle(WantedChanged(now_s=self.now_s, wanted=said, late_s=0.0))

    def says(self, number: int, where: Any = 0, **message: Any) -> None:
        gang = self.gangs.get(JobId(number))
        if gang is not None:
            self.heard(gang, gang.heard(where, message, self.now_s).events)

    def heard(self, gang: GangMachine, events: Iterable[HostEvent]) -> None:
        for event in events:
            self.handle(gang.for_node(event, 0))

    def later(self, seconds: float) -> None:
        self.now_s += seconds
        self.handle(Woke(now_s=self.now_s))

    def phase(self, number: int) -> Phase:
        return self.machine.report(JobId(number)).phase


def hello(state: str, *, can: Iterable[str] = ALL, **more: Any) -> dict[str, Any]:
    said = {"type": "hello", "protocol": 1, "pid": 1, "rank": 0, "world": 1, "step": 0, "state": state}
    return {**said, "tier": "hold", "can": list(can), "id": 0, "generation": -1, **more}


def test_who_says_that_it_has_moved_more_to_host_memory_than_there_is_and_then_nothing_harms_nobody() -> None:
    host = Host(1, job(1), job(2, suspend=SuspendMode.TRANSPARENT), host_memory_budget_bytes=1 << 34)
    host.want(1)
    host.says(1, **hello("new", can=("hold", "swap")))
    host.says(1, type="arrived", step=0, can=["hold", "swap"], rank=0, world=1)
    host.says(1, type="going", step=0, seconds=0.0)
    host.want(2)
    for stop, moved_bytes in ((1, 1 << 49), (2, 0)):
        host.says(1, type="held", id=stop, step=0, tier="swap", bytes=moved_bytes, seconds=0.0)
        if moved_bytes:
            host.says(1, type="going", step=0, seconds=0.0)
    assert (host.phase(1), host.phase(2)) == (Phase.SWAPPED, Phase.RUNNING)


@pytest.mark.parametrize(
    ("first", "others", "paused"),
    [(job(1), (), (1,)), (job(1, nodes=2), (2,), ())],
    ids=["paused", "a part of several"],
)
def test_one_that_could_not_be_stopped_and_says_that_it_can_is_stopped_where_it_is_not_its_turn(
    first: WantedJob, others: tuple[int, ...], paused: tuple[int, ...]
) -> None:
    host = Host(1, first, job(2), can_freeze=False)
    host.want(1)
    host.later(60.0)
    host.want(*others or (1,), paused=paused)
    assert host.phase(1) is Phase.RUNNING
    host.says(1, **hello("running", world=first.spec.nodes))
    if first.spec.nodes > 1:
        host.says(1, (1, 0), **hello("running", world=2, rank=1, pid=2))
    assert host.phase(1) is Phase.SUSPENDING


def test_one_that_comes_anew_as_another_world_while_all_were_to_leave_is_a_rank_of_that() -> None:
    gang = GangMachine(JobId(1), 1, nodes=2)
    gang.heard("a", hello("new", world=3), 0.0)
    gang.order(Suspend(job=JobId(1), epoch=1, tier=Tier.CHECKPOINT, order=1), 0.0, node=1)
    gang.heard("b", hello("held", tier="swap", pid=2), 0.0)
    gang.gone("b", 0.0)
    gang.heard("a", {"type": "arrived", "step": 0, "can": ["hold"]}, 0.0)
    gang.check()
    gang.order(Suspend(job=JobId(1), epoch=1, tier=Tier.SWAP, order=2), 0.0, node=1)


def _lie(draw: random.Random) -> dict[str, Any]:
    world = draw.choice([1, 1, 2, 2, 3])
    said: dict[str, Any] = {
        "type": draw.choice(
            [
                "hello",
                "hello",
                "arrived",
                "arrived",
                "blocked",
                "can",
                "accept",
                "reject",
                "held",
                "held",
                "failed",
                "going",
                "progress",
                "saved",
                "restored",
            ]
        ),
        "protocol": 1,
        "pid": draw.choice([10, 11]),
        "rank": draw.randrange(world),
        "world": world,
        "state": draw.choice(["new", "running", "held"]),
        "tier": draw.choice(ALL),
        "can": draw.choice([[], ["hold"], list(ALL), ["hold", "checkpoint", "single"]]),
        "generation": draw.randrange(-1, 4),
        "seconds": draw.choice([0, 0.1, 1e300]),
        "bytes": draw.choice([0, 1, 1 << 49]),
        "what": draw.choice(["swap", "checkpoint"]),
        "why": "x",
        "on": draw.random() < 0.5,
        "portion": draw.random() < 0.5,
        "device_bytes": 5,
    }
    said |= {name: draw.randrange(6) for name in ("step", "at_step", "id", "steps")}
    if said["type"] == "hello" and draw.random() < 0.3:
        said["bound"] = {"id": 1, "at_step": 3, "generation": 1, "committed": draw.random() < 0.5}
    return said


@pytest.mark.parametrize("seed", range(120))
def test_whatever_the_processes_of_jobs_say_at_whatever_time_their_host_goes_on(seed: int) -> None:
    draw = random.Random(seed)
    sizes, gpus = (0, 1, 1 << 33), draw.choice([1, 2])
    jobs = [
        job(1, nodes=draw.choice([1, 1, 2]), gpus=draw.choice([1, gpus]), memory_bytes=draw.choice(sizes)),
        job(
            2,
            memory_bytes=draw.choice(sizes),
            suspend=draw.choice([SuspendMode.AUTO, SuspendMode.TRANSPARENT]),
        ),
        job(3, gpus=gpus),
    ]
    budget_bytes = draw.choice([0, 1 << 34, 1 << 41])
    host = Host(gpus, *jobs, host_memory_budget_bytes=budget_bytes, can_freeze=draw.random() < 0.5)
    for _ in range(100):
        host.now_s += draw.choice([0.1, 1.0, 5.0, 30.0])
        number, chance = draw.choice([1, 2, 3]), draw.random()
        gang = host.gangs.get(JobId(number))
        if chance < 0.2:
            host.want(
                *draw.sample([1, 2, 3], draw.randrange(3)),
                jobs=[n for n in (1, 2, 3) if draw.random() < 0.95],
                paused=[n for n in (1, 2, 3) if draw.random() < 0.05],
                local=draw.random() < 0.5,
            )
        elif chance < 0.35:
            host.later(0.0)
        elif chance < 0.38:
            held_bytes = {JobId(number): draw.choice([0, 1 << 30, 1 << 40])}
            host.handle(DeviceMemorySeen(now_s=host.now_s, held_bytes=held_bytes))
        elif gang is not None:
            where = draw.randrange(gang.nodes), draw.randrange(3)
            if chance < 0.43:
                host.heard(gang, gang.gone(where, host.now_s).events)
            else:
                host.says(number, where, **_lie(draw))
        host.machine.reports()


def test_of_a_gang_whose_first_server_is_heard_of_last_no_suspend_is_forgotten() -> None:
    """An agent, too, may say what it likes of the jobs on its server: the controller, which is everybody's, goes on."""
    world = World(find("fifo"), Settings(settle_s=0.0, quantum_s=20.0))
    world.play("""
        user ann
        host h1 V100:4
        host h2 V100:4
        submit ann wide gpus=4 nodes=2
        tick
        report h2 1:0=running nodes=2 rank=1 suspends=5 resumes=7
        report h1 1:0=running nodes=2
    """)
    report = world.machine.job(JobId(1)).report
    assert report is not None
    assert (report.phase, report.suspends, report.resumes) == (Phase.RUNNING, 5, 7)


@pytest.mark.parametrize("policy", ["las", "pal"])
def test_a_server_that_says_of_more_jobs_that_they_run_than_it_has_gpus_for_and_leaves_harms_nobody(
    policy: str,
) -> None:
    world = World(find(policy), Settings(settle_s=0.0, quantum_s=20.0))
    world.play("""
        user ann
        host h1 V100:4
        submit ann some gpus=2 count=3
        tick
        report h1 1:0=running in_turn=yes gpu_s=100 run_s=50 2:0=running in_turn=yes gpu_s=100 run_s=50
        @30
        tick
        report h1 1:0=held gpu_s=100 run_s=50 2:0=running gpu_s=200 run_s=100 3:0=running gpu_s=100 run_s=50
        @60
        tick
        report h1 1:0=running gpu_s=300 run_s=150 2:0=running sliceable=no gpu_s=300 run_s=150
        report h1 3:0=running sliceable=no gpu_s=300 run_s=150
        leave h1
        @90
        tick
    """)
    assert len(world.wanted[HostName("h1")].turn.gangs) == 2
