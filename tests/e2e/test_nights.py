"""Three nights under a real slurmctld, unaided: history, retrain, gate, shadow, canary, active, and less energy each.

Two dozen users submit a recurring program that nothing describes; it waits for its host, so that a lower clock costs it
no time. What is known of it comes from its own runs: first at the default clock, then at the one that the site's policy
gives every program, then at what each night found. A night follows the other at once, and users change between policies
every few seconds, as they do every day on a site.

What a run takes on the wall is its work and what this machine needs to start and end it. Device time runs twenty times
as fast as the wall where that is short; on a machine with other work six times, so that it is a small share there too.
"""

import json
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from energy_lab import until, workload
from lab_fixtures import StartLab

from slurm_energy.config import StoreConfig
from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.errors import LabError, StoreError
from slurm_energy.estimation.job_groups import job_group
from slurm_energy.lab.cluster import Lab, PartitionSpec
from slurm_energy.lab.jobs import submit
from slurm_energy.policy.candidate import CandidatePolicy, NameClocks, SiteEstimates, write_candidate
from slurm_energy.store.promotion import add_candidate
from slurm_energy.store.session import open_engine, run_in_transaction, store_session
from slurm_energy.store.site_history import ClockedRun, clocked_runs

pytestmark = [pytest.mark.lab, pytest.mark.timeout(6000), pytest.mark.long]

USERS = tuple(f"user{number}" for number in range(24))
"""A canary's standard error counts users: as many jobs of twelve would take more than twice as long to tell."""
NAME = "folding"
"""Of the program: one that says what runs, so that the site's twin has a kind of work of its own for it."""
PARTITIONS = (PartitionSpec(name="v100", nodes=4, gpus_per_node=16),)
NIGHTS = 3
DEVICE_SECONDS = 400.0
SHORT_SECONDS = 120.0
SCALE_BUSY, SCALE_FREE = 6.0, 20.0
"""Device seconds a second, on a machine with other work and on one without."""
TASKS = 2
"""Of the array that each user submits at a time: one decision, two jobs."""
AT_ONCE = 60
"""Jobs up to which more are submitted: fewer than GPUs, so that none waits."""
SETTINGS: dict[str, dict[str, Any]] = {
    "policy": {"name": "oracle", "max_slowdown": 0.1},
    "nightly": {
        "min_jobs": 20,
        "replayed_jobs": 40,
        "workers": 1,
        "max_minutes": 2.0,
        "promote": "automatic",
        "canary_share": 0.5,
        "canary_period_hours": 0.004,
        "shadow_decisions": 20,
        "max_stage_days": 0.02,
        "late_milliseconds": 200.0,
    },
}


def submit_round(lab: Lab, *more: str, device_seconds: float = DEVICE_SECONDS) -> None:
    """Submit one array for each user."""
    for user in USERS:
        options = ["-J", NAME, "--gres=gpu:1", "-t", "60", f"--array=1-{TASKS}", *more]
        submit(lab, options, wrap=workload(device_seconds, "host"), user=user)


def jobs_left(lab: Lab) -> int:
    """Return how many jobs wait or run."""
    return len(lab.run(["squeue", "-h", "-r", "-o", "%i"], check=True).stdout.split())


def keep_busy(
    lab: Lab,
    is_enough: Callable[[], bool],
    what: str,
    limit_seconds: float,
    *more: str,
    device_seconds: float = DEVICE_SECONDS,
) -> None:
    """Submit rounds, never more than the GPUs hold, until something has come."""
    end = time.monotonic() + limit_seconds
    while not is_enough():
        assert time.monotonic() < end, f"{what} did not come within {limit_seconds:g} s"
        if jobs_left(lab) <= AT_ONCE - TASKS * len(USERS):
            submit_round(lab, *more, device_seconds=device_seconds)
        else:
            time.sleep(1.0)


def measured(lab: Lab) -> list[ClockedRun]:
    """Return the runs that are measured beyond doubt, the newest first."""
    if not lab.layout.database.is_file():
        return []
    engine = open_engine(StoreConfig(url=f"sqlite:///{lab.layout.database}"))
    try:
        with store_session(engine, read_only=True) as session:
            return list(clocked_runs(session, ClusterName(lab.spec.cluster_name), 0.0, time.time() + 60.0, 10_000))
    except StoreError as error:
        if "no such table" in str(error):
            return []  # the daemon has not made its tables yet
        raise
    finally:
        engine.dispose()


def runs_by_user(lab: Lab, *, is_low: bool) -> int:
    """Return the fewest measured runs that a user has at the default clock, or below it."""
    counts = Counter(run.user_id for run in measured(lab) if (run.sm_clock_mhz < run.default_clock_mhz) == is_low)
    return min(counts.values()) if len(counts) == len(USERS) else 0


def listed(lab: Lab) -> dict[str, Any]:
    """Return who decides, and the candidates with their stages."""
    try:
        found: dict[str, Any] = json.loads(lab.run(["slurm-energy", "policy", "list", "--json"], check=True).stdout)
    except (LabError, ValueError):
        return {"candidates": [], "champion": None}
    return found


class Saving(NamedTuple):
    """Energy of a candidate's runs against those of the policy before it: mean of the users' ratios, with 95 %."""

    mean: float
    low: float
    high: float


