"""slurm-energy-mail as slurmctld starts it, beside a real daemon and without one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from daemon_support import running_daemon, wait_until
from test_daemon_reports import make_report, send, signed

SUBJECT = "Slurm Job_id=11 Name=train Ended, Run time 00:01:40, COMPLETED, ExitCode 0"


def mail(directory: Path, config: str, **environment: str) -> None:
    """Send a mail as slurmctld does."""
    program = directory / "mail"
    new = directory / "new"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {new}\ncat >> {new}\nmv {new} {directory}/sent\n')
    program.chmod(0o755)
    values = {"SLURM_ENERGY_CONFIG": config, "SLURM_ENERGY_MAIL_PROGRAM": str(program), **environment}
    command = [sys.executable, "-m", "slurm_energy.cli.job_mail", "-s", SUBJECT, "ada@x.org"]
    subprocess.run(command, env={**os.environ, **values}, stdin=subprocess.DEVNULL, check=True, timeout=120)


def sent(directory: Path) -> list[str]:
    wait_until((directory / "sent").exists, "the mail", limit_seconds=120.0)
    return (directory / "sent").read_text().splitlines()


def test_the_mail_of_an_ended_job_has_its_energy(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        assert send(daemon, signed([make_report(11)])).verb == "ok"
        ended = {"SLURM_JOB_ID": "11", "SLURM_JOB_MAIL_TYPE": "Ended"}
        mail(tmp_path, str(tmp_path / "energy.toml"), **ended)
        lines = sent(tmp_path)
    assert lines[:3] == ["-s", SUBJECT, "ada@x.org"]
    assert "Energy of job 11" in lines[3] and "20.0 kJ ± 6 %" in lines[4]
    assert lines[-1] == "More: slurm-energy explain 11"


@pytest.mark.parametrize("kind", ["Began", "Ended"])
def test_a_mail_goes_out_unchanged_without_a_daemon_and_when_no_job_has_ended(tmp_path: Path, kind: str) -> None:
    values = {"SLURM_JOB_ID": "11", "SLURM_JOB_MAIL_TYPE": kind, "SLURM_ENERGY_MAIL_WAIT_SECONDS": "0"}
    config = tmp_path / "c.toml"
    config.write_text(
        f'[daemon]\nsocket_path = "{tmp_path}/none"\nstate_directory = "{tmp_path}"\n[store]\nurl = "sqlite:///{tmp_path}/no"\n'
    )
    mail(tmp_path, str(config), **values)
    assert sent(tmp_path) == ["-s", SUBJECT, "ada@x.org"]
