"""Users as administrators have them: listed with what they have, taken out with their tokens, bounded in what their jobs hold in memory."""

import asyncio
import os
import pwd
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from hs_controller.bodies import Bodies
from hs_controller.config import Config, ConfigUser
from hs_controller.gate import CALLER
from hs_controller.permissions import Caller, Role
from hs_core.errors import RefusedError
from hs_proto.v1 import controller_pb2 as pb
from tests.controller.kit import CONFLICT, NOT_FOUND, FakeAgent, refused, spec, started, until

ACCOUNT = pwd.getpwuid(os.geteuid()).pw_name
PLAIN_ANN = Caller(name="ann", roles=frozenset({Role.USER}))


@contextmanager
def calling(who: Caller) -> Iterator[None]:
    token = CALLER.set(who)
    try:
        yield
    finally:
        CALLER.reset(token)


async def users(here, name: str = "") -> dict[str, pb.UserView]:
    reply = await here.client.stub.ListUsers(pb.ListUsersRequest(user=name))
    return {view.name: view for view in reply.users}


async def set_user(here, name: str) -> pb.UserView:
    return await here.client.stub.SetUser(pb.SetUserRequest(key=uuid.uuid4().hex, name=name, tickets=200))


async def remove(here, name: str, key: str = "r") -> pb.RemoveUserReply:
    return await here.client.stub.RemoveUser(pb.RemoveUserRequest(key=key, name=name))


async def deeds(here) -> list[tuple[str, str, str]]:
    call = here.client.stub.Events(pb.EventsRequest(deeds=True))
    return [(event.kind, event.user, event.data["by"]) async for event in call]


async def ran(here, agent: FakeAgent, job: int, gpu_s: float) -> None:
    """It is done, having had so much."""
    await agent.until(lambda: agent.wants(job) is not None)
    await agent.report(job, "running", gpu_s=gpu_s)
    await here.client.until(job, lambda view: view.state == "running")
    await agent.report(job, "exited", gpu_s=gpu_s, exit={"code": 0})
    await here.client.until(job, lambda view: view.state == "succeeded")


def test_users_are_listed_with_their_role_their_jobs_and_what_they_received(lasting: Config) -> None:
    config = replace(lasting, admins=("ann",), users={"bob": ConfigUser(tickets=50.0)})

    async def story() -> None:
        async with started(config) as here:
            agent = await here.agent().join()
            set_ann = await set_user(here, "ann")
            assert (set_ann.tickets, set_ann.admin, set_ann.live_jobs) == (200, True, 0)
            await here.client.stub.CreateToken(pb.CreateTokenRequest(key="t", user="ann"))
            [done] = await here.client.submit(as_user="ann")
            await ran(here, agent, done, 30.0)
            await here.client.submit(spec(env={"TEXT": "x" * 1000}), spec(), as_user="ann")
            await here.client.submit()
            found = await users(here)
            assert list(found) == sorted({"ann", "bob", ACCOUNT})
            ann = found["ann"]
            assert (ann.live_jobs, ann.tokens, ann.gpu_s, ann.admin, ann.configured) == (
                2,
                1,
                30.0,
                True,
                False,
            )
            assert 1000 < ann.spec_bytes < 2000
            assert (found["bob"].tickets, found["bob"].configured, found["bob"].admin) == (50, True, False)
            assert found[ACCOUNT].admin, "the controller's own account"
            assert list(await users(here, "ann")) == ["ann"]
            async with refused(*NOT_FOUND, "there is no user 'eve'"):
                await users(here, "eve")

    asyncio.run(story())


def test_who_is_no_administrator_is_shown_nobody_else(lasting: Config) -> None:
    async def story() -> None:
        async with started(lasting) as here:
            for name in ("ann", "bob"):
                await set_user(here, name)
            service = here.controller._service
            with calling(PLAIN_ANN):
                reply = await service.ListUsers(pb.ListUsersRequest(), None)
                assert [view.name for view in reply.users] == ["ann"]
                told = []
                for name in ("bob", "nobody-known"):
                    with pytest.raises(Exception, match="there is no user") as error:
                        await service.ListUsers(pb.ListUsersRequest(user=name), None)
                    told.append(str(error.value).replace(name, "…"))
                assert told[0] == told[1], "who is there is not said"

    asyncio.run(story())


def test_a_user_is_removed_once_nothing_of_theirs_is_under_way_and_stays_so(lasting: Config) -> None:
    async def story() -> None:
        async with started(lasting) as here:
            agent = await here.agent().join()
            await set_user(here, "ann")
            made = await here.client.stub.CreateToken(pb.CreateTokenRequest(key="t", user="ann"))
            registry, clock = here.loop.mind.registry, here.loop.clock
            assert registry.user_of(made.token, clock.now_s()) == "ann"
            [job] = await here.client.submit(as_user="ann")
            async with refused(*CONFLICT, f"'ann' has 1 job under way ({job}): cancel it"):
                await remove(here, "ann")
            assert registry.user_of(made.token, clock.now_s()) == "ann", "refused whole"
            await ran(here, agent, job, 12.0)
            gone = await remove(here, "ann")
            assert (gone.name, gone.revoked_tokens, gone.configured) == ("ann", 1, False)
            assert await remove(here, "ann") == gone, "the same key, the same answer"
            async with refused(*NOT_FOUND, "unknown user 'ann'"):
                await remove(here, "ann", key="again")
            assert registry.user_of(made.token, clock.now_s()) is None
            assert await deeds(here) == [
                ("user-set", "ann", ACCOUNT),
                ("token-created", "ann", ACCOUNT),
                ("user-removed", "ann", ACCOUNT),
                ("token-revoked", "ann", ACCOUNT),
            ]
        async with started(lasting) as here:
            assert "ann" not in await users(here)
            assert (await here.client.view(job)).user == "ann"
            [row] = (await here.client.stub.Usage(pb.UsageRequest(user="ann"))).rows
            assert row.gpu_s == 12.0
            async with refused(*NOT_FOUND, "hsctl user set ann"):
                await here.client.submit(as_user="ann")
            assert (await set_user(here, "ann")).gpu_s == 12.0, "who comes again goes on in the same book"

    asyncio.run(story())


