"""What servers are told of a job carries a seal that no agent can make.

A controller that knows nothing of a job, since a backup was put back that is older, takes it up from what a server says that it was told of it. Of that
the seal vouches for whose job it is, as which account it runs and what it runs: no server can make up a job, which might then be sent to others.
"""

import hmac
from dataclasses import replace
from hashlib import sha256

from hs_core.model import JobSpec
from hs_core.names import JobId, UserName
from hs_core.wanted import WantedJob


def seal(key: bytes, job: JobId, *, user: UserName, run_as: str, arrival_s: float, spec: JobSpec) -> str:
    """`key`: a secret of the controller's; empty: its agents are trusted with all (simulated ones), and so is any seal."""
    if not key:
        return ""
    said = replace(spec, env=dict(sorted(spec.env.items())))  # on the wire they have no order
    return hmac.new(key, repr(("job", job, user, run_as, arrival_s, said)).encode(), sha256).hexdigest()[:32]


def is_genuine(key: bytes, told: WantedJob) -> bool:
    """A controller with this key told a server of this job. Which servers, which incarnation and in which shape it does not say."""
    own = seal(key, told.job, user=told.user, run_as=told.run_as, arrival_s=told.arrival_s, spec=told.spec)
    return hmac.compare_digest(own, told.seal)
