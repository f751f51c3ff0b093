"""Jobs that train as averaged copies, in the controller's mind: servers of theirs are cut off, and come back."""

from dataclasses import replace

import pytest
from forked import ANN, JOB, A, B, C, Cluster

from hs_core.cluster import Reason
from hs_core.events.cluster import HostDrained, HostLeft, JobsCancelled, QuantumEnded
from hs_core.model import Copied, JobState, OnPartition, Stored
from hs_core.reports import LOST, Exit, JobReport, Phase
from hs_core.wanted import Turn


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_server_that_is_away_is_not_waited_for_and_its_copy_is_dropped_when_it_is_back(
    cluster: Cluster,
) -> None:
    cluster.forked(500, 300, 100)
    cluster.says(B, Phase.RUNNING, 150, 5, 100)
    before = cluster.row.reports[B]
    cluster.happens(HostLeft(now_s=0.0, host=B))
    cluster.want = ((A, C), (2, 1))
    cluster.edge()
    cluster.leave(a=200, c=50)
    assert (cluster.row.epoch, cluster.row.base_step) == (2, 350)
    row = cluster.row
    cluster.joins(B, "K80", replace(before, step=200))
    assert cluster.told(B) is None
    assert cluster.row == row, "an older epoch's word changes nothing"


def test_while_one_of_its_servers_is_away_a_job_of_copies_runs_on_the_others(cluster: Cluster) -> None:
    cluster.forked(500, 300, 100)
    for host in (A, B, C):
        cluster.says(host, Phase.RUNNING, 150, 5, 100)
    cluster.happens(HostLeft(now_s=0.0, host=C))
    machine = cluster.world.machine
    why = machine.why(JOB, cluster.world.now_s)
    assert (why.reason, machine.cut_off(cluster.row)) == (Reason.RUNNING, False)
    assert why.text == "it runs on a, b, c, on 1 GPU each, as 3 copies; not connected: c"
    cluster.happens(HostLeft(now_s=0.0, host=A))
    cluster.happens(HostLeft(now_s=0.0, host=B))
    assert machine.why(JOB, cluster.world.now_s).reason is Reason.HOST_AWAY
    assert machine.cut_off(cluster.row)


def test_a_cancelled_job_of_copies_ends_when_the_servers_that_are_away_are_back(cluster: Cluster) -> None:
    cluster.forked(500, 400)
    cluster.happens(HostLeft(now_s=0.0, host=B))
    cluster.happens(JobsCancelled(now_s=0.0, by=ANN, jobs=(JOB,)))
    why = cluster.world.machine.why(JOB, cluster.world.now_s)
    assert why.text == "it was cancelled by ann and is being ended, but its server b is not connected"


def test_where_a_server_was_to_be_empty_by_now_its_copy_ends_and_the_others_keep_their_gpus(
    cluster: Cluster,
) -> None:
    cluster.forked(500, 300, 100)
    for host in (A, B, C):
        cluster.says(host, Phase.RUNNING, 150, 5, 100)
    soon_s = cluster.world.now_s + 5.0
    cluster.happens(HostDrained(now_s=0.0, host=C, by=ANN, reason="its fans", deadline_s=soon_s))
    cluster.world.now_s += 6.0
    cluster.happens(QuantumEnded(now_s=0.0))
    ends = {host: told.cancelled for host in (A, B, C) if (told := cluster.told(host))}
    assert ends == {A: False, B: False, C: True}
    assert all(cluster.world.wanted[host].turn == Turn(gangs=(JOB,), local=False) for host in (A, B))
    assert cluster.world.machine.why(JOB, cluster.world.now_s).reason is Reason.RUNNING


@pytest.fixture
def fencing() -> Cluster:
    """Its job does not wait for servers that are cut off."""
    return Cluster(OnPartition.FENCE)


@pytest.mark.parametrize("given_up", [False, True])
def test_where_what_came_after_it_is_out_of_reach_a_job_goes_on_from_a_copy_that_was_not_waited_for(
    fencing: Cluster, given_up: bool
) -> None:
    """Two servers are cut off one after the other, and the first comes back first."""
    fencing.forked(500, 400)
    cut_off = fencing.says(B, Phase.RUNNING, 150, 5, 100, gpu_s=50.0)
    if given_up:
        fencing.cut_off(B)
    else:
        fencing.happens(HostLeft(now_s=0.0, host=B))
    fencing.want = ((A,), ())
    fencing.edge()
    fencing.leave(a=200)
    alone = fencing.says(A, Phase.RUNNING, 400, 10, 380)
    fencing.cut_off(A)
    row = fencing.row
    assert (row.hosts, row.stored and row.stored.step) == ((), 380)
    fencing.want = ((), ())
    fencing.joins(B, "K80", _ended(cut_off, 240, 6, 190, gpu_s=140.0))
    stored = Stored(
        hosts=(B,), epoch=1, generation=7, step=190, copies=(Copied(copy=1, generation=6, steps=90),)
    )
    assert fencing.row.stored == stored
    assert fencing.row.gpu_s == row.gpu_s + 90.0, "what it received meanwhile is its own"
    assert fencing.lends(B) == [(1, 6, 1)]
    fencing.want = ((B,), ())
    fencing.edge()
    assert [(p.peer.host, p.epoch, p.generation, p.copy) for p in fencing.source(B).parts] == [(B, 1, 6, 1)]
    fencing.joins(A, "V100", _ended(alone, 420, 11, 410))
    assert fencing.row.stored == Stored(hosts=(A,), epoch=2, generation=11, step=410), (
        "nothing has begun from the other"
    )


