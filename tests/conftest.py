"""What every test shares."""

import signal

from hypothesis import HealthCheck, settings

# Laws are checked on the same examples on every machine; the shared machines are slow and noisy, so no deadline.
settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci")

# A run in the background of a script ignores SIGINT, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
