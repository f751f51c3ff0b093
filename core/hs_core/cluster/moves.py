"""Moves in two phases: until every part has left its checkpoint the job belongs where it is; after that, where it goes."""

from collections.abc import Iterator
from dataclasses import replace

from hs_core.cluster import checkpoints, copies, reports, states
from hs_core.cluster.anew import Anew
from hs_core.cluster.contents import Contents
from hs_core.cluster.given_up import as_lost, as_rehomed
from hs_core.cluster.starts import Starts
from hs_core.cluster.states import Happening
from hs_core.cluster.way import reshapes, shapes, way
from hs_core.forms import Form
from hs_core.model import Job, Move, MoveReason, Stored, gpus_as
from hs_core.names import HostName
from hs_core.reports import Phase

UNABLE = "it cannot write a checkpoint"


class Moves:
    def __init__(self, contents: Contents, starts: Starts, anew: Anew) -> None:
        self._contents = contents
        self._asking = contents.asking
        self._book = contents.book
        self._connected = contents.connected
        self._fact = contents.fact
        self._grounded = contents.grounded
        self._put = contents.put
        self._settings = contents.settings
        self._unable = contents.unable
        self._starts = starts
        self._anew = anew

    def begin(
        self,
        row: Job,
        to: tuple[HostName, ...],
        shape: Form | None,
        why: tuple[MoveReason, str],
        now_s: float,
        *,
        portions: tuple[int, ...] = (),
        free: bool = False,
    ) -> None:
        """Also where only its shape is another. What an administrator wants empty leaves whatever the budget says; `free`: nor is this a matter of the budget."""
        reason, text = why
        if reason is not MoveReason.DRAIN and not free:
            if self._contents.budget.left(now_s) < 1:
                return
            self._contents.budget.take(now_s)
            self._contents.event.meta = True
        self._grounded.begins(row.id, row.report.checkpoint_fails if row.report else 0)
        move = Move(to=to, reason=reason, since_s=now_s, text=text, shape=shape, portions=portions)
        what = way(row, move)
        row = replace(row, move=move)
        self._put(row, now_s)
        because = f": {text}" if text else f" ({reason})"
        self._fact(
            now_s,
            "moving",
            f"it is to {what}{because}",
            job=row.id,
            data={"from": ",".join(row.hosts), "to": ",".join(to), "reason": str(reason)},
        )

    def tend_copies(self, now_s: float) -> None:
        """Copies become one where they have done their portions, or where the policy has no use for them."""
        if self._book.forked and self._contents.sight.wait_for(self._awaited(now_s)):
            self._asking.stale = True
        for job in sorted(self._book.forked):
            row = self._book.live[job]
            if row.move is not None or row.paused or row.cancelled_by or copies.through(row):
                continue
            awaited = self._awaited(now_s)
            if copies.done(row, self._connected) and awaited.isdisjoint(copies.going(row)):
                text = "its copies have done their portions"
            elif not self._contents.policy.needs.copies:
                text = f"{self._contents.policy.name} has no copies"
            else:
                continue
            here = copies.counted(row, self._connected)
            parts = [row.reports.get(name) for name in here]
            up = [part for part in parts if not copies.comes_up(row, part)]
            can = all(map(reports.can_leave, up)) and (up == parts or any(map(reports.has_process, up)))
            room = [name for name in here if self._anew.takes(row, self._book.hosts[name])]
            if room and can and all(name in self._connected for name in here):
                most = max(room, key=lambda name: row.portions[row.hosts.index(name)])
                self.begin(row, (most,), row.shape, (MoveReason.ROUND, text), now_s, free=True)

    def rehome(
        self,
        row: Job,
        to: tuple[HostName, ...],
        shape: Form | None,
        now_s: float,
        weights: tuple[int, ...] = (),
    ) -> None:
        """It has no process, so it only gets another home; its old one is told by the epoch, and not started anew before that knows."""
        row = self._with_what_came(row)
        base_step = row.stored.step if row.stored is not None else 0
        to, portions = copies.divided(max(0, row.spec.steps - base_step), to, weights)
        text = f"it lives on {', '.join(to)} now, not on {', '.join(row.hosts)}: it had not started"
        if to == row.hosts and shape != row.shape:
            text = f"it is to run on {', '.join(to)} with {shape}: it had not started"
        elif set(to) == set(row.hosts) and row.portions:
            text = f"it still lives on {', '.join(to)}, in a new round: it had not started"
        state = states.after(row, Happening.MOVED)
        models = self._contents.models_of(to)
        told = {host for host in row.hosts if self._may_know(row, host)}
        before = tuple(sorted({*row.unconfirmed, *told} - {*to}))
        new = replace(
            self._anew.next_epoch(row),
            state=state,
            hosts=to,
            gpu_models=models,
            shape=shape,
            settled_s=now_s,
            carry=row.carry,
            unconfirmed=before,
            portions=portions,
            base_step=base_step if portions else 0,
            given_up=as_rehomed(row),
        )
        if new.stored is not None and told and not portions:
            new = replace(new, stored=checkpoints.doubted(row, new.stored))
        self._put(new, now_s)
        self._fact(now_s, "placed", text, job=row.id, host=to[0], data={"epoch": new.epoch})

    def _with_what_came(self, row: Job) -> Job:
        """Where who has its checkpoint is away, and the home that it leaves has fetched that by now: from there it can be had."""
        stored = row.stored
        if stored is None or stored.in_folder:
            return row
        come = checkpoints.within(row, self._connected)
        return row if come is None or come.step < stored.step else replace(row, stored=come)

    def _may_know(self, row: Job, host: HostName) -> bool:
        """Whether the host was told of this incarnation; where it is to be told everything again, it may have been."""
        sent = self._contents.sent.get(host)
        return sent is None or any((job.job, job.epoch) == (row.id, row.epoch) for job in sent.jobs)

    def _lets_go(self, row: Job, host: HostName) -> bool:
        """The host has heard that this incarnation is to leave."""
        sent = self._contents.sent.get(host)
        if sent is None or self._contents.newest_heard.get(host, (0, 0)) < (self._contents.term, sent.seq):
            return False
        return any((job.job, job.epoch, job.leave) == (row.id, row.epoch, True) for job in sent.jobs)

    def tend(self, now_s: float) -> None:
        for job in self._grounded.over(now_s):
            self._book.changed.add(job)
            self._asking.stale = True
        for job, _ in self._contents.unforked.over(now_s):
            self._book.changed.add(job)
            self._asking.stale = True
        for host in self._unable.of_all.over(now_s):
            self._book.touch(host)
            self._asking.stale = True
        for job in self._unable.for_memory.over(now_s):
            self._book.changed.add(job)
            self._asking.stale = True
        for user, _ in self._unable.of_one.over(now_s):
            self._starts.look_at_jobs_of(user)
            self._asking.stale = True
        for job in sorted(self._book.moving):
            row = self._book.live[job]
            why = self._obstacle(row, now_s)
            if (not why or why == UNABLE) and (failed := self._not_left(row, now_s)):
                self._grounded.stays(row.id, now_s, self._settings.quantum_s, failed)
                why = failed
            if why:
                self._abandon(row, why, now_s)
                continue
            stored = self._left(row, now_s)
            if stored is not None:
                self._depart(row, stored, now_s)

    def _left(self, row: Job, now_s: float) -> Stored | None:
        if not row.portions:
            return checkpoints.left(row)
        assert row.move is not None
        late = now_s >= row.move.since_s + self._settings.move_deadline_s
        return copies.left(row, self._connected, self._awaited(now_s), late=late)

    def _obstacle(self, row: Job, now_s: float) -> str:
        """Why it stays after all; empty: nothing stands in the way."""
        move = row.move
        assert move is not None
        if move.portions and not self._contents.policy.needs.copies:
            return f"{self._contents.policy.name} has no copies"
        if shapes(row, move) and not self._contents.policy.needs.elastic:
            return f"{self._contents.policy.name} gives no shapes"
        for name in move.to:
            host = self._book.hosts.get(name)
            if host is None:
                return f"{name} was removed"
            if name not in self._connected and not (move.portions and name in self._awaited(now_s)):
                return f"{name} is away"
            if not host.schedulable:
                return f"{name} is drained"
            gpus = gpus_as(row.spec, move.shape)
            if len(host.healthy_gpus) < gpus:
                return f"{name} has {len(host.healthy_gpus)} healthy GPUs left"
        if row.paused or row.cancelled_by:
            return "it was paused" if row.paused else "it is being ended"
        if reports.broken(row) or (
            not row.portions and any(part.exit is not None for part in row.reports.values())
        ):
            return "it is ending"
        parts = row.reports.values()
        if any(
            reports.cannot_leave(part) and not (row.portions and copies.comes_up(row, part)) for part in parts
        ):
            return UNABLE
        if row.portions:
            return self._obstacle_of_copies(row, now_s)
        if reports.half_up(row):
            return "its parts are on their way up, and wait for one another"
        if now_s >= move.since_s + self._settings.quantum_s and checkpoints.left_apart(row):
            return "its parts do not know of one checkpoint"
        return ""

    def _not_left(self, row: Job, now_s: float) -> str:
        """Why it could not, or has not in time: for a while it is not asked again. Each of several copies has a checkpoint of its own."""
        report, move = row.report, row.move
        assert move is not None
        if row.portions:
            return ""
        if (
            report is not None
            and report.phase is not Phase.CHECKPOINTED
            and self._grounded.failed(row.id, report.checkpoint_fails)
        ):
            return _why_not_saved(row)
        if now_s >= move.since_s + self._settings.move_deadline_s and self._left(row, now_s) is None:
            return f"its checkpoint was not written within {self._settings.move_deadline_s:g} s"
        return ""

    def _obstacle_of_copies(self, row: Job, now_s: float) -> str:
        """At the deadline those that could not leave are not waited for, where another did."""
        assert row.move is not None
        parts = [row.reports.get(name) for name in copies.counted(row, self._connected)]
        if now_s < row.move.since_s + self._settings.move_deadline_s:
            return ""
        if any(part is not None and part.phase is Phase.CHECKPOINTED for part in parts):
            return ""
        return f"none of its copies wrote a checkpoint within {self._settings.move_deadline_s:g} s"

    def _there(self, move: Move) -> tuple[tuple[HostName, ...], tuple[int, ...]]:
        """Without servers that have been away since: copies can do without."""
        pairs = [pair for pair in zip(move.to, move.portions, strict=False) if pair[0] in self._connected]
        if not pairs:
            return move.to[: 1 if move.portions else None], ()
        return tuple(name for name, _ in pairs), tuple(weight for _, weight in pairs)

    def _awaited(self, now_s: float) -> set[HostName]:
        """Servers that are away for so short a time that they may be back at once."""
        away = self._contents.absent.since_s or {}
        return {
            name for name, since_s in away.items() if min(since_s, now_s) + self._settings.lease_s > now_s
        }

    def _abandon(self, row: Job, why: str, now_s: float) -> None:
        assert row.move is not None
        self._asking.stale = True
        self._put(replace(row, move=None), now_s)
        does_not = f"does not {way(row, row.move)}"
        if not (row.portions or row.move.portions or reshapes(row, row.move)):
            does_not = f"does not move to {', '.join(row.move.to)}"
        text = f"it stays on {', '.join(row.hosts)} and {does_not}: {why}"
        if row.move.to == row.hosts and not row.portions:
            text = f"it stays as it is on {', '.join(row.hosts)} and is not restarted with {row.move.shape}: {why}"
        self._fact(now_s, "move-abandoned", text, job=row.id)

    def _depart(self, row: Job, stored: Stored, now_s: float) -> None:
        """The point of no return: never the old incarnation again."""
        move = row.move
        assert move is not None
        if row.portions:
            lost_s = row.past_lost_gpu_s + copies.lost_gpu_s(row, stored)
            row = replace(row, past_lost_gpu_s=lost_s)
        left = max(0, row.spec.steps - stored.step)
        to, portions = copies.divided(left, *self._there(move))
        cut_off = row.portions and not self._connected.issuperset(row.hosts)
        # It has left for want of memory, say: whoever does not know that it moves may start it again.
        unsure = (
            () if row.portions else tuple(h for h in row.hosts if h not in to and not self._lets_go(row, h))
        )
        new = replace(
            self._anew.next_epoch(row),
            state=states.after(row, Happening.MOVED),
            hosts=to,
            gpu_models=self._contents.models_of(to),
            shape=move.shape,
            stored=stored,
            portions=portions,
            base_step=stored.step if portions else 0,
            migrations=row.migrations + (to != row.hosts or not row.portions),
            settled_s=now_s,
            carry=reports.carried(row),
            unconfirmed=tuple(sorted({*row.unconfirmed, *unsure})),
            given_up=as_rehomed(row) if unsure else (),  # else it has begun elsewhere since
            left_behind=as_lost(row) if cut_off else row.left_behind,
        )
        self._contents.flights[row.id] = (move, now_s)
        self._grounded.forget(row.id)
        self._put(new, now_s)
        text = f"it left {', '.join(stored.hosts)} at step {stored.step} and lives on {', '.join(to)} ({new.gpu_model})"
        if row.portions or portions:
            text += _as_copies(row, stored, portions)
        elif len(stored.hosts) != len(to):
            text += f", and goes on with {move.shape}"
        elif stored.hosts == to:
            text = f"it stopped at step {stored.step}, and goes on with {move.shape}"
        self._fact(now_s, "left", text, job=row.id, host=to[0], data={"epoch": new.epoch})

    def deadlines(self, now_s: float) -> Iterator[float]:
        yield from self._grounded.deadlines()
        yield from self._contents.unforked.deadlines()
        yield from self._unable.of_all.deadlines()
        yield from self._unable.of_one.deadlines()
        yield from self._unable.for_memory.deadlines()
        for job in self._book.moving:
            row = self._book.live[job]
            if row.move is not None:
                # Where the clock was set back, the time begins anew.
                yield min(row.move.since_s, now_s) + self._settings.move_deadline_s
        awaited = self._awaited(now_s) if self._book.forked else set()
        if awaited and (away := self._contents.absent.since_s):
            yield max(min(away[name], now_s) for name in awaited) + self._settings.lease_s


def _why_not_saved(row: Job) -> str:
    assert row.report is not None
    told = f" ({row.report.note})" if row.report.note else ""
    return f"its checkpoint could not be written{told}"


def _as_copies(row: Job, stored: Stored, portions: tuple[int, ...]) -> str:
    did = ", ".join(str(part.steps) for part in stored.copies)
    average = f": the average of copies that did {did} steps" if did else ", where its copies were to begin"
    to_do = f", as copies that do {', '.join(map(str, portions))} steps" if portions else ""
    return (average if row.portions else "") + to_do
