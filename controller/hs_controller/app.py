"""The daemon put together: journal, loop, doors; started in that order and stopped in the opposite one."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import structlog

from hs_controller import callers
from hs_controller.accounts import check_account
from hs_controller.agents import AgentService
from hs_controller.bodies import Bodies
from hs_controller.callers import Guest, Known, TokenHolder, node_guest
from hs_controller.config import Config, ConfigError
from hs_controller.doors import DoorError, Front, Guests, TcpFront, UnixFront
from hs_controller.gate import Gate
from hs_controller.journal import Journal
from hs_controller.links import Hub
from hs_controller.loop import Loop
from hs_controller.own_certificate import OwnCertificate
from hs_controller.permissions import Caller, Role
from hs_controller.pki import Authority, folder_of
from hs_controller.refusals import Refusals
from hs_controller.service import Service
from hs_controller.token_service import IdentityService
from hs_core.errors import RefusedError
from hs_core.policy import Policy
from hs_daemon import version
from hs_daemon.notify import status, watchdog_s
from hs_daemon.signals import heed
from hs_proto.v1 import agent_pb2_grpc, controller_pb2_grpc

if TYPE_CHECKING:
    from hs_controller.web import Web

log = structlog.get_logger("hs_controller")

GRACE_S = 0.5
STATUS_S = 15.0  # how often systemd is told how it is
WEB_CONNECTIONS = 512  # of Prometheus and browsers, which have up to six each
WEB_SILENT_S = 30.0  # of one of its connections; a browser's that is no longer used uvicorn ends sooner

Find = Callable[[str], Caller | None]


class Controller:
    def __init__(self, config: Config, policy: Policy) -> None:
        self.config = config
        self.address = ""  # of the port, once it is open
        self.web_address = ""  # the same of the one for browsers and Prometheus
        self._policy = policy
        self._hub = Hub()
        self._loop: Loop | None = None
        self._running: asyncio.Task[None] | None = None
        self._fronts: list[Front] = []
        self._server: grpc.aio.Server | None = None  # the private one behind all doors
        self._web: Web | None = None  # likewise private
        self._bodies = Bodies(config.limits.request_bytes)
        self._certificate: OwnCertificate | None = None  # that the ports show, if there is one

    @property
    def loop(self) -> Loop:
        assert self._loop is not None
        return self._loop

    async def start(self) -> None:
        """Raises StoreError, PkiError, SecretError or DoorError, and then nothing is left open."""
        check_accounts(self.config)
        journal = await asyncio.to_thread(Journal.open, self.config.state_dir)
        try:
            authority = await asyncio.to_thread(Authority.load, self.config.state_dir)
            secret = await asyncio.to_thread(callers.secret, self.config.state_dir / "token.secret")
            self._loop = await Loop.start(
                journal, self.config, self._policy, grant_key=callers.derived(secret, "grants")
            )
        except BaseException:
            journal.close()
            raise
        self._loop.hosts = self._hub
        self._refusals = Refusals(self._loop.meters)
        self._running = asyncio.create_task(self._loop.run(), name="loop")
        try:
            await self._open_doors(authority, secret)
        except BaseException:
            await self.stop()
            raise

    async def _open_doors(self, authority: Authority | None, secret: str) -> None:
        config = self.config
        guests = Guests(config.socket.with_name(f"{config.socket.name}.d") / "inner")
        visitors = Guests(guests.address.with_name("web"))
        sockets = self._sockets(guests)
        find = await self._tokens()
        if authority is not None:
            self._certificate = OwnCertificate(authority)
        port = site = None
        if config.listen is not None:
            who = partial(self._by_certificate, find)
            port = await self._port("listen", config.listen, guests, who)
        if config.web_listen is not None:
            site = await self._port(
                "web_listen", config.web_listen, visitors, lambda _: TokenHolder(find), http=True
            )
        for socket in sockets:
            socket.prepare()
            self._fronts.append(socket)  # from here on there is something to clear away
        self._server = await self._serve(guests, authority, secret)
        if site is not None:
            self._web = self._site(visitors, find, authority)
            await self._web.open()
        for socket in sockets:
            await self._open(socket)
        for front in (port, site):
            if front is not None:
                self._fronts.append(front)
                await self._open(front, **({"for": "http"} if front is site else {}))
        self.address = port.name if port is not None else ""
        self.web_address = site.name if site is not None else ""

    def _sockets(self, guests: Guests) -> list[UnixFront]:
        config = self.config
        people = UnixFront(
            config.socket,
            0o600 if config.embedded else 0o666,
            config.limits,
            guests,
            lambda uid: Known(callers.account(uid, config), f"uid {uid}"),
            refusals=self._refusals,
        )
        if config.agent_socket is None:
            return [people]
        agents = UnixFront(
            config.agent_socket, 0o600, config.limits, guests, self._only_agents, refusals=self._refusals
        )
        return [people, agents]

    def _site(self, visitors: Guests, find: Find, authority: Authority | None) -> "Web":
        """The page, and what Prometheus reads. Its libraries take a tenth of the start, and most controllers of one's own have none."""
        from hs_controller.web import History, Web, application

        history = History(self.config.quantum_s)
        app = application(
            self.loop,
            self._hub,
            self._service,
            history,
            find,
            refusals=self._refusals,
            authority=None if self.config.dev else authority,
        )
        return Web(app, visitors, self.loop, history)

    async def _open(self, front: Front, **more: str) -> None:
        await front.open()
        log.info("listening", address=front.name, **more)

    def _only_agents(self, uid: int) -> Known | None:
        caller = callers.account(uid, self.config)
        return Known(caller, f"uid {uid}") if Role.AGENT in caller.roles else None

    async def _tokens(self) -> Find:
        """Whose a token is that is shown at a port."""
        config = self.config
        if not config.dev or (config.listen is None and config.web_listen is None):
            return self._token_user
        admin = await asyncio.to_thread(callers.admin_token, config.state_dir)
        return lambda token: admin.caller(token) or self._token_user(token)

    async def _port(
        self,
        key: str,
        address: tuple[str, int],
        guests: Guests,
        who: Callable[[dict[str, Any]], Guest | None],
        *,
        http: bool = False,
    ) -> TcpFront:
        config = self.config
        limits = replace(config.limits, connections=WEB_CONNECTIONS) if http else config.limits
        silent_s = WEB_SILENT_S if http else 0.0  # gRPC's own pings find out who is gone
        if config.dev:
            log.warning("plaintext", key=key, why="dev = true: for development, on this machine only")
            return TcpFront(address, limits, guests, None, who, silent_s=silent_s, refusals=self._refusals)
        if self._certificate is None:
            raise DoorError(
                f"{key}: {address[0]}:{address[1]}: this controller has no certificates: put {folder_of(config.state_dir)} back"
                f" from where you keep it; for a new cluster run `hs-controller init --config {config.file}`, or set"
                " `dev = true` for plaintext on loopback"
            )
        context = await self._certificate.context("http/1.1" if http else "h2")
        return TcpFront(address, limits, guests, context, who, silent_s=silent_s, refusals=self._refusals)

    def _by_certificate(self, find: Find, certificate: dict[str, Any]) -> Guest | None:
        if certificate:
            return node_guest(certificate, lambda who: self.loop.mind.registry.why_refused(who, time.time()))
        return TokenHolder(find)

    def _token_user(self, token: str) -> Caller | None:
        user = self.loop.mind.registry.user_of(token, self.loop.clock.now_s())
        return None if user is None else callers.token_user(user, self.config)

    async def _serve(self, guests: Guests, authority: Authority | None, secret: str) -> grpc.aio.Server:
        limits = self.config.limits
        server = grpc.aio.server(
            interceptors=[Gate(guests, self._bodies, self._refusals)],
            options=(
                ("grpc.max_receive_message_length", limits.message_bytes),
                ("grpc.max_concurrent_streams", 256),
                ("grpc.so_reuseport", 0),
                # An agent that stands still, or whose host does, is found out; agents may ask the same of us.
                ("grpc.keepalive_time_ms", 10_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ),
        )
        self._service = Service(self.loop, self._hub, authority, callers.derived(secret, "tokens"))
        controller_pb2_grpc.add_HeteroShareServicer_to_server(self._service, server)
        controller_pb2_grpc.add_IdentityServicer_to_server(
            IdentityService(self.loop, self._hub, authority), server
        )
        agent_pb2_grpc.add_AgentLinkServicer_to_server(AgentService(self.loop, self._hub), server)
        try:
            server.add_insecure_port(f"unix:{guests.address}")
        except RuntimeError as error:
            raise DoorError(f"{guests.address}: cannot be listened on: {error}") from None
        await server.start()
        return server

    async def wait(self) -> None:
        """Until the loop ends, which it does not by itself; raises why it did."""
        assert self._running is not None
        await asyncio.shield(self._running)

    async def stop(self) -> None:
        """Let nobody in, finish what is queued, close the journal."""
        self._hub.close("the controller is stopping")
        if self._certificate is not None:
            await self._certificate.stop()
        await asyncio.gather(*(front.shut() for front in self._fronts))
        if self._server is not None:
            await self._server.stop(GRACE_S)
        if self._web is not None:
            await self._web.close()
        await asyncio.gather(*(front.close() for front in self._fronts))
        self._fronts.clear()
        if self._running is not None:
            self.loop.close()
            await asyncio.gather(self._running, return_exceptions=True)
        if self._loop is not None:
            await self._loop.store.close()


def check_accounts(config: Config) -> None:
    """The accounts that users' jobs run as have to be there; said with the place in the file."""
    for name, user in config.users.items():
        if user.run_as:
            try:
                check_account(user.run_as)
            except RefusedError as refused:
                raise ConfigError(f"{config.file}: users.{name}.{refused}") from None


async def run(config: Config, policy: Policy) -> None:
    """The daemon, until SIGTERM, SIGINT or SIGHUP (then it returns) or until it must not go on (then it raises)."""
    controller = Controller(config, policy)
    stopping = asyncio.Event()
    heed(stopping)
    log.info(
        "starting",
        version=version(),
        policy=policy.name,
        quantum_s=config.quantum_s,
        state=str(config.state_dir),
    )
    await controller.start()
    status(_status(controller.loop), "READY=1")
    alive = asyncio.create_task(_alive(controller.loop))
    asked = asyncio.create_task(stopping.wait())
    ended = asyncio.create_task(controller.wait())
    try:
        await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
    finally:
        status("stopping", "STOPPING=1")
        alive.cancel()
        asked.cancel()
        await controller.stop()
        ended.cancel()
        await asyncio.gather(alive, asked, ended, return_exceptions=True)
    status("stopped")
    log.info("stopped")


async def _alive(loop: Loop) -> None:
    """Signs of life from the loop that does the work: when it stands still, so do they. With them goes how it is."""
    watched_s = watchdog_s()
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            status(_status(loop), *(["WATCHDOG=1"] if watched_s else []))
            await asyncio.sleep(min(watched_s / 2, STATUS_S) if watched_s else STATUS_S)


def _status(loop: Loop) -> str:
    """For `systemctl status`."""
    if loop.read_only:
        return f"read-only: {loop.read_only}"
    machine = loop.mind.machine
    failing = f"; policy {machine.policy.name} fails: {machine.failure}" if machine.failure else ""
    return f"in office (term {machine.term}); {len(machine.connected)} of {len(machine.hosts())} servers are connected{failing}"
