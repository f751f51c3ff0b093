"""Who leaves its servers for others (Gandiva_fair, 3.3, 3.5): drains, better pools, unequal loads, idle GPUs beside gangs and of other models, homes changed together.

Nothing moves to and fro: a job stays for its cool-down; a move to another pool makes its user's sum of effective rates grow (`mechanism.better_pools`), one within
a pool makes its loads more equal (`mechanism.evening`), and one to idle GPUs gives the job more of its own (`mechanism.spare`). In a world that stands still all come to an end.
"""

from hs_core.mechanism import exchange
from hs_core.mechanism.better_pools import change_pools
from hs_core.mechanism.evening import even_out
from hs_core.mechanism.loads import Board
from hs_core.mechanism.mover import Limits, Mover
from hs_core.mechanism.place import pool_for
from hs_core.mechanism.placing import Home
from hs_core.mechanism.rates import Speeds
from hs_core.mechanism.spare import Spare
from hs_core.model import Migrate, MoveReason
from hs_core.policy import JobFacts


def drain(board: Board, speeds: Speeds, limits: Limits) -> Mover:
    """Only those that cannot wait for the next edge."""
    mover = Mover(board, speeds, limits)
    _leave(mover)
    return mover


def settle_all(board: Board, speeds: Speeds, limits: Limits, *, held: bool = False) -> Mover:
    """All moves of one decision. `held`: as `Mover` has it."""
    mover = Mover(board, speeds, limits, held=held)
    _leave(mover)
    mover.held = held and not mover.done and not exchange.wastes(mover)
    change_pools(mover)
    if not mover.held:
        for model in board.world.models:
            if board.crowded(model):
                even_out(mover, board.pool(model))
        Spare(mover).fill()
    mover.held = exchange.settle_together(mover) or (mover.held and not mover.done)
    return mover


def _leave(mover: Mover) -> None:
    """Servers that should be empty, or can no longer run the job: first, and outside the thresholds."""
    for job in mover.world.leavers:
        leaves = next((name for name in job.hosts if not mover.world.hosts[name].accepts), None)
        if leaves is None and job.started and not mover.moves_started:
            continue
        to = _elsewhere(mover, job)
        if to and to != job.hosts:
            if leaves is not None:
                text = f"{leaves} is drained; it goes to {', '.join(to)}"
                mover.move(job, to, MoveReason.DRAIN, text)
            else:
                text = f"its server has too few GPUs in health; it goes to {', '.join(to)}"
                mover.move(job, to, MoveReason.BALANCE, text)


def _elsewhere(mover: Mover, job: JobFacts) -> Home:
    world, board = mover.world, mover.board
    models = world.usable(job)
    own = world.model(job.hosts)
    if job.started and job.migrate is Migrate.SAME_TYPE:
        models = (own,) if own in models and not world.mixed(job) else ()
    if not models:
        return ()
    model = own if own in models else pool_for(board, mover.speeds, job, models)
    comes = model != own or job.id in world.unable
    return board.find(job, model, comes=comes)
