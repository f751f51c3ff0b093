"""A gang over several servers: one machine has the ranks of all nodes, and every node orders for itself."""

from dataclasses import replace
from typing import Any

import pytest
from gangsim import CHECKPOINT, HOLD, JOB, SWAP, Gang, kinds

from hs_core.events.host import (
    Checkpoint,
    CheckpointFailed,
    JobHeld,
    JobHooked,
    JobReady,
    JobWentOn,
    Resume,
    Suspend,
    SuspendFailed,
)
from hs_core.gang import Step
from hs_core.reports import Tier

RESUME = Resume(job=JOB, epoch=1)


class TwoNodes(Gang):
    """Ranks 0 and 1 on node 0, 2 and 3 on node 1, all running."""

    def __init__(self, **machine: Any) -> None:
        super().__init__(4, going=False, nodes=2, **machine)
        self.resume(0)
        self.resume(1)
        for rank in range(4):
            self.say(rank, type="going", step=0, seconds=0.0)
        self.forget()

    def resume(self, node: int) -> None:
        self._keep(self.machine.order(RESUME, 1.0, node=node))

    def stop(self, node: int, tier: Tier = HOLD) -> None:
        self._keep(self.machine.order(Suspend(job=JOB, epoch=1, tier=tier), 1.0, node=node))

    def all_held(self, tier: str = "hold") -> None:
        at = self.agree()
        for rank in range(4):
            self.held(rank, at, tier)


def test_the_world_is_the_ranks_of_all_nodes() -> None:
    gang = Gang(4, arrived=False, nodes=2)
    for rank in range(3):
        gang.say(rank, type="arrived", step=0, can=["hold"], rank=rank, world=4)
    assert set(kinds(gang.events)) == {JobHooked}, "said again for nodes that come later"
    gang.say(3, type="arrived", step=0, can=["hold"], rank=3, world=4)
    assert kinds(gang.events)[-1] is JobReady


def test_a_suspend_of_any_node_stops_all() -> None:
    gang = TwoNodes()
    gang.stop(1)
    assert set(gang.newest("stop")) == {0, 1, 2, 3}
    gang.stop(0)
    assert len([m for _, m in gang.told if m["type"] == "stop"]) == 4, "the other node's is the same stop"
    gang.all_held()
    assert [e for e in kinds(gang.events) if e is JobHeld] == [JobHeld]


def test_a_gang_goes_on_when_every_node_has_ordered_it() -> None:
    gang = TwoNodes()
    gang.stop(0)
    gang.stop(1)
    gang.all_held()
    gang.resume(0)
    assert gang.newest("go") == {}
    gang.resume(0)
    assert gang.newest("go") == {}, "one node counts once"
    gang.resume(1)
    assert set(gang.newest("go")) == {0, 1, 2, 3}


def test_a_late_suspend_of_a_node_is_answered_and_holds_the_gang_until_it_says_resume() -> None:
    gang = TwoNodes()
    gang.stop(0)
    gang.all_held()
    gang.forget()
    gang.stop(1)
    assert kinds(gang.events) == [JobHeld]
    gang.resume(0)
    assert gang.newest("go") == {}
    gang.resume(1)
    assert set(gang.newest("go")) == {0, 1, 2, 3}


@pytest.mark.parametrize("last", [HOLD, SWAP])
def test_the_heaviest_tier_that_a_node_asks_for_serves_all(last: Tier) -> None:
    gang = TwoNodes()
    gang.stop(0, HOLD)
    gang.stop(1, SWAP)
    gang.stop(0, last)
    gang.all_held()
    assert JobHeld not in kinds(gang.events), "there is one word for all"
    gang.all_held("swap")
    assert [e.tier for e in gang.events if isinstance(e, JobHeld)] == [SWAP]


def test_a_heavier_stop_that_fails_leaves_all_held_and_says_so() -> None:
    gang = TwoNodes()
    gang.stop(0, HOLD)
    gang.stop(1, CHECKPOINT)
    gang.all_held()
    gang.agree()
    gang.forget()
    gang.say(2, type="failed", id=2, what="checkpoint", why="disk full")
    assert kinds(gang.events)[1:] == [SuspendFailed, JobHeld]
    assert gang.newest("go") == {}


def test_one_save_serves_every_node_that_asks_while_it_is_under_way() -> None:
    gang = TwoNodes()
    for node in range(2):
        gang._keep(gang.machine.order(Checkpoint(job=JOB, epoch=1), 1.0, node=node))
    at = gang.agree("save")
    for rank in range(4):
        gang.say(rank, type="saved", id=1, step=at, generation=0, digest="x")
    assert len([m for _, m in gang.told if m["type"] == "save"]) == 4


