"""A server that cannot start jobs, its disk is full, say, or those of one user, whose account it does not know: every policy, in a cluster of two or three servers."""

from dataclasses import replace

import pytest

from hs_core.cluster import Settings
from hs_core.cluster.harness import EVERYTHING, World
from hs_core.events.cluster import HostReported, QuantumEnded
from hs_core.names import HostName, JobId
from hs_core.policies import POLICIES, find
from hs_core.reports import CANNOT_START, LOST, NO_ACCOUNT, TOLD_TO_END, Exit, JobReport, Phase
from hs_core.wanted import WantedJob

N1, N2, N3 = map(HostName, ("n1", "n2", "n3"))
QUANTUM_S = 20.0
NO_ROOM = "No space left on device"
every_policy = pytest.mark.parametrize("name", sorted(POLICIES))


def world(name: str, script: str) -> World:
    one = World(find(name), Settings(quantum_s=QUANTUM_S, settle_s=0.0))
    for line in filter(None, map(str.strip, script.splitlines())):
        one.do(line)
    return one


class Servers:
    """Agents that start what is wanted of them, those that can; who cannot says so, each time once more."""

    def __init__(self, here: World, *unable: HostName, without: tuple[HostName, str] | None = None) -> None:
        """`without`: a server, and whose account is not there."""
        self.here, self.unable, self.without = here, set(unable), without
        self.said: dict[tuple[HostName, JobId, int], JobReport] = {}

    def report(self) -> None:
        for host, wanted in sorted(self.here.wanted.items()):
            reports = [self._report(host, job) for job in wanted.jobs]
            self.here.handle(
                HostReported(now_s=self.here.now_s, host=host, reports=tuple(reports), heard=EVERYTHING)
            )
            self.here.machine.check()

    def _report(self, host: HostName, job: WantedJob) -> JobReport:
        key = (host, job.job, job.epoch)
        before = self.said.get(key, JobReport(job=job.job, epoch=job.epoch, phase=Phase.WAITING))
        new = before
        if job.cancelled:
            new = replace(before, phase=Phase.EXITED, exit=before.exit or Exit(why=TOLD_TO_END))
        elif not (why := self._why_not(host, job)):
            phase = Phase.STARTING if job.spans else Phase.RUNNING  # its parts wait for one another
            new = replace(before, phase=phase, note="", step=before.step + 5, start_fails=0)
        elif before.phase is Phase.WAITING:
            why = f"{CANNOT_START}: {why}"
            new = replace(before, note=why, start_fails=before.start_fails + 1)
            if job.spans:
                new = replace(new, phase=Phase.EXITED, exit=Exit(why=f"{LOST}: {why}"))
        self.said[key] = new
        return new

    def _why_not(self, host: HostName, job: WantedJob) -> str:
        if host in self.unable:
            return NO_ROOM
        return f"{NO_ACCOUNT} {job.run_as!r} on {host}" if self.without == (host, job.run_as) else ""

    def quantum(self) -> None:
        self.report()
        self.report()  # of what was decided when that had been said
        self.here.now_s += QUANTUM_S
        self.here.handle(QuantumEnded(now_s=self.here.now_s))


def homes(here: World) -> dict[int, str]:
    return {int(row.id): "+".join(row.hosts) for row in here.machine.jobs()}


TWO = """
    host n1 V100:4
    user ann
    user bob
    submit ann first gpus=2 steps=100000
    submit bob second gpus=1 steps=100000
    submit ann third gpus=1 steps=100000
    @1
    tick
    host n2 V100:4
"""


@every_policy
def test_no_job_waits_on_a_server_that_cannot_start_it_while_one_that_can_idles(name: str) -> None:
    here = world(name, TWO)
    assert "n1" in homes(here).values()
    servers = Servers(here, N1)
    servers.report()
    told = [fact.text for fact in here.outcome.facts]
    for _ in range(3):
        servers.quantum()
        assert set(homes(here).values()) == {"n2"}, told


@every_policy
def test_a_job_that_comes_later_is_not_given_that_server(name: str) -> None:
    here = world(name, TWO)
    Servers(here, N1).report()
    here.do("submit bob fourth gpus=1 steps=100000")
    here.do("tick")
    assert homes(here)[4] != "n1"


