"""The policy in office: which it is, how it is replaced, what it remembers, and the trades that it has made."""

import asyncio
import contextlib
import json
import sqlite3
from dataclasses import replace
from fractions import Fraction

import grpc
import pytest

from hs_controller import views
from hs_controller.app import Controller
from hs_controller.config import Config
from hs_controller.rows import Event
from hs_core.facts import Fact
from hs_core.mechanism.trade import dump
from hs_core.names import UserName
from hs_core.policies import find
from hs_core.policy import Trade, Verdict
from hs_proto.v1 import controller_pb2 as pb
from tests.controller.kit import PLAIN, audited, refused_as, spec, started, until
from tests.controller.scraped import scraped


def test_the_policy_says_what_it_is_and_how_long_it_took(config: Config) -> None:
    async def story() -> None:
        async with started(config) as here:
            await here.agent().join()
            await here.client.submit(spec())
            await until(lambda: here.loop.mind.watched.decided_s > 0)
            view = await here.client.stub.GetPolicy(pb.PolicyRequest())
            assert (view.name, view.quantum_s, view.fair) == ("plain", 1.0, False)
            assert "gandiva-fair" in view.available
            assert view.decided_at > 0
            assert view.decision_s > 0

    asyncio.run(story())


def test_a_policy_that_leaves_jobs_where_they_came_is_not_said_to_leave_no_gpu_idle(config: Config) -> None:
    async def story() -> None:
        async with started(config) as here:
            stub = here.client.stub
            said = {
                name: (await stub.SetPolicy(pb.SetPolicyRequest(key=name, name=name))).work_conserving
                for name in ("las", "lottery", "gang-lottery", "fifo")
            }
            assert said == {"las": True, "lottery": False, "gang-lottery": False, "fifo": False}

    asyncio.run(story())


def test_a_policy_that_was_set_stays_in_office_and_restarts_nobody(config: Config) -> None:
    async def story() -> None:
        async with started(config) as here:
            stub, agent = here.client.stub, await here.agent().join()
            [job] = await here.client.submit(spec())
            await agent.until(lambda: agent.wants(job) is not None)
            before = await here.client.view(job)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.SetPolicy(pb.SetPolicyRequest(key="a", name="lass"))
            refused_as(error, grpc.StatusCode.INVALID_ARGUMENT, "did you mean las?")
            for key in ("b", "c"):
                view = await stub.SetPolicy(pb.SetPolicyRequest(key=key, name="las"))
                assert (view.name, view.preemptive) == ("las", True)
                assert view.text.startswith("Least attained service")
            await until(lambda: here.loop.mind.watched.decided_s > 0)
            after = await here.client.view(job)
            assert (after.host, after.epoch) == (before.host, before.epoch) == ("h1", 0)
            told = await audited(here)
            assert [kind for kind, _ in told].count("policy-set") == 1
        async with started(config) as here:
            assert (await here.client.stub.GetPolicy(pb.PolicyRequest())).name == "las"

    asyncio.run(story())


def test_jobs_have_a_share_and_users_a_ratio_only_under_a_policy_that_holds_shares_to_tickets(
    config: Config,
) -> None:
    async def story() -> None:
        async with scraped(config) as here:
            stub, agent = here.client.stub, await here.agent().join()
            [job] = await here.client.submit(spec())
            await agent.until(lambda: agent.wants(job) is not None)
            await agent.report(job, "running", gpu_s=5.0, step=1)
            await here.client.until(job, lambda view: view.step == 1)
            for name, fair in (("gandiva-fair", True), ("las", False)):
                decided_s = here.loop.mind.watched.decided_s
                await stub.SetPolicy(pb.SetPolicyRequest(key=name, name=name))
                await until(lambda before_s=decided_s: here.loop.mind.watched.decided_s > before_s)
                shares = await stub.Shares(pb.SharesRequest())
                assert (shares.policy, shares.fair) == (name, fair)
                assert shares.shares[0].entitled_gpus > 0
                view = await here.client.view(job)
                assert (view.tickets > 0, view.entitled_gpus) == (fair, float(fair))
                before = await stub.Shares(pb.SharesRequest(window_s=3600))
                found = await here.read()
                after = await stub.Shares(pb.SharesRequest(window_s=3600))
                assert ("hs_user_fairness_ratio" in found) is fair
                if fair:
                    [ratio] = found["hs_user_fairness_ratio"].values()
                    then, now = (
                        reply.shares[0].received_gpus / reply.shares[0].due_gpus for reply in (before, after)
                    )
                    assert then >= ratio >= now > 0, "it is entitled to ever more, and receives no more"

    asyncio.run(story())


