"""What the controller is told of this host over one connection: everything at first, then what changed, in messages that it takes."""

import secrets
from typing import Protocol

from hs_agent import procs
from hs_agent.config import Config, memory_bytes
from hs_agent.devices import Reading
from hs_core.model import Gpu
from hs_core.names import JobId
from hs_core.reports import MOST_AT_ONCE, JobReport, differs, parting
from hs_core.wanted import WantedJob
from hs_daemon import boot_s, version
from hs_proto import convert, dialect
from hs_proto.v1 import agent_pb2, common_pb2

MAX_REPORTS_BYTES = 768 << 10  # in one message, of which the controller takes 1 MiB
FRAME_BYTES = 4  # around each of them
TOLD_BYTES = 48 << 20  # of what it was told, in all its messages: the controller takes 64 MiB

PROCESS = secrets.token_hex(8)
"""Which agent this is: a copy of its state on the same machine has the same name, certificate and boot."""


class Host(Protocol):
    """How it stands."""

    warnings: tuple[str, ...]

    @property
    def gpus(self) -> tuple[Gpu, ...]: ...

    @property
    def readings(self) -> tuple[Reading, ...]: ...

    @property
    def left_bytes(self) -> int | None: ...

    @property
    def troubles(self) -> tuple[str, ...]: ...

    @property
    def peer_address(self) -> str: ...

    @property
    def setup(self) -> str: ...

    def reports(self) -> tuple[JobReport, ...]: ...

    def last_words(self) -> tuple[JobReport, ...]: ...

    def told(self) -> tuple[WantedJob, ...]: ...

    def heard(self) -> tuple[int, int]: ...


class Tidings:
    def __init__(self, config: Config, host: Host) -> None:
        self._config, self._host = config, host
        self._sent: dict[JobId, JobReport] = {}
        self._sent_gpus: list[common_pb2.Gpu] = []

    def hello(self) -> list[agent_pb2.Hello]:
        """In as many messages as the jobs need."""
        reports = self._host.reports()
        self._sent = {report.job: report for report in reports}
        self._sent_gpus = self._gpus()
        first = agent_pb2.Hello(
            host=self._config.name,
            boot_id=procs.boot_id(),
            process=PROCESS,
            version=version(),
            dialect=dialect.of_agents(),
            gpus=self._sent_gpus,
            warnings=self._host.warnings,
            peer=self._host.peer_address,
            memory_bytes=memory_bytes(self._config.cgroup_root),
            setup=self._host.setup,
            said_s=boot_s(),
        )
        hello, left_bytes = [first], MAX_REPORTS_BYTES
        last_words = self._host.last_words()
        for at, report in enumerate((*last_words, *reports)):
            told = convert.from_report(report)
            said = len(hello[-1].last_words) + len(hello[-1].jobs)
            if told.ByteSize() > left_bytes or said == MOST_AT_ONCE:
                hello[-1].more = True
                hello.append(agent_pb2.Hello())
                left_bytes = MAX_REPORTS_BYTES
            left_bytes -= told.ByteSize() + FRAME_BYTES
            (hello[-1].last_words if at < len(last_words) else hello[-1].jobs).append(told)
        return hello

    def told(self, unknown: range) -> list[agent_pb2.Told]:
        """Of its jobs of these numbers, what was said of them last. Nothing where none are asked for, else one message at least; what is beyond `TOLD_BYTES` is left out."""
        if not unknown:
            return []
        told, left_bytes, all_bytes = [agent_pb2.Told()], MAX_REPORTS_BYTES, TOLD_BYTES
        for job in self._host.told():
            if job.job not in unknown:
                continue
            said = convert.from_wanted_job(job)
            took = said.ByteSize() + FRAME_BYTES
            all_bytes -= took
            if all_bytes < 0:
                break
            if took > left_bytes and told[-1].jobs:
                told[-1].more = True
                told.append(agent_pb2.Told())
                left_bytes = MAX_REPORTS_BYTES
            left_bytes -= took
            told[-1].jobs.append(said)
        return told

    def report(self) -> agent_pb2.Report:
        """Without news an empty one: an agent that says nothing is taken for dead when its lease is over."""
        report, host = self.news() or agent_pb2.Report(), self._host
        report.said_s = boot_s()
        report.heard_term, report.heard_seq = host.heard()
        if host.left_bytes is not None:
            report.memory.total_bytes = memory_bytes(self._config.cgroup_root)
            report.memory.available_bytes = host.left_bytes
        report.troubles.extend(host.troubles)
        return report

    def news(self) -> agent_pb2.Report | None:
        """What differs from what this connection was told. However long the stream stood still: the present state, once."""
        now = {report.job: report for report in self._host.reports()}
        gone = parting(self._sent, now, self._host.last_words)
        self._sent = {job: report for job, report in self._sent.items() if job in now}
        changed = [convert.from_report(report) for report in gone]
        left_bytes = MAX_REPORTS_BYTES - sum(told.ByteSize() + FRAME_BYTES for told in changed)
        for job, report in now.items():
            if not differs(self._sent.get(job), report):
                continue
            told = convert.from_report(report)
            left_bytes -= told.ByteSize() + FRAME_BYTES
            if changed and (left_bytes < 0 or len(changed) == MOST_AT_ONCE):
                break  # the next message says it
            changed.append(told)
            self._sent[job] = report
        gpus = self._gpus()
        told_gpus = [] if gpus == self._sent_gpus else gpus
        self._sent_gpus = gpus
        if not changed and not told_gpus:
            return None
        return agent_pb2.Report(jobs=changed, gpus=told_gpus)

    def _gpus(self) -> list[common_pb2.Gpu]:
        readings = {reading.gpu: reading for reading in self._host.readings}
        return [
            convert.from_gpu(
                gpu, utilization_percent=r.utilization_percent, memory_used_bytes=r.memory_used_bytes
            )
            for gpu in self._host.gpus
            for r in (readings.get(gpu.id, Reading(gpu=gpu.id)),)
        ]
