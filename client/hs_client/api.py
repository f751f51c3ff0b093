"""The Python API: one object, thin over the wire, refusals as exceptions that carry kind and exit code.

    with Client() as hs:
        done = hs.submit(Job(run=["python", "train.py"], resources={"gpus": 2}))
        view = hs.wait(done.job_ids[0])

Answers are the protocol's own messages (docs/hsctl.md lists their fields). A Client is for one thread or several.
"""

import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Self, TypeVar

os.environ.setdefault(
    "GRPC_VERBOSITY", "NONE"
)  # gRPC's own lines are not for people; errors come as exceptions

import grpc

from hs_client import address, errors
from hs_proto.certified import CONTROLLER_DNS
from hs_proto.v1 import common_pb2 as common
from hs_proto.v1 import controller_pb2 as wire
from hs_proto.v1.controller_pb2_grpc import HeteroShareStub

if TYPE_CHECKING:
    from hs_client.jobfile import Job

ENDED = frozenset({"succeeded", "failed", "cancelled"})
QUIET_S = 0.5
RETRY_DELAYS_S = (0.1, 0.3, 0.8, 1.5)
PERHAPS_DONE = "a change that was asked for may have been made"
AGAIN_S = 1.0  # of a log that is followed after a tail, before the connection was lost: servers know to the second when it was written
MAX_REPLY_BYTES = 64 << 20
LISTED = 1000  # jobs that a controller lists where nobody says how many
MOST_JOBS = 5000  # that a controller lists at once
MOST_TRADES = 10_000  # the same of trades

_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
]

_Reply = TypeVar("_Reply")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    job_ids: tuple[int, ...]  # empty for a dry run
    notes: tuple[str, ...]


def exit_code(job: wire.JobView) -> int:
    """What a shell would say of the job: its own code, or 128 + signal. Only for jobs that have ended."""
    if job.state == "succeeded":
        return errors.OK
    if job.HasField("exit") and job.exit.signal:
        return 128 + job.exit.signal
    if job.HasField("exit") and job.exit.code:
        return job.exit.code
    return errors.FAILED


