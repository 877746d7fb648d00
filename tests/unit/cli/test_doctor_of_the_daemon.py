"""What the doctor says of the daemon's own word: whether waiting jobs are decided again where the site wants it."""

from typing import Any

import pytest

from slurm_energy.cli.doctor.daemon_checks import waiting_job_findings
from slurm_energy.cli.doctor.finding import Verdict
from slurm_energy.config import parse_config


def found(redecide: str, daemon: dict[str, Any], report_host: str = "0.0.0.0") -> list[tuple[Verdict, str]]:
    document = {"routing": {"redecide": redecide}, "daemon": {"report_host": report_host}}
    config = parse_config(document, source="test", environment={})
    return [(one.verdict, one.found) for one in waiting_job_findings(config, daemon)]


def test_nothing_is_said_where_the_site_has_not_switched_it_on() -> None:
    assert found("off", {"redecide_note": "anything"}) == []


def test_a_missing_right_is_a_warning_with_its_cause() -> None:
    ((verdict, text),) = found("on", {"redecide_note": "the daemon runs as uid 999: it must run as SlurmUser slurm"})
    assert verdict is Verdict.WARN
    assert "runs as uid 999" in text


@pytest.mark.parametrize("redecide", ["clock", "on"])
def test_what_works_is_said_with_the_number_of_known_jobs(redecide: str) -> None:
    ((verdict, text),) = found(redecide, {"tracked_jobs": 12})
    assert (verdict, "12 of them" in text) == (Verdict.OK, True)


def test_nodes_that_cannot_ask_are_a_warning() -> None:
    verdicts = [verdict for verdict, _ in found("clock", {}, report_host="")]
    assert verdicts == [Verdict.OK, Verdict.WARN]
