"""What a call of sbatch asks for: command line over environment over #SBATCH lines. Pure functions, nothing is run.

Only the first component of a heterogeneous job is read, and #PBS and #BSUB lines are not: both are said in `notes`.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from slurm_energy.domain.ids import PartitionName
from slurm_energy.domain.job import EnergyMode, EnergyOptions, JobRequest
from slurm_energy.errors import ValueRangeError
from slurm_energy.slurm.deadline import parse_deadline
from slurm_energy.slurm.gres import gpu_demands
from slurm_energy.slurm.sbatch_options import (
    ENERGY_OPTIONS,
    GivenOption,
    ScriptDirectives,
    SplitArguments,
    Takes,
    keeps_others_out,
    split_arguments,
)
from slurm_energy.slurm.sbatch_values import (
    Options,
    memory_mib,
    node_range,
    slowdown_from_percent,
    task_count,
    time_limit_minutes,
    tres_request,
    trials_from_word,
    whole_number,
)

ENVIRONMENT_OPTIONS: Final[Mapping[str, str]] = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_CPUS_PER_GPU": "cpus-per-gpu",
    "SBATCH_CPUS_PER_TASK": "cpus-per-task",
    "SBATCH_EXCLUSIVE": "exclusive",
    "SBATCH_GPU_FREQ": "gpu-freq",
    "SBATCH_GPUS": "gpus",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node",
    "SBATCH_GPUS_PER_TASK": "gpus-per-task",
    "SBATCH_GRES": "gres",
    "SBATCH_JOB_NAME": "job-name",
    "SBATCH_MEM_PER_CPU": "mem-per-cpu",
    "SBATCH_MEM_PER_GPU": "mem-per-gpu",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_NO_REQUEUE": "no-requeue",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_REQUEUE": "requeue",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_TRES_PER_TASK": "tres-per-task",
}
"""Variables of sbatch(1), INPUT ENVIRONMENT VARIABLES, that bear on a decision."""
_EXCLUDING: Final = (
    frozenset({"mem", "mem-per-cpu", "mem-per-gpu"}),
    frozenset({"exclusive", "oversubscribe"}),
    frozenset({"requeue", "no-requeue"}),
)
"""Giving one takes back the others where they came from a weaker source."""
_FOREIGN_LINE = re.compile(r"^#(?:PBS|BSUB)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SbatchJob:
    """The options in force for one job, and what a reader should know of how they were found."""

    options: Options
    script_name: str | None
    """None with --wrap and for a script on standard input."""
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The job's name: as given, else as sbatch makes it."""
        given = self.options.get("job-name")
        if given:
            return given
        if "wrap" in self.options:
            return "wrap"
        return PurePath(self.script_name).name if self.script_name else "sbatch"


def sbatch_job(
    arguments: SplitArguments,
    environment: Mapping[str, str],
    directives: ScriptDirectives | None,
    extra: Mapping[str, Takes] = ENERGY_OPTIONS,
    script_text: str = "",
) -> SbatchJob:
    """Return the options in force for the first component.

    Args:
        arguments: The command line, split.
        environment: Variables of the caller; only SBATCH_* count.
        directives: The script's #SBATCH lines; None with --wrap.
        extra: Long options beyond sbatch's own.
        script_text: The whole script, for notes on what is not read.

    Raises:
        ValueRangeError: an #SBATCH line has an unknown option or a word that is none.
    """
    notes: list[str] = []
    script: list[GivenOption] = []
    if directives is not None:
        split = split_arguments(directives.components[0], extra)
        if split.rest:
            raise ValueRangeError(f"invalid directive found in batch script: {split.rest[0][:80]}")
        script = list(split.options)
        notes.extend(_script_notes(directives, script_text))
    if len(arguments.components) > 1 or (directives is not None and len(directives.components) > 1):
        notes.append("heterogeneous job: only its first component is looked at")
    options: dict[str, str | None] = {}
    from_environment = {
        name: environment[variable] for variable, name in ENVIRONMENT_OPTIONS.items() if variable in environment
    }
    for source in (_pairs(script), from_environment.items(), _pairs(arguments.options)):
        _overlay(options, source)
    wrapped = "wrap" in options
    name = None if wrapped or not arguments.rest else arguments.rest[0]
    return SbatchJob(options=options, script_name=name, notes=tuple(notes))


def _script_notes(directives: ScriptDirectives, script_text: str) -> list[str]:
    notes = []
    if directives.dos_line_breaks:
        notes.append("the script has DOS line breaks: sbatch refuses it")
    if not directives.is_script:
        notes.append("the script's first line does not begin with #!: sbatch refuses it")
    if _FOREIGN_LINE.search(script_text):
        notes.append("#PBS and #BSUB lines are not looked at here, though sbatch reads them")
    return notes


def _pairs(given: Iterable[GivenOption]) -> list[tuple[str, str | None]]:
    return [(option.name, option.value) for option in given]


def _overlay(options: dict[str, str | None], source: Iterable[tuple[str, str | None]]) -> None:
    given = dict(source)
    for name in given:
        for group in _EXCLUDING:
            if name in group:
                for other in group - given.keys():
                    options.pop(other, None)
    options.update(given)


