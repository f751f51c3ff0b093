"""FFT as a policy: what it makes of a job's state."""

import pytest

from hs_core.names import HostName, JobId
from hs_core.policies import fft, find
from hs_core.policies.fft import NETWORK_BYTES_PER_S
from tests.policies.worlds import homes_of, host, job, snapshot

FFT = find("fft")
ROUND_S = 300.0


def after_a_round(state_bytes: int) -> HostName:
    """Where a job goes that would be done in two rounds on the K80 that it has, or in 1.8 on a V100 that is free."""
    one = job(
        1,
        hosts=(HostName("slow"),),
        started=True,
        running=True,
        movable=True,
        restartable=True,
        job_class="c",
        steps=600.0,
        state_bytes=state_bytes,
    )
    asked = snapshot(
        [host("slow", 1, "K80"), host("fast", 1, "V100")],
        [one],
        quantum_s=ROUND_S,
        now_s=one.arrival_s,
        migrations_left=1,
        rates={("c", "K80"): 1.0, ("c", "V100"): 10 / 9},
    )
    return homes_of(FFT.decide(asked, {}))[JobId(1)]


@pytest.mark.parametrize(("rounds", "goes"), [(0.0, "fast"), (0.1, "fast"), (0.3, "slow"), (30.0, "slow")])
def test_a_job_goes_to_a_faster_model_only_where_that_gains_more_than_moving_its_state_takes(
    rounds: float, goes: str
) -> None:
    assert after_a_round(round(rounds * ROUND_S * NETWORK_BYTES_PER_S)) == goes


def test_who_waits_is_told_how_far_it_is_behind_in_numbers_that_say_something() -> None:
    rates = {("c", "V100"): 1.0}
    jobs = [job(number, steps=10 * ROUND_S, job_class="c") for number in (1, 2)]
    asked = snapshot([host("h", 1)], jobs, quantum_s=ROUND_S, rates=rates)
    for owed, said in (
        (1.03e-4, "it is not behind its fair share"),
        (20.0, "for being behind its fair share it is owed 10 min of training on its fastest GPUs"),
    ):
        memory = {"quantum": asked.quantum, "owed": {"1": owed, "2": owed}}
        (told,) = fft.decide(asked, memory).why.values()
        assert told.endswith(f"; {said}"), told
