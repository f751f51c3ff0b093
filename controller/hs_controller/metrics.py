"""What Prometheus is shown: the cluster as it is at this moment, beside what was counted (meters.py).

Names are stable: boards and alerts stand on them. A user, a pool or a server is a label; a job never is, as jobs come and go by the thousand.
"""

import os
import re
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from hs_controller.links import Hub, Link
from hs_controller.loop import Loop
from hs_controller.mind import Mind
from hs_controller.pieces import Pieces
from hs_controller.pki import Authority
from hs_controller.rows import Usage
from hs_core.cluster import ClusterMachine
from hs_core.model import Host, JobState
from hs_core.reports import Phase
from hs_daemon import boot_s, version

WINDOW_S = 3600.0  # of fairness, as in `hsctl share`
OPEN_METRICS, OPEN_METRICS_END = "application/openmetrics-text", b"# EOF\n"
SAMPLES_AT_ONCE = 100
REST_S = 0.008  # after each piece of 2 ms: with 1,000 servers the loop has a quarter of its time left, and more would come out of that of submits
_HEAD = re.compile(rb"^#.*\n", re.MULTILINE)  # of a family: said once


class _One(Collector):
    """For the library's encoders, which take a registry."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


async def exposition(
    loop: Loop, hub: Hub, accept: str, authority: Authority | None = None
) -> tuple[bytes, str]:
    """The page, and its content type: Prometheus' text format or OpenMetrics, as `accept` asks for."""
    encode, content_type = _encoder(accept)
    pieces, texts = Pieces(rest_s=REST_S), list[bytes]()
    for family in [*await gather(loop, hub, authority), *loop.meters.registry.collect()]:
        # A histogram's samples of one kind come together, so it stays whole; those have few.
        samples = max(1, len(family.samples))
        step = SAMPLES_AT_ONCE if family.type in {"gauge", "counter"} else samples
        for at in range(0, samples, step):
            some = copy(family)
            some.samples = family.samples[at : at + step]
            registry = CollectorRegistry(auto_describe=False)
            registry.register(_One(some))
            text = encode(registry).removesuffix(OPEN_METRICS_END)
            texts.append(text if at == 0 else _HEAD.sub(b"", text))
            await pieces.rest()
    if content_type.startswith(OPEN_METRICS):
        texts.append(OPEN_METRICS_END)
    return b"".join(texts), content_type


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # it compares the caller's version with its own, whatever that is
        return choose_encoder("")


async def gather(loop: Loop, hub: Hub, authority: Authority | None = None) -> list[Metric]:
    """Of the state as it is in the journal. Raises nothing: what is not known is left out."""
    await loop.settled()
    mind, now_s, pieces = loop.mind, loop.clock.now_s(), Pieces(loop.settled, rest_s=REST_S)
    return [
        *_controller(mind, now_s, read_only=bool(loop.read_only), given_up=loop.given_up),
        *await _users(mind, now_s, pieces),
        _certificates(authority),
        *await _nodes(mind, hub, now_s, pieces),
        await _queue(mind.machine, now_s, pieces),
        *_process(),
    ]


def _controller(mind: Mind, now_s: float, *, read_only: bool, given_up: int) -> list[Metric]:
    info = GaugeMetricFamily("hs_info", "1, with what runs here.", labels=["version", "policy"])
    info.add_metric([version(), mind.machine.policy.name], 1.0)
    return [
        info,
        GaugeMetricFamily(
            "hs_controller_term", "Grows whenever a controller takes office.", value=float(mind.machine.term)
        ),
        GaugeMetricFamily(
            "hs_controller_read_only",
            "1 while the journal cannot be written: nothing is submitted or changed, jobs go on.",
            value=float(read_only),
        ),
        GaugeMetricFamily(
            "hs_policy_failing",
            "1 while the policy fails: what it said last stands, and nobody is given a home.",
            value=float(bool(mind.machine.failure)),
        ),
        GaugeMetricFamily(
            "hs_policy_deciding_seconds",
            "For how long the policy has been at its decision; 0 while it is at none.",
            value=mind.machine.deciding_s(now_s),
        ),
        GaugeMetricFamily(
            "hs_policy_given_up_decisions",
            "Decisions that were given up, and have not come to their end.",
            value=float(given_up),
        ),
    ]


def _certificates(authority: Authority | None) -> Metric:
    ends = GaugeMetricFamily(
        "hs_certificate_end_seconds",
        "When the cluster's CA, and the certificate that the controller shows, end: seconds since 1970.",
        labels=["certificate"],
    )
    if authority is not None:
        ends.add_metric(["ca"], authority.until_s)
        ends.add_metric(["controller"], authority.own_until_s)
    return ends


