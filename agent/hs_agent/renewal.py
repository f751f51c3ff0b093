"""A certificate is kept fresh while its host is part of the cluster."""

import asyncio
import random
import time
from collections.abc import Callable

import hs_daemon  # noqa: F401 - before gRPC, whose own lines it stops

import grpc  # isort: skip
import structlog
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hs_agent import credentials
from hs_agent.identity import CERTIFICATE, Identity, check_key, load_identity, parsed, put_certificate
from hs_core.errors import RefusedError
from hs_daemon import boot_s
from hs_proto.v1 import controller_pb2, controller_pb2_grpc

log = structlog.get_logger("identity")

RETRY_S = (5.0, 600.0)


class Keeper:
    """Has the newest identity, and renews it when two thirds of its life are over. The key stays until the host joins anew."""

    def __init__(
        self,
        identity: Identity,
        controller: str,
        changed: Callable[[Identity], None] = lambda _identity: None,
        *,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self.identity = identity
        self._controller = controller
        self._changed = changed
        self._now_s = now_s
        self._unwritten = False  # the newest one is not on the disk yet
        self._renewed_s = float("-inf")  # on the boot clock

    @property
    def _left_s(self) -> float:
        """Until it is to be renewed. Where this host's clock is days ahead that is always due: then it counts from when it was issued last."""
        left_s = self.identity.renew_at_s - self._now_s()
        return left_s if left_s > 0 else self._renewed_s + self.identity.renew_after_s - boot_s()

    async def run(self) -> None:
        """Until cancelled. A controller that is away is asked again, sooner at first; so is a disk that is full."""
        pause_s = RETRY_S[0]
        while True:
            left_s = self._left_s
            if left_s > 0 and not self._unwritten:
                await asyncio.sleep(min(left_s, 3600.0))  # the clock may be set meanwhile
                continue
            try:
                if left_s <= 0:
                    await self.renew()
                else:
                    await self._write()
                if not self._unwritten:
                    pause_s = RETRY_S[0]
                    continue
            except RefusedError as refused:
                log.warning("certificate not renewed", why=str(refused), ends_at_s=self.identity.not_after_s)
            except (
                Exception
            ):  # it is asked for again all the same: without one the host is cut off in the end
                log.exception("certificate not renewed", ends_at_s=self.identity.not_after_s)
            await asyncio.sleep(pause_s * (0.5 + random.random() / 2))  # noqa: S311 — spread, not secret
            pause_s = min(2 * pause_s, RETRY_S[1])

    def look(self) -> None:
        """Takes up what `hs-agent join --replace` has put on the disk since. Raises RefusedError where it cannot be used."""
        found = load_identity(self.identity.folder)
        if found is not None and found.node == self.identity.node and found.key_pem != self.identity.key_pem:
            self.identity, self._unwritten = found, False
            log.info("joined anew", node=found.node, ends_at_s=found.not_after_s)

    def why_not_good(self) -> str:
        """Empty: it is."""
        return self.identity.why_not_good(self._now_s())

    async def renew(self) -> Identity:
        old = self.identity
        new = parsed(old.folder, old.key_pem, await self._certified(old), old.ca_pem)
        await asyncio.to_thread(check_key, new)
        self.identity, self._unwritten, self._renewed_s = new, True, boot_s()
        log.info("certificate renewed", node=new.node, ends_at_s=new.not_after_s)
        await self._write()
        self._changed(new)
        return new

    async def _certified(self, old: Identity) -> bytes:
        key = serialization.load_pem_private_key(old.key_pem, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        options = [*credentials.OPTIONS, credentials.expects_controller()]
        async with grpc.aio.secure_channel(
            self._controller, credentials.channel_credentials(old), options
        ) as channel:
            stub = controller_pb2_grpc.IdentityStub(channel)
            request = controller_pb2.RenewRequest(csr_pem=credentials.csr(old.node, key))
            try:
                answer = await stub.Renew(request, timeout=credentials.ASK_S)
            except grpc.RpcError as error:
                raise credentials.refusal(error, self._controller) from None
        return bytes(answer.chain_pem)

    async def _write(self) -> None:
        """What cannot be written is in force all the same: a full disk is to cut nobody off, nor the controller to be asked for one after the other."""
        try:
            await asyncio.to_thread(put_certificate, self.identity)
        except OSError as error:
            file = self.identity.folder / CERTIFICATE
            log.warning(
                "certificate not written",
                file=str(file),
                why=error.strerror or str(error),
                todo="make room: until then an agent that is started again has the one before",
            )
        else:
            self._unwritten = False
