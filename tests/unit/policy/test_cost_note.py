import json
from math import nan

import pytest

from slurm_energy.policy.attention_note import attention_note
from slurm_energy.policy.cost_note import costs_among, factors_note, is_cost_note, option_note

PARTS = {"energy": 123_456_789.4, "time": 0.0, "slowdown": 12.34567, "waking": 0.0, "scarcity": 99.5}


def test_what_was_written_is_read_in_its_order() -> None:
    notes = [
        "a sentence",
        factors_note({"time": 1.0, "scarcity": 0.333333}),
        option_note("a100", 1275, PARTS),
        attention_note({"queue": 0.5}),
        option_note("v100", None, {**PARTS, "energy": 5.0}),
    ]
    assert [is_cost_note(note) for note in notes] == [False, True, True, False, True]
    found = costs_among(notes)
    assert found == {
        "factors": {"time": 1.0, "scarcity": 0.3333},
        "options": [
            {
                "partition": "a100",
                "mhz": 1275,
                "energy": 123_456_789.0,
                "time": 0.0,
                "slowdown": 12.346,
                "waking": 0.0,
                "scarcity": 99.5,
            },
            {
                "partition": "v100",
                "mhz": None,
                "energy": 5.0,
                "time": 0.0,
                "slowdown": 12.346,
                "waking": 0.0,
                "scarcity": 99.5,
            },
        ],
    }


def test_the_longest_note_fits_into_what_is_kept_of_one() -> None:
    note = option_note("p" * 32, 10_000, dict.fromkeys(PARTS, 1e13))
    assert len(note) <= 200
    assert costs_among([note]) is not None


def test_without_costs_there_is_nothing() -> None:
    assert costs_among(["attention shares {}", "x"]) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"partition":"a"}',
        json.dumps({"partition": 5, "mhz": 1, **PARTS}),
        json.dumps({"partition": "p" * 65, "mhz": 1, **PARTS}),
        json.dumps({"partition": "a", "mhz": True, **PARTS}),
        json.dumps({"partition": "a", "mhz": 1, **PARTS, "energy": -1.0}),
        json.dumps({"partition": "a", "mhz": 1, **PARTS, "energy": nan}),
        json.dumps({"partition": "a", "mhz": 1, **PARTS, "energy": 10**400}),
        json.dumps({"partition": "a", "mhz": 1, **PARTS, "more": 1.0}),
    ],
)
def test_what_was_cut_or_forged_is_left_out(text: str) -> None:
    good = option_note("a100", 1275, PARTS)
    found = costs_among([f"option cost {text}", f"price factors {text}", good])
    assert found is not None
    assert [option["partition"] for option in found["options"]] == ["a100"]
