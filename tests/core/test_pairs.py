"""What a plan may say of GPUs that two jobs share, and what it may not."""

from collections.abc import Mapping
from fractions import Fraction
from math import inf

import pytest

from hs_core.errors import BrokenError
from hs_core.names import HostName, JobId, UserName
from hs_core.plan import check
from hs_core.policy import HostFacts, JobFacts, Needs, Plan, Snapshot
from hs_core.wanted import Guest, Turn

GIB = 2**30
H = HostName("h")
SHARES = Needs(sharing=True)


def job(number: int, gang: int = 1, memory: int = 6, **facts: object) -> JobFacts:
    return JobFacts(
        id=JobId(number), user=UserName("a"), gang=gang, arrival_s=0.0, movable=True, memory_bytes=memory * GIB, job_class="c", **facts,
    )  # type: ignore[arg-type]  # fmt: skip


def asked(jobs: list[JobFacts], interference: Mapping[tuple[str, str, str], float] | None = None) -> Snapshot:
    return Snapshot(
        now_s=0.0,
        quantum_s=60.0,
        quantum=1,
        hosts=(HostFacts(name=H, model="V100", gpus=4, gpu_memory_bytes=16 * GIB),),
        jobs=tuple(jobs),
        tickets={UserName("a"): Fraction(100)},
        interference=interference or {},
    )


def plan(
    jobs: list[JobFacts], *guests: tuple[int, dict[int, int]], parts: dict[int, int] | None = None
) -> Plan:
    shared = tuple(
        Guest(job=JobId(number), beside=tuple(map(JobId, beside)), gpus=tuple(beside.values()))
        for number, beside in guests
    )
    turn = Turn(gangs=tuple(job.id for job in jobs), local=False, guests=shared)
    return Plan(
        homes={job.id: (H,) for job in jobs},
        turns={H: turn},
        tickets={job.id: Fraction(1) for job in jobs},
        accumulation={JobId(number): count for number, count in (parts or {}).items()},
    )


def test_two_jobs_on_one_gpu_need_it_once() -> None:
    jobs = [job(1, 4), job(2, 4)]
    check(asked(jobs), plan(jobs, (2, {1: 4})), SHARES)
    with pytest.raises(BrokenError, match="its turn needs 8, it has 4"):
        check(asked(jobs), plan(jobs), SHARES)


def test_only_a_policy_that_says_so_lets_jobs_share() -> None:
    jobs = [job(1), job(2)]
    with pytest.raises(BrokenError, match="job 2 shares GPUs of h; this policy gives each job its own"):
        check(asked(jobs), plan(jobs, (2, {1: 1})))


@pytest.mark.parametrize(
    ("jobs", "guests", "said"),
    [
        ([job(1), job(2)], [(2, {3: 1})], "job 3 shares GPUs of h and is not in its turn"),
        ([job(1), job(2)], [(2, {1: 1}), (2, {1: 1})], "job 2 shares GPUs of h twice"),
        ([job(1), job(2)], [(2, {2: 1})], "job 2 shares GPUs of h twice"),
        ([job(1), job(2), job(3)], [(2, {1: 1}), (3, {2: 1})], "that job 2 shares already"),
        ([job(1), job(2), job(3)], [(2, {1: 1}), (3, {1: 1})], "job 1 shares 2 GPUs of h; it has 1"),
        ([job(1, 2), job(2)], [(2, {1: 2})], "job 2 shares 2 GPUs of h; it needs 1"),
        ([job(1), job(2)], [(2, {1: 0})], r"job 2 shares \(0,\) GPUs of h"),
        ([job(1, memory=11), job(2)], [(2, {1: 1})], "jobs 2 and 1 need 18253611008 bytes of a GPU of h"),
        (
            [job(1, memory=0), job(2)],
            [(2, {1: 1})],
            "job 1 shares a GPU of h; how much memory it takes is not known",
        ),
    ],
)
def test_what_breaks_a_law_of_sharing_is_named(
    jobs: list[JobFacts], guests: list[tuple[int, dict[int, int]]], said: str
) -> None:
    with pytest.raises(BrokenError, match=said):
        check(asked(jobs), plan(jobs, *guests), SHARES)


def test_sub_batches_make_room() -> None:
    jobs = [job(1, memory=10), job(2, memory=10, fixed_bytes=2 * GIB, accumulation_max=4)]
    check(asked(jobs), plan(jobs, (2, {1: 1}), parts={2: 2}), SHARES)
    with pytest.raises(BrokenError, match="need"):
        check(asked(jobs), plan(jobs, (2, {1: 1})), SHARES)
    with pytest.raises(BrokenError, match="job 2 is told 8 sub-batches; expected 1 to 4"):
        check(asked(jobs), plan(jobs, (2, {1: 1}), parts={2: 8}), SHARES)


def test_a_started_job_is_not_told_other_sub_batches() -> None:
    jobs = [job(1, hosts=(H,), started=True, accumulation=2, accumulation_max=4)]
    check(asked(jobs), plan(jobs, parts={1: 2}), SHARES)
    with pytest.raises(BrokenError, match="job 1 is told 4 sub-batches and runs with 2"):
        check(asked(jobs), plan(jobs, parts={1: 4}), SHARES)


def test_classes_that_were_seen_together_fit_unless_it_was_seen_that_they_never_do() -> None:
    jobs = [job(1, memory=0), job(2, memory=0)]
    check(asked(jobs, {("c", "c", "V100"): 1.3}), plan(jobs, (2, {1: 1})), SHARES)
    with pytest.raises(BrokenError, match="jobs 2 and 1 never fit on one V100"):
        check(asked(jobs, {("c", "c", "V100"): inf}), plan(jobs, (2, {1: 1})), SHARES)
