"""What the verbs carry: a job's request as Slurm's plugin tells it, the reply to it, a person's query."""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from slurm_energy.domain.decision import DecisionEntry, EnergyDecision
from slurm_energy.domain.gpu_count import MAX_GPU_COUNTS, GpuCountOption, parse_gpu_counts
from slurm_energy.domain.ids import PartitionName
from slurm_energy.domain.job import MAX_SLOWDOWN_BOUND, EnergyMode
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.errors import ValueRangeError, WireError
from slurm_energy.forms import is_feature_name, is_partition_name
from slurm_energy.wire.codec import Message

QUERY_SUBJECTS = (
    "explain",
    "report-job",
    "report-user",
    "report-account",
    "report-partition",
    "report-qos",
    "report-name",
    "report-node",
    "report-cluster",
    "report-slowdown",
    "report-open",
    "status",
    "decisions",
    "metrics",
)
MAX_PERIODS = 800
MAX_DECISIONS = 10_000
MAX_MESSAGE_LINE_BYTES = 512
MAX_TEXT_CHARACTERS = 1024
MAX_UID = 0xFFFFFFFE

_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedFields:
    """The fields of `decide` and `preview`, each checked; a value that cannot be read is None and a complaint.

    A user writes most of these himself, so none of them makes the whole request fail: his job goes through.
    """

    user_id: int
    client: str = ""
    name: str = ""
    account: str | None = None
    qos: str | None = None
    partitions: tuple[PartitionName, ...] = ()
    time_limit_minutes: float | None = None
    nodes_min: int | None = None
    nodes_max: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    tasks_per_gpu: int | None = None
    cpus_per_task: int | None = None
    cpus_min: int | None = None
    memory_per_node_mib: float | None = None
    memory_per_cpu_mib: float | None = None
    tres_per_job: str = ""
    tres_per_node: str = ""
    tres_per_socket: str = ""
    tres_per_task: str = ""
    tres_frequency: str = ""
    features: str | None = None
    prefer: str | None = None
    reservation: str | None = None
    array: str | None = None
    exclusive: bool = False
    tied: bool = False
    held: bool = False
    dependent: bool = False
    begins_at_seconds: int | None = None
    mode: EnergyMode | None = None
    max_slowdown: float | None = None
    deadline: str | None = None
    start_before: str | None = None
    quiet: bool = False
    trials: bool | None = None
    open: bool | None = None
    """Whether the named partition is a preference (--energy-open)."""
    explain: bool = False
    """Whether the line goes to energy-sbatch, which shows it, with figures, once Slurm has accepted the job."""
    script: ScriptFeatures | None = None
    """What energy-sbatch read of the job's script."""
    gpu_counts: tuple[int, ...] = ()
    """Numbers of GPUs that the user named with --energy-gpus."""
    count_options: tuple[GpuCountOption, ...] = ()
    """Those that Slurm's side can give the job; empty where it keeps its own, for the reason that follows."""
    count_refusal: str = ""
    complaints: tuple[str, ...] = ()


class _Reader:
    """Takes typed values out of a message's fields and remembers what could not be read."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = fields
        self.complaints: list[str] = []

    def text(self, key: str) -> str | None:
        """Return the text, cut to a sane length and free of what no database takes; None when absent or empty."""
        value = self._fields.get(key)
        if not value:
            return None
        return _UNSTORABLE.sub("\ufffd", value[:MAX_TEXT_CHARACTERS])

    def whole(self, key: str, high: int = 0xFFFFFFFD) -> int | None:
        """Return a whole number from 0 to `high`."""
        return self._converted(key, lambda text: _number(text, high))

    def ratio(self, key: str, high: float) -> float | None:
        """Return a ratio from a percentage from 0 to 100 x `high`."""

        def convert(text: str) -> float:
            number = float(text.removesuffix("%"))
            if not math.isfinite(number) or not 0.0 <= number <= 100.0 * high:
                raise ValueError
            return number / 100.0

        return self._converted(key, convert)

    def mode(self, key: str) -> EnergyMode | None:
        """Return an energy mode."""
        return self._converted(key, lambda text: EnergyMode(text.lower()))

    def switch(self, key: str) -> bool | None:
        """Return whether a field is `on` or `off`."""
        return self._converted(key, lambda text: {"on": True, "off": False}[text.lower()])

    def script(self, key: str) -> ScriptFeatures | None:
        """Return the features of a script."""
        return self._converted(key, ScriptFeatures.decode)

    def gpu_counts(self, key: str) -> tuple[int, ...]:
        """Return the numbers of a list such as `2-8`."""
        return self._converted(key, parse_gpu_counts) or ()

    def count_options(self, key: str) -> tuple[GpuCountOption, ...]:
        """Return what `GPUS:NODES:CPUS:MIB` says, separated by commas; the last two are of one node, 0: not known."""

        def option(text: str) -> GpuCountOption:
            gpus, nodes, cpus, memory = (_number(word, 1 << 50) for word in text.split(":"))
            return GpuCountOption(gpus=gpus, nodes=nodes, cpus_per_node=cpus, memory_per_node_mib=memory or None)

        def convert(text: str) -> tuple[GpuCountOption, ...]:
            found = tuple(map(option, text.split(",")))
            if len(found) > MAX_GPU_COUNTS:
                raise ValueError
            return found

        return self._converted(key, convert) or ()

    def flag(self, key: str) -> bool:
        """Return whether the field says yes."""
        return self._fields.get(key, "0").lower() not in {"", "0", "no", "false"}

    def partitions(self, key: str) -> tuple[PartitionName, ...]:
        """Return the names of a comma list."""
        names = [name for name in self._fields.get(key, "").split(",") if name]
        if all(is_partition_name(name) for name in names):
            return tuple(PartitionName(name) for name in names)
        self._complain(key)
        return ()

    def _converted(self, key: str, convert: Callable[[str], _T]) -> _T | None:
        text = self._fields.get(key)
        if not text:
            return None
        try:
            return convert(text)
        except (KeyError, ValueError, ValueRangeError):
            self._complain(key)
            return None

    def _complain(self, key: str) -> None:
        self.complaints.append(f"{key} {self._fields[key][:40]!r} cannot be read and is left out")


def _number(text: str, high: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 20 or int(text) > high:
        raise ValueError
    return int(text)


def job_name(fields: Mapping[str, str]) -> str:
    """Return the job's name, empty where it has none."""
    return _Reader(fields).text("name") or ""


