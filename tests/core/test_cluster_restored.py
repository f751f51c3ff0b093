"""A backup is put back: what hosts know of jobs is newer than what the controller knows."""

from dataclasses import replace

import pytest

from hs_core.cluster import Settings, State
from hs_core.cluster.harness import World, plain_policy
from hs_core.model import JobState
from hs_core.names import HostName, JobId
from hs_core.policies import find
from hs_core.policy import Policy

FIRST = 1_000
RUNNING = "running step=10 gpu_s=10 checkpoint_step=8 checkpoint_generation=3 can_checkpoint=yes"
N1, N2 = HostName("n1"), HostName("n2")


def backup(*lines: str, policy: Policy | None = None) -> World:
    made = World(policy or plain_policy(), Settings(quantum_s=10.0, settle_s=0.0, lease_s=10.0))
    for line in ("host n1 V100:4", "host n2 V100:4", "user ann", *lines):
        made.do(line)
    return made


def put_back(world: World) -> World:
    state: State = world.machine.state
    world.start(replace(state, first_epoch=FIRST, restored=True))
    world.now_s += 1.0
    return world


def epochs(world: World, host: HostName) -> dict[JobId, tuple[int, bool]]:
    """What the host is told: epochs, and whether to hold."""
    return {job.job: (job.epoch, job.hold) for job in world.wanted[host].jobs}


def test_who_is_where_it_was_goes_on() -> None:
    world = put_back(backup("submit ann one", f"report n1 1:0={RUNNING}"))
    world.do(f"host n1 V100:4 1:0={RUNNING}")
    assert epochs(world, N1) == {1: (0, False)}
    row = world.machine.find(JobId(1))
    assert row is not None
    assert row.report is not None
    assert row.report.step == 10


def test_who_has_moved_since_begins_once_more_and_not_before_its_host_has_ended_it() -> None:
    world = put_back(backup("submit ann one gpus=4", f"report n1 1:0={RUNNING}"))
    world.do("host n1 V100:4")
    assert epochs(world, N1) == {}, "the other host may have it"
    world.do(f"host n2 V100:4 1:1={RUNNING}")
    assert epochs(world, N1) == {1: (FIRST, True)}
    assert epochs(world, N2) == {}
    world.do("report n2")
    assert epochs(world, N1) == {1: (FIRST, False)}


def test_who_began_anew_where_it_was_is_told_of_a_newer_incarnation() -> None:
    """Of an older one its host would take no notice."""
    world = put_back(backup("submit ann one gpus=4"))
    world.do(f"host n1 V100:4 1:2={RUNNING}")
    world.do("host n2 V100:4")
    [(job, (epoch, _))] = [*epochs(world, N1).items(), *epochs(world, N2).items()]
    assert (job, epoch) == (1, FIRST)


@pytest.mark.parametrize("where", ["n1", "n2"])
def test_who_had_no_home_then_does_not_begin_under_an_epoch_that_it_may_have_had(where: str) -> None:
    world = put_back(backup("submit ann all gpus=4 count=3", policy=find("fifo")))
    waits = world.machine.find(JobId(3))
    assert waits is not None
    assert waits.hosts == ()
    world.do(f"host n1 V100:4 {'3:0=' + RUNNING if where == 'n1' else ''}")
    world.do(f"host n2 V100:4 {'3:0=' + RUNNING if where == 'n2' else ''}")
    late = world.machine.find(JobId(3))
    assert late is not None
    assert (late.epoch, late.unconfirmed) == (FIRST, (where,))


def test_a_host_that_stays_away_is_not_waited_for_for_ever() -> None:
    world = put_back(backup("submit ann one", f"report n1 1:0={RUNNING}"))
    world.do("host n1 V100:4")
    assert epochs(world, N1) == {}
    assert world.wake_s == world.now_s + 10.0
    world.do(f"@{world.now_s + 10.0}")
    world.do("tick")
    assert not world.machine.restored
    assert epochs(world, N1) == {1: (FIRST, False)}


