"""Jobs that change speed in the middle, and measured speeds that are not true: nobody else ends below their own share, in both depths."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import fsum, inf, nan

import numpy as np
import pytest

from hs_core.names import UserName
from hs_core.policies import POLICIES, find
from hs_core.policy import Memory, Policy, Snapshot, Verdict
from hs_sim.machines import World
from hs_sim.machines.gang import Gang
from hs_sim.model import ClusterSpec, Experiment, Noise, Pool, Result, SimJob, SpeedChange, Workload
from hs_sim.quanta import run_quanta
from hs_sim.quanta.profile import ENOUGH, Measured

QUANTUM_S = 60.0
SETTLED = 20  # quanta after jobs come, and after speeds change: jobs move, a few in every quantum
MOVED = 40  # quanta until all have moved that follow trades, within a cluster's budget of moves
FOREVER = 10**9
SLOW = 10.0  # mini-batches a second on a K80, of every class
POOLS = {"V100": 2, "K80": 4}  # servers of 4
BASE = {"V100": 8 / 3, "K80": 16 / 3}  # of each of three users with tickets alike and jobs enough

Run = Callable[[Experiment], Result]


def run_the_machines(experiment: Experiment) -> Result:
    return World(experiment).run()


both_depths = pytest.mark.parametrize("run", [run_quanta, run_the_machines], ids=["quanta", "machines"])


def an_experiment(
    speedups: Mapping[str, float], quanta: int, changes: Iterable[SpeedChange] = (), each: int = 30
) -> Experiment:
    """Every user has one class of jobs on one GPU, so many times as fast on a V100."""
    jobs = [(user, n) for n in range(each) for user in speedups]
    rates = {(user, "V100"): SLOW * speedup for user, speedup in speedups.items()}
    return Experiment(
        cluster=ClusterSpec(
            pools=tuple(Pool(model=m, servers=n, gpus_per_server=4) for m, n in POOLS.items())
        ),
        workload=Workload(
            name="speeds",
            jobs=tuple(
                SimJob(
                    id=number,
                    user=UserName(user),
                    arrival_s=0.0,
                    steps=FOREVER,
                    job_class=user,
                    state_bytes=1 << 20,
                )
                for number, (user, _) in enumerate(jobs, start=1)
            ),
            tickets={UserName(user): 100.0 for user in speedups},
            rates={**rates, **{(user, "K80"): SLOW for user in speedups}},
            changes=tuple(changes),
        ),
        quantum_s=QUANTUM_S,
        until_s=quanta * QUANTUM_S,
    )


def change(quantum: float, user: str, speedup: float) -> SpeedChange:
    return SpeedChange(at_s=quantum * QUANTUM_S, job_class=user, model="V100", steps_per_s=SLOW * speedup)


def speed(result: Result, user: str, first: int, last: int) -> float:
    """Mini-batches a second of all of its jobs, in the mean over these quanta."""
    samples = result.samples[first:last]
    return fsum(sample.steps_per_s.get(UserName(user), 0.0) for sample in samples) / len(samples)


def own(speedup: float) -> float:
    """What a user's own share would train, without any trade."""
    return SLOW * (BASE["V100"] * speedup + BASE["K80"])


def received(result: Result, user: str, first: int, last: int) -> float:
    samples = result.samples[first:last]
    return fsum(gpus for sample in samples for (of, _), gpus in sample.gpus.items() if of == user) / len(
        samples
    )


def entitled(result: Result, user: str, first: int, last: int) -> float:
    samples = result.samples[first:last]
    return fsum(gpus for sample in samples for (of, _), gpus in sample.entitled.items() if of == user) / len(
        samples
    )


def used(result: Result, first: int, last: int) -> float:
    samples = result.samples[first:last]
    return fsum(fsum(sample.gpus.values()) for sample in samples) / len(samples)


# --- they change in the middle ------------------------------------------------------------------------------------------


@both_depths
def test_steps_are_counted_at_the_speed_that_a_job_has_just_then(run: Run) -> None:
    asked = an_experiment({"a": 4.0}, 20, [change(5.5, "a", 2.0), change(9.25, "a", 8.0)], each=1)
    pinned = replace(asked.workload.jobs[0], gpu_types=("V100",))
    result = run(replace(asked, workload=replace(asked.workload, jobs=(pinned,))))
    began_s = result.jobs[0].started_s
    assert began_s is not None
    whole = SLOW * ((5.5 * 60 - began_s) * 4 + 3.75 * 60 * 2 + 10.75 * 60 * 8)
    assert speed(result, "a", 0, 20) * 20 * 60 == pytest.approx(whole, abs=SLOW)


