"""`show`: everything about a job."""

import sys
from collections.abc import Sequence

import click

from hs_client import forms, job_words, printing, quantities, screen, tables
from hs_client.ends import ENDED, exit_code
from hs_client.follow import outcome
from hs_client.verbs.common import connected, json_option, out
from hs_client.verbs.strays import Command
from hs_proto.v1 import controller_pb2 as wire

LONG_TEXT = 2000  # characters, on a terminal


@click.command(cls=Command, stray="one job at a time")
@click.argument("job", metavar="JOB")
@json_option
@click.option("--env", "with_env", is_flag=True, help="its environment too")
@click.pass_context
def show(ctx: click.Context, /, *, job: str, as_json: bool, with_env: bool) -> None:
    """Show everything about a job."""
    with connected(ctx) as client:
        found = client.job(job_words.one_job(client, job))
    if as_json:
        out(forms.text(forms.detail(found), indent=2))
        return
    _facts(_about(found))
    if with_env and found.spec.env:
        out("\nenvironment")
        for name, value in sorted(found.spec.env.items()):
            out(f"  {name}={value if value.isprintable() else printing.shell_word(value)}")
    if found.story:
        out("\nstory")
        for line in tables.event_lines(found.story, about=False):
            out(f"  {line}")
    if found.view.HasField("exit") and found.view.state != "succeeded" and found.view.exit.log_tail:
        out("\nlast lines of its log")
        for line in found.view.exit.log_tail.splitlines():
            out(f"  {printing.printable(line)}")


def _facts(rows: Sequence[tuple[str, str]]) -> None:
    """Of a command of a hundred kilobytes a terminal is shown the beginning, twice, as it is in the class, too."""
    most = LONG_TEXT if sys.stdout.isatty() else max(len(value) for _, value in rows)
    for name, value in rows:
        more = f"… ({len(value) - most} more characters; --json has all)" if len(value) > most else ""
        if value:
            out(f"{name + ':':<13} {printing.printable(value[:most])}{more}")


def _dataset(found: wire.JobDetail) -> str:
    spec = found.spec
    if not spec.dataset:
        return ""
    size = f" ({quantities.size_text(spec.dataset_bytes)})" if spec.dataset_bytes else ""
    where = ", ".join(found.dataset_hosts)
    return f"{spec.dataset}{size}, " + (f"read before on {where}" if where else "read on no server yet")


def _about(found: wire.JobDetail) -> list[tuple[str, str]]:
    view, spec = found.view, found.spec
    return [
        ("job", f"{tables.job_label(view)} {view.name}"),
        ("user", view.user),
        ("state", _state(view)),
        ("exit code", str(exit_code(view)) if view.state in ENDED else ""),
        ("command", " ".join(map(printing.shell_word, spec.command))),
        ("folder", spec.workdir),
        ("output", spec.output),
        ("asks for", _asked(found)),
        ("elastic", _elastic(view)),
        ("strategies", _strategies(view)),
        ("data set", _dataset(found)),
        ("after", ", ".join(f"{a.job_id}:{a.condition}" for a in spec.after)),
        ("on", _place(view)),
        ("copies", _copies(view)),
        ("beside", _beside(view)),
        ("moving to", f"{view.moving_to}: {view.moving_why}" if view.moving_to else ""),
        ("migrations", str(view.migrations) if view.migrations else ""),
        ("times", _times(view)),
        ("age", _age(found.ages)),
        (
            "received",
            f"{quantities.span_text(view.gpu_s)} of GPU time, {quantities.span_text(view.run_s)} in turns",
        ),
        ("share", _share(view)),
        ("steps", _steps(view)),
        ("rates", "; ".join(map(_rate, sorted(found.rates, key=lambda rate: -rate.steps_per_s)))),
        ("switches", _switches(view)),
        ("suspended by", _suspended_by(view)),
        ("memory", _memory(view)),
        ("lost", f"{view.lost_gpu_s:.1f} GPU-seconds"),
        ("checkpoint", _checkpoint(view)),
        ("epoch", str(view.epoch)),
        ("class", printing.escaped(found.job_class)),
        ("note", view.note),
    ]


def _state(view: wire.JobView) -> str:
    if view.state in ENDED:
        return outcome(view)
    return f"{view.state}: {view.reason_text}" if view.reason_text else view.state


def _asked(found: wire.JobDetail) -> str:
    spec, models = found.spec, ",".join(found.view.gpu_types) or "any"
    over = f" over {spec.nodes} nodes" if spec.nodes > 1 else ""
    return f"{quantities.counted(spec.gpus * spec.nodes, 'GPU')} ({models}){over}"


def _place(view: wire.JobView) -> str:
    gpus = f" ({view.gpu_model}: {', '.join(view.gpu_ids)})" if view.gpu_ids else ""
    return ", ".join(forms.homes(view)) + gpus


def _times(view: wire.JobView) -> str:
    times = [f"submitted {screen.clock(view.submitted_at)}"]
    times += [f"started {screen.clock(view.started_at)}"] if view.started_at else []
    times += [f"ended {screen.clock(view.ended_at)}"] if view.ended_at else []
    return ", ".join(times)


