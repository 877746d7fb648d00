"""A node's report as JSON, and a batch of them; what comes in may be hostile."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from slurm_energy.domain.energy import EnergyScope, EnergySource, GpuEnergy, HostEnergy, NodeReport, QualityFlag
from slurm_energy.domain.ids import (
    MAX_GPU_TYPE_NAME,
    MAX_JOB_ID,
    ClusterName,
    GpuTypeName,
    GpuUuid,
    JobId,
    NodeName,
    is_gpu_type_name,
    parse_decision_id,
)
from slurm_energy.domain.trials import ClockTrial
from slurm_energy.errors import ValueRangeError, WireError
from slurm_energy.forms import is_plain
from slurm_energy.wire.fields import Fields, loads

BATCH_FORMAT = 1
MAX_BATCH_BYTES = 2_097_152
MAX_REPORTS = 1000
MAX_GPUS = 1024
MAX_EVENTS = 64
MAX_EVENT_LENGTH = 500
MAX_REASON_LENGTH = 1000
MAX_TRIALS = 64
MAX_TRIAL_REASON_LENGTH = 200

_MAX_JOULES = 1e15
_MAX_UNIX_SECONDS = 1e11
_GPU_KEYS = frozenset(GpuEnergy.__dataclass_fields__)
_METER_KEYS = ("meter_id", "meter_start_joules", "meter_end_joules")
_HOST_KEYS = frozenset(HostEnergy.__dataclass_fields__)
_OF_THE_NODE = frozenset({"boot_id", "started_monotonic_seconds"})
"""Members of a report's file on its node, which say when the job started by a clock that cannot be set."""
_REPORT_KEYS = frozenset(NodeReport.__dataclass_fields__) | _OF_THE_NODE
_TRIAL_KEYS = (
    "gpu_type",
    "sm_clock_mhz",
    "default_clock_mhz",
    "at_seconds",
    "watts",
    "default_watts",
    "slowdown",
    "error",
    "kept",
    "source",
    "reason",
)
_Kind = TypeVar("_Kind", EnergySource, EnergyScope)


def encode_report(report: NodeReport) -> dict[str, object]:
    """Return the report as a JSON object."""
    trials = [encode_trial(trial) for trial in report.trials[:MAX_TRIALS]]
    return {
        # A daemon of an older release refuses what it does not know.
        **({"trials": trials} if trials else {}),
        "cluster": report.cluster,
        "job_id": report.job_id,
        "restart_count": report.restart_count,
        "node": report.node,
        "user_id": report.user_id,
        "partition": report.partition,
        "decision_id": report.decision_id,
        "started_at_seconds": report.started_at_seconds,
        "ended_at_seconds": report.ended_at_seconds,
        "time_scale": report.time_scale,
        "gpus": [_encode_gpu(gpu) for gpu in report.gpus],
        "host": None if report.host is None else _encode_host(report.host),
        "exit_code": report.exit_code,
        "events": [event[:MAX_EVENT_LENGTH] for event in report.events[:MAX_EVENTS]],
    }


