"""Laws over the table of policies."""

from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.policies import POLICIES
from hs_core.policy import Policy

Says = Callable[..., None]


def law(
    *drawn: st.SearchStrategy[Any], policies: Iterable[Policy] = POLICIES.values(), examples: int = 20
) -> Callable[[Says], Callable[[], None]]:
    """What a function `(policy, *drawn)` asserts holds for each of these in every case that is drawn. An error's note names the policy.

    All of them are asked about the same case: to draw a cluster takes longer than forty decisions about it.
    """
    policies = tuple(policies)

    def made(says: Says) -> Callable[[], None]:
        def test(case: tuple[Any, ...]) -> None:
            for policy in policies:
                try:
                    says(policy, *case)
                except Exception as error:
                    error.add_note(f"policy: {policy.name}")
                    raise

        test.__name__, test.__qualname__, test.__doc__ = says.__name__, says.__qualname__, says.__doc__
        test.__module__ = says.__module__
        return settings(max_examples=examples)(given(st.tuples(*drawn))(test))

    return made
