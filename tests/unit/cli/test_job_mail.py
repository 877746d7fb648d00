import os
from pathlib import Path

import pytest

from slurm_energy.cli.job_mail import DAY_SECONDS, is_due, main
from slurm_energy.config import MailConfig


def test_a_user_is_advised_once_a_day(tmp_path: Path) -> None:
    folder = tmp_path / "advice"
    assert is_due(folder, 1000, 1e9, MailConfig())
    assert not is_due(folder, 1000, 1e9 + DAY_SECONDS - 1.0, MailConfig())
    assert is_due(folder, 1001, 1e9 + 1.0, MailConfig())
    assert is_due(folder, 1000, 1e9 + DAY_SECONDS + 1.0, MailConfig())


def test_advice_can_be_switched_off_and_is_left_out_where_it_cannot_be_noted(tmp_path: Path) -> None:
    assert not is_due(tmp_path, 1000, 1e9, MailConfig(advice_days=0.0))
    (tmp_path / "file").write_text("")
    assert not is_due(tmp_path / "file", 1000, 1e9, MailConfig())


def test_a_mail_is_given_to_the_sites_program_when_settings_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda path, words: started.append((path, words)))
    monkeypatch.setenv("SLURM_ENERGY_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setenv("SLURM_JOB_ID", "11")
    monkeypatch.setenv("SLURM_JOB_MAIL_TYPE", "Began")
    main(["-s", "Slurm Job_id=11", "ada"])
    assert started == [("/usr/bin/mail", ["/usr/bin/mail", "-s", "Slurm Job_id=11", "ada"])]
