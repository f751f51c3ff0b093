"""Elastic jobs, simulated: both depths restart them on other numbers of GPUs, and they go on with what they had done."""

from dataclasses import replace
from pathlib import Path

import pytest

from hs_core.cluster.rates import ENOUGH
from hs_core.errors import RefusedError
from hs_core.events.cluster import PolicySet
from hs_core.forms import Elastic, Shape
from hs_core.mechanism.goodput import Speed
from hs_core.model import SuspendMode, Topology
from hs_core.names import UserName
from hs_core.profile import Profile, RateSample
from hs_job import noise as hs_job_noise
from hs_sim import cases, faults
from hs_sim.cases.case import Case
from hs_sim.elastic import NOISE_EVERY, declared_rates, noise_samples, shapes_to_know, steps_per_s, told_per_s
from hs_sim.export import dump_csv, dump_yaml
from hs_sim.files import load
from hs_sim.machines import run_machines
from hs_sim.machines.laws import Laws
from hs_sim.machines.timing import IDEAL
from hs_sim.machines.world import World
from hs_sim.model import ClusterSpec, Costs, Experiment, Pool, Result, SimJob, Workload
from hs_sim.quanta import run_quanta

NET = Speed(grad_s=0.02, grad_per_example_s=0.002, local_s=0.02, local_per_gpu_s=0.002)
ELASTIC = Elastic(
    gpus_min=1, gpus_max=8, batch=64, batch_max=1_024, batch_per_gpu_max=128, noise_scale=1_000.0
)
COSTS = Costs(suspend_s=0.0, resume_s=0.0, start_s=5.0)


def a_job(number: int, arrival_s: float = 0.0, steps: int = 20_000, **more: object) -> SimJob:
    made = SimJob(
        id=number, user=UserName("A"), arrival_s=arrival_s, steps=steps, job_class="net", elastic=ELASTIC
    )
    return replace(made, **more)  # type: ignore[arg-type]  # the tests' own wishes


def an_experiment(*jobs: SimJob, **wishes: object) -> Experiment:
    speeds = {("net", "V100"): NET}
    rates = declared_rates({"net": a_job(1)}, speeds) | {("fixed", "V100"): 10.0}
    made = Experiment(
        cluster=ClusterSpec(pools=(Pool(model="V100", servers=1, gpus_per_server=8),)),
        workload=Workload(name="w", jobs=jobs, tickets={UserName("A"): 100.0}, rates=rates, speeds=speeds),
        policy="pollux",
        costs=COSTS,
    )
    return replace(made, **wishes)  # type: ignore[arg-type]


def fixed(number: int, arrival_s: float, gpus: int, steps: int) -> SimJob:
    return a_job(number, arrival_s, steps, job_class="fixed", gpus=gpus, elastic=None)


def ends(result: Result) -> list[float]:
    return [job.ended_s or -1.0 for job in result.jobs]


def test_what_a_second_is_worth_is_counted_in_batches_of_ones_own_size() -> None:
    own, large = ELASTIC.on(1), Shape(gpus=4, per_gpu=128)
    assert steps_per_s(ELASTIC, NET, own) == pytest.approx(told_per_s(NET, own))
    worth = 512 * told_per_s(NET, large) * (1_000 + 64) / (1_000 + 512) / 64
    assert steps_per_s(ELASTIC, NET, large) == pytest.approx(worth)


def test_a_job_alone_is_restarted_on_more_gpus_until_that_no_longer_pays() -> None:
    (job,) = run_quanta(an_experiment(a_job(1))).jobs
    alone_s = 20_000 / steps_per_s(ELASTIC, NET, ELASTIC.on(1))
    assert job.ended_s is not None
    assert job.ended_s < alone_s / 2
    assert 1 <= job.migrations <= 5
    assert sum(job.gpu_s.values()) > 2 * job.ended_s, "it is charged for the GPUs that it had"
    assert sum(job.gpu_s.values()) <= 8 * job.ended_s


def over_two(*jobs: SimJob, far_s: float, **wishes: object) -> Experiment:
    """Two servers of four GPUs; synchronizing over both takes `far_s` where two GPUs of one take 20 ms."""
    speeds = {("net", "V100"): replace(NET, far_s=far_s, far_per_gpu_s=0.002)}
    made = an_experiment(*jobs, **wishes)
    cluster = ClusterSpec(pools=(Pool(model="V100", servers=2, gpus_per_server=4),))
    rates = declared_rates({"net": jobs[0]}, speeds) | {("fixed", "V100"): 10.0}
    return replace(made, cluster=cluster, workload=replace(made.workload, speeds=speeds, rates=rates))


