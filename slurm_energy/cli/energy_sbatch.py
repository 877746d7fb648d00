"""energy-sbatch: sbatch with every option and argument passed through, and one line that says what was decided.

Starts at each submission, so it imports little: no click, no rich, no SQL, and the parser only when it is needed.
"""

import os
import re
import sys
from collections.abc import Sequence

from slurm_energy.cli.say import say
from slurm_energy.cli.sbatch_find import child_environment, find_sbatch
from slurm_energy.cli.sbatch_process import Outcome, end_as, run_between_streams
from slurm_energy.config import Config, load_config
from slurm_energy.errors import SlurmEnergyError, plain_words

_EXPLAIN_SECONDS = 0.5
_PLUGIN_LINE = re.compile(rb"^sbatch: (?:\d+: )?energy: ", re.MULTILINE)
_JOB_LINE = re.compile(rb"^(?:Submitted batch job )?(\d+)(?: on cluster \S+|;\S+)?$", re.MULTILINE)
_UNCLEAR = re.compile(
    rb"Socket timed out|Unable to contact|Zero Bytes|Connection timed out|Communication connection failure", re.I
)
_UNKNOWN_ENERGY_LINE = re.compile(rb"(?:unrecogni[sz]ed option|Invalid directive)\W.*--energy", re.I)
_HELP_WORDS = frozenset({b"--help", b"-h", b"--usage"})
_SILENT_WORDS = frozenset({b"--energy-quiet", b"--quiet", b"-Q"})


def main(argv: Sequence[bytes] | None = None) -> int:
    """Run sbatch with these arguments (the process's own when None) and return its exit code."""
    words = [os.fsencode(word) for word in sys.argv[1:]] if argv is None else list(argv)
    config = _config()
    try:
        sbatch = find_sbatch(config.cluster.slurm_bin_directory, os.environ)
        if any(word.startswith(b"--en") for word in words):
            from slurm_energy.cli.sbatch_energy_options import Submission, prepare  # noqa: PLC0415  # costs start time

            prepared = prepare(words, sbatch, config)
            if not isinstance(prepared, Submission):
                return prepared
            words = list(prepared.words)
        outcome = run_between_streams(sbatch, words, child_environment(sbatch, os.environ))
        _add_line(outcome, words, config)
        return end_as(outcome)
    except OSError as error:
        say(f"sbatch cannot be started: {error}")
        return 1
    except Exception as error:  # noqa: BLE001  # the wrapper's outermost call: a person gets words, never a traceback
        say(plain_words(error))
        return 1


def _config() -> Config:
    """Return the site's settings, or the defaults: a file the user may not read is no reason to refuse a job."""
    try:
        return load_config()
    except SlurmEnergyError:
        return Config()


def _add_line(outcome: Outcome, words: Sequence[bytes], config: Config) -> None:
    if outcome.exit_code != 0:
        if _UNCLEAR.search(outcome.stderr):
            say("the job may have been accepted all the same: look with 'squeue --me' before submitting again")
        elif _UNKNOWN_ENERGY_LINE.search(outcome.stderr):
            say("sbatch on this host lacks the energy plugin: take the #SBATCH --energy lines out, or tell your admins")
    elif outcome.stdout.startswith(b"Usage: ") and _HELP_WORDS.intersection(words):
        say("--energy-dry-run in front of the script shows what would be decided and submits nothing")
    elif config.plugin.message and not _SILENT_WORDS.intersection(words) and not _PLUGIN_LINE.search(outcome.stderr):
        job = _JOB_LINE.search(outcome.stdout)
        line = _explanation(job.group(1).decode("ascii"), config) if job is not None else ""
        if line:
            say(line)


def _explanation(job_id: str, config: Config) -> str:
    """Return the daemon's line on a job, or nothing: a missing explanation is not worth a message."""
    from slurm_energy.cli.daemon_line import explanation_line  # noqa: PLC0415  # costs start time

    try:
        return explanation_line(config.daemon.socket_path, job_id, _EXPLAIN_SECONDS)
    except SlurmEnergyError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