def parse_submitted_job(fields: Mapping[str, str]) -> SubmittedFields:
    """Return the job of a `decide` or `preview` message.

    Raises:
        WireError: the user is missing or not a number.
    """
    reader = _Reader(fields)
    user_id = reader.whole("uid", MAX_UID)
    if user_id is None:
        raise WireError(f"uid {fields.get('uid', 'none')[:40]!r} is not a number from 0 to {MAX_UID}")
    unlimited = fields.get("time_limit", "").lower() in {"infinite", "unlimited"}
    return SubmittedFields(
        user_id=user_id,
        client=reader.text("client") or "",
        name=job_name(fields),
        account=reader.text("account"),
        qos=reader.text("qos"),
        partitions=reader.partitions("partition"),
        time_limit_minutes=None if unlimited else reader.whole("time_limit") or None,
        nodes_min=reader.whole("min_nodes", 1_000_000),
        nodes_max=reader.whole("max_nodes", 1_000_000),
        tasks=reader.whole("num_tasks", 100_000_000),
        tasks_per_node=reader.whole("ntasks_per_node", 1_000_000),
        tasks_per_gpu=reader.whole("ntasks_per_tres", 1_000_000),
        cpus_per_task=reader.whole("cpus_per_task", 1_000_000),
        cpus_min=reader.whole("min_cpus", 1_000_000_000),
        memory_per_node_mib=reader.whole("mem_per_node_mib", 1 << 50),
        memory_per_cpu_mib=reader.whole("mem_per_cpu_mib", 1 << 50),
        tres_per_job=reader.text("tres_per_job") or "",
        tres_per_node=reader.text("tres_per_node") or "",
        tres_per_socket=reader.text("tres_per_socket") or "",
        tres_per_task=reader.text("tres_per_task") or "",
        tres_frequency=reader.text("tres_freq") or "",
        features=reader.text("features"),
        prefer=reader.text("prefer"),
        reservation=reader.text("reservation"),
        array=reader.text("array"),
        exclusive=reader.flag("exclusive"),
        tied=reader.flag("tied"),
        held=reader.flag("held"),
        dependent=reader.text("dependency") is not None,
        begins_at_seconds=reader.whole("begin_time", 1 << 40),
        mode=reader.mode("energy_mode"),
        max_slowdown=reader.ratio("energy_max_slowdown", MAX_SLOWDOWN_BOUND),
        deadline=reader.text("energy_deadline"),
        start_before=reader.text("energy_start_before"),
        quiet=reader.flag("energy_quiet"),
        trials=reader.switch("energy_trials"),
        open=reader.switch("energy_open"),
        explain=reader.flag("energy_explain"),
        script=reader.script("script"),
        gpu_counts=reader.gpu_counts("energy_gpus"),
        count_options=reader.count_options("gpu_options"),
        count_refusal=reader.text("gpu_refusal") or "",
        complaints=tuple(reader.complaints),
    )