def saving(after: Sequence[ClockedRun], before: Sequence[ClockedRun]) -> Saving:
    """Return how much less energy the same work took, with a bootstrap over users."""

    def of(runs: Sequence[ClockedRun]) -> dict[int, float]:
        found: dict[int, list[float]] = {}
        for run in runs:
            found.setdefault(run.user_id, []).append(run.joules)
        return {user: statistics.fmean(values) for user, values in found.items()}

    mine, theirs = of(after), of(before)
    ratios = [1.0 - mine[user] / theirs[user] for user in mine.keys() & theirs.keys()]
    draw = random.Random(1)
    means = sorted(statistics.fmean(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return Saving(statistics.fmean(ratios), means[50], means[1949])


def a_night(lab: Lab) -> str:
    """Make a candidate, let it be judged, and wait until it decides all jobs; return its id."""
    done = lab.run(["slurm-energy", "retrain", "--seed", "1", "--json"], timeout=1500.0)
    assert done.returncode == 0, done.stderr
    print(done.stderr)
    made = json.loads(done.stdout)
    name = str(made["candidate"])
    seen: list[str | None] = []

    def is_decided() -> bool:
        stage = next((one["stage"] for one in listed(lab)["candidates"] if one["id"] == name), None)
        if stage != (seen[-1] if seen else None):
            seen.append(stage)
            print(f"{time.strftime('%X')} candidate {name}: {stage}")
        return stage in ("active", "rejected")

    keep_busy(lab, is_decided, f"end of the way of {name}", 1500.0)
    page = lab.run(["slurm-energy", "policy", "show", name], check=True).stdout
    print(page)
    assert seen[-1] == "active", page
    assert "decisions to look at first" in page
    return name


def claims_without_a_run(lab: Lab) -> CandidatePolicy:
    """Return a candidate whose estimates say of the default clock's neighbour what no run ever showed."""
    run = measured(lab)[0]
    claimed = LearnedClock(
        sm_clock_mhz=next(mhz for mhz in CATALOG[run.gpu_type].sm_clocks_mhz[::-1] if mhz < run.default_clock_mhz),
        default_clock_mhz=run.default_clock_mhz,
        slowdown=0.0,
        error=0.001,
        energy_change=-0.4,
        runs=9,
        measured_at_seconds=time.time(),
        by_trial=False,
    )
    names = {(one.user_id, job_group(one.name, one.script_key)) for one in measured(lab)}
    clocks = tuple(
        NameClocks(user_id=user, group=group, clocks={run.gpu_type: claimed}) for user, group in names if group
    )
    return CandidatePolicy(
        candidate_id="claims", made_at_seconds=time.time(), estimates=SiteEstimates(clocks=clocks, power_factors={})
    )


def add(lab: Lab, candidate: CandidatePolicy) -> None:
    """Write a candidate where the lab's nights write theirs, and note it in the database."""
    state = lab.layout.database.parent
    owner = state.stat()
    written = write_candidate(candidate, state / "candidates" / candidate.candidate_id)
    assert written.folder is not None
    for path in (written.folder.parent, written.folder, *written.folder.iterdir()):
        os.chown(path, owner.st_uid, owner.st_gid)
    engine = open_engine(StoreConfig(url=f"sqlite:///{lab.layout.database}"))
    try:
        run_in_transaction(
            engine,
            lambda session: add_candidate(
                session,
                ClusterName(lab.spec.cluster_name),
                candidate_id=candidate.candidate_id,
                made_at_seconds=candidate.made_at_seconds,
                parent_id="",
                folder=str(written.folder),
                document={"parts": list(candidate.parts)},
                actor="test",
            ),
        )
    finally:
        engine.dispose()


def test_what_only_estimates_find_good_is_stopped_by_the_jobs_of_its_canary(new_lab: StartLab) -> None:
    nightly = SETTINGS["nightly"] | {"shadow_decisions": len(USERS)}
    settings = SETTINGS | {"nightly": nightly}
    lab = new_lab(energy=True, partitions=PARTITIONS, settings=settings, time_scale=SCALE_BUSY, users=USERS)
    until("daemon", lab.ping)
    keep_busy(lab, lambda: runs_by_user(lab, is_low=True) >= 2, "history", 900.0, device_seconds=SHORT_SECONDS)
    add(lab, claims_without_a_run(lab))
    lab.run(["slurm-energy", "policy", "promote", "claims", "--yes"], check=True)

    def stage() -> str | None:
        return next((one["stage"] for one in listed(lab)["candidates"]), None)

    def is_decided() -> bool:
        return stage() in ("active", "rejected")

    keep_busy(lab, is_decided, "end of the canary", 1500.0, device_seconds=SHORT_SECONDS)
    page = lab.run(["slurm-energy", "policy", "show", "claims"], check=True).stdout
    print(page)
    assert stage() == "rejected", page
    assert "shadow -> canary" in page
    assert "worse than the live policy: joules" in page


def test_three_nights_of_recurring_programs_each_draw_less_energy(new_lab: StartLab) -> None:
    is_busy = os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)
    scale = SCALE_BUSY if is_busy else SCALE_FREE
    lab = new_lab(energy=True, partitions=PARTITIONS, settings=SETTINGS, time_scale=scale, users=USERS)
    until("daemon", lab.ping)
    keep_busy(lab, lambda: runs_by_user(lab, is_low=False) >= 4, "history", 600.0, "--energy=off")
    keep_busy(lab, lambda: runs_by_user(lab, is_low=True) >= 4, "history at the site's clock", 600.0)
    for _ in range(NIGHTS):
        name = a_night(lab)
        drawn = [run for run in measured(lab) if run.probability < 1.0]
        decided = [run for run in drawn if run.decided_by == name]
        begin = min(run.ended_at_seconds for run in decided)
        others = [run for run in drawn if run.decided_by != name and run.ended_at_seconds >= begin]
        print(name, saving(decided, others))
        assert saving(decided, others).low > 0.0