def decode_report(value: object) -> NodeReport:
    """Return the report in a parsed JSON value.

    Raises:
        WireError: a member is missing, unknown, of another type or outside its bound.
    """
    fields = Fields(value, "report")
    fields.refuse_others(_REPORT_KEYS)
    try:
        decision_id = fields.optional_text("decision_id", 32)
        host = fields.get("host")
        report = NodeReport(
            cluster=ClusterName(_plain(fields, "cluster", "._-", 255)),
            job_id=JobId(fields.integer("job_id", 1, MAX_JOB_ID)),
            restart_count=fields.integer("restart_count", 0, MAX_JOB_ID),
            node=NodeName(_plain(fields, "node", "._-", 255)),
            user_id=fields.optional_integer("user_id", 0, 0xFFFFFFFE),
            partition=fields.optional_text("partition", 255),
            decision_id=None if decision_id is None else parse_decision_id(decision_id),
            started_at_seconds=fields.number("started_at_seconds", 0, _MAX_UNIX_SECONDS),
            ended_at_seconds=fields.number("ended_at_seconds", 0, _MAX_UNIX_SECONDS),
            time_scale=fields.number("time_scale", 0.001, 100_000.0),
            gpus=tuple(_decode_gpu(gpu) for gpu in fields.sequence("gpus", MAX_GPUS)),
            host=None if host is None else _decode_host(host),
            exit_code=fields.optional_integer("exit_code", 0, 0xFFFF),
            events=fields.texts("events", MAX_EVENTS),
            trials=tuple(decode_trial(trial) for trial in fields.sequence("trials", MAX_TRIALS)),
        )
    except ValueRangeError as error:
        raise WireError(f"report: {error}") from error
    if len({gpu.gpu_uuid for gpu in report.gpus}) != len(report.gpus):
        raise WireError("report names a GPU twice")
    return report


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportBatch:
    """Reports that were sent at once, with what the sender knew of its own clock."""

    reports: tuple[NodeReport, ...]
    sent_at_seconds: float | None = None
    """Unix time of the node's clock when it sent them; None from an older release."""
    ages_seconds: tuple[float | None, ...] = ()
    """Of each report, how long ago its job had started, by a clock that cannot be set; None after a reboot."""

    def clock_offsets_seconds(self, received_at_seconds: float) -> tuple[float | None, ...]:
        """Return what to add to the times of each report to have them by the receiver's clock; None: not known."""
        if len(self.ages_seconds) != len(self.reports):
            return (None,) * len(self.reports)
        return tuple(
            None if age is None else received_at_seconds - age - report.started_at_seconds
            for report, age in zip(self.reports, self.ages_seconds, strict=True)
        )


def encode_batch(
    reports: Iterable[object], sent_at_seconds: float | None = None, ages_seconds: Sequence[float | None] = ()
) -> str:
    """Return the text of a batch of encoded reports."""
    document: dict[str, object] = {"format": BATCH_FORMAT, "reports": list(reports)}
    if sent_at_seconds is not None:
        document |= {"sent_at_seconds": sent_at_seconds, "ages_seconds": list(ages_seconds)}
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def batch_fields(text: str | bytes) -> Fields:
    """Return the members of a batch.

    Raises:
        WireError: not a batch of this format.
    """
    fields = Fields(loads(text, "batch", MAX_BATCH_BYTES), "batch")
    if fields.get("format") != BATCH_FORMAT:
        raise WireError(f"batch has format {fields.get('format')!r:.40}, this code reads {BATCH_FORMAT}")
    return fields


def decode_reports(fields: Fields) -> ReportBatch:
    """Return the reports of a batch, all or none.

    Raises:
        WireError: one of them is malformed.
    """
    ages = [Fields({"age": age}, "batch") for age in fields.sequence("ages_seconds", MAX_REPORTS)]
    return ReportBatch(
        reports=tuple(decode_report(value) for value in fields.sequence("reports", MAX_REPORTS)),
        sent_at_seconds=fields.optional_number("sent_at_seconds", 0, _MAX_UNIX_SECONDS),
        ages_seconds=tuple(age.optional_number("age", 0, _MAX_UNIX_SECONDS) for age in ages),
    )


def _encode_gpu(gpu: GpuEnergy) -> dict[str, object]:
    encoded: dict[str, object] = {key: getattr(gpu, key) for key in GpuEnergy.__dataclass_fields__}
    encoded.update(source=gpu.source.value, scope=gpu.scope.value, flags=[flag.value for flag in gpu.flags])
    encoded["reason"] = None if gpu.reason is None else gpu.reason[:MAX_REASON_LENGTH]
    return encoded


def _encode_host(host: HostEnergy) -> dict[str, object]:
    return {
        "joules": host.joules,
        "reason": None if host.reason is None else host.reason[:MAX_REASON_LENGTH],
        "coverage_seconds": host.coverage_seconds,
        "flags": [flag.value for flag in host.flags],
        "node_joules": host.node_joules,
        # A daemon of an older release refuses what it does not know.
        **({} if host.meter_id is None else {name: getattr(host, name) for name in _METER_KEYS}),
    }


