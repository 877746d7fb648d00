"""Train a graph network over the parts of a graph, some on each rank.

Every rank has all weights of the model. The loss is the mean over all training vertices of the graph: a rank's
gradient is weighted by its training vertices, and the ranks' gradients add up. With exact halos the weights are those
of one process with the whole graph, but for the order of sums; with stale ones they are close (see `halo`).
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import isfinite, isnan, nan
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, distributed, nn
from torch.optim import Adam
from torch_geometric.nn.models.basic_gnn import BasicGNN

from slurm_energy.errors import ConfigError, TrainingError
from slurm_energy.hyperscale.checkpoint import TrainingCheckpoint, read_checkpoint, write_checkpoint
from slurm_energy.hyperscale.graph import MASKS
from slurm_energy.hyperscale.halo import LocalGraph, Routes, Stale, local_graph
from slurm_energy.hyperscale.layers import LAYERS, MODELS, Layer, LayerInput, forward, layer_inputs
from slurm_energy.hyperscale.lost_ranks import NoAnswer, RankPresence, talking
from slurm_energy.hyperscale.part_files import PartSizes, read_holding, read_sizes

ModelName = Literal["gcn", "sage", "gat"]
CHECKPOINT_FILE = "checkpoint.safetensors"
_SEEDS = 2**31
_JUDGED = tuple(f"{what}_{name}" for what in ("right", "count") for name in MASKS)
_FIGURES = ("loss", "stop", "busy_seconds", "waited_seconds", "sent_bytes", *_JUDGED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """What is trained, and how."""

    model: ModelName = "gcn"
    hidden_channels: int = 64
    num_layers: int = 2
    heads: int = 8
    """Of attention; other models have none."""
    dropout: float = 0.5
    input_dropout: float = 0.0
    """Of features; more than 0 makes the first layer exchange rows too."""
    attention_dropout: float = 0.0
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    epochs: int = 200
    seed: int = 0
    stale_halos: bool = False
    smoothing: float = 0.95
    """Of stale halos."""
    evaluate_every: int = 10
    checkpoint_every: int = 10

    def __post_init__(self) -> None:
        if self.model not in get_args(ModelName):
            raise ConfigError(f"model {self.model!r} is not one of {', '.join(get_args(ModelName))}")
        for name, low, high in (
            ("hidden_channels", 1, 65_536),
            ("num_layers", 1, 64),
            ("heads", 1, 256),
            ("epochs", 1, 10_000_000),
            ("seed", 0, _SEEDS - 1),
            ("evaluate_every", 1, 10_000_000),
            ("checkpoint_every", 1, 10_000_000),
        ):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must be {low} to {high}")
        for name in ("dropout", "input_dropout", "attention_dropout", "smoothing"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"{name} is {getattr(self, name):g}, it must be 0 to below 1")
        if not (isfinite(self.learning_rate) and self.learning_rate > 0.0):
            raise ConfigError(f"learning_rate is {self.learning_rate:g}, it must be more than 0")
        if not (isfinite(self.weight_decay) and self.weight_decay >= 0.0):
            raise ConfigError(f"weight_decay is {self.weight_decay:g}, it must be 0 or more")
        if self.model == "gat" and self.hidden_channels % self.heads:
            raise ConfigError(f"hidden_channels {self.hidden_channels} must be a multiple of heads, {self.heads}")

    def of_model(self) -> dict[str, Any]:
        """Return what must be the same to resume."""
        changeable = {"epochs", "evaluate_every", "checkpoint_every", "stale_halos", "smoothing"}
        return {name: value for name, value in asdict(self).items() if name not in changeable}


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport:
    """One epoch, the same on every rank."""

    epoch: int
    loss: float
    seconds: float
    busy_seconds: tuple[float, ...]
    """For how long each rank computed."""
    waited_seconds: tuple[float, ...]
    """For how long each rank waited for rows or gradients of others."""
    sent_bytes: int
    """Of all ranks together, rows and their gradients."""
    accuracy: Mapping[str, float] | None
    """Of `train_mask`, `val_mask` and `test_mask`, in epochs that evaluate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainEnd:
    """How a training ended."""

    epochs: int
    is_complete: bool
    accuracy: Mapping[str, float]
    best_epoch: int
    """Of the highest accuracy on val_mask."""
    best_test_accuracy: float
    """On test_mask, in that epoch."""
    checkpoint: Path
    weights: Mapping[str, Tensor] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """Where a training runs, and who listens."""

    parts_file: Path
    folder: Path
    """Gets the checkpoint; one that every rank can write to."""
    presence: RankPresence
    rank_of_part: tuple[int, ...]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    resumes: bool = False
    on_epoch: Callable[[EpochReport], None] = lambda _: None
    should_stop: Callable[[], bool] = lambda: False
    reallocate: Callable[[EpochReport, tuple[int, ...]], tuple[int, ...] | None] = lambda _, __: None
    """Takes an epoch and the rank of every part; returns other ranks or None. Asked on rank 0 alone."""
    layers: Mapping[type, Layer] = field(default_factory=lambda: LAYERS)
    """How each kind of layer is computed."""


