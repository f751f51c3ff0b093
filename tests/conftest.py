"""What every test shares."""

import gc
import signal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# Laws are checked on the same examples on every machine; the shared machines are slow and noisy, so no deadline.
settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci")
# Nor do they go by which files a worker has loaded before: left to itself, Hypothesis draws numbers and words that it has read in those. It has no public way to say so.
assert callable(providers._get_local_constants)
providers._get_local_constants = lambda: providers._local_constants

# A run in the background of a script ignores SIGINT, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What thousands of tests are made of is no garbage, and is not looked through again and again, nor a last time at the end."""
    gc.freeze()


LONGEST = (
    "tests/e2e/test_servers.py",
    "tests/e2e/test_copies.py",
    "tests/e2e/test_links.py",
    "tests/job/test_scripts.py",
    "tests/job/test_exact.py",
    "tests/agent/test_training.py",
    "tests/e2e/test_elastic.py",
    "tests/e2e/test_sharing.py",
    "tests/e2e/test_strategies.py",
    "tests/packaging/test_systemd.py",
    "tests/job/test_trainers.py",
    "tests/e2e/test_faults.py",
    "tests/agent/test_errands.py",
    "tests/e2e/test_lost_server.py",
    "tests/e2e/test_policies.py",
    "tests/e2e/test_chaos.py",
    "tests/controller/test_daemon.py",
    "tests/agent/test_host_memory.py",
    "tests/e2e/test_restore.py",
    "tests/controller/test_identity.py",
)
"""Files that take a minute or more, the longest first: begun last, each would keep one worker busy while the others have nothing left."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    first = {config.rootpath / name: at for at, name in enumerate(LONGEST)}
    if gone := [str(path) for path in first if not path.is_file()]:
        raise pytest.UsageError(
            f"LONGEST in {__file__}: expected files that are there, not {', '.join(gone)}"
        )
    items.sort(key=lambda item: first.get(item.path, len(first)))
