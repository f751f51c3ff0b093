"""A live run against its simulation: what is compared, and how far it can be known."""

from dataclasses import replace
from itertools import product
from statistics import fmean

from hs_sim.fidelity import Live, LiveJob, LivePool, compare, record, recorded, simulate

QUANTUM_S = 5.0


def live(joined_s: float, every_s: float = 2.5) -> Live:
    """What a live run would have measured that went as it is simulated. `every_s`: a job comes."""
    jobs = tuple(
        LiveJob(
            user=("ann", "bob")[number % 2],
            job_class="V100",
            gpus=1,
            steps=600,
            arrival_s=every_s * number,
            ended_s=0.0,
        )
        for number in range(8)
    )
    run = Live(
        quantum_s=QUANTUM_S,
        report_s=1.0,
        pools=(LivePool(model="V100", servers=1, gpus_per_server=2),),
        tickets={"ann": 100.0, "bob": 100.0},
        rates={"V100/V100": 30.0},
        start_s=0.1,
        suspend_s=0.02,
        resume_s=0.003,
        suspends=0,
        exit_s=0.1,
        joined_s=(joined_s,),
        movable=False,
        jobs=jobs,
    )
    ends = [job.ended_s for job in simulate(run).jobs]
    told_s = run.exit_s + run.report_s / 2 + joined_s
    return replace(
        run,
        jobs=tuple(
            replace(job, ended_s=end + told_s) for job, end in zip(jobs, ends, strict=True) if end is not None
        ),
    )


def test_a_run_that_went_as_it_is_simulated_is_not_off_at_all() -> None:
    compared = compare(live(-1.25))
    assert compared.jct_off < 1e-9
    assert compared.makespan_off < 1e-9
    assert compared.holds


def test_a_run_that_took_a_tenth_longer_does_not_hold() -> None:
    run = live(-1.25)
    slow = replace(run, jobs=tuple(replace(job, ended_s=1.1 * job.ended_s) for job in run.jobs))
    compared = compare(slow)
    assert not compared.holds
    assert "does not hold" in str(compared)


def test_a_recorded_run_is_read_as_it_was() -> None:
    run = live(-1.25)
    assert recorded(record(run)) == run


def test_what_is_not_known_of_the_live_run_is_worth_a_part_of_a_quantum() -> None:
    compared = compare(live(-1.25))
    least_s, most_s = compared.jct_between_s
    assert least_s < compared.simulated_jct_s < most_s
    unsure_s = []
    for every_s, joined_s in product((1.5, 2.5, 3.5, 4.0), (-1.25, -4.4)):
        least_s, most_s = compare(live(joined_s, every_s)).jct_between_s
        unsure_s.append(most_s - least_s)
    assert fmean(unsure_s) < QUANTUM_S / 4
    assert max(unsure_s) < QUANTUM_S
