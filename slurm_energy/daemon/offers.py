"""What this cluster offers for a job: the decision that would be made, and what that takes; none is recorded."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from slurm_energy import __version__
from slurm_energy.config import Config, FacilityConfig
from slurm_energy.daemon.decide import Decided, Known
from slurm_energy.daemon.doors.callers import Peer
from slurm_energy.daemon.doors.plugin import SlurmVerbs
from slurm_energy.daemon.state import DaemonState
from slurm_energy.domain.cluster import ClusterSnapshot, JobState
from slurm_energy.domain.cluster_offer import ClusterOffer
from slurm_energy.domain.decision import Reason, RuntimeEstimate
from slurm_energy.domain.gpu_places import GpuPlace, PlaceRoom
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.plain import to_plain
from slurm_energy.energy_model.catalog import BoardLimits
from slurm_energy.energy_model.coefficients import host_share
from slurm_energy.energy_model.facility import Facility, site_facility
from slurm_energy.errors import ConfigError, PermissionRefused
from slurm_energy.policy.site.candidates import catalogue_name
from slurm_energy.policy.site.comparison import TypeComparison
from slurm_energy.policy.site.settings import site_board_limits
from slurm_energy.policy.submission.options import LIMIT_SHARE, NOMINAL_SECONDS, mean_watts
from slurm_energy.wire.codec import Message
from slurm_energy.wire.messages import json_reply, one_line, parse_submitted_job

_GPUS_OF_MEASURED_HOST = 8
_NO_DECISION = {
    Reason.NO_GPU: "the job asks for no GPUs: offers are made for jobs on GPUs",
    Reason.NO_SNAPSHOT: "the daemon has no picture of its cluster yet",
    Reason.STALE_SNAPSHOT: "the daemon's picture of its cluster is too old",
}
ROOM, ENDS, UNKNOWN = "room now", "time limits of the jobs that run", "not known"
"""What says when a job starts."""


class Offers:
    """Makes offers, for a user about his own jobs alone."""

    def __init__(self, state: DaemonState, slurm: SlurmVerbs) -> None:
        self._state = state
        self._slurm = slurm
        self._facility: tuple[object, Facility] | None = None

    async def facility(self) -> Facility:
        """Return the site's tariff and carbon intensity; files are read again when they change, beside decisions."""
        config = self._state.config.facility
        key = (config, *map(_changed_at, (config.tariff_file, config.intensity_file)))
        if self._facility is None or self._facility[0] != key:
            self._facility = key, await asyncio.to_thread(_readable_facility, config)
        return self._facility[1]

    def reply(self, message: Message, peer: Peer, facility: Facility) -> Message:
        """Return the offer for a job, or who we are where no job is described.

        Raises:
            PermissionRefused: another cluster was meant, or the job cannot run here.
        """
        config = self._state.config
        fields: Mapping[str, str] = {key: value for key, value in message.fields.items() if key != "for_cluster"}
        meant = message.fields.get("for_cluster", config.cluster.name)
        if meant != config.cluster.name:
            raise PermissionRefused(f"this daemon serves cluster {config.cluster.name}, not {meant[:40]}")
        if not fields:
            me = {"cluster": config.cluster.name, "version": __version__, "now_seconds": time.time()}
            return json_reply(me)
        fields = {**fields, "uid": str(peer.user_id)}
        decided, known = self._slurm.decided(parse_submitted_job(fields), is_preview=True)
        return json_reply(to_plain(cluster_offer(decided, known, config, facility)))


