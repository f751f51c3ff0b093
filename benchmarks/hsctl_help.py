"""How long `hsctl --help` takes in a new process, and the first verb that needs the wire (goal: help below 0.4 s)."""

import statistics
import subprocess
import sys
import time

RUNS = 15


def seconds(*words: str) -> list[float]:
    taken = []
    for _ in range(RUNS):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "hs_client", *words], capture_output=True, check=False)
        taken.append(time.perf_counter() - start)
    return taken


def main() -> None:
    cases = {
        "python -c pass": None,
        "hsctl --help": ["--help"],
        "hsctl submit --help": ["submit", "--help"],
        "hsctl queue (no controller)": ["--controller", "unix:/nonexistent/hs.sock", "queue"],
    }
    for name, words in cases.items():
        if words is None:
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], check=True)
            print(f"{name:<30} {time.perf_counter() - start:.3f} s")
            continue
        taken = seconds(*words)
        print(
            f"{name:<30} median {statistics.median(taken):.3f} s, first {taken[0]:.3f} s, worst {max(taken):.3f} s"
        )


if __name__ == "__main__":
    main()
