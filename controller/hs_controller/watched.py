"""The policy in office with a stopwatch: when it last decided, and how long that took."""

import inspect
import sys
import time
from dataclasses import replace

import structlog

from hs_core.policy import Memory, Policy, Snapshot, Verdict
from hs_core.question import Question

log = structlog.get_logger("hs_controller.watched")


class Watched:
    def __init__(self) -> None:
        self.decided_s = 0.0  # wall clock; 0: not yet
        self.took_s = 0.0
        self.text = ""  # what it does, in a sentence
        self._office = 0  # grows with each policy, and where one is given up: it may be at a question still
        self._failed = ""  # how, the last time

    def aside(self, question: Question) -> Verdict:
        """Nobody's decision: somebody asks what would be. On the thread on which decisions are made."""
        kept, office = (self.decided_s, self.took_s), self._office
        try:
            return question.verdict()
        finally:
            if office == self._office:
                self.decided_s, self.took_s = kept

    def give_up(self) -> None:
        """What the policy is at: that it ends some time is no matter."""
        self._office += 1

    def dress(self, policy: Policy) -> Policy:
        """The same policy, watched from here: it takes office."""

        def timed(snapshot: Snapshot, memory: Memory) -> Verdict:
            office, began_s = self._office, time.perf_counter()
            try:
                verdict = policy.decide(snapshot, memory)
            except Exception as error:
                if office == self._office and repr(error) != self._failed:  # it is asked again and again
                    self._failed = repr(error)
                    log.exception("policy-failed", policy=policy.name)
                raise
            if office == self._office:
                self.took_s = time.perf_counter() - began_s
                self.decided_s = snapshot.now_s
            return verdict

        self._office += 1
        self.decided_s = self.took_s = 0.0
        self.text = _text(policy)
        return replace(policy, decide=timed)


def _text(policy: Policy) -> str:
    """The first paragraph of its file."""
    own = f"hs_core.policies.{policy.name.replace('-', '_')}"
    module = sys.modules.get(own) or inspect.getmodule(policy.decide)
    return " ".join((inspect.getdoc(module) or "").split("\n\n")[0].split())
