"""A training in rounds from its settings to checkpoints in a folder, begun or resumed, on one rank or several."""

import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

import torch

from slurm_energy.errors import CheckpointError, ConfigError, SlurmEnergyError, TrainingError
from slurm_energy.learning.algorithms import CollectorParts, LearnerParts
from slurm_energy.learning.collectors import create_episode_runner
from slurm_energy.learning.experience import Weights
from slurm_energy.learning.ranks import ALONE, Ranks
from slurm_energy.learning.rounds import RoundPlan, RoundReport, Rounds, StopRequest
from slurm_energy.learning.torch_device import CPU, device_words
from slurm_energy.learning.training_log import NoLog, check_format, open_log
from slurm_energy.learning.training_settings import SETTINGS_FILE, TrainingSettings, check_same
from slurm_energy.learning.training_state import TrainingState, read_state, restore_learner
from slurm_energy.policy.checkpoint_files import CheckpointMetadata, check_files
from slurm_energy.policy.gnn.checkpoint import Checkpoint, load_into, read_checkpoint
from slurm_energy.policy.gnn.network import HierarchicalNetwork, create_network

NAME = "gnn"
CHECKPOINTS = "checkpoints"
BEST = "best"
LAST = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEnd:
    """How a training ended."""

    rounds: int
    """That are done."""
    is_complete: bool
    """False if it was stopped before."""
    checkpoints: Mapping[str, CheckpointMetadata]
    """By the link that leads to each."""


def train_in_rounds(
    settings: TrainingSettings,
    folder: Path,
    *,
    resumes: bool = False,
    ranks: Ranks = ALONE,
    device: torch.device = CPU,
    report: Callable[[RoundReport], None] = lambda _: None,
) -> TrainingEnd:
    """Train until all rounds are done or it is stopped.

    The same settings give the same weights on one thread of the CPU.

    Args:
        settings: What to do.
        folder: Of the training; new unless the training is resumed.
        resumes: Whether to resume from the folder's state.
        ranks: Who trains together.
        device: Where this rank's learner works; episodes run on the CPU.
        report: Called after each round.

    Raises:
        TrainingError: the folder is in the way, its state cannot be resumed from, or the training diverged; one that
            did so in its first round leaves no folder.
        CheckpointError: the checkpoint to start from does not fit, or one cannot be written.
        ConfigError: the world or network cannot be, or some ranks have a GPU and others none.
    """
    torch.set_num_threads(settings.run.threads)
    _check_alike(device, ranks)
    state = _resumed_state(settings, folder) if resumes else None
    start = None if resumes or not settings.run.start_from else read_checkpoint(Path(settings.run.start_from))
    settings = settings if start is None else _with_network_of(settings, start)
    network = create_network(settings.network, settings.run.seed)
    if start is not None:
        load_into(network, start)
    ranks.begin_equal(network.state_dict())
    settings = replace(settings, run=replace(settings.run, learned_on=device_words(device)))
    learner = settings.algorithm.learner(
        LearnerParts(
            network=network.to(device),
            settings=settings.learner,
            episodes=settings.episodes,
            seed=settings.run.seed,
            averaging=ranks.average,
        )
    )
    if state is not None:
        restore_learner(learner, state, ranks.number, folder)
    collector = settings.algorithm.collector(
        CollectorParts(network=settings.network, episodes=settings.episodes, learner=settings.learner)
    )
    if ranks.writes:
        _prepare(settings, folder, network, learner.acting, is_new=state is None)
    log = (
        open_log(folder, settings.run.log_format, done=0 if state is None else state.rounds)
        if ranks.writes
        else NoLog()
    )
    plan = RoundPlan(
        seed=settings.run.seed,
        rounds=settings.run.rounds,
        collectors=settings.run.collectors,
        save_every_rounds=settings.run.save_every_rounds,
        settings_sha256=settings.sha256(),
        folder=folder,
    )
    with (
        StopRequest().listening() as stop,
        closing(log),
        closing(create_episode_runner(collector, settings.run.collectors)) as runner,
    ):
        rounds = Rounds(learner, runner, log, _Keep(settings, folder), plan)
        if state is not None:
            rounds.resume_from(state)
        try:
            is_complete = rounds.run(ranks, stop, report)
        except SlurmEnergyError:
            if ranks.writes and state is None and rounds.done == 0:
                remove_folder(folder)
            raise
    return TrainingEnd(rounds=rounds.done, is_complete=is_complete, checkpoints=_checkpoints(folder, ranks))


def _check_alike(device: torch.device, ranks: Ranks) -> None:
    on_cpu, on_gpu = ranks.any_of(device == CPU), ranks.any_of(device != CPU)
    if on_cpu and on_gpu:
        raise ConfigError(
            "some ranks learn on the CPU and some on a GPU, which round in other ways, so that weights would go apart: "
            "ask Slurm for a GPU for each (--gpus-per-task=1), or give --device cpu"
        )


def _resumed_state(settings: TrainingSettings, folder: Path) -> TrainingState:
    check_same(settings, folder)
    state = read_state(folder)
    if state.settings_sha256 != settings.sha256():
        raise TrainingError(
            f"the state in {folder} was written under other settings than its settings.toml says: the file was changed "
            "after the training began"
        )
    if len(state.learners) != settings.run.ranks:
        raise TrainingError(
            f"the state in {folder} is of {len(state.learners)} ranks, {settings.run.ranks} are to resume from it"
        )
    if state.rounds >= settings.run.rounds and _has_last(folder, state.rounds):
        raise TrainingError(
            f"the training in {folder} has done {state.rounds} of {settings.run.rounds} rounds: "
            "give --rounds a larger number to resume"
        )
    return state


