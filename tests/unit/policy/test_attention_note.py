"""Attention's shares in a note: written short, read again, and not believed when they were forged."""

from dataclasses import asdict, fields

import pytest

from slurm_energy.domain.decision import PolicyAnswer
from slurm_energy.policy.answer_check import checked_answer
from slurm_energy.policy.attention_note import PREFIX, attention_among, attention_note, shares_of
from slurm_energy.policy.gnn.attention_report import Shares

LONGEST = Shares(**{field.name: 0.123456789 for field in fields(Shares)})


def test_shares_come_back_as_they_were_to_a_thousandth() -> None:
    note = attention_note({"queue": 0.41049, "energy": 1.0, "cluster": 0.0})
    assert note == 'attention shares {"queue":0.41,"energy":1.0,"cluster":0.0}'
    assert shares_of(note) == {"queue": 0.41, "energy": 1.0, "cluster": 0.0}


def test_the_longest_note_passes_the_check_of_answers_uncut() -> None:
    note = attention_note(asdict(LONGEST))
    assert len(note) < 150
    (kept,) = checked_answer(PolicyAnswer(notes=(note,))).notes
    assert shares_of(kept) == dict.fromkeys(asdict(LONGEST), 0.123)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"queue":0.41,"ener',
        '{"queue":NaN}',
        '{"queue":Infinity}',
        '{"queue":-Infinity}',
        '{"queue":1e999}',
        '{"queue":' + "9" * 4000 + "}",
        '{"queue":' + "9" * 5000 + "}",
        '{"queue":1.001}',
        '{"queue":-0.5}',
        '{"queue":true}',
        '{"queue":null}',
        '{"queue":"0.4"}',
        '{"queue":{"a":0.1}}',
        '{"queue":[0.1]}',
        "[0.1]",
        "0.1",
        "[" * 100_000,
        '{"a":' * 100_000,
        "{" + ",".join(f'"g{number}":0.01' for number in range(13)) + "}",
    ],
    ids=lambda text: text[:24],
)
def test_a_cut_or_forged_note_has_no_shares(text: str) -> None:
    assert shares_of(PREFIX + text) is None


def test_other_notes_have_no_shares() -> None:
    assert shares_of("attention: 41 % on the queue of a100") is None
    assert shares_of('{"queue":0.41}') is None


def test_the_first_note_with_shares_counts() -> None:
    notes = ("a sentence", PREFIX + "{", attention_note({"queue": 0.3}), attention_note({"queue": 0.4}))
    assert attention_among(notes) == {"queue": 0.3}
    assert attention_among(notes[:2]) is None
    assert attention_among(()) is None
