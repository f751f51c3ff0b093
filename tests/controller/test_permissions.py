"""The whole table, against the services as they are: a call that is added is refused until somebody says who may."""

import itertools

import pytest

from hs_controller.permissions import PERMISSIONS, Caller, Reach, Role, check, reach
from hs_core.errors import Kind, RefusedError
from hs_proto.v1 import agent_pb2, controller_pb2

METHODS = sorted(
    f"/{service.full_name}/{method.name}"
    for file in (controller_pb2, agent_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    if service.name in {"HeteroShare", "AgentLink"}
    for method in service.methods
)

USER, ADMIN, AGENT = Role.USER, Role.ADMIN, Role.AGENT
ALL, OWN = Reach.ALL, Reach.OWN

# Written down a second time, from the design and not from the table: one line a call, one column a role.
EXPECTED = {
    "/hs.v1.AgentLink/Connect": {USER: None, ADMIN: None, AGENT: ALL},
    "/hs.v1.HeteroShare/Cancel": {USER: OWN, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/CreateToken": {USER: OWN, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/ListTokens": {USER: OWN, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/RevokeToken": {USER: OWN, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/ListTrades": {USER: ALL, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/GetPolicy": {USER: ALL, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/DrainNode": {USER: None, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/UndrainNode": {USER: None, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/SetGpuDrain": {USER: None, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/EnrollNode": {USER: None, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/RemoveNode": {USER: None, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/Backup": {USER: None, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/Events": {USER: ALL, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/GetJob": {USER: ALL, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/Info": {USER: ALL, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/ListJobs": {USER: ALL, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/ListNodes": {USER: ALL, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/Logs": {USER: OWN, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/Pause": {USER: OWN, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/SetUser": {USER: None, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/Shares": {USER: ALL, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/Submit": {USER: OWN, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/Unpause": {USER: OWN, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/Usage": {USER: ALL, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/WatchJob": {USER: ALL, ADMIN: ALL, AGENT: None},
    "/hs.v1.HeteroShare/Why": {USER: ALL, ADMIN: ALL, AGENT: None},
}


def caller(*roles: Role) -> Caller:
    return Caller(name="ann", roles=frozenset(roles))


def test_every_call_of_every_service_is_decided_about() -> None:
    assert sorted(PERMISSIONS) == METHODS == sorted(EXPECTED)


@pytest.mark.parametrize(("method", "role"), list(itertools.product(METHODS, Role)))
def test_a_role_may_what_the_design_says(method: str, role: Role) -> None:
    assert reach(caller(role), method) is EXPECTED[method][role]


@pytest.mark.parametrize("method", [*METHODS, "/hs.v1.HeteroShare/Unheard"])
def test_nobody_in_particular_may_nothing(method: str) -> None:
    with pytest.raises(RefusedError) as refused:
        check(caller(), method)
    assert refused.value.kind is Kind.NOT_ALLOWED


def test_what_is_not_in_the_table_is_refused_to_everybody() -> None:
    assert reach(caller(*Role), "/hs.v1.HeteroShare/Unheard") is None


def test_of_several_roles_the_farthest_reach_counts() -> None:
    assert reach(caller(USER, ADMIN), "/hs.v1.HeteroShare/Cancel") is ALL