def test_a_controller_that_dies_before_all_hosts_are_there_waits_for_them_anew() -> None:
    world = put_back(backup("submit ann one", "submit ann two"))
    world.do("host n1 V100:4")
    world.start(world.machine.state)
    world.now_s += 5.0
    world.do("host n1 V100:4")
    assert epochs(world, N1) == {}
    world.do("host n2 V100:4")
    assert not world.machine.restored
    assert not world.machine.state.restored


def test_incarnations_are_counted_where_the_epoch_leaps() -> None:
    """HS_RESTART_COUNT is this number."""
    world = put_back(backup("submit ann one gpus=4", f"report n1 1:0={RUNNING}"))
    world.do("host n1 V100:4")
    world.do(f"host n2 V100:4 1:1={RUNNING}")
    world.do("report n2")
    [wanted] = world.wanted[N1].jobs
    assert (wanted.epoch, wanted.restarts) == (FIRST, 1)
    world.do(f"report n1 1:{FIRST}={RUNNING}")
    world.do("leave n1")
    world.do("host n1 V100:4")  # which no longer knows of it
    row = world.machine.find(JobId(1))
    assert row is not None
    assert (row.epoch, row.restarts) == (FIRST + 1, 2)


DONE = "exited step=40 gpu_s=30 run_s=30 code=0"
WROTE = "exited step=40 gpu_s=30 run_s=30 signal=15 checkpoint_step=35 checkpoint_generation=5"


def ended(world: World) -> list[JobId]:
    return [row.id for row in world.machine.jobs(ended=True) if row.state is JobState.SUCCEEDED]


def heard(world: World, *lines: str) -> list[str]:
    """What became of the job, once all of that has been said."""
    told = [text for line in lines for text in world.do(line)]
    return [text.split(":")[0].removeprefix("job 1 ") for text in told if text.startswith("job 1 ")]


def test_who_waited_then_and_has_ended_well_since_does_not_begin_once_more() -> None:
    world = put_back(backup("drain n1", "drain n2", "submit ann one"))
    world.do(f"host n1 V100:4 last 1:0={DONE}")
    assert ended(world) == [1]
    row = world.machine.job(JobId(1))
    assert (row.hosts, row.gpu_s) == ((N1,), 30.0)
    world.do(f"host n1 V100:4 last 1:0={DONE}")
    assert world.machine.job(JobId(1)).gpu_s == 30.0


@pytest.mark.parametrize("first", ["n1", "n2"])
def test_who_has_moved_since_and_ended_well_there_does_not_begin_once_more_whoever_is_heard_first(
    first: str,
) -> None:
    world = put_back(backup("submit ann one gpus=4", f"report n1 1:0={RUNNING}"))
    lines = ["host n1 V100:4", f"host n2 V100:4 last 1:1={DONE}"]
    heard(world, *(lines if first == "n1" else reversed(lines)))
    assert ended(world) == [1]
    assert world.machine.job(JobId(1)).gpu_s == 40.0
    assert epochs(world, N1) == epochs(world, N2) == {}


def test_nobody_is_taken_for_ended_where_the_backup_has_it_and_it_runs() -> None:
    """The other one was cut off, and is ended."""
    world = put_back(backup("submit ann one gpus=4", f"report n1 1:0={RUNNING}"))
    heard(world, f"host n1 V100:4 1:0={RUNNING}", f"host n2 V100:4 last 1:1={DONE}")
    assert ended(world) == []
    assert epochs(world, N1) == {1: (0, False)}


def test_who_has_failed_since_begins_once_more() -> None:
    world = put_back(backup("submit ann one gpus=4", f"report n1 1:0={RUNNING}"))
    failed = DONE.replace("code=0", "code=1")
    told = heard(world, f"host n2 V100:4 last 1:1={failed}", "host n1 V100:4")
    assert told == ["lost", "placed"]
    assert world.machine.job(JobId(1)).epoch == FIRST


@pytest.mark.parametrize("first", ["n1", "n2"])
def test_who_has_moved_since_goes_on_from_the_newest_that_it_wrote_where_that_is_there(first: str) -> None:
    world = put_back(backup("submit ann one gpus=4", f"report n1 1:0={RUNNING}"))
    older = WROTE.replace("generation=5", "generation=4").replace("step=35", "step=20")
    lines = [f"host n1 V100:4 last 1:2={WROTE}", f"host n2 V100:4 last 1:1={older}"]
    told = heard(world, *(lines if first == "n1" else reversed(lines)))
    assert told[-1] == "placed"
    stored = world.machine.job(JobId(1)).stored
    assert stored is not None
    assert (stored.hosts, stored.epoch, stored.step) == ((N1,), 2, 35)
    assert [lend.epoch for lend in world.wanted[N1].lends] in ([2], [])


