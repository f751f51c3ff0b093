"""Jobs that train as averaged copies, in the controller's mind: the round's end, what is lost in between, and how they become one again."""

from dataclasses import replace

import pytest
from forked import ANN, JOB, MODELS, TOTAL, A, B, C, Cluster

from hs_core.cluster import copies
from hs_core.events.cluster import HostLeft, HostRemoved, HostReported, JobsCancelled, PolicySet, QuantumEnded
from hs_core.model import Copied, JobState, Stored
from hs_core.policies import POLICIES
from hs_core.reports import LOST, Exit, Phase


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_job_is_forked_through_its_checkpoint_and_what_is_left_then_is_divided(cluster: Cluster) -> None:
    cluster.alone()
    cluster.want = ((A, B, C), (600, 300, 100))
    cluster.edge()
    told = cluster.told(A)
    assert told is not None
    assert told.leave
    cluster.says(A, Phase.CHECKPOINTED, 100, 4, 100)
    row = cluster.row
    assert (row.epoch, row.hosts, row.portions, row.base_step) == (1, (A, B, C), (540, 270, 90), 100)
    for rank, (host, last) in enumerate(((A, 640), (B, 370), (C, 190))):
        wanted, source = cluster.told(host), cluster.source(host)
        assert wanted is not None
        assert (wanted.copy, wanted.copies, wanted.last_step, wanted.nodes) == (rank, 3, last, ())
        assert (source.generation, source.step) == (5, 100)
        assert [(p.peer.host, p.epoch, p.generation, p.copy, p.steps) for p in source.parts] == [
            (A, 0, 4, -1, 0)
        ]
    assert cluster.lends(A) == [(0, 4, -1)]
    for host in (A, B):
        cluster.says(host, Phase.HELD, 100, 5, 100)
    assert cluster.lends(A), "c has not got it yet"
    cluster.says(C, Phase.HELD, 100, 5, 100)
    assert cluster.lends(A) == []


def test_at_the_rounds_end_the_parts_are_those_that_did_steps_and_these_add_up(cluster: Cluster) -> None:
    cluster.forked(500, 300, 100)
    for host, step in ((A, 300), (B, 200), (C, 100)):
        cluster.says(host, Phase.RUNNING, step, 5, 100, gpu_s=50.0)
    assert (cluster.row.step, cluster.row.state) == (400, JobState.RUNNING)
    cluster.want = ((A, B), (3, 1))
    cluster.edge()
    assert all(told.leave for host in (A, B, C) if (told := cluster.told(host)))
    cluster.leave(a=220, c=0)
    assert cluster.row.epoch == 1, "b has not left"
    cluster.leave(b=120)
    row = cluster.row
    assert (row.epoch, row.hosts, row.base_step, row.portions) == (2, (A, B), 440, (420, 140))
    assert sum(row.portions) + row.base_step == TOTAL
    assert row.stored == Stored(
        hosts=(A, B), epoch=1, generation=8, step=440,
        copies=(Copied(copy=0, generation=7, steps=220), Copied(copy=1, generation=7, steps=120)),
    )  # fmt: skip
    assert [(p.peer.host, p.copy, p.steps) for p in cluster.source(B).parts] == [(A, 0, 220), (B, 1, 120)]
    assert cluster.lends(A) == [(1, 7, 0)]
    assert cluster.lends(B) == [(1, 7, 1)]
    assert row.gpu_s_by_model == {"V100": 50.0, "K80": 100.0}, "each copy's GPUs are its server's"


def test_a_copy_that_dies_in_the_middle_takes_only_its_own_steps_along(cluster: Cluster) -> None:
    cluster.forked(500, 300, 100)
    cluster.says(B, Phase.EXITED, 150, 5, 100, exit=Exit(code=1))
    assert not cluster.row.state.ended
    told = cluster.told(A)
    assert told is not None
    assert not told.cancelled, "copies go on without one another"
    cluster.want = ((A, C), (2, 1))
    cluster.edge()
    cluster.leave(a=200, c=50)
    row = cluster.row
    assert (row.base_step, row.hosts, row.portions) == (350, (A, C), (434, 216))
    assert row.retries == 0