def _started_s() -> float:
    """Since 1970. Counted back once: a clock that is set later is no start."""
    ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    return round(time.time() - (boot_s() - ticks / os.sysconf("SC_CLK_TCK")), 2)


STARTED_S = _started_s()


def _process() -> list[Metric]:
    """Under the names that everybody's boards know. The library's own wants /proc/stat, which the service's unit hides."""
    resident_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return [
        CounterMetricFamily(
            "process_cpu_seconds", "User and system CPU time spent in seconds.", value=time.process_time()
        ),
        GaugeMetricFamily(
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
            value=STARTED_S,
        ),
        GaugeMetricFamily(
            "process_resident_memory_bytes",
            "Resident memory size in bytes.",
            value=float(resident_pages * resource.getpagesize()),
        ),
        GaugeMetricFamily(
            "process_open_fds",
            "Number of open file descriptors.",
            value=float(sum(1 for _ in Path("/proc/self/fd").iterdir())),
        ),
        GaugeMetricFamily(
            "process_max_fds",
            "Maximum number of open file descriptors.",
            value=float(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        ),
    ]


async def _users(mind: Mind, now_s: float, pieces: Pieces) -> list[Metric]:
    machine, ledger = mind.machine, mind.ledger
    pool = ["user", "gpu_type"]
    tickets = GaugeMetricFamily("hs_user_tickets", "The user's tickets.", labels=["user"])
    entitled = GaugeMetricFamily(
        "hs_user_entitled_gpus", "GPUs that the user is entitled to now, after trades.", labels=pool
    )
    demand = GaugeMetricFamily("hs_user_demand_gpus", "GPUs that the user's jobs could use now.", labels=pool)
    due = CounterMetricFamily(
        "hs_user_entitled_gpu_seconds", "GPU-seconds that the user was entitled to.", labels=pool
    )
    received = CounterMetricFamily(
        "hs_user_received_gpu_seconds", "GPU-seconds that the user's jobs have received.", labels=pool
    )
    lost = CounterMetricFamily(
        "hs_lost_gpu_seconds", "GPU-seconds of work that had to be done again.", labels=pool
    )
    fairness = GaugeMetricFamily(
        "hs_user_fairness_ratio",
        "GPU-time received in the last hour, or since there are samples, for what the user was entitled to in it, under a policy that holds shares to tickets.",
        labels=["user"],
    )
    for user in machine.users():
        tickets.add_metric([user.name], user.tickets)
    sums: dict[str, list[float]] = {}
    for (name, model), gpus in machine.entitled().items():
        entitled.add_metric([name, model], gpus)
        if gpus > 0:
            sums[name] = [0.0, 0.0]
    for (name, model), gpus in machine.demand().items():
        demand.add_metric([name, model], float(gpus))
    for account in sorted(ledger.totals.keys() | machine.entitled().keys()):
        # What has come together since the last sample is counted with the next: a crash takes it, and a counter that goes back has begun anew.
        new = ledger.totals.get(account, Usage()) - mind.counted_before.get(account, Usage())
        received.add_metric(list(account), max(0.0, new.gpu_s))
        lost.add_metric(list(account), max(0.0, new.lost_gpu_s))
        due.add_metric(list(account), max(0.0, new.entitled_gpu_s))
        if account[0] in sums:
            sums[account[0]][0] += ledger.received_gpus(account, WINDOW_S, now_s)
            sums[account[0]][1] += ledger.due_gpus(account, WINDOW_S, now_s)
        await pieces.rest()
    for user_name, (had, was_due) in sorted(sums.items()):
        if was_due > 0 and machine.policy.needs.fair:
            fairness.add_metric([user_name], had / was_due)
    return [tickets, entitled, due, demand, received, lost, fairness]


_OF_A_NODE = {
    "hs_agent_up": "1 while the node's agent is connected.",
    "hs_agent_report_age_seconds": "Since the node's agent has reported last.",
    "hs_node_draining": "1 while the node is drained.",
    "hs_node_cannot_start": "1 from when the node could not start a job until it has started one.",
    "hs_node_jobs": "Jobs that live on the node, or whose checkpoint is to be had from there only.",
    "hs_node_memory_bytes": "The node's host memory.",
    "hs_node_memory_available_bytes": "What is left of it before its agent starts nobody.",
    "hs_host_memory_parked_bytes": "Device memory of suspended jobs that is kept in host memory.",
    "hs_node_gpu_utilization_ratio": "How busy the node's GPUs say they are, 0 to 1, their mean.",
    "hs_node_gpu_memory_used_bytes": "Device memory in use, as the node's GPUs say.",
    "hs_node_certificate_end_seconds": "When the newest certificate that the node was given ends: seconds since 1970.",
}


async def _nodes(mind: Mind, hub: Hub, now_s: float, pieces: Pieces) -> list[Metric]:
    machine = mind.machine
    families = {name: GaugeMetricFamily(name, text, labels=["node"]) for name, text in _OF_A_NODE.items()}
    state = GaugeMetricFamily(
        "hs_gpu_state",
        "1, with the state of the GPU: away, unhealthy, busy, drained or idle.",
        labels=["node", "gpu", "gpu_type", "state"],
    )
    for host in machine.hosts():
        # As in `hsctl nodes`: a machine that has just taken office has been told of nobody yet, and all servers would be said to be away.
        link, heard_s = hub.link(host.name), hub.heard_s(host.name)
        busy, parked_bytes = _in_use(machine, host)
        if heard_s > 0:
            families["hs_agent_report_age_seconds"].add_metric([host.name], max(0.0, now_s - heard_s))
        for name, value in (*_as_known(mind, host), *_as_connected(link, parked_bytes)):
            families[name].add_metric([host.name], float(value))
        for gpu in host.gpus:
            word = _state(host, gpu.id, gpu.healthy, connected=link is not None, busy=gpu.id in busy)
            state.add_metric([host.name, str(gpu.index), gpu.model, word], 1.0)
        await pieces.rest()
    return [*families.values(), state]


def _as_known(mind: Mind, host: Host) -> Iterator[tuple[str, float]]:
    machine, until_s = mind.machine, mind.registry.certificate_until_s(host.name)
    if until_s > 0:
        yield "hs_node_certificate_end_seconds", until_s
    yield "hs_node_draining", host.drain is not None
    yield "hs_node_cannot_start", bool(machine.cannot_start(host.name))
    yield "hs_node_jobs", len(machine.jobs_at(host.name)) + len(machine.needing(host.name))


def _as_connected(link: Link | None, parked_bytes: int) -> Iterator[tuple[str, float]]:
    """What is known only while it is here."""
    yield "hs_agent_up", link is not None
    if link is None:
        return
    yield "hs_host_memory_parked_bytes", parked_bytes
    if link.memory is not None:
        yield "hs_node_memory_bytes", link.memory.total_bytes
        yield "hs_node_memory_available_bytes", link.memory.available_bytes
    if link.gpus:
        busy = sum(reading.utilization_percent for reading in link.gpus)
        yield "hs_node_gpu_utilization_ratio", busy / len(link.gpus) / 100.0
        yield "hs_node_gpu_memory_used_bytes", sum(reading.memory_used_bytes for reading in link.gpus)


def _in_use(machine: ClusterMachine, host: Host) -> tuple[set[str], int]:
    """The GPUs whose turn somebody has, and bytes parked in host memory."""
    busy, parked_bytes = set[str](), 0
    for row in machine.jobs_at(host.name):
        report = row.reports.get(host.name)
        if report is None:
            continue
        if report.occupies:
            busy.update(report.gpus)
        if report.phase is Phase.SWAPPED:
            parked_bytes += report.device_memory_bytes * len(report.gpus)
    return busy, parked_bytes


def _state(host: Host, gpu: str, healthy: bool, *, connected: bool, busy: bool) -> str:
    if not connected:
        return "away"
    if not healthy:
        return "unhealthy"
    if busy:
        return "busy"
    return "drained" if host.drain is not None or gpu in host.drained_gpus else "idle"


async def _queue(machine: ClusterMachine, now_s: float, pieces: Pieces) -> Metric:
    counts: Counter[tuple[JobState, str]] = Counter()
    for job in machine.jobs():
        row = machine.find(job.id)  # others may have had their turn meanwhile
        if row is not None and not row.state.ended:
            counts[row.state, machine.why(row.id, now_s).reason.value] += 1
        await pieces.rest()
    queue = GaugeMetricFamily(
        "hs_queue_jobs",
        "Jobs that have not ended, by state and by why they are where they are, as in `hsctl why`.",
        labels=["state", "reason"],
    )
    for (state, reason), jobs in sorted(counts.items()):
        queue.add_metric([state.value, reason], float(jobs))
    return queue
