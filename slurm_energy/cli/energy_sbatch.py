"""energy-sbatch: sbatch with every option and argument passed through, and one line that says what was decided.

Starts at each submission, so it imports little: no click, no rich, no SQL, and the parser only when it is needed.
"""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import PurePath

from slurm_energy.cli.sbatch.process import SbatchResult, child_environment, end_as, find_sbatch, run_between_streams
from slurm_energy.cli.sbatch.script_features import sent_features
from slurm_energy.config import Config, ScriptConfig, load_config
from slurm_energy.errors import SlurmEnergyError, plain_words
from slurm_energy.reporting.visible import say

_EXPLAIN_SECONDS = 0.5
_PLUGIN_LINE = re.compile(rb"sbatch: (?:error: )?(\d+: )?energy: ")
_JOB_LINE = re.compile(rb"^(?:Submitted batch job )?(\d+)(?:(?: on cluster |;)(\S+))?$", re.MULTILINE)
_UNCLEAR = re.compile(
    rb"Socket timed out|Unable to contact|Zero Bytes|Connection timed out|Communication connection failure", re.I
)
_UNKNOWN_OPTION = re.compile(rb"(?:unrecogni[sz]ed option|invalid directive)\b.*?--([A-Za-z][\w-]*)", re.I)
_ONLY_LOCAL = re.compile(rb"Only local cluster communication is available", re.I)
_CLUSTER_WORDS = (b"--energy-c", b"--energy-da")
_HEAD_BYTES = 65_536
_HELP_WORDS = frozenset({b"--help", b"-h", b"--usage"})
_SILENT_WORDS = frozenset({b"--energy-quiet", b"--quiet", b"-Q"})


def main(argv: Sequence[bytes] | None = None) -> int:
    """Run sbatch with these arguments (the process's own when None) and return its exit code."""
    words = [os.fsencode(word) for word in sys.argv[1:]] if argv is None else list(argv)
    config = _config()
    notes: list[str] = []
    try:
        sbatch = find_sbatch(config.cluster.slurm_bin_directory, os.environ)
        cluster = ""
        if _may_choose_cluster(words, config):
            from slurm_energy.cli.sbatch.clusters import with_cluster  # noqa: PLC0415  # costs start time

            chosen = with_cluster(words, sbatch, config)
            if isinstance(chosen, int):
                return chosen
            words, cluster, notes = list(chosen.words), chosen.cluster, [chosen.note]
        if any(word.startswith(b"--en") for word in words):
            from slurm_energy.cli.sbatch.options import SbatchWords, prepare  # noqa: PLC0415  # costs start time

            prepared = prepare(words, sbatch, config)
            if not isinstance(prepared, SbatchWords):
                return prepared
            words = list(prepared.words)
            notes.append(prepared.note)
        speaks = _may_speak(words, config)
        environment = child_environment(sbatch, os.environ, explain=speaks, features=sent_features(words, config))
        outcome = run_between_streams(sbatch, words, environment, _PLUGIN_LINE)
        if cluster and outcome.exit_code != 0 and _ONLY_LOCAL.search(outcome.stderr):
            notes = ["slurmdbd, which knows where clusters are, gives no answer: sbatch was run for the local one"]
            outcome = run_between_streams(sbatch, words[1:], environment, _PLUGIN_LINE)  # it has read no script yet
        for (
            note
        ) in notes:  # behind what sbatch says: who takes the first number for the job's may find one in an option
            if note:
                say(note)
        _add_line(outcome, words, config, speaks=speaks)
        return end_as(outcome)
    except OSError as error:
        say(f"sbatch cannot be started: {error}")
        return 1
    except Exception as error:  # noqa: BLE001  # the wrapper's outermost call: a person gets words, never a traceback
        say(plain_words(error))
        return 1


def _may_choose_cluster(words: Sequence[bytes], config: Config) -> bool:
    """Return whether a cluster may be to be chosen: what says so costs more than the rest of a submission."""
    if any(word.startswith(_CLUSTER_WORDS) for word in words):
        return True
    if config.clusters.names or not config.clusters.addresses:
        return bool(config.clusters.addresses)
    if any(word.startswith(b"--wrap") for word in words):
        return False
    heads = [head for word in words if not word.startswith(b"-") and (head := _head(word)) is not None]
    return not heads or any(_CLUSTER_WORDS[0] in head for head in heads)  # none: it comes from standard input


def _head(path: bytes) -> bytes | None:
    """Return where a script has its #SBATCH lines; None for what is no file, as a pipe, which sbatch reads but once."""
    try:
        if not os.path.isfile(path):  # noqa: PTH113  # pathlib costs 10 ms at each submission
            return None
        with open(path, "rb") as file:  # noqa: PTH123  # as above
            return file.read(_HEAD_BYTES)
    except (OSError, ValueError):
        return None


def _config() -> Config:
    """Return the site's settings, or the defaults: a file the user may not read is no reason to refuse a job.

    Whether scripts may be read is not known then: they are not.
    """
    try:
        return load_config()
    except SlurmEnergyError:
        return Config(script=ScriptConfig(read="off"))


def _add_line(outcome: SbatchResult, words: Sequence[bytes], config: Config, *, speaks: bool) -> None:
    """Say what is to be said once sbatch has ended; what the plugin said of a job that was refused is left unsaid."""
    if outcome.exit_code != 0:
        if _UNCLEAR.search(outcome.stderr):
            say("the job may have been accepted: check with 'squeue --me' before you submit again")
        else:
            _say_unknown_option(outcome.stderr)
    elif outcome.stdout.startswith(b"Usage: ") and _HELP_WORDS.intersection(words):
        say("--energy-dry-run in front of the script shows what would be decided and submits nothing")
    elif speaks and outcome.held:
        for held in outcome.held:
            say(_PLUGIN_LINE.sub(rb"\1", held, count=1).decode("utf-8", "replace"))
    elif speaks:
        job = _JOB_LINE.search(outcome.stdout)
        is_here = job is not None and job.group(2) in {None, config.cluster.name.encode()}
        line = _explanation(job.group(1).decode("ascii"), config) if job is not None and is_here else ""
        if line:
            say(line)


def _may_speak(words: Sequence[bytes], config: Config) -> bool:
    """Return whether a line on the decision is wanted: not under sbatch's own name by a program that reads it."""
    named = PurePath(sys.argv[0]).name != "sbatch" or os.isatty(2)
    return named and config.plugin.message and not _SILENT_WORDS.intersection(words)


def _say_unknown_option(stderr: bytes) -> None:
    """Say what is wrong with an option of ours that sbatch does not know: its spelling, or the plugin."""
    unknown = _UNKNOWN_OPTION.search(stderr)
    if unknown is None:
        return
    from slurm_energy.cli.sbatch.options import unknown_option_advice  # noqa: PLC0415  # costs start time

    advice = unknown_option_advice(unknown.group(1).decode("ascii"))
    if advice:
        say(advice)


def _explanation(job_id: str, config: Config) -> str:
    """Return the daemon's line on a job, or nothing: a missing explanation is not worth a message."""
    from slurm_energy.cli.daemon_line import explanation_line  # noqa: PLC0415  # costs start time

    try:
        return explanation_line(config.daemon.socket_path, job_id, _EXPLAIN_SECONDS)
    except SlurmEnergyError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
