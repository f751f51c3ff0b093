"""How long what is neither training nor switching takes: messages, commits, heartbeats, noticing that a line is dead."""

from dataclasses import dataclass

from hs_sim.model import Costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    delay_s: float = 0.0005  # of a message, least
    jitter_s: float = 0.0005  # at most so much more
    commit_s: float = 0.001
    decision_s: float = 0.0  # the policy is asked beside the controller, which hears from it so much later; 0: it waits for it
    report_s: float = 1.0  # agents say what changed so often; 0: at once
    progress_s: float = 1.0  # running jobs say how far they are so often; 0: only when they stop
    keepalive_s: float = 20.0  # a line that carries nothing is given up after so long
    redial_s: float = 1.0  # most between two tries to connect
    restart_s: float = 2.0  # of a daemon that was killed
    reboot_s: float = 30.0


IDEAL = Timing(delay_s=0.0, jitter_s=0.0, commit_s=0.0, report_s=0.0, progress_s=0.0)


def timing_for(costs: Costs, quantum_s: float, *, profiles: bool = False) -> Timing:
    """Where switching is free, so are messages: what is left is the policy. `profiles`: it waits for what running jobs say."""
    if costs.suspend_s == costs.resume_s == costs.start_s == 0.0:
        return IDEAL
    return Timing() if profiles else Timing(progress_s=max(1.0, quantum_s / 6))
