"""A cluster of three GPU generations on this machine, live (`make demo-cluster`).

Three servers with 4 emulated V100, P100 and K80 each join a controller as an administrator would have them join: enrolled, with a
certificate each, in a network namespace each where that is allowed. Three users, whose models gain differently from faster GPUs, train real
models over TLS. The scheduler learns their speeds, trades fast GPUs for slow ones between them, and moves jobs. Then a fourth server
joins, a job runs on two servers at once, and one server is drained while everybody goes on.

At the end: tables, a picture, and exit status 1 if nobody traded, if somebody was below its untraded share, if a job that was moved
between GPU models did not end with the very weights of an uninterrupted run, or if work was lost.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from examples.cluster import report
from examples.cluster.deployment import BrokenDeploymentError, Deployment
from examples.cluster.network import Network, network
from examples.cluster.record import STARTING, Recorder
from examples.cluster.workload import GANG, LATE, MODELS, SERVERS, TEAMS
from examples.common.showing import save_text, status_of
from examples.common.training import result, same_weights, uninterrupted_all
from hs_client import Client
from hs_proto.v1.controller_pb2 import JobView

SAMPLE_S = 0.5
SETTLE_S = 40.0  # at most, from the first trade until jobs are where it wants them
CALM = 16  # samples, four quanta: a trade's first moves are ordered two after it
JUDGED_S = 60.0
DRAIN_S = 60.0
BACK_S = 25.0  # for those that left to train elsewhere
LAST_S = 90.0  # for the job over two servers, once all others have ended
TWINS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    out: Path
    quantum_s: float
    limit_s: float
    namespaces: bool
    page: int  # port; 0: none


def parse(argv: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo-cluster-out"), help="report, picture and logs go here"
    )
    parser.add_argument("--quantum", type=float, default=2.0, metavar="S", help="length of a slice")
    parser.add_argument(
        "--limit", type=float, default=255.0, metavar="S", help="end the training after this long"
    )
    parser.add_argument("--loopback", action="store_true", help="no network namespaces")
    parser.add_argument(
        "--page", type=int, default=0, metavar="PORT", help="the page, to look on while it runs"
    )
    got = parser.parse_args(argv)
    return Options(
        out=got.out.resolve(),
        quantum_s=got.quantum,
        limit_s=got.limit,
        namespaces=not got.loopback,
        page=got.page,
    )


@dataclass(slots=True)
class Show:
    """The demo under way: what is recorded, and what is drawn."""

    console: Console
    live: Live
    client: Client
    recorder: Recorder
    started_s: float
    limit_s: float
    phase: str = ""
    marks: list[tuple[float, str]] = field(default_factory=list)
    _plain_at: float = 0.0

    def now(self) -> float:
        return time.monotonic()

    def say(self, phase: str, mark: str = "") -> None:
        self.phase = phase
        self.console.print(f"{self.now() - self.started_s:5.0f} s  {phase}")
        if mark:
            self.marks.append((self.now(), mark))

    def tick(self) -> bool:
        """A sample and a picture; False: time is up."""
        now = self.now()
        self.recorder.take(
            now,
            self.client.jobs(ended=True),
            self.client.shares(window_s=16.0),
            self.client.trades(undone=True),
        )
        if self.console.is_terminal:
            self.live.update(self._picture())
        elif now >= self._plain_at:
            self.console.print(self._picture())
            self._plain_at = now + 30
        time.sleep(max(0.0, now + SAMPLE_S - self.now()))
        return self.now() - self.started_s < self.limit_s

    def until(self, what: Callable[[], bool], within_s: float) -> bool:
        give_up = self.now() + within_s
        while not what():
            if not self.tick() or self.now() > give_up:
                return False
        return True

    def _picture(self) -> Group:
        table = Table(
            title="GPUs by user and pool: received in the last 16 s / entitled (before trades)",
            title_justify="left",
        )
        for heading in ("user", *MODELS, "training", "waiting", "done", "migrations"):
            table.add_column(heading, justify="left" if heading == "user" else "right")
        shares = {(s.user, s.gpu_model): s for s in self.recorder.shares.shares}
        for team in TEAMS:
            views = [view for view in self.recorder.views if view.user == team.user]
            states = [view.state for view in views]
            cells = []
            for model in MODELS:
                share = shares.get((team.user, model))
                cells.append(
                    f"{share.received_gpus:.2f} / {share.entitled_gpus:.2f} ({share.base_gpus:.2f})"
                    if share
                    else "-"
                )
            done, training = states.count("succeeded"), states.count("running")
            table.add_row(team.user, *cells, str(training), str(len(states) - done - training), str(done),
                          str(sum(view.migrations for view in views)))  # fmt: skip
        stand = [t for t in self.recorder.trades.values() if not t.undone]
        trades = "; ".join(
            f"{t.gives} gives {t.fast_gpus:.2f} {t.fast} and receives {t.slow_gpus:.2f} {t.slow} of {t.receives}"
            for t in stand
        )
        return Group(
            f"{self.now() - self.started_s:5.0f} s  {self.phase}", table, f"trades: {trades or 'none'}"
        )


# --- the stages ------------------------------------------------------------------------------------------------------


def submit(cluster: Deployment) -> None:
    """One job each in turn, as it happens where several people work."""
    with ExitStack() as stack:
        clients = [stack.enter_context(cluster.client(team.user)) for team in TEAMS]
        for jobs in zip_longest(*(team.jobs() for team in TEAMS)):
            for client, job in zip(clients, jobs, strict=True):
                if job is not None:
                    client.submit(job)


def judge(show: Show) -> report.Window | None:
    """Everybody trains, rates are measured, somebody trades; then a stretch that counts."""
    recorder = show.recorder
    show.say(
        f"{sum(team.jobs_count for team in TEAMS)} jobs start; their speeds on each GPU model are not known yet"
    )
    if not show.until(lambda: recorder.all_started_s is not None, 90):
        return None
    show.say("all train; waiting for a trade", "all train")
    if not show.until(lambda: recorder.first_trade_s is not None, 90):
        return None
    show.say("traded; jobs are moved to where their users now have GPUs", "first trade")
    show.until(_calm(recorder), SETTLE_S)
    from_s = show.now()
    show.say(f"judging {JUDGED_S:.0f} s")
    show.until(lambda: recorder.first_end_s is not None, JUDGED_S)
    to_s = recorder.received.end_s if recorder.first_end_s is None else recorder.first_end_s - SAMPLE_S
    return report.Window(from_s=from_s, to_s=to_s) if to_s - from_s > JUDGED_S / 2 else None


def _calm(recorder: Recorder) -> Callable[[], bool]:
    """Settled in several samples, one after another: then no job has just been told to move."""
    seen = 0

    def look() -> bool:
        nonlocal seen
        seen = seen + 1 if recorder.settled else 0
        return seen > CALM

    return look


def grow(show: Show, cluster: Deployment) -> int:
    """A server more, and a job over two servers; its number."""
    show.say(
        f"{LATE.name} ({LATE.gpus} {LATE.model}) joins; a job over two servers is submitted",
        f"{LATE.name} joins",
    )
    cluster.join(LATE)
    cluster.await_joined([LATE])
    with cluster.client(GANG.user) as client:
        (job,) = client.submit(GANG.job()).job_ids
    return job


def drain(show: Show, cluster: Deployment) -> list[str]:
    """The P100 server is emptied by migration."""
    name = SERVERS[1].name
    show.say(f"{name} is drained: its jobs leave with their work", f"{name} drained")
    cluster.hsctl("node", "drain", name, "--reason", "to show it")

    def left() -> int:
        return next(node.jobs for node in show.client.nodes() if node.name == name)

    there = {view.id for view in show.recorder.views if name in view.hosts}
    empty = show.until(lambda: left() == 0, DRAIN_S)
    if empty:
        show.say(f"{name} is empty; its {len(there)} jobs go on elsewhere", f"{name} empty")
        show.until(lambda: not any(v.state in STARTING for v in show.recorder.views if v.id in there), BACK_S)
        show.say(f"{name} takes jobs again", f"{name} back")
    cluster.hsctl("node", "undrain", name)
    return [] if empty else [f"{name} still had {left()} jobs {DRAIN_S:.0f} s after it was drained"]


def end(show: Show, gang: int) -> list[str]:
    """Time is up on a slow machine: of those who train still only the job over two servers goes on, which is compared."""
    late = {view.id for view in show.client.jobs()}
    if others := late - {gang}:
        show.say(f"time is up: {len(others)} jobs are cancelled")
        show.client.cancel(*sorted(others))
    if gang in late:
        show.say("the job over two servers is trained to its end")
        show.limit_s += LAST_S
        if not show.until(lambda: gang not in {view.id for view in show.client.jobs()}, LAST_S):
            show.client.cancel(gang)
            return [
                f"job {gang} over two servers was not done {LAST_S:.0f} s after the others: this machine is too slow for the demo"
            ]
    return []


# --- after -----------------------------------------------------------------------------------------------------------


def rates(client: Client) -> dict[tuple[str, str], float]:
    """As the profile has them: one job of a class speaks for all."""
    found = {}
    for view in client.jobs(ended=True):
        if view.name != GANG.name:
            for rate in client.job(view.id).rates:
                found[view.user, rate.gpu_model] = rate.steps_per_s
    return found


def compare(show: Show, gang: int) -> tuple[list[report.Moved], str, list[str]]:
    """Jobs that crossed models and the one over two servers, each against the same training without any cluster."""
    recorder = show.recorder
    teams = {team.user: team for team in TEAMS}
    crossed = [view for view in recorder.views if recorder.crossed(view.id)]
    ended = [view for view in crossed if view.state == "succeeded"]
    chosen = sorted(ended, key=lambda view: -len(recorder.visits[view.id]))[:TWINS]
    show.console.print(f"training {len(chosen) + 1} of the jobs once more, without interruption …")
    scripts = [(teams[view.user].script_of(view.name), 1) for view in chosen]
    *twins, gangs_twin = uninterrupted_all([*scripts, (GANG.script(), GANG.nodes)])
    said = {view.id: _said(show, view.id) for view in (*chosen, show.client.job(gang).view)}
    same = {view.id: same_weights(twin, said[view.id]) for view, twin in zip(chosen, twins, strict=True)}
    moved = [
        report.Moved(
            job=view.id,
            name=view.name,
            user=view.user,
            path=report.path_of(recorder, view.id),
            same=same.get(view.id),
        )
        for view in crossed
    ]
    return moved, *_gang(show.client.job(gang).view, gangs_twin, said[gang])


def _said(show: Show, job: int) -> dict[str, object]:
    return result(b"".join(show.client.logs(job)).decode(errors="replace"))


def _gang(view: JobView, twin: dict[str, object], said: dict[str, object]) -> tuple[str, list[str]]:
    if view.state != "succeeded":
        why = view.reason_text or view.exit.why or view.exit.code
        return "", [f"the job over {GANG.nodes} servers is {view.state}: {why}"]
    same = same_weights(twin, said)
    line = f"the job over {', '.join(view.hosts)}: {said.get('steps')} steps, {view.suspends} suspends, weights {'the very same' if same else 'DIFFERENT'}"
    return line, [] if same else [
        "the job over two servers did not end with the weights of an uninterrupted run"
    ]


@contextmanager
def deployed(options: Options, net: Network) -> Iterator[Deployment]:
    run = Path(tempfile.mkdtemp(prefix="hsd", dir="/tmp"))
    run.chmod(0o711)
    state = options.out / "state"
    state.mkdir(parents=True)
    cluster = Deployment(state=state, run=run, network=net, quantum_s=options.quantum_s, page=options.page)
    try:
        cluster.start_controller()
        for server in SERVERS:
            cluster.join(server)
        cluster.await_joined(SERVERS)
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(run, ignore_errors=True)


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    shutil.rmtree(options.out, ignore_errors=True)
    with ExitStack() as stack:
        names = [server.name for server in (*SERVERS, LATE)]
        net = stack.enter_context(network(names, namespaces=options.namespaces))
        console.print(f"{net.words}; connections by mTLS; state and logs in {options.out}")
        try:
            cluster = stack.enter_context(deployed(options, net))
        except BrokenDeploymentError as error:
            console.print(f"FAILED: {error}", markup=False)
            return 1
        if options.page:
            console.print(
                f"the page: https://127.0.0.1:{options.page}/ (its certificate is the demo's own), token {cluster.token()}",
                soft_wrap=True,
            )
        client = stack.enter_context(cluster.admin())
        live = stack.enter_context(Live(console=console, refresh_per_second=2, transient=True))
        show = Show(
            console=console,
            live=live,
            client=client,
            recorder=Recorder(),
            started_s=time.monotonic(),
            limit_s=options.limit_s,
        )
        return perform(options, cluster, show)


@dataclass(slots=True, kw_only=True)
class Outcome:
    window: report.Window | None
    measured: report.Rates
    moved: Sequence[report.Moved]
    lines: list[str]
    wrong: list[str]


def perform(options: Options, cluster: Deployment, show: Show) -> int:
    submit(cluster)
    window = judge(show)
    gang = grow(show, cluster)
    wrong = drain(show, cluster)
    show.say("the rest is trained to its end")
    show.until(lambda: show.recorder.done, options.limit_s)
    measured = rates(show.client)
    wrong += end(show, gang)
    moved, line, gang_wrong = compare(show, gang)
    outcome = Outcome(
        window=window, measured=measured, moved=moved, lines=[line] if line else [], wrong=wrong + gang_wrong
    )
    return conclude(options, show, outcome)


def conclude(options: Options, show: Show, outcome: Outcome) -> int:
    recorder, window, measured = show.recorder, outcome.window, outcome.measured
    found = report.throughputs(recorder, window, measured) if window else []
    wrong = [*report.faults(recorder, window, found, outcome.moved), *outcome.wrong]
    tables = [report.share_table(recorder, window), report.throughput_table(found)] if window else []
    tables += [report.trade_table(recorder), report.moved_table(outcome.moved)]
    migrations, suspends, lost = (
        sum(values)
        for values in zip(*((v.migrations, v.suspends, v.lost_gpu_s) for v in recorder.views), strict=True)
    )
    said = [
        f"measured rates (steps/s of a job): {rate_words(measured)}",
        f"migrations: {migrations}; suspends: {suspends}; lost work: {lost:.1f} GPU-seconds",
        *outcome.lines,
        *(f"FAILED: {one}" for one in wrong),
        f"{len(wrong)} faults"
        if wrong
        else "OK: traded, moved across GPU models exactly, and nobody below its own share",
    ]
    for table in tables:
        show.console.print(table)
    for one in said:
        show.console.print(one, markup=False)
    save_text(120, tables, said, options.out / "report.txt")
    report.picture(recorder, window, show.marks, options.out / "pools.png")
    show.console.print(f"picture: {options.out / 'pools.png'}   tables: {options.out / 'report.txt'}")
    return 1 if wrong else 0


def rate_words(measured: report.Rates) -> str:
    words = []
    for team in TEAMS:
        own = [
            f"{model} {measured[team.user, model]:.1f}" for model in MODELS if (team.user, model) in measured
        ]
        words.append(f"{team.user} {', '.join(own)}")
    return "; ".join(words)


if __name__ == "__main__":
    sys.exit(status_of(main))
