# ruff: noqa: N802 — gRPC names the methods
"""A controller that does as it is told: the real wire on a unix socket, everything behind it scripted."""

import threading
from collections import defaultdict
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from hs_client.version import VERSION
from hs_proto import dialect
from hs_proto.v1 import common_pb2 as common
from hs_proto.v1 import controller_pb2 as wire
from hs_proto.v1.controller_pb2_grpc import HeteroShareServicer, add_HeteroShareServicer_to_server

# What `--json` has of a job first, in this order.
CONTRACT = [
    "id", "user", "name", "state", "reason", "gpus", "gpu_type", "nodes", "gpu_ids", "epoch", "share", "rate", "steps",
    "suspends", "migrations", "lost_gpu_s", "submitted_at", "started_at", "ended_at", "exit_code",
]  # fmt: skip
ENDED = {"succeeded", "failed", "cancelled"}
CODES = {
    "invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "impossible": grpc.StatusCode.FAILED_PRECONDITION,
    "not-found": grpc.StatusCode.NOT_FOUND,
    "not-allowed": grpc.StatusCode.PERMISSION_DENIED,
    "conflict": grpc.StatusCode.ABORTED,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
}
GPUS = [
    common.Gpu(id=f"GPU-{i}", index=i, model="V100", memory_bytes=16 << 30, healthy=i != 3) for i in range(4)
]


