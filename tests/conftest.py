"""What every test shares: the laboratory's fixtures, and property tests that a busy machine's clock does not fail."""

from hypothesis import HealthCheck, settings

pytest_plugins = ("lab_fixtures",)

settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")
