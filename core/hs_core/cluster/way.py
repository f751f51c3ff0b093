"""What a move makes of a job: it goes elsewhere, or on in another shape, or as copies; and that in words."""

from hs_core.forms import Shape
from hs_core.model import Job, Move


def reshapes(job: Job, move: Move) -> bool:
    """It is restarted in another shape, where it is or over another number of servers: more than a move."""
    if move.portions or job.portions:
        return False
    return move.to == job.hosts or len(move.to) != len(job.hosts)


def shapes(job: Job, move: Move) -> bool:
    """It is to have a shape that is neither the one that it has nor the one that its user declared."""
    elastic = job.spec.elastic
    if elastic is None or not isinstance(move.shape, Shape):
        return False
    return move.shape not in (job.shape, elastic.on(job.spec.gang, job.spec.nodes))


def way(job: Job, move: Move) -> str:
    """For its story: from where to where."""
    if (copies := _as_copies(job, move)) is not None:
        return copies
    to = ", ".join(move.to)
    if reshapes(job, move):
        return f"be restarted with {move.shape} on {to}"
    return f"move from {', '.join(job.hosts)} to {to}"


def way_from_here(job: Job, move: Move) -> str:
    """For who has been told where it is."""
    if (copies := _as_copies(job, move)) is not None:
        return copies
    to = ", ".join(move.to)
    if not reshapes(job, move):
        return f"move to {to}"
    return f"be restarted with {move.shape}" + (f" on {to}" if move.to != job.hosts else "")


def _as_copies(job: Job, move: Move) -> str | None:
    """None: it is one, and stays so."""
    to = ", ".join(move.to)
    if move.portions:
        return f"train as {len(move.portions)} copies on {to}"
    return f"become one again on {to}" if job.portions else None