def cluster_offer(decided: Decided, known: Known, config: Config, facility: Facility) -> ClusterOffer:
    """Return the offer that a decision makes.

    Raises:
        PermissionRefused: the job cannot run here, or nothing is known of the cluster.
    """
    decision, job, snapshot = decided.decision, decided.job, known.snapshot
    for reason, words in _NO_DECISION.items():
        if reason in decision.reasons:
            raise PermissionRefused(words)
    if job.gpu_count == 0:
        raise PermissionRefused(_NO_DECISION[Reason.NO_GPU])
    if snapshot is None:
        raise PermissionRefused(_NO_DECISION[Reason.NO_SNAPSHOT])
    gpus = decision.gpus or job.gpu_count
    landing = _landing(decided, known, snapshot, gpus)
    name = catalogue_name(landing.place.slurm_type, config.gpu_types)
    limits = site_board_limits(config)
    estimate, work = decision.estimate, known.history.about(job.user_id, job.name, job.script)[1]
    if not config.policy.learn_from_runs:
        work = None
    comparison = TypeComparison(limits=limits, work=None if work is None else work.for_gpus(gpus))
    seconds = _seconds_there(estimate, job.time_limit_minutes, name, comparison)
    upper = (
        seconds if estimate is None or estimate.seconds <= 0.0 else seconds * estimate.upper_seconds / estimate.seconds
    )
    own_watts = None if name is None else comparison.watts(name)
    clock = next((one for one in decision.clocks if one.gpu_type == name), None)
    host, now = host_share(), decision.decided_at_seconds
    slowdown = 0.0 if clock is None else max(0.0, clock.predicted_slowdown)
    begin = now + (landing.wait_seconds or 0.0)
    end = begin + seconds * (1.0 + slowdown)
    return ClusterOffer(
        cluster=config.cluster.name,
        version=__version__,
        now_seconds=now,
        partition=landing.place.partition,
        gpus=gpus,
        gpu_type=name,
        default_seconds=seconds,
        upper_seconds=max(seconds, upper),
        seconds_source="nominal" if estimate is None and job.time_limit_minutes is None else _source(estimate),
        runs=0 if estimate is None or not estimate.is_known else estimate.runs,
        gpu_watts=own_watts or _table_watts(name, limits),
        is_measured=own_watts is not None,
        clock_mhz=None if clock is None else clock.sm_clock_mhz,
        default_clock_mhz=None if clock is None else clock.default_clock_mhz,
        slowdown=slowdown,
        energy_change=0.0 if clock is None else clock.predicted_energy_change,
        host_per_gpu_watt=host.per_gpu_watt,
        host_constant_watts=host.constant_watts / _GPUS_OF_MEASURED_HOST,
        pue=facility.pue,
        wait_seconds=landing.wait_seconds,
        wait_source=landing.wait_source,
        price_per_kwh=None if facility.price is None else facility.price.mean(begin, end),
        currency=facility.currency,
        grams_per_kwh=None if facility.intensity is None else facility.intensity.mean(begin, end),
        abilities=_abilities(config),
        message=one_line(decision.message),
    )


@dataclass(frozen=True, slots=True)
class _Landing:
    place: GpuPlace
    wait_seconds: float | None
    wait_source: str


def _landing(decided: Decided, known: Known, snapshot: ClusterSnapshot, gpus: int) -> _Landing:
    """Return where the job is expected to start: the first place with room, else the one that has it soonest.

    Raises:
        PermissionRefused: it fits nowhere.
    """
    decision, job = decided.decision, decided.job
    default = snapshot.default_partition
    names = (*(decision.partitions or ()), *job.partitions)
    names = tuple(dict.fromkeys(names)) or (() if default is None else (default.name,))
    unknown = [name for name in job.partitions if name not in snapshot.partition_by_name]
    if not names or len(unknown) == len(job.partitions) > 0:
        raise PermissionRefused(f"there is no partition {','.join(job.partitions)[:80] or 'that is the default'} here")
    fitting = []
    for name in names:
        partition = snapshot.partition_by_name.get(name)
        limit, most = job.time_limit_minutes, None if partition is None else partition.max_time_minutes
        if partition is None or not partition.up or (limit is not None and most is not None and limit > most):
            continue
        fitting += [
            (place, room)
            for place, room in snapshot.gpu_places
            if place.partition == name
            and place.total >= gpus
            and (not job.gpu_types or place.slurm_type in job.gpu_types)
        ]
    if not fitting:
        types = ",".join(sorted(job.gpu_types))
        raise PermissionRefused(f"no partition here takes {gpus} GPUs{' of ' + types if types else ''} of this job")
    starts = [_landing_at(place, room, known, snapshot, gpus, job.nodes_min) for place, room in fitting]
    return min(starts, key=lambda one: inf if one.wait_seconds is None else one.wait_seconds)


