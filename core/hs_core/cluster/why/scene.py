"""What the reason is found from: a job, and all that may stand in its way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hs_core.cluster.fits import Misfit
from hs_core.model import After, Host, Job
from hs_core.names import GpuId, HostName, JobId

AWAY = "away"  # of `Scene.closed`: the server is not connected


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What the answer is made of."""

    job: Job
    hosts: tuple[Host, ...]  # its home
    away: tuple[HostName, ...]  # those of its home that are not connected …
    without: tuple[HostName, ...]  # … and those where a copy is, while others are connected
    open_after: After | None  # a condition on another job that is still open
    array_full: bool
    array_first: Sequence[JobId]  # for whom what is left of its room is kept: they wait as well
    misfit: Misfit | None  # no known server could hold it
    healthy_misfit: Misfit | None  # no server could with the GPUs that are healthy
    closed: Mapping[
        HostName, str
    ]  # all that could hold it (but its home, which lacks GPUs), and why they take nobody, where not enough do
    policy: str  # that is in office
    unable: Mapping[
        HostName, str
    ]  # servers that cannot start jobs now, and why: of its home, or, without one, of all
    failed_at: Mapping[
        HostName, str
    ]  # where it failed at its start since it trained last, and how: it was sent there
    source_away: tuple[HostName, ...]  # not connected, and it needs the checkpoint that they have
    unsaved: str  # why it could not leave when it was last to move; empty: it could, or was not asked
    evicted: bool  # its server was to be empty by now …
    saves_within_s: (
        float  # … and it writes a checkpoint before it is ended, which may take so long; 0: it does not
    )
    policy_says: str
    until_edge: str  # and, within a round, what keeps it from GPUs until its end; empty: nothing
    round_in_s: float  # until the next one, as nothing but the policy keeps it from a turn; -1: something else does, or there are none
    copies_fail: str  # on which servers copies of it failed as they were started, and how: none is made there now; empty: nowhere
    policy_chose: str  # why it runs as it does: "as tp=2: …"
    trial: str  # how far its profiling run is; empty: there is none
    idle: tuple[GpuId, ...]  # of its server, where its process cannot go to others than its own
    unsliced: Mapping[
        JobId, int
    ]  # others that run on its server and cannot be suspended, and GPUs that they have
    central: bool  # the controller chooses who runs on its host
    in_turn: bool  # and has chosen it for the quantum that is now …
    in_its_way: Sequence[JobId]  # but these, which are of no turn now, have not left its GPUs …
    turn_in_s: float  # … or for the next one, which begins then; -1: it has not
    turn_after_s: float  # it is a gang and has one only then, if nothing changes; -1: that is not known
    share_gpus: float  # what its tickets come to on its host
    user_gpus: float  # what its user is entitled to of the GPUs of its host's model; -1: nobody says
    part: float  # of all quanta it runs in so many there, by these and by who fits beside whom
    waited_s: float  # since it last changed its state, under this policy
    quantum_s: float
    looks_on: bool  # the controller cannot write its journal: what is known is what was written last
