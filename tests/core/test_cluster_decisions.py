"""ClusterMachine: what the policy is shown, when it is asked, and what becomes of what it says."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from math import inf

import pytest
from clusters import ALICE, N1, SETTINGS, submit, world

from hs_core.cluster import Reason, Settings
from hs_core.cluster.harness import World, a_spec, plain_policy
from hs_core.cluster.plain import Wishes
from hs_core.errors import BrokenError, RefusedError
from hs_core.events.cluster import QuantumEnded
from hs_core.forms import Form
from hs_core.model import MoveReason, SuspendMode
from hs_core.names import HostName, JobId, UserName
from hs_core.policies import find
from hs_core.policy import Going, Memory, Needs, Plan, Policy, Snapshot, Verdict
from hs_core.wanted import Seat, Turn, Wanted


def recording(
    turns: dict[HostName, Turn],
    seen: list[Snapshot],
    *,
    every_quantum: bool = False,
    progress: bool = True,
    wishes: Wishes | None = None,
) -> Policy:
    inner = plain_policy(wishes=wishes)

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        seen.append(snapshot)
        verdict = inner.decide(snapshot, memory)
        return replace(verdict, plan=replace(verdict.plan, turns={**verdict.plan.turns, **turns}))

    needs = Needs(every_quantum=every_quantum, progress=progress)
    return Policy(name="recording", needs=needs, decide=decide)


def test_the_policys_turn_goes_out_without_those_that_cannot_take_it() -> None:
    turn = Turn(gangs=(JobId(1), JobId(2)), local=False)
    told = plain_policy()

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        verdict = told.decide(snapshot, memory)
        return replace(verdict, plan=replace(verdict.plan, turns={N1: turn if snapshot.jobs else Turn()}))

    slow = replace(SETTINGS, settle_s=5.0)
    at = world(policy=Policy(name="gangs", needs=Needs(), decide=decide), settings=slow)
    at.now_s = 10.0
    at.do("submit alice a gpus=2 count=2")
    at.now_s = 11.0  # too early to decide again
    assert at.wanted[N1].turn == turn
    at.do("report n1 1:0=held")
    why = at.machine.why(JobId(1), 0.0)
    assert (why.reason, why.text) == (
        Reason.WAITING_FOR_TURN,
        "it has its turn on n1 now, and is about to start",
    )
    at.do("pause alice 1")
    assert at.wanted[N1].turn == Turn(gangs=(JobId(2),), local=False)


@pytest.mark.parametrize(
    "seats", [(), (Seat(job=JobId(2), gpus=(0, 1)),)], ids=["", "on GPUs that were named"]
)
def test_what_who_is_gone_had_of_a_quantum_is_shared_out_by_the_server_until_it_ends(
    seats: tuple[Seat, ...],
) -> None:
    """Where a part of a gang over several servers lives quanta are common: what the policy says now is of the next one."""
    turns = {N1: Turn(gangs=(JobId(2),), local=False, seats=seats)}
    wishes: Wishes = {JobId(job): ((N1,), MoveReason.BALANCE, "") for job in (2, 3)}
    plain = plain_policy(wishes=wishes, every_quantum=True)

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        verdict = plain.decide(snapshot, memory)
        homes = verdict.plan.homes
        named = {at: turn.among([job for job in homes if at in homes[job]]) for at, turn in turns.items()}
        return replace(verdict, plan=replace(verdict.plan, turns=named))

    names = replace(plain, decide=decide, needs=replace(plain.needs, by_gpu=True))
    at = World(names, Settings(quantum_s=20.0, settle_s=0.0), wishes=wishes)
    for line in (
        "host n1 V100:2",
        "host n2 V100:2",
        "user alice",
        "submit alice gang nodes=2",
        "submit alice first gpus=2",
        "submit alice second gpus=2",
        "report n1 2:0=running can_checkpoint=yes 3:0=held can_checkpoint=yes",
        "@20",
        "tick",
    ):
        at.do(line)
    assert at.wanted[N1].turn == turns[N1]
    assert at.wanted[N1].edge_in_s == 20.0
    at.do("wish 2 n2")
    at.do("@25")
    at.do("user alice 90")
    assert at.wanted[N1].jobs[1].leave
    assert at.wanted[N1].turn == turns[N1], "it is on its way out, and has its GPUs still"
    at.do("report n1 2:0=checkpointed step=7 checkpoint_step=7 checkpoint_generation=0 can_checkpoint=yes")
    assert at.wanted[N1].turn == Turn(gangs=(), local=True)
    at.do("@40")
    at.do("tick")
    assert not at.wanted[N1].turn.local, "of a quantum that it knew of the policy has the say"


@pytest.mark.parametrize("started", [False, True], ids=["without a process", "with one"])
def test_who_has_its_turn_now_and_does_not_run_yet_stays_for_it_where_turns_come_one_ahead(
    started: bool,
) -> None:
    """A policy that finds servers anew at each edge would else send it away as its turn begins, each time."""
    roams = JobId(2)
    plain = plain_policy(every_quantum=True)

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        homes = dict(plain.decide(snapshot, memory).plan.homes)
        there = HostName(f"n{1 + snapshot.quantum % 2}")
        sent = [job for job in snapshot.jobs if job.id == roams and job.movable and job.hosts != (there,)]
        homes |= {job.id: (there,) for job in sent}
        turns = {
            host.name: Turn(gangs=tuple(job for job in homes if host.name in homes[job]), local=False)
            for host in snapshot.hosts
        }
        moves = {job.id: (MoveReason.ROUND, "") for job in sent if job.started}
        tickets = dict.fromkeys(homes, Fraction(1))
        return Verdict(plan=Plan(homes=homes, turns=turns, tickets=tickets, moves=moves), memory={})

    at = World(replace(plain, decide=decide), Settings(quantum_s=10.0, settle_s=0.0))
    for line in (
        "host n1 V100:2",
        "host n2 V100:2",
        "user alice",
        "submit alice a nodes=2",
        "submit alice b",
    ):
        at.do(line)
    kept = "can_checkpoint=yes step=5 checkpoint_step=5 checkpoint_generation=0"

    def report(phase: str) -> None:
        row = at.machine.job(roams)
        at.do(f"report {row.host} 2:{row.epoch}={phase} {kept}")

    homes = []
    for quantum in range(1, 5):
        if started:
            report("held")
        planned = at.machine.job(roams)
        at.do(f"@{10 * quantum}")
        at.do("tick")
        row = at.machine.job(roams)
        assert (row.hosts, row.move) == (planned.hosts, None)
        assert roams in at.wanted[row.hosts[0]].turn.gangs
        homes.append(row.hosts)
        report("running")  # from now on it is like all others
        at.do(f"@{10 * quantum + 5}")
        at.do("user alice 90" if quantum % 2 else "user alice 100")
        report("checkpointed")
    assert len(set(homes)) == 2, "in between it goes where it is sent"


def test_servers_in_step_hear_of_each_quantum_one_ahead_and_others_keep_their_own_cadence() -> None:
    n2, n3, n4 = map(HostName, ("n2", "n3", "n4"))
    at = World(find("gandiva-fair"), Settings(quantum_s=20.0, settle_s=0.0))
    for line in (
        "host n1 V100:1",
        "host n2 V100:1",
        "host n3 K80:1",
        "host n4 V100:1",
        "user alice",
        "user bob",
        "user carol",
        *("submit alice a gpu_types=V100",) * 2,
        *("submit bob b gpu_types=V100",) * 2,
        "submit carol e gpu_types=V100",  # has all of a server in each quantum
        "submit bob c gpu_types=K80",
        *("submit alice d gpu_types=K80",) * 2,
        *(
            word for end_s in (20, 40, 60) for word in (f"@{end_s}", "tick")
        ),  # by then they have found their homes
    ):
        at.do(line)
    seen: list[dict[HostName, Wanted]] = []
    for quantum in range(3, 11):
        for name in (N1, n2, n4):
            wanted = at.wanted[name]
            assert (wanted.quantum, wanted.edge_in_s) == (quantum, 20.0)
            assert wanted.next_turn is not None
            assert not seen or wanted.turn == seen[-1][name].next_turn
            assert len(wanted.next_turn.gangs) == 1
            assert wanted.next_turn.local
        assert at.wanted[n3].edge_in_s is None
        assert at.wanted[n3].turn == Turn()
        seen.append(dict(at.wanted))
        at.do(f"@{20 * (quantum + 1)}")
        at.do("tick")
    had = Counter[str]()
    for told in seen:
        coming = {job: name for name in (N1, n2, n4) if (turn := told[name].next_turn) for job in turn.gangs}
        had.update(
            job.user for name in (N1, n2, n4) for job in told[name].jobs if coming.get(job.job) == name
        )
    assert had["carol"] == 8
    assert abs(had["alice"] - had["bob"]) <= 2
    at.do("cancel alice 1 2")
    assert all(at.wanted[name].edge_in_s is None for name in (N1, n2, n4))


def test_where_quanta_end_for_nobody_any_more_no_server_waits_for_the_end_of_one() -> None:
    """It would repeat turns of earlier ones, as if nobody said anything."""
    at = World(find("fifo"), Settings(quantum_s=20.0, settle_s=3.0))
    for line in (
        *("host n1 V100:2", "host n2 V100:2", "user alice", "submit alice g nodes=2"),
        *("submit alice a", "submit alice b gpus=2", "@4", "tick", "@8", "tick"),
        *("report n1 1:0=running gpu_s=1", "report n2 1:0=running gpu_s=1", "@25", "tick", "@28", "tick"),
        *("cancel alice 1", "report n1 1:0=exited why=cancelled", "report n2 1:0=exited why=cancelled"),
    ):
        at.do(line)
    assert any(wanted.edge_in_s is not None for wanted in at.wanted.values()), "nobody has decided yet"
    at.do("@32")
    at.do("tick")
    assert [wanted.edge_in_s for wanted in at.wanted.values()] == [None, None]


def test_a_process_whose_gpus_are_known_is_chosen_beside_none_that_has_them() -> None:
    at = World(find("gandiva-fair"), Settings(quantum_s=20.0, settle_s=0.0))
    for line in (
        "host n1 V100:2",
        "host n2 V100:2",
        "user alice",
        "user bob",
        *("submit alice a",) * 4,
        *("submit bob b",) * 4,
        "tick",
    ):
        at.do(line)
    bound: dict[HostName, dict[JobId, int]] = {}
    for name in (N1, HostName("n2")):
        here = [row.id for row in at.machine.jobs() if row.host == name]
        bound[name] = {job: number % 2 for number, job in enumerate(here)}  # of each user one to each GPU
        host = at.machine.host(name)
        assert host is not None
        words = [
            f"{job}:0=held gpus={host.gpus[gpu].id} can_checkpoint=yes" for job, gpu in bound[name].items()
        ]
        at.do(f"report {name} {' '.join(words)}")
    for quantum in range(1, 9):
        at.do(f"@{20 * quantum}")
        at.do("tick")
        for name, of in bound.items():
            turn = at.wanted[name].next_turn
            assert turn is not None
            assert sorted(of[job] for job in turn.gangs) == [0, 1]


def test_a_burst_of_submits_costs_few_decisions() -> None:
    seen: list[Snapshot] = []
    at = world(policy=recording({}, seen), settings=replace(SETTINGS, settle_s=0.1))
    for i in range(200):
        at.now_s = 5.0 + i / 200
        submit(at, a_spec())
    at.now_s = at.wake_s or 0.0
    at.handle(QuantumEnded(now_s=at.now_s))
    assert len(seen) <= 12
    assert all(row.host == "n1" for row in at.machine.jobs())


def test_nobody_is_asked_when_nothing_changed() -> None:
    seen: list[Snapshot] = []
    at = world("submit alice a", policy=recording({}, seen))
    at.do("report n1 1:0=held")
    asked = len(seen)
    for line in (
        "report n1 1:0=running gpu_s=3",
        "report n1 1:0=held gpu_s=5 step=9",
        "tick",
        "user alice 100",
    ):
        at.do(line)
    assert len(seen) == asked


def test_a_policy_that_asked_for_it_is_asked_at_every_edge() -> None:
    seen: list[Snapshot] = []
    at = world("submit alice a", policy=recording({}, seen, every_quantum=True))
    quanta = []
    for _ in range(3):
        assert at.wake_s is not None
        at.now_s = at.wake_s
        at.do("tick")
        quanta.append(seen[-1].quantum)
    assert (quanta, at.machine.quantum, at.now_s) == ([2, 3, 4], 3, 30.0)


def test_the_snapshot_shows_who_could_run_and_nobody_else() -> None:
    seen: list[Snapshot] = []
    at = world(policy=recording({}, seen))
    submit(at, a_spec(), a_spec(suspend=SuspendMode.NONE), a_spec(gpus=4))
    at.do("submit alice waits after=1")
    at.do("pause alice 3")
    at.do("report n1 1:0=running gpu_s=4")
    at.do("user alice 50")
    shown = {job.id: job for job in seen[-1].jobs}
    assert set(shown) == {1, 2}
    assert (shown[JobId(1)].started, shown[JobId(1)].attained_gpu_s) == (True, 4.0)
    assert seen[-1].running == {1}
    assert (shown[JobId(1)].sliceable, shown[JobId(2)].sliceable) == (True, False)
    assert seen[-1].tickets == {ALICE: 50}


@pytest.mark.parametrize(("progress", "had_gpu_s"), [(True, 9.0), (False, 4.0)])
def test_a_job_of_which_only_counters_are_new_is_shown_again_to_those_who_go_by_them(
    progress: bool, had_gpu_s: float
) -> None:
    seen: list[Snapshot] = []
    at = world(policy=recording({}, seen, progress=progress))
    at.do("submit alice a")
    at.do("report n1 1:0=running gpu_s=4")
    at.do("user alice 50")
    before = seen[-1].jobs[0]
    at.do("report n1 1:0=running gpu_s=9")
    at.do("user alice 60")
    after = seen[-1].jobs[0]
    assert seen[-1].running == {after.id}
    assert (before.attained_gpu_s, after.attained_gpu_s) == (4.0, had_gpu_s)
    assert (after is before) is not progress
    at.do("report n1 1:0=held gpu_s=9")
    at.do("user alice 70")
    assert not seen[-1].running
    assert seen[-1].jobs[0] is after, "a turn that ended is no news of the job itself"


def test_a_policy_that_places_where_nothing_can_be_placed_stops_the_controller() -> None:
    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        homes = {job.id: (HostName("n1"),) for job in snapshot.jobs}
        return Verdict(plan=Plan(homes=homes, turns={}, tickets={}), memory=memory)

    at = world(policy=Policy(name="bad", needs=Needs(), decide=decide))
    with pytest.raises(BrokenError):
        submit(at, a_spec())


def test_shares_follow_tickets_on_a_host() -> None:
    at = world("user bob 300", "submit alice a gpus=4", "submit bob b gpus=4")
    assert at.machine.job_tickets(JobId(1)) == 100.0
    assert (at.machine.job_share_gpus(JobId(1)), at.machine.job_share_gpus(JobId(2))) == (1.0, 3.0)
    at.do("pause bob 2")
    assert (at.machine.job_share_gpus(JobId(1)), at.machine.job_share_gpus(JobId(2))) == (4.0, 0.0)
    assert at.machine.demand() == {("alice", "V100"): 4.0}


def would_entitle(at: World, tickets: float, now_s: float) -> dict[tuple[str, str], float]:
    question = at.machine.what_if({ALICE: tickets}, now_s)
    assert question is not None
    return {account: float(gpus) for account, gpus in question.verdict().entitled.items()}


def test_who_asks_what_other_tickets_would_come_to_changes_nothing() -> None:
    fair = find("gandiva-fair")

    def counting(snapshot: Snapshot, memory: Memory) -> Verdict:
        verdict = fair.decide(snapshot, memory)
        return replace(verdict, memory={**verdict.memory, "asked": memory.get("asked", 0) + 1})

    policy = replace(fair, decide=counting)
    lines = ("user bob", "host n2 V100:4", "submit alice a gpus=4 nodes=2", "submit bob b gpus=4 nodes=2")
    at, unasked = (world(*lines, policy=policy) for _ in range(2))
    state, shares = at.machine.state, at.machine.job_share_gpus(JobId(1))
    has = []
    for tickets in (1.0, 300.0, 1e6):
        then = would_entitle(at, tickets, at.now_s + 5.0)
        assert then["alice", "V100"] + then["bob", "V100"] == pytest.approx(8.0)
        has.append(then["alice", "V100"])
    assert has == sorted(set(has))
    assert at.machine.state == state
    assert at.machine.job_share_gpus(JobId(1)) == shares
    for then_s in (10.0, 20.0, 30.0):
        would_entitle(at, 5.0, then_s)
        edge = QuantumEnded(now_s=then_s)
        assert at.machine.handle(edge) == unasked.machine.handle(edge)
        assert at.do("submit bob c") == unasked.do("submit bob c")
        assert at.machine.state == unasked.machine.state
    for wrong, words in (({UserName("eve"): 5.0}, "no user 'eve'"), ({ALICE: -1.0}, "tickets")):
        with pytest.raises(RefusedError, match=words):
            at.machine.what_if(wrong, at.now_s)


def test_the_policy_is_told_where_a_job_is_going_until_it_has_left() -> None:
    seen: list[Snapshot] = []
    wishes: Wishes = {}
    shapes: dict[JobId, Form] = {}
    plain = plain_policy(wishes=wishes, shapes=shapes)

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        seen.append(snapshot)
        return plain.decide(snapshot, memory)

    at = World(replace(plain, decide=decide), Settings(settle_s=0.0), wishes=wishes, shapes=shapes)

    def told(lines: str) -> list[Going | None]:
        for line in lines.splitlines():
            at.do(line.strip())
        return [job.going for job in seen[-1].jobs]

    begun = """host n1 V100:4
        host n2 V100:4
        user alice
        submit alice a gpus=2 elastic=1,4,32,256,32
        submit alice b gpus=2
        report n1 1:0=running can_checkpoint=yes
        report n2 2:0=running can_checkpoint=yes"""
    assert told(begun) == [None, None]
    going = """shape 1 4x32x1
        wish 2 n1
        user alice 90
        user alice 91"""
    assert told(going) == [Going(hosts=(N1,), gpus=4), Going(hosts=(N1,), gpus=2)]
    assert not any(job.movable for job in seen[-1].jobs)
    left = "report n2 2:0=checkpointed step=7 checkpoint_step=7 checkpoint_generation=0 can_checkpoint=yes"
    assert told(left) == [Going(hosts=(N1,), gpus=4), None]
    assert (seen[-1].jobs[1].hosts, seen[-1].jobs[1].coming) == ((N1,), True)


def test_who_moved_has_settled_once_its_checkpoint_has_come_along() -> None:
    """Over a slow network that takes minutes: called back as soon as it had left, it would be so again and again."""
    seen: list[Snapshot] = []
    wishes: Wishes = {}
    at = World(recording({}, seen, wishes=wishes), Settings(settle_s=0.0), wishes=wishes)

    def settled_s(lines: str) -> float:
        for line in lines.splitlines():
            at.do(line.strip())
        return seen[-1].jobs[0].settled_s

    begun = """host n1 V100:4
        host n2 V100:4
        user alice
        submit alice a
        report n1 1:0=running can_checkpoint=yes"""
    assert settled_s(begun) == 0.0
    left = """@100
        wish 1 n2
        user alice 90
        @130
        report n1 1:0=checkpointed step=7 checkpoint_step=7 checkpoint_generation=0 can_checkpoint=yes
        report n2 1:1=waiting"""
    assert settled_s(left) == inf
    there = """@430
        report n2 1:1=waiting checkpoint_step=7 checkpoint_generation=0"""
    assert settled_s(there) == 430.0
    row = at.machine.job(JobId(1))
    assert row is not None
    assert row.settled_s == 430.0
    at.do("@440")
    told = at.do(
        "report n2 1:1=held step=7 began_step=7 checkpoint_step=7 checkpoint_generation=0 can_checkpoint=yes"
    )
    assert any("it moved from n1 to n2 in 340.0 s" in line for line in told), told
    assert settled_s("user alice 91") == 430.0


def test_who_cannot_have_its_checkpoint_is_not_waited_for() -> None:
    seen: list[Snapshot] = []
    wishes: Wishes = {}
    at = World(recording({}, seen, wishes=wishes), Settings(settle_s=0.0), wishes=wishes)
    begun = """host n1 V100:4
        host n2 V100:4
        user alice
        submit alice a
        report n1 1:0=running can_checkpoint=yes
        wish 1 n2
        user alice 90
        @30
        report n1 1:0=checkpointed step=7 checkpoint_step=7 checkpoint_generation=0 can_checkpoint=yes
        report n2 1:1=waiting
        @60
        report n2 1:1=waiting note=cannot_fetch_it:_n1_cannot_be_reached"""
    for line in begun.splitlines():
        at.do(line.strip())
    assert (seen[-1].jobs[0].settled_s, seen[-1].jobs[0].held_up) == (60.0, True)


@pytest.mark.parametrize("ends", [True, False])
def test_who_ended_is_decided_about_at_once_or_at_the_next_edge_as_the_policy_says(ends: bool) -> None:
    asked: list[tuple[float, tuple[JobId, ...]]] = []
    plain = plain_policy(every_quantum=True)

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        asked.append((snapshot.now_s, tuple(job.id for job in snapshot.jobs)))
        return plain.decide(snapshot, memory)

    at = world(policy=replace(plain, needs=replace(plain.needs, ends=ends), decide=decide))
    at.do("submit alice a gpus=1 count=2")
    at.do("submit alice b gpus=1 after=1")
    for line in ("@1", "report n1 1:0=running 2:0=running", "@23"):
        at.do(line)
    asked.clear()
    at.do("report n1 2:0=exited code=0")
    assert bool(asked) is ends
    at.do("@26")
    at.do("report n1 1:0=exited code=0")
    assert asked[-1] == (26.0, (3,)), "who waited for it is a newcomer"
    at.do("@30")
    at.do("tick")
    assert asked[-1] == (30.0, (3,)), "the edge"


@pytest.mark.parametrize("then", ["report n1 2:0=exited code=1", "cancel alice 2"])
def test_the_next_of_an_array_with_a_limit_has_a_home_as_soon_as_one_has_ended(then: str) -> None:
    """Also under a policy that need not be asked when jobs end: servers know only of jobs that have a home."""
    plain = plain_policy(every_quantum=True)
    at = world(policy=replace(plain, needs=replace(plain.needs, ends=False)))
    at.do("submit alice a array=4 array_limit=2")
    at.do("@1")
    at.do("report n1 1:0=running 2:0=running")
    at.do("@13")
    placed = at.do("report n1 1:0=exited code=0")
    assert [line for line in placed if "placed" in line] == ["job 3 placed: it lives on n1 (V100)"]
    at.do("@26")
    placed = [line for line in (*at.do(then), *at.do("report n1 2:0=exited code=1")) if "placed" in line]
    assert placed == ["job 4 placed: it lives on n1 (V100)"]
    at.machine.check()


@pytest.mark.parametrize(
    ("ended", "beside", "at_once"),
    [
        ("2", "", True),
        ("2", "submit alice d gpus=4", False),  # which has all GPUs that nobody else has
        ("2", "submit alice d gpus=3", True),
        ("2", "submit alice d gpus=4; pause alice 4", True),
        ("3", "", False),  # on a server without a part of a gang
    ],
)
def test_who_leaves_gpus_idle_beside_gangs_over_several_servers_is_decided_about_at_once(
    ended: str, beside: str, at_once: bool
) -> None:
    """Servers fill GPUs by themselves, but for gangs over several of them."""
    asked: list[float] = []
    homes = {2: N1, 3: HostName("n3"), 4: N1}
    wishes: Wishes = {JobId(job): ((name,), MoveReason.BALANCE, "") for job, name in homes.items()}
    plain = plain_policy(every_quantum=True, wishes=wishes)

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        asked.append(snapshot.now_s)
        return plain.decide(snapshot, memory)

    policy = replace(plain, needs=replace(plain.needs, ends=False), decide=decide)
    at = World(policy, SETTINGS, wishes=wishes)
    lines = (
        "user alice",
        *(f"host n{number} V100:4" for number in (1, 2, 3)),
        "submit alice g gpus=4 nodes=2",
    )
    for line in (*lines, "submit alice b gpus=4", "submit alice c gpus=4", *filter(None, beside.split("; "))):
        at.do(line)
    hosts = {job.id: job.hosts for job in at.machine.state.jobs.values()}
    assert hosts[JobId(1)] == (N1, HostName("n2"))
    assert (hosts[JobId(2)], hosts[JobId(3)]) == ((N1,), (HostName("n3"),))
    for line in ("@1", "report n1 2:0=running", "report n3 3:0=running", "@13"):
        at.do(line)
    asked.clear()
    at.do(f"report {'n1' if ended == '2' else 'n3'} {ended}:0=exited code=0")
    assert bool(asked) is at_once