def _age(ages: wire.Ages) -> str:
    """What there was none of is left out."""
    parts = [
        (ages.waiting_s, "waited {}"),
        (ages.starting_s, "{} coming up"),
        (ages.running_s, "ran {}"),
        (ages.leaving_s, "{} leaving for elsewhere"),
        (ages.paused_s, "paused {}"),
        (ages.ending_s, "{} being ended"),
    ]
    said = [text.format(quantities.span_text(spent_s)) for spent_s, text in parts if spent_s > 0]
    whole = quantities.span_text(sum(spent_s for spent_s, _ in parts))
    return f"{whole}: {', '.join(said)}" if said else ""


def _steps(view: wire.JobView) -> str:
    rate = f" ({view.steps_per_s:.2f}/s)" if view.steps_per_s else ""
    return f"{view.step}{rate}" if view.step else ""


def _switches(view: wire.JobView) -> str:
    text = f"{quantities.counted(view.suspends, 'suspend')}, {quantities.counted(view.resumes, 'resume')}"
    if not view.suspends:
        return text
    resume = f", {view.resume_s / view.resumes * 1000:.0f} ms to resume" if view.resumes else ""
    return f"{text} (mean {view.suspend_s / view.suspends * 1000:.0f} ms to suspend{resume})"


def _suspended_by(view: wire.JobView) -> str:
    if not view.sliceable:
        return "never: runs unsliced"
    return view.tier if view.suspends else ""


def _share(view: wire.JobView) -> str:
    """`1.33 GPUs: weight 1.333 beside the other jobs of v1`. The weight is the policy's: its user's tickets are of another unit."""
    if not view.tickets or not view.host:
        return ""
    where = ", ".join(forms.homes(view))
    return f"{view.entitled_gpus:.2f} GPUs: weight {view.tickets:.4g} beside the other jobs of {where}"


def _copies(view: wire.JobView) -> str:
    """`3, averaged at the round's end: a (V100) 120 of 600 steps, running; …`."""
    each = [
        f"{copy.host} ({copy.gpu_model}) {copy.steps} of {copy.portion} steps"
        + (f", {copy.phase}" if copy.phase else "")
        for copy in view.copies
    ]
    return f"{len(each)}, averaged at the round's end: {'; '.join(each)}" if each else ""


def _memory(view: wire.JobView) -> str:
    parts = []
    if view.gpu_memory_bytes:
        parts.append(f"{quantities.size_text(view.gpu_memory_bytes)} on each GPU")
    if view.host_memory_bytes:
        parts.append(f"{quantities.size_text(view.host_memory_bytes)} of its server's own")
    return ", ".join(parts) + " at most" if parts else ""


def _elastic(view: wire.JobView) -> str:
    """What it allows, and what it was told."""
    if not view.HasField("elastic"):
        return ""
    may, shape = view.elastic, view.shape
    text = f"{may.gpus_min} to {quantities.counted(may.gpus_max, 'GPU')}, mini-batches of {may.batch} to {may.batch_max} examples"
    if view.noise_samples:
        text += f", noise scale {view.noise_scale:.4g} (measured {quantities.counted(view.noise_samples, 'time')})"
    elif may.noise_scale:
        text += f", noise scale {may.noise_scale:.4g} (as declared)"
    if not view.HasField("shape"):
        return text
    parts = f" in {shape.parts} parts" if shape.parts > 1 else ""
    over = f" on {shape.nodes} servers" if shape.nodes > 1 else ""
    return f"{text}; now {shape.gpus}{over}, {shape.gpus * shape.per_gpu * shape.parts} examples{parts}"


def _strategies(view: wire.JobView) -> str:
    """What its script can do, and which of them it has."""
    declared = "; ".join(forms.strategy(each) for each in view.strategies)
    return f"{declared} (now {forms.strategy(view.strategy)})" if declared else ""


def _beside(view: wire.JobView) -> str:
    """With whom it shares its GPUs, and what that asks of it."""
    others = ", ".join(map(str, view.beside))
    text = f"job{'s' * (len(view.beside) > 1)} {others}, on the same GPUs" if others else ""
    parts = f"mini-batches in {view.accumulation} parts" if view.accumulation > 1 else ""
    return "; ".join(filter(None, (text, parts)))


def _rate(rate: wire.Rate) -> str:
    """`V100 12.50 steps/s, 4.00 x the slowest (3 samples)`."""
    speedup = f", {rate.speedup:.2f} x the slowest" if rate.speedup > 0 else ""
    return f"{rate.gpu_model} {rate.steps_per_s:.2f} steps/s{speedup} ({quantities.counted(rate.samples, 'sample')})"


def _checkpoint(view: wire.JobView) -> str:
    if view.checkpoint_step <= 0:
        return ""
    return f"at step {view.checkpoint_step}" + (
        f", on {', '.join(view.checkpoint_on)}" if view.checkpoint_on else ""
    )
