"""A job's way to other servers."""

from dataclasses import dataclass
from enum import StrEnum

from hs_core.forms import Form
from hs_core.names import HostName


class MoveReason(StrEnum):
    """Why a job leaves its servers for others."""

    BALANCE = "balance"  # ticket load between servers of one pool
    PACKING = "packing"  # GPUs would idle beside a gang
    POOL = "pool"  # it, or its user's other jobs, run better in another pool (also after a trade)
    DRAIN = "drain"  # an administrator wants the server empty
    ROUND = "round"  # the policy hands the GPUs out anew each round
    TROUBLE = "trouble"  # its server cannot start it again
    PROFILE = "profile"  # its class is to be measured on another GPU model
    SHAPE = "shape"  # it runs better, or lets others, on another number of GPUs or in another strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A migration under way, before its point of no return: the job still belongs to where it is."""

    to: tuple[HostName, ...]  # by node rank
    reason: MoveReason
    since_s: float
    text: str = ""  # for people: why
    shape: Form | None = None  # there; None: as declared
    portions: tuple[
        int, ...
    ] = ()  # it is to train there as copies: weights by which the mini-batches that are left are divided among them