def test_what_is_older_than_what_the_backup_knows_of_is_not_gone_on_from() -> None:
    world = put_back(backup("submit ann one gpus=4", f"report n1 1:0={RUNNING}"))
    afresh = WROTE.replace("generation=5", "generation=1")
    heard(world, f"host n2 V100:4 last 1:1={afresh}", "host n1 V100:4")
    stored = world.machine.job(JobId(1)).stored
    assert stored is not None
    assert (stored.hosts, stored.epoch, stored.step) == ((N1,), 0, 8)


def test_what_may_be_a_copys_is_not_gone_on_from() -> None:
    world = put_back(backup("submit ann one gpus=4", policy=find("hadare")))
    told = heard(world, f"host n2 V100:4 last 1:1={WROTE}", "host n1 V100:4")
    assert "written-since" not in told
    assert world.machine.job(JobId(1)).stored is None


def test_a_server_that_comes_late_is_heard_as_long_as_the_job_has_not_begun() -> None:
    waits, begun = [put_back(backup("submit ann one gpus=4")) for _ in range(2)]
    for world in (waits, begun):
        world.do("host n1 V100:4")
        world.do(f"@{world.now_s + 10.0}")
        world.do("tick")
        assert epochs(world, N1) == {1: (FIRST, False)}
    begun.do(f"report n1 1:{FIRST}=running step=1 gpu_s=1")
    for world in (waits, begun):
        world.do(f"host n2 V100:4 last 1:1={DONE}")
    assert (ended(waits), ended(begun)) == ([1], [])
    assert epochs(waits, N1) == {}


def test_a_part_that_ended_well_is_not_the_end_of_a_job_over_several_servers() -> None:
    world = put_back(backup("submit ann one nodes=2", "submit ann other nodes=2"))
    heard(world, f"host n1 V100:4 last 1:1={DONE} 2:1={DONE}", f"host n2 V100:4 last 1:2={DONE} rank=1")
    assert ended(world) == []
    world.do(f"host n2 V100:4 last 2:1={DONE} rank=1")
    assert ended(world) == [2]
    assert world.machine.job(JobId(2)).gpu_s == 60.0


@pytest.mark.parametrize("epoch", [0, 1], ids=["that the backup has", "that began since"])
@pytest.mark.parametrize("first", ["n1", "n2"])
def test_parts_that_ended_well_are_the_jobs_end_once_all_have_said_so(first: str, epoch: int) -> None:
    world = put_back(backup("submit ann one nodes=2 topology=any", f"report n1 1:0={RUNNING} nodes=2"))
    lines = [
        f"host n1 V100:4 last 1:{epoch}={DONE} nodes=2",
        f"host n2 V100:4 last 1:{epoch}={DONE} nodes=2 rank=1",
    ]
    early, late = lines if first == "n1" else reversed(lines)
    heard(world, early)
    assert ended(world) == []
    heard(world, late)
    assert ended(world) == [1]


def test_a_server_says_over_how_many_a_job_was_that_may_be_over_any() -> None:
    world = put_back(backup("submit ann one nodes=2 topology=any", f"report n1 1:0={RUNNING} nodes=2"))
    heard(world, f"host n1 V100:4 last 1:1={DONE} nodes=1", "host n2 V100:4")
    assert ended(world) == [1]


def test_who_waits_still_has_no_epoch_from_before_when_the_controller_starts_anew() -> None:
    world = put_back(backup("submit ann all gpus=4 count=3", policy=find("fifo")))
    for line in ("host n1 V100:4", "host n2 V100:4"):
        world.do(line)
    waits = world.machine.job(JobId(3))
    assert (waits.hosts, waits.epoch) == ((), FIRST)
    journal = world.machine.state
    unwritten = {**journal.jobs, JobId(3): replace(waits, epoch=0)}  # nothing came of it, so it was not
    world.start(replace(journal, jobs=unwritten))
    assert world.machine.job(JobId(3)).epoch == FIRST