@dataclass(slots=True)
class Had:
    """How far somebody is with a job's output. Mutable."""

    epoch: int = 0  # incarnation that said something last
    size: int = 0  # bytes of what it said


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
    ) -> None:
        asked = controller
        self.address = (
            asked if isinstance(asked, address.Address) else address.resolve(asked, token_file, ca_file)
        )
        self.user = user
        self.timeout_s = timeout_s
        self.patient = False
        """For who asks again and again: a controller that has answered, and does not any more, is waited for as one that went away while it was asked."""
        self._answered = False
        self._closed = False
        self._metadata = (("authorization", f"Bearer {self.address.token}"),) if self.address.token else ()
        self._channel = _channel(self.address)
        self._stub = HeteroShareStub(self._channel)

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
        self._closed = True
        self._channel.close()

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

    def cancel(self, *job_ids: int) -> list[wire.JobView]:
        return self._change(self._stub.Cancel, job_ids)

    def pause(self, *job_ids: int) -> list[wire.JobView]:
        return self._change(self._stub.Pause, job_ids)

    def resume(self, *job_ids: int) -> list[wire.JobView]:
        return self._change(self._stub.Unpause, job_ids)

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
        for view in self._stream(self._stub.WatchJob, wire.JobRequest(job_id=job_id), timeout_s=timeout_s):
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
            job_id=job_id,
            tail_lines=tail_lines,
            follow=follow,
            from_epoch=had.epoch if had else 0,
            rank=rank,
            since_s=since_s,
        )
        began_s = heard_s = time.monotonic()
        had = had or Had()
        skip = had.size
        told = False
        self.info()  # where no controller is there to begin with, that is said at once
        for attempt in range(1_000_000):
            if attempt:
                now_s = time.monotonic()
                request.from_epoch = had.epoch
                # The same moment. Where the server tells it less exactly by now, some is said twice and nothing is left out.
                request.since_s = since_s and since_s + now_s - began_s
                if tail_lines < 0:  # all of the newest again, less what we have
                    skip = had.size
                elif told or not tail_lines:
                    # Nobody knows what a tail was: what has been written since, likewise.
                    request.tail_lines, request.since_s = -1, now_s - heard_s + AGAIN_S
            try:
                for chunk in self._open(self._stub.Logs, request, stop=stop):
                    if chunk.epoch != had.epoch:
                        had.epoch, had.size, skip = chunk.epoch, 0, 0
                    chunk.data, skip = chunk.data[skip:], skip - min(skip, len(chunk.data))
                    had.size += len(chunk.data)
                    heard_s, told = time.monotonic(), told or bool(chunk.data)
                    if chunk.data or (chunk.away and not attempt):
                        yield chunk
                return
            except grpc.RpcError as error:
                if stop is not None and stop.is_set():
                    return
                if not follow or not (_is_lost(error) or _is_cut_off(error)):
                    raise self._refusal(error) from None
            self._await_controller()

    def exec(
        self, job_id: int, command: Sequence[str], *, rank: int = 0, limit_s: float = 0.0
    ) -> Iterator[wire.ExecChunk]:
        """What a program says that runs beside the job, as its user; the last chunk has how it `end`ed: by itself, or (`why`) because the job's turn was over, say.

        Nothing is asked again where the connection fails: the program is ended with it, as it is where the caller goes away.
        """
        request = wire.ExecRequest(job_id=job_id, command=command, rank=rank, limit_s=limit_s)
        self.info()  # where no controller is there, that is said at once
        ended = False
        try:
            for chunk in self._open(self._stub.Exec, request):
                ended = chunk.HasField("end")
                yield chunk
        except grpc.RpcError as error:
            raise self._refusal(error) from None
        if not ended:
            raise errors.UnavailableError("the controller stopped telling of the command, which is ended")

    # --- the cluster

    def info(self) -> wire.InfoReply:
        return self._call(self._stub.Info, wire.InfoRequest())

    def shares(self, *, window_s: float = 0.0) -> wire.SharesReply:
        return self._call(self._stub.Shares, wire.SharesRequest(window_s=window_s))

    def usage(self, *, user: str = "", since_s: float = 0.0) -> list[wire.UsageRow]:
        return list(self._call(self._stub.Usage, wire.UsageRequest(user=user, since_s=since_s)).rows)

    def nodes(self) -> list[wire.NodeView]:
        return list(self._call(self._stub.ListNodes, wire.ListNodesRequest()).nodes)

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

        for event in self._stream(self._stub.Events, request, endless=follow):
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
        return list(self._call(self._stub.ListTokens, wire.ListTokensRequest(user=user)).tokens)

    def revoke_token(self, token_id: str) -> wire.TokenView:
        return self._call(self._stub.RevokeToken, wire.RevokeTokenRequest(key=new_key(), id=token_id))

    def support(self) -> Iterator[wire.SupportFile]:
        """What the controller and its agents say of themselves, file by file, large ones in pieces; none of it is secret."""
        try:
            yield from self._open(self._stub.Support, wire.SupportRequest())
        except grpc.RpcError as error:
            raise self._refusal(error) from None

    def backup(self) -> Iterator[wire.BackupChunk]:
        """A consistent copy of the controller's state; the last chunk has the SHA-256 of all of it."""
        try:
            yield from self._open(self._stub.Backup, wire.BackupRequest())
        except grpc.RpcError as error:
            raise self._refusal(error) from None

    def whoami(self) -> str:
        """Whom `--me` means: the one acted for, else whom the controller takes us for."""
        return self.user or self.info().you

    # --- the wire

    def _change(self, method: Callable[..., wire.JobsReply], job_ids: Sequence[int]) -> list[wire.JobView]:
        return list(self._call(method, wire.JobsRequest(key=new_key(), job_ids=job_ids)).jobs)

    def _call(self, method: Callable[..., _Reply], request: Any) -> _Reply:
        """Tried again when the connection fails: requests that change something carry a key, so that it is done once.

        Where no controller answers that is given up soon. One that went away while it was asked is waited for, as by streams: it is back within seconds, and
        only then is it known whether it has done what it was asked for.
        """
        give_up, cut_off = time.monotonic() + self.timeout_s, False
        for attempt in count():
            try:
                reply = method(request, timeout=self.timeout_s, metadata=self._metadata)
            except grpc.RpcError as error:
                cut_off = cut_off or (_is_lost(error) and not _was_out_of_reach(error))
                over = (
                    time.monotonic() > give_up
                    if cut_off or (self.patient and self._answered)
                    else attempt >= len(RETRY_DELAYS_S) or self._nobody_home()
                )
                if over or not _is_lost(error):
                    changes = cut_off and bool(getattr(request, "key", ""))
                    raise self._refusal(error, perhaps_done=changes) from None
                time.sleep(RETRY_DELAYS_S[min(attempt, len(RETRY_DELAYS_S) - 1)])
            else:
                self._answered = True
                return reply
        raise AssertionError("the last attempt returns or raises")

    def _open(
        self,
        method: Callable[..., Any],
        request: Any,
        *,
        timeout_s: float | None = None,
        stop: threading.Event | None = None,
    ) -> Any:
        """Until it ends, or `stop` is set and nothing comes for a moment to who waits for it."""
        call = method(request, timeout=timeout_s, metadata=self._metadata)
        done = threading.Event()
        waits_since = time.monotonic()
        if stop is not None:

            def cancel() -> None:
                while not done.wait(QUIET_S):
                    if stop.is_set() and time.monotonic() - waits_since > QUIET_S:
                        call.cancel()
                        return

            threading.Thread(target=cancel, daemon=True).start()
        try:
            for item in call:
                waits_since = math.inf  # who takes it slowly is not the one to be cut off
                yield item
                waits_since = time.monotonic()
        finally:
            done.set()
            call.cancel()

    def _stream(
        self,
        method: Callable[..., Any],
        request: Any,
        *,
        endless: bool = True,
        timeout_s: float | None = None,
    ) -> Iterator[Any]:
        """Goes on when the controller comes back, with what `request` says by then. `endless`: an end is no end of it."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.info()  # as in `logs`
        while True:
            left = None if deadline is None else max(0.001, deadline - time.monotonic())
            try:
                yield from self._open(method, request, timeout_s=left)
                if not endless:
                    return
            except grpc.RpcError as error:
                if deadline is not None and time.monotonic() >= deadline - 0.002:
                    raise errors.WaitTimeoutError(f"not within {timeout_s:g} s") from None
                if not (_is_lost(error) or _fell_behind(error)):
                    raise self._refusal(error) from None
            self._await_controller(deadline)

    def _await_controller(self, deadline: float | None = None) -> None:
        """For streams: a controller that restarts is back within seconds."""
        give_up = time.monotonic() + self.timeout_s
        while True:
            try:
                self._stub.Info(wire.InfoRequest(), timeout=2.0, metadata=self._metadata)
                return
            except ValueError:  # grpc's, for a channel that another thread has closed
                if not self._closed:
                    raise
                raise errors.UnavailableError("the client was closed meanwhile") from None
            except grpc.RpcError as error:
                if not _is_lost(error) or time.monotonic() > give_up:
                    raise self._refusal(error) from None
                if deadline is not None and time.monotonic() > deadline:
                    raise errors.WaitTimeoutError("not in time, and the controller is away") from None
                time.sleep(0.2)

    def _nobody_home(self) -> bool:
        return self.address.socket is not None and not self.address.socket.exists()

    def _refusal(self, error: grpc.RpcError, *, perhaps_done: bool = False) -> errors.HeteroShareError:
        status: str = error.code().name
        text: str = error.details() or status
        kind = _kind(error)
        if kind in errors.BY_KIND:
            return errors.BY_KIND[kind](text)
        if status == "UNAVAILABLE":
            perhaps = f"; {PERHAPS_DONE}, before it went away" if perhaps_done else ""
            return errors.UnavailableError(self._unreachable(text) + perhaps)
        if status == "UNIMPLEMENTED":
            return errors.UnavailableError(
                f"the controller at {self.address.target} does not know this request: it is of another version ({text})"
            )
        if status == "DEADLINE_EXCEEDED":
            return errors.UnavailableError(
                f"the controller at {self.address.target} did not answer within {self.timeout_s:g} s: {PERHAPS_DONE}"
            )
        return errors.BY_STATUS.get(status, errors.HeteroShareError)(text)

    def _unreachable(self, text: str) -> str:
        where = f"no controller answers at {self.address.target} ({self.address.origin})"
        if self._nobody_home():
            return f"{where}: there is no such socket; start a cluster on this machine with `hsctl up`, or name one with --controller or HS_CONTROLLER"
        if self.address.ca and "certificate" in text.lower():
            return f"{where}: {text}; if its CA was made anew, `hsctl login {self.address.target}` again"
        return f"{where}: {text}"


def _channel(where: address.Address) -> grpc.Channel:
    if not where.ca:
        return grpc.insecure_channel(
            where.target, options=[*_OPTIONS, ("grpc.default_authority", "localhost")]
        )
    name = ("grpc.ssl_target_name_override", CONTROLLER_DNS)
    trusted = grpc.ssl_channel_credentials(root_certificates=where.ca.encode())
    return grpc.secure_channel(where.target, trusted, options=[*_OPTIONS, name])


def new_key() -> str:
    return secrets.token_hex(16)


def _kind(error: grpc.RpcError) -> str:
    trailing: Any = error.trailing_metadata() or ()
    return next((str(value) for key, value in trailing if key == "hs-kind"), "")


def _is_lost(error: grpc.RpcError) -> bool:
    """The connection failed, or the controller stopped in an orderly way, which ends calls, as opposed to having refused."""
    if _kind(error):
        return False
    if error.code() is grpc.StatusCode.CANCELLED:  # by ourselves it is said with these words
        return not (error.details() or "").startswith("Locally cancelled")
    return error.code() is grpc.StatusCode.UNAVAILABLE


def _is_cut_off(error: grpc.RpcError) -> bool:
    """The server that told of it is not connected any more. Asked again, the controller waits for it as long as that makes sense."""
    text: str = error.details() or ""
    return _kind(error) == "unavailable" and " went away: " in text


def _was_out_of_reach(error: grpc.RpcError) -> bool:
    """It was not asked at all."""
    text: str = error.details() or ""
    return "failed to connect" in text or "resolution failed" in text


def _fell_behind(error: grpc.RpcError) -> bool:
    """We took what we were told too slowly, and were dropped: to ask again from there."""
    text: str = error.details() or ""
    return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and text.startswith("resync:")
