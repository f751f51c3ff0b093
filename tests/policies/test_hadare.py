"""HadarE within a round: who was started to be forked, once it is up."""

from dataclasses import replace

from hs_core.names import HostName, JobId
from hs_core.plan import check
from hs_core.policies import find
from hs_core.policy import JobFacts, Snapshot
from tests.policies.worlds import host, job, snapshot

HADARE = find("hadare")
COMING = {"1": {"home": ["a", "b", "c"], "shares": [2, 1, 1]}}


def up(**facts: object) -> JobFacts:
    """It has come up on `a`, and is to be forked over all three in this round."""
    made = job(
        1, hosts=(HostName("a"),), started=True, running=True, movable=True, steps=1000.0, job_class="c"
    )
    return replace(made, **facts)  # type: ignore[arg-type]


def asked(one: JobFacts) -> Snapshot:
    hosts = [host(name, 1) for name in "abc"]
    return snapshot(hosts, [one], rates={("c", "V100"): 1.0}, migrations_left=5)


def copies(one: JobFacts) -> dict[str, int]:
    about = asked(one)
    memory = {"quantum": about.quantum, "homes": {"1": ["a"]}, "coming": COMING}
    plan = HADARE.decide(about, memory).plan
    check(about, plan, HADARE.needs)
    steps = plan.copies.get(JobId(1), ())
    return dict(zip(plan.homes[JobId(1)], steps, strict=True)) if steps else {}


def test_one_that_is_up_is_forked_over_the_servers_that_were_kept_for_it() -> None:
    assert copies(up()) == {"a": 500, "b": 250, "c": 250}


def test_no_copy_is_made_on_a_server_that_turns_out_to_be_unable_to_start_it() -> None:
    assert copies(up(barred=frozenset({HostName("c")}))) == {"a": 667, "b": 333}
    assert copies(up(barred=frozenset({HostName("b"), HostName("c")}))) == {}
