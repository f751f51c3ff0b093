"""One connection to a controller, and what is asked over it: what may be asked again is, and what fails comes as the client's own errors."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, TypeVar

import grpc

from hs_client import address, errors, lookup
from hs_proto.certified import CONTROLLER_DNS
from hs_proto.v1 import controller_pb2 as wire
from hs_proto.v1.controller_pb2_grpc import HeteroShareStub

QUIET_S = 0.5
RETRY_DELAYS_S = (0.1, 0.3, 0.8, 1.5)
PERHAPS_DONE = "a change that was asked for may have been made"
MAX_REPLY_BYTES = 64 << 20

_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
]

_Reply = TypeVar("_Reply")


class Line:
    """For one thread or several. `timeout_s`: how long an answer may take, and a controller that went away is waited for.

    `patient`: one that has answered, and does not any more, counts as one that went away while it was asked.
    """

    def __init__(self, where: address.Address, timeout_s: float, *, patient: bool = False) -> None:
        self._address = where
        self._timeout_s = timeout_s
        self.patient = patient
        self._answered = False
        self._is_found = where.socket is not None
        self._closed = False
        self._metadata = (("authorization", f"Bearer {where.token}"),) if where.token else ()
        self._channel = _channel(where)
        self.stub = HeteroShareStub(self._channel)

    def close(self) -> None:
        self._closed = True
        self._channel.close()

    def greet(self) -> None:
        """Where no controller is there to begin with, that is said at once."""
        self.call(self.stub.Info, wire.InfoRequest())

    def call(self, method: Callable[..., _Reply], request: Any) -> _Reply:
        """Tried again when the connection fails: requests that change something carry a key, so that it is done once.

        Where no controller answers that is given up soon. One that went away while it was asked is waited for, as by streams: it is back within seconds, and
        only then is it known whether it has done what it was asked for.
        """
        self._find()
        give_up, cut_off = time.monotonic() + self._timeout_s, False
        for attempt in count():
            try:
                reply = method(request, timeout=self._timeout_s, metadata=self._metadata)
            except grpc.RpcError as error:
                cut_off = cut_off or (is_lost(error) and not _was_out_of_reach(error))
                over = (
                    time.monotonic() > give_up
                    if cut_off or (self.patient and self._answered)
                    else attempt >= len(RETRY_DELAYS_S) or self._nobody_home()
                )
                if over or not is_lost(error):
                    changes = cut_off and bool(getattr(request, "key", ""))
                    raise self.refusal(error, perhaps_done=changes) from None
                time.sleep(RETRY_DELAYS_S[min(attempt, len(RETRY_DELAYS_S) - 1)])
            else:
                self._answered = True
                return reply
        raise AssertionError("the last attempt returns or raises")

    def open(
        self,
        method: Callable[..., Any],
        request: Any,
        *,
        timeout_s: float | None = None,
        stop: threading.Event | None = None,
    ) -> Any:
        """Until it ends, or `stop` is set and nothing comes for a moment to who waits for it."""
        self._find()
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

    def once(self, method: Callable[..., Any], request: Any) -> Iterator[Any]:
        """Until it ends. Nothing is asked again where the connection fails."""
        try:
            yield from self.open(method, request)
        except grpc.RpcError as error:
            raise self.refusal(error) from None

    def stream(
        self,
        method: Callable[..., Any],
        request: Any,
        *,
        endless: bool = True,
        timeout_s: float | None = None,
    ) -> Iterator[Any]:
        """Goes on when the controller comes back, with what `request` says by then. `endless`: an end is no end of it."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.greet()
        while True:
            left = None if deadline is None else max(0.001, deadline - time.monotonic())
            try:
                yield from self.open(method, request, timeout_s=left)
                if not endless:
                    return
            except grpc.RpcError as error:
                if deadline is not None and time.monotonic() >= deadline - 0.002:
                    raise errors.WaitTimeoutError(f"not within {timeout_s:g} s") from None
                if not (is_lost(error) or _fell_behind(error)):
                    raise self.refusal(error) from None
            self.await_back(deadline)

    def await_back(self, deadline: float | None = None) -> None:
        """For streams: a controller that restarts is back within seconds."""
        give_up = time.monotonic() + self._timeout_s
        while True:
            try:
                self.stub.Info(wire.InfoRequest(), timeout=2.0, metadata=self._metadata)
                return
            except ValueError:  # grpc's, for a channel that another thread has closed
                if not self._closed:
                    raise
                raise errors.UnavailableError("the client was closed meanwhile") from None
            except grpc.RpcError as error:
                if not is_lost(error) or time.monotonic() > give_up:
                    raise self.refusal(error) from None
                if deadline is not None and time.monotonic() > deadline:
                    raise errors.WaitTimeoutError("not in time, and the controller is away") from None
                time.sleep(0.2)

    def _find(self) -> None:
        if not self._is_found:
            lookup.check(self._address.target.rpartition(":")[0])
            self._is_found = True

    def _nobody_home(self) -> bool:
        return self._address.socket is not None and not self._address.socket.exists()

    def refusal(self, error: grpc.RpcError, *, perhaps_done: bool = False) -> errors.HeteroShareError:
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
                f"the controller at {self._address.target} does not know this request: it is of another version ({text})"
            )
        if status == "DEADLINE_EXCEEDED":
            return errors.UnavailableError(
                f"the controller at {self._address.target} did not answer within {self._timeout_s:g} s: {PERHAPS_DONE}"
            )
        return errors.BY_STATUS.get(status, errors.HeteroShareError)(text)

    def _unreachable(self, text: str) -> str:
        where = f"no controller answers at {self._address.target} ({self._address.origin})"
        if self._nobody_home():
            return f"{where}: there is no such socket; start a cluster on this machine with `hsctl up`, or name one with --controller or HS_CONTROLLER"
        if self._address.ca and "certificate" in text.lower():
            return f"{where}: {text}; if its CA was made anew, `hsctl login {self._address.target}` again"
        return f"{where}: {_plainly(text)}"


def _plainly(text: str) -> str:
    """gRPC says the address again, and a code that is another's."""
    return "connection refused: nothing listens there" if "Connection refused" in text else text


def _channel(where: address.Address) -> grpc.Channel:
    if not where.ca:
        return grpc.insecure_channel(
            where.target, options=[*_OPTIONS, ("grpc.default_authority", "localhost")]
        )
    name = ("grpc.ssl_target_name_override", CONTROLLER_DNS)
    trusted = grpc.ssl_channel_credentials(root_certificates=where.ca.encode())
    return grpc.secure_channel(where.target, trusted, options=[*_OPTIONS, name])


def _kind(error: grpc.RpcError) -> str:
    trailing: Any = error.trailing_metadata() or ()
    return next((str(value) for key, value in trailing if key == "hs-kind"), "")


def is_lost(error: grpc.RpcError) -> bool:
    """The connection failed, or the controller stopped in an orderly way, which ends calls, as opposed to having refused."""
    if _kind(error):
        return False
    if error.code() is grpc.StatusCode.CANCELLED:  # by ourselves it is said with these words
        return not (error.details() or "").startswith("Locally cancelled")
    return error.code() is grpc.StatusCode.UNAVAILABLE


def is_cut_off(error: grpc.RpcError) -> bool:
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
