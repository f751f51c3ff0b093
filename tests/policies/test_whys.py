"""What policies say of who waits is what keeps it from running: without that it runs."""

from dataclasses import replace

import pytest

from hs_core.model import Migrate
from hs_core.names import HostName, JobId
from hs_core.policies import POLICIES, find
from hs_core.policy import JobFacts, Snapshot, Verdict
from tests.policies.worlds import Strides, after, having, homes_of, host, job, snapshot

RATES = {("c", "V100"): 2.0, ("c", "K80"): 1.0}
THAT_MOVE = [
    *("las", "srtf", "srsf", "tiresias", "pal", "themis", "fft", "hadar", "hadar-exact"),
    *("gavel-max-min", "gavel-ftf", "tesserae-las", "tesserae-srtf", "pop", "sjf-bsbf", "sjf-ffs"),
]


def sized(at: int, **facts: object) -> JobFacts:
    return job(at, **{"steps": 1e5, "job_class": "c", **facts})  # type: ignore[arg-type]


def stays(**facts: object) -> JobFacts:
    """It cannot be suspended, and has all GPUs of `h`."""
    return sized(1, gang=2, host=HostName("h"), started=True, running=True, sliceable=False, **facts)


def stopped(**facts: object) -> JobFacts:
    return replace(sized(2, host=HostName("h"), started=True, movable=True), **facts)  # type: ignore[arg-type]


def beside_idle(waits: JobFacts, model: str = "V100", moves_left: int = 5) -> Snapshot:
    hosts = [host("h", 2), host("i", 2, model)]
    return snapshot(hosts, [stays(), waits], rates=RATES, migrations_left=moves_left)


def followed(asked: Snapshot, verdict: Verdict) -> Snapshot:
    """In the same round, with all where they were sent."""
    return after(asked, verdict, Strides().run(asked, verdict.plan), quanta=0)


def runs(verdict: Verdict) -> set[JobId]:
    return {job for turn in verdict.plan.turns.values() for job in turn.gangs}


def why(policy: str, asked: Snapshot) -> str:
    return find(policy).decide(asked, {}).why[JobId(2)]


@pytest.mark.parametrize("policy", THAT_MOVE)
def test_one_that_waits_beside_idle_gpus_as_no_more_may_move_is_told_so_and_moves_once_it_may(
    policy: str,
) -> None:
    said = why(policy, beside_idle(stopped(), moves_left=0))
    assert said.endswith(
        "GPUs of i are idle, but as many jobs have moved lately as may (migrations_per_hour)"
    )
    assert homes_of(find(policy).decide(beside_idle(stopped()), {}))[2] == "i"


@pytest.mark.parametrize("policy", THAT_MOVE)
def test_one_that_may_not_leave_its_server_is_told_so_beside_idle_gpus(policy: str) -> None:
    never = stopped(migrate=Migrate.NEVER)
    assert why(policy, beside_idle(never)).endswith("it may not go to another server (migrate: never)")
    same = beside_idle(stopped(migrate=Migrate.SAME_TYPE), model="K80")
    assert why(policy, same).endswith("it may not go to GPUs of another model (migrate: same-type)")
    rooted = beside_idle(stopped(movable=False, rooted=True))
    assert why(policy, rooted).endswith("its process cannot leave its own server")


@pytest.mark.parametrize("policy", THAT_MOVE)
def test_nobody_is_told_of_idle_gpus_that_it_would_not_fit_on(policy: str) -> None:
    large = replace(stopped(migrate=Migrate.NEVER), gang=2)
    hosts = [host("h", 2), host("i", 1)]
    assert "idle, but" not in why(policy, snapshot(hosts, [stays(), large], rates=RATES))


@pytest.mark.parametrize("policy", ["tesserae-srtf", "gavel-max-min", "fft", "hadar"])
def test_one_that_stays_until_the_next_round_beside_idle_gpus_is_told_so(policy: str) -> None:
    """Also where no more jobs may move: within a round that is no matter."""
    hosts, place = [host("h", 2), host("i", 2)], find(policy)
    asked = snapshot(hosts, [stays()], rates=RATES, migrations_left=0)
    first = place.decide(asked, {})
    there = followed(asked, first)
    later = having(there, jobs=(*there.jobs, stopped()), tickets={**there.tickets, stays().user: 1})
    said = place.decide(later, first.memory).why[JobId(2)]
    assert said.endswith("GPUs of i are idle, but nobody is moved within a round")


@pytest.mark.parametrize("policy", ["fifo", "lottery", "gang-lottery"])
def test_where_nobody_is_ever_moved_that_is_said_beside_idle_gpus(policy: str) -> None:
    said = why(policy, beside_idle(stopped(), moves_left=0))
    assert said.endswith("GPUs of i are idle, but nobody is moved under this policy")


@pytest.mark.parametrize("policy", ["gavel-max-min", "las", "themis", "fft"])
def test_who_waits_for_gpus_on_which_a_class_is_measured_is_told_for_whom(policy: str) -> None:
    hosts = [host("h", 1)]
    measured = job(1, job_class="new", host=HostName("h"), started=True, running=True, movable=True)
    asked = snapshot(hosts, [measured, stopped()], rates=RATES)
    trial = replace(asked, reserved={measured.id: measured.hosts})
    said = "job 1, whose class is being measured, has GPUs of h for a short run"
    assert why(policy, trial) == said
    assert why(policy, replace(trial, jobs=(measured, sized(2)))) == said, "also without a home"
    assert said not in why(policy, replace(asked, jobs=(stays(), stopped()), hosts=(host("h", 2),)))


