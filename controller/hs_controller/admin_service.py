"""What administrators ask for: users, nodes, the policy, trades, support bundles, backups. Each change is an event with who made it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from hs_controller import backup, support, views
from hs_controller.accounts import check_account
from hs_controller.callers import administrators
from hs_controller.calls import DAY_S, Calls, Context, audit, key_of, reaches_all, revocation, seconds
from hs_controller.gate import CALLER
from hs_controller.intake import Make
from hs_controller.permissions import Caller
from hs_controller.pieces import Pieces
from hs_controller.rows import Event, Kept
from hs_controller.sqlite import StoreError
from hs_core.cluster import ClusterMachine, Outcome
from hs_core.errors import Kind, RefusedError
from hs_core.events.cluster import (
    ClusterEvent,
    GpusDrained,
    HostDrained,
    HostRemoved,
    HostUndrained,
    PolicySet,
    UserRemoved,
    UserSet,
)
from hs_core.facts import TRADE_UNDONE, Fact
from hs_core.model import Host, Job, JobState
from hs_core.names import HostName, JobId, UserName
from hs_core.policies import POLICIES
from hs_proto.v1 import controller_pb2 as pb

TRADES_DEFAULT, TRADES_MOST = 1000, 10_000
DEADLINE_MOST_S = 366 * DAY_S


class AdminCalls(Calls):
    _copies: backup.Copies
    _started_s: float

    # --- users ------------------------------------------------------------------------------------------------------

    async def SetUser(self, request: pb.SetUserRequest, context: Context) -> pb.UserView:
        caller = CALLER.get()
        key = key_of(caller, "SetUser", request)
        run_as = request.run_as if request.HasField("run_as") else None
        if run_as:
            await asyncio.to_thread(check_account, run_as)  # which may be asked of another machine
        name, by = UserName(request.name), UserName(caller.name)
        tickets = request.tickets if request.HasField("tickets") else None
        admins = await self._admins()

        def make(now_s: float, _machine: ClusterMachine) -> Sequence[ClusterEvent]:
            return [UserSet(now_s=now_s, by=by, name=name, tickets=tickets, run_as=run_as)]

        def render(_outcomes: Sequence[Outcome]) -> bytes:
            user = self._loop.mind.machine.user(name)
            assert user is not None
            return self._users(admins).view(user).SerializeToString()

        return pb.UserView.FromString(await self._loop.ask(make, render, key))

    async def ListUsers(self, request: pb.ListUsersRequest, context: Context) -> pb.ListUsersReply:
        caller = CALLER.get()
        everybody = reaches_all(caller, "ListUsers")
        asked = request.user or ("" if everybody else caller.name)
        if asked != caller.name and not everybody:
            raise RefusedError(f"there is no user {asked!r}", Kind.NOT_FOUND)
        admins = await self._admins()
        machine = await self._loop.settled()
        found = [user for user in machine.users() if asked in {"", user.name}]
        if request.user and not found:
            raise RefusedError(f"there is no user {asked!r}", Kind.NOT_FOUND)
        pieces, reply, known = Pieces(self._loop.settled), pb.ListUsersReply(), self._users(admins)
        for user in found:
            reply.users.append(known.view(user))
            await pieces.rest()
        return reply

    async def RemoveUser(self, request: pb.RemoveUserRequest, context: Context) -> pb.RemoveUserReply:
        """What it has received stays in the books, its tokens count no more."""
        caller, name = CALLER.get(), UserName(request.name)
        key = key_of(caller, "RemoveUser", request)
        configured = name in self._loop.config.users
        revoked = 0

        def make(now_s: float, machine: ClusterMachine) -> Sequence[ClusterEvent | Kept]:
            nonlocal revoked
            tokens = self._loop.mind.registry.usable(now_s, name)
            removed = UserRemoved(now_s=now_s, by=UserName(caller.name), name=name)
            revoked = len(tokens)
            gone = revocation(now_s, caller.name, tokens)
            # An account may have made itself a token without ever having submitted anything.
            return [gone] if tokens and machine.user(name) is None else [removed, gone]

        def render(_outcomes: Sequence[Outcome]) -> bytes:
            reply = pb.RemoveUserReply(name=name, revoked_tokens=revoked, configured=configured)
            return reply.SerializeToString()

        return pb.RemoveUserReply.FromString(await self._loop.ask(make, render, key))

    async def _admins(self) -> frozenset[str]:
        return await asyncio.to_thread(administrators, self._loop.config)  # which may ask another machine

    def _users(self, admins: frozenset[str]) -> views.Users:
        return views.Users(self._loop.mind, self._loop.config, admins, self._loop.clock.now_s())

    # --- nodes ------------------------------------------------------------------------------------------------------

    async def DrainNode(self, request: pb.DrainNodeRequest, context: Context) -> pb.NodeView:
        caller, node = CALLER.get(), HostName(request.node)
        deadline_s = seconds(request.deadline_s, "deadline_s", DEADLINE_MOST_S)

        def make(now_s: float, _machine: ClusterMachine) -> Sequence[ClusterEvent]:
            return [
                HostDrained(
                    now_s=now_s,
                    by=UserName(caller.name),
                    host=node,
                    reason=request.reason,
                    deadline_s=now_s + deadline_s if deadline_s else None,
                )
            ]

        return await self._change_node(caller, "DrainNode", request, make)

    async def UndrainNode(self, request: pb.NodeRequest, context: Context) -> pb.NodeView:
        caller, node = CALLER.get(), HostName(request.node)

        def make(now_s: float, _machine: ClusterMachine) -> Sequence[ClusterEvent]:
            return [HostUndrained(now_s=now_s, by=UserName(caller.name), host=node)]

        return await self._change_node(caller, "UndrainNode", request, make)

    async def SetGpuDrain(self, request: pb.SetGpuDrainRequest, context: Context) -> pb.NodeView:
        caller, node = CALLER.get(), HostName(request.node)
        if not request.gpus:
            raise RefusedError("gpus: none was named; their indices were expected")

        def make(now_s: float, machine: ClusterMachine) -> Sequence[ClusterEvent]:
            host = _known(machine, node)
            by_index = {gpu.index: gpu.id for gpu in host.gpus}
            unknown = sorted(set(request.gpus) - set(by_index))
            if unknown:
                there = ", ".join(map(str, sorted(by_index)))
                raise RefusedError(f"gpus: {node} has no GPU {unknown[0]}; it has {there}", Kind.NOT_FOUND)
            named = frozenset(by_index[index] for index in request.gpus)
            gpus = host.drained_gpus | named if request.drain else host.drained_gpus - named
            by = UserName(caller.name)
            return [GpusDrained(now_s=now_s, by=by, host=node, gpus=gpus, reason=request.reason)]

        return await self._change_node(caller, "SetGpuDrain", request, make)

    async def _change_node(
        self,
        caller: Caller,
        method: str,
        request: pb.DrainNodeRequest | pb.NodeRequest | pb.SetGpuDrainRequest,
        make: Make,
    ) -> pb.NodeView:
        def render(_outcomes: Sequence[Outcome]) -> bytes:
            mind = self._loop.mind
            host = _known(mind.machine, HostName(request.node))
            return views.node(mind, host, self._hub).SerializeToString()

        return pb.NodeView.FromString(await self._loop.ask(make, render, key_of(caller, method, request)))

    async def RemoveNode(self, request: pb.RemoveNodeRequest, context: Context) -> pb.RemoveNodeReply:
        """Its jobs are queued again, its certificates and invitations count no more, its connection ends."""
        caller, node = CALLER.get(), HostName(request.node)
        key = key_of(caller, "RemoveNode", request)
        there: list[JobId] = []

        def make(now_s: float, machine: ClusterMachine) -> Sequence[ClusterEvent | Kept]:
            registry = self._loop.mind.registry
            known, identity = machine.host(node), registry.node(node)
            invitations = registry.invitations(node)
            if known is None and identity is None and not invitations:
                raise RefusedError(f"unknown server {node!r}", Kind.NOT_FOUND)
            by = UserName(caller.name)
            facts: tuple[Fact, ...] = ()
            if known is None and (invitations or (identity is not None and not identity.removed)):
                facts = (audit(now_s, "host-removed", f"{by} removed {node}", by=by, host=node),)
            there[:] = [row.id for row in machine.jobs_at(node)]
            gone = Kept(now_s=now_s, rows=(registry.removed(node, now_s),), gone=invitations, facts=facts)
            removed = HostRemoved(now_s=now_s, by=by, host=node, force=request.force)
            return [gone] if known is None else [removed, gone]

        def render(_outcomes: Sequence[Outcome]) -> bytes:
            rows = [row for job in there if (row := self._loop.mind.machine.find(job)) is not None]
            # Some have been given another home by now.
            queued = [row.id for row in rows if _goes_on(row) and node not in row.hosts]
            return pb.RemoveNodeReply(node=node, requeued_jobs=queued).SerializeToString()

        answer = await self._loop.ask(make, render, key)
        link = self._hub.link(node)
        if link is not None and self._loop.mind.machine.host(node) is None:
            link.close(f"{node} was removed from the cluster")
        return pb.RemoveNodeReply.FromString(answer)

    # --- policy and trades ------------------------------------------------------------------------------------------

    async def GetPolicy(self, request: pb.PolicyRequest, context: Context) -> pb.PolicyView:
        await self._loop.settled()
        return self._policy()

    async def SetPolicy(self, request: pb.SetPolicyRequest, context: Context) -> pb.PolicyView:
        caller = CALLER.get()
        key = key_of(caller, "SetPolicy", request)

        def make(now_s: float, _machine: ClusterMachine) -> Sequence[ClusterEvent]:
            return [PolicySet(now_s=now_s, by=UserName(caller.name), name=request.name)]

        def render(_outcomes: Sequence[Outcome]) -> bytes:
            return self._policy().SerializeToString()

        return pb.PolicyView.FromString(await self._loop.ask(make, render, key))

    def _policy(self) -> pb.PolicyView:
        machine, watched = self._loop.mind.machine, self._loop.mind.watched
        needs = machine.policy.needs
        return pb.PolicyView(
            name=machine.policy.name,
            available=sorted(POLICIES),
            quantum_s=machine.settings.quantum_s,
            fair=needs.fair,
            preemptive=needs.preemptive,
            work_conserving=needs.work_conserving and needs.moves,
            decided_at=watched.decided_s,
            decision_s=watched.took_s,
            text=watched.text,
            failure=machine.failure,
            deciding_s=machine.deciding_s(self._loop.clock.now_s()),
            given_up=self._loop.given_up,
        )

    async def ListTrades(self, request: pb.ListTradesRequest, context: Context) -> pb.ListTradesReply:
        if request.limit > TRADES_MOST:
            raise RefusedError(f"limit: {request.limit}: at most {TRADES_MOST} was expected")
        limit = request.limit or TRADES_DEFAULT
        undone: tuple[Event, ...] = ()
        if request.all:
            undone = await self._loop.store.read(
                lambda journal: journal.events(kind=TRADE_UNDONE, limit=limit, newest=True)
            )
        machine = await self._loop.settled()
        trades = [views.trade(trade) for trade in machine.trades()]
        trades += [views.undone_trade(event) for event in undone]
        trades.sort(key=lambda view: (view.at, view.gives, view.receives, view.fast, view.slow))
        return pb.ListTradesReply(trades=trades[-limit:])

    # --- support bundle, backup -------------------------------------------------------------------------------------

    async def Support(self, request: pb.SupportRequest, context: Context) -> AsyncIterator[pb.SupportFile]:
        caller = CALLER.get()

        def make(now_s: float, _machine: ClusterMachine) -> Sequence[Kept]:
            text = f"{caller.name} takes a support bundle"
            return [Kept(now_s=now_s, facts=(audit(now_s, "support-bundle", text, by=caller.name),))]

        # A journal that cannot be written may be what the bundle is for.
        with contextlib.suppress(RefusedError):
            await self._loop.ask(make, lambda _outcomes: b"", None)
        async with contextlib.aclosing(support.files(self._loop, self._hub, self._started_s)) as files:
            async for file in files:
                yield file

    async def Backup(self, request: pb.BackupRequest, context: Context) -> AsyncIterator[pb.BackupChunk]:
        caller = CALLER.get()
        if self._copies.sending.locked():
            raise RefusedError("a backup is under way; try again when it is done", Kind.UNAVAILABLE)
        async with self._copies.sending:

            async def deed(kind: str, text: str) -> None:
                def make(now_s: float, _machine: ClusterMachine) -> Sequence[Kept]:
                    return [Kept(now_s=now_s, facts=(audit(now_s, kind, text, by=caller.name),))]

                await self._loop.ask(make, lambda _outcomes: b"", None)

            told = False
            try:
                await self._copies.check_room()
                await deed("backup", f"{caller.name} takes a backup")  # before: it is in the copy, too
                told = True
                copy = await self._copies.take()
            except StoreError as error:
                if told:
                    with contextlib.suppress(RefusedError):  # the journal may be what failed
                        await deed("backup-failed", f"the backup of {caller.name} could not be made: {error}")
                raise RefusedError(f"no backup could be made: {error}", Kind.UNAVAILABLE) from None
            with copy:
                for chunk in copy.chunks():
                    yield pb.BackupChunk(data=chunk.data, sha256=chunk.sha256)


def _known(machine: ClusterMachine, node: HostName) -> Host:
    host = machine.host(node)
    if host is None:
        known = ", ".join(sorted(one.name for one in machine.hosts())[:10]) or "none yet"
        raise RefusedError(f"unknown server {node!r}; known: {known}", Kind.NOT_FOUND)
    return host


def _goes_on(row: Job) -> bool:
    return not (row.state.ended or row.state in {JobState.PAUSED, JobState.CANCELLING})
