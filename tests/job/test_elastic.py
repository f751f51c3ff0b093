"""Started again with another number of ranks and another batch: it goes on by examples, from the same state."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch  # noqa: F401 - what writes the files
from job_stub import StubAgent
from moving import let_go
from warm import Warm

import hs_job
from hs_core.events.host import JobHeld, JobRestored
from hs_core.reports import Tier
from hs_job.checkpoint import Folder, Node, TornError

SAMPLES, MINI_BATCH = 384, 24
STEPS = SAMPLES // MINI_BATCH  # of an epoch
TRAIN = """
import json, os, time, torch, hs_job
from torch import distributed, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(1)
distributed.init_process_group("gloo")
rank = distributed.get_rank()
x = torch.randn(384, 4, generator=torch.Generator().manual_seed(2))
data = TensorDataset(torch.arange(384), x, x.sum(1, keepdim=True))
sampler = DistributedSampler(data, seed=5)
loader = DataLoader(data, batch_size=hs_job.batch_per_gpu(12), sampler=sampler)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
torch.manual_seed(100 + rank)
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
step, parts = state.step, hs_job.accumulation_steps()
for epoch in range(state.epoch, 2):
    sampler.set_epoch(epoch)
    for at, xs, ys in loader:
        optimizer.zero_grad()
        for a, b in zip(xs.chunk(parts), ys.chunk(parts)):
            (nn.functional.mse_loss(model(a), b) * len(a) / len(xs)).backward()
        optimizer.step()
        step += 1
        line = {"rank": rank, "epoch": epoch, "step": step, "at": at.tolist(), "dice": torch.rand(1).item()}
        os.write(1, (json.dumps(line) + "\\n").encode())
        while step == 19 and not os.path.exists("go"):
            time.sleep(0.01)
weights = [round(each, 5) for each in torch.cat([p.detach().ravel() for p in model.parameters()]).tolist()]
os.write(1, (json.dumps({"weights": weights}) + "\\n").encode())
distributed.barrier()
os._exit(0)
"""


def start(agent: StubAgent, ranks: int, batch: int, parts: int = 1, **env: str):
    script = agent.folder / "train.py"
    script.write_text(TRAIN)
    told = {"HS_BATCH_PER_GPU": str(batch), "HS_ACCUMULATION_STEPS": str(parts), **env}
    return agent.run(str(script), env=told, ranks=ranks)


def lines_of(output: str) -> list[dict]:
    return [json.loads(line) for line in output.splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> list[float]:
    """Weights of a run that nobody interrupts: mini-batches of 24."""
    with StubAgent(tmp_path_factory.mktemp("whole"), warm) as agent:
        (agent.folder / "go").touch()
        job = start(agent, 2, 12)
        let_go(agent)
        assert job.stdout is not None
        return lines_of(job.stdout.read())[-1]["weights"]


@pytest.mark.parametrize(("ranks", "batch", "parts"), [(3, 8, 1), (1, 24, 2), (2, 24, 1)])
def test_it_goes_on_by_examples_from_the_same_state(
    agent: StubAgent, whole: list[float], ranks: int, batch: int, parts: int
) -> None:
    """Two ranks of 12 become others in the middle of the second epoch."""
    job = start(agent, 2, 12)
    let_go(agent)
    output = ""
    assert job.stdout is not None
    for line in job.stdout:
        output += line
        if '"epoch": 1, "step": 19' in line:
            break
    since = agent.seen()
    agent.suspend(Tier.CHECKPOINT)
    agent.until(lambda: len(agent.messages("accept")) == 2, "word from both ranks that they will stop")
    (agent.folder / "go").touch()
    held = agent.wait(JobHeld, since)
    output += job.stdout.read()
    agent.kill()
    agent.start()
    again = start(agent, ranks, batch, parts, HS_RESTORE=str(held.generation))
    let_go(agent)
    assert agent.wait(JobRestored).step == held.step
    assert again.stdout is not None
    output += again.stdout.read()
    assert again.wait() == 0
    told = [line for line in lines_of(output) if "at" in line]
    seen = Counter(example for line in told if line["epoch"] == 1 for example in line["at"])
    assert set(seen) == set(range(SAMPLES))
    again_of = (
        (held.step - STEPS) * MINI_BATCH % (ranks * batch)
    )  # it goes on with a whole mini-batch of its own
    assert sum(seen.values()) == SAMPLES + again_of, "every other example once, in both worlds together"
    later = [line for line in told if line["step"] > held.step]
    assert {line["rank"] for line in later} == set(range(ranks))
    assert len({line["dice"] for line in later}) == len(later), "no rank draws what another one does"
    weights = lines_of(output)[-1]["weights"]
    if ranks * batch == MINI_BATCH:
        assert weights == pytest.approx(whole, abs=1e-4)


def test_nobody_told_leaves_the_scripts_own_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HS_BATCH_PER_GPU", raising=False)
    assert hs_job.batch_per_gpu(48) == 48
    monkeypatch.setenv("HS_BATCH_PER_GPU", "12")
    assert hs_job.batch_per_gpu(48) == 12
    monkeypatch.setenv("HS_BATCH_PER_GPU", "many")
    with pytest.raises(ValueError, match="HS_BATCH_PER_GPU is 'many'; expected a whole number"):
        hs_job.batch_per_gpu(48)
    with pytest.raises(ValueError, match=r"own is 0; expected a whole number from 1 to 10"):
        hs_job.batch_per_gpu(0)


def test_a_checkpoint_of_other_ranks_is_torn_unless_the_job_is_elastic(tmp_path: Path) -> None:
    content = {"format": 1, "step": 3}
    Folder(str(tmp_path), 0, 1).write(0, 3, content)
    for rank in range(3):
        assert Folder(str(tmp_path), rank, 3, elastic=True).read(0)[0] == content
        found, generation, note = Folder(str(tmp_path), rank, 3).read(0)
        assert (found, generation) == (None, -1)
        assert "it is of 1 ranks; the job has 3" in note
    (tmp_path / "gen-0" / "manifest.json").write_text('{"generation": 0, "world": 2, "files": []}')
    with pytest.raises(TornError, match="its manifest is of 2 ranks, and does not name files of some"):
        Folder(str(tmp_path), 0, 1, elastic=True).content(0)


def test_whichever_part_of_an_elastic_jobs_checkpoint_a_node_has_is_enough_for_its_ranks(
    tmp_path: Path,
) -> None:
    """Two nodes of two ranks each wrote it; what the second wrote lies where the only node of three now is."""
    here = tmp_path / "here"
    for rank in (3, 2):
        content = {"format": 1, "step": 3, "rank": rank}
        Folder(str(here), rank, 4, Node(2, 2, 1, 2), elastic=True).write(
            0, 3, content, wait_for_manifest=False
        )
    part = here / "gen-0"
    (part / "manifest-1.json").rename(
        part / "manifest.json"
    )  # as the agent keeps what its host has as another part
    found = [Folder(str(here), rank, 3, elastic=True).read(0)[0] for rank in range(3)]
    assert [each["rank"] for each in found if each] == [2, 3, 2], "who wrote one has its own again"
    (part / "manifest.json").write_text('{"generation": 0, "world": 2, "files": [{"name": "rank2.pt"}]}')
    with pytest.raises(TornError, match="does not name files of some of them"):
        Folder(str(here), 0, 1, elastic=True).content(0)
