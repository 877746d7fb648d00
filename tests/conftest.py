"""What every test shares: the laboratory's fixtures, and property tests that a busy machine's clock does not fail."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model import relative_speed
from slurm_energy.energy_model.data_sheets import DATA_SHEETS

pytest_plugins = ("lab_fixtures",)

settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

# A run in the background inherits an ignored Ctrl-C, and so would every program that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def h100_without_sheet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take away what H100 is compared by: a catalogue type of which nobody can say how fast it is beside others."""
    known = {name: sheet for name, sheet in DATA_SHEETS.items() if name != GpuTypeName("h100-sxm5-80gb")}
    monkeypatch.setattr(relative_speed, "DATA_SHEETS", known)
    relative_speed._different.cache_clear()
    yield
    relative_speed._different.cache_clear()