def build_model(settings: TrainSettings, num_features: int, num_classes: int) -> BasicGNN:
    """Return torch_geometric's model with weights drawn from the seed, the same on every rank."""
    more: dict[str, Any] = {}
    if settings.model == "gat":
        more = {"heads": settings.heads, "dropout": settings.dropout}
    torch.manual_seed(settings.seed)
    model = MODELS[settings.model](
        num_features,
        settings.hidden_channels,
        settings.num_layers,
        num_classes,
        **{"dropout": settings.dropout, **more},
    )
    for conv in model.convs if settings.model == "gat" else ():
        conv.dropout = settings.attention_dropout
    return model


@dataclass(slots=True)
class _Held:
    """What a rank computes with, as long as it holds these parts."""

    graph: LocalGraph
    routes: Routes
    features: Tensor
    labels: Tensor
    masks: dict[str, Tensor]
    train: list[LayerInput]
    evaluate: list[LayerInput]

    def drain(self) -> None:
        for given in self.train:
            given.channel.drain()


def train(settings: TrainSettings, run: TrainedRun) -> TrainEnd:
    """Train, and return how it ended; every rank calls this with the same settings.

    After each epoch that is due, and at the end, rank 0 writes the checkpoint. Where a rank is lost, the first of the
    others writes it.

    Raises:
        ConfigError: parts and ranks do not fit each other, or a checkpoint is of another training.
        DataFileError: parts or checkpoint cannot be read.
        TrainingError: the loss is not finite, or a rank was lost: the message names it and the checkpoint.
    """
    sizes = read_sizes(run.parts_file)
    _check_ranks(sizes, run)
    trainer = _Trainer(settings, run, sizes)
    try:
        return trainer.run()
    except NoAnswer as error:
        lost = run.presence.lost(error, trainer.epoch_seconds)
        if lost.first_survivor == run.presence.number:
            trainer.write()
        raise TrainingError(
            f"{lost.words} in epoch {trainer.epoch + 1} of {settings.epochs}; resume from epoch {trainer.epoch}: "
            f"{run.folder / CHECKPOINT_FILE}"
        ) from error
    except Exception as error:  # whatever it is, the other ranks are to say what happened on this one
        run.presence.failed(error)
        raise


def _check_ranks(sizes: PartSizes, run: TrainedRun) -> None:
    count = run.presence.count
    if len(run.rank_of_part) != sizes.num_parts:
        raise ConfigError(f"{len(run.rank_of_part)} parts are given a rank, {run.parts_file} has {sizes.num_parts}")
    wrong = [rank for rank in run.rank_of_part if not 0 <= rank < count]
    if wrong:
        raise ConfigError(f"a part is given to rank {wrong[0]}: there are ranks 0 to {count - 1}")


