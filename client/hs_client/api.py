"""The Python API: one object, thin over the wire, refusals as exceptions that carry kind and exit code.

    with Client() as hs:
        done = hs.submit(Job(run=["python", "train.py"], resources={"gpus": 2}))
        view = hs.wait(done.job_ids[0])

Answers are the protocol's own messages (docs/hsctl.md lists their fields). A Client is for one thread or several.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

from hs_client import address, errors, output
from hs_client.ends import ENDED
from hs_client.line import Line
from hs_client.output import Had
from hs_proto.v1 import common_pb2 as common
from hs_proto.v1 import controller_pb2 as wire

if TYPE_CHECKING:
    from hs_client.jobfile import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    job_ids: tuple[int, ...]  # empty for a dry run
    notes: tuple[str, ...]


class Client:
    """A connection to the controller (docs/hsctl.md: how it is found). `user` acts for somebody else, for admins."""

    def __init__(
        self,
        controller: str | address.Address | None = None,
        *,
        token_file: str | None = None,
        ca_file: str | None = None,
        user: str = "",
        timeout_s: float = 30.0,
        patient: bool = False,
    ) -> None:
        """`patient`: as `Line` has it, for who asks again and again."""
        asked = controller
        self.address = (
            asked if isinstance(asked, address.Address) else address.resolve(asked, token_file, ca_file)
        )
        self.user = user
        self._line = Line(self.address, timeout_s, patient=patient)
        self._stub, self._call = self._line.stub, self._line.call

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            self.close()
        else:
            # A signal's exception comes amid grpc's bookkeeping as well; a call that is left half made never ends, and
            # closing waits for it.
            threading.Thread(target=self.close, name="close", daemon=True).start()

    def close(self) -> None:
        self._line.close()

    # --- jobs

    def submit(
        self,
        *jobs: "Job | common.JobSpec",
        dry_run: bool = False,
        key: str = "",
    ) -> Submitted:
        """All of them are accepted, or none. Sent again with the same key, it is the same request."""
        from hs_client import (
            compose,
            job_words,
        )  # checks jobs with pydantic, which only those who submit pay for

        specs: list[common.JobSpec] = []
        for job in jobs:
            specs += (
                [job]
                if isinstance(job, common.JobSpec)
                else compose.specs(job, compose.Place.here(), None, partial(job_words.job_ids, self))
            )
        request = wire.SubmitRequest(key=key or new_key(), as_user=self.user, jobs=specs, dry_run=dry_run)
        reply = self._call(self._stub.Submit, request)
        return Submitted(job_ids=tuple(reply.job_ids), notes=tuple(reply.notes))

    def cancel(self, *job_ids: int) -> wire.JobsReply:
        return self._change(self._stub.Cancel, job_ids)

    def pause(self, *job_ids: int, leave_ended: bool = False) -> wire.JobsReply:
        """`leave_ended`: what of them has ended is left as it is, unless all has; else that is refused."""
        return self._change(self._stub.Pause, job_ids, leave_ended=leave_ended)

    def resume(self, *job_ids: int, leave_ended: bool = False) -> wire.JobsReply:
        return self._change(self._stub.Unpause, job_ids, leave_ended=leave_ended)

    def jobs(
        self,
        *,
        user: str = "",
        states: Sequence[str] = (),
        ended: bool = False,
        limit: int = 0,
        array_id: int = 0,
    ) -> list[wire.JobView]:
        request = wire.ListJobsRequest(user=user, states=states, all=ended, limit=limit, array_id=array_id)
        return list(self._call(self._stub.ListJobs, request).jobs)

    def newest_jobs(self) -> wire.ListJobsReply:
        """The newest of those that have not ended, with `totals` of all of them."""
        return self._call(self._stub.ListJobs, wire.ListJobsRequest(totals=True))

    def job(self, job_id: int) -> wire.JobDetail:
        return self._call(self._stub.GetJob, wire.JobRequest(job_id=job_id))

    def why(self, job_id: int) -> wire.WhyReply:
        return self._call(self._stub.Why, wire.JobRequest(job_id=job_id))

    def watch(self, job_id: int, *, timeout_s: float | None = None) -> Iterator[wire.JobView]:
        """The job now and after every change until it has ended, across restarts of the controller."""
        for view in self._line.stream(
            self._stub.WatchJob, wire.JobRequest(job_id=job_id), timeout_s=timeout_s
        ):
            yield view
            if view.state in ENDED:  # how its stream ends says nothing any more
                return

    def wait(self, job_id: int, *, timeout_s: float | None = None) -> wire.JobView:
        """The job as it ended. WaitTimeoutError when it has not in time."""
        view = None
        for view in self.watch(job_id, timeout_s=timeout_s):
            if view.state in ENDED:
                return view
        raise errors.UnavailableError(
            f"the controller stopped telling of job {job_id} ({view.state if view else 'unknown'})"
        )

    def logs(
        self,
        job_id: int,
        *,
        tail_lines: int = -1,
        since_s: float = 0.0,
        follow: bool = False,
        stop: threading.Event | None = None,
    ) -> Iterator[bytes]:
        """The job's output, of all its incarnations; a tail is of the newest. With `since_s` only what was written in the last so many seconds, or a little more
        (docs/hsctl.md). With `follow` until the job ends, or until `stop` is set and nothing more comes at once.
        """
        chunks = self.output(job_id, tail_lines=tail_lines, since_s=since_s, follow=follow, stop=stop)
        return (chunk.data for chunk in chunks if chunk.data)

    def output(
        self,
        job_id: int,
        *,
        tail_lines: int = -1,
        since_s: float = 0.0,
        follow: bool = False,
        stop: threading.Event | None = None,
        had: Had | None = None,
        rank: int = 0,
    ) -> Iterator[wire.LogsChunk]:
        """The same, chunk by chunk, each with the incarnation that said it; of all of it, not of a tail, what was `had` before is left out, and counted on.

        Of a job over several servers it is what its first one said; with `rank` what the newest incarnation said on that one.

        One that names servers that are `away` says that what the job said there is missing.
        """
        request = wire.LogsRequest(
            job_id=job_id, tail_lines=tail_lines, follow=follow, rank=rank, since_s=since_s
        )
        return output.told(self._line, request, had or Had(), stop)

    def exec(
        self, job_id: int, command: Sequence[str], *, rank: int = 0, limit_s: float = 0.0
    ) -> Iterator[wire.ExecChunk]:
        """What a program says that runs beside the job, as its user; the last chunk has how it `end`ed: by itself, or (`why`) because the job's turn was over, say.

        Nothing is asked again where the connection fails: the program is ended with it, as it is where the caller goes away.
        """
        request = wire.ExecRequest(job_id=job_id, command=command, rank=rank, limit_s=limit_s)
        self.info()  # where no controller is there, that is said at once
        ended = False
        for chunk in self._line.once(self._stub.Exec, request):
            ended = chunk.HasField("end")
            yield chunk
        if not ended:
            raise errors.UnavailableError("the controller stopped telling of the command, which is ended")

    # --- the cluster

    def info(self) -> wire.InfoReply:
        return self._call(self._stub.Info, wire.InfoRequest())

    def shares(self, *, window_s: float = 0.0) -> wire.SharesReply:
        return self._call(self._stub.Shares, wire.SharesRequest(window_s=window_s))

    def usage(self, *, user: str = "", since_s: float = 0.0) -> list[wire.UsageRow]:
        return list(self._call(self._stub.Usage, wire.UsageRequest(user=user, since_s=since_s)).rows)

    def now_s(self) -> float:
        """By the controller's clock, by which go all times that it tells: this machine's may be another."""
        return self.info().now or time.time()

    def nodes(self) -> list[wire.NodeView]:
        return list(self.listed_nodes().nodes)

    def listed_nodes(self) -> wire.ListNodesReply:
        """The same, with `now` and `wall_now` by the controller's clocks."""
        reply = self._call(self._stub.ListNodes, wire.ListNodesRequest())
        reply.now, reply.wall_now = reply.now or time.time(), reply.wall_now or time.time()
        return reply

    def events(
        self,
        *,
        job_id: int = 0,
        user: str = "",
        after_seq: int | None = None,
        tail: int = 0,
        follow: bool = False,
        deeds: bool = False,
    ) -> Iterator[wire.Event]:
        """`after_seq`: all later ones; without it the newest. `deeds`: only what administrators did."""
        request = wire.EventsRequest(
            after_seq=after_seq, follow=follow, job_id=job_id, user=user, tail=tail, deeds=deeds
        )

        for event in self._line.stream(self._stub.Events, request, endless=follow):
            request.after_seq = max(request.after_seq, event.seq)
            yield event

    def users(self, *, user: str = "") -> list[wire.UserView]:
        """By name; to who is no administrator only the caller."""
        return list(self._call(self._stub.ListUsers, wire.ListUsersRequest(user=user)).users)

    def set_user(
        self, name: str, *, tickets: float | None = None, run_as: str | None = None
    ) -> wire.UserView:
        return self._call(
            self._stub.SetUser, wire.SetUserRequest(key=new_key(), name=name, tickets=tickets, run_as=run_as)
        )

    def remove_user(self, name: str) -> wire.RemoveUserReply:
        """Who has no jobs under way; its tokens are revoked, what it received stays in `usage`."""
        return self._call(self._stub.RemoveUser, wire.RemoveUserRequest(key=new_key(), name=name))

    def trades(self, *, undone: bool = False, limit: int = 0) -> list[wire.TradeView]:
        """The newest of those that stand, by when they were made; with `undone` those that no longer do, too. `limit`: of all users; 0: 1,000."""
        request = wire.ListTradesRequest(all=undone, limit=limit)
        return list(self._call(self._stub.ListTrades, request).trades)

    def policy(self) -> wire.PolicyView:
        return self._call(self._stub.GetPolicy, wire.PolicyRequest())

    def set_policy(self, name: str) -> wire.PolicyView:
        return self._call(self._stub.SetPolicy, wire.SetPolicyRequest(key=new_key(), name=name))

    # --- for admins

    def drain_node(self, node: str, *, reason: str = "", deadline_s: float = 0.0) -> wire.NodeView:
        """Its jobs leave by migration; what has not left by the deadline (0: none) is ended and queued again."""
        request = wire.DrainNodeRequest(key=new_key(), node=node, reason=reason, deadline_s=deadline_s)
        return self._call(self._stub.DrainNode, request)

    def undrain_node(self, node: str) -> wire.NodeView:
        return self._call(self._stub.UndrainNode, wire.NodeRequest(key=new_key(), node=node))

    def remove_node(self, node: str, *, force: bool = False) -> wire.RemoveNodeReply:
        """Of one that is away and may still run jobs only by `force`: they then run twice."""
        request = wire.RemoveNodeRequest(key=new_key(), node=node, force=force)
        return self._call(self._stub.RemoveNode, request)

    def enroll_node(self, node: str, *, valid_s: float = 0.0) -> wire.EnrollNodeReply:
        return self._call(
            self._stub.EnrollNode, wire.EnrollNodeRequest(key=new_key(), node=node, valid_s=valid_s)
        )

    def drain_gpus(self, node: str, gpus: Sequence[int], *, drain: bool, reason: str = "") -> wire.NodeView:
        request = wire.SetGpuDrainRequest(key=new_key(), node=node, gpus=gpus, drain=drain, reason=reason)
        return self._call(self._stub.SetGpuDrain, request)

    def create_token(self, *, user: str = "", label: str = "", valid_s: float = 0.0) -> wire.CreateTokenReply:
        """The caller's own, or for an admin anybody's. It is told once; the controller keeps its hash only."""
        request = wire.CreateTokenRequest(key=new_key(), user=user, label=label, valid_s=valid_s)
        return self._call(self._stub.CreateToken, request)

    def tokens(self, *, user: str = "") -> list[wire.TokenView]:
        return list(self.listed_tokens(user=user).tokens)

    def listed_tokens(self, *, user: str = "") -> wire.ListTokensReply:
        """The same, with `now` by the controller's clock."""
        reply = self._call(self._stub.ListTokens, wire.ListTokensRequest(user=user))
        reply.now = reply.now or time.time()
        return reply

    def revoke_token(self, token_id: str) -> wire.TokenView:
        return self._call(self._stub.RevokeToken, wire.RevokeTokenRequest(key=new_key(), id=token_id))

    def support(self) -> Iterator[wire.SupportFile]:
        """What the controller and its agents say of themselves, file by file, large ones in pieces; none of it is secret."""
        return self._line.once(self._stub.Support, wire.SupportRequest())

    def backup(self) -> Iterator[wire.BackupChunk]:
        """A consistent copy of the controller's state; the last chunk has the SHA-256 of all of it."""
        return self._line.once(self._stub.Backup, wire.BackupRequest())

    def whoami(self) -> str:
        """Whom `--me` means: the one acted for, else whom the controller takes us for."""
        return self.user or self.info().you

    def _change(
        self, method: Callable[..., wire.JobsReply], job_ids: Sequence[int], *, leave_ended: bool = False
    ) -> wire.JobsReply:
        request = wire.JobsRequest(key=new_key(), job_ids=job_ids, leave_ended=leave_ended)
        return self._call(method, request)


def new_key() -> str:
    return secrets.token_hex(16)