@pytest.mark.parametrize(("far_s", "wide"), [(0.02, True), (5.0, False)])
def test_a_job_that_may_be_on_several_servers_has_both_where_that_pays(far_s: float, wide: bool) -> None:
    ended = {}
    for topology in Topology:
        (job,) = run_quanta(over_two(a_job(1, topology=topology), far_s=far_s, known_rates=True)).jobs
        assert job.ended_s is not None
        ended[topology] = (job.ended_s, sum(job.gpu_s.values()) / job.ended_s)
    (alone_s, few), (either_s, more) = ended[Topology.AUTO], ended[Topology.ANY]
    assert few <= 4
    assert (more > 4) is wide
    assert either_s < 0.9 * alone_s if wide else either_s == alone_s


def test_a_job_may_ask_for_several_servers_and_is_as_fast_as_it_is_there_under_any_policy() -> None:
    asks = a_job(1, gpus=2, nodes=2, topology=Topology.ANY)
    (job,) = run_quanta(over_two(asks, far_s=0.5, policy="fifo")).jobs
    speed = replace(NET, far_s=0.5, far_per_gpu_s=0.002)
    there_s = 20_000 / steps_per_s(ELASTIC, speed, ELASTIC.on(4, 2))
    assert there_s + 5.0 <= job.ended_s <= there_s + 5.0 + 60.0, "over several servers it begins at an edge"
    assert there_s > 1.5 * 20_000 / steps_per_s(ELASTIC, speed, ELASTIC.on(4))
    (same,) = run_machines(over_two(asks, far_s=0.5, policy="fifo")).jobs
    assert same.ended_s == pytest.approx(job.ended_s, rel=0.02)


def test_under_another_policy_it_runs_as_declared() -> None:
    (job,) = run_quanta(an_experiment(a_job(1, gpus=2), policy="fifo")).jobs
    assert job.migrations == 0
    assert job.ended_s == pytest.approx(20_000 / steps_per_s(ELASTIC, NET, ELASTIC.on(2)) + 5.0, abs=1.0)
    assert sum(job.gpu_s.values()) == pytest.approx(2 * job.ended_s, abs=20.0)


@pytest.mark.parametrize(
    "experiment",
    [
        an_experiment(a_job(1)),
        an_experiment(a_job(1), fixed(2, 600.0, 4, 6_000)),
        over_two(a_job(1, topology=Topology.ANY), fixed(2, 600.0, 4, 6_000), far_s=0.02),
    ],
    ids=["alone", "beside one that is not elastic", "over two servers, one, and two again"],
)
def test_both_depths_agree_on_when_each_ends_and_what_it_received(experiment: Experiment) -> None:
    quick = run_quanta(experiment)
    world = World(experiment, timing=IDEAL, watched=True)
    laws = Laws(world)
    world.watch = laws
    real = world.run()
    laws.at_the_end()
    assert [job.migrations for job in real.jobs] == [job.migrations for job in quick.jobs]
    assert sum(job.migrations for job in real.jobs) > 0
    assert ends(real) == pytest.approx(ends(quick), rel=0.02)
    received = [[sum(job.gpu_s.values()) for job in result.jobs] for result in (real, quick)]
    assert received[0] == pytest.approx(received[1], rel=0.02)


def test_a_file_says_what_an_elastic_job_allows_and_how_fast_its_class_is(tmp_path: Path) -> None:
    workload = an_experiment(a_job(1, noise_scale=1_800.0), fixed(2, 5.0, 2, 100)).workload
    for name, dump in (("w.yaml", dump_yaml), ("w.csv", dump_csv)):
        (tmp_path / name).write_text(dump(workload))
        again = load(tmp_path / name)
        assert again.speeds == workload.speeds
        assert again.rates == workload.rates
        assert [replace(job, line=0) for job in again.jobs] == list(workload.jobs)


