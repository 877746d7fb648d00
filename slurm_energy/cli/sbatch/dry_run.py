"""`energy-sbatch --energy-dry-run`: what would be decided for this job, without submitting it."""

import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from slurm_energy import __version__
from slurm_energy.cli.daemon_line import preview
from slurm_energy.cli.sbatch.script_features import script_path, sent_features
from slurm_energy.config import Config
from slurm_energy.domain.decision import AnswerDetails, RuntimeEstimate
from slurm_energy.domain.plain import from_plain
from slurm_energy.domain.report import reason_sentence, runtime_basis
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.errors import DaemonUnavailable, SlurmError, ValueRangeError
from slurm_energy.policy.detail_text import detail_sentences
from slurm_energy.reporting.visible import say, visible
from slurm_energy.resources import install_command
from slurm_energy.slurm.sbatch import SbatchJob, decide_fields, job_request, sbatch_job
from slurm_energy.slurm.sbatch_counts import named_counts
from slurm_energy.slurm.sbatch_options import DRY_RUN, ENERGY_OPTIONS, SplitArguments, Takes, script_directives

MAX_SCRIPT_BYTES = 4 * 1024 * 1024
"""Slurm's own default of SchedulerParameters=max_script_size."""
_PREVIEW_SECONDS = 5.0


def dry_run(words: Sequence[bytes], split: SplitArguments, known: Mapping[str, Takes], config: Config) -> int:
    """Print what would be decided, and return the exit code.

    Args:
        words: sbatch's arguments.
        split: The same, split.
        known: Options of sbatch here beyond its own.
        config: The site's settings.

    Raises:
        SlurmEnergyError: the script or an option cannot be read, or the daemon gives no answer.
    """
    described = described_job(words, split, known, config)
    job, sent, fields = described.job, described.sent, described.fields
    try:
        message, explanation = preview(config.daemon.socket_path, fields, _PREVIEW_SECONDS)
    except DaemonUnavailable as error:
        for line in script_lines(sent, config):  # this host knows it, also where the daemon does not answer
            print(line, flush=True)
        from slurm_energy.cli.records import where_to_run  # noqa: PLC0415  # heavy, and only for this message

        where = where_to_run(config) or str(error)
        raise DaemonUnavailable(
            f"{where}; nothing was submitted, and plain submission works without the daemon"
        ) from error
    for line in (*preview_lines(job, message, explanation), *script_lines(sent, config)):
        print(line)
    if "energy" not in known:
        say("sbatch on this host lacks the energy plugin: options in --energy… would not reach the cluster from here")
    sys.stdout.flush()
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedJob:
    """A job as the daemon is asked about it."""

    job: SbatchJob
    sent: str
    """Of its script."""
    fields: Mapping[str, str]


def described_job(
    words: Sequence[bytes], split: SplitArguments, known: Mapping[str, Takes], config: Config
) -> DescribedJob:
    """Return the job that sbatch's arguments and its script describe; the script may come from standard input.

    Raises:
        SlurmEnergyError: the script or an option cannot be read.
    """
    extra = {**known, **ENERGY_OPTIONS, DRY_RUN: Takes.NOTHING}
    given = {option.name: option.value for option in split.options}
    text = "" if "wrap" in given else script_text(split.rest, given.get("chdir"))
    directives = None if "wrap" in given else script_directives(text)
    job = sbatch_job(split, os.environ, directives, extra, text)
    sent = sent_features(words, config)
    request = job_request(job, os.getuid(), time.time())  # complains in sbatch's words about what cannot be read
    fields = {
        "client": f"energy-sbatch/{__version__}",
        "uid": str(os.getuid()),
        "gid": str(os.getgid()),
        "submit_uid": str(os.getuid()),
        **decide_fields(job),
    }
    if request.options.deadline_seconds is not None:  # read here, by this host's time zone, as the plugin does
        fields["energy_deadline"] = f"@{int(request.options.deadline_seconds)}"
    if request.options.start_before_seconds is not None:
        fields["energy_start_before"] = f"@{int(request.options.start_before_seconds)}"
    if sent:
        fields["script"] = sent
    is_single = len(split.components) == 1 and (directives is None or len(directives.components) == 1)
    counts = named_counts(job.options, is_single=is_single)
    fields |= {} if counts is None else counts.fields()
    return DescribedJob(job=job, sent=sent, fields=fields)


