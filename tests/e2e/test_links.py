"""Links between real servers, a network namespace each, are cut and come back while jobs train over TLS. What is sent meanwhile is lost without a word, as a pulled plug loses it."""

import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from examples.cluster.deployment import Deployment, account
from examples.cluster.network import Namespaces, network
from examples.cluster.workload import Server
from tests.e2e.harness import UP, alive, incarnations, learned, learning, uninterrupted, until
from tests.e2e.test_chaos import never_twice
from tests.lean import LEAN

SERVERS = tuple(
    Server(name=name, model=model, gpus=1) for name, model in zip("abc", ("V100", "V100", "K80"), strict=True)
)
LEASE_S, FENCE_S = 6.0, 5.0  # what was lost as a link flapped is sent anew after up to three seconds
ENDED = {"succeeded", "failed", "cancelled"}
STEP_S = 0.2  # no job has ended before its links are cut, however slow the machine: after that they hurry
GANG_STEPS, STEPS = 500, 1_200


@dataclass(slots=True)
class Cut(Deployment):
    """Jobs outlive what a test does to its agents."""

    files: dict[int, Path] = field(default_factory=dict)
    fence_s: float = FENCE_S

    def _controller_toml(self) -> str:
        users = "".join(f'[users.{name}]\nrun_as = "{account()}"\n' for name in ("ann", "bob"))
        return (
            f'state_dir = "{self.state}/controller"\nsocket = "{self.run}/controller.sock"\n'
            f'listen = "{self.address}"\nquantum_s = {self.quantum_s!r}\nheartbeat_s = 0.5\n'
            f"lease_s = {LEASE_S!r}\nfence_after_s = {self.fence_s!r}\nmigrations_per_hour = 7200\n{users}"
        )

    def submit(self, user: str, name: str, scripts: Path, steps: int, **fields: object) -> int:
        file = self.state / name
        run = learning(scripts, file, steps, STEP_S)
        job = {"run": run, "env": LEAN | {"OMP_NUM_THREADS": "1"}, **fields}
        (self.state / f"{name}.yaml").write_text(json.dumps(job))
        said = self.hsctl("--user", user, "submit", "--parsable", "-f", f"{file}.yaml")
        self.files[int(said)] = file
        return int(said)

    def views(self) -> dict[int, dict[str, Any]]:
        return {view["id"]: view for view in json.loads(self.hsctl("queue", "--all", "--json"))}

    def hurry(self) -> None:
        for file in self.files.values():
            Path(f"{file}.hurry").touch()

    def state_of(self, server: str) -> str:
        return next(
            node["state"] for node in json.loads(self.hsctl("nodes", "--json")) if node["name"] == server
        )

    def link(self, server: str, word: str) -> None:
        assert isinstance(self.network, Namespaces)
        outer = f"{self.network.tag}v{self.network.servers.index(server)}"
        subprocess.run(["ip", "link", "set", outer, word], check=True, timeout=20)

    def process(self, job: int) -> int:
        return learned(self.files[job])[-1].process

    def end_jobs(self) -> None:
        for file in self.files.values():
            for rank in range(2):
                if (rows := learned(file, rank)) and alive(rows[-1].process):
                    subprocess.run(["kill", f"-{signal.SIGKILL.value}", str(rows[-1].process)], check=False)


@pytest.fixture
def cut(request: pytest.FixtureRequest) -> Iterator[Cut]:
    """Its parameter, where it has one, is after how many seconds jobs are fenced."""
    with ExitStack() as stack:
        state, run = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hs-l-", ignore_cleanup_errors=True)))
            for _ in range(2)
        )
        for folder in (state, run):
            folder.chmod(0o755)
        made = stack.enter_context(network([server.name for server in SERVERS], namespaces=True))
        if not isinstance(made, Namespaces):
            pytest.skip(made.words)
        fence_s = getattr(request, "param", FENCE_S)
        cluster = Cut(state=state, run=run, network=made, quantum_s=1.0, fence_s=fence_s)
        stack.callback(cluster.end_jobs)
        stack.callback(cluster.stop)
        cluster.start_controller()
        for server in SERVERS:
            cluster.join(server)
        cluster.await_joined(SERVERS)
        UP[state] = cluster.hsctl
        stack.callback(UP.pop, state)
        yield cluster


