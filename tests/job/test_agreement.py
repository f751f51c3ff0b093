"""A rank's side of the agreement on a step, with the agent's messages falling where they hurt."""

import contextlib
import threading
from collections.abc import Callable

import pytest

from hs_job import runtime
from hs_job.agreement import NOWHERE_S, NOWHERE_STEPS, Agreement, Phase
from hs_job.keeper import Keeper
from hs_job.places import Places
from hs_job.runtime import Runtime
from hs_job.stop import Stop


class Written(Keeper):
    """All that is to be kept is written at once."""

    def __init__(self) -> None:
        super().__init__({}, 0, 1)
        self.cleared: list[int] = []

    def can(self, *_: object) -> bool:
        return True

    def write(self, *_: object) -> str:
        return "digest"

    def clear(self, stop: Stop) -> None:
        self.cleared.append(stop.generation)


class Wire:
    """Takes what the rank says."""

    connected = True

    def __init__(self) -> None:
        self.said: list[dict[str, object]] = []

    def send(self, message: dict[str, object]) -> bool:
        self.said.append(message)
        return True

    def kinds(self) -> list[object]:
        return [message["type"] for message in self.said]


def test_a_parked_rank_goes_on_to_the_raised_step_even_if_that_is_agreed_on_before_it_wakes() -> None:
    rank = Runtime({"HS_AGENT_SOCKET": "/nowhere", "RANK": "0", "WORLD_SIZE": "2"})
    wire = Wire()
    rank.telling.link = wire  # type: ignore[assignment]
    rank._agreement.phase = Phase.RUNNING

    def train() -> None:
        for _ in range(3):
            rank.steps.take()
            rank.point()

    rank._heard({"type": "stop", "id": 1, "at_step": 1, "tier": "hold"})
    training = threading.Thread(target=train, daemon=True)
    training.start()
    never = threading.Event()
    while rank._agreement.phase is not Phase.PARKED:
        assert not never.wait(0.01)
        assert training.is_alive()
    assert rank.steps.count == 1
    with rank._lock:  # both are heard before the training thread gets a word in
        rank._heard({"type": "stop", "id": 1, "at_step": 3, "tier": "hold"})
        rank._heard({"type": "commit", "id": 1, "at_step": 3})
    while "held" not in wire.kinds():
        assert not never.wait(0.01)
        assert training.is_alive()
    (held,) = [message for message in wire.said if message["type"] == "held"]
    assert held["step"] == 3
    rank._heard({"type": "go"})
    training.join(20)
    assert not training.is_alive()


