"""One night: from the database to a candidate, one step after the other, each kept on the disk when it is done.

A night that was stopped is resumed by the next run within twelve hours: it reads the same rows, up to the same moment,
and makes no replay a second time. Whatever goes wrong, the live policy stays.
"""

import fcntl
import json
import os
import random
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from slurm_energy.config import Config
from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.plain import to_plain
from slurm_energy.domain.promotion import LivePolicy
from slurm_energy.errors import CandidateError, SlurmEnergyError, SpoolError, TrainingError, WorkloadError
from slurm_energy.files import write_atomically
from slurm_energy.learning.nightly.history import SiteHistory, read_history
from slurm_energy.learning.nightly.name_clocks import name_clocks
from slurm_energy.learning.nightly.site_twin import ReplayFiles, build_twin
from slurm_energy.learning.nightly.tuning import Evaluations, SiteReplay, Tuned, tune
from slurm_energy.policy.automatic import chosen_policy
from slurm_energy.policy.candidate import (
    CandidatePolicy,
    NameClocks,
    SiteEstimates,
    candidates_folder,
    configured_policy,
    read_candidate,
    write_candidate,
)
from slurm_energy.store.promotion import add_candidate, live_policy
from slurm_energy.store.schema import check_version
from slurm_energy.store.session import Engine, Session, open_engine, run_in_transaction, store_session

LOCK_FILE = "retrain.lock"
WORK_FOLDER = "work"
STATE_FILE = "night.json"
RESUMED_SECONDS = 43_200.0
"""A night that began earlier is begun again: its rows are no longer tonight's."""
_SEARCH_SHARE = 0.5
"""Of the time, that the search may take."""
_CHECK_SHARE = 0.7
"""Of the time, until which prices are checked on held-out days; the rest is the gate's."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """What a run came to."""

    candidate: CandidatePolicy
    incumbent: CandidatePolicy
    history: SiteHistory
    twin: ReplayFiles | None
    is_new: bool


def clear_work(config: Config) -> None:
    """Remove what a finished night worked with; the next one begins afresh."""
    shutil.rmtree(candidates_folder(config) / WORK_FOLDER, ignore_errors=True)


@contextmanager
def undisturbed(config: Config) -> Iterator[None]:
    """Hold lock and limit of memory for a whole night: its training, its judgement and the end of its work folder.

    Raises:
        TrainingError: another run is at work, or the memory did not suffice.
        CandidateError: the folder cannot be written.
    """
    with alone(candidates_folder(config)), bounded_memory(config.nightly.max_memory_gib):
        try:
            yield
        except MemoryError:
            raise TrainingError(
                f"more than {config.nightly.max_memory_gib:g} GiB would be needed (nightly.max_memory_gib): the live "
                "policy stays"
            ) from None


def retrain(config: Config, *, say: Say, actor: str, seed: int | None = None) -> Night:
    """Make a candidate of the site's history and note it in the database; call it `undisturbed`.

    Raises:
        SlurmEnergyError: the history teaches nothing, the time did not suffice, or the database cannot be used; the
            live policy stays, and the next run begins afresh.
    """
    try:
        return _retrain(config, candidates_folder(config), say, actor, seed)
    except (SlurmEnergyError, MemoryError):
        clear_work(config)
        raise


def _retrain(config: Config, folder: Path, say: Say, actor: str, seed: int | None) -> Night:
    begun = time.monotonic()
    cluster = ClusterName(config.cluster.name)
    engine = open_engine(config.store)
    try:
        check_version(engine)
        work = folder / WORK_FOLDER
        state = _begin(work, time.time(), seed)
        history = read_history(engine, cluster, state.until_seconds, config.nightly.min_jobs)
        _keep(work, state)
        data = history.data()
        for note in data.notes:
            say(note)
        say(f"{data.jobs} jobs, {data.measured_jobs} of them measured, {_days(history)} days")
        incumbent = incumbent_policy(engine, cluster)
        clocks = name_clocks(history.runs, config.policy.max_slowdown)
        say(f"clocks of {len(clocks)} names follow from their own runs")
        twin, tuned = _tuned(config, history, incumbent, work, state.seed, begun, say)
        candidate = CandidatePolicy(
            candidate_id=f"{datetime.fromtimestamp(state.until_seconds, UTC):%Y%m%d-%H%M%S}-{data.digest[:8]}",
            made_at_seconds=state.until_seconds,
            parent="" if incumbent.folder is None else incumbent.candidate_id,
            seeds=(state.seed,),
            data=data,
            policy=tuned.policy or incumbent.policy,
            estimates=_estimates(clocks, twin),
            figures={**tuned.figures, "named_clocks": float(len(clocks))},
        )
        written = write_candidate(candidate, folder / candidate.candidate_id)
        is_new = run_in_transaction(engine, lambda session: _note(session, cluster, written, actor))
        say(f"candidate {written.candidate_id}: {', '.join(written.parts) or 'no part differs'}")
        return Night(candidate=written, incumbent=incumbent, history=history, twin=twin, is_new=is_new)
    finally:
        engine.dispose()


def incumbent_policy(engine: Engine, cluster: ClusterName) -> CandidatePolicy:
    """Return the live policy: a candidate that was promoted, or what the configuration names."""
    with store_session(engine, read_only=True) as session:
        live: LivePolicy = live_policy(session, cluster)
    return read_candidate(Path(live.champion_folder)) if live.champion_folder else configured_policy()


def _tuned(  # noqa: PLR0913, PLR0917  # what a step of the night needs
    config: Config,
    history: SiteHistory,
    incumbent: CandidatePolicy,
    work: Path,
    seed: int,
    begun: float,
    say: Say,
) -> tuple[ReplayFiles | None, Tuned]:
    """Return the site's twin and the prices that do best in it; none of both where its jobs cannot be replayed."""
    nothing = Tuned(policy=None, learned_cost=1.0, held_out_cost=None, figures={})
    try:
        twin = build_twin(history, work, config.nightly.replayed_jobs)
    except (WorkloadError, TrainingError) as error:
        say(f"the jobs cannot be replayed, prices stay as they are: {error}")
        return None, nothing
    say(f"replays of {twin.learned_jobs} jobs, checked on {twin.held_out_jobs} later ones")
    seconds = 60.0 * config.nightly.max_minutes
    evaluations = Evaluations.read(work / "replays.json")
    workers = config.nightly.workers
    live = incumbent.policy or chosen_policy(config).config.policy.name
    tuned = tune(
        config,
        live,
        SiteReplay(
            world=twin.world,
            jobs=twin.learned_from,
            evaluations=evaluations,
            deadline_seconds=begun + _SEARCH_SHARE * seconds,
            workers=workers,
        ),
        SiteReplay(
            world=twin.world,
            jobs=twin.held_out,
            evaluations=evaluations,
            deadline_seconds=begun + _CHECK_SHARE * seconds,
            workers=workers,
        ),
        seed=seed,
        say=say,
    )
    return twin, tuned