def test_what_a_dead_copy_had_written_counts(cluster: Cluster) -> None:
    cluster.forked(500, 300, 100)
    cluster.says(B, Phase.EXITED, 190, 6, 150, exit=Exit(signal=9))
    cluster.want = ((A, C), (2, 1))
    cluster.edge()
    cluster.leave(a=200, c=50)
    assert cluster.row.base_step == 100 + 200 + 50 + 50
    assert cluster.row.stored is not None
    assert [(p.copy, p.generation) for p in cluster.row.stored.copies] == [(0, 7), (1, 6), (2, 7)]


def test_steps_that_their_average_lacks_count_as_lost_work(cluster: Cluster) -> None:
    """Of one that died what it had not written, of one that was cut off all; nobody loses what has left through a checkpoint."""
    cluster.forked(500, 300, 100)
    cluster.says(A, Phase.RUNNING, 300, 5, 100, gpu_s=20.0)
    cluster.says(B, Phase.EXITED, 190, 6, 150, exit=Exit(signal=9), gpu_s=90.0)
    cluster.says(C, Phase.RUNNING, 120, 5, 100, gpu_s=7.0)
    cluster.happens(HostLeft(now_s=0.0, host=C))
    cluster.want = ((A, B), (1, 1))
    cluster.edge()
    cluster.says(A, Phase.CHECKPOINTED, 320, 7, 320, gpu_s=22.0)
    row = cluster.row
    assert (row.epoch, row.base_step) == (2, 100 + 220 + 50)
    assert row.past_lost_gpu_s == pytest.approx(90.0 * 40 / 90 + 7.0)


def test_a_removed_server_takes_its_copy_along(cluster: Cluster) -> None:
    cluster.forked(500, 300, 100)
    cluster.happens(HostLeft(now_s=0.0, host=B))
    cluster.happens(HostRemoved(now_s=0.0, host=B, by=ANN, force=True))
    assert not cluster.row.state.ended
    cluster.want = ((A, C), (2, 1))
    cluster.edge()
    cluster.leave(a=200, c=50)
    assert cluster.row.base_step == 350


def test_where_all_copies_die_the_job_goes_on_from_the_average_of_what_they_had_written(
    cluster: Cluster,
) -> None:
    cluster.forked(500, 400)
    cluster.says(A, Phase.EXITED, 300, 6, 250, exit=Exit(why="lost with its host: rebooted"))
    cluster.want = ((A,), ())
    cluster.says(B, Phase.EXITED, 220, 6, 150, exit=Exit(why="lost with its host: rebooted"))
    row = cluster.row
    assert (row.portions, row.epoch, row.hosts) == ((), 2, (A,))
    assert row.stored is not None
    assert (row.stored.step, row.stored.hosts) == (300, (A, B))
    assert len(cluster.source(A).parts) == 2


def test_where_all_copies_fail_the_job_has_failed(cluster: Cluster) -> None:
    cluster.forked(500, 400)
    cluster.says(A, Phase.EXITED, 300, 5, 100, exit=Exit(code=3))
    cluster.says(B, Phase.EXITED, 220, 5, 100, exit=Exit(why="lost with its host: rebooted"))
    assert cluster.row.state is JobState.FAILED
    assert cluster.row.exit == Exit(code=3)


def test_a_copy_whose_script_ends_ends_the_job(cluster: Cluster) -> None:
    cluster.forked(500, 400)
    cluster.says(A, Phase.EXITED, 500, 5, 100, exit=Exit())
    told = cluster.told(B)
    assert told is not None
    assert told.cancelled
    cluster.says(B, Phase.EXITED, 300, 5, 100, exit=Exit(signal=15, why="cancelled"))
    assert cluster.row.state is JobState.SUCCEEDED


