"""Who is on the way to a place has it: while it leaves its home for there, and until its process is up."""

from dataclasses import replace

import pytest

from hs_core.names import HostName, JobId, UserName
from hs_core.plan import check
from hs_core.policies import POLICIES, find
from hs_core.policy import Going, JobFacts, Policy, Snapshot, Verdict
from hs_core.strategy import Strategy

from .worlds import GIB, having, homes_of, host, job, snapshot  # noqa: TID252 — tests are no package on the path

OTHERS = [
    policy for policy in POLICIES.values() if policy.name != "gandiva-fair"
]  # which has jobs share servers and lets these hand out turns: what it makes of a move is below
every_other_policy = pytest.mark.parametrize("policy", OTHERS, ids=lambda policy: policy.name)
NOT_PREEMPTIVE = [policy for policy in OTHERS if not policy.needs.preemptive]
H, J = HostName("h"), HostName("i")
BOTH = {"rates": {("c", "V100"): 2.0, ("c", "K80"): 1.0}, "migrations_left": 9}


def sized(at: int, gang: int = 4, *, steps: float = 1e4, **facts: object) -> JobFacts:
    said = {"steps": steps, "job_class": "c", "movable": True, "memory_bytes": GIB, "gpu_memory_bytes": GIB}
    return job(at, f"u{at}", gang, **(said | facts))


def runs(verdict: Verdict) -> set[JobId]:
    return {job for turn in verdict.plan.turns.values() for job in turn.gangs}


def asked_twice(policy: Policy, asked: Snapshot) -> Verdict:
    """And once more in the same quantum."""
    first = policy.decide(asked, {})
    check(asked, first.plan, policy.needs)
    again = policy.decide(asked, first.memory)
    check(asked, again.plan, policy.needs)
    assert homes_of(again) == homes_of(first)
    return again


@every_other_policy
def test_gpus_to_which_a_job_is_going_are_nobody_elses_and_those_that_it_leaves_are(policy: Policy) -> None:
    going = sized(1, host=H, started=True, movable=False, going=Going(hosts=(J,), gpus=4))
    asked = snapshot([host("h", model="K80"), host("i")], [going, sized(2)], **BOTH)
    verdict = asked_twice(policy, asked)
    assert homes_of(verdict) == {1: "h", 2: "h"}
    assert verdict.why[JobId(1)] == "it is on its way to i"


@every_other_policy
def test_who_was_to_come_up_where_others_go_now_keeps_the_place_that_it_got_instead(policy: Policy) -> None:
    """What is decided about two jobs that change places holds also when the policy is asked before one of them has left."""
    going = sized(1, 2, host=H, started=True, movable=False, going=Going(hosts=(J,), gpus=2))
    stays = sized(3, 2, host=J, started=True, movable=False, running=True)
    asked = snapshot([host("h", model="K80"), host("i")], [going, sized(2, 4, host=H), stays], **BOTH)
    assert homes_of(asked_twice(policy, asked)) == {1: "h", 2: "h", 3: "i"}


@every_other_policy
def test_one_that_cannot_be_suspended_has_its_gpus_here_too_until_it_leaves(policy: Policy) -> None:
    going = sized(1, 2, host=H, started=True, running=True, movable=False, sliceable=False, memory_bytes=0)
    going = replace(going, going=Going(hosts=(J,), gpus=2))
    others = [sized(at, 2, memory_bytes=0) for at in (2, 3, 4)]
    verdict = policy.decide(asked := snapshot([host("h"), host("i")], [going, *others], **BOTH), {})
    check(asked, verdict.plan, policy.needs)
    assert JobId(1) in verdict.plan.turns[H].gangs
    assert [len(verdict.plan.turns[name].gangs) for name in (H, J)] == [2, 1]


@every_other_policy
def test_while_the_server_that_it_is_to_leave_is_away_it_has_its_gpus_there(policy: Policy) -> None:
    """Nothing comes of the move meanwhile, and nobody can tell that server anything."""
    going = sized(1, host=H, started=True, running=True, movable=False)
    going = replace(going, going=Going(hosts=(J,), gpus=4))
    asked = snapshot([host("h", connected=False), host("i")], [going, sized(2)], **BOTH)
    verdict = policy.decide(asked, {})
    assert (homes_of(verdict), runs(verdict)) == ({1: "h", 2: "i"}, {1, 2})


@every_other_policy
def test_nobody_is_put_beside_one_that_has_lost_its_home_and_is_on_its_way(policy: Policy) -> None:
    lays = (Strategy(data=4), Strategy(tensor=4))
    going = sized(1, strategies=lays, going=Going(hosts=(J,), gpus=4))
    asked = snapshot([host("h"), host("i")], [going, sized(2), sized(3, strategies=lays)], **BOTH)
    verdict = policy.decide(asked, {})
    check(asked, verdict.plan, policy.needs)
    assert not any(1 in guest.beside for turn in verdict.plan.turns.values() for guest in turn.guests)


