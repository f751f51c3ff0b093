"""Runs every benchmark and keeps what it printed as text, with date and machine: `make bench`.

Figures are for reading, never gates: machines differ. Compare ratios of one run.
"""

import datetime as dt
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCHMARKS = (
    "stride",
    "shares",
    "cycle",
    "trading",
    "sim_quanta",
    "sim_field",
    "hook",
    "fidelity",
    "submit",
    "commits",
    "agent_idle",
    "hsctl_help",
    "fft_round",
    "hadar_round",
    "hadare",
    "migrate",
    "pack",
    "sharing",
    "allocations",
    "controller_load",
    "sim_machines",
    "crowded",
    "windows",
    "pools",
    "mixed_widths",
    "gang_bindings",
    "device_memory",
    "gang_shares",
    "gpu",
)
LIMIT_S = 900  # of one
ADDITIONS = 20_000_000


def machine() -> str:
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores ({cpu}), {memory_gib:.0f} GiB, {platform.system()} {platform.release()}, Python {platform.python_version()}"


def pace() -> str:
    """What the machine is worth this minute: virtual ones differ by half from one hour to the next."""
    began_s, total = time.process_time(), 0
    for number in range(ADDITIONS):
        total += number
    return f"{ADDITIONS // 10**6} million additions in {time.process_time() - began_s:.2f} s"


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown:
        print(f"no benchmark called {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    failed = []
    for name in names or BENCHMARKS:
        print(f"== {name}", flush=True)
        when = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
        head = f"{when} · {machine()}, {pace()}"
        try:
            done = subprocess.run(
                [sys.executable, str(HERE / f"{name}.py")],
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            print(f"more than {LIMIT_S} s", file=sys.stderr)
            failed.append(name)
            continue
        print(done.stdout, end="", flush=True)
        if done.returncode != 0:
            print(done.stderr, file=sys.stderr)
            failed.append(name)
        if not done.stdout:
            continue
        (results / f"{name}.txt").write_text(f"{head}\n\n{done.stdout}", encoding="utf-8")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