class Seen(threading.Condition):
    """Says who waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: set[int] = set()

    def wait(self, timeout: float | None = None) -> bool:
        self.waiting.add(threading.get_ident())
        try:
            return super().wait(timeout)
        finally:
            self.waiting.discard(threading.get_ident())


def until(look: Callable[[], bool], what: str) -> None:
    never = threading.Event()
    for _ in range(1000):
        if look():
            return
        never.wait(0.01)
    pytest.fail(what)


@pytest.mark.parametrize("phase", [Phase.NEW, Phase.RUNNING])
def test_of_threads_that_train_side_by_side_none_goes_on_while_one_is_held(phase: Phase) -> None:
    rank = Runtime({"HS_AGENT_SOCKET": "/nowhere"})
    wire = Wire()
    rank.telling.link = wire  # type: ignore[assignment]
    rank._agreement.phase = phase
    enough = threading.Event()
    steps = [0, 0]
    rank._lock = lock = Seen()

    def train(which: int) -> None:
        while not enough.is_set():
            steps[which] += 1
            rank.steps.take()
            rank.point()

    both = [threading.Thread(target=train, args=(which,), daemon=True) for which in range(2)]

    def both_stand() -> bool:
        with rank._lock:
            return len(lock.waiting) == 2

    try:
        if phase is Phase.RUNNING:
            rank._heard({"type": "stop", "id": 1, "at_step": 0, "tier": "hold"})
            rank._heard({"type": "commit", "id": 1, "at_step": 0})
        for each in both:
            each.start()
        for turn in range(3):
            until(both_stand, f"in turn {turn} both stand")
            before = list(steps)
            rank._heard({"type": "go"})
            until(
                lambda before=before: all(now > then for now, then in zip(steps, before, strict=True)),
                "both go on",
            )  # type: ignore[misc]
            rank._heard({"type": "stop", "id": turn + 2, "at_step": rank.steps.count, "tier": "hold"})
            rank._heard({"type": "commit", "id": turn + 2, "at_step": rank.steps.count})
        until(both_stand, "both stand at last")
        assert wire.kinds().count("held") == (4 if phase is Phase.RUNNING else 3)
    finally:
        enough.set()
        rank._heard({"type": "go"})
        for each in both:
            each.join(20)


def test_a_step_longer_than_its_turn_is_told_with_its_rate_and_the_last_one_whenever_it_ends() -> None:
    rank = Runtime({"HS_AGENT_SOCKET": "/nowhere"})
    wire = Wire()
    rank.telling.link = wire  # type: ignore[assignment]

    def stop(number: int) -> None:
        rank._heard({"type": "stop", "id": number, "at_step": rank.steps.count, "tier": "hold"})
        rank._heard({"type": "commit", "id": number, "at_step": rank.steps.count})

    def train() -> None:
        for turn in range(3):  # a step each, and at its end another job's turn has come
            rank.steps.take()
            if turn:
                stop(turn)
            rank.point()
        rank.steps.take()
        rank._end()

    training = threading.Thread(target=train, daemon=True)
    training.start()
    never = threading.Event()
    for stands in (["arrived"], ["held"], ["held", "held"]):
        while [kind for kind in wire.kinds() if kind == stands[0]] != stands:
            assert not never.wait(0.01)
            assert training.is_alive()
        rank._heard({"type": "go"})
    training.join(20)
    told = [message for message in wire.said if message["type"] == "progress"]
    assert [(message["step"], message["steps"]) for message in told] == [(3, 1), (4, 1)]
    assert all(isinstance(message["seconds"], float) and message["seconds"] > 0 for message in told)


def test_a_script_that_ends_after_its_first_step_has_said_so() -> None:
    rank = Runtime({"HS_AGENT_SOCKET": "/nowhere"})
    wire = Wire()
    rank.telling.link = wire  # type: ignore[assignment]
    rank._agreement.phase = Phase.RUNNING
    rank.steps.take()
    rank._end()
    assert [message["step"] for message in wire.said] == [1]
    rank._end()
    assert len(wire.said) == 1, "once"


def test_a_rank_that_is_to_leave_with_others_stays_until_an_agent_has_heard_of_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torchrun would take its leaving for a failure, and no agent would know better."""
    rank = Runtime({"HS_AGENT_SOCKET": "/nowhere", "RANK": "0", "WORLD_SIZE": "2"})
    rank.telling.link = Wire()  # type: ignore[assignment]
    rank._agreement.phase = Phase.PARKED
    rank.tiers.keeper = rank.keeper = Written()
    left = threading.Event()

    def vanish() -> None:
        left.set()
        raise SystemExit

    monkeypatch.setattr(runtime, "_LEAVE_WITHIN_S", 0.1)
    monkeypatch.setattr(runtime, "vanish", vanish)
    rank._heard({"type": "stop", "id": 4, "at_step": 0, "tier": "checkpoint", "generation": 3})
    rank._lost()

    def write() -> None:
        stop = Stop("stop", {"id": 4, "at_step": 0, "tier": "checkpoint", "generation": 3})
        with contextlib.suppress(SystemExit), rank._lock:
            rank._perform(stop, restorable=True)

    threading.Thread(target=write, daemon=True).start()
    assert not left.wait(0.5)
    (hello,) = rank._greet()
    assert (hello["state"], hello["tier"], hello["generation"]) == ("held", "checkpoint", 3)
    rank._heard({"type": "welcome"})
    assert left.wait(20), "where the agent is there but says nothing, it leaves by itself"


LEAVE = {"type": "stop", "id": 4, "at_step": 2, "tier": "checkpoint", "generation": 3}
BOUND = {"id": 4, "at_step": 2, "generation": 3}


