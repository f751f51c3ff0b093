"""The certificate that the controller itself shows at its ports: renewed in time, and taken up by those that are open."""

import asyncio
import ssl
import time

import structlog

from hs_controller.pki import Authority, PkiError
from hs_daemon import boot_s

log = structlog.get_logger("hs_controller")

LOOKED_AT_S = 60.0  # how often it is looked whether it is due: clocks are set, and machines that were suspended go on, at any time
TOLD_AGAIN_S = 3600.0  # that it cannot be renewed
CA_LOW_S = 90 * 86_400.0  # left of the CA's life: then it is told with each start


class OwnCertificate:
    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self._contexts: list[ssl.SSLContext] = []
        self._renewing: asyncio.Task[None] | None = None
        self._told_s = float("-inf")  # that it cannot be renewed, on the boot clock

    async def context(self, protocol: str) -> ssl.SSLContext:
        """For a port over which `protocol` (as ALPN names it) is spoken; kept up to date until `stop`. Raises PkiError where none could be made."""
        await self._renew_if_due()
        until_s = self._authority.until_s
        if self._renewing is None and until_s - time.time() < CA_LOW_S:
            log.warning("ca-ends", at=time.ctime(until_s), todo="a new one: docs/security.md says how")
        context = self._authority.server_context(protocol)
        self._contexts.append(context)
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._keep_renewed(), name="certificate")
        return context

    async def stop(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)

    async def _renew_if_due(self) -> None:
        now_s = time.time()
        due_s = self._authority.own_due_s(now_s)
        if due_s > now_s:
            return
        try:
            await asyncio.to_thread(self._authority.renew_own, now_s)
        except PkiError as error:  # a full disk, say
            if not due_s:
                raise
            self._complain(error)  # there is a third of its life left
        else:
            self._told_s = float("-inf")
            log.info("own-certificate-renewed")

    async def _keep_renewed(self) -> None:
        while True:
            await asyncio.sleep(LOOKED_AT_S)
            try:
                await self._renew_if_due()
                for context in self._contexts:
                    self._authority.load_own(context)
            except PkiError as error:
                self._complain(error)

    def _complain(self, error: PkiError) -> None:
        if boot_s() >= self._told_s + TOLD_AGAIN_S:
            self._told_s = boot_s()
            log.error("own-certificate-not-renewed", why=str(error))
