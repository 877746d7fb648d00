"""slurm-energy-mail: a MailProg for slurmctld that adds the job's energy to the mail that a user asked for.

Whatever goes wrong, the mail is sent by the site's own program with the arguments that Slurm gave. slurmctld sends few
mails at a time: this program returns at once, and waits for the nodes' reports in a process of its own.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_energy.config import Config, MailConfig, load_config
from slurm_energy.errors import PermissionRefused, SlurmEnergyError, StoreError
from slurm_energy.reporting.visible import say

PROGRAM = "slurm-energy-mail"
ENDINGS = frozenset({"Ended", "Failed", "Requeued"})
POLL_SECONDS = 2.0
DAY_SECONDS = 86_400.0
ADVICE_FOLDER = "advice"


def main(argv: Sequence[str] | None = None) -> int:
    """Send the mail that these arguments describe, with a body if a job with GPUs has ended; return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        config = load_config()
    except SlurmEnergyError as error:
        say(f"settings cannot be used: {error}", PROGRAM)
        config = Config()
    program, job = config.mail.program, os.environ.get("SLURM_JOB_ID", "")
    if os.environ.get("SLURM_JOB_MAIL_TYPE") not in ENDINGS or not job.isdecimal():
        return _become(program, words)
    try:
        if os.fork():
            return 0
        os.setsid()
    except OSError:
        return _become(program, words)
    body = ""
    try:
        body = mail_body(config, int(job), time.time())
    except Exception as error:  # noqa: BLE001  # the program's outermost call: a mail is sent with or without a body
        say(f"energy of job {job} is left out: {error}", PROGRAM)
    return send(program, words, body)


def send(program: str, words: Sequence[str], body: str) -> int:
    """Run the site's mail program with Slurm's arguments and return its exit code."""
    try:
        return subprocess.run([program, *words], input=body.encode("utf-8", "replace"), check=False).returncode
    except OSError as error:
        say(f"mail.program {program} cannot be started: {error.strerror}", PROGRAM)
        return 1


def mail_body(config: Config, job_id: int, now_seconds: float) -> str:
    """Return the mail's text, once the nodes have reported or `mail.wait_seconds` are over; empty for other jobs.

    Raises:
        SlurmEnergyError: neither daemon nor database answer.
    """
    from slurm_energy.cli.records import Filter, energy_report, explanation  # noqa: PLC0415  # other mails need none
    from slurm_energy.reporting.summary import advice_lines, summary_lines  # noqa: PLC0415  # the same

    end = time.monotonic() + config.mail.wait_seconds
    while True:
        is_last = time.monotonic() >= end
        try:
            story = explanation(config, job_id, None)
            job = story.job
            if job.gpu_count == 0:
                return ""
            if (job.gpu.readings and not job.missing_nodes) or is_last:
                break
        except (PermissionRefused, StoreError):  # a short job may not be in the database yet
            if is_last:
                raise
        time.sleep(POLL_SECONDS)
    if not job.gpu.readings:
        return f"The energy of job {job_id} is not known yet: slurm-energy explain {job_id}\n"
    lines = summary_lines(story, energy_report(config, "report-job", Filter(job_id=job_id), None))
    advice = advice_lines(story)
    folder = Path(config.daemon.state_directory) / ADVICE_FOLDER
    if advice and job.user_id is not None and is_due(folder, job.user_id, now_seconds, config.mail):
        lines += ["", "What can be done:", *(f"  {line}" for line in advice)]
    return "\n".join([*lines, "", f"More: slurm-energy explain {job_id}", ""])


def is_due(folder: Path, user_id: int, now_seconds: float, mail: MailConfig) -> bool:
    """Return whether a user has had no advice for `mail.advice_days`, and note that he gets some now."""
    if mail.advice_days <= 0.0:
        return False
    path = folder / str(user_id)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if path.exists() and now_seconds - path.stat().st_mtime < mail.advice_days * DAY_SECONDS:
            return False
        path.touch(mode=0o600)
        os.utime(path, (now_seconds, now_seconds))
    except OSError:
        return False  # what cannot be noted would be said in every mail
    return True


def _become(program: str, words: Sequence[str]) -> int:
    try:
        os.execv(program, [program, *words])  # noqa: S606  # the site's own mail program, without a shell
    except OSError as error:
        say(f"mail.program {program} cannot be started: {error.strerror}", PROGRAM)
    return 1


if __name__ == "__main__":
    sys.exit(main())
