"""Moves in two phases: until every part has left its checkpoint the job belongs where it is; after that, where it goes."""

from collections.abc import Iterator
from dataclasses import replace

from hs_core.cluster import reports, states
from hs_core.cluster.lives import Lives
from hs_core.cluster.states import Happening
from hs_core.model import HostName, Job, Move, MoveReason, Shape, Stored


class Moves(Lives):
    def _begin_move(
        self,
        row: Job,
        to: tuple[HostName, ...],
        shape: Shape | None,
        why: tuple[MoveReason, str],
        now_s: float,
    ) -> None:
        """Also where only its shape is another. What an administrator wants empty leaves whatever the budget says."""
        reason, text = why
        if reason is not MoveReason.DRAIN:
            if self._budget.left(now_s) < 1:
                return
            self._budget.take(now_s)
            self._touched_meta = True
        row = replace(row, move=Move(to=to, reason=reason, since_s=now_s, text=text, shape=shape))
        self._put(row, now_s)
        because = f": {text}" if text else f" ({reason})"
        what = f"move from {', '.join(row.hosts)} to {', '.join(to)}"
        if to == row.hosts:
            what = f"be restarted with {shape} on {', '.join(to)}"
        self._fact(
            now_s,
            "moving",
            f"it is to {what}{because}",
            job=row.id,
            data={"from": ",".join(row.hosts), "to": ",".join(to), "reason": str(reason)},
        )

    def _rehome(self, row: Job, to: tuple[HostName, ...], shape: Shape | None, now_s: float) -> None:
        """It has no process, so it only gets another home; its old one is told by the epoch, and not started anew before that knows."""
        text = f"it lives on {', '.join(to)} now, not on {', '.join(row.hosts)}: it had not started"
        if to == row.hosts:
            text = f"it is to run on {', '.join(to)} with {shape}: it had not started"
        state = states.after(row, Happening.MOVED)
        models = self._models(to)
        told = {host for host in row.hosts if self._may_know(row, host)}
        before = tuple(sorted({*row.unconfirmed, *told} - {*to}))
        new = replace(
            self._next_epoch(row),
            state=state,
            hosts=to,
            gpu_models=models,
            shape=shape,
            settled_s=now_s,
            unconfirmed=before,
        )
        self._put(new, now_s)
        self._fact(now_s, "placed", text, job=row.id, host=to[0])

    def _may_know(self, row: Job, host: HostName) -> bool:
        """Whether the host was told of this incarnation; where it is to be told everything again, it may have been."""
        sent = self._sent.get(host)
        return sent is None or any((job.job, job.epoch) == (row.id, row.epoch) for job in sent.jobs)

    def _tend_moves(self, now_s: float) -> None:
        for job in sorted(self._book.moving):
            row = self._book.live[job]
            why = self._obstacle(row, now_s)
            if why:
                self._abandon(row, why, now_s)
                continue
            stored = reports.left(row)
            if stored is not None:
                self._depart(row, stored, now_s)

    def _obstacle(self, row: Job, now_s: float) -> str:
        """Why it stays after all; empty: nothing stands in the way."""
        move = row.move
        assert move is not None
        for name in move.to:
            host = self._book.hosts.get(name)
            if host is None:
                return f"{name} was removed"
            if name not in self._connected:
                return f"{name} is away"
            if not host.schedulable:
                return f"{name} is drained"
            gpus = row.spec.gpus if move.shape is None else move.shape.gpus
            if len(host.healthy_gpus) < gpus:
                return f"{name} has {len(host.healthy_gpus)} healthy GPUs left"
        if row.paused or row.cancelled_by:
            return "it was paused" if row.paused else "it is being ended"
        if reports.broken(row) or any(part.exit is not None for part in row.reports.values()):
            return "it is ending"
        if any(reports.cannot_leave(part) for part in row.reports.values()):
            return "it cannot write a checkpoint"
        if reports.half_up(row):
            return "its parts are on their way up, and wait for one another"
        if now_s >= move.since_s + self.settings.quantum_s and reports.left_apart(row):
            return "its parts do not know of one checkpoint"
        if now_s >= move.since_s + self.settings.move_deadline_s:
            return f"its checkpoint was not written within {self.settings.move_deadline_s:g} s"
        return ""

    def _abandon(self, row: Job, why: str, now_s: float) -> None:
        assert row.move is not None
        self._stale = True
        self._put(replace(row, move=None), now_s)
        stays, to = ", ".join(row.hosts), ", ".join(row.move.to)
        text = f"it stays on {stays} and does not move to {to}: {why}"
        if row.move.to == row.hosts:
            text = f"it stays as it is on {stays} and is not restarted with {row.move.shape}: {why}"
        self._fact(now_s, "move-abandoned", text, job=row.id)

    def _depart(self, row: Job, stored: Stored, now_s: float) -> None:
        """The point of no return: never the old incarnation again."""
        move = row.move
        assert move is not None
        new = replace(
            self._next_epoch(row),
            state=states.after(row, Happening.MOVED),
            hosts=move.to,
            gpu_models=self._models(move.to),
            shape=move.shape,
            stored=stored,
            migrations=row.migrations + 1,
            settled_s=now_s,
        )
        self._flights[row.id] = (move, now_s)
        self._put(new, now_s)
        text = f"it left {', '.join(stored.hosts)} at step {stored.step} and lives on {', '.join(move.to)} ({new.gpu_model})"
        if stored.hosts == move.to:
            text = f"it stopped at step {stored.step}, and goes on with {move.shape}"
        self._fact(now_s, "left", text, job=row.id, host=move.to[0])

    def _move_deadlines(self, now_s: float) -> Iterator[float]:
        for job in self._book.moving:
            row = self._book.live[job]
            if row.move is not None:
                # Where the clock was set back, the time begins anew.
                yield min(row.move.since_s, now_s) + self.settings.move_deadline_s