def test_once_all_have_done_their_portions_the_job_is_one_again_from_the_average(cluster: Cluster) -> None:
    cluster.forked(500, 400)
    cluster.says(B, Phase.HELD, 500, 5, 100)
    assert cluster.row.move is None, "a has not done its own"
    cluster.says(A, Phase.HELD, 600, 5, 100)
    assert cluster.row.move is not None
    assert cluster.row.move.to == (A,)
    cluster.leave(a=500, b=400)
    row = cluster.row
    assert (row.hosts, row.portions, row.step, row.epoch) == ((A,), (), TOTAL, 2)
    assert row.stored is not None
    assert row.stored.step == TOTAL
    wanted = cluster.told(A)
    assert wanted is not None
    assert (wanted.copy, wanted.last_step) == (-1, 0)
    assert [part.steps for part in cluster.source(A).parts] == [500, 400]
    assert cluster.lends(B) == [(1, 7, 1)]
    cluster.says(A, Phase.HELD, TOTAL, 8, TOTAL)
    assert cluster.lends(B) == []
    cluster.says(A, Phase.EXITED, TOTAL, 8, TOTAL, exit=Exit())
    assert cluster.row.state is JobState.SUCCEEDED


def test_the_copies_that_are_left_are_one_before_the_round_ends(cluster: Cluster) -> None:
    cluster.forked(500, 400)
    cluster.says(B, Phase.EXITED, 150, 5, 100, exit=Exit(signal=9))
    cluster.says(A, Phase.HELD, 600, 5, 100)
    cluster.leave(a=500)
    row = cluster.row
    assert (row.hosts, row.portions) == ((A,), ())
    assert row.stored is not None
    assert row.stored.step == 600


def test_another_policy_makes_one_of_the_copies_in_the_middle_of_a_round(cluster: Cluster) -> None:
    cluster.forked(500, 400)
    cluster.says(A, Phase.RUNNING, 200, 5, 100)
    cluster.says(B, Phase.RUNNING, 150, 5, 100)
    cluster.happens(PolicySet(now_s=0.0, name="fifo", by=ANN))
    assert cluster.row.move is not None
    assert (cluster.row.move.to, cluster.row.move.portions) == ((A,), ())
    cluster.leave(a=110, b=55)
    row = cluster.row
    assert (row.hosts, row.portions) == ((A,), ())
    assert row.stored is not None
    assert row.stored.step == 265
    cluster.says(A, Phase.HELD, 265, 8, 265)
    cluster.edge()
    assert cluster.row.hosts == (A,)


def test_another_policy_makes_one_of_copies_of_which_one_lost_its_turn_before_it_came_up(
    cluster: Cluster,
) -> None:
    """It stands frozen, and has no turn under a policy that knows one server of the job."""
    cluster.forked(500, 400)
    cluster.says(A, Phase.RUNNING, 200, 5, 100)
    cluster.says(B, Phase.STARTING, 100, 5, 100, can_checkpoint=False, in_turn=True)
    cluster.happens(PolicySet(now_s=0.0, name="sjf-bsbf", by=ANN))
    assert cluster.row.move is None, "it may have begun, as long as it has its turn"
    cluster.says(B, Phase.FROZEN, 100, 5, 100, can_checkpoint=False)
    assert cluster.row.move is not None
    cluster.leave(a=110)
    row = cluster.row
    assert (row.hosts, row.portions, row.past_lost_gpu_s) == ((A,), (), 0.0)
    assert row.stored is not None
    assert (row.stored.step, len(row.stored.copies)) == (210, 1)
    assert cluster.told(B) is None, "what had not come up there is ended"


def test_copies_none_of_which_has_come_up_are_waited_for_where_the_first_of_them_has_turns(
    cluster: Cluster,
) -> None:
    cluster.forked(500, 400)
    for host in (A, B):
        cluster.says(host, Phase.STARTING, 100, 5, 100, can_checkpoint=False)
    cluster.happens(PolicySet(now_s=0.0, name="sjf-bsbf", by=ANN))
    assert cluster.row.move is None
    assert JOB in cluster.world.wanted[A].turn.gangs
    cluster.says(A, Phase.RUNNING, 100, 5, 100)
    assert cluster.row.move is not None


