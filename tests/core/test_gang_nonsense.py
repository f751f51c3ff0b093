"""What ranks say that makes no sense: it is counted, and changes nothing."""

from typing import Any

import pytest
from gangsim import Gang

MALFORMED: list[dict[str, Any]] = [
    {"type": "hello"},
    {"type": "hello", "protocol": 2, "pid": 1, "rank": 0, "world": 1, "step": 0, "state": "new", "can": []},
    {"type": "hello", "protocol": 1, "pid": 1, "rank": 1, "world": 1, "step": 0, "state": "new", "can": []},
    {
        "type": "hello",
        "protocol": 1,
        "pid": 1,
        "rank": 0,
        "world": 1,
        "step": 0,
        "state": "asleep",
        "can": [],
    },
    {
        "type": "hello",
        "protocol": 1,
        "pid": 1,
        "rank": 0,
        "world": 10**9,
        "step": 0,
        "state": "new",
        "can": [],
    },
    {"type": "arrived", "step": -1, "can": []},
    {"type": "arrived", "step": 0, "can": "hold"},
    {"type": "accept", "id": "1"},
    {"type": "reject"},
    {"type": "held", "id": 1, "step": 1, "tier": "nowhere"},
    {"type": "held", "id": 1, "step": 1, "tier": []},
    {"type": "hello", "protocol": 1, "pid": 1, "rank": 0, "world": 1, "step": 0, "state": {}, "can": []},
    {"type": "progress", "step": 1, "steps": 1, "seconds": float("nan")},
    {"type": "progress", "step": True, "steps": 1, "seconds": 1.0},
    {"type": "progress", "step": 1, "steps": 1 << 70, "seconds": 1.0},
    {"type": "progress", "step": 10**15, "steps": 1, "seconds": 1.0},
    {"type": "progress", "step": 1, "steps": 1, "seconds": 10**400},
    {"type": "progress", "step": 1, "steps": 1, "seconds": 5e-324},
    {"type": "failed", "id": 1, "what": "lunch", "why": ""},
    {"type": "failed", "id": 1, "what": ["swap"], "why": ""},
    {"type": "restored", "step": 1, "generation": -2},
    {"type": "can", "can": [1]},
    {"type": "blocked", "on": True},
    {"type": "blocked", "on": True, "rank": 2, "world": 2},
    {"type": "saved", "id": 1},
]


@pytest.mark.parametrize("message", MALFORMED, ids=lambda m: str(m)[:60])
def test_what_makes_no_sense_is_counted_and_changes_nothing(message: dict[str, Any]) -> None:
    gang = Gang(1)
    gang.forget()
    gang.say(0, **message)
    assert gang.machine.malformed == 1
    assert gang.events == []
    gang.suspend()
    gang.agree()


@pytest.mark.parametrize("message", [{}, {"type": "tea"}, {"type": 5}, {"type": ["hello"]}], ids=str)
def test_unknown_kinds_of_message_are_ignored(message: dict[str, Any]) -> None:
    gang = Gang(1)
    gang.forget()
    gang.say(0, **message)
    assert gang.told == []
    assert gang.events == []


def test_messages_of_strangers_are_ignored() -> None:
    gang = Gang(1)
    gang.forget()
    for message in (
        {"type": "held", "id": 1, "step": 1, "tier": "hold"},
        {"type": "gone"},
        {"type": "accept", "id": 1},
    ):
        gang.say_on(77, **message)
    assert gang.events == []
