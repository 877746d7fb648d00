"""Randomised sites: GPU types, kinds of work, users and their jobs, all drawn; nothing of measured curves is in them.

Who submits what, under which name, with which script and limit, is the simulated cluster's own generator. What a kind
of work is, is drawn: how much it computes, moves in memory and waits for its host, and what it draws; a GPU type is
how fast it does each. Time and power at each clock follow from the two in the form of the simulated devices
(`RuntimeCurve`, `PowerCurve`, a board's limit), not from any curve that was measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple

import numpy as np

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.energy_model.curves import PowerCurve, RuntimeCurve
from slurm_energy.errors import ValueRangeError
from slurm_energy.estimation.job_groups import job_group, script_family
from slurm_energy.policy.gnn.outcomes.graph import KNOTS, Ask, RunVertex, TypeFacts
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.workloads.habits import LIMITS
from slurm_energy.twin.workloads.registry import create_workload
from slurm_energy.twin.world.device_model import Load, load_from_curves

Split = Literal["time", "name", "user"]
"""Of a job that is asked for: its name has runs; its name has none, but its user has; neither has."""
_MODELS = (
    "resnet50",
    "bert-large",
    "gpt2",
    "vit",
    "unet",
    "llama",
    "t5",
    "mistral",
    "yolo",
    "lammps",
    "namd",
    "gromacs",
)
_GRID = (*KNOTS, 1.0)
MAX_HISTORY, MAX_ASKED = 400, 48
_HELD_OUT = 0.2
"""Share of the names, and of the users, that have no history."""


class Asked(NamedTuple):
    """A job after the history, with what would come of it on every type."""

    ask: Ask
    split: Split
    gpus: int
    gpu_type: int
    """Where it ran."""
    hours: float
    limit_hours: float
    """Infinite without a limit."""
    cut_off: bool
    joules: float
    share: tuple[tuple[float, ...], ...]
    """[types, knots]: slowdown over that of work which the clock alone paces."""
    exponent: tuple[tuple[float, ...], ...]
    """[types, knots]: ln(energy ratio) / ln(clock)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawnSite:
    """One drawn site at one moment."""

    facts: Mapping[GpuTypeName, TypeFacts]
    runs: Sequence[RunVertex]
    now_seconds: float
    asked: Sequence[Asked]


def random_site(seed: int) -> DrawnSite:
    """Return a site; the same seed gives the same."""
    random = np.random.default_rng([seed, 20_917])
    facts = _types(random)
    kinds = random.permutation(_MODELS)[: random.integers(4, len(_MODELS) + 1)].tolist()
    loads = _loads(facts, kinds, random)
    jobs = _jobs(kinds, random, seed)
    return _observed(facts, loads, jobs, random)


def _types(random: np.random.Generator) -> dict[GpuTypeName, TypeFacts]:
    known = [row for row in CATALOG.values() if row.default_sm_clock_mhz and row.power_limit_watts and row.memory_gib]
    found = {}
    for index in random.permutation(len(known))[: random.integers(2, 6)]:
        row, jitter = known[int(index)], np.exp(random.normal(0.0, 0.1, 2))
        found[row.name] = TypeFacts(
            float(row.default_sm_clock_mhz or 0) * float(jitter[0]),
            float(row.power_limit_watts or 0.0) * float(jitter[1]),
            float(row.memory_gib or 0.0),
        )
    return dict(sorted(found.items()))


def _loads(
    facts: Mapping[GpuTypeName, TypeFacts], kinds: Sequence[str], random: np.random.Generator
) -> dict[tuple[GpuTypeName, str], Load]:
    """Return time and power of each kind on each type, for one unit of work: about a second."""
    work = {}
    for kind in kinds:
        compute = random.beta(1.2, 0.8)
        host = 0.0 if random.random() < 0.4 else random.beta(1.0, 3.0)
        work[kind] = (
            (1.0 - host) * compute,
            (1.0 - host) * (1.0 if random.random() < 0.4 else random.uniform(0.2, 1.0)) * (1.0 - 0.6 * compute),
            host,
            float(np.exp(random.normal(0.0, 0.3))),
        )
    found = {}
    for name, fact in facts.items():
        size = fact.limit_watts / 300.0
        compute_speed = size * np.exp(random.normal(0.0, 0.35))
        memory_speed = size**0.8 * np.exp(random.normal(0.0, 0.3))
        idle = random.uniform(0.1, 0.3)
        draw, cubic, memory_draw = random.uniform(0.5, 1.1), random.uniform(0.4, 0.95), random.uniform(0.1, 0.3)
        for kind in kinds:
            compute, memory, host, intensity = work[kind]
            compute_seconds = compute / compute_speed * np.exp(random.normal(0.0, 0.12))
            memory_seconds = memory / memory_speed * np.exp(random.normal(0.0, 0.12))
            own = intensity * np.exp(random.normal(0.0, 0.1))
            gpu_seconds = max(compute_seconds, memory_seconds)
            seconds = gpu_seconds + host
            dynamic = draw * own * (0.25 * gpu_seconds + 0.75 * compute_seconds) / seconds
            constant = idle + memory_draw * own * memory_seconds / seconds
            found[name, kind] = _load(
                PowerCurve(
                    cubic_watts=fact.limit_watts * dynamic * cubic,
                    linear_watts=fact.limit_watts * dynamic * (1.0 - cubic),
                    constant_watts=fact.limit_watts * min(constant, 0.6),
                ),
                RuntimeCurve(memory_seconds=memory_seconds, compute_seconds=compute_seconds, fixed_seconds=host),
                fact.limit_watts * random.uniform(0.95, 1.0),
            )
    return found