def _landing_at(  # each is one fact of the place or of the job
    place: GpuPlace, room: PlaceRoom, known: Known, snapshot: ClusterSnapshot, gpus: int, nodes: int
) -> _Landing:
    claimed = known.claimed_gpus.get(place.partition, 0.0)
    ahead = snapshot.waiting_gpus_by_partition.get(place.partition, 0.0) + claimed
    on_one_node = nodes <= 1 and gpus <= place.gpus_per_node
    fits = room.whole_nodes > 0 or any(part >= gpus for part in room.parts) if on_one_node else True
    wake = place.wake_seconds if room.asleep_nodes and not room.whole_nodes and not room.parts else 0.0
    if (fits or room.asleep_nodes) and room.free >= gpus + ahead:
        return _Landing(place, wake, ROOM)
    free = float(room.free)
    for end, given_back in _ends(snapshot.jobs, place, snapshot.taken_at_seconds):
        free += given_back
        if free >= gpus + ahead:
            return _Landing(place, max(0.0, end - snapshot.taken_at_seconds), ENDS)
    return _Landing(place, None, UNKNOWN)


def _ends(jobs: Sequence[JobState], place: GpuPlace, now_seconds: float) -> Iterator[tuple[float, int]]:
    """Yield when running jobs of a place have ended at the latest, and how many GPUs each then gives back."""
    found = []
    for job in jobs:
        if job.state != "RUNNING" or place.partition not in job.partitions or not job.gpu_count:
            continue
        if job.gpu_types and place.slurm_type not in job.gpu_types:
            continue
        limit = None if job.time_limit_minutes is None else 60.0 * job.time_limit_minutes
        if limit is not None and job.started_at_seconds is not None:
            end = job.started_at_seconds + limit + job.suspended_seconds
            found.append((max(now_seconds, end), job.gpu_count))
    yield from sorted(found)


def _seconds_there(
    estimate: RuntimeEstimate | None, limit_minutes: float | None, name: GpuTypeName | None, comparison: TypeComparison
) -> float:
    """Return the run time at the default clock of a type."""
    if estimate is None or estimate.seconds <= 0.0:
        return LIMIT_SHARE * 60.0 * limit_minutes if limit_minutes else NOMINAL_SECONDS
    cost = None if name is None or estimate.gpu_type is None else comparison.cost(name, estimate.gpu_type)
    return estimate.seconds if cost is None else estimate.seconds * cost.time_ratio


def _source(estimate: RuntimeEstimate | None) -> str:
    return "time-limit" if estimate is None else estimate.source


def _table_watts(name: GpuTypeName | None, limits: BoardLimits) -> float:
    return mean_watts(GpuTypeName("unknown"), inf) if name is None else mean_watts(name, limits.watts(name))


def _abilities(config: Config) -> tuple[str, ...]:
    """Return what is carried out here."""
    found = {
        "clock": config.policy.default_mode not in {"off", "observe"},
        "partition": config.routing.open,
        "gpu-count": config.policy.gpu_count != "off",
        "redecide": config.routing.redecide != "off",
    }
    return tuple(name for name, can in found.items() if can)


def _readable_facility(config: FacilityConfig) -> Facility:
    """Return tariff and intensity; without a file that cannot be read, which `doctor` and reports complain of."""
    try:
        return site_facility(config)
    except ConfigError:
        return Facility(pue=config.pue)


def _changed_at(path: str) -> float:
    try:
        return Path(path).stat().st_mtime if path else 0.0
    except OSError:
        return 0.0
