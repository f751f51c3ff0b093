"""Faults of the machines that are planted are found by the laws: a check that cannot fail is none."""

import json
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from fractions import Fraction
from typing import Any
from weakref import WeakKeyDictionary

from hs_core.cluster import State
from hs_core.cluster.abroad import Abroad
from hs_core.cluster.anew import Anew
from hs_core.cluster.exits import Exits
from hs_core.host.board import Board
from hs_core.host.hosted import HostedJob
from hs_core.mechanism.trade import Outcome
from hs_core.model import Job, OnPartition, Stored
from hs_core.names import HostName
from hs_core.policies import gandiva_fair
from hs_sim.cases import case_of
from hs_sim.faults import Failure, explore
from hs_sim.machines.agent import Agent
from hs_sim.machines.journal import Journal
from hs_sim.machines.world import World

ENOUGH = 400  # seeds, for a planted bug


def found(prepare: Callable[[World], None] | None = None, first: int = 0, **besides: bool) -> Failure:
    failures = explore(range(first, first + ENOUGH), prepare=prepare, enough=1, **besides)
    assert failures, f"not found within {ENOUGH} seeds"
    return failures[0]


def test_a_job_that_is_charged_twice_is_found(monkeypatch):
    free = HostedJob.free

    def twice(self: HostedJob, now_s: float) -> None:
        self.gpu_s += self.seconds_in_turn(now_s) * self.gang
        free(self, now_s)

    monkeypatch.setattr(HostedJob, "free", twice)
    assert "was charged" in found().what


def test_a_job_that_fails_where_it_may_be_tried_again_is_found(monkeypatch):
    tries = Exits.may_try_again
    monkeypatch.setattr(
        Exits,
        "may_try_again",
        lambda self, row, ended: tries(self, replace(row, retries=row.retries + 1), ended),
    )
    assert re.search(r"has failed .*, having ended badly 1 times; 1 are allowed", found(limits=True).what)


def test_a_job_that_is_blamed_for_what_the_server_lacks_to_which_it_was_sent_is_found(monkeypatch):
    monkeypatch.setattr(Abroad, "may_fail", lambda _self, _row: False)
    assert re.search(r"was taken to have failed \d+ times, and did 0 times", found(lacks=True).what)


def test_a_job_whose_time_counts_twice_once_it_begins_anew_is_found(monkeypatch):
    again = Anew.next_epoch

    def twice(self: Anew, row: Job) -> Job:
        new = again(self, row)
        return replace(new, past_run_s=2 * new.past_run_s)

    monkeypatch.setattr(Anew, "next_epoch", twice)
    assert re.search(r"was ended after .* s; it may run for", found(limits=True).what)


def test_a_job_whose_time_is_forgotten_once_it_begins_anew_is_found(monkeypatch):
    again = Anew.next_epoch
    monkeypatch.setattr(Anew, "next_epoch", lambda self, row: replace(again(self, row), past_run_s=0.0))
    assert re.search(r"ran for .* s; it may for", found(limits=True).what)


def test_gpus_that_are_given_away_while_their_job_is_still_stopping_are_found(monkeypatch):
    suspend = Board.suspend

    def at_once(self: Board, job: HostedJob, tier: Any) -> None:
        suspend(self, job, tier)
        job.free(self.now_s)

    monkeypatch.setattr(Board, "suspend", at_once)
    monkeypatch.setattr("hs_core.host.machine.broken_laws", lambda *_: [])
    assert "and given to job" in found().what


def test_orders_that_go_out_before_they_are_committed_are_found(monkeypatch):
    """The disk takes each batch only with the next one."""
    commit = Journal.commit
    held: WeakKeyDictionary[Journal, list[Any]] = WeakKeyDictionary()

    def late(self: Journal, drafts: Any) -> None:
        commit(self, held.pop(self, []))
        held[self] = list(drafts)

    monkeypatch.setattr(Journal, "commit", late)
    assert found(first=350).what


def first_among_traders(first: int) -> Failure:
    seeds = [seed for seed in range(first, first + ENOUGH) if case_of(seed).trades]
    failures = explore(seeds, enough=1)
    assert failures, f"not found in {len(seeds)} seeds"
    return failures[0]


def test_a_controller_that_forgets_trades_is_found(monkeypatch):
    begin = Journal.begin_term

    def forgetful(self: Journal) -> State:
        state = begin(self)
        return replace(state, memory={name: kept for name, kept in state.memory.items() if name != "trades"})

    monkeypatch.setattr(Journal, "begin_term", forgetful)
    assert "what was told of trades comes to" in first_among_traders(121).what


def test_a_trade_by_which_a_part_of_a_gpu_is_lost_is_found(monkeypatch):
    load = gandiva_fair.trading.settle

    def losing(*asked: Any) -> Outcome:
        outcome = load(*asked)
        if not outcome.trades:
            return outcome
        at = max(outcome.entitled)
        return replace(outcome, entitled={**outcome.entitled, at: outcome.entitled[at] * Fraction(99, 100)})

    monkeypatch.setattr(gandiva_fair.trading, "settle", losing)
    assert "where its share and trades come to" in first_among_traders(13).what


def test_a_host_that_obeys_an_old_order_is_found():
    """Wanted is taken as it comes, whatever its number."""

    def prepare(world: World) -> None:
        for agent in world.agents.values():
            wanted = agent.wanted

            def obey(line, said, sent_s, agent=agent, wanted=wanted) -> None:
                agent._newest = (-1, -1)
                if agent.machine is not None:
                    agent.machine._seq = -1
                wanted(line, said, sent_s)

            agent.wanted = obey  # type: ignore[method-assign]

    assert found(prepare).what


def test_a_controller_that_has_a_job_begin_afresh_though_a_checkpoint_is_within_reach_is_found(monkeypatch):
    newest = Anew._newest_on

    def forgotten(self: Anew, row: Job, hosts: Collection[HostName]) -> Stored | None:
        return None if row.spec.on_partition is OnPartition.FENCE else newest(self, row, hosts)

    monkeypatch.setattr(Anew, "_newest_on", forgotten)
    assert "was acknowledged as safe" in found(first=360).what


def test_an_agent_that_acts_before_it_remembers_is_found(monkeypatch):
    """What it saves lacks the job that it took up last."""

    def forgetful(self: Agent) -> None:
        assert self.machine is not None
        saved = self.machine.saved()
        saved["jobs"] = saved["jobs"][:-1]
        self._saved = json.dumps(saved)
        self._saved_launching = ()

    monkeypatch.setattr(Agent, "_save", forgetful)
    assert found().what
