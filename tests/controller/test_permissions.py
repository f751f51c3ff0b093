"""The whole table, against the services as they are: a call that is added is refused until somebody says who may."""

import itertools
from pathlib import Path

import pytest

from hs_client.program import run as run_hsctl
from hs_controller.permissions import PERMISSIONS, VERBS, Caller, Reach, Role, check, reach, table
from hs_core.errors import Kind, RefusedError
from hs_proto.v1 import agent_pb2, controller_pb2

SERVED_BY_AGENTS = {"AgentPeer"}  # who may is in the grant that each call shows
PAGES = ["/metrics"]  # over HTTP
METHODS = PAGES + sorted(
    f"/{service.full_name}/{method.name}"
    for file in (controller_pb2, agent_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    if service.name not in SERVED_BY_AGENTS
    for method in service.methods
)

ANONYMOUS, USER, ADMIN, AGENT, NODE = Role.ANONYMOUS, Role.USER, Role.ADMIN, Role.AGENT, Role.NODE

# Written down a second time, from the design and not from the table: one line a call, one letter a role in the order above.
# A: with everybody's things, o: with one's own, -: not at all.
EXPECTED = {
    "AgentLink/Clock": "---AA",
    "AgentLink/Connect": "---Ao",
    "HeteroShare/Backup": "--A--",
    "HeteroShare/Cancel": "-oA--",
    "HeteroShare/CreateToken": "-oA--",
    "HeteroShare/DrainNode": "--A--",
    "HeteroShare/EnrollNode": "--A--",
    "HeteroShare/Events": "-AA--",
    "HeteroShare/Exec": "-oA--",
    "HeteroShare/GetJob": "-AA--",
    "HeteroShare/GetPolicy": "-AA--",
    "HeteroShare/Info": "-AA--",
    "HeteroShare/ListJobs": "-AA--",
    "HeteroShare/ListNodes": "-AA--",
    "HeteroShare/ListTokens": "-oA--",
    "HeteroShare/ListTrades": "-AA--",
    "HeteroShare/ListUsers": "-oA--",
    "HeteroShare/Logs": "-oA--",
    "HeteroShare/Pause": "-oA--",
    "HeteroShare/RemoveNode": "--A--",
    "HeteroShare/RemoveUser": "--A--",
    "HeteroShare/RevokeToken": "-oA--",
    "HeteroShare/SetGpuDrain": "--A--",
    "HeteroShare/SetUser": "--A--",
    "HeteroShare/SetPolicy": "--A--",
    "HeteroShare/Shares": "-AA--",
    "HeteroShare/Submit": "-oA--",
    "HeteroShare/Support": "--A--",
    "HeteroShare/UndrainNode": "--A--",
    "HeteroShare/Unpause": "-oA--",
    "HeteroShare/Usage": "-AA--",
    "HeteroShare/WatchJob": "-AA--",
    "HeteroShare/Why": "-AA--",
    "Identity/Join": "A----",
    "Identity/Renew": "----o",
    "/metrics": "-AA--",
}
REACHES = {"A": Reach.ALL, "o": Reach.OWN, "-": None}
SECURITY = Path(__file__).resolve().parents[2] / "docs" / "security.md"


def caller(*roles: Role) -> Caller:
    return Caller(name="ann", roles=frozenset(roles))


def test_every_call_of_every_service_is_decided_about() -> None:
    assert sorted(PERMISSIONS) == sorted(METHODS)
    assert sorted(EXPECTED) == sorted(method.removeprefix("/hs.v1.") for method in METHODS)


@pytest.mark.parametrize(("method", "role"), list(itertools.product(METHODS, Role)))
def test_a_role_may_what_the_design_says(method: str, role: Role) -> None:
    word = EXPECTED[method.removeprefix("/hs.v1.")][list(Role).index(role)]
    assert reach(caller(role), method) is REACHES[word]


@pytest.mark.parametrize("method", [*METHODS, "/hs.v1.HeteroShare/Unheard"])
def test_nobody_in_particular_may_nothing(method: str) -> None:
    with pytest.raises(RefusedError) as refused:
        check(caller(), method)
    assert refused.value.kind is Kind.NOT_ALLOWED


def test_what_is_not_in_the_table_is_refused_to_everybody() -> None:
    assert reach(caller(*Role), "/hs.v1.HeteroShare/Unheard") is None


def test_an_administrators_call_is_refused_by_the_verb_that_people_know() -> None:
    for_admins = {m for m, roles in PERMISSIONS.items() if roles == {ADMIN: Reach.ALL}}
    assert {m.rsplit("/", 1)[-1] for m in for_admins} == set(VERBS)
    with pytest.raises(RefusedError) as refused:
        check(caller(USER), "/hs.v1.HeteroShare/DrainNode")
    assert str(refused.value) == "node drain is not allowed to ann (roles: user): expected an administrator"


@pytest.mark.parametrize("verb", [verb for verbs in VERBS.values() for verb in verbs.split(", ")])
def test_a_verb_by_which_a_call_is_refused_is_there(verb: str) -> None:
    assert run_hsctl([*verb.split(), "--help"]) == 0


def test_of_several_roles_the_farthest_reach_counts() -> None:
    assert reach(caller(USER, ADMIN), "/hs.v1.HeteroShare/Cancel") is Reach.ALL


def test_the_table_in_the_documentation_is_this_one() -> None:
    assert table() in SECURITY.read_text(encoding="utf-8"), (
        "docs/security.md: put the output of permissions.table() there"
    )
