"""A job of the tests started, suspended, and moved to a new process."""

import subprocess

from job_stub import StubAgent
from warm import Forked

from hs_core.events.host import JobHeld, JobReady, JobRestored, JobWentOn
from hs_core.reports import Tier


def lines(output: str) -> tuple[str, ...]:
    return tuple(sorted(output.splitlines()))


def script(agent: StubAgent, text: str) -> str:
    """Path of it."""
    path = agent.folder / "script.py"
    path.write_text(text)
    return str(path)


def start(
    agent: StubAgent, *argv: str, env: dict[str, str] | None = None, fresh: bool = False
) -> subprocess.Popen[str] | Forked:
    """It has come to its first suspend point, and goes on."""
    since = agent.seen()
    job = agent.run(*argv, env=env, fresh=fresh)
    let_go(agent, since)
    return job


def let_go(agent: StubAgent, since: int = 0) -> JobReady:
    ready = agent.wait(JobReady, since)
    agent.resume()
    return ready


def suspend_and_resume(agent: StubAgent, tier: Tier) -> JobHeld:
    since = agent.seen()
    agent.suspend(tier)
    held = agent.wait(JobHeld, since)
    since = agent.seen()
    agent.resume()
    agent.wait(JobWentOn, since)
    return held


def taken_up(agent: StubAgent, script: str, held: JobHeld) -> str:
    """What a new process says under a new agent, from what the job was saved as to its end."""
    agent.kill()
    agent.start()
    since = agent.seen()
    job = agent.run(script, env={"HS_RESTORE": str(held.generation)})
    let_go(agent, since)
    output, _ = job.communicate()
    return output


def slow_down(agent: StubAgent, pace_s: float) -> None:
    """Steps as long as on a slow device: what is ordered after a step's line is there before the next step is done."""
    agent.kill()
    agent._machine_args = {"pace_s": pace_s}
    agent.start()


def move(
    agent: StubAgent,
    argv: tuple[str, ...],
    at_step: int,
    *,
    looks_first: bool = False,
    times: int = 1,
    said: str = "",
) -> str:
    """Runs up to a step, takes the job to disk, restores it in a new process under a new agent. Its whole output.

    `looks_first`: it is ready where it fetches other batches before it trains. `times`: from where it is restored it is taken away again, before it has trained. `said`: what its log has of it when it leaves.
    """
    slow_down(agent, 0.03)
    job = agent.run(*argv)
    let_go(agent)
    output = ""
    assert job.stdout is not None
    for line in job.stdout:
        output += line
        if line.startswith(f"0:{at_step} "):
            break
    since = agent.seen()
    agent.suspend(Tier.CHECKPOINT)
    held = agent.wait(JobHeld, since)
    assert held.tier is Tier.CHECKPOINT
    for _ in range(times - 1):
        output += _left(job)
        job, since = _taken_up(agent, argv, held)
        assert agent.wait(JobReady, since).step == held.step
        agent.suspend(Tier.CHECKPOINT)
        again = agent.wait(JobHeld, since)
        assert (again.tier, again.step) == (Tier.CHECKPOINT, held.step)
        held = again
    rest = _left(job, said)
    job, since = _taken_up(agent, argv, held)
    ready = let_go(agent, since)
    assert ready.step == (0 if looks_first else held.step)
    restored = agent.wait(JobRestored, since)
    assert (restored.step, restored.generation, restored.note) == (held.step, held.generation, "")
    end, errors = job.communicate()
    assert (job.returncode, errors) == (0, "")
    return output + rest + end


def _left(job: subprocess.Popen[str] | Forked, said: str = "") -> str:
    rest, errors = job.communicate()
    assert (job.returncode, errors) == (75, said)
    return rest


def _taken_up(
    agent: StubAgent, argv: tuple[str, ...], held: JobHeld
) -> tuple[subprocess.Popen[str] | Forked, int]:
    agent.kill()
    agent.start()
    since = agent.seen()
    return agent.run(*argv, env={"HS_RESTORE": str(held.generation)}), since
