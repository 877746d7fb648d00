"""What several unit tests need of the world outside."""

from collections.abc import Iterator

import pytest

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model import relative_speed
from slurm_energy.energy_model.data_sheets import DATA_SHEETS


@pytest.fixture
def h100_without_sheet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take away what H100 is compared by: a catalogue type of which nobody can say how fast it is beside others."""
    known = {name: sheet for name, sheet in DATA_SHEETS.items() if name != GpuTypeName("h100-sxm5-80gb")}
    monkeypatch.setattr(relative_speed, "DATA_SHEETS", known)
    relative_speed._different.cache_clear()
    yield
    relative_speed._different.cache_clear()