def _has_last(folder: Path, rounds: int) -> bool:
    """Return whether the checkpoint after a round is there; what was ended between state and checkpoint lacks it."""
    try:
        return check_files(folder / LAST).metrics.get("round") == rounds
    except CheckpointError:
        return False


def _with_network_of(settings: TrainingSettings, start: Checkpoint) -> TrainingSettings:
    """Return the settings with the network that a checkpoint is of; what a file says must be the same."""
    theirs = start.metadata.architecture
    if settings.names_network and settings.network != theirs:
        raise ConfigError(
            f"[network] is not the network of checkpoint {settings.run.start_from}: leave the table out to take its own"
        )
    return replace(settings, network=theirs)


def _prepare(
    settings: TrainingSettings, folder: Path, network: HierarchicalNetwork, acting: Weights, *, is_new: bool
) -> None:
    """Make or update the folder; what no checkpoint could be made of is reported before the work begins."""
    _metadata(settings, 0, {})
    check_format(settings.run.log_format)
    if settings.algorithm.saves_network:
        wanted = network.state_dict()
        if wanted.keys() != acting.keys():
            odd = sorted(wanted.keys() ^ acting.keys())[0]
            raise TrainingError(
                f"algorithm {settings.run.algorithm} acts by weights that are not the network's: {odd!r} is in one only"
            )
    if is_new:
        create_folder(folder, settings.text())
    else:
        write_settings(folder, settings.text())


def _checkpoints(folder: Path, ranks: Ranks) -> dict[str, CheckpointMetadata]:
    links = (BEST, LAST) if ranks.writes else ()
    return {link: check_files(folder / link) for link in links if (folder / link).exists()}


class _Keep:
    """Writes checkpoints into the training's folder."""

    def __init__(self, settings: TrainingSettings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder

    def __call__(self, weights: Weights, number: int, figures: Mapping[str, float], *, is_best: bool) -> None:
        metadata = _metadata(self._settings, number, figures)
        keep_checkpoint(
            self._folder,
            BEST if is_best else LAST,
            number,
            lambda target: self._settings.algorithm.save(target, weights, metadata),
        )


def _metadata(settings: TrainingSettings, number: int, figures: Mapping[str, float]) -> CheckpointMetadata:
    run = settings.run
    version = f"{run.version or f'{run.algorithm}-seed{run.seed}'}-round{number}"
    try:
        return CheckpointMetadata(
            name=NAME,
            version=version,
            architecture=settings.network,
            # Episodes follow from the settings: their hash stands for the data.
            training_data_sha256=settings.sha256(),
            created_at_seconds=time.time(),
            metrics={"round": float(number)} | {name: value for name, value in figures.items() if isfinite(value)},
        )
    except CheckpointError as error:
        raise CheckpointError(f"version {version!r} of this training: {error}") from error


def create_folder(folder: Path, settings_text: str) -> None:
    """Make the folder of a new training.

    Raises:
        TrainingError: it exists, or cannot be made.
    """
    if os.path.lexists(folder):
        raise TrainingError(f"{folder} exists: resume with --resume {folder}, or name a new folder")
    if not folder.parent.is_dir():
        raise TrainingError(f"folder {folder.parent} of {folder.name} does not exist")
    try:
        folder.mkdir()
        (folder / CHECKPOINTS).mkdir()
    except OSError as error:
        raise TrainingError(f"{folder} cannot be made: {error.strerror}") from error
    write_settings(folder, settings_text)


def remove_folder(folder: Path) -> None:
    """Remove the folder of a training that failed before anything was learned, so that another can take its place."""
    shutil.rmtree(folder, ignore_errors=True)


def write_settings(folder: Path, text: str) -> None:
    """Write the settings that the training is run with.

    Raises:
        TrainingError: they cannot be written.
    """
    unfinished = folder / f".{SETTINGS_FILE}.part"
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(folder / SETTINGS_FILE)
    except OSError as error:
        raise TrainingError(f"{folder / SETTINGS_FILE} cannot be written: {error.strerror}") from error


def keep_checkpoint(folder: Path, link: str, number: int, save: Callable[[Path], object]) -> None:
    """Save a round's checkpoint, let the link lead to it, and remove the one that no link leads to any more.

    Raises:
        TrainingError: a link or folder cannot be changed.
        CheckpointError: the checkpoint cannot be written.
    """
    name = f"{link}-{number:06d}"
    target = folder / CHECKPOINTS / name
    try:
        if target.exists():
            # Rounds that are run again after a resume reach the same weights, under the same name.
            shutil.rmtree(target)
        target.parent.mkdir(exist_ok=True)
        save(target)
        unfinished = folder / f".{link}.part"
        unfinished.unlink(missing_ok=True)
        unfinished.symlink_to(Path(CHECKPOINTS) / name)
        unfinished.replace(folder / link)
        for older in (folder / CHECKPOINTS).glob(f"{link}-*"):
            if older.name != name:
                shutil.rmtree(older)
    except OSError as error:
        raise TrainingError(f"checkpoint {target} cannot take its place: {error}") from error
