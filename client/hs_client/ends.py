"""How a job has ended."""

from hs_client import errors
from hs_proto.v1 import controller_pb2 as wire

ENDED = frozenset({"succeeded", "failed", "cancelled"})  # states


def exit_code(job: wire.JobView) -> int:
    """What a shell would say of the job: its own code, or 128 + signal. Only for jobs that have ended."""
    if job.state == "succeeded":
        return errors.OK
    if job.HasField("exit") and job.exit.signal:
        return 128 + job.exit.signal
    if job.HasField("exit") and job.exit.code:
        return job.exit.code
    return errors.FAILED