def test_a_node_whose_link_was_lost_comes_back_with_its_ranks_as_they_stand() -> None:
    gang = TwoNodes()
    gang.gone(2)
    gang.gone(3)
    gang.stop(0)
    assert gang.newest("stop") == {}, "nobody is stopped without the others"
    gang.hello(2, connection=(1, 7), state="running", step=9)
    assert gang.newest("stop") == {}
    gang.hello(3, connection=(1, 8), state="running", step=9)
    assert kinds(gang.events)[-1] is JobWentOn
    asked = {connection for connection, m in gang.told if m["type"] == "stop"}
    assert asked == {10, 11, (1, 7), (1, 8)}


def test_a_link_lost_during_a_stop_lets_those_who_stand_go_on() -> None:
    gang = TwoNodes()
    gang.stop(0)
    gang.stop(1)
    at = gang.agree()
    gang.held(0, at)
    gang.forget()
    gang.gone(2)
    gang.gone(3)
    assert kinds(gang.events) == [SuspendFailed]
    assert gang.newest("go") == {0: {"type": "go"}}
    gang.hello(2, connection=(1, 2), state="held", step=at)
    gang.hello(3, connection=(1, 3), state="running", step=at)
    gang.say(0, type="going", step=at, seconds=0.0)
    assert {connection for connection, m in gang.told if m["type"] == "go"} >= {(1, 2)}


def test_a_link_lost_while_all_write_the_checkpoint_they_leave_with_is_waited_for() -> None:
    """Who has written its part could not go on without the others."""
    gang = TwoNodes()
    gang.stop(0, CHECKPOINT)
    gang.stop(1, CHECKPOINT)
    at = gang.agree()
    gang.held(0, at, "checkpoint", generation=0, digest="x")
    gang.forget()
    gang.gone(2)
    gang.gone(3)
    gang.say(1, type="held", id=1, step=at, tier="checkpoint", bytes=0, seconds=0.0, generation=0)
    assert (gang.events, gang.told) == ([], [])
    for rank in (2, 3):
        gang.hello(rank, connection=(1, rank), state="held", step=at, id=1, tier="checkpoint", generation=0)
    held = gang.events[-1]
    assert (type(held), held.tier, held.step, held.generation) == (JobHeld, CHECKPOINT, at, 0)
    assert {connection for connection, m in gang.told if m["type"] == "leave"} == {10, 11, (1, 2), (1, 3)}


BOUND = {"id": 1, "at_step": 1, "generation": 0}


def leaving(gang: TwoNodes) -> int:
    """All have accepted to leave with a checkpoint, and node 0's ranks have written theirs."""
    gang.stop(0, CHECKPOINT)
    gang.stop(1, CHECKPOINT)
    at = gang.agree()
    for rank in (0, 1):
        gang.held(rank, at, "checkpoint", generation=0, digest="x")
    gang.forget()
    return at


def told(gang: Gang, kind: str) -> list[Any]:
    return [connection for connection, message in gang.told if message["type"] == kind]


def test_a_node_that_did_not_hear_the_commit_hears_it_when_its_link_is_back() -> None:
    gang = TwoNodes()
    at = leaving(gang)
    for rank in (2, 3):
        gang.gone(rank)
    for rank, committed in ((2, False), (3, True)):
        bound = {**BOUND, "committed": committed}
        gang.hello(rank, connection=(1, rank), state="running", step=at - 1, id=1, bound=bound)
    assert told(gang, "commit") == [(1, 2)], "the other had heard it"
    assert gang.events == []
    for rank in (2, 3):
        gang.say_on(
            (1, rank), type="held", id=1, step=at, tier="checkpoint", bytes=0, seconds=0.0, generation=0
        )
    assert kinds(gang.events)[-1] is JobHeld
    assert told(gang, "leave") == [10, 11, (1, 2), (1, 3)]


@pytest.mark.parametrize("lost", [False, True])
def test_where_one_node_cannot_write_its_part_those_that_have_train_on(lost: bool) -> None:
    gang = TwoNodes()
    at = leaving(gang)
    if lost:
        gang.gone(3)
    gang.say(2, type="failed", id=1, what="checkpoint", why="disk full")
    assert kinds(gang.events) == [CheckpointFailed, SuspendFailed]
    assert set(told(gang, "drop")) >= {10, 11}
    assert {10, 11} <= set(told(gang, "go"))
    gang.forget()
    if lost:
        bound = {**BOUND, "committed": True}
        gang.hello(
            3, connection=(1, 3), state="held", step=at, tier="checkpoint", id=1, generation=0, bound=bound
        )
        assert told(gang, "drop") == [(1, 3)], "it is told when it is back"
    else:
        gang.held(3, at, "checkpoint", id=1, generation=0, digest="x")
        assert told(gang, "drop") == [13], "its word had crossed ours"
    for rank in (0, 1):
        gang.say(rank, type="going", step=at, seconds=0.0)
    assert told(gang, "go") == [(1, 3) if lost else 13]