@every_policy
def test_a_gang_is_laid_over_the_servers_that_can_start_it(name: str) -> None:
    script = "host n1 V100:2\nhost n2 V100:2\nuser ann\nsubmit ann gang gpus=2 nodes=2 steps=100000\n@1\ntick\nhost n3 V100:2"
    here = world(name, script)
    servers = Servers(here, N1)
    for _ in range(3):
        servers.quantum()
    (row,) = here.machine.jobs()
    assert sorted(row.hosts) == ["n2", "n3"]


@every_policy
def test_who_has_no_account_on_a_server_has_its_jobs_elsewhere_and_others_have_theirs_there(
    name: str,
) -> None:
    here = world(name, TWO)
    servers = Servers(here, without=(N1, "ann"))
    for _ in range(3):
        servers.quantum()
    here.do("submit ann fourth gpus=1 steps=100000")
    here.do("submit bob fifth gpus=3 steps=100000")
    for _ in range(9):
        servers.quantum()
    of = {
        user: {"+".join(row.hosts) for row in here.machine.jobs() if row.user == user}
        for user in ("ann", "bob")
    }
    assert of["ann"] == {"n2"}
    assert "n1" in of["bob"]


@every_policy
def test_a_gang_is_laid_over_the_servers_that_know_its_account(name: str) -> None:
    script = "host n1 V100:2\nhost n2 V100:2\nuser ann\nsubmit ann gang gpus=2 nodes=2 steps=100000\n@1\ntick\nhost n3 V100:2"
    here = world(name, script)
    servers = Servers(here, without=(N1, "ann"))
    for _ in range(3):
        servers.quantum()
    (row,) = here.machine.jobs()
    assert sorted(row.hosts) == ["n2", "n3"]


@every_policy
def test_once_there_is_an_account_jobs_are_started_there(name: str) -> None:
    here = world(name, "host n1 V100:4\nuser ann\nsubmit ann first gpus=2 steps=100000\n@1\ntick")
    servers = Servers(here, without=(N1, "ann"))
    for _ in range(3):
        servers.quantum()
        assert all(row.report.phase is Phase.WAITING for row in here.machine.jobs() if row.report)
    servers.without = None
    servers.quantum()
    here.do("submit ann second gpus=1 steps=100000")
    for _ in range(12):
        servers.quantum()
    assert homes(here) == {1: "n1", 2: "n1"}
    assert here.machine.cannot_start(N1) == ""


def test_one_start_shows_that_the_server_starts_jobs_and_knows_their_account() -> None:
    here = world("fifo", "host n1 V100:4\nuser ann\nsubmit ann first gpus=2 steps=100000\n@1\ntick")
    servers = Servers(here, without=(N1, "ann"))
    servers.report()
    servers.unable.add(N1)
    servers.report()
    servers.unable, servers.without = set(), None
    servers.report()
    assert here.machine.cannot_start(N1) == ""


@every_policy
def test_a_server_that_does_not_know_one_account_is_given_the_jobs_of_others_at_once(name: str) -> None:
    here = world(name, "host n1 V100:4\nuser ann\nuser bob\nsubmit ann first gpus=2 steps=100000\n@1\ntick")
    Servers(here, without=(N1, "ann")).report()
    assert here.machine.cannot_start(N1).startswith("could not start jobs of ann (there is no account 'ann'")
    here.do("submit bob second gpus=1 steps=100000")
    here.do("tick")
    assert homes(here)[2] == "n1"


def test_of_an_account_that_no_job_asks_for_any_more_nothing_is_said_and_of_the_next_one_again() -> None:
    """No start would ever end it: the warning, and the alert, would stay for good."""
    here = world("fifo", "host n1 V100:4\nuser ann\nsubmit ann first gpus=2 steps=100000\n@1\ntick")
    Servers(here, without=(N1, "ann")).report()
    assert "there is no account 'ann'" in here.machine.cannot_start(N1)
    here.do("cancel ann 1")
    here.do("report n1 1:0=exited why=cancelled")
    assert here.machine.job(JobId(1)).state.ended
    assert here.machine.cannot_start(N1) == ""
    here.do("submit ann second gpus=2 steps=100000")
    assert "there is no account 'ann'" in here.machine.cannot_start(N1)