def preview_lines(job: SbatchJob, message: str, explanation: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that a person reads."""
    decision = _mapping(explanation.get("decision"))
    yield f"Dry run of {visible(job.name)}: nothing was submitted."
    yield f"  message:       {visible(message) or 'nothing'}"
    known = from_plain(RuntimeEstimate, decision["estimate"]) if decision.get("estimate") else None
    if known is not None:
        yield f"  run time:      {runtime_basis(known, _script(explanation))}"
    asked = _asked(explanation)
    if asked:
        yield f"  asked for:     {asked}"
    yield from _count_lines(decision, explanation)
    partitions = _items(decision.get("partitions"))
    yield f"  partition:     {visible(','.join(map(str, partitions))) if partitions else 'as you or Slurm choose'}"
    clocks = [_mapping(clock) for clock in _items(decision.get("clocks"))]
    for clock in clocks:
        yield f"  clock:         {clock_line(clock)}"
    if not clocks:
        yield "  clock:         unchanged"
    begins = decision.get("begins_at_seconds")
    if begins is not None:
        yield f"  start:         not before {time.strftime('%Y-%m-%dT%H:%M:%S%z', time.localtime(float(begins)))}"
    changed = bool(begins or partitions or clocks or decision.get("prefer") or decision.get("gpus"))
    for code in _items(decision.get("reasons")):
        yield f"  because:       {visible(reason_sentence(str(code), changed=changed))}"
    details = from_plain(AnswerDetails, decision.get("details") or {})
    for note in (*detail_sentences(details), *_items(decision.get("notes")), *job.notes):
        yield f"  note:          {visible(str(note))}"
    policy = (visible(str(decision[key])) for key in ("policy", "policy_version") if decision.get(key))
    yield f"  policy:        {' '.join(policy) or 'none'}"


def _count_lines(decision: Mapping[str, Any], explanation: Mapping[str, Any]) -> Iterator[str]:
    """Yield the number of GPUs where its user named several; why it stays is among the notes."""
    named = _items(_mapping(_mapping(explanation.get("job")).get("options")).get("gpu_counts"))
    if not named and not decision.get("gpus"):
        return
    gpus, asked = decision.get("gpus"), explanation.get("gpu_count")
    if gpus is None or gpus == asked:
        yield "  GPUs:          as asked for"
    else:
        yield f"  GPUs:          {visible(str(gpus))} in the place of {visible(str(asked))}"
    if gpus is not None:
        yield "                 (slurmctld also looks at the script and at limits of partitions and accounts)"


def script_lines(sent: str, config: Config) -> Iterator[str]:
    """Yield what is sent of the job's script, all of it, as it is sent."""
    if config.script.read == "off":
        yield "  script:        not read (script.read is off)"
    elif not sent and find_spec("tree_sitter") is None:
        yield f"  script:        not read: tree-sitter is not installed here, {install_command('script')}"
    elif not sent:
        yield "  script:        nothing is sent: it was not understood, or not read in time"
    else:
        yield f"  script:        {ScriptFeatures.decode(sent).sentence() or 'says nothing of the work'}"
        yield f"  sent of it:    {sent}"


def clock_line(clock: Mapping[str, Any]) -> str:
    """Return one clock in words, with what is known of what it saves, or whose figures it has."""
    gpu_type, asked_mhz, default_mhz = (
        visible(str(clock.get(key))) for key in ("gpu_type", "sm_clock_mhz", "default_clock_mhz")
    )
    line = f"{gpu_type} at {asked_mhz} of {default_mhz} MHz"
    change, slowdown = clock.get("predicted_energy_change"), clock.get("predicted_slowdown")
    if clock.get("is_assumed"):
        return f"{line} (assumed, from another GPU; what it saves is not measured)"
    if isinstance(change, int | float) and isinstance(slowdown, int | float):
        word, runs = "less" if change <= 0 else "more", clock.get("known_runs")
        saving, longer = f"{abs(change) * 100:.0f} % {word} energy", f"{slowdown * 100:.0f} % longer"
        if isinstance(runs, int) and runs > 0:
            line += f" (about {saving}, {longer}, known from {runs} run{'' if runs == 1 else 's'})"
        else:
            worst, mean = clock.get("worst_slowdown"), clock.get("mean_slowdown")
            bound = f"at most {longer}"
            if isinstance(worst, int | float) and round(100.0 * worst) > round(100.0 * slowdown):
                bound = f"{longer} in the mean, up to {worst * 100:.0f} %"
            saving += f" for {mean * 100:.0f} % of time" if isinstance(mean, int | float) else ""
            line += f" ({bound}; what this job saves is not known, {saving} in the mean of other programs)"
    return line


def _script(explanation: Mapping[str, Any]) -> ScriptFeatures | None:
    plain = _mapping(explanation.get("job")).get("script")
    return None if plain is None else from_plain(ScriptFeatures, plain)


def _asked(explanation: Mapping[str, Any]) -> str:
    parts = []
    gpus = explanation.get("gpu_count")
    if isinstance(gpus, int):
        parts.append(f"{gpus} GPU{'' if gpus == 1 else 's'}")
    limit = explanation.get("time_limit_minutes")
    if isinstance(limit, int | float):
        parts.append(f"{limit:g} min at most")
    return ", ".join(parts)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _items(value: object) -> Iterable[Any]:
    return value if isinstance(value, list) else []


def script_text(rest: tuple[str, ...], directory: str | None) -> str:
    """Return the job's script, from its file or from standard input.

    Raises:
        SlurmEnergyError: it cannot be read, or sbatch would refuse it.
    """
    if not rest:
        return _decoded(_standard_input(), "the script on standard input")
    path = script_path(rest[0], directory)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # before it is opened: who writes into a pipe would lose its reader
            raise SlurmError(f"script {visible(str(path))} is not a file")
        with path.open("rb") as file:
            return _decoded(file.read(MAX_SCRIPT_BYTES + 1), f"script {visible(str(path))}")
    except OSError as error:
        raise SlurmError(f"script {visible(str(path))} cannot be read: {error.strerror}") from error


def _standard_input() -> bytes:
    """Return what comes there, read without a buffer: who reads it again begins where it began."""
    raw = b""
    while len(raw) <= MAX_SCRIPT_BYTES and (chunk := os.read(0, MAX_SCRIPT_BYTES)):
        raw += chunk
    return raw


def _decoded(raw: bytes, thing: str) -> str:
    if len(raw) > MAX_SCRIPT_BYTES:
        raise ValueRangeError(f"{thing} is over {MAX_SCRIPT_BYTES} bytes")
    if b"\x00" in raw:
        raise ValueRangeError(f"{thing} contains a NUL byte: sbatch refuses it")
    if not raw.strip():
        raise ValueRangeError(f"{thing} is empty")
    return raw.decode("utf-8", "surrogateescape")
