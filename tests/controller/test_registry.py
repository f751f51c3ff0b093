"""Which certificates count, whatever becomes of the wall clock in between."""

from dataclasses import replace

import pytest

from hs_controller.permissions import Caller, Role
from hs_controller.pki import LEAF_S
from hs_controller.registry import SERIALS_PER_NODE, TOKENS_PER_USER, Registry
from hs_controller.rows import Kept, UserToken
from hs_core.names import HostName, UserName

V1 = HostName("v1")
T = 2e9


def shown(serial: str, issued_s: float) -> Caller:
    roles = frozenset({Role.NODE})
    return Caller(
        name="agent v1",
        roles=roles,
        account=False,
        node="v1",
        serial=serial,
        issued_s=issued_s,
        until_s=issued_s + LEAF_S,
    )


def joins(registry: Registry, serial: str, now_s: float) -> None:
    registry.keep(Kept(now_s=now_s, rows=(registry.joined(V1, serial, now_s + LEAF_S, now_s),)))


@pytest.mark.parametrize("step_s", [-3600.0, 0.0, 3600.0])
@pytest.mark.parametrize("removed", [False, True])
def test_what_a_node_had_before_it_joined_anew_counts_no_more_whereto_the_clock_steps(
    step_s: float, removed: bool
) -> None:
    registry = Registry()
    joins(registry, "A", T)
    assert registry.why_refused(shown("A", T), T) == ""
    if removed:
        registry.keep(Kept(now_s=T, rows=(registry.removed(V1, T - 7200.0),)))  # by a clock that is behind
        assert "was removed" in registry.why_refused(shown("A", T), T)
    joins(registry, "B", T + step_s)
    assert registry.why_refused(shown("B", T + step_s), T + step_s) == ""
    assert "replaced by a newer one" in registry.why_refused(shown("A", T), T + step_s)


def test_a_node_that_never_stops_renewing_has_a_few_certificates_kept_and_all_that_it_renewed_count() -> None:
    registry = Registry()
    joins(registry, "joined", T)
    for number in range(10 * SERIALS_PER_NODE):
        now_s = T + 1.0 + number
        identity = registry.renewed(V1, f"S{number}", now_s + LEAF_S, now_s)
        registry.keep(Kept(now_s=now_s, rows=(identity,)))
    newest = range(9 * SERIALS_PER_NODE, 10 * SERIALS_PER_NODE)
    assert list(identity.serials) == [f"S{number}" for number in newest]
    assert all(
        registry.why_refused(shown(f"S{number}", T + 1.0 + number), now_s) == ""
        for number in range(10 * SERIALS_PER_NODE)
    )
    assert registry.certificate_until_s(V1) == now_s + LEAF_S


def test_of_a_users_tokens_that_can_no_longer_be_used_the_newest_are_kept_however_many_were_made() -> None:
    registry, made, ann = Registry(), 3 * TOKENS_PER_USER, UserName("ann")

    def make(name: str, user: UserName, *, revoked: bool) -> None:
        row = UserToken(id=name, user=user, label="", digest=name, created_s=T, not_after_s=T + 1e7)
        registry.keep(Kept(now_s=T, rows=(row,), gone=registry.add_token(row)))
        registry.keep(Kept(now_s=T, rows=(replace(row, revoked=revoked),)))

    make("bobs", UserName("bob"), revoked=True)
    make("00000", ann, revoked=False)
    for number in range(1, made + 1):
        make(f"{number:05}", ann, revoked=True)
    kept = [row.id for row in registry.tokens("ann")]
    assert kept == ["00000", *(f"{number:05}" for number in range(made - TOKENS_PER_USER, made + 1))]
    assert [row.id for row in registry.tokens("bob")] == ["bobs"]
