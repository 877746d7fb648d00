"""What every test shares: the laboratory's fixtures, and property tests that a busy machine's clock does not fail."""

import signal

from hypothesis import HealthCheck, settings

pytest_plugins = ("lab_fixtures",)

settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

# A run in the background inherits an ignored Ctrl-C, and so would every program that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