def _decode_gpu(value: object) -> GpuEnergy:
    fields = Fields(value, "gpu")
    fields.refuse_others(_GPU_KEYS)
    gpu_type = fields.optional_text("gpu_type", MAX_GPU_TYPE_NAME)
    if gpu_type is not None and not is_gpu_type_name(gpu_type):
        raise WireError(f"gpu.gpu_type is {gpu_type!r}, a catalogue name is needed")
    return GpuEnergy(
        gpu_uuid=GpuUuid(_plain(fields, "gpu_uuid", "/._-", 128)),
        gpu_name=fields.optional_text("gpu_name", 255) or "",
        gpu_type=None if gpu_type is None else GpuTypeName(gpu_type),
        joules=fields.optional_number("joules", 0, _MAX_JOULES),
        reason=fields.optional_text("reason", MAX_REASON_LENGTH),
        source=_member(EnergySource, fields, "source"),
        scope=_member(EnergyScope, fields, "scope"),
        coverage_seconds=fields.number("coverage_seconds", 0, 1e10),
        flags=_flags(fields),
        counter_joules=fields.optional_number("counter_joules", 0, _MAX_JOULES),
        polled_joules=fields.optional_number("polled_joules", 0, _MAX_JOULES),
        asked_clock_mhz=fields.optional_integer("asked_clock_mhz", 1, 10_000),
        applied_clock_mhz=fields.optional_integer("applied_clock_mhz", 1, 10_000),
        observed_clock_mhz=fields.optional_number("observed_clock_mhz", 0, 10_000),
        default_clock_mhz=fields.optional_integer("default_clock_mhz", 1, 10_000),
        utilisation=fields.optional_number("utilisation", 0, 1),
    )


def _decode_host(value: object) -> HostEnergy:
    fields = Fields(value, "host")
    fields.refuse_others(_HOST_KEYS)
    return HostEnergy(
        joules=fields.optional_number("joules", 0, _MAX_JOULES),
        reason=fields.optional_text("reason", MAX_REASON_LENGTH),
        coverage_seconds=fields.number("coverage_seconds", 0, 1e10),
        flags=_flags(fields),
        node_joules=fields.optional_number("node_joules", 0, _MAX_JOULES),
        meter_id=fields.optional_text("meter_id", 64),
        meter_start_joules=fields.optional_number("meter_start_joules", 0, _MAX_JOULES),
        meter_end_joules=fields.optional_number("meter_end_joules", 0, _MAX_JOULES),
    )


def encode_trial(trial: ClockTrial) -> dict[str, object]:
    """Return a trial as a JSON object."""
    encoded: dict[str, object] = {key: getattr(trial, key) for key in _TRIAL_KEYS}
    encoded["reason"] = trial.reason[:MAX_TRIAL_REASON_LENGTH]
    return encoded


def decode_trial(value: object) -> ClockTrial:
    """Return the trial in a parsed JSON value.

    Raises:
        WireError: a member is missing, unknown, of another type or outside its bound.
    """
    fields = Fields(value, "trial")
    fields.refuse_others(frozenset(_TRIAL_KEYS))
    try:
        return ClockTrial(
            gpu_type=GpuTypeName(fields.text("gpu_type", MAX_GPU_TYPE_NAME)),
            sm_clock_mhz=fields.integer("sm_clock_mhz", 1, 10_000),
            default_clock_mhz=fields.integer("default_clock_mhz", 1, 10_000),
            at_seconds=fields.number("at_seconds", 0, 1e10),
            watts=fields.number("watts", 0, 1e5),
            default_watts=fields.number("default_watts", 0, 1e5),
            slowdown=fields.optional_number("slowdown", 0, 10),
            error=fields.optional_number("error", 0, 10),
            kept=fields.flag("kept"),
            source=fields.optional_text("source", 16) or "",
            reason=fields.optional_text("reason", MAX_TRIAL_REASON_LENGTH) or "",
        )
    except ValueRangeError as error:
        raise WireError(f"trial: {error}") from error


def _plain(fields: Fields, key: str, others: str, max_length: int) -> str:
    text = fields.text(key, 255)
    if not is_plain(text, others, max_length) or not text[0].isalnum():
        raise WireError(f"{fields.thing}.{key} is {text[:64]!r}, which has characters that are not allowed there")
    return text


def _member(kind: type[_Kind], fields: Fields, key: str) -> _Kind:
    text = fields.text(key, 64)
    try:
        return kind(text)
    except ValueError:
        raise WireError(f"{fields.thing}.{key} is {text!r}, known: {', '.join(kind)}") from None


def _flags(fields: Fields) -> tuple[QualityFlag, ...]:
    try:
        return tuple(QualityFlag(text) for text in fields.texts("flags", 32))
    except ValueError as error:
        raise WireError(f"{fields.thing}.flags: {str(error)[:100]}") from None