@pytest.mark.parametrize(
    ("elastic", "speeds", "said"),
    [
        (
            "4-2 64-128 32",
            "net: {V100: {grad_per_example_s: 0.1}}",
            "w.yaml:5: elastic: '4-2 64-128 32'; expected",
        ),
        (
            "1-8 64-32 32",
            "net: {V100: {grad_per_example_s: 0.1}}",
            "w.yaml:5: elastic: '1-8 64-32 32'; expected",
        ),
        ("1-8", "net: {V100: {grad_per_example_s: 0.1}}", "w.yaml:5: elastic: '1-8'; expected"),
        ("2-8 64-64 32", "net: {V100: {grad_per_example_s: 0.1}}", "w.yaml:5: gpus: 1; expected 2 to 8"),
        ("1-8 64-64 32", "{}", "w.yaml:5: job_class: 'net'; expected one that has speeds"),
        (
            "1-8 64-64 32",
            "net: {V100: {grad: 0.1}}",
            "w.yaml:3: unknown field 'speeds.net.V100.grad'; expected one of grad_s",
        ),
        ("1-8 64-64 32", "net: {V100: {grad_s: 0.1}}", "w.yaml:3: speeds.net.V100"),
    ],
)
def test_what_contradicts_itself_in_a_file_is_named(
    tmp_path: Path, elastic: str, speeds: str, said: str
) -> None:
    text = f"name: w\nrates: {{net: {{V100: 1.0}}}}\nspeeds: {{{speeds.strip('{}')}}}\njobs:\n"
    if speeds != "{}":
        text = text.replace(f"{{{speeds.strip('{}')}}}", f"{{{speeds}}}")
    text += f"  - {{user: A, arrival_s: 0, steps: 10, job_class: net, elastic: {elastic!r}}}\n"
    (tmp_path / "w.yaml").write_text(text)
    with pytest.raises(RefusedError) as refused:
        load(tmp_path / "w.yaml")
    assert said in str(refused.value)


def test_a_true_noise_scale_is_of_an_elastic_job(tmp_path: Path) -> None:
    job = "{user: A, arrival_s: 0, steps: 10, job_class: net, noise_scale: 3}"
    (tmp_path / "w.yaml").write_text(f"name: w\nrates: {{net: {{V100: 1.0}}}}\njobs:\n  - {job}\n")
    with pytest.raises(RefusedError, match=r"w\.yaml:4: noise_scale: .*an elastic job to go with it"):
        load(tmp_path / "w.yaml")


def with_speeds_known(experiment: Experiment) -> World:
    """As the cheap depth has them where rates are known: the controller has measured such jobs before."""
    world, profile = World(experiment, timing=IDEAL), Profile()
    for shape in shapes_to_know(ELASTIC):
        rate = told_per_s(NET, shape)
        for _ in range(ENOUGH):
            profile.add(
                RateSample(
                    job_class="A/net",
                    model="V100",
                    steps_per_s=rate,
                    now_s=0.0,
                    since_resume_s=60.0,
                    shape=shape,
                )
            )
    world.controller.journal.profile = profile.dump()
    return world


@pytest.mark.parametrize("declared", [0.0, 20.0], ids=["not declared", "declared far too small"])
def test_gradients_that_were_measured_count_more_than_what_was_declared(declared: float) -> None:
    wrong = replace(ELASTIC, noise_scale=declared)
    experiment = an_experiment(
        a_job(1, gpus=2, steps=60_000, elastic=wrong, noise_scale=1_000.0), known_rates=True
    )
    right = an_experiment(a_job(1, gpus=2, steps=60_000), known_rates=True)
    never = replace(
        experiment,
        workload=replace(experiment.workload, jobs=(a_job(1, gpus=2, steps=60_000, elastic=wrong),)),
    )
    quick, best, unmeasured = (ends(run_quanta(one))[0] for one in (experiment, right, never))
    assert quick == pytest.approx(best, rel=0.02), "it trains with large mini-batches soon"
    assert unmeasured > 1.5 * quick, "as where its examples are really worth no more in them"
    assert ends(with_speeds_known(experiment).run())[0] == pytest.approx(quick, rel=0.03)


def test_the_same_experiment_gives_the_same_result() -> None:
    experiment = an_experiment(a_job(1), a_job(2, 300.0), fixed(3, 400.0, 2, 3_000))
    assert ends(run_quanta(experiment)) == ends(run_quanta(experiment))
    assert ends(run_machines(experiment)) == ends(run_machines(experiment))


def test_a_process_measures_noise_as_often_as_the_simulated_one_and_never_from_one_part_on_one_gpu() -> None:
    assert hs_job_noise.EVERY == NOISE_EVERY
    shape = Shape(gpus=2, per_gpu=32)
    assert noise_samples(NET, shape, 1_000.0) == int(1_000.0 * told_per_s(NET, shape) / NOISE_EVERY)
    assert noise_samples(NET, Shape(gpus=1, per_gpu=64), 1_000.0) == 0


