"""The daemon put together: journal, loop, doors; started in that order and stopped in the opposite one."""

import asyncio
import contextlib
import signal

import grpc
import structlog

from hs_controller import doors
from hs_controller.agents import AgentService
from hs_controller.config import Config, ConfigError
from hs_controller.doors import DoorError, Front, Identity
from hs_controller.gate import Gate
from hs_controller.journal import Journal
from hs_controller.links import Hub
from hs_controller.loop import Loop
from hs_controller.notify import notify, watchdog_s
from hs_controller.permissions import Role
from hs_controller.service import Service, check_account, version
from hs_core.errors import RefusedError
from hs_core.policy import Policy
from hs_proto.v1 import agent_pb2_grpc, controller_pb2_grpc

log = structlog.get_logger("hs_controller")

GRACE_S = 0.5


class Controller:
    def __init__(self, config: Config, policy: Policy) -> None:
        self.config = config
        self.address = ""  # of the loopback door, once it is open
        self._policy = policy
        self._hub = Hub()
        self._loop: Loop | None = None
        self._running: asyncio.Task[None] | None = None
        self._fronts: list[Front] = []
        self._loopback: grpc.aio.Server | None = None

    @property
    def loop(self) -> Loop:
        assert self._loop is not None
        return self._loop

    async def start(self) -> None:
        """Raises StoreError or DoorError, and then nothing is left open."""
        check_accounts(self.config)
        journal = await asyncio.to_thread(Journal.open, self.config.state_dir)
        try:
            self._loop = await Loop.start(journal, self.config, self._policy)
        except BaseException:
            journal.close()
            raise
        self._loop.hosts = self._hub
        self._service = Service(self._loop, self._hub)
        self._agents = AgentService(self._loop, self._hub)
        self._running = asyncio.create_task(self._loop.run(), name="loop")
        try:
            await self._open_doors()
        except BaseException:
            await self.stop()
            raise

    async def _open_doors(self) -> None:
        config = self.config
        mode = 0o600 if config.embedded else 0o666
        fronts = [Front(config.socket, mode, config.limits, self, lambda uid: doors.caller_of(uid, config))]
        if config.agent_socket is not None:
            fronts.append(
                Front(
                    config.agent_socket,
                    0o600,
                    config.limits,
                    self,
                    lambda uid: doors.caller_of(uid, config),
                    lambda caller: Role.AGENT in caller.roles,
                )
            )
        for front in fronts:
            await front.open()
            self._fronts.append(front)
            log.info("listening", socket=str(front.path))
        if config.listen is not None:
            host, port = config.listen
            identity = await asyncio.to_thread(doors.bearer, config.state_dir)
            self._loopback, bound = await self._server(
                identity, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            )
            self.address = f"{host}:{bound}"
            log.info("listening", address=self.address)

    async def serve(self, identity: Identity, address: str) -> grpc.aio.Server:
        server, _ = await self._server(identity, address)
        return server

    async def _server(self, identity: Identity, address: str) -> tuple[grpc.aio.Server, int]:
        limits = self.config.limits
        server = grpc.aio.server(
            interceptors=[Gate(identity)],
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
        controller_pb2_grpc.add_HeteroShareServicer_to_server(self._service, server)
        agent_pb2_grpc.add_AgentLinkServicer_to_server(self._agents, server)
        try:
            port = server.add_insecure_port(address)
        except RuntimeError as error:
            raise DoorError(f"{address}: cannot be listened on: {error}") from None
        await server.start()
        return server, port

    async def wait(self) -> None:
        """Until the loop ends, which it does not by itself; raises why it did."""
        assert self._running is not None
        await asyncio.shield(self._running)

    async def stop(self) -> None:
        """Let nobody in, finish what is queued, close the journal."""
        self._hub.close("the controller is stopping")
        await asyncio.gather(*(front.close() for front in self._fronts))
        self._fronts.clear()
        if self._loopback is not None:
            await self._loopback.stop(GRACE_S)
        if self._running is not None:
            self.loop.close()
            await asyncio.gather(self._running, return_exceptions=True)
        if self._loop is not None:
            await asyncio.to_thread(self._loop.store.close)


def check_accounts(config: Config) -> None:
    """The accounts that users' jobs run as have to be there; said with the place in the file."""
    for name, user in config.users.items():
        if user.run_as:
            try:
                check_account(user.run_as)
            except RefusedError as refused:
                raise ConfigError(f"{config.file}: users.{name}.{refused}") from None


async def run(config: Config, policy: Policy) -> None:
    """The daemon, until SIGTERM or SIGINT (then it returns) or until it must not go on (then it raises)."""
    controller = Controller(config, policy)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    log.info(
        "starting",
        version=version(),
        policy=policy.name,
        quantum_s=config.quantum_s,
        state=str(config.state_dir),
    )
    await controller.start()
    notify("READY=1\nSTATUS=serving")
    alive = asyncio.create_task(_alive())
    asked = asyncio.create_task(stopping.wait())
    ended = asyncio.create_task(controller.wait())
    try:
        await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
    finally:
        notify("STOPPING=1")
        alive.cancel()
        asked.cancel()
        await controller.stop()
        ended.cancel()
        await asyncio.gather(alive, asked, ended, return_exceptions=True)
    log.info("stopped")


async def _alive() -> None:
    """Signs of life from the loop that does the work: when it stands still, so do they."""
    every_s = watchdog_s()
    if every_s is None:
        return
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            notify("WATCHDOG=1")
            await asyncio.sleep(every_s / 2)