class _Trainer:
    """The state of a training on one rank."""

    def __init__(self, settings: TrainSettings, run: TrainedRun, sizes: PartSizes) -> None:
        self._settings = settings
        self._run = run
        self._sizes = sizes
        self._model = build_model(settings, sizes.num_features, sizes.num_classes).to(run.device)
        self._optimizer = Adam(
            self._model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, foreach=True
        )
        self._rank_of_part = run.rank_of_part
        self._accuracy: dict[str, float] = dict.fromkeys(MASKS, nan)
        self._best = (0, -1.0, nan)
        self.epoch = 0
        """That are done."""
        self.epoch_seconds = 0.0
        if run.resumes:
            self._resume()

    def run(self) -> TrainEnd:
        settings, run = self._settings, self._run
        self._check_equal_epochs()
        held = self._hold()
        stopped = False
        while self.epoch < settings.epochs and not stopped:
            report, stopped = self._epoch(held)
            if run.presence.number == 0 and (self.epoch % settings.checkpoint_every == 0):
                self.write()
            run.on_epoch(report)
            if self._reallocated(report):
                held.drain()
                held = self._hold()
        held.drain()
        if isnan(self._accuracy["test_mask"]):  # stopped, or resumed at its end
            sums = self._of_all_ranks(list(self._right_answers(held).values())).sum(dim=0).tolist()
            self._judge(dict(zip(_JUDGED, sums, strict=True)))
        if run.presence.number == 0:
            self.write()
        self._of_all_ranks([float(self.epoch)])  # no rank says that it is done before the checkpoint is there
        return TrainEnd(
            epochs=self.epoch,
            is_complete=self.epoch >= settings.epochs,
            accuracy=self._accuracy,
            best_epoch=self._best[0],
            best_test_accuracy=self._best[2],
            checkpoint=run.folder / CHECKPOINT_FILE,
            weights=self._model.state_dict(),
        )

    def _hold(self) -> _Held:
        settings, run, device = self._settings, self._run, self._run.device
        own = tuple(part for part, rank in enumerate(self._rank_of_part) if rank == run.presence.number)
        holding = read_holding(run.parts_file, self._sizes, own)
        graph, order = local_graph(holding, self._sizes.vertex_offsets, self._rank_of_part)
        routes = Routes(graph, run.presence.count, device)
        graph = replace(graph, source=graph.source.to(device), target=graph.target.to(device))
        features = holding.features[order].to(device)
        stale = Stale(smoothing=settings.smoothing) if settings.stale_halos else None
        constant = settings.input_dropout == 0.0
        given = layer_inputs(self._model, graph, routes, features, stale=stale, is_constant=constant)
        exact = [replace(one, channel=type(one.channel)(routes)) for one in given]
        return _Held(
            graph=graph,
            routes=routes,
            features=features,
            labels=holding.labels[order].to(device),
            masks={name: mask[order].to(device) for name, mask in holding.masks.items()},
            train=given,
            evaluate=exact,
        )

    def _epoch(self, held: _Held) -> tuple[EpochReport, bool]:
        settings, run = self._settings, self._run
        number = self.epoch + 1
        began, waited, sent = time.perf_counter(), held.routes.waiting.seconds, held.routes.waiting.sent_bytes
        torch.manual_seed((settings.seed * 1_000_003 + number * 1_009 + run.presence.number) % _SEEDS)
        self._model.train()
        self._optimizer.zero_grad(set_to_none=False)
        values = nn.functional.dropout(held.features, settings.input_dropout)
        logits = forward(self._model, values, held.train, run.layers)
        mask = held.masks["train_mask"]
        loss = nn.functional.cross_entropy(logits[mask], held.labels[mask], reduction="sum")
        loss = loss / self._sizes.training_vertices
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        gradients_began = time.perf_counter()
        self._add_up_gradients()
        held.routes.waiting.seconds += time.perf_counter() - gradients_began
        figures = dict.fromkeys(_FIGURES, 0.0)
        is_last = number == settings.epochs
        evaluates = is_last or number % settings.evaluate_every == 0
        self._optimizer.step()
        self.epoch = number
        if evaluates:
            figures |= self._right_answers(held)
        figures["loss"] = float(loss.detach())
        figures["stop"] = float(run.should_stop())
        seconds = time.perf_counter() - began
        figures["waited_seconds"] = held.routes.waiting.seconds - waited
        figures["busy_seconds"] = seconds - figures["waited_seconds"]
        figures["sent_bytes"] = float(held.routes.waiting.sent_bytes - sent)
        of_ranks = self._of_all_ranks([figures[name] for name in _FIGURES])
        sums = dict(zip(_FIGURES, of_ranks.sum(dim=0).tolist(), strict=True))
        self.epoch_seconds = time.perf_counter() - began
        if not isfinite(sums["loss"]):
            raise TrainingError(f"the loss of epoch {number} is {sums['loss']}: lower learning_rate or check features")
        if evaluates:
            self._judge(sums)
        column = {name: tuple(of_ranks[:, place].tolist()) for place, name in enumerate(_FIGURES)}
        report = EpochReport(
            epoch=number,
            loss=sums["loss"],
            seconds=self.epoch_seconds,
            busy_seconds=column["busy_seconds"],
            waited_seconds=column["waited_seconds"],
            sent_bytes=int(sums["sent_bytes"]),
            accuracy=dict(self._accuracy) if evaluates else None,
        )
        return report, sums["stop"] > 0.0

    def _add_up_gradients(self) -> None:
        if self._run.presence.count == 1:
            return
        gradients = [one.grad for one in self._model.parameters() if one.grad is not None]
        flat = torch.cat([one.reshape(-1) for one in gradients])
        with talking():
            distributed.all_reduce(flat)
        pieces = torch.split(flat, [one.numel() for one in gradients])
        for gradient, piece in zip(gradients, pieces, strict=True):
            gradient.copy_(piece.view_as(gradient))

    @torch.no_grad()
    def _right_answers(self, held: _Held) -> dict[str, float]:
        self._model.eval()
        found = forward(self._model, held.features, held.evaluate, self._run.layers).argmax(dim=-1) == held.labels
        right = [float((found & held.masks[name]).sum()) for name in MASKS]
        return dict(zip(_JUDGED, [*right, *(float(held.masks[name].sum()) for name in MASKS)], strict=True))

    def _judge(self, sums: Mapping[str, float]) -> None:
        self._accuracy = {name: sums[f"right_{name}"] / max(1.0, sums[f"count_{name}"]) for name in MASKS}
        if self._accuracy["val_mask"] > self._best[1]:
            self._best = (self.epoch, self._accuracy["val_mask"], self._accuracy["test_mask"])

    def _of_all_ranks(self, figures: list[float]) -> Tensor:
        own = torch.tensor(figures, dtype=torch.float64)
        found = torch.empty((self._run.presence.count, len(own)), dtype=torch.float64)
        if self._run.presence.count == 1:
            return own[None]
        with talking():
            distributed.all_gather(list(found.unbind()), own)
        return found

    def _reallocated(self, report: EpochReport) -> bool:
        """Ask rank 0 where parts are to be from now on; return whether that is another place."""
        run = self._run
        if run.presence.count == 1:
            return False
        other = run.reallocate(report, self._rank_of_part) if run.presence.number == 0 else None
        places = torch.tensor(other or self._rank_of_part)
        with talking():
            distributed.broadcast(places, src=0)
        found = tuple(places.tolist())
        moved = found != self._rank_of_part
        self._rank_of_part = found
        return moved

    def write(self) -> None:
        """Write the checkpoint of the last complete epoch."""
        write_checkpoint(
            self._run.folder / CHECKPOINT_FILE,
            self._model,
            self._optimizer,
            TrainingCheckpoint(
                epoch=self.epoch, settings=self._settings.of_model(), best=self._best, graph=self._of_graph()
            ),
        )

    def _check_equal_epochs(self) -> None:
        epochs = self._of_all_ranks([float(self.epoch)])[:, 0].tolist()
        other = next((rank for rank, epoch in enumerate(epochs) if epoch != epochs[0]), None)
        if other is not None:
            raise TrainingError(
                f"rank 0 resumes from epoch {epochs[0]:.0f} and rank {other} from epoch {epochs[other]:.0f}: "
                f"{self._run.folder} must be one folder that every node sees as it is"
            )

    def _of_graph(self) -> str:
        sizes = self._sizes
        return json.dumps([sizes.vertex_offsets[-1], sizes.edge_offsets[-1], sizes.num_features, sizes.num_classes])

    def _resume(self) -> None:
        path = self._run.folder / CHECKPOINT_FILE
        found = read_checkpoint(path, self._model, self._optimizer)
        wanted = self._settings.of_model()
        for name, value in wanted.items():
            if found.settings.get(name) != value:
                raise ConfigError(f"{path} was trained with {name} {found.settings.get(name)}, not {value}")
        if found.graph != self._of_graph():
            raise ConfigError(
                f"{path} is of a graph with [vertices, edges, features, classes] {found.graph}, not {self._of_graph()}"
            )
        self.epoch, self._best = found.epoch, found.best