def test_one_that_was_to_be_forked_goes_on_where_it_is_under_a_policy_without_copies(
    cluster: Cluster,
) -> None:
    cluster.alone()
    cluster.want = ((A, B), (1, 1))
    cluster.edge()
    assert cluster.told(A) is not None
    assert cluster.row.move is not None
    cluster.happens(PolicySet(now_s=0.0, name="fifo", by=ANN))
    assert (cluster.row.move, cluster.row.hosts, cluster.row.epoch) == (None, (A,), 0)
    told = [fact.text for fact in cluster.world.machine.story(JOB) if fact.kind == "move-abandoned"]
    assert told == ["it stays on a and does not train as 2 copies on a, b: fifo has no copies"]


def test_of_copies_that_did_nothing_it_is_not_told_how_much_each_did(cluster: Cluster) -> None:
    cluster.alone()
    cluster.want = ((A, B), (1, 1))
    cluster.edge()
    cluster.says(A, Phase.CHECKPOINTED, 100, 4, 100)
    cluster.says(A, Phase.WAITING, 100)
    cluster.says(B, Phase.WAITING, 100)
    cluster.happens(PolicySet(now_s=0.0, name="fifo", by=ANN))
    told = [fact.text for fact in cluster.world.machine.story(JOB) if fact.kind == "left"]
    assert told[-1] == "it left a at step 100 and lives on a (V100), where its copies were to begin"


@pytest.mark.parametrize(("step", "resumes", "made"), [(270, 0, True), (265, 1, True), (265, 0, False)])
def test_an_average_of_which_nothing_was_heard_before_it_was_lost_counts_once_it_was_let_go(
    cluster: Cluster, step: int, resumes: int, made: bool
) -> None:
    """What it was made of is there no more; who has merely fetched that has made nothing yet."""
    cluster.forked(500, 400)
    cluster.happens(PolicySet(now_s=0.0, name="fifo", by=ANN))
    cluster.leave(a=110, b=55)
    lost = Exit(signal=15, why=f"{LOST}: fenced")
    cluster.says(A, Phase.EXITED, step, 8, 265, resumes=resumes, exit=lost)
    stored = cluster.row.stored
    assert stored is not None
    assert (stored.step, stored.hosts, bool(stored.copies)) == (265, (A,) if made else (A, B), not made)


def test_a_server_that_is_away_for_a_moment_is_waited_for(cluster: Cluster) -> None:
    cluster.forked(500, 400)
    cluster.says(B, Phase.RUNNING, 150, 5, 100)
    cluster.want = ((A, B), (2, 1))
    cluster.edge()
    before = cluster.row.reports[B]
    cluster.happens(HostLeft(now_s=0.0, host=B))
    cluster.leave(a=200)
    assert cluster.row.epoch == 1
    left = replace(before, phase=Phase.CHECKPOINTED, step=180, checkpoint_step=180, checkpoint_generation=6)
    cluster.world.now_s += 5.0
    cluster.joins(B, "K80", left)
    assert (cluster.row.epoch, cluster.row.base_step) == (2, 380)


def test_the_controller_restarts_between_the_two_phases(cluster: Cluster) -> None:
    cluster.forked(500, 400)
    cluster.want = ((A, B), (1, 1))
    cluster.edge()
    cluster.leave(a=200)
    cluster.world.start(cluster.world.machine.state)
    reports = cluster.row.reports
    for host in (A, B, C):
        cluster.joins(host, MODELS[host], *([reports[host]] if host in reports else []))
    assert cluster.row.epoch == 1
    assert all(told.leave for host in (A, B) if (told := cluster.told(host)))
    cluster.leave(b=100)
    assert (cluster.row.epoch, cluster.row.base_step, cluster.row.portions) == (2, 400, (300, 300))
    cluster.world.start(cluster.world.machine.state)
    for host in (A, B, C):
        cluster.joins(host, MODELS[host])
    assert [part.steps for part in cluster.source(A).parts] == [200, 100]
    assert cluster.lends(A) == [(1, 7, 0)]


def test_a_host_that_forgot_its_copy_loses_that_one_alone(cluster: Cluster) -> None:
    cluster.forked(500, 400)
    cluster.happens(HostLeft(now_s=0.0, host=B))
    cluster.joins(B, "K80")
    assert cluster.row.reports[B].exit is not None
    assert not cluster.row.state.ended
    cluster.says(A, Phase.RUNNING, 200, 5, 100)
    assert cluster.row.state is JobState.RUNNING


