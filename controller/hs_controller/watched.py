"""The policy with a stopwatch: when it last decided, and how long that took."""

import inspect
import sys
import time
from dataclasses import replace

from hs_core.policy import Memory, Policy, Snapshot, Verdict


class Watched:
    def __init__(self, policy: Policy) -> None:
        self._decide = policy.decide
        self.policy = replace(policy, decide=self._timed)
        self.decided_s = 0.0  # wall clock; 0: not yet
        self.took_s = 0.0
        module = sys.modules.get(policy.decide.__module__)
        self.text = " ".join((inspect.getdoc(module) or "").split("\n\n")[0].split())

    def _timed(self, snapshot: Snapshot, memory: Memory) -> Verdict:
        began_s = time.perf_counter()
        verdict = self._decide(snapshot, memory)
        self.took_s = time.perf_counter() - began_s
        self.decided_s = snapshot.now_s
        return verdict
