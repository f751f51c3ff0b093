"""The depth of machines: conserved steps, same bytes, and the costs that were asked for."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hs_core.errors import RefusedError
from hs_core.events.host import Fetch, Forget, HostEvent, JobHeld, JobWentOn
from hs_core.host import HostOutcome
from hs_core.model import Migrate
from hs_core.names import GpuId, HostName, JobId, UserName
from hs_core.reports import Exit
from hs_core.wanted import Peer, Source, WantedJob
from hs_sim.machines import Fault, FaultPlan, Kind, run_machines
from hs_sim.machines.agent import Agent
from hs_sim.machines.gang import Gang
from hs_sim.machines.laws import Laws
from hs_sim.machines.part import Part, Way
from hs_sim.machines.timing import Timing
from hs_sim.machines.truth import Saved
from hs_sim.machines.world import World
from hs_sim.model import ClusterSpec, Costs, Experiment, Noise, Pool, Result, SimJob, Workload
from hs_sim.quanta import run_quanta

FREE = Costs(suspend_s=0.0, resume_s=0.0, start_s=0.0)
A, B, C = UserName("A"), UserName("B"), UserName("C")


def a_job(number: int, user: UserName = A, **wishes: object) -> SimJob:
    job = SimJob(id=number, user=user, arrival_s=0.0, steps=600, job_class="c")
    return replace(job, **wishes)  # type: ignore[arg-type]


def an_experiment(*jobs: SimJob, servers: int = 1, gpus: int = 4, **wishes: object) -> Experiment:
    experiment = Experiment(
        cluster=ClusterSpec(pools=(Pool(model="V100", servers=servers, gpus_per_server=gpus),)),
        workload=Workload(
            name="test",
            jobs=jobs,
            tickets=dict.fromkeys(sorted({job.user for job in jobs}), 100.0),
            rates={("c", "V100"): 10.0},
        ),
        costs=FREE,
    )
    return replace(experiment, **wishes)  # type: ignore[arg-type]


def ends(result: Result) -> list[float | None]:
    return [job.ended_s for job in result.jobs]


def test_a_job_alone_takes_its_steps_at_its_rate():
    assert ends(run_machines(an_experiment(a_job(1)))) == [60.0]


def test_two_jobs_that_share_a_gpu_take_turns_of_a_quantum():
    result = run_machines(an_experiment(a_job(1, steps=1200), a_job(2, B, steps=1200), gpus=1))
    assert ends(result) == [180.0, 240.0]
    assert [job.gpu_s for job in result.jobs] == [{"V100": 120.0}, {"V100": 120.0}]


@pytest.mark.parametrize("run", [run_machines, run_quanta])
def test_a_job_that_is_moved_while_it_trains_is_suspended_once_for_it_in_both_depths(
    run: Callable[[Experiment], Result],
):
    """`srtf`: the second waits on K80s until the first leaves a V100 to it."""
    pools = (
        Pool(model="V100", servers=1, gpus_per_server=1),
        Pool(model="K80", servers=1, gpus_per_server=1),
    )
    asked = an_experiment(a_job(1), a_job(2, B, steps=3_000), policy="srtf", known_rates=True, costs=Costs())
    workload = replace(asked.workload, rates={("c", "V100"): 10.0, ("c", "K80"): 2.0})
    result = run(replace(asked, cluster=ClusterSpec(pools=pools), workload=workload))
    assert [(job.suspends, job.migrations) for job in result.jobs] == [(0, 0), (1, 1)]


def test_table_2_of_the_paper_is_one_third_each():
    """One server, users with jobs of 1, 2 and 4 GPUs and equal tickets."""
    jobs = [
        a_job(n, user, gpus=g, steps=10**7) for n, (user, g) in enumerate([(A, 1), (B, 2), (C, 4)] * 2, 1)
    ]
    result = run_machines(an_experiment(*jobs, until_s=60.0 * 120))
    for user in (A, B, C):
        received = sum(sum(job.gpu_s.values()) for job in result.jobs if job.user == user)
        due = min(4 / 3, 2.0) * result.ended_s
        assert received == pytest.approx(due, rel=0.05), user


def test_starting_suspending_and_resuming_cost_what_was_asked():
    costs = Costs(suspend_s=2.0, resume_s=1.0, start_s=10.0)
    result = run_machines(an_experiment(a_job(1, steps=1200), a_job(2, B, steps=1200), gpus=1, costs=costs))
    first, second = result.jobs
    assert first.suspends + second.suspends >= 2
    assert first.started_s == pytest.approx(11.0, abs=0.2)
    switched_s = 2.0 * (first.suspends + second.suspends)
    resumed_s = 1.0 * (first.suspends + second.suspends + 2)
    assert sum(first.gpu_s.values()) + sum(second.gpu_s.values()) == pytest.approx(
        240.0 + switched_s + resumed_s, abs=0.01
    )


def test_the_same_experiment_gives_the_same_result():
    jobs = [a_job(n, (A, B, C)[n % 3], gpus=1 + n % 2, arrival_s=7.0 * n) for n in range(1, 9)]
    experiment = an_experiment(*jobs, servers=2, costs=Costs(), noise=Noise(rate_cv=0.2), seed=5)
    plan = FaultPlan(
        faults=(Fault(kind=Kind.CONTROLLER_KILLED, at_s=31.0), Fault(kind=Kind.REPEATS, at_s=5.0, for_s=50.0))
    )

    def bare(result: Result) -> Result:
        return replace(result, cpu_s=0.0, decision_s_mean=0.0, decision_s_max=0.0)

    assert bare(run_machines(experiment, faults=plan)) == bare(run_machines(experiment, faults=plan))


def test_who_is_on_its_way_to_another_server_when_a_sample_is_taken_has_its_steps_counted_once():
    costs = Costs(network_bytes_per_s=1e8, start_s=2.0)
    asked = an_experiment(a_job(1, steps=3_000, state_bytes=10**9), servers=2, costs=costs, sample_s=1.0)
    host = HostName("v100-0001")
    drained = Fault(kind=Kind.HOST_DRAINED, at_s=100.0, for_s=1_000.0, host=host)
    result = run_machines(asked, faults=FaultPlan(faults=(drained,)))
    assert result.jobs[0].migrations == 1
    assert sum(sample.steps_per_s.get(A, 0.0) for sample in result.samples) == pytest.approx(3_000, rel=0.02)


def test_both_depths_say_what_a_job_has_to_do_and_what_of_that_it_has_done_when_the_run_ends():
    jobs = a_job(1, steps=1_000), a_job(2, steps=100_000), a_job(3, steps=500, arrival_s=5_000.0)
    asked = an_experiment(*jobs, servers=1, until_s=600.0)
    said = {"quanta": run_quanta(asked).jobs, "machines": run_machines(asked).jobs}
    for depth, (ended, going, not_here) in said.items():
        assert [job.steps for job in said[depth]] == [1_000, 100_000, 500], depth
        assert [job.ended_s is None for job in said[depth]] == [False, True, True], depth
        assert (ended.steps_done, not_here.steps_done) == (1_000, 0), depth
        assert going.steps_done > 1_000, depth
    assert said["quanta"][1].steps_done == pytest.approx(said["machines"][1].steps_done, rel=0.01)


def test_a_host_that_reboots_goes_on_from_the_newest_checkpoint():
    def spec(job: SimJob):
        return replace(job.spec(), checkpoint_interval_s=20.0)

    experiment = an_experiment(a_job(1, steps=1000), costs=Costs(start_s=1.0))
    plan = FaultPlan(faults=(Fault(kind=Kind.REBOOT, at_s=50.0, host=HostName("v100-0001")),))
    world = World(experiment, faults=plan, specs=spec, watched=True)
    result = world.run()
    (job,) = result.jobs
    assert job.steps_done == 1000
    assert job.restarts == 1
    assert 40.0 < sum(job.gpu_s.values()) - 60.0 < 60.0, "it did only the steps since its checkpoint again"


def wanted_of(world: World, agents: Sequence[Agent], *, epoch: int = 0) -> WantedJob:
    """The only job, over these servers."""
    return WantedJob(
        job=JobId(1),
        epoch=epoch,
        user=A,
        run_as="a",
        job_class="c",
        spec=world.truth.jobs[1].spec,
        tickets=1.0,
        nodes=tuple(Peer(host=agent.name, address="") for agent in agents),
    )


def test_a_part_that_is_launched_after_another_has_gone_waits_and_restores_nothing():
    world = World(an_experiment(a_job(1, gpus=2, nodes=2), servers=2, gpus=1))
    agents = tuple(world.agents.values())
    truth = world.truth.jobs[1]
    wanted = wanted_of(world, agents)

    def launched(rank: int) -> Part:
        gang = world.gang(replace(wanted, node_rank=rank), "V100")
        part = Part(gang, agents[rank], rank, tuple(gpu.id for gpu in agents[rank].gpus))
        gang.launch(part, 0, start_s=1.0)
        return part

    gone = launched(1)
    gone.gang.end(gone, Exit(signal=15), silently=True)  # and its server has forgotten the checkpoint
    alone = launched(0)
    world.clock.run(10.0, lambda: False)
    assert alone.gang is gone.gang
    assert (alone.way, alone.gang.restored, truth.homes) == (Way.UP, None, {})


@pytest.mark.parametrize("lent", [True, False])
def test_a_server_that_fetches_another_ranks_part_of_a_checkpoint_keeps_its_own(lent: bool):
    world = World(an_experiment(a_job(1, gpus=2, nodes=2), servers=2, gpus=1))
    agents = tuple(world.agents.values())
    for rank, agent in enumerate(agents):
        agent.start()
        agent.disk.store(JobId(1), 4, Saved(epoch=0, step=12, rank=rank))
        agent._lent = frozenset({(JobId(1), 0, 4)} if lent else ())
        agent.awaits = lambda _: True  # its machine was told of the job
    changed = agents[::-1]
    wanted = wanted_of(world, changed, epoch=1)
    for rank, (agent, lender) in enumerate(zip(changed, agents, strict=True)):
        peer = Peer(host=lender.name, address="")
        source = Source(peer=peer, epoch=0, generation=4, step=12, rank=rank, nodes=2)
        world.fetches.start(agent, Fetch(wanted=replace(wanted, node_rank=rank, source=source)))
    world.clock.run(10.0, lambda: False)
    for agent in agents:
        both = world.checkpoints.within_reach(JobId(1), 2, [agent.name]) == 12
        assert both == lent, "nothing is sent that is not lent"


def test_parts_of_two_checkpoints_of_one_step_are_no_whole_one():
    world = World(an_experiment(a_job(1, gpus=2, nodes=2), servers=2, gpus=1))
    agent = next(iter(world.agents.values()))
    agent.disk.store(JobId(1), 3, Saved(epoch=0, step=12, rank=0))
    agent.disk.store(JobId(1), 4, Saved(epoch=1, step=12, rank=1))
    assert world.checkpoints.within_reach(JobId(1), 2, [agent.name]) == -1


def test_what_copies_fetched_to_begin_with_goes_when_their_incarnation_is_forgotten():
    """It lies in folders of theirs, which agents remove: nobody goes on from it any more. What they are averaged from is lent still."""
    world = World(an_experiment(a_job(1)))
    agent = next(iter(world.agents.values()))
    agent.start()
    agent.disk.store(JobId(1), 2, Saved(epoch=1, step=12, rank=0, copy=1))
    agent.disk.store(JobId(1), 3, Saved(epoch=2, step=20, rank=0, copy=0))
    agent._lent = frozenset({(JobId(1), 1, 2)})
    agent._perform(Forget(job=JobId(1), epoch=2))
    assert world.checkpoints.within_reach(JobId(1), 1, [agent.name]) == 12


def test_an_agent_whose_first_word_finds_no_controller_dials_again():
    world = World(an_experiment(a_job(1)), timing=Timing())
    (agent,) = world.agents.values()
    world.controller.start()
    agent.start()
    world.controller.crash()  # the word is on its way
    world.clock.run(5.0, lambda: agent.link.line is None)
    world.controller.start()
    world.clock.run(30.0, lambda: agent.link.connected)
    assert agent.link.connected


def test_what_reached_an_agent_while_it_slept_is_of_the_moment_in_which_it_is_read():
    name = HostName("v100-0001")
    plan = FaultPlan(faults=(Fault(kind=Kind.AGENT_PAUSED, at_s=30.0, for_s=40.0, host=name),))
    world = World(an_experiment(a_job(1, steps=500)), faults=plan)  # it ends meanwhile
    agent = world.agents[name]
    late_s: list[float] = []

    def watch(_: Agent) -> None:
        machine = agent.machine
        assert machine is not None
        handle = machine.handle

        def handled(event: HostEvent) -> HostOutcome:
            late_s.append(world.clock.now_s - event.now_s)
            return handle(event)

        machine.handle = handled  # type: ignore[method-assign]

    world.made = watch  # type: ignore[method-assign]
    world.run()
    assert world.clock.now_s > 70.0
    assert max(late_s) <= 0.0


def test_a_world_without_faults_keeps_every_law():
    jobs = [
        a_job(n, (A, B, C)[n % 3], gpus=(1, 2, 4)[n % 3], arrival_s=11.0 * n, migrate=Migrate.AUTO)
        for n in range(1, 13)
    ]
    world = World(an_experiment(*jobs, servers=2, costs=Costs(), sample_s=30.0), watched=True)
    laws = Laws(world)
    world.watch = laws
    result = world.run()
    laws.at_the_end()
    assert all(job.ended_s is not None for job in result.jobs)


def test_a_copy_that_is_let_go_after_its_portion_computes_nothing_and_says_again_that_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By an agent that was not there when it stopped. Until that has heard the answer it may give the GPU to another."""
    world = World(an_experiment(a_job(1)))
    (agent,) = world.agents.values()
    truth = world.truth.jobs[1]
    wanted = WantedJob(
        job=JobId(1), epoch=0, user=A, run_as=A, job_class="A/c", spec=truth.spec, tickets=1.0,
        copy=0, copies=2, last_step=50,
    )  # fmt: skip
    gang = Gang(world, wanted, truth, rate=10.0)
    gpu = GpuId(agent.gpus[0].id)
    part = Part(gang, agent, 0, (gpu,))
    said: list[tuple[type, int]] = []

    def say(_: Part, event: Callable[..., HostEvent], **more: Any) -> None:
        assert isinstance(event, type)
        said.append((event, more.get("step", -1)))

    monkeypatch.setattr(agent, "say", say)
    gang.launch(part, -1, 1.0)
    world.clock.run(2.0, lambda: False)
    gang.resume(part)
    assert world.truth.users[gpu] == [gang.id]
    world.clock.run(10.0, lambda: False)
    assert (gang.step, part.way, world.truth.users[gpu]) == (50, Way.STANDING, [])

    said.clear()
    gang.resume(part)
    assert said == [(JobWentOn, 50), (JobHeld, 50)]
    assert (part.way, world.truth.users[gpu], part.occupied_s) == (Way.STANDING, [], None)
    world.clock.run(20.0, lambda: False)
    assert (gang.step, len(said)) == (50, 2)