def test_repeated_and_late_reports_change_nothing(cluster: Cluster) -> None:
    cluster.forked(500, 400)
    late = cluster.says(A, Phase.RUNNING, 200, 5, 100, gpu_s=10.0)
    cluster.want = ((A, B), (2, 1))
    cluster.edge()
    cluster.leave(a=200, b=100)
    row = cluster.row
    cluster.happens(HostReported(now_s=0.0, host=A, reports=(late, late)))
    assert cluster.row == row


def test_one_that_cannot_leave_by_the_deadline_is_not_waited_for(cluster: Cluster) -> None:
    cluster.forked(500, 400)
    cluster.says(B, Phase.RUNNING, 180, 5, 100)
    cluster.want = ((A, B), (2, 1))
    cluster.edge()
    cluster.leave(a=200)
    cluster.world.now_s += 30.0
    cluster.happens(QuantumEnded(now_s=0.0))
    assert (cluster.row.epoch, cluster.row.base_step) == (2, 300)


def test_where_none_can_leave_they_go_on(cluster: Cluster) -> None:
    cluster.forked(500, 400)
    for host in (A, B):
        cluster.says(host, Phase.RUNNING, 180, 5, 100)
    cluster.want = ((A, B), (2, 1))
    cluster.edge()
    assert cluster.row.move is not None
    cluster.world.now_s += 30.0
    cluster.happens(QuantumEnded(now_s=0.0))
    assert (cluster.row.epoch, cluster.row.portions) == (1, (500, 400))


def test_copies_that_have_done_nothing_begin_again_where_they_began(cluster: Cluster) -> None:
    cluster.forked(500, 400)
    cluster.want = ((B, C), (1, 1))
    cluster.edge()
    cluster.leave(a=0, b=0)
    assert (cluster.row.base_step, cluster.row.portions) == (100, (450, 450))
    assert cluster.row.stored is not None
    assert len(cluster.row.stored.copies) == 1


def test_copies_that_never_came_up_begin_again_from_what_they_were_to_fetch(cluster: Cluster) -> None:
    cluster.alone()
    cluster.want = ((A, B), (1, 1))
    cluster.edge()
    cluster.says(A, Phase.CHECKPOINTED, 100, 4, 100)
    stored = cluster.row.stored
    cluster.says(A, Phase.WAITING, 100, 5, 100)
    cluster.want = ((B, C), (1, 1))
    cluster.edge()
    row = cluster.row
    assert (row.epoch, row.hosts, row.stored, row.base_step) == (2, (B, C), stored, 100)


def test_copies_that_begin_again_where_they_are_are_not_said_to_live_elsewhere(cluster: Cluster) -> None:
    cluster.alone()
    cluster.want = ((A, B), (1, 1))
    cluster.edge()
    cluster.says(A, Phase.CHECKPOINTED, 100, 4, 100)
    cluster.says(A, Phase.WAITING, 100, 5, 100)
    cluster.edge()
    assert cluster.row.epoch == 2
    placed = [fact.text for fact in cluster.world.outcome.facts if fact.kind == "placed"]
    assert placed == ["it still lives on a, b, in a new round: it had not started"]


def test_one_that_is_given_another_home_waits_for_all_of_an_average_though_who_has_a_part_of_it_is_away(
    cluster: Cluster,
) -> None:
    cluster.forked(500, 300, 100)
    cluster.want = ((A,), ())
    cluster.edge()
    cluster.leave(a=200, b=100, c=50)
    stored = cluster.row.stored
    assert stored is not None
    cluster.says(A, Phase.WAITING, 0)
    cluster.happens(HostLeft(now_s=0.0, host=B))
    cluster.want = ((C,), ())
    cluster.edge()
    assert (cluster.row.hosts, cluster.row.stored) == ((C,), stored)


def test_a_source_that_is_removed_leaves_the_average_of_the_others(cluster: Cluster) -> None:
    cluster.forked(500, 300, 100)
    cluster.want = ((A,), ())
    cluster.edge()
    cluster.leave(a=200, b=100, c=50)
    assert cluster.row.stored is not None
    assert cluster.row.stored.step == 450
    cluster.happens(HostLeft(now_s=0.0, host=B))
    cluster.happens(HostRemoved(now_s=0.0, host=B, by=ANN))
    assert cluster.row.stored is not None
    assert (cluster.row.stored.step, cluster.row.stored.hosts) == (350, (A, C))


