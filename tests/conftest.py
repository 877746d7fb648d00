"""What every test shares: the laboratory's fixtures, the order of long files, and property tests without a clock."""

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

LONG_FILES = (
    "test_install_page.py",
    "test_planted_mistakes.py",
    "test_fault_cells.py",
    "test_partitions.py",
    "test_no_traceback.py",
    "test_slurm_update.py",
    "test_training.py",
)
"""They are started first, so that none of them is what the other processes wait for at the end."""

# A run in the background inherits an ignored Ctrl-C, and so would every program that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long files first; the order of everything else stays."""
    places = {name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONG_FILES)))


@pytest.fixture
def h100_without_sheet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take away what H100 is compared by: a catalogue type of which nobody can say how fast it is beside others."""
    known = {name: sheet for name, sheet in DATA_SHEETS.items() if name != GpuTypeName("h100-sxm5-80gb")}
    monkeypatch.setattr(relative_speed, "DATA_SHEETS", known)
    relative_speed._different.cache_clear()
    yield
    relative_speed._different.cache_clear()
