import pytest

from slurm_energy.domain.decision import Reason
from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.report import (
    REASON_SENTENCES,
    EnergyReport,
    EnergySum,
    GroupEnergyRecord,
    decode_record,
    encode_record,
    reason_sentence,
)
from slurm_energy.errors import ValueRangeError

TOTAL = GroupEnergyRecord(
    group="total", jobs=0, jobs_without_energy=0, gpu=EnergySum(joules=None), host=EnergySum(joules=None)
)
REPORT = EnergyReport(kind="user", cluster=ClusterName("lab\x1b\n\U0001f525"), total=TOTAL)


def test_record_is_one_line_of_ascii_and_comes_back_equal() -> None:
    text = encode_record(REPORT)
    assert text.isascii() and "\n" not in text and "\x1b" not in text
    assert decode_record(EnergyReport, text) == REPORT


def test_list_of_records_comes_back_equal() -> None:
    assert decode_record(tuple[GroupEnergyRecord, ...], encode_record([TOTAL, TOTAL])) == (TOTAL, TOTAL)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("<html>", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "format 'None', this code reads 1"),
        ('{"format":2,"record":{}}', "format '2', this code reads 1"),
        ('{"format":1}', "record is None, an object is needed"),
        ('{"format":1,"record":{"kind":"user"}}', "record lacks cluster"),
    ],
)
def test_other_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueRangeError, match=message):
        decode_record(EnergyReport, text)


def test_every_reason_has_a_sentence() -> None:
    assert set(REASON_SENTENCES) == set(Reason)
    assert all(sentence.endswith(".") for sentence in REASON_SENTENCES.values())


def test_reason_of_a_newer_version_stands_for_itself() -> None:
    assert reason_sentence("CARBON") == "CARBON"