def test_a_source_that_is_lost_with_its_own_next_copy_leaves_the_average_of_the_others(
    cluster: Cluster,
) -> None:
    """That copy has ended, but never had what it was to begin with."""
    cluster.forked(500, 300, 100)
    cluster.want = ((A, B, C), (3, 2, 1))
    cluster.edge()
    cluster.leave(a=200, b=100, c=50)
    assert cluster.row.stored is not None
    assert (cluster.row.stored.step, cluster.row.hosts) == (450, (A, B, C))
    cluster.happens(HostLeft(now_s=0.0, host=B))
    cluster.happens(HostRemoved(now_s=0.0, host=B, by=ANN, force=True))
    row = cluster.row
    assert row.stored is not None
    assert (row.stored.step, row.stored.hosts, row.portions) == (350, (A, C), ())
    cluster.want = ((A,), ())
    cluster.edge()
    told = cluster.told(A)
    assert told is not None
    assert told.source is not None
    assert (told.source.step, [part.steps for part in told.source.parts]) == (350, [200, 50])


def test_copies_that_never_came_up_are_one_again_where_what_they_were_to_fetch_is_lost(
    cluster: Cluster,
) -> None:
    cluster.alone()
    cluster.want = ((B, C), (1, 1))
    cluster.edge()
    cluster.says(A, Phase.CHECKPOINTED, 100, 4, 100, gpu_s=40.0)
    assert cluster.row.portions == (450, 450)
    cluster.happens(HostLeft(now_s=0.0, host=A))
    cluster.happens(HostRemoved(now_s=0.0, host=A, by=ANN))
    row = cluster.row
    assert (row.epoch, row.stored, row.portions, row.past_lost_gpu_s) == (2, None, (), 40.0)
    cluster.edge()
    told = cluster.told(B)
    assert told is not None
    assert (cluster.row.hosts, told.copy, told.source) == ((B,), -1, None), "copies begin with a checkpoint"


def test_cancelled_copies_all_end(cluster: Cluster) -> None:
    cluster.forked(500, 400)
    cluster.happens(JobsCancelled(now_s=0.0, by=ANN, jobs=(JOB,)))
    assert all(told.cancelled for host in (A, B) if (told := cluster.told(host)))
    cluster.says(A, Phase.EXITED, 100, 5, 100, exit=Exit(signal=15, why="cancelled"))
    assert cluster.row.state is JobState.CANCELLING
    cluster.says(B, Phase.EXITED, 100, 5, 100, exit=Exit(signal=15, why="cancelled"))
    assert cluster.row.state is JobState.CANCELLED


def test_who_would_have_nothing_to_do_is_no_copy() -> None:
    assert copies.divided(7, (A, B, C), (5, 1, 1)) == ((A, B, C), (5, 1, 1))
    assert copies.divided(2, (A, B, C), (5, 4, 1)) == ((A, B), (1, 1))
    assert copies.divided(1, (A, B), (1, 3)) == ((B,), ())
    assert copies.divided(0, (A, B), (1, 3)) == ((A,), ())


def test_every_policy_of_the_table_can_take_over_from_copies() -> None:
    for name in sorted(POLICIES):
        cluster = Cluster()
        cluster.forked(500, 400)
        cluster.happens(PolicySet(now_s=0.0, name=name, by=ANN))
        cluster.edge()
        if not POLICIES[name].needs.copies:
            cluster.leave(a=110, b=55)
            assert cluster.row.portions == (), name
            cluster.edge()


@pytest.mark.parametrize("single", [False, True])
def test_hadare_forks_who_has_an_average_as_its_process_says(cluster: Cluster, single: bool) -> None:
    cluster.says(A, Phase.RUNNING, 10, single=single)
    cluster.happens(PolicySet(now_s=0.0, name="hadare", by=ANN))
    assert (cluster.row.move is None) is single
