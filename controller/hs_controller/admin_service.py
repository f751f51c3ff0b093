"""What administrators ask for: nodes, users' tokens, trades, policy, backup."""

from collections.abc import AsyncIterator
from typing import NoReturn

from hs_controller.calls import Calls, Context
from hs_core.errors import Kind, RefusedError
from hs_proto.v1 import controller_pb2 as pb


def _unbuilt(name: str) -> NoReturn:
    raise RefusedError(f"{name}: this controller does not offer it", Kind.UNAVAILABLE)


class AdminCalls(Calls):
    async def ListTrades(self, request: pb.ListTradesRequest, context: Context) -> pb.ListTradesReply:
        _unbuilt("ListTrades")

    async def GetPolicy(self, request: pb.PolicyRequest, context: Context) -> pb.PolicyView:
        _unbuilt("GetPolicy")

    async def DrainNode(self, request: pb.DrainNodeRequest, context: Context) -> pb.NodeView:
        _unbuilt("DrainNode")

    async def UndrainNode(self, request: pb.NodeRequest, context: Context) -> pb.NodeView:
        _unbuilt("UndrainNode")

    async def SetGpuDrain(self, request: pb.SetGpuDrainRequest, context: Context) -> pb.NodeView:
        _unbuilt("SetGpuDrain")

    async def RemoveNode(self, request: pb.NodeRequest, context: Context) -> pb.RemoveNodeReply:
        _unbuilt("RemoveNode")

    async def Backup(self, request: pb.BackupRequest, context: Context) -> AsyncIterator[pb.BackupChunk]:
        chunks: tuple[pb.BackupChunk, ...] = ()
        for chunk in chunks:
            yield chunk