def test_tokens_of_an_account_that_never_was_a_user_are_revoked_too(lasting: Config) -> None:
    async def story() -> None:
        async with started(lasting) as here:
            await here.client.stub.CreateToken(pb.CreateTokenRequest(key="t"))
            assert (await remove(here, ACCOUNT)).revoked_tokens == 1
            async with refused(*NOT_FOUND, f"unknown user '{ACCOUNT}'"):
                await remove(here, ACCOUNT, key="again")

    asyncio.run(story())


def test_who_was_removed_comes_back_when_the_configuration_says_something_new_of_them(
    lasting: Config,
) -> None:
    def configured(tickets: float) -> Config:
        return replace(lasting, users={"bob": ConfigUser(tickets=tickets)})

    async def story() -> None:
        async with started(configured(50.0)) as here:
            assert (await users(here))["bob"].tickets == 50
            assert (await remove(here, "bob")).configured
        async with started(configured(50.0)) as here:
            assert "bob" not in await users(here), "as after `hsctl user set`, what was said last counts"
        async with started(configured(60.0)) as here:
            assert (await users(here))["bob"].tickets == 60

    asyncio.run(story())


def test_a_users_specs_have_the_room_that_the_configuration_gives_them(lasting: Config) -> None:
    config = replace(lasting, limits=replace(lasting.limits, spec_bytes_per_user=256 << 10))
    large = spec(env={"TEXT": "x" * (100 << 10)})

    async def story() -> None:
        async with started(config) as here:
            await set_user(here, "bob")
            first, _ = await here.client.submit(large, large)
            for dry_run in (True, False):
                async with refused(
                    "unavailable", grpc.StatusCode.UNAVAILABLE, "those of one user may take 262144"
                ):
                    await here.client.submit(large, dry_run=dry_run)
            await here.client.submit(large, as_user="bob")
            await here.client.stub.Cancel(pb.JobsRequest(key="c", job_ids=[first]))
            await here.client.submit(large)

    asyncio.run(story())


def test_who_else_changed_ones_jobs_is_among_the_deeds_once_for_each_request(lasting: Config) -> None:
    async def story() -> None:
        async with started(lasting) as here:
            await set_user(here, "ann")
            jobs = await here.client.submit(spec(), spec(), as_user="ann")
            mine = await here.client.submit()
            stub = here.client.stub
            for key, call in (
                ("p", stub.Pause),
                ("u", stub.Unpause),
                ("c", stub.Cancel),
                ("c2", stub.Cancel),
            ):
                await call(pb.JobsRequest(key=key, job_ids=[*jobs, *mine]))
            told = [kind for kind, user, _ in await deeds(here) if user == "ann"]
            assert told == ["user-set", "jobs-paused", "jobs-resumed", "jobs-cancelled"]
            followed = stub.Events(pb.EventsRequest(deeds=True, follow=True, tail=1))
            seen = [(await followed.read()).kind]
            await here.client.submit()
            await set_user(here, "carl")
            seen.append((await followed.read()).user)
            followed.cancel()
            assert seen == ["jobs-cancelled", "carl"], "a job that was submitted is no deed"

    asyncio.run(story())


def test_large_requests_of_one_user_have_a_quarter_of_the_room_and_others_have_theirs(
    lasting: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(lasting, limits=replace(lasting.limits, request_bytes=1 << 20))
    large = spec(env={"TEXT": "x" * (150 << 10)})

    async def story() -> None:
        async with started(config) as here:
            goes, ask = asyncio.Event(), here.loop.ask

            async def held(*args: Any) -> bytes:
                await goes.wait()
                return await ask(*args)

            monkeypatch.setattr(here.loop, "ask", held)
            first = asyncio.create_task(here.client.submit(large))
            await until(lambda: here.controller._bodies._of[ACCOUNT] > 150 << 10)
            async with refused("unavailable", grpc.StatusCode.UNAVAILABLE, "at most 262144 were expected"):
                await here.client.submit(large)
            await here.client.stub.Info(pb.InfoRequest())  # small ones go on
            goes.set()
            await first
            await here.client.submit(large)
            assert not here.controller._bodies._of

    asyncio.run(story())


def test_there_is_room_for_any_one_request_and_for_all_together_no_more_than_was_said() -> None:
    bodies = Bodies(100)
    with bodies.held("ann", 1000):
        with (
            pytest.raises(RefusedError, match="ann has requests of 1000 bytes under way"),
            bodies.held("ann", 1),
        ):
            pass
        with pytest.raises(RefusedError, match="too many large requests"), bodies.held("bob", 1):
            pass
    with bodies.held("ann", 25), bodies.held("bob", 25), bodies.held("carl", 50), bodies.held("dora", 0):
        pass