def decision_reply(
    decision: EnergyDecision,
    entry: DecisionEntry,
    *,
    explained: bool = False,
    reuse_milliseconds: int = 0,
    reuse_names: str | None = None,
) -> Message:
    """Return the reply that lets the plugin apply a decision.

    Args:
        decision: What was decided.
        entry: Its part that travels to the nodes.
        explained: Whether the line may have figures: it is shown after the job was accepted.
        reuse_milliseconds: For how long the plugin may give it again to the very same request; 0: not at all.
        reuse_names: Bits of the job names that must be asked about even so; None: all but the job's own.
    """
    fields = {
        "decision_id": str(decision.decision_id),
        "entry": entry.encode(),
        "admin_comment": f"energy:{decision.decision_id}",
    }
    if decision.partitions and all(is_partition_name(name) for name in decision.partitions):
        fields["partition"] = ",".join(decision.partitions)
        if decision.opens:
            fields["open"] = "1"
    if decision.prefer is not None and is_feature_name(decision.prefer):
        fields["prefer"] = decision.prefer
    if decision.gpus is not None:
        fields["gpus"] = str(decision.gpus)
    if decision.begins_at_seconds is not None:
        fields["begin_time"] = str(decision.begins_at_seconds)
    line = decision.message if explained else decision.announcement
    in_place = decision.message_in_place if explained else decision.announcement_in_place
    if line:
        fields["message"] = one_line(line)
    if in_place and "partition" in fields:
        fields["message_in_place"] = one_line(in_place)
    if reuse_milliseconds:
        fields["reuse_milliseconds"] = str(reuse_milliseconds)
        if reuse_names is not None:
            fields["reuse_names"] = reuse_names
    return Message("ok", fields)


def one_line(text: str, limit_bytes: int = MAX_MESSAGE_LINE_BYTES) -> str:
    """Return the text as one line without control characters, cut to `limit_bytes` of UTF-8."""
    line = _CONTROL.sub(" ", text).strip()
    return line.encode("utf-8")[:limit_bytes].decode("utf-8", "ignore")


def refusal(reason: str) -> Message:
    """Return the reply to a request that is understood and not granted."""
    return Message("refused", {"reason": one_line(reason)})


def failure(reason: str) -> Message:
    """Return the reply to a request that could not be served."""
    return Message("error", {"reason": one_line(reason)})


def json_reply(document: object, fields: Mapping[str, str] | None = None) -> Message:
    """Return an `ok` reply that carries a JSON document; figures that JSON lacks are an error."""
    text = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Message("ok", {**(fields or {}), "json": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A person's question about what was decided and measured; None leaves a filter out."""

    subject: str
    job_id: int | None = None
    user_name: str | None = None
    partition: str | None = None
    cluster: str | None = None
    since_seconds: float | None = None
    until_seconds: float | None = None
    limit: int | None = None
    """Of decisions: how many at most."""
    account: str | None = None
    qos: str | None = None
    name: str | None = None
    node: str | None = None
    also: tuple[str, ...] = ()
    """Of a report's rows: further dimensions."""
    bounds_seconds: tuple[float, ...] = ()
    """Of a report's periods: where each begins, and where the last one ends."""


def parse_query(fields: Mapping[str, str]) -> Query:
    """Return the query of a message.

    Raises:
        WireError: the subject is unknown or a filter cannot be read.
    """
    subject = fields.get("what", "")
    if subject not in QUERY_SUBJECTS:
        raise WireError(f"query {subject[:40]!r} is not one of {', '.join(QUERY_SUBJECTS)}")
    reader = _Reader(fields)
    query = Query(
        subject=subject,
        job_id=reader.whole("job", 0xFFFFFFFF),
        user_name=reader.text("user"),
        partition=reader.text("partition"),
        cluster=reader.text("cluster"),
        since_seconds=_unix_time(fields, "since"),
        until_seconds=_unix_time(fields, "until"),
        limit=reader.whole("limit", MAX_DECISIONS),
        account=reader.text("account"),
        qos=reader.text("qos"),
        name=reader.text("name"),
        node=reader.text("node"),
        also=tuple(word for word in (reader.text("also") or "").split(",") if word),
        bounds_seconds=_bounds(fields),
    )
    if reader.complaints:
        raise WireError(f"query {subject}: {reader.complaints[0]}")
    return query


def _bounds(fields: Mapping[str, str]) -> tuple[float, ...]:
    words = [word for word in fields.get("bounds", "").split(",", MAX_PERIODS + 2) if word]
    bounds = tuple(_unix_time({"bounds": word}, "bounds") or 0.0 for word in words)
    if len(bounds) == 1 or len(bounds) > MAX_PERIODS + 1 or any(b <= a for a, b in pairwise(bounds)):
        raise WireError(f"bounds are not 2 to {MAX_PERIODS + 1} Unix times that ascend")
    return bounds


def _unix_time(fields: Mapping[str, str], key: str) -> float | None:
    text = fields.get(key)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= 1e11:
        raise WireError(f"{key} {text[:40]!r} is not a Unix time in seconds")
    return value
