"""A job that trains as several copies (`Job.portions`): which of them count, what they have done, what makes up their average."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from math import fsum

from hs_core.model import Copied, Job, Stored
from hs_core.names import HostName
from hs_core.reports import CANNOT_START, CROWDED_OUT, FINAL, LOST, TOLD_TO_END, JobReport, Phase

_LEFT = frozenset({Phase.CHECKPOINTED, Phase.WAITING})
_COMING = frozenset({Phase.STARTING, Phase.SUSPENDING, Phase.FROZEN})
_STANDS = frozenset({Phase.HELD, Phase.SWAPPED, Phase.FROZEN, Phase.RUNNING, Phase.CHECKPOINTED})


def going(row: Job) -> tuple[HostName, ...]:
    """Servers whose copy has not ended."""
    parts = row.reports
    return tuple(name for name in row.hosts if (part := parts.get(name)) is None or part.exit is None)


def counted(row: Job, connected: Collection[HostName]) -> tuple[HostName, ...]:
    """Those of them that are here. Where none is, all that may go on: nobody knows what they do."""
    on = going(row)
    return tuple(name for name in on if name in connected) or on


def through(row: Job) -> bool:
    """A copy ended well: its script thinks that nothing is left, so the others end as well."""
    return any(part.exit is not None and part.exit.ok for part in row.reports.values())


def done(row: Job, connected: Collection[HostName]) -> bool:
    """All that count have done their portions."""
    at = {name: row.base_step + steps for name, steps in zip(row.hosts, row.portions, strict=True)}
    parts = [(name, row.reports.get(name)) for name in counted(row, connected)]
    return bool(parts) and all(
        part is not None and part.step >= at[name] and part.phase in _STANDS for name, part in parts
    )


def comes_up(row: Job, part: JobReport | None) -> bool:
    """It has a process that has not got to a first step, and no turn, without which it never does: nothing is lost with that."""
    if part is None or part.phase not in _COMING or part.in_turn:
        return False
    return not part.can_checkpoint and part.step <= row.base_step


def fails_at_start(row: Job, part: JobReport) -> bool:
    """It ended before its first step, through no fault of its server's, nor because it was told to."""
    ended = part.exit
    if ended is None or ended.ok or part.step > row.base_step:
        return False
    others = ended.why.startswith((LOST, CROWDED_OUT)) or ended.why == TOLD_TO_END or ended.why in FINAL
    return not others and CANNOT_START not in ended.why


def fail_at_start(row: Job) -> bool:
    """All have ended, none has done a step, and some fail at their start: alone it may do well."""
    parts = row.reports.values()
    if not row.portions or any(part.step > row.base_step for part in parts):
        return False
    return any(fails_at_start(row, part) for part in parts)


def arrived(row: Job, stored: Stored) -> bool:
    """Every copy that has not ended stands where they begin, or beyond, and has that state for its own."""
    parts = [row.reports.get(name) for name in going(row)]
    return bool(parts) and all(
        p is not None and p.phase in _STANDS and p.step >= stored.step and p.checkpoint_generation >= 0
        for p in parts
    )


def made(row: Job, stored: Stored) -> bool:
    """They became one again, whose servers have that for their own, though it has ended since: it was let go. What it was made of is there no more."""
    parts = [row.reports.get(name) for name in row.hosts]
    return (
        not row.portions
        and bool(parts)
        and all(
            p is not None
            and p.checkpoint_generation >= 0
            and p.checkpoint_step >= stored.step
            and (p.step > stored.step or p.resumes > 0)
            for p in parts
        )
    )


def left(
    row: Job, connected: Collection[HostName], awaited: Collection[HostName], *, late: bool
) -> Stored | None:
    """What the copies come to once all that count have left through a checkpoint; `late`: those that have not are not waited for.

    `awaited`: servers that are not here and will soon be, perhaps. A copy that never came up has done nothing; of one that died, what it
    wrote before counts, where that can be had.
    """
    on = going(row)
    parts = [row.reports.get(name) for name in on if name in connected]
    waits = any(name in awaited for name in on) or not all(
        part is None or part.phase in _LEFT or comes_up(row, part) for part in parts
    )
    if not parts or (waits and not late):
        return None
    return kept(row, lambda name: name in connected) or row.stored


def kept(row: Job, usable: Callable[[HostName], bool]) -> Stored | None:
    """The average of what the copies have written; where none did anything, what they were to begin with."""
    found = [
        (name, Copied(copy=rank, generation=part.checkpoint_generation, steps=_own(row, part)))
        for rank, name in enumerate(row.hosts)
        if (part := row.reports.get(name)) is not None and part.checkpoint_generation >= 0 and usable(name)
        if part.checkpoint_step >= row.base_step
    ]
    # Who has merely fetched the parts of an average has not made it yet: that is no checkpoint to be lent.
    idle = found[:1] if row.stored is None or not row.stored.copies else []
    return _stored([pair for pair in found if pair[1].steps] or idle, row.base_step, row.epoch)


def lost_gpu_s(row: Job, stored: Stored) -> float:
    """GPU-seconds of steps that are not in what they come to: of copies that died, or were not waited for. The steps of one are taken as equally long."""
    counts = {row.hosts[part.copy]: part.steps for part in stored.copies} if stored.epoch == row.epoch else {}
    own = {name: max(0, part.step - row.base_step) for name, part in row.reports.items()}
    return fsum(
        max(0.0, part.gpu_s - part.lost_gpu_s) * (1.0 - min(1.0, counts.get(name, 0) / own[name]))
        for name, part in row.reports.items()
        if own[name] > 0
    )


def among(stored: Stored, hosts: Collection[HostName]) -> Stored | None:
    """Without the parts that are not on these."""
    if all(name in hosts for name in stored.hosts):
        return stored
    base_step = stored.step - sum(part.steps for part in stored.copies)
    pairs = [pair for pair in zip(stored.hosts, stored.copies, strict=False) if pair[0] in hosts]
    rest = _stored(pairs, base_step, stored.epoch)
    return None if rest is None else replace(rest, generation=stored.generation)


def _own(row: Job, part: JobReport) -> int:
    return max(0, part.checkpoint_step - row.base_step)


def _stored(pairs: Sequence[tuple[HostName, Copied]], base_step: int, epoch: int) -> Stored | None:
    if not pairs:
        return None
    copies = tuple(part for _, part in pairs)
    return Stored(
        hosts=tuple(name for name, _ in pairs),
        epoch=epoch,
        generation=max(part.generation for part in copies) + 1,
        step=base_step + sum(part.steps for part in copies),
        copies=copies,
    )


def divided(
    steps: int, home: tuple[HostName, ...], weights: Sequence[int]
) -> tuple[tuple[HostName, ...], tuple[int, ...]]:
    """Servers and what each is to do of `steps`, in proportion (largest remainders). Who would have nothing to do is left out; one alone is no copy."""
    if len(weights) < 2:
        return home, ()
    whole = sum(weights)
    parts = [steps * weight // whole for weight in weights]
    rests = sorted(range(len(parts)), key=lambda at: (-(steps * weights[at] % whole), at))
    for at in rests[: steps - sum(parts)]:
        parts[at] += 1
    pairs = [(name, part) for name, part in zip(home, parts, strict=True) if part > 0]
    if len(pairs) < 2:
        return (pairs[0][0] if pairs else home[0],), ()
    return tuple(name for name, _ in pairs), tuple(part for _, part in pairs)