def test_jobs_that_cannot_be_suspended_are_refused() -> None:
    """The processes that are modelled here all have the hook; they were suspended all the same."""
    with pytest.raises(RefusedError, match=r"job 1 of A cannot be suspended .* expected depth quanta"):
        run_machines(an_experiment(a_job(1, sliceable=False)))


@pytest.mark.parametrize(
    ("wishes", "says"),
    [
        ({"priority": 1001}, r"w\.yaml:7: priority: 1001 is not between -1000 and 1000; .*depth quanta"),
        ({"job_class": "c" * 129}, r"w\.yaml:7: job_class: .* has 129 characters; .*depth quanta"),
        ({"user": UserName("two words")}, r"user 'two words': .*is not a user name .*depth quanta"),
    ],
)
def test_what_no_controller_takes_is_refused_before_the_run(wishes: dict[str, object], says: str) -> None:
    """Philly's tenants, say: their names begin with digits. It was an error in the middle of the run."""
    experiment = an_experiment(a_job(1, line=7, **wishes))
    workload = replace(
        experiment.workload, source="w.yaml", rates={(experiment.workload.jobs[0].job_class, "V100"): 10.0}
    )
    with pytest.raises(RefusedError, match=says):
        run_machines(replace(experiment, workload=workload))


@pytest.mark.parametrize(
    ("job", "costs", "begun_s"),
    [
        (a_job(1), Costs(start_s=86_400.0), 86_400.0),
        (a_job(1, dataset="d", dataset_bytes=20_000 * 10**9), Costs(network_bytes_per_s=1e9), 20_010.0),
    ],
)
def test_a_run_to_the_end_waits_for_starts_that_take_hours(job: SimJob, costs: Costs, begun_s: float) -> None:
    result = run_machines(an_experiment(job, costs=costs))
    assert ends(result) == [pytest.approx(begun_s + 60.0, abs=2.0)]