def test_a_policy_that_fails_leaves_the_controller_in_office_until_another_one_is_put_in_its_place(
    config: Config,
) -> None:
    def fails(*_: object) -> Verdict:
        raise ZeroDivisionError("by nobody")

    async def story() -> None:
        async with started(config, replace(find("fifo"), decide=fails)) as here:
            stub, agent = here.client.stub, await here.agent().join()
            [job] = await here.client.submit(spec())
            await until(lambda: here.loop.mind.machine.failure)
            view = await stub.GetPolicy(pb.PolicyRequest())
            assert view.failure.startswith(
                "ZeroDivisionError: by nobody (controller/test_policy_in_office.py:"
            )
            assert "the policy fifo fails" in (await stub.Why(pb.JobRequest(job_id=job))).text
            view = await stub.SetPolicy(pb.SetPolicyRequest(key="a", name="las"))
            assert (view.name, view.failure) == ("las", "")
            await agent.until(lambda: agent.wants(job) is not None)
            assert [kind for kind, _ in await audited(here)].count("policy-failed") == 1

    asyncio.run(story())


def test_a_policy_that_the_configuration_changes_is_in_the_audit_once(config: Config) -> None:
    async def policies_set(policy: str) -> list[tuple[str, str]]:
        async with started(config, find(policy)) as here:
            await here.client.submit(spec())
            return [each for each in await audited(here) if each[0] == "policy-set"]

    assert asyncio.run(policies_set("fifo")) == []
    assert asyncio.run(policies_set("las")) == [("policy-set", "the configuration")]
    assert asyncio.run(policies_set("las")) == [("policy-set", "the configuration")]


def test_a_policy_that_the_configuration_changes_is_not_told_what_another_one_remembered(
    config: Config,
) -> None:
    async def decided(policy: str) -> str:
        async with started(config, find(policy)) as here:
            agent = await here.agent().join()
            [job] = await here.client.submit(spec())
            await agent.until(lambda: agent.wants(job) is not None)
            return here.loop.mind.machine.failure

    assert asyncio.run(decided("gandiva-fair")) == ""
    assert asyncio.run(decided("las")) == ""
    assert asyncio.run(decided("pal")) == ""


def test_trades_of_a_policy_that_the_configuration_replaces_are_told_as_undone(config: Config) -> None:
    """By a controller that died before it had decided anything, too."""
    trade = Trade(
        fast="V100", slow="K80", giver=UserName("alice"), taker=UserName("bob"), fast_gpus=Fraction(1),
        slow_gpus=Fraction(2), price=2.0, giver_speedup=1.0, taker_speedup=3.0, since_s=1.0,
    )  # fmt: skip
    memory = {"quantum": 1, "moved": 1, "trades": dump([trade])}

    async def story(policy: str) -> list[str]:
        async with started(config, find(policy)) as here:
            await here.client.submit(spec())
            return [kind for kind, _ in await audited(here) if kind.startswith("trade")]

    assert asyncio.run(story("gandiva-fair")) == []
    with contextlib.closing(sqlite3.connect(config.state_dir / "journal.db", isolation_level=None)) as db:
        db.execute("insert or replace into meta values ('memory', ?)", (json.dumps(memory),))
    assert asyncio.run(story("las")) == ["trade-undone"]
    with contextlib.closing(sqlite3.connect(config.state_dir / "journal.db", isolation_level=None)) as db:
        (left,) = db.execute("select value from meta where key = 'memory'").fetchone()
    assert "trades" not in json.loads(left)
    assert asyncio.run(story("las")) == ["trade-undone"]


def test_trades_are_shown_while_they_stand_and_on_request_when_undone(config: Config) -> None:
    trade = Trade(
        fast="V100",
        slow="K80",
        giver=UserName("ann"),
        taker=UserName("bob"),
        fast_gpus=Fraction(1),
        slow_gpus=Fraction(3),
        price=3.0,
        giver_speedup=1.5,
        taker_speedup=5.0,
        since_s=5.0,
    )
    shown = views.trade(trade)
    assert (shown.gives, shown.receives, shown.price, shown.undone) == ("ann", "bob", 3.0, 0.0)
    from hs_core.cluster.trade_facts import trade_data

    fact = Fact(now_s=9.0, kind="trade-undone", text="…", data={**trade_data(trade), "why": "bob left"})
    undone = views.undone_trade(Event(seq=1, fact=fact))
    assert (undone.undone, undone.why_undone) == (9.0, "bob left")
    undone.ClearField("undone")
    undone.ClearField("why_undone")
    assert undone == shown

    async def story() -> None:
        async with started(config) as here:
            assert not (await here.client.stub.ListTrades(pb.ListTradesRequest(all=True))).trades

    asyncio.run(story())


def test_memory_is_written_when_it_changed_and_rates_now_and_then(config: Config) -> None:
    async def story() -> None:
        controller = Controller(config, PLAIN)
        await controller.start()
        try:
            mind = controller.loop.mind
            assert "memory" not in mind.meta(), "as it is in the journal"
            mind.machine._contents.memory = {"rounds": 1}
            assert mind.meta()["memory"] == {"rounds": 1}
            assert "memory" not in mind.meta()
        finally:
            await controller.stop()

    asyncio.run(story())
