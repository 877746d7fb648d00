"""The tasks of a planned training: each finds its place, trains, and rank 0 writes what was measured."""

import csv
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import IO, Any

import torch

from slurm_energy.errors import ConfigError, TrainingError
from slurm_energy.files import write_atomically
from slurm_energy.hyperscale.lost_ranks import NoAnswer, RankPresence, talking
from slurm_energy.hyperscale.part_files import read_sizes
from slurm_energy.hyperscale.plan import LOG_FILE, PARTS_FILE, RESULT_FILE, TrainPlan, allocation_of
from slurm_energy.hyperscale.reallocation import Reallocator, Transition
from slurm_energy.hyperscale.training import CHECKPOINT_FILE, EpochReport, TrainedRun, TrainEnd, train
from slurm_energy.rendezvous import Rendezvous, process_group, rendezvous

LOST_SECONDS = 600.0
"""After which a rank that sends nothing counts as lost; one whose process ends is missed at once."""
_COLUMNS = ("epoch", "loss", "seconds", "busy_seconds", "sent_bytes", "train", "val", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What the caller of a training gets to know, and knows."""

    on_epoch: Callable[[EpochReport], None]
    on_move: Callable[[Transition, float], None]
    should_stop: Callable[[], bool]
    joules: Callable[[], float | None]
    """Of this rank's GPU so far; None where nothing measures it."""


def place_of(environment: Mapping[str, str], ranks: int) -> Rendezvous:
    """Return where this task stands; a plan for one GPU needs no launcher.

    Raises:
        ConfigError: variables are missing, or the step has another number of tasks than the plan has GPUs.
    """
    if ranks == 1 and environment.get("SLURM_NTASKS", "1") == "1" and "RANK" not in environment:
        return Rendezvous(number=0, count=1, address="127.0.0.1", port=1)
    place = rendezvous(environment)
    if place.count != ranks:
        raise ConfigError(f"this step has {place.count} tasks, the plan has {ranks} GPUs: submit the plan's own script")
    return place


def train_planned(folder: Path, plan: TrainPlan, place: Rendezvous, watch: Watch) -> TrainEnd:
    """Train as planned, resuming where the folder has a checkpoint; rank 0 writes log and result.

    Raises:
        SlurmEnergyError: the training cannot be made, or a rank was lost.
    """
    began = time.time()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", place.local % torch.cuda.device_count())
        torch.cuda.set_device(device)
    sizes = read_sizes(folder / PARTS_FILE)
    allocation = allocation_of(sizes, plan.settings, plan.devices, plan.link_bytes_per_second)
    reports: list[EpochReport] = []
    ranks = [plan.rank_of_part]
    with ExitStack() as stack:
        store = None
        if place.count > 1:
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            store = stack.enter_context(process_group(place, wait_seconds=LOST_SECONDS, backend=backend))
        presence = RankPresence(place, store)
        log = stack.enter_context(_Log(folder / LOG_FILE)) if place.number == 0 else None
        reallocator = Reallocator(allocation, plan.settings.epochs, on_move=watch.on_move)

        def on_epoch(report: EpochReport) -> None:
            reports.append(report)
            if log is not None:
                log.write(report)
            watch.on_epoch(report)

        def reallocate(report: EpochReport, now: tuple[int, ...]) -> tuple[int, ...] | None:
            found = reallocator(report, now)
            ranks.append(found or now)
            return found

        end = train(
            plan.settings,
            TrainedRun(
                parts_file=folder / PARTS_FILE,
                folder=folder,
                presence=presence,
                rank_of_part=plan.rank_of_part,
                device=device,
                resumes=(folder / CHECKPOINT_FILE).exists(),
                on_epoch=on_epoch,
                should_stop=watch.should_stop,
                reallocate=reallocate,
            ),
        )
        joules = _joules_of_all(presence, store, watch.joules())
    if place.number == 0:
        _write_result(folder, plan, end, _Heard(began=began, reports=reports, ranks=ranks, joules=joules))
    return end


class _Log:
    """One line for each epoch, appended: a resumed training continues it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str]

    def __enter__(self) -> "_Log":
        try:
            self._file = self._path.open("a", encoding="utf-8", newline="", buffering=1)
        except OSError as error:
            raise TrainingError(f"{self._path} cannot be written: {error.strerror}") from error
        if self._file.tell() == 0:
            csv.writer(self._file).writerow(_COLUMNS)
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def write(self, report: EpochReport) -> None:
        accuracy = report.accuracy or {}
        judged = [
            f"{accuracy[name]:.4f}" if name in accuracy else "" for name in ("train_mask", "val_mask", "test_mask")
        ]
        busy = " ".join(f"{one:.4f}" for one in report.busy_seconds)
        figures = [report.epoch, f"{report.loss:.6f}", f"{report.seconds:.4f}", busy, report.sent_bytes]
        csv.writer(self._file).writerow([*figures, *judged])


def _joules_of_all(presence: RankPresence, store: Any, own: float | None) -> float | None:
    """Return the sum over all ranks, on rank 0; None where one does not know."""
    if store is None:
        return own
    try:
        with talking():
            store.set(f"joules/{presence.number}", json.dumps(own))
            if presence.number != 0:
                store.set(f"done/{presence.number}", "1")
                return None
            found = [json.loads(store.get(f"joules/{number}")) for number in range(presence.count)]
            store.wait([f"done/{number}" for number in range(1, presence.count)])
    except NoAnswer:
        return None  # the training itself is complete
    return sum(found) if all(isinstance(one, int | float) for one in found) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heard:
    """What rank 0 saw of a run."""

    began: float
    reports: list[EpochReport]
    ranks: list[tuple[int, ...]]
    joules: float | None


def _write_result(folder: Path, plan: TrainPlan, end: TrainEnd, seen: _Heard) -> None:
    """Write what the next plan and the user need; the first epoch is left out of speeds, as it sets everything up."""
    seconds = time.time() - seen.began
    of_epochs = [one.seconds for one in seen.reports]
    speeds: dict[str, list[float]] = {}
    for report, places in list(zip(seen.reports, seen.ranks, strict=False))[1:]:
        for rank, device in enumerate(plan.devices):
            work = sum(one for one, place in zip(plan.work, places, strict=True) if place == rank)
            if work and report.busy_seconds[rank] > 0.0:
                speeds.setdefault(device.slurm_type, []).append(report.busy_seconds[rank] / work)
    result = {
        "epochs": end.epochs,
        "is_complete": end.is_complete,
        "seconds": seconds,
        "start_seconds": max(0.0, seen.began - _job_start(os.environ, seen.began) + seconds - sum(of_epochs)),
        "epoch_seconds": fmean(of_epochs) if of_epochs else None,
        "joules": seen.joules,
        "accuracy": {name: one if isfinite(one) else None for name, one in end.accuracy.items()},
        "best_epoch": end.best_epoch,
        "best_test_accuracy": end.best_test_accuracy if isfinite(end.best_test_accuracy) else None,
        "rank_of_part": seen.ranks[-1],
        "speeds": {name: 1.0 / fmean(found) for name, found in speeds.items()},
    }
    write_atomically(folder / RESULT_FILE, json.dumps(result, indent=1).encode(), mode=0o644)


def _job_start(environment: Mapping[str, str], otherwise: float) -> float:
    """Return when the job began, in Unix seconds: what its script noted."""
    text = environment.get("SLURM_ENERGY_HYPERSCALE_START", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 12 else otherwise