class OfTwoNodes:
    """Rank 1 on node 1, trained by a thread."""

    def __init__(self) -> None:
        environment = {"HS_AGENT_SOCKET": "/nowhere", "RANK": "1", "WORLD_SIZE": "2", "HS_NNODES": "2"}
        self.rank = Runtime(environment)
        self.wire = Wire()
        self.rank.telling.link = self.wire  # type: ignore[assignment]
        self.rank._agreement.phase = Phase.RUNNING
        self.rank.tiers.keeper = self.rank.keeper = self.kept = Written()
        self._never = threading.Event()
        self.training = threading.Thread(target=self._train, daemon=True)

    def _train(self) -> None:
        for _ in range(4):
            self.rank.steps.take()
            self.rank.point(restorable=True)

    def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert not self._never.wait(0.01)
            assert self.training.is_alive()

    def bound(self) -> object:
        (hello,) = self.rank._greet()
        return hello.get("bound")


def test_what_a_rank_has_accepted_binds_it_though_the_link_to_the_other_node_is_lost() -> None:
    """The other node's ranks may have heard the commit, and wait for it at that step."""
    of = OfTwoNodes()
    of.rank._heard(LEAVE)
    of.rank._lost()
    of.training.start()
    of.until(lambda: of.rank._agreement.phase is Phase.PARKED)
    assert (of.rank.steps.count, of.bound()) == (2, {**BOUND, "committed": False})
    of.rank._heard({"type": "commit", "id": 4, "at_step": 2})
    of.until(lambda: "held" in of.wire.kinds())
    assert of.bound() == {**BOUND, "committed": True}


def test_a_rank_that_has_written_its_part_trains_on_where_another_node_could_not() -> None:
    of = OfTwoNodes()
    of.rank._heard(LEAVE)
    of.rank._heard({"type": "commit", "id": 4, "at_step": 2})
    of.training.start()
    of.until(lambda: "held" in of.wire.kinds())
    of.rank._heard({"type": "drop", "id": 4})
    of.training.join(20)
    assert (of.rank.steps.count, of.kept.cleared, of.bound()) == (4, [3], None)


def test_a_save_that_another_node_could_not_make_is_taken_away() -> None:
    of = OfTwoNodes()
    of.rank._heard({**LEAVE, "type": "save"})
    of.rank._heard({"type": "commit", "id": 4, "at_step": 2})
    of.training.start()
    of.training.join(20)
    assert "saved" in of.wire.kinds()
    of.rank._heard({"type": "drop", "id": 3})
    assert of.kept.cleared == []
    of.rank._heard({"type": "drop", "id": 4})
    assert of.kept.cleared == [3]


def asked(*, committed: bool) -> tuple[Agreement, float]:
    """A rank that trains and was asked to leave with a checkpoint at step 10; when that was."""
    agreement = Agreement(1, armed=True)
    agreement.go_on(0)
    stop = Stop("stop", {"id": 1, "at_step": 10, "tier": "checkpoint"})
    assert agreement.hear_stop(stop, 5, world=2)
    if committed:
        agreement.hear_commit(1, 10)
    return agreement, stop.heard_s


@pytest.mark.parametrize("committed", [False, True])
def test_a_stop_is_given_up_where_training_goes_on_and_on_and_comes_to_no_place_for_it(
    *, committed: bool
) -> None:
    agreement, heard_s = asked(committed=committed)
    late_s, far = heard_s + NOWHERE_S, 10 + NOWHERE_STEPS
    soon, near = agreement.give_up_astray((far, late_s), Places(), late_s - 1), (far - 1, late_s)
    assert (soon, agreement.give_up_astray(near, Places(), late_s)) == (None, None)
    came = Places()
    came.came(5)
    assert agreement.give_up_astray((far, late_s), came, late_s) is None, "nobody knows how far the next is"
    given_up = agreement.give_up_astray((far, late_s), Places(), late_s)
    assert (given_up is not None, agreement.stop is None, agreement.armed) == (
        committed,
        committed,
        not committed,
    )


def test_a_stop_is_given_up_where_a_rank_is_past_it_and_waits_in_a_call_for_those_that_stand_there() -> None:
    agreement, heard_s = asked(committed=True)
    last_s = heard_s + 5
    agreement.passed = 9
    assert agreement.give_up_waited_for((10, last_s), Places(), last_s + NOWHERE_S) is None, (
        "it comes there yet"
    )
    agreement.passed = 10
    assert agreement.give_up_waited_for((11, last_s), Places(), heard_s + NOWHERE_S) is None, (
        "it has just trained"
    )
    assert agreement.give_up_waited_for((11, last_s), Places(), last_s + NOWHERE_S) is not None
    assert agreement.stop is None
