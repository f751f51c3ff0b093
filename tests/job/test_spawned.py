"""Ranks that a script starts itself, with torch.multiprocessing: only torch.distributed knows which they are."""

import pytest
from job_stub import StubAgent
from moving import let_go
from warm import Warm

from hs_core.events.host import JobHeld, JobRestored
from hs_core.reports import Tier

TRAIN = """
import hashlib, os, sys, torch, hs_job
from torch import distributed, multiprocessing, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def train(rank):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{os.getcwd()}/{sys.argv[1]}", rank=rank, world_size=2)
    torch.manual_seed(1)
    x = torch.randn(160, 4)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = DistributedSampler(data, seed=5)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
    for epoch in range(state.epoch, 10):
        sampler.set_epoch(epoch)
        for xs, ys in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(xs), ys).backward()
            optimizer.step()
            os.write(1, b"step\\n")
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    os.write(1, f"weights {digest.hexdigest()}\\n".encode())
    distributed.barrier()
    os._exit(0)

if "RANK" in os.environ:
    train(int(os.environ["RANK"]))
elif __name__ == "__main__":
    multiprocessing.set_forkserver_preload(["torch"])  # as Python 3.14 does, for scripts that import it
    multiprocessing.start_processes(train, nprocs=2, start_method=sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("by", ["spawn", "forkserver"])
def test_ranks_that_a_script_starts_go_on_from_the_checkpoint_that_they_wrote(
    agent: StubAgent, warm: Warm, by: str
) -> None:
    """What they learn is compared with what ranks learn that nobody started so, and nobody stops."""
    (agent.folder / "train.py").write_text(TRAIN)
    environment = agent.environment(HS_AGENT_SOCKET="")
    expected, _ = warm.run(("train.py", "whole"), environment, agent.folder, ranks=2).communicate()
    agent.kill()
    agent._machine_args = {"pace_s": 0.02}
    agent.start()
    since = agent.seen()
    job = agent.run("train.py", "before", by, fresh=True)
    let_go(agent, since)
    assert job.stdout is not None
    assert job.stdout.readline() == "step\n"
    since = agent.seen()
    agent.suspend(Tier.CHECKPOINT)
    held = agent.wait(JobHeld, since)
    job.communicate()
    agent.kill()
    agent.start()
    since = agent.seen()
    again = agent.run("train.py", "after", by, fresh=True, env={"HS_RESTORE": str(held.generation)})
    let_go(agent, since)
    restored = agent.wait(JobRestored, since)
    assert (restored.step, restored.generation, restored.note) == (held.step, held.generation, "")
    end, _ = again.communicate()
    assert end.splitlines()[-1] == expected.splitlines()[-1]