@pytest.mark.root
def test_whatever_link_is_cut_no_job_runs_twice_none_is_lost_and_each_learns_what_it_would_have(
    cut: Cut, scripts: Path
) -> None:
    gang = cut.submit("ann", "gang", scripts, GANG_STEPS, nodes=2, torchrun=True)
    folder = {
        "mode": "interval",
        "interval": "2s",
        "dir": str(cut.state / "checkpoints"),
    }  # that all servers see
    fenced = cut.submit("bob", "fenced", scripts, STEPS, on_partition="fence", checkpoint=folder)
    other = cut.submit("bob", "other", scripts, STEPS)
    until(lambda: all(learned(file) for file in cut.files.values()), "all train", 180)

    # Shorter than the fence: the same processes go on. One link flaps, then another is gone for a moment.
    before = {job: (cut.process(job), cut.views()[job]["epoch"]) for job in (gang, fenced, other)}
    for _ in range(4):
        cut.link("b", "down")
        time.sleep(0.3)  # how long it is cut is what is tested, here and below
        cut.link("b", "up")
        time.sleep(0.2)
    cut.link("a", "down")
    time.sleep(FENCE_S / 2)
    cut.link("a", "up")
    views = cut.views()
    for job, (process, epoch) in before.items():
        if views[job]["migrations"] == 0 and not views[job]["moving_to"]:
            assert (cut.process(job), views[job]["epoch"]) == (process, epoch), job

    # In the middle of leaving.
    home = cut.views()[other]["nodes"][0]
    cut.hsctl("node", "drain", home)
    cut.link(home, "down")
    time.sleep(FENCE_S / 2)
    cut.link(home, "up")
    cut.hsctl("node", "undrain", home)

    # Longer than fence and lease: who said `fence` is ended there, and goes on elsewhere only then.
    home, last = cut.views()[fenced]["nodes"][0], cut.process(fenced)
    cut.link(home, "down")
    until(lambda: not alive(last), "the fenced job has ended there", 30)
    until(lambda: home not in cut.views()[fenced]["nodes"], "it lives elsewhere", 60)
    cut.link(home, "up")
    until(lambda: cut.state_of(home) != "away", "the server is back", 60)

    cut.hurry()
    until(lambda: all(view["state"] in ENDED for view in cut.views().values()), "all end", 240)
    ended = cut.views()
    assert {view["state"] for view in ended.values()} == {"succeeded"}, ended
    for job, file in cut.files.items():
        ranks = 2 if job == gang else 1
        steps = GANG_STEPS if job == gang else STEPS
        for rank, same in enumerate(uninterrupted(scripts, steps, ranks=ranks)):
            rows = learned(file, rank)
            story = cut.hsctl("show", str(job))
            lives = incarnations(rows)
            begun = [at for at, life in enumerate(lives) if life[0].step == 1]
            assert len(begun) == 1, f"a job that has written checkpoints begins with one\n{story}"
            never_twice(rows)
            assert all(one[-1].at_s <= next_[0].at_s for one, next_ in pairwise(lives)), story
            assert {(row.step, row.loss) for row in rows} == {(row.step, row.loss) for row in same}


@pytest.mark.root
@pytest.mark.parametrize(
    "cut", [30.0], indirect=True
)  # as long as a process may take to come up, and then to save
def test_what_was_written_unheard_into_a_folder_that_all_servers_see_is_gone_on_from(
    cut: Cut, scripts: Path
) -> None:
    """Its new server is cut off while it comes up there. What it leaves behind is newer than all that was heard of, which is there no more."""
    folder = {"mode": "interval", "interval": "1s", "dir": str(cut.state / "checkpoints")}
    job = cut.submit("bob", "moved", scripts, STEPS, on_partition="fence", checkpoint=folder)
    file = cut.files[job]
    until(lambda: cut.views()[job]["checkpoint_step"] > 0, "it has written a checkpoint", 180)
    home = cut.views()[job]["nodes"][0]
    logs = {server.name: cut.state / f"{server.name}.log" for server in SERVERS if server.name != home}
    cut.hsctl("node", "drain", home)
    there = until(
        lambda: next((name for name, log in logs.items() if '"launched"' in log.read_text()), None),
        "its process comes up on another server",
        60,
    )
    cut.link(there, "down")
    cut.hsctl("node", "undrain", home)
    until(lambda: len(incarnations(learned(file))) > 1, "it trains there, unheard", 60)
    unheard = incarnations(learned(file))[1][0].process
    until(lambda: not alive(unheard), "it has ended there", 60)
    until(lambda: len(incarnations(learned(file))) > 2, "it goes on elsewhere", 180)
    cut.link(there, "up")
    first, second, third, *_ = incarnations(learned(file))
    told = f"it goes on from step {third[0].step - 1} on"
    until(lambda: told in cut.hsctl("show", str(job)), f"the story says: {told}", 60)
    assert "or from a newer checkpoint if one is in" in cut.hsctl("show", str(job))
    assert second[0].step == first[-1].step + 1
    assert second[0].step < third[0].step <= second[-1].step + 1, "it lost what it had written unheard"
    never_twice(learned(file))
