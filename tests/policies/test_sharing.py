"""SJF-BSBF and SJF-FFS: who starts beside whom, with which sub-batch, and for how long."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from hs_core.cluster.harness import World
from hs_core.cluster.state import Settings
from hs_core.names import HostName, JobId
from hs_core.plan import check
from hs_core.policies import find
from hs_core.policy import JobFacts, Policy, Snapshot, Verdict
from hs_core.wanted import Guest

from .worlds import GIB, Run, host, job, snapshot  # noqa: TID252 — tests are no package on the path

H = HostName("h")
BSBF, FFS = find("sjf-bsbf"), find("sjf-ffs")


def runs(at: int, gang: int = 1, *, steps: int = 1_000, memory: int = 4, **facts: object) -> JobFacts:
    more = {"hosts": (H,), "started": True, "running": True} | facts
    return waits(at, gang, steps=steps, memory=memory, **more)


def waits(at: int, gang: int = 1, *, steps: int = 1_000, memory: int = 4, **facts: object) -> JobFacts:
    """One step a second on a V100, alone; sixteen GiB are on each."""
    more = {"steps": float(steps), "job_class": "c", "movable": True, "memory_bytes": memory * GIB} | facts
    return job(at, gang=gang, gpu_memory_bytes=memory * GIB, **more)


def world(
    *jobs: JobFacts, gpus: int = 2, ratio: float = 1.2, ratios: Mapping[tuple[str, str], float] | None = None
) -> Snapshot:
    """`ratio`: how many times as long mini-batches take beside another job, where `ratios` do not say it."""
    classes = {job.job_class for job in jobs}
    found = {(a, b): ratio for a in classes for b in classes} | dict(ratios or {})
    return snapshot(
        [host("h", gpus)],
        list(jobs),
        rates={(name, "V100"): 1.0 for name in classes},
        interference={(a, b, "V100"): slow for (a, b), slow in found.items()},
    )


def guests(verdict: Verdict) -> dict[int, dict[int, int]]:
    return {
        guest.job: dict(zip(guest.beside, guest.gpus, strict=True))
        for turn in verdict.plan.turns.values()
        for guest in turn.guests
    }


def test_who_finds_no_free_gpu_starts_beside_a_running_job_where_both_gain() -> None:
    verdict = BSBF.decide(world(runs(1, 2), waits(2, 2)), {})
    assert verdict.plan.turns[H].gangs == (1, 2)
    assert verdict.plan.turns[H].guests == (Guest(job=JobId(2), beside=(JobId(1),), gpus=(2,)),)
    assert verdict.plan.homes[JobId(2)] == (H,)


def test_who_leaves_a_drained_server_takes_its_gpus_from_its_guest_which_cannot_go() -> None:
    """The guest goes on alone: a plan that has it share with who is elsewhere is none."""
    there = [runs(1), runs(2, movable=False)]
    hosts = (host("h", 2, accepts=False), host("j", 2))
    asked = replace(world(*there, waits(3)), hosts=hosts, migrations_left=9)
    memory = {"guests": {"2": {"h": {"1": 1}}}}
    verdict = BSBF.decide(asked, memory)
    check(asked, verdict.plan, BSBF.needs)
    assert verdict.plan.homes[JobId(1)] == (HostName("j"),)
    assert verdict.plan.turns[H].gangs == (2,)
    assert guests(verdict) == {}


def test_free_gpus_come_first() -> None:
    verdict = BSBF.decide(world(runs(1), waits(2)), {})
    assert guests(verdict) == {}
    assert verdict.plan.turns[H].gangs == (1, 2)


@pytest.mark.parametrize(("ratio", "shares"), [(1.0, True), (1.49, True), (1.51, False), (2.5, False)])
def test_equal_jobs_share_while_they_take_less_than_half_as_long_again(ratio: float, shares: bool) -> None:
    verdict = BSBF.decide(world(runs(1), waits(2), gpus=1, ratio=ratio), {})
    assert bool(guests(verdict)) is shares
    assert (JobId(2) in verdict.why) is not shares


def test_first_fit_shares_whether_or_not_anybody_gains() -> None:
    asked = world(runs(1), waits(2), gpus=1, ratio=2.5)
    assert guests(BSBF.decide(asked, {})) == {}
    assert guests(FFS.decide(asked, {})) == {2: {1: 1}}


def test_the_partner_with_which_both_end_soonest_is_taken() -> None:
    ratios = {("c", "a"): 1.4, ("a", "c"): 1.4, ("c", "b"): 1.05, ("b", "c"): 1.05}
    jobs = [runs(1, job_class="a"), runs(2, job_class="b"), waits(3)]
    assert guests(BSBF.decide(world(*jobs, ratios=ratios), {})) == {3: {2: 1}}
    assert guests(FFS.decide(world(*jobs, ratios=ratios), {})) == {3: {1: 1}}


def test_of_several_that_wait_the_shortest_comes_first() -> None:
    verdict = BSBF.decide(world(runs(1), waits(2, steps=900), waits(3, steps=300), gpus=1), {})
    assert guests(verdict) == {3: {1: 1}}


def test_where_memory_is_short_it_is_told_to_work_through_its_batch_in_parts() -> None:
    # 10 GiB beside 10 on 16: of the 10, 2 stay whatever the batch, so 8 must shrink to 4.
    wide = waits(2, memory=10, fixed_bytes=2 * GIB, accumulation_max=8)
    verdict = BSBF.decide(world(runs(1, memory=10), wide, gpus=1), {})
    assert guests(verdict) == {2: {1: 1}}
    assert verdict.plan.accumulation == {2: 2}
    rigid = replace(wide, accumulation_max=1)
    assert guests(BSBF.decide(world(runs(1, memory=10), rigid, gpus=1), {})) == {}


def test_one_that_was_to_share_and_finds_free_gpus_has_its_whole_batch_again() -> None:
    told = waits(2, memory=10, fixed_bytes=2 * GIB, accumulation_max=8, accumulation=4)
    assert BSBF.decide(world(told, gpus=1), {}).plan.accumulation == {2: 1}


def test_a_job_whose_memory_is_not_known_shares_nothing_and_is_told_so() -> None:
    verdict = BSBF.decide(world(runs(1), waits(2, memory=0), gpus=1), {})
    assert guests(verdict) == {}
    assert "--gpu-mem" in verdict.why[JobId(2)]
    assert guests(BSBF.decide(world(runs(1, memory=0), waits(2), gpus=1), {})) == {}


def test_who_starts_beside_nobody_is_told_so_by_what_its_policy_goes_by() -> None:
    known, unknown = waits(2, memory=10), waits(3, memory=10, steps=0.0)
    why = {
        name: find(name).decide(world(runs(1, memory=10), known, unknown, gpus=1), {}).why
        for name in ("sjf-bsbf", "sjf-ffs")
    }
    assert why["sjf-bsbf"][JobId(2)].endswith("one that it would gain by sharing GPUs with")
    assert why["sjf-bsbf"][JobId(3)].endswith("nobody can say beside whom it would gain")
    assert all(why["sjf-ffs"][JobId(at)].endswith("leaves memory enough beside it") for at in (2, 3))


@pytest.mark.parametrize(
    "policy", [BSBF, FFS, find("tesserae-las"), find("gavel-max-min-packed")], ids=lambda policy: policy.name
)
def test_a_guest_that_comes_up_waits_where_its_partner_turns_out_to_take_more_memory(policy: Policy) -> None:
    """No plan has both on a GPU before they run there, and who runs there stays."""
    partner, guest = runs(1), waits(2)
    first = policy.decide(world(partner, guest, gpus=1), {})
    assert guests(first) == {2: {1: 1}}
    grown, comes = replace(partner, memory_bytes=14 * GIB), replace(guest, hosts=(H,))
    later = world(grown, comes, gpus=1)
    second = policy.decide(later, first.memory)
    check(later, second.plan, policy.needs)
    assert guests(second) == {}
    assert second.plan.turns[H].gangs == (1,)
    both = replace(later, running=frozenset({partner.id, guest.id}))
    assert guests(policy.decide(both, first.memory)) == {2: {1: 1}}


def test_one_that_is_resumed_takes_no_gpus_from_its_guest_which_had_them_for_itself_meanwhile() -> None:
    run = Run(FFS, world(runs(1), runs(2), waits(3, 2)))
    assert guests(run.go(3)) == {3: {1: 1, 2: 1}}
    first, *others = run.asked.jobs
    run.change(jobs=tuple(others))
    assert guests(run.step()) == {3: {2: 1}}
    run.change(jobs=(replace(first, running=False), *run.asked.jobs))
    verdict = run.step()
    assert verdict.plan.turns[H].gangs == (2, 3)
    assert guests(verdict) == {3: {2: 1}}


def test_who_leaves_a_drained_server_takes_no_gpus_that_a_guest_has_for_itself() -> None:
    there = [runs(1, hosts=("x",)), runs(2), runs(3, 2)]
    hosts = (host("h", 2), host("x", 1, accepts=False))
    asked = replace(world(*there), hosts=hosts, migrations_left=9)
    verdict = FFS.decide(asked, {"guests": {"3": {"h": {"2": 1}}}})
    assert verdict.plan.turns[H].gangs == (2, 3)
    assert guests(verdict) == {3: {2: 1}}
    assert verdict.plan.homes[JobId(1)] == ("x",), "it stays until there is room"


def test_a_guest_that_has_not_come_up_yet_goes_to_a_gpu_that_is_free_by_now() -> None:
    """Beside its partner there may be no memory for it, of which only the server knows: it would wait beside idle GPUs."""
    told = waits(2, hosts=(H,), accumulation_max=8, accumulation=4)
    asked = replace(world(runs(1), told, gpus=1), hosts=(host("h", 1), host("j", 1)))
    verdict = FFS.decide(asked, {"guests": {"2": {"h": {"1": 1}}}})
    assert verdict.plan.homes[JobId(2)] == ("j",)
    assert guests(verdict) == {}
    assert verdict.plan.accumulation == {2: 1}
    up = replace(asked, jobs=(runs(1), replace(told, started=True, movable=False)))
    assert guests(FFS.decide(up, {"guests": {"2": {"h": {"1": 1}}}})) == {2: {1: 1}}


def test_a_guest_that_is_up_before_its_partner_takes_nothing_from_it() -> None:
    memory = {"guests": {"2": {"h": {"1": 1}}}}
    verdict = FFS.decide(world(runs(1, running=False), runs(2), gpus=1), memory)
    assert guests(verdict) == {2: {1: 1}}


@pytest.mark.parametrize("policy", [BSBF, FFS], ids=lambda policy: policy.name)
def test_one_that_was_paused_is_told_that_its_process_waits_where_it_is(policy: Policy) -> None:
    """Its GPU went to another one meanwhile, and its process stands on others."""
    jobs = runs(1, gpus=((0,),)), runs(2, running=False, gpus=((1,),))
    verdict = policy.decide(world(*jobs, gpus=1), {})
    assert guests(verdict) == {}
    assert verdict.why[JobId(2)].startswith(
        "its process waits until 1 GPU of h is free, and no running job on the GPUs of its process "
    )


@pytest.mark.parametrize("policy", [BSBF, FFS], ids=lambda policy: policy.name)
def test_a_pair_that_another_policy_let_take_turns_shares_its_gpus_again(policy: Policy) -> None:
    pair = runs(1, gpus=((0,),)), runs(2, running=False, movable=False, gpus=((0,),))
    verdict = policy.decide(world(*pair, gpus=1), {})
    assert guests(verdict) == {2: {1: 1}}
    check(world(*pair, gpus=1), verdict.plan, policy.needs)
    assert not verdict.plan.accumulation, "its process has the parts that it was started with"
    later = policy.decide(world(*pair, gpus=1), verdict.memory)
    assert guests(later) == {2: {1: 1}}


def test_one_that_stands_on_the_gpus_of_several_shares_with_all_of_them_or_waits() -> None:
    stands = runs(3, 2, running=False, gpus=((0, 1),))
    both = runs(1, gpus=((0,),)), runs(2, gpus=((1,),))
    assert guests(BSBF.decide(world(*both, stands), {})) == {3: {1: 1, 2: 1}}
    apart = runs(1, gpus=((0,),)), runs(2, gpus=((2,),)), runs(4, gpus=((1,),), memory=14)
    assert guests(BSBF.decide(world(*apart, stands, gpus=3), {})) == {}
    wide = runs(1, 3, gpus=((0, 1, 2),))
    assert guests(BSBF.decide(world(wide, stands, gpus=3), {})) == {3: {1: 2}}


def test_a_pair_that_would_lose_by_sharing_again_stays_apart() -> None:
    pair = runs(1, gpus=((0,),)), runs(2, running=False, gpus=((0,),))
    assert guests(BSBF.decide(world(*pair, gpus=1, ratio=1.6), {})) == {}
    assert guests(FFS.decide(world(*pair, gpus=1, ratio=1.6), {})) == {2: {1: 1}}


@pytest.mark.parametrize("policy", [BSBF, FFS], ids=lambda policy: policy.name)
def test_one_that_another_policy_left_waiting_goes_to_free_gpus_elsewhere_before_it_shares(
    policy: Policy,
) -> None:
    """Who runs stays, and nobody starts beside one that is on its way."""
    left = runs(2, running=False, gpus=((0,),))
    jobs = runs(1, gpus=((0,),)), left, waits(3, 2)
    asked = replace(world(*jobs, gpus=1), hosts=(host("h", 1), host("i", 1)), migrations_left=1)
    verdict = policy.decide(asked, {})
    check(asked, verdict.plan, policy.needs)
    assert verdict.plan.homes[JobId(1)] == ("h",)
    assert verdict.plan.homes[JobId(2)] == ("i",)
    assert guests(verdict) == {}
    stays = policy.decide(replace(asked, migrations_left=0), {})
    assert guests(stays) == {2: {1: 1}}, "where no move is left it shares"


@pytest.mark.parametrize("policy", [BSBF, FFS], ids=lambda policy: policy.name)
def test_nobody_shares_again_with_one_that_leaves_its_server(policy: Policy) -> None:
    """On whose GPUs it stands there, and which are about to be free."""
    leaves, stands = runs(1, gpus=((0,),)), runs(2, running=False, movable=False, gpus=((0,),))
    hosts = (host("h", 1, accepts=False), host("j", 1))
    asked = replace(world(leaves, stands), hosts=hosts, migrations_left=9)
    verdict = policy.decide(asked, {})
    check(asked, verdict.plan, policy.needs)
    assert verdict.plan.homes == {JobId(1): (HostName("j"),), JobId(2): (H,)}
    assert guests(verdict) == {}
    over = runs(3, 2, running=False, movable=False, nodes=2, hosts=("h", "i"), gpus=((0,), (0,)))
    other = runs(4, gpus=((0,),), hosts=("i",))
    hosts = (host("h", 1, accepts=False), host("i", 1), host("j", 1))
    asked = replace(world(leaves, other, over), hosts=hosts, migrations_left=9)
    verdict = policy.decide(asked, {})
    check(asked, verdict.plan, policy.needs)
    assert verdict.plan.homes[JobId(1)] == (HostName("j"),)
    assert guests(verdict) == {}


def test_a_gang_over_two_servers_shares_again_on_both() -> None:
    over = {"nodes": 2, "hosts": ("h", "i")}
    pair = runs(1, 2, gpus=((0,), (1,)), **over), runs(2, 2, running=False, gpus=((0,), (1,)), **over)
    asked = replace(world(*pair), hosts=(host("h", 1), host("i", 1)))
    assert guests(FFS.decide(asked, {})) == {2: {1: 1}}
    other = pair[0], replace(pair[1], gpus=((0,), (0,)))
    assert guests(FFS.decide(replace(world(*other), hosts=(host("h", 1), host("i", 1))), {})) == {}


def test_a_gang_may_share_with_several_jobs() -> None:
    verdict = BSBF.decide(world(runs(1), runs(2, 2), waits(3, 3), gpus=3), {})
    assert guests(verdict) == {3: {1: 1, 2: 2}}


def test_a_gang_that_partners_do_not_fill_waits() -> None:
    verdict = BSBF.decide(world(runs(1), waits(2, 3), gpus=3), {})
    assert guests(verdict) == {}
    assert JobId(2) in verdict.why


def test_a_gang_over_two_servers_shares_on_both() -> None:
    a, b = HostName("a"), HostName("b")
    jobs = [runs(1, 4, nodes=2, hosts=(a, b)), waits(2, 4, nodes=2)]
    asked = replace(world(*jobs), hosts=(host("a", 2), host("b", 2)))
    verdict = BSBF.decide(asked, {})
    assert verdict.plan.homes[JobId(2)] == (a, b)
    both = (Guest(job=JobId(2), beside=(JobId(1),), gpus=(2,)),)
    assert verdict.plan.turns[a].guests == both
    assert verdict.plan.turns[b].guests == both


def test_a_pair_stays_until_one_of_them_ends_and_then_another_may_come() -> None:
    run = Run(BSBF, world(runs(1, steps=10_000), waits(2, steps=10_000), waits(3, steps=20_000), gpus=1))
    first = run.go(3)
    assert guests(first) == {2: {1: 1}}
    run.change(jobs=tuple(job for job in run.asked.jobs if job.id != 1))
    verdict = run.step()
    assert verdict.plan.turns[H].gangs == (2, 3)
    assert guests(verdict) == {3: {2: 1}}
    assert run.moved == []


def test_at_most_two_jobs_share_a_gpu() -> None:
    many = [waits(at) for at in range(3, 9)]
    verdict = FFS.decide(world(runs(1), runs(2), *many), {})
    assert guests(verdict) == {3: {1: 1}, 4: {2: 1}}


def test_who_keeps_some_gpus_of_its_own_is_nobodys_partner_while_it_shares_others() -> None:
    run = Run(FFS, world(runs(1), runs(2), waits(3, 2)))
    assert guests(run.step()) == {3: {1: 1, 2: 1}}
    run.change(jobs=(*(job for job in run.asked.jobs if job.id != 1), waits(4)))
    verdict = run.step()
    assert guests(verdict) == {3: {2: 1}}
    assert JobId(4) in verdict.why


def guest_in_two_parts() -> World:
    """Job 2 is to start beside job 1 on n1."""
    here = World(FFS, Settings(settle_s=0.0))
    here.play(
        f"user ann\nhost n1 V100:1\nsubmit ann a gpu_memory_bytes={10 * GIB}\n@1\nreport n1 1:0=running step=10 sliceable=yes\n"
        f"submit ann b gpu_memory_bytes={10 * GIB} gpu_memory_fixed_bytes={2 * GIB} accumulation_max=8"
    )
    assert here.machine.job(JobId(2)).accumulation == 2
    return here


def test_who_was_to_start_beside_another_starts_with_whole_mini_batches_under_a_policy_that_lets_nobody() -> (
    None
):
    here = guest_in_two_parts()
    here.play("@2\npolicy fifo\n@3\nreport n1 1:0=exited code=0")
    (told,) = [job for job in here.wanted[HostName("n1")].jobs if job.job == 2]
    assert told.accumulation == 1


def test_a_guest_that_runs_keeps_its_parts_under_another_policy_until_its_next_process() -> None:
    here = guest_in_two_parts()
    here.play("@2\nreport n1 2:0=running step=1 sliceable=yes beside=1\npolicy fifo\n@61\ntick")
    assert here.machine.job(JobId(2)).accumulation == 2
    here.play("@62\nhost n2 V100:2\nleave n1\n@63\nremove n1 force\n@122\ntick")
    assert here.machine.job(JobId(2)).hosts == ("n2",)
    assert here.machine.job(JobId(2)).accumulation == 1