def energy_options(options: Options, now_seconds: float) -> EnergyOptions:
    """Return the `--energy…` options, checked.

    Raises:
        ValueRangeError: a mode, percentage or time that does not exist.
    """
    mode = options.get("energy")
    deadline = options.get("energy-deadline")
    start_before = options.get("energy-start-before")
    try:
        chosen = None if mode is None else EnergyMode(mode.lower())
    except ValueError:
        raise ValueRangeError(f"--energy={mode!s:.40} is not off, observe, balanced or saver") from None
    return EnergyOptions(
        mode=chosen,
        max_slowdown=slowdown_from_percent(options.get("energy-max-slowdown")),
        deadline_seconds=None if deadline is None else parse_deadline(deadline, now_seconds),
        start_before_seconds=(
            None if start_before is None else parse_deadline(start_before, now_seconds, option="--energy-start-before")
        ),
        quiet="energy-quiet" in options,
        trials=trials_from_word(options.get("energy-trials")),
    )


def job_request(job: SbatchJob, user_id: int, now_seconds: float) -> JobRequest:
    """Return the job as a policy would see it.

    Raises:
        ValueRangeError: an option's argument cannot be read.
    """
    options = job.options
    nodes_min, nodes_max = node_range(options.get("nodes"))
    tasks = task_count(options, nodes_min)
    return JobRequest(
        user_id=user_id,
        name=job.name,
        account=options.get("account"),
        qos=options.get("qos"),
        partitions=tuple(PartitionName(name) for name in (options.get("partition") or "").split(",") if name),
        time_limit_minutes=time_limit_minutes(options),
        nodes_min=nodes_min or 1,
        nodes_max=nodes_max,
        tasks=tasks,
        cpus_per_task=whole_number("--cpus-per-task", options.get("cpus-per-task")),
        memory_per_node_mib=memory_mib("--mem", options.get("mem")),
        gpus=gpu_demands(tres_request(options, nodes_min, nodes_max, tasks)),
        features=options.get("constraint"),
        prefer=options.get("prefer"),
        reservation=options.get("reservation"),
        array=options.get("array"),
        exclusive=_is_exclusive(options),
        gpu_frequency_given="gpu-freq" in options,
        options=energy_options(options, now_seconds),
        submitted_at_seconds=now_seconds,
    )


def decide_fields(job: SbatchJob) -> dict[str, str]:
    """Return the job in the fields of the wire's `decide` and `preview`; absent where sbatch would send nothing.

    Raises:
        ValueRangeError: an option's argument cannot be read.
    """
    options = job.options
    nodes_min, nodes_max = node_range(options.get("nodes"))
    tres = tres_request(options, nodes_min, nodes_max, None)
    limit = time_limit_minutes(options)
    found: dict[str, object] = {
        "name": job.name,
        "account": options.get("account"),
        "qos": options.get("qos"),
        "partition": options.get("partition"),
        "time_limit": _minutes_field(options.get("time"), limit),
        "min_nodes": nodes_min,
        "max_nodes": nodes_max or nodes_min,
        "num_tasks": whole_number("--ntasks", options.get("ntasks")),
        "ntasks_per_node": whole_number("--ntasks-per-node", options.get("ntasks-per-node")),
        "cpus_per_task": whole_number("--cpus-per-task", options.get("cpus-per-task")),
        "min_cpus": whole_number("--mincpus", options.get("mincpus")),
        "mem_per_node_mib": memory_mib("--mem", options.get("mem")),
        "mem_per_cpu_mib": memory_mib("--mem-per-cpu", options.get("mem-per-cpu")),
        "tres_per_job": tres.per_job,
        "tres_per_node": tres.per_node,
        "tres_per_socket": tres.per_socket,
        "tres_per_task": tres.per_task,
        "tres_freq": f"gpu:{options['gpu-freq']}" if options.get("gpu-freq") else None,
        "features": options.get("constraint"),
        "prefer": options.get("prefer"),
        "array": options.get("array"),
        "reservation": options.get("reservation"),
        "dependency": options.get("dependency"),
        "licenses": options.get("licenses"),
        "exclusive": "1" if _is_exclusive(options) else None,
        "contiguous": "1" if "contiguous" in options else None,
        "energy_mode": (options.get("energy") or "").lower(),
        "energy_max_slowdown": _percent_field(options.get("energy-max-slowdown")),
        "energy_deadline": options.get("energy-deadline"),
        "energy_start_before": options.get("energy-start-before"),
        "energy_quiet": "1" if "energy-quiet" in options else None,
        "energy_trials": options.get("energy-trials"),
        "energy_redecide": options.get("energy-redecide"),
        "energy_open": (options["energy-open"] or "on") if "energy-open" in options else None,
    }
    return {key: _field(value) for key, value in found.items() if value not in (None, "")}


def _minutes_field(text: str | None, limit: float | None) -> str | None:
    if text is None:
        return None
    if limit is None:  # sbatch takes 0 for no limit, as it takes UNLIMITED
        return None if text.lower() == "partition_limit" else "infinite"
    return str(math.ceil(limit))


def _is_exclusive(options: Options) -> bool:
    return "exclusive" in options and keeps_others_out(options["exclusive"])


def _percent_field(text: str | None) -> str | None:
    slowdown = slowdown_from_percent(text)
    return None if slowdown is None else f"{slowdown * 100:.10g}"


def _field(value: object) -> str:
    return str(math.ceil(value)) if isinstance(value, float) else str(value)
