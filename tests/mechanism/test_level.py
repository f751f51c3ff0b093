"""What users get of a pool whose entitlements are not all used."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hs_core.mechanism.level import Level, at_once, one_by_one
from hs_core.names import UserName

USERS = [UserName(name) for name in "abcde"]


@given(
    st.integers(1, 40),
    st.dictionaries(st.sampled_from(USERS), st.integers(0, 200).map(lambda tenths: tenths / 10)),
    st.dictionaries(st.sampled_from(USERS), st.integers(0, 30)),
    st.lists(st.tuples(st.sampled_from(USERS), st.integers(1, 9))),
)
def test_what_everybody_gets_at_once_is_what_each_gets(
    gpus: int, entitled: dict[UserName, float], asked: dict[UserName, int], more: list[tuple[UserName, int]]
) -> None:
    level = Level(gpus, entitled, asked)
    for user, others in more:
        level.ask(user, others)
    parts = level.parts()
    assert parts == {user: level.part(user) for user in parts}
    assert parts.keys() == {*asked, *(user for user, _ in more)}


def test_an_entitlement_that_nobody_uses_is_handed_to_those_who_are_there() -> None:
    level = Level(8, {USERS[0]: 4.0, USERS[1]: 2.0, USERS[2]: 2.0}, {USERS[0]: 1, USERS[1]: 10, USERS[2]: 10})
    assert level.parts() == {USERS[0]: 1.0, USERS[1]: 0.35, USERS[2]: 0.35}


def test_who_just_gets_all_is_one_who_gets_all_however_it_was_rounded() -> None:
    asks, entitled = [1, 1, 1, 7, 9, 11, 12, 19], [0.4, 0.4, 0.4, 3.5, 3.0, 5.0, 3.7, 6.3]
    for find in (one_by_one, at_once):  # the level is 3, and so is what the fifth asks for, each of its GPUs
        assert find(60, asks, entitled) == pytest.approx((3.0, 10.0))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 200)), min_size=1), st.data())
def test_the_level_among_many_is_found_as_among_few(
    users: list[tuple[int, int]], data: st.DataObject
) -> None:
    asks, entitled = [asked for asked, _ in users], [has / 10 for _, has in users]
    if sum(asks):
        gpus = data.draw(st.integers(0, sum(asks) - 1))
        assert one_by_one(gpus, asks, entitled) == pytest.approx(at_once(gpus, asks, entitled))


def test_what_everybody_gets_does_not_go_by_the_order_in_which_users_are_named() -> None:
    """Else the last digit would go by what the process has decided before: equal mappings count as one question."""
    asked = {UserName(f"u{at}"): at + 1 for at in range(8)}
    entitled = {user: gpus / 7 for user, gpus in asked.items()}  # all stand at the same line
    backwards = dict(reversed(entitled.items()))
    for gpus in range(1, 36):
        assert Level(gpus, backwards, asked).parts() == Level(gpus, entitled, asked).parts()


def test_who_has_no_share_gets_what_those_who_have_one_leave() -> None:
    level = Level(8, {USERS[0]: 5.0, USERS[1]: 3.0}, {USERS[0]: 4, USERS[1]: 2, USERS[2]: 3, USERS[3]: 1})
    assert level.parts() == {USERS[0]: 1.0, USERS[1]: 1.0, USERS[2]: 0.5, USERS[3]: 0.5}
    assert level.part(USERS[2], 4) == 0.25
    level.ask(USERS[1], 2)
    assert level.part(USERS[2]) == 0.0
