"""What a job goes on from: the checkpoint that it is known to have, as far as servers that can be reached have it, and what its servers say of that."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from hs_core.cluster import copies, reports
from hs_core.cluster.book import Book
from hs_core.model import Job, Stored, spans
from hs_core.names import HostName, JobId
from hs_core.reports import JobReport, Phase

_READY = frozenset({Phase.HELD, Phase.SWAPPED, Phase.FROZEN, Phase.RUNNING, Phase.CHECKPOINTED})


def needing(book: Book, host: HostName) -> tuple[JobId, ...]:
    """Jobs that live elsewhere, or nowhere, and whose checkpoint, or a part of it, can be had from there only."""
    others = book.hosts.keys() - {host}
    lent = [book.live[job] for job in sorted(book.lent.get(host, ()))]
    return tuple(row.id for row in lent if host not in row.hosts and not can_be_had(row, others))


def is_fetching(row: Job) -> bool:
    """The checkpoint that it goes on from lies elsewhere, and a server of its home has yet to have it; one that cannot have it is held up."""
    return any(
        part is None or (_is_without(part, row.stored) and not reports.is_held_up(part))
        for part in _parts_that_fetch(row)
    )


def has_come_along(row: Job) -> bool:
    """What lay elsewhere when it was given its home is there by now, and nothing but its turn is missing."""
    parts = _parts_that_fetch(row)
    return bool(parts) and all(part is not None and not _is_without(part, row.stored) for part in parts)


def _parts_that_fetch(row: Job) -> tuple[JobReport | None, ...]:
    """What servers say of one whose checkpoint lay elsewhere: what each has of it can be told from that."""
    stored = row.stored
    if stored is None or stored.in_folder or row.portions or stored.is_at(row.hosts):
        return ()
    return tuple(map(row.reports.get, row.hosts))


def _is_without(part: JobReport, stored: Stored | None) -> bool:
    return stored is not None and part.phase is Phase.WAITING and part.checkpoint_step < stored.step


def found_nothing(row: Job) -> bool:
    """Of what was to be looked for: it began afresh, whatever it has written since."""
    report = row.report
    return report is not None and (
        report.began_step == 0 or max(report.began_step, report.checkpoint_generation) < 0
    )


def taken_up(row: Job) -> bool:
    """What it goes on from is needed no more: every part has a process that has it; of copies, which go on without one another, one has, or had and has left it in a checkpoint."""
    parts = [row.reports.get(name) for name in row.hosts]
    if row.portions:
        return any(
            part is not None
            and reports.has_process(part)
            and (part.exit is None or part.checkpoint_generation >= 0)
            for part in parts
        )
    return bool(parts) and not reports.broken(row) and all(map(reports.has_process, parts))


def can_be_had(row: Job, hosts: Collection[HostName]) -> bool:
    """All that it is to go on from, where these servers are all that is left."""
    stored = row.stored
    if stored is None or row.cancelled_by or taken_up(row):
        return True
    return _is_whole(within(row, hosts), stored)


def _is_whole(rest: Stored | None, stored: Stored) -> bool:
    return rest is not None and (rest.step, len(rest.copies)) == (stored.step, len(stored.copies))


def left(row: Job) -> Stored | None:
    """Every part has written the same checkpoint and let its process go."""
    parts = [row.reports.get(host) for host in row.hosts]
    first = parts[0]
    if first is None or first.checkpoint_generation < 0:
        return None
    for part in parts:
        if part is None or part.phase is not Phase.CHECKPOINTED:
            return None
        if part.checkpoint_generation != first.checkpoint_generation:
            return None
    return _kept(row, first.checkpoint_generation)


def left_apart(row: Job) -> bool:
    """Every part has let its process go; one did not hear of the last checkpoint, from which all could go on."""
    parts = [row.reports.get(host) for host in row.hosts]
    return all(p is not None and p.phase is Phase.CHECKPOINTED for p in parts) and left(row) is None


def kept(row: Job) -> Stored | None:
    """The newest checkpoint that the present incarnation's servers say they have."""
    assert not row.portions, f"job {row.id} has copies: their checkpoints are parts of one"
    report = row.report
    if report is None or report.checkpoint_generation < 0:
        return None
    return _kept(row, report.checkpoint_generation)


