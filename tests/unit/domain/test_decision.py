"""The entry that carries a decision to the nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.domain.decision import MAX_ENTRY_BYTES, ClockChoice, DecisionEntry, EnergyDecision, PolicyAnswer
from slurm_energy.domain.ids import DecisionId, GpuTypeName, parse_job_id
from slurm_energy.domain.job import EnergyMode, EnergyOptions, GpuDemand
from slurm_energy.errors import ValueRangeError

ids = st.text("0123456789abcdefghijklmnopqrstuvwxyz", min_size=8, max_size=32).map(DecisionId)
first, later = "abcdefghijklmnopqrstuvwxyz0123456789", "abcdefghijklmnopqrstuvwxyz0123456789._-"
types = st.builds(lambda head, tail: GpuTypeName(head + tail), st.sampled_from(first), st.text(later, max_size=20))
entries = st.builds(
    DecisionEntry,
    decision_id=ids,
    mode=st.sampled_from(EnergyMode),
    clocks_mhz=st.dictionaries(types, st.integers(1, 10_000), max_size=8),
    assumed_watts=st.dictionaries(types, st.integers(1, 10_000), max_size=8),
    time_limit_minutes=st.none() | st.integers(1, 0xFFFFFFFD),
)


@given(entries)
def test_an_entry_comes_back_as_it_was(entry: DecisionEntry) -> None:
    text = entry.encode()
    assert text.isascii()
    assert " " not in text
    assert DecisionEntry.decode(text) == entry


@pytest.mark.parametrize(
    "forged",
    [
        "",
        "v=1",
        "v=2;id=abcd1234;mode=saver",
        "v=1;id=ABCD1234;mode=saver",
        "v=1;id=abcd1234;mode=root",
        "v=1;id=abcd1234;mode=saver;clocks=a100:0",
        "v=1;id=abcd1234;mode=saver;clocks=a100:99999",
        "v=1;id=abcd1234;mode=saver;clocks=a100:-5",
        "v=1;id=abcd1234;mode=saver;clocks=a100:1275,a100:210",
        "v=1;id=abcd1234;mode=saver;clocks=../etc:1275",
        "v=1;id=abcd1234;mode=saver;clocks=",
        "v=1;id=abcd1234;mode=saver;clocks=a100:1275,",
        "v=1;id=abcd1234;mode=saver;watts=",
        "v=1;id=abcd1234;mode=saver;watts=a100",
        "v=1;id=abcd1234;mode=saver;watts=a100:0",
        "v=1;id=abcd1234;mode=saver;watts=a100:10001",
        "v=1;id=abcd1234;mode=saver;watts=a100:-400",
        "v=1;id=abcd1234;mode=saver;watts=a100:400.5",
        "v=1;id=abcd1234;mode=saver;watts=a100:400,a100:500",
        "v=1;id=abcd1234;mode=saver;watts=A100:400",
        "v=1;id=abcd1234;mode=saver;watts=a100:400;watts=a100:500",
        "v=1;id=abcd1234;mode=saver;id=abcd1235",
        "v=1;id=abcd1234;mode=saver;limit=1e9",
        "v=1;id=abcd1234;mode=saver;clocks=a100:$(reboot)",
        "v=1;id=abcd1234;mode=saver\n",
        "v=1;id=abcd1234;mode=saver;clocks=a100:١٢٣",
        "v=1;id=abcd1234;mode=saver;" + "x" * MAX_ENTRY_BYTES,
    ],
)
def test_a_forged_or_broken_entry_is_refused(forged: str) -> None:
    with pytest.raises(ValueRangeError):
        DecisionEntry.decode(forged)


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        entry = DecisionEntry.decode(text)
    except ValueRangeError:
        return
    assert DecisionEntry.decode(entry.encode()) == entry


def test_entry_of_a_daemon_that_names_no_limits_assumes_none() -> None:
    entry = DecisionEntry.decode("v=1;id=abcd1234;mode=saver;clocks=a100:1275;limit=60")
    assert (entry.clocks_mhz, entry.assumed_watts) == ({"a100": 1275}, {})


def test_limits_stand_behind_the_clocks() -> None:
    entry = DecisionEntry.decode("v=1;id=abcd1234;mode=saver;clocks=a100:1275,a40:1455;watts=a40:300,a100:400")
    assert entry.assumed_watts == {"a100": 400, "a40": 300}
    assert entry.encode() == "v=1;id=abcd1234;mode=saver;clocks=a100:1275,a40:1455;watts=a100:400,a40:300"


@pytest.mark.parametrize("watts", [0.0, 0.9, 10_001.0, float("inf"), float("nan")])
def test_a_clock_rests_on_a_sane_power_limit(watts: float) -> None:
    with pytest.raises(ValueRangeError, match=r"power limit .* W of a40 is not between 1 and 10000"):
        ClockChoice(
            gpu_type=GpuTypeName("a40"),
            sm_clock_mhz=1455,
            default_clock_mhz=1740,
            predicted_slowdown=0.0,
            predicted_energy_change=0.0,
            power_limit_watts=watts,
        )


def test_values_outside_their_bounds_name_thing_value_and_bound() -> None:
    with pytest.raises(ValueRangeError, match=r"clock 99999 MHz of a40 is not between 1 and 10000"):
        ClockChoice(
            gpu_type=GpuTypeName("a40"),
            sm_clock_mhz=99_999,
            default_clock_mhz=1740,
            predicted_slowdown=0.0,
            predicted_energy_change=0.0,
        )
    with pytest.raises(ValueRangeError, match=r"maximum slowdown 3.0 is not between 0 and 2"):
        EnergyOptions(max_slowdown=3.0)
    with pytest.raises(ValueRangeError, match="range 4-2 is reversed"):
        GpuDemand(count=4, max_count=2)
    for wrong in (0, -1, 2**32, "x", None, True, 1.5):
        with pytest.raises(ValueRangeError, match="job id"):
            parse_job_id(wrong)


@pytest.mark.parametrize("feature", ["", "a&b", "two words", "x" * 65, "line\n"])
def test_a_preference_that_is_no_feature_is_named(feature: str) -> None:
    with pytest.raises(ValueRangeError, match="is not 1 to 64 letters"):
        PolicyAnswer(prefer=feature)
    with pytest.raises(ValueRangeError, match="preferred node feature"):
        EnergyDecision(
            decision_id=DecisionId("abcd1234"),
            policy="oracle",
            policy_version="1",
            mode=EnergyMode.BALANCED,
            decided_at_seconds=0.0,
            prefer=feature,
        )