def gang(epoch: int, rank: int, *, generation: int, step: int, how: str = "exited signal=15") -> str:
    """What a server says of its part of job 1, which was over two by then."""
    wrote = f"checkpoint_step={step} checkpoint_generation={generation} can_checkpoint=yes"
    return f"1:{epoch}={how} step=40 gpu_s=30 run_s=30 {wrote} nodes=2 rank={rank}"


@pytest.mark.parametrize("first", ["n1", "n2"])
def test_a_gang_goes_on_from_the_newest_that_all_of_its_parts_have_whatever_wrote_that(first: str) -> None:
    world = put_back(backup("submit ann one nodes=2", f"report n1 1:0={RUNNING} nodes=2"))
    lines = [
        f"host n1 V100:4 last {gang(2, 1, generation=6, step=38)}",
        f"host n2 V100:4 last {gang(2, 0, generation=5, step=35)}",
    ]
    early, late = lines if first == "n1" else reversed(lines)
    heard(world, early)
    told = heard(world, late)
    assert "written-since" in told
    row = world.machine.job(JobId(1))
    assert row.stored is not None
    assert (row.stored.hosts, row.stored.epoch) == ((N2, N1), 2), "by node rank"
    assert (row.stored.generation, row.stored.step) == (5, 35), "which the other part has as well"
    assert row.gpu_s == 70.0
    sources = {job.node_rank: job.source for name in (N1, N2) for job in world.wanted[name].jobs}
    assert {rank: source and source.peer.host for rank, source in sources.items()} == {0: N2, 1: N1}


def test_what_a_part_has_written_is_kept_until_the_others_are_heard() -> None:
    world = put_back(backup("submit ann one nodes=2", f"report n1 1:0={RUNNING} nodes=2"))
    world.do(f"host n1 V100:4 last {gang(2, 0, generation=5, step=35)}")
    assert [(lend.epoch, lend.generation) for lend in world.wanted[N1].lends] == [(2, 5)]
    world.do("host n2 V100:4")
    world.do(f"report n1 1:{FIRST}={RUNNING} nodes=2 rank=0")
    world.do(f"report n2 1:{FIRST}={RUNNING} nodes=2 rank=1")
    assert world.wanted[N1].lends == ()


def test_a_gang_that_still_runs_is_ended_and_goes_on_from_what_it_wrote_last() -> None:
    world = put_back(backup("submit ann one nodes=2", f"report n1 1:0={RUNNING} nodes=2"))
    world.do(f"host n1 V100:4 {gang(2, 0, generation=5, step=35, how='running')}")
    world.do(f"host n2 V100:4 {gang(2, 1, generation=5, step=35, how='running')}")
    row = world.machine.job(JobId(1))
    assert (row.stored and row.stored.step, row.unconfirmed) == (35, (N1, N2))
    for rank, name in enumerate((N1, N2)):
        assert [job.hold for job in world.wanted[name].jobs] == [True]
        world.do(f"report {name} {gang(2, rank, generation=6, step=38)}")
    row = world.machine.job(JobId(1))
    assert (row.stored and row.stored.step, row.unconfirmed) == (38, ())
    assert [job.hold for name in (N1, N2) for job in world.wanted[name].jobs] == [False, False]
    assert row.gpu_s == 70.0


@pytest.mark.parametrize(
    "other",
    [gang(2, 1, generation=-1, step=-1), gang(2, 0, generation=5, step=35)],
    ids=["the other is gone", "both say they are the first"],
)
def test_a_part_of_a_gang_without_the_other_is_not_gone_on_from(other: str) -> None:
    world = put_back(backup("submit ann one nodes=2", f"report n1 1:0={RUNNING} nodes=2"))
    told = heard(
        world,
        f"host n1 V100:4 last {gang(2, 0, generation=5, step=35)}",
        f"host n2 V100:4 last {other}",
    )
    assert "written-since" not in told
    row = world.machine.job(JobId(1))
    assert row.stored is None or row.stored.epoch == 0