def _load(power: PowerCurve, runtime: RuntimeCurve, limit_watts: float) -> Load:
    try:
        return load_from_curves(power, runtime, _GRID, power_limit_watts=limit_watts)
    except ValueRangeError:
        return load_from_curves(power, runtime, _GRID)


def _jobs(kinds: Sequence[str], random: np.random.Generator, seed: int) -> Sequence[Job]:
    hours = float(random.choice([24.0, 72.0, 168.0, 336.0]))
    settings: dict[str, float | int | str] = {
        "ingresses": 1,
        "rate_per_second": float(random.uniform(60, 450)) / (3600.0 * hours),
        "hours": hours,
        "median_units": float(np.exp(random.uniform(6.0, 9.5))),
        "size_sigma": float(random.uniform(0.8, 1.9)),
        "gpu_mix": "1:0.8,2:0.1,4:0.07,8:0.03",
        "kinds": ",".join(kinds),
        "names_per_kind": int(random.integers(1, 10)),
        "name_spread": float(random.uniform(0.1, 0.6)),
        "users": int(random.integers(4, 30)),
        "generic_names": float(random.choice([0.0, 0.5, 1.0])),
        "limits": str(random.choice(sorted(LIMITS))),
    }
    return create_workload("daily", settings, seed).jobs


def _observed(
    facts: Mapping[GpuTypeName, TypeFacts],
    loads: Mapping[tuple[GpuTypeName, str], Load],
    jobs: Sequence[Job],
    random: np.random.Generator,
) -> DrawnSite:
    """Return what a site has seen by some moment, and what comes after."""
    types = tuple(facts)
    weights = random.dirichlet(np.full(len(types), 1.0))
    users = sorted({job.user for job in jobs})
    new_users = {user for user in users if random.random() < _HELD_OUT}
    names = sorted({(job.user, _group(job)) for job in jobs})
    new_names = {name for name in names if random.random() < _HELD_OUT}
    begin = int(len(jobs) * random.uniform(0.1, 0.85))
    tries = random.random() < 0.3
    runs: list[RunVertex] = []
    for job in jobs[max(0, begin - MAX_HISTORY) : begin]:
        name = job.user, _group(job)
        where = int(random.choice(len(types), p=weights))
        if job.user in new_users or name in new_names:
            continue
        run = _run(job, types[where], loads[types[where], job.kind], random)
        runs.append(run)
        if tries and random.random() < 0.2:
            runs.append(_trial(run, loads[types[where], job.kind], random))
    known_names, known_users = {(run.user, run.group) for run in runs}, {run.user for run in runs}
    asked = []
    for job in jobs[begin : begin + MAX_ASKED]:
        where = int(random.choice(len(types), p=weights))
        run = _run(job, types[where], loads[types[where], job.kind], random)
        name = job.user, run.group
        limit = job.time_limit_seconds / 3600.0 if 0.0 < job.time_limit_seconds < inf else inf
        hours = run.seconds / 3600.0
        rows = [_shares(loads[gpu_type, job.kind]) for gpu_type in types]
        asked.append(
            Asked(
                ask=Ask(job.user, run.group, run.family),
                split="time" if name in known_names else "name" if job.user in known_users else "user",
                gpus=run.gpus,
                gpu_type=where,
                hours=min(hours, limit),
                limit_hours=limit,
                cut_off=hours >= limit,
                joules=run.watts * run.seconds * run.gpus,
                share=tuple(share for share, _ in rows),
                exponent=tuple(exponent for _, exponent in rows),
            )
        )
    now = jobs[begin].submitted_seconds if begin < len(jobs) else 0.0
    return DrawnSite(facts=facts, runs=runs, now_seconds=now, asked=asked)


def _group(job: Job) -> str:
    return job_group(job.name, None if job.script is None else job.script.key or None)


def _run(job: Job, gpu_type: GpuTypeName, load: Load, random: np.random.Generator) -> RunVertex:
    gpus = job.gpu_counts[0]
    seconds = job.true_units * load.seconds_per_unit[-1] / gpus
    return RunVertex(
        user=job.user,
        group=_group(job),
        family="" if job.script is None else script_family(job.script),
        gpu_type=gpu_type,
        gpus=gpus,
        seconds=max(1.0, seconds),
        watts=load.watts[-1] * float(np.exp(random.normal(0.0, 0.03))),
        ended_at_seconds=job.submitted_seconds + max(1.0, seconds),
    )


def _trial(run: RunVertex, load: Load, random: np.random.Generator) -> RunVertex:
    knot = int(random.integers(0, len(KNOTS)))
    error = float(random.uniform(0.003, 0.02))
    slowdown = load.seconds_per_unit[knot] / load.seconds_per_unit[-1] - 1.0
    return run._replace(relative_clock=KNOTS[knot], slowdown=slowdown + float(random.normal(0.0, error)), error=error)


def _shares(load: Load) -> tuple[tuple[float, ...], tuple[float, ...]]:
    seconds, joules = np.array(load.seconds_per_unit), np.array(load.watts) * np.array(load.seconds_per_unit)
    clocks = np.array(KNOTS)
    share = (seconds[:-1] / seconds[-1] - 1.0) / (1.0 / clocks - 1.0)
    exponent = np.log(joules[:-1] / joules[-1]) / np.log(clocks)
    return tuple(share.tolist()), tuple(exponent.tolist())
