"""What users get of a pool whose entitlements are not all used."""

from hypothesis import given
from hypothesis import strategies as st

from hs_core.mechanism.level import Level
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