def test_one_that_has_no_part_of_the_time_is_not_said_to_have_one() -> None:
    """Gavel's shortest job first gives all of the time to the shorter."""
    short, long = sized(1, steps=10.0, host=HostName("h"), started=True, running=True), sized(2)
    said = why("gavel-sjf", snapshot([host("h", 1)], [short, long], rates=RATES))
    assert "others have all of the time until it is divided anew" in said
    assert ", and in about 32 min at the soonest; it waits for GPUs that idle" in said
    alone = find("gavel-sjf").decide(snapshot([host("h", 1)], [long], rates=RATES), {})
    assert runs(alone) == {2}


def test_one_that_came_after_time_was_divided_is_told_when_it_is_again() -> None:
    """Not at the next round: allocations are half an hour apart at least, if GPUs are in use."""
    policy = find("gavel-max-min")
    runs_on = sized(1, host=HostName("h"), started=True, running=True)
    asked = snapshot([host("h", 1)], [runs_on], rates=RATES)
    memory = policy.decide(asked, {}).memory
    for later_s, when in ((120.0, "30 min"), (1_500.0, "420 s")):
        later = snapshot([host("h", 1)], [runs_on, sized(2)], rates=RATES)
        later = replace(later, now_s=asked.now_s + later_s, quantum=asked.quantum + 1)
        said = policy.decide(later, memory).why[JobId(2)]
        assert f"waits for the next, in about {when}, or for GPUs that idle" in said
    due = replace(later, now_s=asked.now_s + 1_920.0, quantum=asked.quantum + 2)
    assert "it came after" not in policy.decide(due, memory).why.get(JobId(2), "")


@pytest.mark.parametrize("policy", ["las", "pal", "tesserae-las"])
def test_one_that_had_less_than_who_runs_is_told_why_that_one_goes_on(policy: str) -> None:
    runs_on = sized(1, host=HostName("h"), started=True, running=True, attained_gpu_s=30.0)
    waits = replace(stopped(), attained_gpu_s=10.0)
    asked = snapshot([host("h", 1)], [runs_on, waits], rates=RATES)
    assert "who runs goes on until it had a quantum more; it had 10 GPU-seconds" in why(policy, asked)
    assert runs(_after(policy, replace(asked, jobs=(replace(runs_on, attained_gpu_s=75.0), waits)))) == {2}


def _after(policy: str, asked: Snapshot) -> Verdict:
    return find(policy).decide(asked, {})


def test_under_sjf_one_of_a_class_that_was_not_measured_waits_for_gpus_like_all_others() -> None:
    asked = snapshot([host("h", 2)], [stays(), replace(sized(2), job_class="new")], rates=RATES)
    assert why("sjf", asked) == (
        "it starts when 1 GPU on one server is free: nobody is put aside for it; its class was not measured yet,"
        " so it comes before those that were and after those like it that came earlier"
    )
    asked = snapshot([host("h", 2)], [stays(), sized(2)], rates=RATES)
    assert why("sjf", asked).endswith("and no shorter job waits for it: nobody is put aside for it")


def test_in_a_line_people_are_told_how_many_are_ahead_of_them() -> None:
    first, second, third = (sized(at, gang=2) for at in (2, 3, 4))
    verdict = find("fifo").decide(snapshot([host("h", 2)], [stays(), first, second, third]), {})
    assert verdict.why[JobId(3)] == "job 2 is ahead of it and waits for 2 GPUs on one server"
    assert verdict.why[JobId(4)] == (
        "2 jobs are ahead of it; the first, job 2, waits for 2 GPUs on one server"
    )


def test_under_themis_people_are_told_when_leases_end_and_not_that_who_has_one_is_worse_off() -> None:
    better = sized(1, gang=2, host=HostName("h"), started=True, running=True)
    waits = sized(2, steps=1e3, arrival_s=-5000.0)
    asked = snapshot([host("h", 2)], [better, waits], rates=RATES, now_s=100.0)
    leased = {"ends": {"1": 1200.0}}
    place = find("themis")
    said = place.decide(asked, leased).why[JobId(2)]
    assert "others have the leases, which end in 1100 s at the latest" in said
    assert runs(place.decide(replace(asked, now_s=1200.0), leased)) == {2}


@pytest.mark.parametrize("gang", [1, 2])
@pytest.mark.parametrize("movable", [True, False])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_one_that_waits_is_told_by_every_policy_of_its_own_rule(
    policy: str, movable: bool, gang: int
) -> None:
    """Also where another policy has left it with a process beside others."""
    waits = stopped(gang=gang, movable=movable, rooted=not movable)
    asked = snapshot([host("h", 2)], [stays(), waits], rates=RATES)
    for each in (asked, replace(asked, jobs=(asked.jobs[0], sized(2, gang=gang)))):
        verdict = find(policy).decide(each, {})
        if JobId(2) not in runs(verdict):
            said, _, _ = verdict.why[JobId(2)].partition(";")
            assert said not in {"waiting for its turn on h", "waiting for free GPUs"}
