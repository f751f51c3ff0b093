"""What administrators ask for: nodes, users' tokens, trades, policy, backup."""

from collections.abc import AsyncIterator
from typing import Any, NoReturn, TypeAlias

import grpc

from hs_core.errors import Kind, RefusedError
from hs_proto.v1 import controller_pb2 as pb
from hs_proto.v1 import controller_pb2_grpc

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # generic in the stubs only


def _unbuilt(name: str) -> NoReturn:
    raise RefusedError(f"{name}: this controller does not offer it", Kind.UNAVAILABLE)


class AdminCalls(controller_pb2_grpc.HeteroShareServicer):
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

    async def EnrollNode(self, request: pb.EnrollNodeRequest, context: Context) -> pb.EnrollNodeReply:
        _unbuilt("EnrollNode")

    async def RemoveNode(self, request: pb.NodeRequest, context: Context) -> pb.RemoveNodeReply:
        _unbuilt("RemoveNode")

    async def CreateToken(self, request: pb.CreateTokenRequest, context: Context) -> pb.CreateTokenReply:
        _unbuilt("CreateToken")

    async def ListTokens(self, request: pb.ListTokensRequest, context: Context) -> pb.ListTokensReply:
        _unbuilt("ListTokens")

    async def RevokeToken(self, request: pb.RevokeTokenRequest, context: Context) -> pb.TokenView:
        _unbuilt("RevokeToken")

    async def Backup(self, request: pb.BackupRequest, context: Context) -> AsyncIterator[pb.BackupChunk]:
        chunks: tuple[pb.BackupChunk, ...] = ()
        for chunk in chunks:
            yield chunk