@pytest.mark.parametrize("policy", NOT_PREEMPTIVE, ids=lambda policy: policy.name)
def test_who_is_not_put_aside_once_it_runs_is_not_before_its_process_is_up(policy: Policy) -> None:
    """Whoever is shorter, or came earlier, and was paused until now, say."""
    comes = sized(2, 2, host=H, steps=1e4)
    shorter = [sized(at, 2, steps=100.0 * at, memory_bytes=0) for at in (1, 3)]
    asked = snapshot([host("h", 2)], [comes, *shorter], rates={("c", "V100"): 1.0})
    verdict = asked_twice(policy, asked)
    assert (homes_of(verdict), runs(verdict)) == ({2: "h"}, {2})


@pytest.mark.parametrize("name", ["sjf", "sjf-bsbf", "sjf-ffs", "yarn-cs", "allox"])
def test_of_two_servers_it_stays_on_the_one_where_it_comes_up(name: str) -> None:
    comes = sized(1, 1, host=J)
    asked = snapshot([host("h", 1), host("i", 4)], [comes], rates={("c", "V100"): 1.0})
    assert homes_of(asked_twice(find(name), asked)) == {1: "i"}


def test_who_was_to_come_up_where_no_gpu_is_in_health_any_more_goes_where_it_is_fastest() -> None:
    """It has to go anyway: to another server of that model it would go first, and on from there a moment later."""
    hosts = [host("h", 0, "K80"), host("i", 4, "K80"), host("j")]
    asked = snapshot(hosts, [sized(1, host=H)], **BOTH)
    assert homes_of(find("las").decide(asked, {})) == {1: "j"}


def test_who_has_just_come_up_on_a_model_that_nobody_measured_stays_until_it_is_measured() -> None:
    """Others are slower there, and its class was measured elsewhere only: it may be another one in that, too."""
    runs_on = sized(1, host=J, started=True, running=True, settled_s=1_000.0)
    asked = snapshot([host("h", model="K80"), host("i")], [runs_on], migrations_left=9)
    rates = {("c", "K80"): 1.0, ("other", "K80"): 5.0, ("other", "V100"): 4.0}
    asked = replace(asked, rates=rates, now_s=1_060.0)
    assert homes_of(find("las").decide(asked, {})) == {1: "i"}
    assert homes_of(find("las").decide(replace(asked, now_s=1_360.0), {})) == {1: "h"}, "not for ever"


def test_las_has_nobody_put_aside_for_one_that_is_coming_up_on_slower_gpus() -> None:
    """It had less, and would take the faster ones of who runs there before it had its own."""
    comes = sized(5, host=H)
    runs_on = sized(6, host=J, started=True, running=True, attained_gpu_s=60.0)
    asked = snapshot([host("h", model="K80"), host("i")], [comes, runs_on], **BOTH)
    verdict = asked_twice(find("las"), asked)
    assert (homes_of(verdict), runs(verdict)) == ({5: "h", 6: "i"}, {5, 6})


def test_las_has_one_that_has_run_and_comes_up_on_slower_gpus_go_on_to_the_faster_ones_of_who_had_more() -> (
    None
):
    comes = sized(5, host=H, attained_gpu_s=60.0)
    runs_on = sized(6, host=J, started=True, running=True, attained_gpu_s=600.0)
    asked = snapshot([host("h", model="K80"), host("i")], [comes, runs_on], **BOTH)
    verdict = find("las").decide(asked, {})
    assert homes_of(verdict)[5] == "i"
    assert 5 in runs(verdict)


def test_las_puts_nobody_aside_that_comes_up_for_one_that_had_more() -> None:
    """Whose turn is on and whose is about to begin are taken to be poorer by the same."""
    comes = sized(5, host=J)
    runs_on = sized(6, 2, host=H, started=True, running=True, attained_gpu_s=60.0)
    asked = snapshot([host("h", model="K80"), host("i")], [comes, runs_on], **BOTH)
    verdict = asked_twice(find("las"), asked)
    assert (homes_of(verdict), runs(verdict)) == ({5: "i", 6: "h"}, {5, 6})
    assert not verdict.plan.moves


@pytest.mark.parametrize("name", ["gavel-max-min", "gavel-ftf", "pop", "gavel-max-min-packed"])
def test_who_is_on_its_way_when_time_is_divided_has_a_part_of_it(name: str) -> None:
    """The next time that it is divided may be half an hour later."""
    policy = find(name)
    going = sized(1, host=H, started=True, movable=False, going=Going(hosts=(J,), gpus=4))
    others = [sized(at, memory_bytes=0) for at in (2, 3, 4)]
    asked = snapshot([host("h", model="K80"), host("i")], [going, *others], **BOTH)
    first = policy.decide(asked, {})
    books = first.memory["policy"]["books"]
    parts = {tuple(unit): sum(part) for unit, part in zip(books["units"], books["fraction"], strict=True)}
    assert parts.keys() == {(1,), (2,), (3,), (4,)}
    assert parts[1,] > 0.3
    there = replace(going, hosts=(J,), going=None, movable=True, attained_gpu_s=120.0)
    arrived = having(replace(asked, quantum=1, now_s=60.0), [there, *others])
    received = policy.decide(arrived, first.memory).memory["policy"]["books"]["received_s"]
    v100 = first.memory["policy"]["models"].index("V100")
    assert received[0][v100] == books["received_s"][0][v100] + 120.0 / 4, "what it had since it came counts"


