"""What the policy is asked, so that it can be asked anywhere: in the event that it is about, or beside the machine while that goes on."""

from dataclasses import dataclass

from hs_core import plan
from hs_core.failures import Failure, failure_of
from hs_core.mechanism.as_declared import as_declared
from hs_core.policy import Memory, Policy, Snapshot, Verdict
from hs_core.trades import check_trades


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """Holds nothing that changes: another thread may answer it."""

    policy: Policy
    snapshot: Snapshot
    memory: Memory

    def verdict(self) -> Verdict:
        """Raises what the policy raises, and BrokenError if it says what must not be."""
        policy = self.policy
        if policy.needs.elastic:
            verdict = policy.decide(self.snapshot, self.memory)
        else:
            verdict = as_declared(policy.decide, self.snapshot, self.memory)
        plan.check(self.snapshot, verdict.plan, policy.needs)
        check_trades(verdict, self.snapshot)
        return verdict

    def answer(self) -> Verdict | Failure:
        """As `verdict`; where it fails, how."""
        try:
            return self.verdict()
        except Exception as error:
            return failure_of(error)