def test_where_the_servers_of_all_copies_were_cut_off_a_job_goes_on_from_those_that_are_back(
    fencing: Cluster,
) -> None:
    fencing.forked(500, 300, 100)
    said = {host: fencing.says(host, Phase.RUNNING, 150, 5, 100) for host in (A, B, C)}
    fencing.cut_off(A, B, C)
    assert (fencing.row.hosts, fencing.row.stored) == ((), None)
    fencing.want = ((), ())
    fencing.joins(C, "K80", _ended(said[C], 160, 6, 160))
    fencing.joins(A, "V100", _ended(said[A], 300, 8, 250))
    stored = fencing.row.stored
    assert stored is not None
    assert (stored.step, stored.hosts, [part.steps for part in stored.copies]) == (310, (A, C), [150, 60])


def test_where_nobody_heard_of_its_copies_a_job_goes_on_from_what_they_began_with(fencing: Cluster) -> None:
    fencing.alone()
    fencing.want = ((A, B), (500, 400))
    fencing.edge()
    fencing.says(A, Phase.CHECKPOINTED, 100, 4, 100)
    assert len(fencing.row.portions) == 2
    fencing.cut_off(A, B)
    assert (fencing.row.hosts, fencing.row.stored) == ((), None)
    fencing.want = ((), ())
    copy = JobReport(job=JOB, epoch=1, phase=Phase.RUNNING, can_checkpoint=True)
    fencing.joins(A, "V100", _ended(copy, 160, 5, 100))
    stored = Stored(
        hosts=(A,), epoch=1, generation=6, step=100, copies=(Copied(copy=0, generation=5, steps=0),)
    )
    assert fencing.row.stored == stored


def test_what_a_copy_has_let_go_of_is_not_gone_on_from(fencing: Cluster) -> None:
    """Its server is back, and remembers it; what it wrote there is gone by now, for what came after it."""
    fencing.forked(500, 400)
    cut_off = fencing.says(B, Phase.RUNNING, 150, 6, 120)
    _leaves_behind_b(fencing)
    fencing.says(A, Phase.RUNNING, 400, 10, 380)
    fencing.cut_off(A)
    fencing.want = ((), ())
    before = fencing.row.stored
    fencing.joins(B, "K80", _ended(cut_off, 240, -1, -1))
    assert fencing.row.stored == before


def test_a_copy_that_was_not_waited_for_does_not_take_the_place_of_what_came_after_it(
    fencing: Cluster,
) -> None:
    fencing.forked(500, 400)
    cut_off = fencing.says(B, Phase.RUNNING, 150, 5, 100)
    _leaves_behind_b(fencing)
    fencing.want = ((), ())
    fencing.happens(HostDrained(now_s=0.0, host=A, by=ANN, reason="its fans"))
    fencing.says(A, Phase.EXITED, 400, 10, 380, exit=Exit(why=f"{LOST}: it was restarted"))
    assert (fencing.row.hosts, fencing.row.stored and fencing.row.stored.hosts) == ((), (A,))
    row = fencing.row
    fencing.joins(B, "K80", _ended(cut_off, 500, 12, 490))
    assert fencing.row == row, "that one can be had"


@pytest.mark.parametrize("waits", [False, True])
def test_a_copy_that_ended_well_unheard_ends_the_job_unless_that_has_begun_anew(
    fencing: Cluster, waits: bool
) -> None:
    """As one does that is heard: its script thinks that nothing is left."""
    fencing.forked(500, 400)
    said = [fencing.says(host, Phase.RUNNING, 150, 5, 100, gpu_s=50.0) for host in (A, B)]
    fencing.cut_off(A, B)
    fencing.want = ((C,), ()) if waits else ((), ())
    fencing.edge()
    if waits:
        fencing.says(C, Phase.WAITING, 0)
    assert not fencing.row.state.ended
    fencing.joins(B, "K80", replace(said[1], phase=Phase.EXITED, step=300, gpu_s=80.0, exit=Exit()))
    row = fencing.row
    assert (row.state, row.exit, row.gpu_s, row.step) == (JobState.SUCCEEDED, Exit(), 130.0, 350)
    assert fencing.told(B) is None
    fencing.joins(A, "V100", said[0])
    assert fencing.row == row
    assert fencing.told(A) is None


def test_a_copy_that_ended_well_unheard_changes_nothing_once_the_job_has_begun_anew(
    fencing: Cluster,
) -> None:
    fencing.forked(500, 400)
    said = [fencing.says(host, Phase.RUNNING, 150, 5, 100) for host in (A, B)]
    fencing.cut_off(A, B)
    fencing.want = ((C,), ())
    fencing.edge()
    fencing.says(C, Phase.RUNNING, 10)
    row = fencing.row
    fencing.joins(B, "K80", replace(said[1], phase=Phase.EXITED, step=300, exit=Exit()))
    assert fencing.row == row


def _ended(before: JobReport, step: int, generation: int, at: int, **more: object) -> JobReport:
    """By its own server, which was cut off."""
    return replace(
        before, phase=Phase.EXITED, step=step, checkpoint_generation=generation, checkpoint_step=at,
        exit=Exit(signal=15), **more,  # type: ignore[arg-type]
    )  # fmt: skip


def _leaves_behind_b(cluster: Cluster) -> None:
    """Which is cut off: the other copy goes on alone."""
    cluster.happens(HostLeft(now_s=0.0, host=B))
    cluster.want = ((A,), ())
    cluster.edge()
    cluster.leave(a=200)
