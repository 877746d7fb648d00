"""What the doctor says of the daemon's own word, and that it waits for a daemon that has just started."""

from typing import Any

import pytest

from slurm_energy.cli.doctor import daemon_checks
from slurm_energy.cli.doctor.daemon_checks import await_start, waiting_job_findings
from slurm_energy.cli.doctor.finding import Verdict
from slurm_energy.config import Config, parse_config
from slurm_energy.errors import DaemonUnavailable
from slurm_energy.wire.codec import Message
from slurm_energy.wire.messages import json_reply


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


OPENING = {"revision": None, "problem": "it is being opened"}
OPEN = {"revision": "0001", "problem": None}


@pytest.mark.parametrize(
    ("uptime", "looks", "pauses"),
    [
        ("0.2", [(None, OPENING), ("0.1", OPENING), ("0.1", OPEN)], 2),
        ("0.2", [("0.1", None)], 0),  # an ordinary user is not told of the database
        ("0.2", [("0.1", OPEN)], 0),
        ("300", [(None, OPENING)], 0),  # not young: what is missing now is a fault
        ("nonsense", [(None, OPENING)], 0),
        ("0.2", [(None, OPENING)] * 90, 40),  # its clock stands still: not for ever
        ("0.2", [], 0),
    ],
)
def test_a_daemon_that_has_just_started_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, uptime: str, looks: list[tuple[str | None, dict[str, Any] | None]], pauses: int
) -> None:
    waited: list[float] = []

    def asked(_path: str, request: Message, _seconds: float) -> Message:
        if not looks:
            raise DaemonUnavailable("no daemon")
        age, store = looks[min(len(waited), len(looks) - 1)]
        if request.verb == "query":
            return json_reply({"daemon": {}} if store is None else {"store": store})
        fields = {"uptime_seconds": uptime}
        return Message("ok", fields if age is None else fields | {"snapshot_age_seconds": age})

    monkeypatch.setattr(daemon_checks, "asked", asked)
    await_start(Config(), waited.append)
    assert len(waited) == pauses