def _kept(row: Job, generation: int) -> Stored:
    step = max(0, min(row.reports[host].checkpoint_step for host in row.hosts))
    return Stored(
        hosts=row.hosts, epoch=row.epoch, generation=generation, step=step, also=_also(row, generation)
    )


def _also(row: Job, generation: int) -> tuple[HostName, ...]:
    """As `Stored.also`: where its parts changed places, who wrote one has it beside the one that it took up."""
    origin = row.stored or row.origin
    if origin is None or origin.copies or origin.surpassed or origin.generation != generation:
        return ()
    if spans(row.spec):  # whose parts are alike anyway
        return ()
    if origin.is_at(row.hosts):
        return origin.also
    wrote = tuple(name if name in row.hosts else HostName("") for name in origin.hosts)
    return wrote if any(wrote) and wrote != row.hosts else ()


def at_hand(stored: Stored, hosts: Collection[HostName]) -> Stored:
    """The same, each part from one of these servers where one of them has it."""
    if not stored.also or all(name in hosts for name in stored.hosts):
        return stored
    pairs = zip(stored.hosts, stored.also, strict=True)
    there = tuple(also if name not in hosts and also in hosts else name for name, also in pairs)
    return stored if there == stored.hosts else replace(stored, hosts=there, also=())


def taken(row: Job) -> tuple[int, ...]:
    """By node rank of its home, which of the servers that have its stored checkpoint it goes on from.

    Ranks of an elastic job are alike, so where the number of servers is another each takes up what lies there, or what any of the old ones wrote.
    """
    assert row.stored is not None
    there = row.stored.hosts
    if not spans(row.spec):
        return tuple(range(len(row.hosts)))
    if row.stored.in_folder:
        return tuple(rank % row.stored.nodes for rank in range(len(row.hosts)))
    return tuple(
        there.index(name) if name in there else rank % len(there) for rank, name in enumerate(row.hosts)
    )


def among(row: Job, stored: Stored, hosts: Collection[HostName]) -> Stored | None:
    """What can be gone on from where these servers are all that is left: of an elastic job, whose ranks are alike, any part of it; of copies those; else all or nothing."""
    if stored.in_folder:
        return stored
    if stored.copies or not spans(row.spec):
        return copies.among(at_hand(stored, hosts), hosts)
    left = [at for at, name in enumerate(stored.hosts) if name in hosts]
    if not left or len(left) == len(stored.hosts):
        return stored if left else None
    there = tuple(stored.hosts[at] for at in left)
    return replace(stored, hosts=there, ranks=tuple(map(stored.rank, left)), of=stored.nodes)


def back(row: Job, away: Sequence[HostName], beside: Collection[HostName] = ()) -> str:
    """For people: which of those that are away have to be back until its stored checkpoint can be had. `beside`: servers that are not away."""
    assert row.stored is not None
    enough = [name for name in away if _is_whole(among(row, row.stored, {*beside, name}), row.stored)]
    if enough:
        return f"{' or '.join(enough)} is back"
    return f"{', '.join(away)} {'are' if len(away) > 1 else 'is'} back"


def within(row: Job, hosts: Collection[HostName]) -> Stored | None:
    """What its stored checkpoint comes to where these servers are all that is left: a part may also be where it has been fetched to by now."""
    stored = row.stored
    if stored is not None and (gone := _gone_from(row, stored)):
        hosts = set(hosts) - gone
    found = among(row, stored, hosts) if stored is not None else None
    if stored is None or found is not None or stored.copies or row.portions or not row.hosts:
        return found
    come = {name for name in row.hosts if name in hosts and _has(row.reports.get(name), stored)}
    if spans(row.spec):
        return among(row, replace(stored, hosts=row.hosts, ranks=(), of=0), come)
    pairs = zip(stored.hosts, row.hosts, strict=True)
    at = tuple(was if was in hosts else now for was, now in pairs if was in hosts or now in come)
    return replace(stored, hosts=at, also=()) if len(at) == len(stored.hosts) else None


