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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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

    candidate: CandidatePolicy | None
    """None where nothing would be gained by one."""
    incumbent: CandidatePolicy
    history: SiteHistory
    twin: ReplayFiles | None
    notes: tuple[str, ...]
    """Why parts are not new."""


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
        twin = _twin(config, history, work, say)
        task = NightTask(
            config=config,
            history=history,
            incumbent=incumbent,
            twin=twin,
            work=work,
            seed=state.seed,
            begun=begun,
            say=say,
        )
        parts = [make(task) for make in PART_MAKERS]
        notes = tuple(part.note for part in parts if part.note)
        for note in notes:
            say(note)
        if not any(part.is_new for part in parts):
            return Night(candidate=None, incumbent=incumbent, history=history, twin=twin, notes=notes)
        candidate = CandidatePolicy(
            candidate_id=f"{datetime.fromtimestamp(state.until_seconds, UTC):%Y%m%d-%H%M%S}-{data.digest[:8]}",
            made_at_seconds=state.until_seconds,
            parent="" if incumbent.folder is None else incumbent.candidate_id,
            seeds=(state.seed,),
            data=replace(data, notes=(*data.notes, *notes)),
            figures={name: value for part in parts for name, value in part.figures.items()},
        )
        for part in parts:
            candidate = part.into(candidate)
        written = write_candidate(candidate, folder / candidate.candidate_id)
        run_in_transaction(engine, lambda session: _note(session, cluster, written, actor))
        say(f"candidate {written.candidate_id}: {', '.join(written.parts)}")
        return Night(candidate=written, incumbent=incumbent, history=history, twin=twin, notes=notes)
    finally:
        engine.dispose()


@dataclass(frozen=True, slots=True, kw_only=True)
class NightTask:
    """What a part of a candidate is made of."""

    config: Config
    history: SiteHistory
    incumbent: CandidatePolicy
    twin: ReplayFiles | None
    """None where the jobs cannot be replayed."""
    work: Path
    """For what a part keeps, so that a night that is resumed does not make it again."""
    seed: int
    begun: float
    """Monotonic seconds."""
    say: Say

    def deadline_seconds(self, share: float) -> float:
        """Return the monotonic time at which a share of the night's time is used up."""
        return self.begun + share * 60.0 * self.config.nightly.max_minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePart:
    """A part of a candidate."""

    into: Callable[[CandidatePolicy], CandidatePolicy]
    """Returns a candidate with the part; where there is nothing new, with that of the live policy."""
    is_new: bool
    """Whether it is another than the live policy's: a candidate without a new part is not proposed."""
    figures: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    """Why there is nothing new; empty where that is said elsewhere."""


def price_part(task: NightTask) -> MadePart:
    """Return the prices that do best in the site's twin, where they do better than the live policy."""
    own = task.incumbent.policy
    if task.twin is None:
        return MadePart(into=lambda candidate: replace(candidate, policy=own), is_new=False)
    tuned = _tuned(task, task.twin)
    policy = tuned.policy or own
    note = ""
    if tuned.policy is None and tuned.held_out_cost is not None:
        note = (
            f"prices found in the search cost {100.0 * (tuned.held_out_cost - 1.0):+.2f} % of the live policy's on the "
            "held-out days, no gain: they are not proposed"
        )
    return MadePart(
        into=lambda candidate: replace(candidate, policy=policy),
        is_new=tuned.policy is not None,
        figures=tuned.figures,
        note=note,
    )


def clock_part(task: NightTask) -> MadePart:
    """Return the clocks that follow from the names' own runs."""
    clocks = name_clocks(task.history.runs, task.config.policy.max_slowdown)
    task.say(f"clocks of {len(clocks)} names follow from their own runs")
    factors = {} if task.twin is None else dict(task.twin.power_factors)
    estimates = SiteEstimates(clocks=clocks, power_factors=factors) if clocks or factors else None
    before = () if task.incumbent.estimates is None else task.incumbent.estimates.clocks
    is_new = _clocks_mhz(clocks) != _clocks_mhz(before)
    note = ""
    if not is_new:
        note = (
            "no name has measured runs at two clocks of which the lower one saves: no clock of a name is proposed"
            if not clocks
            else "the clocks of names are those of the live policy: they are not proposed again"
        )
    return MadePart(
        into=lambda candidate: replace(candidate, estimates=estimates),
        is_new=is_new,
        figures={"named_clocks": float(len(clocks))},
        note=note,
    )


def _clocks_mhz(clocks: Sequence[NameClocks]) -> dict[tuple[int, str, str], int]:
    return {
        (one.user_id, one.group, gpu_type): clock.sm_clock_mhz
        for one in clocks
        for gpu_type, clock in one.clocks.items()
    }


PartMaker = Callable[[NightTask], MadePart]
PART_MAKERS: tuple[PartMaker, ...] = (price_part, clock_part)
"""Each makes one part of a candidate, in this order; one that raises ends the night."""


def incumbent_policy(engine: Engine, cluster: ClusterName) -> CandidatePolicy:
    """Return the live policy: a candidate that was promoted, or what the configuration names."""
    with store_session(engine, read_only=True) as session:
        live: LivePolicy = live_policy(session, cluster)
    return read_candidate(Path(live.champion_folder)) if live.champion_folder else configured_policy()


def _twin(config: Config, history: SiteHistory, work: Path, say: Say) -> ReplayFiles | None:
    """Return the site's twin, None where its jobs cannot be replayed."""
    try:
        twin = build_twin(history, work, config.nightly.replayed_jobs)
    except (WorkloadError, TrainingError) as error:
        say(f"the jobs cannot be replayed, prices stay as they are: {error}")
        return None
    say(
        f"replays of {twin.learned_jobs} jobs, checked on {twin.held_out_jobs} later ones; {twin.named_kinds} names "
        "draw what their own runs drew"
    )
    return twin


def _tuned(task: NightTask, twin: ReplayFiles) -> Tuned:
    evaluations = Evaluations.read(task.work / "replays.json")
    workers = task.config.nightly.workers
    live = task.incumbent.policy or chosen_policy(task.config).config.policy.name
    return tune(
        task.config,
        live,
        SiteReplay(
            world=twin.world,
            jobs=twin.learned_from,
            evaluations=evaluations,
            deadline_seconds=task.deadline_seconds(_SEARCH_SHARE),
            workers=workers,
        ),
        SiteReplay(
            world=twin.world,
            jobs=twin.held_out,
            evaluations=evaluations,
            deadline_seconds=task.deadline_seconds(_CHECK_SHARE),
            workers=workers,
        ),
        seed=task.seed,
        say=task.say,
    )


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