@both_depths
def test_a_job_that_becomes_faster_in_the_middle_of_a_quantum_ends_earlier(run: Run) -> None:
    asked = an_experiment({"a": 4.0}, 20, [change(2.5, "a", 40.0)], each=1)
    job = replace(asked.workload.jobs[0], steps=10_000, gpu_types=("V100",))
    (done,) = run(replace(asked, workload=replace(asked.workload, jobs=(job,)))).jobs
    assert done.started_s is not None
    left = 10_000 - SLOW * 4 * (150.0 - done.started_s)
    assert done.ended_s == pytest.approx(150.0 + left / (SLOW * 40), abs=0.05)


@both_depths
def test_trades_follow_speeds_that_change_and_nobody_trains_less_than_its_own_share_would(run: Run) -> None:
    """A gains little from a V100 and C much; then it is the other way round, and later they are alike."""
    changes = [change(80.4, "a", 6.0), change(80.4, "c", 1.2), change(160.7, "a", 3.0), change(160.7, "c", 3.0), change(160.7, "b", 3.0)]  # fmt: skip
    result = run(an_experiment({"a": 1.2, "b": 4.0, "c": 6.0}, 240, changes))
    phases = [
        (0, 80, {"a": 1.2, "b": 4.0, "c": 6.0}),
        (80, 160, {"a": 6.0, "b": 4.0, "c": 1.2}),
        (160, 240, {"a": 3.0, "b": 3.0, "c": 3.0}),
    ]
    for first, last, speedups in phases:
        for user, speedup in speedups.items():
            assert speed(result, user, first + SETTLED, last) >= 0.95 * own(speedup), (user, first)
            due = entitled(result, user, first + MOVED, last)
            assert received(result, user, first + MOVED, last) >= 0.95 * due, (user, first)
        assert used(result, first + SETTLED, last) > 0.97 * 24
    gains = [speed(result, user, 40, 80) / own(s) for user, s in phases[0][2].items()]
    assert max(gains) > 1.1, "there was a trade to be undone"
    assert {model for (_, model), gpus in result.samples[-1].entitled.items() if gpus} == {"V100", "K80"}
    for user in "abc":
        assert entitled(result, user, 220, 240) == pytest.approx(8.0, rel=0.01), "trades were taken back"


@pytest.mark.parametrize("left", [0, 4])
def test_who_traded_for_jobs_that_have_ended_has_its_own_share_for_those_that_came_instead(left: int) -> None:
    """C's jobs gained most from V100s, so that it has no K80s; those that it has now, but for so many, never run on one, and gain little."""
    asked = an_experiment({"a": 1.25, "b": 5.0, "c": 6.25}, 140, each=60)
    jobs = [job for job in asked.workload.jobs if job.user != "c"]
    mine = [job for job in asked.workload.jobs if job.user == "c"]
    short = [replace(job, steps=round(SLOW * 6.25 * 240)) for job in mine[left:30]]
    later = [replace(job, job_class="new", arrival_s=20 * QUANTUM_S) for job in mine[30:]]
    ordered = sorted([*jobs, *mine[:left], *short, *later], key=lambda job: job.arrival_s)
    numbered = tuple(replace(job, id=number) for number, job in enumerate(ordered, start=1))
    rates = {**asked.workload.rates, ("new", "V100"): SLOW * 1.25, ("new", "K80"): SLOW}
    workload = replace(asked.workload, jobs=numbered, rates=rates)
    result = run_quanta(replace(asked, workload=workload))
    assert any(trade["receives"] == "c" for trade in result.trades)
    assert speed(result, "c", 140 - MOVED, 140) >= 0.95 * own(1.25)


@pytest.mark.parametrize("known", [False, True])
def test_a_speed_that_has_changed_is_known_once_a_job_has_reported_it(known: bool) -> None:
    true = np.array([10.0, 5.0])
    measured = Measured([("c", "V100"), ("c", "K80")], true, 0.0, 0, known=known)
    for _ in range(ENOUGH):
        measured.report(np.array([0, 1]))
    true[:] = (20.0, 2.0)
    measured.changed()
    if not known:
        assert measured.report(np.array([1])), "a policy may want to know"
        assert not measured.report(np.array([1]))
        assert measured.rates() == {("c", "V100"): 10.0, ("c", "K80"): 2.0}
        assert measured.report(np.array([0, 1]))
    assert measured.rates() == {("c", "V100"): 20.0, ("c", "K80"): 2.0}


# --- they are blurred ---------------------------------------------------------------------------------------------------


def test_users_who_are_alike_make_no_trades_of_noise_and_nobody_moves_for_them() -> None:
    asked = an_experiment({"a": 3.0, "b": 3.0, "c": 3.0}, 200)
    calm, blurred = (run_quanta(replace(asked, noise=Noise(rate_cv=cv))) for cv in (0.0, 0.1))
    assert blurred.trades == calm.trades == ()
    assert sum(job.migrations for job in blurred.jobs) <= sum(job.migrations for job in calm.jobs) + 3


