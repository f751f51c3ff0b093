"""What being hooked costs: overhead on a 5 ms step, and the time from request to held and from resume to next step.

The overhead is measured in pairs, hooked and unhooked alternated. Prints milliseconds.

python benchmarks/hook.py [--pairs N] [--steps N] [--cycles N]
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "job")]

from job_stub import StubAgent  # noqa: E402

from hs_core.events.host import JobHeld, JobReady, JobWentOn  # noqa: E402
from hs_core.reports import Tier  # noqa: E402

# In seconds of CPU, so that whatever else runs on the machine does not count; the step spins for as many.
SCRIPT = """
import sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
steps, step_s = int(sys.argv[1]), float(sys.argv[2])
loader = DataLoader(TensorDataset(torch.zeros(steps, 1)), batch_size=1)
w = torch.nn.Parameter(torch.zeros(1)); w.grad = torch.zeros(1)
o = torch.optim.SGD([w], lr=0.1)
def work():
    end = time.thread_time() + step_s
    while time.thread_time() < end:
        pass
def epoch(steps):
    began = None
    for n, _ in enumerate(loader):
        if n == steps // 10:
            began, first = time.process_time(), n
        work() if step_s else None
        o.step()
    return (time.process_time() - began) / (n + 1 - first)
print(epoch(steps), flush=True)
"""


def run(agent: StubAgent, script: str, hooked: bool, *words: str) -> float:
    since = agent.seen()
    job = agent.run(script, *words, env={} if hooked else {"HS_HOOK": "0"})
    if hooked:
        agent.wait(JobReady, since)
        agent.resume()
    output, errors = job.communicate()
    if job.returncode:
        raise SystemExit(errors)
    return float(output)


def overhead(agent: StubAgent, script: str, pairs: int, *words: str) -> tuple[float, float]:
    """Seconds per step (what the script prints) unhooked, and what being hooked adds: medians over pairs. `words`: the script's."""
    plain, added = [], []
    for pair in range(pairs):
        order = (True, False) if pair % 2 else (False, True)
        took = {hooked: run(agent, script, hooked, *words) for hooked in order}
        plain.append(took[False])
        added.append(took[True] - took[False])
    return statistics.median(plain), statistics.median(added)


def latencies(
    agent: StubAgent, script: str, cycles: int, step_s: float, tier: Tier
) -> tuple[list[float], list[float]]:
    since = agent.seen()
    job = agent.run(script, str(10**6), str(step_s))
    agent.wait(JobReady, since)
    agent.resume()
    held, on = [], []
    for turn in range(cycles):
        since = agent.seen()
        time.sleep(0.01 + step_s * (turn % 7) / 7)  # somewhere within a step
        began = time.monotonic()
        agent.suspend(tier)
        agent.wait(JobHeld, since)
        held.append(time.monotonic() - began)
        since = agent.seen()
        began = time.monotonic()
        agent.resume()
        agent.wait(JobWentOn, since)
        on.append(time.monotonic() - began)
    job.kill()
    return held, on


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--cycles", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, StubAgent(Path(folder)) as agent:
        script = Path(folder) / "script.py"
        script.write_text(SCRIPT)
        plain, added = overhead(agent, str(script), args.pairs, str(args.steps), "0.005")
        share = added / plain * 100
        print(
            f"5 ms step: unhooked {plain * 1e3:.4f} ms, hooked adds {added * 1e6:.1f} us = {share:.3f} % (limit 1 %)"
        )
        plain, bare = overhead(agent, str(script), args.pairs, "20000", "0.0")
        print(f"empty step: unhooked {plain * 1e6:.2f} us, hooked adds {bare * 1e6:.2f} us")
        for tier in (Tier.HOLD, Tier.SWAP):
            held, on = latencies(agent, str(script), args.cycles, 0.005, tier)
            print(
                f"{tier.value}: request to held p50 {quantile(held, 0.5):.2f} p90 {quantile(held, 0.9):.2f} max {max(held) * 1e3:.2f} ms "
                f"(limit one step + 20 ms); resume to training p50 {quantile(on, 0.5):.2f} p90 {quantile(on, 0.9):.2f} "
                f"max {max(on) * 1e3:.2f} ms (limit 20 ms)"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