def _estimates(clocks: tuple[NameClocks, ...], twin: ReplayFiles | None) -> SiteEstimates | None:
    factors = {} if twin is None else dict(twin.power_factors)
    return SiteEstimates(clocks=clocks, power_factors=factors) if clocks or factors else None


def _note(session: Session, cluster: ClusterName, candidate: CandidatePolicy, actor: str) -> bool:
    return add_candidate(
        session,
        cluster,
        candidate_id=candidate.candidate_id,
        made_at_seconds=candidate.made_at_seconds,
        parent_id=candidate.parent,
        folder=str(candidate.folder),
        document={
            "parts": list(candidate.parts),
            "policy": candidate.policy,
            "seeds": list(candidate.seeds),
            "data": to_plain(candidate.data),
            "figures": dict(candidate.figures),
        },
        actor=actor,
    )


def _days(history: SiteHistory) -> int:
    data = history.states
    return round(((data[-1].ended_at_seconds or 0.0) - (data[0].ended_at_seconds or 0.0)) / 86_400.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NightState:
    """What a night that is resumed must not change."""

    until_seconds: float
    seed: int


def _begin(work: Path, now_seconds: float, seed: int | None) -> _NightState:
    """Return the state of the night that was stopped, else of a new one."""
    path = work / STATE_FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        found = _NightState(until_seconds=float(document["until_seconds"]), seed=int(document["seed"]))
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    if found is not None and 0.0 <= now_seconds - found.until_seconds <= RESUMED_SECONDS and seed in (None, found.seed):
        return found
    shutil.rmtree(work, ignore_errors=True)
    drawn = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    return _NightState(until_seconds=float(int(now_seconds)), seed=drawn)


def _keep(work: Path, state: _NightState) -> None:
    """Note what a run that is stopped from here on is resumed with; its history has been read."""
    try:
        work.mkdir(parents=True, exist_ok=True)
        write_atomically(
            work / STATE_FILE, json.dumps({"until_seconds": state.until_seconds, "seed": state.seed}).encode()
        )
    except (OSError, SpoolError) as error:
        raise CandidateError(f"{work} cannot be written: {error}; run this as the daemon's user") from error


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: two runs in a night, or one that takes until the next, are one.

    Raises:
        TrainingError: another run holds it.
        CandidateError: the folder cannot be written.
    """
    path = folder / LOCK_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CandidateError(f"{path} cannot be opened: {error.strerror}; run this as the daemon's user") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TrainingError(
                f"another retrain is at work (lock {path}): this one ends, the live policy stays"
            ) from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def bounded_memory(max_gib: float) -> Iterator[None]:
    """Let this process and those that it starts have so much memory each."""
    old = resource.getrlimit(resource.RLIMIT_DATA)
    limit = int(max_gib * 1024**3)
    hard = old[1]
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, old)