def test_nothing_is_measured_on_gpus_to_which_a_job_is_going() -> None:
    going = sized(1, host=H, started=True, movable=False, going=Going(hosts=(J,), gpus=4))
    new = sized(2, job_class="unmeasured")
    asked = snapshot([host("h", model="K80"), host("i")], [going, new], **BOTH)
    verdict = find("fft").decide(asked, {})
    assert verdict.memory["profiling"]["runs"] == {}, (
        "the one with most memory is measured first, and waits for it"
    )
    assert homes_of(verdict) == {1: "h", 2: "h"}


# --- gandiva-fair -----------------------------------------------------------------------------------------------------


def leaves(at: int, gang: int = 4, *, to: HostName = J, gpus: int = 4, **facts: object) -> JobFacts:
    """From h, as nobody knows but by its facts: another policy has begun it, or the controller was begun anew."""
    said = {"host": H, "started": True, "movable": False, "going": Going(hosts=(to,), gpus=gpus)}
    return sized(at, gang, **(said | facts))


def fair(asked: Snapshot) -> Verdict:
    return asked_twice(find("gandiva-fair"), asked)


def test_gandiva_fair_places_who_comes_where_a_job_is_leaving_and_not_where_it_goes() -> None:
    goes, stays = leaves(1), leaves(1, going=None)
    for moving, home in ((goes, "h"), (stays, "i")):
        asked = snapshot([host("h"), host("i")], [moving, sized(2)])
        assert homes_of(fair(asked)) == {1: "h", 2: home}


def test_gandiva_fair_counts_who_leaves_for_another_pool_in_that_pool() -> None:
    stays = sized(2, host=H, started=True, running=True, movable=False)
    jobs = [replace(job, user=UserName("A")) for job in (leaves(1), stays)]
    verdict = fair(snapshot([host("h", model="K80"), host("i")], jobs, **BOTH))
    assert verdict.plan.tickets == {1: 4, 2: 4}
    assert verdict.why[JobId(1)] == "it is on its way to i"


def test_gandiva_fair_counts_a_job_that_will_have_more_gpus_with_these() -> None:
    """A policy that changes shapes was in office when it was told."""
    others = [replace(sized(at, 2), user=UserName("B")) for at in (2, 3, 4)]
    verdict = fair(snapshot([host("h"), host("i")], [leaves(1, 2, gpus=4), *others]))
    assert verdict.entitled == {("u1", "V100"): 4, ("B", "V100"): 4}
    assert homes_of(verdict) == {1: "h", 2: "h", 3: "h", 4: "h"}


def test_gandiva_fair_counts_at_home_who_stays_after_all_though_it_cannot_move() -> None:
    """Its checkpoint failed: it was told to move, and is told so no more."""
    policy = find("gandiva-fair")
    crowded = [sized(at, host=H, started=True) for at in (1, 2)]
    asked = snapshot([host("h"), host("i")], crowded, now_s=1e6, migrations_left=9)
    first = policy.decide(asked, {})
    (moved,) = first.plan.moves
    stuck = [replace(job, movable=job.id != moved) for job in crowded]
    again = policy.decide(replace(asked, jobs=tuple(stuck), quantum=1), first.memory)
    assert {*again.plan.moves} == {1, 2} - {moved}, "the other goes instead"
    assert again.why[moved].startswith("waiting for its turn on h")


@pytest.mark.parametrize("away", ["h", "i"])
def test_gandiva_fair_counts_a_job_at_home_while_nothing_comes_of_its_move(away: str) -> None:
    hosts = [host("h", connected=away != "h"), host("i", connected=away != "i")]
    verdict = fair(snapshot(hosts, [leaves(1), sized(2)]))
    assert homes_of(verdict) == {1: "h", 2: "i" if away == "h" else "h"}


@every_other_policy
def test_who_cannot_come_up_where_it_is_to_be_leaves_its_gpus_to_others(policy: Policy) -> None:
    """Its checkpoint is out of reach, or its server's disk is full: it keeps its home, and GPUs that nobody could use idle."""
    held = sized(1, host=H, held_up=True)
    other = sized(2, host=H, started=True, movable=False)
    verdict = asked_twice(policy, snapshot([host("h")], [held, other], **BOTH))
    assert homes_of(verdict) == {1: "h", 2: "h"}
    assert runs(verdict) == {JobId(2)}
