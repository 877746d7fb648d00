import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.device.rapl import RaplReading, rapl_difference, read_rapl, total_difference
from slurm_energy.errors import DeviceError, DeviceNotSupported, DevicePermissionDenied

SPAN = 262_143_328_850


def reading(microjoules: int, span: int | None = SPAN) -> RaplReading:
    return RaplReading(microjoules=microjoules, range_microjoules=span)


def domain(root: Path, folder: str, name: str, energy: int | str, span: int | None = SPAN) -> None:
    path = root / folder
    path.mkdir(parents=True)
    (path / "name").write_text(f"{name}\n")
    (path / "energy_uj").write_text(f"{energy}\n")
    if span is not None:
        (path / "max_energy_range_uj").write_text(f"{span}\n")


def test_counter_that_wraps_with_a_known_range() -> None:
    step = rapl_difference(reading(262_000_000_000), reading(5_000_000), 1.0)
    assert step.joules == pytest.approx(148.328851) and not step.wrap_unobserved


def test_counter_that_wraps_without_a_range_is_never_negative() -> None:
    step = rapl_difference(reading(262_000_000_000, None), reading(5_000_000, None), 1.0)
    assert (step.joules, step.wrap_unobserved) == (5.0, True)


def test_long_time_between_readings_may_hide_a_wrap() -> None:
    assert rapl_difference(reading(0), reading(1_000_000), 3600.0).wrap_unobserved
    assert not rapl_difference(reading(0), reading(1_000_000), 60.0).wrap_unobserved


def test_one_watt_for_one_second_is_one_joule() -> None:
    assert rapl_difference(reading(7), reading(1_000_007), 1.0).joules == 1.0


counters = st.integers(min_value=0, max_value=1 << 40)


@given(
    before=counters,
    after=counters,
    span=st.none() | st.integers(min_value=1, max_value=1 << 40),
    seconds=st.floats(0, 1e6),
)
def test_energy_is_never_negative(before: int, after: int, span: int | None, seconds: float) -> None:
    assert rapl_difference(reading(before, span), reading(after, span), seconds).joules >= 0.0


def test_packages_and_memory_are_counted_once(tmp_path: Path) -> None:
    domain(tmp_path, "intel-rapl:0", "package-0", 10)
    domain(tmp_path, "intel-rapl:0:0", "core", 5)
    domain(tmp_path, "intel-rapl:0:1", "dram", 20, span=None)
    domain(tmp_path, "intel-rapl:1", "psys", 40)
    assert read_rapl(tmp_path) == {"intel-rapl:0": reading(10), "intel-rapl:0:1": reading(20, None)}


def test_parts_add_up_to_the_total(tmp_path: Path) -> None:
    before = {"a": reading(0), "b": reading(1_000_000)}
    after = {"a": reading(2_000_000), "b": reading(4_000_000), "c": reading(9)}
    assert total_difference(before, after, 1.0).joules == 5.0
    with pytest.raises(DeviceError, match="changed"):
        total_difference(before, {"c": reading(9)}, 1.0)


@pytest.mark.parametrize("content", ["", "x", "-5"])
def test_unreadable_counter_is_not_supported(tmp_path: Path, content: str) -> None:
    domain(tmp_path, "intel-rapl:0", "package-0", content)
    with pytest.raises(DeviceNotSupported):
        read_rapl(tmp_path)


def test_machine_without_rapl_says_so(tmp_path: Path) -> None:
    with pytest.raises(DeviceNotSupported, match="no RAPL counter"):
        read_rapl(tmp_path / "none")


def test_counter_for_root_only_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    domain(tmp_path, "intel-rapl:0", "package-0", 10)
    real = Path.read_text

    def read_text(self: Path, *arguments: str, **named: str) -> str:
        if self.name == "energy_uj":
            raise PermissionError(13, os.strerror(13))
        return real(self, *arguments, **named)

    monkeypatch.setattr(Path, "read_text", read_text)
    with pytest.raises(DevicePermissionDenied, match="root is needed"):
        read_rapl(tmp_path)