def _gone_from(row: Job, stored: Stored) -> set[HostName]:
    """Servers whose part of it took up what it had written itself, and has let go of it. What is another's is kept until nobody needs it."""
    if stored.copies or row.portions:
        return set()
    same = (home for was, home in zip(stored.hosts, row.hosts, strict=False) if was == home)
    return {name for name in same if (part := row.reports.get(name)) and _has_let_go(part, stored)}


def sought(row: Job, stored: Stored | None) -> Stored | None:
    """A checkpoint whose servers are lost, as one that is looked for in the folder that its user named: on a shared file system others see it. None: it named none.

    What copies wrote counts as parts of their average, and is fetched from where it is known to be.
    """
    if stored is None or not row.spec.checkpoint_dir or row.portions or stored.copies:
        return None
    return replace(stored, hosts=(), ranks=(), also=(), of=stored.nodes, surpassed=False)


def unknown(row: Job) -> Stored | None:
    """Of one that nobody heard to have written any, whatever is in the folder that its user named. None: it named none."""
    if row.stored is not None and row.stored.copies:
        return None
    return sought(row, Stored(hosts=row.hosts, epoch=row.epoch, generation=0, step=0))


def doubted(row: Job, stored: Stored) -> Stored:
    """A checkpoint that is known of, where its last incarnation may have got further than it was heard to.

    In a folder that its user named that one may have written others, and let go of this one: two are kept there, whoever wrote them.
    """
    if not row.spec.checkpoint_dir or row.portions or stored.copies or stored.in_folder:
        return stored
    return replace(stored, surpassed=True)


def still_there(row: Job, hosts: Collection[HostName]) -> Stored | None:
    """What it went on from, where these servers are all that is left: who wrote a part of that has it still beside the one that it took up."""
    left = [name for name in row.hosts if name in hosts]
    parts = [row.reports.get(name) for name in left]
    if (
        row.origin is None
        or row.portions
        or not all(part is not None and _has(part, row.origin) for part in parts)
    ):
        return None
    return within(replace(row, stored=row.origin), left)


def _has(part: JobReport | None, stored: Stored) -> bool:
    """This part of it has fetched what it is to go on from, or has it. Two generations are kept, so it may have written another since."""
    return part is not None and part.checkpoint_generation in (stored.generation, stored.generation + 1)


def went_on_from(row: Job, stored: Stored) -> bool:
    """The present incarnation stands where that checkpoint ended, or beyond; or every part of it has written another since, and one has let go of that."""
    parts = [part for host in row.hosts if (part := row.reports.get(host)) is not None]
    if len(parts) < len(row.hosts):
        return False
    if all(part.phase in _READY and part.step >= stored.step for part in parts):
        return True
    written = all(part.checkpoint_generation > stored.generation for part in parts)
    return written and any(_has_let_go(part, stored) for part in parts)


def looks_at_home(row: Job, home: tuple[HostName, ...]) -> bool:
    """Its server has forgotten it, and may have a newer checkpoint than is known, which no other would find: it is to start there once more."""
    stored = row.stored
    return bool(
        stored is not None and stored.surpassed and stored.is_at(home) and not row.spec.checkpoint_dir
    )


def _has_let_go(part: JobReport, stored: Stored) -> bool:
    """Of what it took up where that lay: two generations are kept. Of what is looked for the one that is found may be newer than what was known."""
    looked = stored.in_folder or stored.surpassed
    return not looked and part.checkpoint_generation > stored.generation + 1


def lost_work_gpu_s(row: Job, kept_step: int) -> float:
    """GPU-seconds since the checkpoint that is left of an incarnation that died, or of what it was to go on from; steps taken as equally long.

    The host cannot say it any more.
    """
    report = row.report
    had = row.stored.step if row.stored is not None else 0
    step = max(report.step if report is not None else 0, had if kept_step < had else 0)
    useful = max(0.0, row.gpu_s - row.past_lost_gpu_s - (report.lost_gpu_s if report is not None else 0.0))
    if step <= 0:
        return min(report.gpu_s, useful) if report is not None else 0.0
    return useful * (1.0 - min(1.0, max(0, kept_step) / step))
