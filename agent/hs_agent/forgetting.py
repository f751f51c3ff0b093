"""What jobs leave on this host is removed once nobody wants it: their folders as they are forgotten, checkpoints that are neither wanted nor lent."""

import asyncio
import contextlib
from collections.abc import Callable

from hs_agent import folder
from hs_agent.folder import Key
from hs_agent.jobs import Jobs
from hs_agent.launch import Launcher
from hs_core.names import JobId


class Forgetting:
    """`kept`: jobs whose checkpoints stay; None: no controller has said yet what is wanted."""

    def __init__(
        self, launcher: Launcher, jobs: Jobs, keep_logs: int, kept: Callable[[], frozenset[JobId] | None]
    ) -> None:
        self._launcher, self._jobs, self._keep_logs, self._kept = launcher, jobs, keep_logs, kept
        self._removing = asyncio.Lock()
        self._due: list[Key] = []

    def job(self, key: Key) -> None:
        if not self._due:
            self._jobs.spawn(self._all_due())
        self._due.append(key)

    async def _all_due(self) -> None:
        """Of what was ordered at once: thousands of jobs are cancelled by one word, and what else lies here is looked through once."""
        keys, self._due = self._due, []

        def forget() -> None:
            with contextlib.ExitStack() as others:  # one that fails keeps nobody else's here
                for key in keys:
                    others.callback(self._launcher.forget, key)

        try:
            await asyncio.to_thread(forget)
            await asyncio.to_thread(folder.prune, self._launcher.ended, self._keep_logs)
        finally:
            self.checkpoints()

    def checkpoints(self) -> None:
        kept = self._kept()
        if kept is None:
            return
        self._launcher.forget_checkpoints(kept)
        self._jobs.spawn(self._remove_forgotten())

    async def _remove_forgotten(self) -> None:
        """One at a time: large ones are not to take the threads that launches need."""
        async with self._removing:
            await asyncio.to_thread(self._launcher.remove_forgotten)