def test_a_files_speeds_may_be_what_was_measured(tmp_path: Path) -> None:
    shapes = (
        Shape(gpus=1, per_gpu=32),
        Shape(gpus=1, per_gpu=128),
        Shape(gpus=2, per_gpu=32),
        Shape(gpus=4, per_gpu=32, parts=2),
    )
    said = ", ".join(
        f"{one.gpus}x{one.per_gpu}{f'x{one.parts}' if one.parts > 1 else ''}: {told_per_s(NET, one)!r}"
        for one in shapes
    )
    path = tmp_path / "w.yaml"
    text = """users: {A: 100}
speeds: {net: {V100: {measured: {MEASURED}}}}
jobs: [{user: A, arrival_s: 0, steps: 100, job_class: net, elastic: 1-8 64-1024 128 1000}]
"""
    path.write_text(text.replace("MEASURED", said))
    found = load(path).speeds["net", "V100"]
    for shape in shapes:
        assert told_per_s(found, shape) == pytest.approx(told_per_s(NET, shape), rel=0.05)
    for wrong, expected in (
        ("4x: 1.0", "GPUs, examples on each at once"),
        ("0x4: 1.0", "GPUs, examples on each at once"),
        ("1x32: 0", "a number above 0"),
    ):
        path.write_text(text.replace("MEASURED", wrong))
        with pytest.raises(RefusedError, match=f"w.yaml:2: speeds.net.V100.*{expected}"):
            load(path)


def stretched(case: Case) -> Case:
    """Three in four of its jobs are elastic, on any number of servers."""
    made = case.experiment
    jobs = tuple(
        job
        if job.id % 4 == 0 or job.nodes > 2
        else replace(
            job,
            job_class=f"c on {job.nodes} x {job.gpus}",
            elastic=replace(
                ELASTIC,
                gpus_max=max(job.gang, 8),
                batch=32 * job.gang,
                batch_per_gpu_max=64,
                noise_scale=300.0,
            ),
            topology=Topology.ANY,
            accumulation_max=1,
        )
        for job in made.workload.jobs
    )
    ones = {job.job_class: job for job in jobs if job.elastic is not None}
    speeds = {
        (class_, model): Speed(
            grad_s=0.1 / rate, grad_per_example_s=0.7 / rate / 32, local_s=0.1 / rate, far_s=0.15 / rate
        )
        for class_ in ones
        for (_, model), rate in made.workload.rates.items()
    }
    rates = {**made.workload.rates, **declared_rates(ones, speeds)}
    workload = replace(made.workload, jobs=jobs, rates=rates, speeds=speeds)
    by_id = {job.id: job for job in jobs}
    specs = {
        number: spec
        if (job := by_id[number]).elastic is None
        else replace(
            spec,
            elastic=job.elastic,
            topology=job.topology,
            job_class=job.job_class,
            accumulation_max=1,
            suspend=SuspendMode.AUTO,
        )
        for number, spec in case.specs.items()
    }
    return replace(case, specs=specs, experiment=replace(made, workload=workload, policy="pollux"))


@pytest.mark.parametrize("seed", [3, 15, 16, 27, 42, 61])
def test_no_trouble_breaks_jobs_that_go_from_one_server_to_several_and_back(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents that are started anew while such a job is there (27), a checkpoint of two nodes of which one alone goes on, and is lost (42)."""
    case = stretched(cases.case_of(seed))
    monkeypatch.setattr(faults, "case_of", lambda _: case)
    worlds: list[World] = []
    failure = faults.run_seed(seed, worlds.append)
    assert failure is None, str(failure)
    moved = [
        row for row in worlds[0].controller.machine.jobs(ended=True) if row.spec.elastic and row.migrations
    ]
    assert moved, "some were restarted in another shape"


@pytest.mark.parametrize(
    "policy",
    ["las", "fifo", "gandiva-fair", "fft", "gavel-max-min", "hadar", "hadare", "sjf-bsbf", "gang-lottery"],
)
@pytest.mark.parametrize("gpus", [1, 2])
def test_once_another_policy_is_in_office_they_go_back_to_what_they_declared_and_lose_no_step(
    policy: str, gpus: int
) -> None:
    jobs = [a_job(number, gpus=gpus, steps=30_000) for number in (1, 2)]
    world = World(an_experiment(*jobs, sample_s=30.0), timing=IDEAL, watched=True)
    world.watch = laws = Laws(world)
    gangs: list[list[int]] = []

    def look() -> None:
        gangs.append([row.gang for row in world.controller.machine.jobs()])

    def change() -> None:
        look()
        world.controller.tell(lambda now_s: PolicySet(now_s=now_s, name=policy, by=UserName("root")))

    quantum_s = world.experiment.quantum_s
    world.clock.at(6.5 * quantum_s, change)
    world.clock.at(10.0 * quantum_s, look)
    world.run()
    laws.at_the_end()
    before, after = gangs
    assert max(before) > gpus
    assert after == [gpus, gpus]
