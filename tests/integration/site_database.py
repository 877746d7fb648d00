"""A site's database with as many ended jobs as a test wants: users with recurring names, at two clocks."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from slurm_energy.config import ClusterConfig, Config, DaemonConfig, NightlyConfig, StoreConfig
from slurm_energy.store.schema import upgrade
from slurm_energy.store.session import Engine, open_engine
from slurm_energy.store.tables import GpuEnergyRow, JobAttemptRow, JobRow, NodeEnergyRow

CLUSTER = "site"
A100 = "a100-sxm4-80gb"
DEFAULT_MHZ, LOWER_MHZ = 1410, 1275


@dataclass(frozen=True, kw_only=True)
class Site:
    """What its jobs are like."""

    jobs: int = 400
    users: int = 12
    names: int = 3
    days: float = 40.0
    now_seconds: float = 1_800_000_000.0
    clock_share: float = 0.15
    """Of the run time that waits for the clock."""
    gpu_types: tuple[str, ...] = (A100,)
    first_user_share: float = 0.0
    """Of the jobs that one user has beside the others."""
    recent_factor: float = 1.0
    """Of the run times in the last 14 days."""
    gap_days: tuple[float, float] | None = None
    vanished: str = ""
    """GPU type that had jobs in the first half only."""
    unmeasured: bool = False
    seed: int = 1


def site_config(folder: Path, **nightly: Any) -> Config:
    """Return a configuration whose everything is in a folder."""
    return Config(
        cluster=ClusterConfig(name=CLUSTER),
        daemon=DaemonConfig(state_directory=str(folder / "state")),
        store=StoreConfig(url=f"sqlite:///{folder}/energy.sqlite"),
        nightly=NightlyConfig(**{"workers": 1, "replayed_jobs": 40, "max_minutes": 5.0, **nightly}),
    )


def fill(config: Config, site: Site) -> None:
    """Create the database and the site's jobs in it."""
    upgrade(config.store.url)
    engine = open_engine(config.store)
    try:
        _insert(engine, site)
    finally:
        engine.dispose()


def _insert(engine: Engine, site: Site) -> None:
    draw = random.Random(site.seed)
    begin = site.now_seconds - site.days * 86_400.0
    times = sorted(begin + draw.random() * (site.days * 86_400.0 - 7200.0) for _ in range(site.jobs))
    if site.gap_days is not None:
        low, high = (begin + day * 86_400.0 for day in site.gap_days)
        times = [one if not low <= one < high else low - (high - one) / 50.0 for one in times]
    rows: dict[type, list[dict[str, Any]]] = {JobRow: [], JobAttemptRow: [], NodeEnergyRow: [], GpuEnergyRow: []}
    for number, submitted in enumerate(sorted(times), 1):
        user = 0 if draw.random() < site.first_user_share else draw.randrange(site.users)
        name = draw.randrange(site.names)
        habit = random.Random(1000 * user + name)
        base, watts = habit.uniform(600.0, 5400.0), habit.uniform(250.0, 380.0)
        gpu_type = draw.choice(site.gpu_types)
        if site.vanished and submitted < begin + site.days * 43_200.0 and draw.random() < 0.3:
            gpu_type = site.vanished
        is_lower = draw.random() < 0.5
        clock = LOWER_MHZ if is_lower else DEFAULT_MHZ
        slower = 1.0 + site.clock_share * (DEFAULT_MHZ / clock - 1.0)
        recent = site.recent_factor if submitted > site.now_seconds - 14 * 86_400.0 else 1.0
        seconds = base * slower * recent * draw.lognormvariate(0.0, 0.01)
        share = 0.35 + 0.65 * (clock / DEFAULT_MHZ) ** 2.4
        started, ended = submitted + 5.0, submitted + 5.0 + seconds
        node = f"gpu{number % 16:03d}"
        rows[JobRow].append(
            {
                "row_id": number,
                "cluster": CLUSTER,
                "job_id": number,
                "submitted_at_seconds": submitted,
                "submit_time_known": True,
                "user_id": 1000 + user,
                "user_name": f"user{user}",
                "name": f"train{name}",
                "account": "physics",
                "partition": gpu_type,
                "state": "COMPLETED" if draw.random() > 0.03 else "TIMEOUT",
                "started_at_seconds": started,
                "ended_at_seconds": ended,
                "restart_count": 0,
                "suspended_seconds": 0.0,
                "time_limit_minutes": 240.0,
                "nodes": node,
                "node_count": 1,
                "gpu_count": 1,
                "cpus": 8,
            }
        )
        rows[JobAttemptRow].append(
            {
                "job_row_id": number,
                "restart_count": 0,
                "submitted_at_seconds": submitted,
                "state": "COMPLETED",
                "partition": gpu_type,
                "nodes": node,
                "started_at_seconds": started,
                "ended_at_seconds": ended,
                "suspended_seconds": 0.0,
            }
        )
        if site.unmeasured:
            continue
        joules = watts * share * seconds
        rows[NodeEnergyRow].append(
            {
                "row_id": number,
                "job_row_id": number,
                "restart_count": 0,
                "node": node,
                "quality": 4,
                "user_id": 1000 + user,
                "partition": gpu_type,
                "started_at_seconds": started,
                "ended_at_seconds": ended,
                "time_scale": 1.0,
                "host_measured": False,
                "host_reason": "not measured",
                "host_coverage_seconds": 0.0,
                "host_flags": "",
                "events": [],
                "counted_at_seconds": ended,
                "cluster": CLUSTER,
                "gpu_joules": joules,
            }
        )
        rows[GpuEnergyRow].append(
            {
                "node_energy_row_id": number,
                "gpu_uuid": f"GPU-{number % 16}",
                "quality": 4,
                "gpu_name": gpu_type,
                "gpu_type": gpu_type,
                "joules": joules,
                "source": "counter",
                "scope": "gpu",
                "coverage_seconds": seconds,
                "flags": "",
                "counter_joules": joules,
                "asked_clock_mhz": clock,
                "applied_clock_mhz": clock,
                "default_clock_mhz": DEFAULT_MHZ,
            }
        )
    with engine.begin() as connection:
        for kind, values in rows.items():
            for begin_row in range(0, len(values), 5000):
                connection.execute(insert(kind), values[begin_row : begin_row + 5000])