class FakeController(HeteroShareServicer):
    def __init__(self) -> None:
        self.requests: dict[str, list[Any]] = defaultdict(list)
        self.metadata: dict[str, dict[str, Any]] = {}
        self.refusals: dict[str, tuple[str, str]] = {}  # method -> (kind, text)
        self.hooks: dict[str, Any] = {}  # method -> called with the context first
        self.losses: dict[str, int] = {}  # method -> connections to lose first …
        self.stops = False  # … as one that stops in an orderly way ends calls
        self.keys: dict[str, wire.SubmitReply] = {}
        self.jobs: dict[int, wire.JobView] = {}
        self.totals: wire.JobTotals | None = None  # of all jobs; None: of those that are here
        self.specs: dict[int, common.JobSpec] = {}
        self.details: dict[int, dict[str, Any]] = {}  # of a job's page what a test says itself
        self.logs: dict[int, list[bytes]] = {}
        self.execs: list[wire.ExecChunk] = []
        self.hold_execs = False  # nothing more comes, and it goes on
        self.left = threading.Event()  # who had a command
        self.hold_logs: set[int] = set()  # a followed log that stays open until the job has ended
        self.stories: dict[int, list[wire.Event]] = {}
        self.whys: dict[int, wire.WhyReply] = {}
        self.events: list[wire.Event] = []
        self.end_events = True
        self.trades: list[wire.TradeView] = []
        self.tokens: list[wire.TokenView] = []
        self.users: list[wire.UserView] = []
        self.policy = wire.PolicyView(
            name="gandiva-fair", available=["fifo", "gandiva-fair"], quantum_s=60, fair=True, text="shares"
        )
        self.copy: list[wire.BackupChunk] = []
        self.supports: list[wire.SupportFile] = []
        self.notes: list[str] = []
        self.cut_off: list[
            str
        ] = []  # how streams of output are refused (empty: ended, as by a controller that stops), one after another, once all that there is has been said
        self.info = wire.InfoReply(
            version=VERSION,
            dialect=dialect.of_clients(),
            term=3,
            policy="gandiva-fair",
            quantum_s=60,
            uptime_s=5000,
            you="ann",
        )
        self.shares = wire.SharesReply(window_s=60)
        self.usage: list[wire.UsageRow] = []
        self.nodes: list[wire.NodeView] = []
        self.now = self.wall_now = 0.0  # by its clocks; 0: it does not say
        self.changed = threading.Condition()

    # --- what a test arranges

    def add(self, **fields: Any) -> wire.JobView:
        with self.changed:
            job_id = fields.pop("id", len(self.jobs) + 1)
            fields = {
                "name": "train",
                "user": "ann",
                "state": "queued",
                "gpus": 1,
                "sliceable": True,
                "submitted_at": 1.7e9,
            } | fields
            view = self.jobs[job_id] = wire.JobView(id=job_id, **fields)
            self.specs.setdefault(
                job_id,
                common.JobSpec(name=view.name, command=["/bin/true"], gpus=view.gpus, nodes=1, workdir="/"),
            )
            self.changed.notify_all()
        return view

    def change(self, job_id: int, **fields: Any) -> None:
        with self.changed:
            view = wire.JobView()
            view.CopyFrom(self.jobs[job_id])
            for name, value in fields.items():
                if name == "exit":
                    view.exit.CopyFrom(value)
                else:
                    setattr(view, name, value)
            self.jobs[job_id] = view
            self.changed.notify_all()

    def end(self, job_id: int, state: str = "succeeded", **how: Any) -> None:
        self.change(job_id, state=state, ended_at=1.7e9 + 100, exit=common.Exit(**how))

    def last(self, method: str) -> Any:
        return self.requests[method][-1]

    # --- the service

    def _came(self, method: str, request: Any, context: grpc.ServicerContext) -> None:
        copy = type(request)()
        copy.CopyFrom(request)
        self.requests[method].append(copy)
        self.metadata[method] = dict(context.invocation_metadata())
        if method in self.hooks:
            self.hooks[method](context)
        if self.losses.get(method, 0) > 0:
            self.losses[method] -= 1
            if self.stops:
                context.abort(grpc.StatusCode.CANCELLED, "")
            context.abort(grpc.StatusCode.UNAVAILABLE, "connection lost")
        if method in self.refusals:
            self._refuse(context, *self.refusals[method])

    def _refuse(self, context: grpc.ServicerContext, kind: str, text: str) -> None:
        context.set_trailing_metadata((("hs-kind", kind),))
        context.abort(CODES[kind], text)

    def _job(self, job_id: int, context: grpc.ServicerContext) -> wire.JobView:
        if job_id not in self.jobs:
            self._refuse(context, "not-found", f"no such job: {job_id}")
        return self.jobs[job_id]

    def Info(self, request, context):
        self._came("Info", request, context)
        return self.info

    def Submit(self, request, context):
        if request.key in self.keys and self.losses.get("Submit", 0) == 0:
            self.requests["Submit"].append(request)
            return self.keys[request.key]
        if not request.dry_run and "Submit" not in self.refusals and request.key not in self.keys:
            ids = []
            for spec in request.jobs:
                view = self.add(name=spec.name, user=request.as_user or "ann", gpus=spec.gpus * spec.nodes)
                self.specs[view.id] = spec
                ids.append(view.id)
            # Done even when the answer is then lost: only the key tells a repetition.
            self.keys[request.key] = wire.SubmitReply(job_ids=ids, notes=self.notes)
        self._came("Submit", request, context)
        return self.keys.get(request.key) or wire.SubmitReply(notes=self.notes)

    def _many(self, method, request, context, state):
        self._came(method, request, context)
        for job_id in request.job_ids:
            self._job(job_id, context)
        there = (state, "running") if method == "Unpause" else (state,)
        unchanged = [j for j in request.job_ids if self.jobs[j].state in there]
        for job_id in set(request.job_ids) - set(unchanged):
            self.change(job_id, state=state)
        return wire.JobsReply(jobs=[self.jobs[j] for j in request.job_ids], unchanged=unchanged)

    def Cancel(self, request, context):
        return self._many("Cancel", request, context, "cancelling")

    def Pause(self, request, context):
        return self._many("Pause", request, context, "paused")

    def Unpause(self, request, context):
        return self._many("Unpause", request, context, "queued")

    def ListJobs(self, request, context):
        self._came("ListJobs", request, context)
        found = [
            view for view in self.jobs.values()
            if (not request.user or view.user == request.user)
            and (not request.array_id or view.array_id == request.array_id)
            and (view.state in request.states if request.states else request.all or view.state not in ENDED)
        ]  # fmt: skip
        totals = self.totals or wire.JobTotals(jobs=len(found), lost_gpu_s=sum(v.lost_gpu_s for v in found))
        return wire.ListJobsReply(jobs=found[-request.limit :], totals=totals if request.totals else None)

    def GetJob(self, request, context):
        self._came("GetJob", request, context)
        view = self._job(request.job_id, context)
        own = {
            "job_class": "ann/python /home/ann/train.py/1",
            "way_rates": [
                wire.WayRate(gpu_model="K80", steps_per_s=2.5, nodes=1),
                wire.WayRate(gpu_model="V100", steps_per_s=12.5, nodes=1),
            ],
        } | self.details.get(view.id, {})
        return wire.JobDetail(
            view=view, spec=self.specs[view.id], story=self.stories.get(view.id, []),
            rates=[
                wire.Rate(gpu_model="K80", steps_per_s=2.5, samples=1, speedup=1),
                wire.Rate(gpu_model="V100", steps_per_s=12.5, samples=3, speedup=5),
            ],
            **own,
        )  # fmt: skip

    def WatchJob(self, request, context):
        self._came("WatchJob", request, context)
        told = None
        while context.is_active():
            with self.changed:
                view = self._job(request.job_id, context)
                if view is told:
                    self.changed.wait(0.05)
                    continue
            told = view
            yield view
            if view.state in ENDED:
                return

    def Why(self, request, context):
        self._came("Why", request, context)
        self._job(request.job_id, context)
        return self.whys[request.job_id]

    def Logs(self, request, context):
        self._came("Logs", request, context)
        self._job(request.job_id, context)
        lines = b"".join(self.logs.get(request.job_id, [])).splitlines(keepends=True)
        kept = lines if request.tail_lines < 0 else lines[len(lines) - request.tail_lines :]
        for line in kept:
            yield wire.LogsChunk(data=line, epoch=self.jobs[request.job_id].epoch)
        if self.cut_off:
            said = self.cut_off.pop(0)
            if not said:
                context.abort(grpc.StatusCode.CANCELLED, "")
            self._refuse(context, "unavailable", said)
        while request.follow and request.job_id in self.hold_logs and context.is_active():
            with self.changed:
                if self.jobs[request.job_id].state in ENDED:
                    return
                self.changed.wait(0.05)

    def Exec(self, request, context):
        self._came("Exec", request, context)
        self._job(request.job_id, context)
        if self.hold_execs:  # asked of nothing that it yields any more, once the call is over
            context.add_callback(self.left.set)
        yield from self.execs
        while self.hold_execs and context.is_active():
            with self.changed:
                self.changed.wait(0.05)

    def Shares(self, request, context):
        self._came("Shares", request, context)
        return self.shares

    def Usage(self, request, context):
        self._came("Usage", request, context)
        return wire.UsageReply(rows=self.usage)

    def ListNodes(self, request, context):
        self._came("ListNodes", request, context)
        return wire.ListNodesReply(nodes=self.nodes, now=self.now, wall_now=self.wall_now)

    def Events(self, request, context):
        self._came("Events", request, context)
        for event in self.events:
            if event.seq > request.after_seq and (not request.job_id or event.job_id == request.job_id):
                yield event
        while request.follow and not self.end_events and context.is_active():
            with self.changed:
                self.changed.wait(0.05)

    def ListTrades(self, request, context):
        self._came("ListTrades", request, context)
        there = sorted((t for t in self.trades if request.all or not t.undone), key=lambda trade: trade.at)
        return wire.ListTradesReply(trades=there[-(request.limit or 1000) :])

    def GetPolicy(self, request, context):
        self._came("GetPolicy", request, context)
        return self.policy

    def SetPolicy(self, request, context):
        self._came("SetPolicy", request, context)
        self.policy.name = request.name
        return self.policy

    def _node(self, name, context):
        for view in self.nodes:
            if view.name == name:
                return view
        self._refuse(context, "not-found", f"no such node: {name}")
        return None

    def DrainNode(self, request, context):
        self._came("DrainNode", request, context)
        view = self._node(request.node, context)
        view.draining, view.drain_reason = True, request.reason
        view.drain_deadline_at = 2e9 if request.deadline_s else 0
        return view

    def UndrainNode(self, request, context):
        self._came("UndrainNode", request, context)
        view = self._node(request.node, context)
        view.draining, view.drain_reason = False, ""
        return view

    def SetGpuDrain(self, request, context):
        self._came("SetGpuDrain", request, context)
        view = self._node(request.node, context)
        left = set(view.drained_gpus) - set(request.gpus)
        view.drained_gpus[:] = sorted(left | set(request.gpus) if request.drain else left)
        return view

    def EnrollNode(self, request, context):
        self._came("EnrollNode", request, context)
        return wire.EnrollNodeReply(
            token="one-time", ca_sha256="ab" * 32, controller="head:7443", not_after=2e9
        )

    def RemoveNode(self, request, context):
        self._came("RemoveNode", request, context)
        self._node(request.node, context)
        return wire.RemoveNodeReply(node=request.node, requeued_jobs=[3, 4])

    def CreateToken(self, request, context):
        self._came("CreateToken", request, context)
        view = wire.TokenView(id="t1", user=request.user or "ann", label=request.label, not_after=2e9)
        return wire.CreateTokenReply(token="hs_secret", view=view)

    def ListTokens(self, request, context):
        self._came("ListTokens", request, context)
        return wire.ListTokensReply(
            tokens=[t for t in self.tokens if not request.user or t.user == request.user], now=self.now
        )

    def RevokeToken(self, request, context):
        self._came("RevokeToken", request, context)
        node = next((t.node for t in self.tokens if t.id == request.id), "")
        return wire.TokenView(id=request.id, user="ann", revoked=True, node=node)

    def Support(self, request, context):
        self._came("Support", request, context)
        yield from self.supports

    def Backup(self, request, context):
        self._came("Backup", request, context)
        yield from self.copy

    def ListUsers(self, request, context):
        self._came("ListUsers", request, context)
        return wire.ListUsersReply(users=[u for u in self.users if request.user in {"", u.name}])

    def RemoveUser(self, request, context):
        self._came("RemoveUser", request, context)
        [gone] = [u for u in self.users if u.name == request.name]
        return wire.RemoveUserReply(name=gone.name, revoked_tokens=gone.tokens, configured=gone.configured)

    def SetUser(self, request, context):
        self._came("SetUser", request, context)
        return wire.UserView(name=request.name, tickets=request.tickets or 100, run_as=request.run_as)


class Serving:
    """The fake on a socket; `stop` and `start` are a controller's restart."""

    def __init__(self, fake: FakeController, socket: Path, credentials: Any = None) -> None:
        self.fake, self.socket, self.credentials = fake, socket, credentials
        self.server: grpc.Server | None = None
        self.port = 0  # with credentials: where it is served by TLS too

    def start(self) -> None:
        self.server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
        add_HeteroShareServicer_to_server(self.fake, self.server)
        assert self.server.add_insecure_port(f"unix:{self.socket}")
        if self.credentials is not None:
            self.port = self.server.add_secure_port("127.0.0.1:0", self.credentials)
        self.server.start()

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop(0).wait(5)
            self.server = None