def test_the_first_reports_on_a_model_count_alike() -> None:
    """Of three the one in the middle: that is nearer to what is true than any one of them."""
    found = []
    for seed in range(300):
        measured = Measured([("c", "V100")], np.array([10.0]), 0.1, seed)
        for _ in range(ENOUGH):
            measured.report(np.array([0]))
        found.append(measured.rates()["c", "V100"] / 10.0 - 1.0)
        assert measured.within()["c", "V100"] > 0
    assert np.std(found) < 0.08


def test_users_who_differ_by_more_than_the_noise_trade_once_and_gain() -> None:
    asked = an_experiment({"a": 1.2, "b": 4.0, "c": 6.0}, 200)
    result = run_quanta(replace(asked, noise=Noise(rate_cv=0.1)))
    assert result.trades
    assert not any(
        trade["undone"] for trade in result.trades if float(str(trade["at"])) > SETTLED * QUANTUM_S
    )
    assert speed(result, "a", MOVED, 200) > 1.1 * own(1.2)


# --- they are not true --------------------------------------------------------------------------------------------------

LIES: dict[str, Callable[[float, int], float]] = {
    "no rate at all": lambda rate, n: (nan, 0.0, -rate, inf, -inf)[n % 5],
    "huge and tiny": lambda _rate, n: (1e308, 1e-300)[n // 7 % 2],
    "one and the other": lambda rate, n: rate * (100.0 if n % 2 else 0.01),
    "all of it": lambda rate, n: (nan, 0.0, -rate, inf, 1e308, rate, 1e-300, rate * 50)[n % 8],
}


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_who_lies_about_speed_takes_nothing_from_others(lie: Callable[[float, int], float]) -> None:
    """What jobs of user `liar` say of their speed is not what they do."""
    world = World(an_experiment({"a": 1.5, "b": 4.0, "liar": 2.0}, 80, each=16))
    true, said = world.speeds.told, 0

    def told(gang: Gang) -> float:
        nonlocal said
        if gang.job.sim.user != "liar":
            return true(gang)
        said += 1
        return lie(gang.rate, said)

    world.speeds.told = told  # type: ignore[method-assign]
    result = world.run()
    for user, speedup in (("a", 1.5), ("b", 4.0)):
        assert speed(result, user, 2 * SETTLED, 80) >= 0.95 * own(speedup), user
    assert received(result, "liar", 2 * SETTLED, 80) >= 0.9 * entitled(result, "liar", 2 * SETTLED, 80)
    assert used(result, SETTLED, 80) > 0.95 * 24
    assert said > 100


def told(policy: Policy, lie: Callable[[str, str, int], float | None]) -> Policy:
    """As `policy`, from rates that are not true: `lie(job class, model, quantum)`; None: the true one."""

    def decide(asked: Snapshot, memory: Memory) -> Verdict:
        rates = {}
        for (job_class, model), rate in asked.rates.items():
            said = lie(job_class, model, asked.quantum)
            rates[job_class, model] = rate if said is None else said
        return policy.decide(replace(asked, rates=rates), memory)

    return replace(policy, decide=decide)


SLOWEST, FASTEST = 1e-6, 1e6  # what a profile lets pass


def of_the_liar(lie: Callable[[str, int], float]) -> Callable[[str, str, int], float | None]:
    return lambda job_class, model, quantum: lie(model, quantum) if job_class.startswith("liar") else None


@pytest.mark.parametrize(
    "lie",
    [
        lambda model, _: FASTEST if model == "V100" else SLOWEST,
        lambda model, _: SLOWEST if model == "V100" else FASTEST,
        lambda model, quantum: 10.0 if model == "K80" else (SLOWEST, FASTEST)[quantum % 2],
        lambda model, quantum: 10.0 if model == "K80" else (11.0, 90.0)[quantum // 10 % 2],
    ],
    ids=["much faster", "much slower", "one and the other", "slowly one and the other"],
)
def test_no_profile_that_lies_costs_others_their_own_share(lie: Callable[[str, int], float]) -> None:
    asked = an_experiment({"a": 1.5, "b": 4.0, "liar": 2.0}, 140)
    result = run_quanta(asked, policy=told(find("gandiva-fair"), of_the_liar(lie)))
    for user, speedup in (("a", 1.5), ("b", 4.0)):
        assert speed(result, user, 2 * SETTLED, 140) >= 0.95 * own(speedup), user
    assert received(result, "liar", 2 * SETTLED, 140) >= 0.9 * entitled(result, "liar", 2 * SETTLED, 140)
    assert used(result, SETTLED, 140) > 0.97 * 24


def test_what_was_traded_on_a_lie_is_taken_back_when_it_is_seen() -> None:
    def lie(model: str, quantum: int) -> float:
        return 200.0 if model == "V100" and quantum < 60 else 20.0 if model == "V100" else 10.0

    speedups = {"a": 2.0, "b": 3.0, "liar": 2.0}
    result = run_quanta(an_experiment(speedups, 120), policy=told(find("gandiva-fair"), of_the_liar(lie)))
    assert result.samples[55].entitled[UserName("liar"), "V100"] > 8 / 3
    theirs = [trade for trade in result.trades if trade["receives"] == "liar"]
    assert sum(not trade["undone"] for trade in theirs) == sum(bool(trade["undone"]) for trade in theirs) > 0
    for user, speedup in speedups.items():
        assert speed(result, user, 60 + SETTLED, 120) >= 0.95 * own(speedup)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_no_policy_breaks_or_starves_anybody_over_profiles_that_lie(policy: Policy) -> None:
    """All jobs end, whoever is said to be how fast."""
    asked = an_experiment({"a": 1.5, "liar": 2.0}, 0, each=6)
    jobs = tuple(
        replace(job, steps=round(SLOW * 240), gpus=1 + job.id % 2, nodes=1, arrival_s=20.0 * job.id)
        for job in asked.workload.jobs
    )

    def lie(model: str, quantum: int) -> float:
        said = (SLOWEST, FASTEST, 10.0, 10.0)
        return said[(quantum + len(model)) % 4]

    result = run_quanta(
        replace(
            asked,
            cluster=ClusterSpec(pools=tuple(Pool(model=m, servers=1, gpus_per_server=2) for m in POOLS)),
            workload=replace(asked.workload, jobs=jobs),
            until_s=240 * QUANTUM_S,
        ),
        policy=told(policy, of_the_liar(lie)),
    )
    assert all(job.ended_s is not None for job in result.jobs)


@both_depths
def test_a_class_that_came_when_its_users_fast_gpus_were_in_use_is_measured_on_them_and_gets_most(
    run: Run,
) -> None:
    """Jobs that gain little by them came first. They had them for ever, and those that gain most were never tried there."""
    speedups = {"little": ("A", 1.2, 8), "much": ("A", 5.0, 4), "others": ("B", 3.0, 24)}
    jobs = [(user, job_class, count) for job_class, (user, _, count) in speedups.items()]
    each = [(user, job_class, at) for at, (user, job_class, count) in enumerate(jobs) for _ in range(count)]
    rates = {(job_class, "K80"): SLOW for job_class in speedups}
    rates |= {(job_class, "V100"): SLOW * times for job_class, (_, times, _) in speedups.items()}
    workload = Workload(
        name="a class that came later",
        jobs=tuple(
            SimJob(
                id=n, user=UserName(user), arrival_s=30.0 * at + n / 10, steps=FOREVER, job_class=job_class
            )
            for n, (user, job_class, at) in enumerate(each, start=1)
        ),
        tickets={UserName("A"): 100.0, UserName("B"): 100.0},
        rates=rates,
    )
    pools = tuple(Pool(model=model, servers=count, gpus_per_server=4) for model, count in POOLS.items())
    experiment = Experiment(
        cluster=ClusterSpec(pools=pools), workload=workload, until_s=2 * MOVED * QUANTUM_S
    )
    last = run(experiment).samples[-10:]
    done = sum(sample.steps_per_s[UserName("A")] for sample in last) / len(last)
    assert done >= 0.99 * SLOW * (3 * 5.0 + 1.2 + 8 * 1.0), "three of four at least; it was 12.8"


@pytest.mark.parametrize("policy", ["las", "srtf", "srsf", "tiresias", "pal", "tesserae-las"])
def test_a_job_measured_on_old_gpus_goes_to_new_ones_that_become_idle_though_no_class_ran_on_both(
    policy: str,
) -> None:
    jobs = (
        SimJob(id=1, user=UserName("ann"), arrival_s=0.0, steps=12_000, job_class="first"),
        SimJob(id=2, user=UserName("bob"), arrival_s=0.0, steps=60_000, job_class="second"),
    )
    rates = {
        (name, model): rate for name in ("first", "second") for model, rate in (("V100", 40.0), ("K80", 10.0))
    }
    experiment = Experiment(
        cluster=ClusterSpec(
            pools=tuple(Pool(model=model, servers=1, gpus_per_server=1) for model in ("V100", "K80"))
        ),
        workload=Workload(
            name="apart", jobs=jobs, tickets={UserName("ann"): 100.0, UserName("bob"): 100.0}, rates=rates
        ),
        policy=policy,
        quantum_s=QUANTUM_S,
    )
    _, second = run_quanta(experiment).jobs
    assert second.gpu_s["K80"] < 600.0 < second.gpu_s["V100"]
