"""The workloads of other papers' comparisons, on a small made trace and a small table of speeds."""

from collections import Counter

import pytest

from hs_core.dice import roll
from hs_core.errors import RefusedError
from hs_sim import papers
from hs_sim.cluster import keep_to_what_runs
from hs_sim.model import Experiment
from hs_sim.philly import PhillyJob, load_philly
from hs_sim.quanta import run_quanta

HEADER = "timestamp,duration,num_gpus,gpu_time,cluster\n"
KINDS = (
    "CycleGAN",
    "LM (batch size 5)",
    "ResNet-18 (batch size 16)",
    "ResNet-50 (batch size 128)",
    "Transformer (batch size 64)",
)
SPEEDS = {
    (f"{kind} x{gang}", model): rate * gang
    for gang in (1, 2, 4, 8)
    for kind in KINDS
    for model, rate in (("V100", 4.0), ("P100", 2.0), ("K80", 0.0 if kind.startswith("ResNet-50") and gang > 1 else 1.0))
    if kind != "CycleGAN" or gang == 1
}  # fmt: skip


@pytest.fixture(scope="module")
def philly(tmp_path_factory: pytest.TempPathFactory) -> tuple[PhillyJob, ...]:
    dice = roll(7, "philly")
    path = tmp_path_factory.mktemp("philly") / "philly.csv"
    lines = []
    for _ in range(4_000):
        day, hour, minute = dice.randrange(1, 8), dice.randrange(24), dice.randrange(60)
        duration = round(60 * 10 ** dice.uniform(-0.5, 3.5), 1)
        lines.append(
            f"2017-10-{day:02d} {hour:02d}:{minute:02d}:00,{duration},{dice.choice((1, 1, 1, 2, 4, 8, 16))},0,c"
        )
    path.write_text(HEADER + "\n".join(lines) + "\n")
    return load_philly(path)


def test_phillys_jobs_come_by_arrival_from_the_first(philly: tuple[PhillyJob, ...]) -> None:
    times = [row.at_s for row in philly]
    assert times[0] == 0
    assert times == sorted(times)
    assert len(philly) == 4_000


@pytest.mark.parametrize("gang", [0, 4])
def test_ffts_trace_asks_for_the_load_it_is_given(philly: tuple[PhillyJob, ...], gang: int) -> None:
    load = papers.fft_trace(philly, gang=gang, load=0.8)
    assert len(load.jobs) == 800
    assert load.jobs[0].arrival_s == 0
    assert load.jobs[-1].arrival_s <= papers.FFT_WINDOW_S
    assert {job.gang for job in load.jobs} == ({4} if gang else {1, 2, 3, 4, 8})
    pools = papers.FFT_CLUSTER.pools
    asked = sum(
        job.gang * job.steps / (sum(load.rates[job.job_class, pool.model] for pool in pools) / len(pools))
        for job in load.jobs
    )
    there = sum(pool.gpus for pool in pools) * papers.FFT_WINDOW_S
    assert asked / there == pytest.approx(0.8, rel=0.01)


def test_ffts_speeds_are_within_its_figure_and_its_largest_state_is_107_gb(
    philly: tuple[PhillyJob, ...],
) -> None:
    load = papers.fft_trace(philly)
    for name in {name for name, _ in load.rates}:
        t4, a10, v100 = (load.rates[name, model] for model in ("T4", "A10", "V100"))
        assert 1.6 <= v100 / t4 <= 2.71
        assert t4 < a10 < v100
    assert max(job.state_bytes for job in load.jobs) == pytest.approx(107e9, rel=0.01)


def test_every_job_of_fft_fits_somewhere(philly: tuple[PhillyJob, ...]) -> None:
    load = papers.fft_trace(philly)
    assert keep_to_what_runs(load, papers.FFT_CLUSTER) == load
    largest = max(pool.gpu_memory_bytes for pool in papers.FFT_CLUSTER.pools)
    assert max(job.gpu_memory_bytes for job in load.jobs) <= largest


def test_hadars_jobs_have_the_models_of_their_hours(philly: tuple[PhillyJob, ...]) -> None:
    load = papers.hadar_trace(philly, SPEEDS)
    assert len(load.jobs) == 480
    assert {job.arrival_s for job in load.jobs} == {0.0}
    for job in load.jobs:
        hours = job.gang * job.steps / load.rates[job.job_class, "V100"] / 3600
        (names,) = (
            names for low, high, names in papers.HADAR_KINDS if low < hours * (1 + 1e-3) and hours <= high * (1 + 1e-3)
        )  # fmt: skip
        assert job.job_class.startswith(names)


def test_a_job_is_kept_from_gpus_on_which_its_speed_is_0(philly: tuple[PhillyJob, ...]) -> None:
    load = papers.hadar_trace(philly, SPEEDS)
    stuck = {name for (name, _), rate in load.rates.items() if rate == 0}
    assert stuck
    for job in load.jobs:
        assert job.gpu_types == (("P100", "V100") if job.job_class in stuck else ())


@pytest.mark.parametrize(
    ("make", "sizes"),
    [(papers.tesserae_default, (0.6, 0.3, 0.09, 0.01)), (papers.tesserae_gavel, (0.7, 0.1, 0.15, 0.05))],
)
def test_tesseraes_jobs_come_at_its_rate_in_its_sizes(make, sizes) -> None:  # type: ignore[no-untyped-def]
    load = make(SPEEDS, jobs=4_000)
    counts = Counter(job.gang for job in load.jobs)
    for size, part in zip((1, 2, 4, 8), sizes, strict=True):
        assert counts[size] / 4_000 == pytest.approx(part, abs=0.025)
    assert load.jobs[-1].arrival_s == pytest.approx(4_000 / 80 * 3600, rel=0.06)


def test_same_seed_same_jobs_and_another_seed_others(philly: tuple[PhillyJob, ...]) -> None:
    def all_of(seed: int) -> list[object]:
        return [
            papers.fft_trace(philly, seed=seed),
            papers.hadar_trace(philly, SPEEDS, seed=seed),
            papers.tesserae_default(SPEEDS, seed=seed),
            papers.tesserae_gavel(SPEEDS, seed=seed),
        ]

    assert all_of(3) == all_of(3)
    assert all(one != other for one, other in zip(all_of(3), all_of(4), strict=True))


def test_too_short_a_trace_is_refused(philly: tuple[PhillyJob, ...]) -> None:
    with pytest.raises(RefusedError, match="no 48 hours with 800 jobs"):
        papers.fft_trace(philly[:100])
    with pytest.raises(RefusedError, match="hours 3 to 10"):
        papers.hadar_trace(philly[:100], SPEEDS)


@pytest.mark.parametrize("anywhere", [False, True])
def test_elastic_jobs_of_the_bsbf_trace_are_as_fast_as_before_where_nobody_changes_them(
    anywhere: bool,
) -> None:
    plain = papers.bsbf_trace(jobs=30, seed=1)
    elastic = papers.bsbf_elastic(plain, anywhere=anywhere)
    assert [job.elastic is None for job in elastic.jobs] == [
        job.nodes > 1 and not anywhere for job in plain.jobs
    ]
    for policy in ("fifo", "sjf-ffs"):
        ended = [
            [
                job.ended_s
                for job in run_quanta(
                    Experiment(
                        cluster=papers.bsbf_cluster(2), workload=found, policy=policy, known_rates=True
                    )
                ).jobs
            ]
            for found in (plain, elastic)
        ]
        if policy == "fifo":
            assert ended[1] == pytest.approx(ended[0], rel=1e-6)
        assert None not in ended[1]
