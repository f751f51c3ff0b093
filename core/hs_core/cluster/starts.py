"""Servers that could not start jobs, of anybody or of one user, and those that start them again."""

from hs_core.cluster.contents import Contents
from hs_core.model import Job
from hs_core.names import HostName, UserName
from hs_core.reports import LAUNCH_FAILED, MEMORY_HELD, NO_ACCOUNT, NO_ROOM_FOR, NOT_AS_BEFORE

OF_ITS_USER = (LAUNCH_FAILED, MEMORY_HELD, NO_ACCOUNT, NO_ROOM_FOR, NOT_AS_BEFORE)
"""What keeps a server from starting one user's jobs: others' may be smaller, and name other folders."""


class Starts:
    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._asking = contents.asking
        self._book = contents.book
        self._fact = contents.fact
        self._unable = contents.unable

    def cannot_start(self, row: Job, host: HostName, why: str, now_s: float) -> None:
        quantum_s = self._contents.settings.quantum_s
        if MEMORY_HELD in why:
            self._unable.for_memory.stays(row.id, now_s, quantum_s, why)
            self._book.changed.add(row.id)
            self._asking.stale = True
        if any(theirs in why for theirs in OF_ITS_USER):
            key = row.user, host
            if key in self._unable.of_one:
                return
            self._unable.of_one.stays(key, now_s, quantum_s, why)
            until_s, whose = self._unable.of_one.until_s(key), f"no jobs of {row.user}"
            self.look_at_jobs_of(row.user)
        else:
            if host in self._unable.of_all:
                return
            self._unable.of_all.stays(host, now_s, quantum_s, why)
            until_s, whose = self._unable.of_all.until_s(host), "no jobs"
        self._book.touch(host)
        self._asking.stale = True
        text = f"{host} cannot start job {row.id}: {why}; for {until_s - now_s:g} s it is given {whose}"
        self._fact(now_s, "cannot-start", text, host=host)

    def started(self, user: UserName, host: HostName, now_s: float) -> None:
        if self._unable.of_all.tried(host):
            self._unable.of_all.forget(host)
            self._book.touch(host)
            self._asking.stale = True
            self._fact(now_s, "starts-again", f"{host} starts jobs again", host=host)
        if self._unable.of_one.tried((user, host)):
            self.unbar(user=user, host=host)
            self._fact(now_s, "starts-again", f"{host} starts jobs of {user} again", host=host)

    def copy_failed(self, row: Job, host: HostName, why: str, now_s: float) -> None:
        """As it was started: nothing of the job is lost by that, but what it costs to fork it."""
        at = row.id, host
        self._contents.unforked.stays(at, now_s, self._contents.settings.quantum_s, why)
        self._book.changed.add(row.id)
        self._asking.stale = True
        for_s = self._contents.unforked.until_s(at) - now_s
        text = f"its copy on {host} failed as it was started ({why}): for {for_s:g} s none is made there"
        self._fact(now_s, "copy-failed", text, job=row.id, host=host)

    def bar_no_more(self, user: UserName, host: HostName) -> None:
        """What was said of it was its job's fault."""
        key = user, host
        if self._unable.of_one.tried(key) and self._unable.of_one.why(key).startswith(LAUNCH_FAILED):
            self.unbar(user=user, host=host)
            self._book.touch(host)

    def look_at_jobs_of(self, user: UserName) -> None:
        self._book.changed |= self._book.of_user.get(user, set())

    def unbar(self, *, user: UserName | None = None, host: HostName | None = None) -> None:
        """What was the matter with accounts is over, most likely."""
        if host is not None and user is None:
            self._book.changed |= self._contents.abroad.may_go_to(host) & self._book.live.keys()
        for key in self._unable.of_one.all_tried():
            if user in {None, key[0]} and host in {None, key[1]}:
                self._unable.of_one.forget(key)
                self.look_at_jobs_of(key[0])
                self._asking.stale = True