@pytest.mark.parametrize(
    ("heard", "outcome"), [((True, False, False), "commit"), ((False, False, False), "drop"), ((True, None, False), "drop")]
)  # fmt: skip
def test_an_agent_that_knows_nothing_of_a_stop_has_all_leave_or_none(
    heard: tuple[bool | None, ...], outcome: str
) -> None:
    """Three ranks, bound by it (having heard the commit, or not) or no more."""
    gang = Gang(0, nodes=2)
    gang.world = 3
    for rank, committed in enumerate(heard):
        assert told(gang, "commit") + told(gang, "drop") == [], "not before all are here"
        more = {} if committed is None else {"bound": {**BOUND, "committed": committed}}
        gang.hello(rank, state="running", step=0, id=1, **more)
    bound = [10 + rank for rank, committed in enumerate(heard) if committed is not None]
    assert told(gang, outcome) == [each for each in bound if outcome == "drop" or not heard[each - 10]]
    gang.forget()
    gang._keep(gang.machine.order(Suspend(job=JOB, epoch=1, tier=CHECKPOINT), 1.0, node=1))
    assert (told(gang, "stop") == []) == (outcome == "commit"), "nothing else is asked of who is to leave"


def test_what_all_nodes_have_is_said_with_the_next_checkpoint() -> None:
    gang = TwoNodes()
    for generation in (0, 1):
        gang._keep(gang.machine.order(Checkpoint(job=JOB, epoch=1), 1.0, node=0))
        asked = gang.newest("save")[3]
        assert (asked["generation"], asked["whole"]) == (generation, generation - 1)
        at = gang.agree("save")
        for rank in range(4):
            gang.say(rank, type="saved", id=asked["id"], step=at, generation=generation, digest="x")


def test_connections_are_whatever_the_driver_calls_them() -> None:
    gang = Gang(2, arrived=False, nodes=2)
    assert gang.machine.gone("never heard of", 1.0) == Step()
    assert gang.machine.gone((1, 5), 1.0) == Step()
    gang.machine.check()


def test_what_every_node_is_told_names_the_newest_of_its_own_orders_that_was_heard() -> None:
    gang = Gang(2, nodes=2)
    for node, number in ((0, 5), (1, 8), (0, 6)):
        gang.machine.order(Suspend(job=JOB, epoch=1, tier=HOLD, order=number), 1.0, node=node)
    held = JobHeld(now_s=1.0, job=JOB, epoch=1, step=3, tier=HOLD)
    ready = JobReady(now_s=1.0, job=JOB, epoch=1, step=3)
    for said in (held, ready):
        told = [gang.machine.for_node(said, node) for node in (0, 1)]
        assert told == [replace(said, order=number) for number in (6, 8)]
    went_on = JobWentOn(now_s=1.0, job=JOB, epoch=1, step=3)
    assert gang.machine.for_node(went_on, 1) is went_on


def test_every_node_is_told_what_its_own_ranks_have_moved_to_host_memory() -> None:
    gang = TwoNodes()
    gang.stop(0, SWAP)
    at = gang.agree()
    for rank in range(4):
        gang.held(rank, at, "swap", bytes=10**rank)
    held = gang.events[-1]
    assert isinstance(held, JobHeld)
    assert held.tier is SWAP
    assert [gang.machine.for_node(held, node).parked_bytes for node in (0, 1)] == [11, 1100]


@pytest.mark.parametrize("at_once", [False, True])
def test_a_gang_that_was_frozen_before_all_had_agreed_to_stop_saves_when_its_nodes_let_it_go_for_that(
    at_once: bool,
) -> None:
    gang = TwoNodes()
    for node in (0, 1):
        gang.stop(node)
    proposed = gang.newest("stop")
    for rank in (0, 1, 2):  # the fourth holds the interpreter's lock; then all are frozen
        gang.say(rank, type="accept", id=proposed[rank]["id"], at_step=proposed[rank]["at_step"], step=0)
    gang.forget()
    if at_once:
        for node in (0, 1):
            gang.resume(node)
        for node in (0, 1):
            gang.stop(node, CHECKPOINT)
    else:
        for node in (0, 1):
            gang.resume(node)
            gang.stop(node, CHECKPOINT)
        gang.say(3, type="accept", id=proposed[3]["id"], at_step=proposed[3]["at_step"], step=0)
        for rank in range(4):
            gang.held(rank, proposed[rank]["at_step"], id=proposed[rank]["id"])
    asked = gang.newest("stop")
    assert {asked[rank]["tier"] for rank in range(4)} == {"checkpoint"}
    at = gang.agree()
    for rank in range(4):
        gang.held(rank, at, "checkpoint", generation=asked[rank]["generation"], digest="x")
    (left,) = [event for event in gang.events if isinstance(event, JobHeld)]
    assert (left.tier, left.step) == (CHECKPOINT, at)
