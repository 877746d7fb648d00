"""The network of option outcomes, its training on randomised sites, and the file that is shipped.

    python -m slurm_energy.learning.outcomes.training --write slurm_energy/policy/gnn/outcomes/outcomes.safetensors

The network is torch-geometric's; `policy.gnn.outcomes.inference` gives its formula. Quantiles by the pinball loss, in
slowdown and in the logarithm of energy, weighed by the root of a job's joules; run times that a limit cut off count as
at least as long. Expected values by squared errors. One seed gives one file on one version of torch.
"""

import argparse
import hashlib
import logging
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATv2Conv, MeanAggregation

from slurm_energy.files import write_atomically
from slurm_energy.learning.outcomes.sites import DrawnSite, random_site
from slurm_energy.policy.gnn.outcomes.graph import (
    CLOCK_WIDTH,
    EDGE_WIDTH,
    KNOTS,
    OPTION_WIDTH,
    RUN_WIDTH,
    TYPE_WIDTH,
    FloatArray,
    OptionGraph,
    RunGraph,
    clock_columns,
    option_graph,
    run_graph,
)
from slurm_energy.policy.gnn.outcomes.inference import CLOCK_OUTPUTS, HEADS, HIDDEN, SHIPPED, TIME_OUTPUTS, weights_file

logger = logging.getLogger(__name__)

UPPER = 0.9
"""Quantile of slowdown that a bound is held against."""
ENERGY_QUANTILES, TIME_QUANTILES = (0.1, 0.5, 0.9), (0.1, 0.5, 0.9)
TRAINED_SITES, FIRST_TRAINED, FIRST_HELD_OUT = 700, 5_000_000, 6_000_000
_BATCH, _RATE, _TIME_WEIGHT = 8, 3e-3, 0.05


def site_graph(site: DrawnSite) -> HeteroData:
    """Return a site as one graph with its targets; sites can be put together by torch-geometric's loader."""
    graph = run_graph(site.runs, site.facts, site.now_seconds)
    data = graph_data(graph, option_graph(graph, [one.ask for one in site.asked]))
    types, option = len(graph.types), data["option"]
    option.share = torch.tensor([row for one in site.asked for row in one.share], dtype=torch.float32)
    option.exponent = torch.tensor([row for one in site.asked for row in one.exponent], dtype=torch.float32)
    joules = np.array([one.joules for one in site.asked])
    weight = np.sqrt(np.clip(joules / max(1e-9, float(np.median(joules))), 0.01, 100.0)) if len(joules) else joules
    option.weight = torch.tensor(np.repeat(weight, types), dtype=torch.float32)
    ran = np.zeros((len(site.asked), types), dtype=bool)
    ran[np.arange(len(site.asked)), [one.gpu_type for one in site.asked]] = True
    option.ran = torch.tensor(ran.reshape(-1))
    hours = np.log(np.maximum([one.hours for one in site.asked], 1e-4))
    option.log_hours = torch.tensor(np.repeat(hours, types), dtype=torch.float32)
    option.cut_off = torch.tensor(np.repeat([one.cut_off for one in site.asked], types))
    splits = {"time": 0, "name": 1, "user": 2}
    option.split = torch.tensor(np.repeat([splits[one.split] for one in site.asked], types))
    return data


def graph_data(graph: RunGraph, options: OptionGraph) -> HeteroData:
    """Return arrays as torch-geometric has them; what belongs to nothing has no edge."""
    data = HeteroData()
    data["gpu_type"].x = torch.tensor(graph.type_x)
    data["run"].x = torch.tensor(graph.run_x)
    data["name"].num_nodes = len(graph.names)
    data["user"].num_nodes = len(graph.users)
    data["family"].num_nodes = len(graph.families)
    data["site"].num_nodes = 1
    data["option"].x = torch.tensor(options.option_x)
    runs, names = np.arange(len(graph.run_x)), np.arange(len(graph.names))
    _join(data, "run", "gpu_type", runs, graph.run_type)
    _join(data, "run", "name", runs, graph.run_name)
    _join(data, "name", "user", names, graph.name_user)
    _join(data, "name", "family", names, graph.name_family)
    _join(data, "user", "site", np.arange(len(graph.users)), np.zeros(len(graph.users), dtype=np.int64))
    every = np.arange(len(options.option_x))
    _join(data, "user", "option", options.option_user, every)
    _join(data, "family", "option", options.option_family, every)
    _join(data, "site", "option", np.zeros(len(every), dtype=np.int64), every)
    _join(data, "run", "option", *options.run_option)
    data["run", "to", "option"].edge_attr = torch.tensor(options.edge_x)
    return data


def _join(data: HeteroData, source: str, target: str, begin: NDArray[Any], end: NDArray[Any]) -> None:
    kept = (np.asarray(begin) >= 0) & (np.asarray(end) >= 0)
    data[source, "to", target].edge_index = torch.tensor(np.stack([begin, end])[:, kept], dtype=torch.long)


class OutcomeModel(nn.Module):
    """Outcomes of options from measurements (attention) and, if hierarchical, from user, script and site (pooling)."""

    def __init__(self, *, hierarchical: bool = True, measured: bool = True) -> None:
        super().__init__()
        self.hierarchical, self.has_measurements = hierarchical, measured
        self.run = nn.Linear(RUN_WIDTH + TYPE_WIDTH, HIDDEN)
        self.name, self.user, self.family, self.site = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.option = nn.Linear(OPTION_WIDTH, HIDDEN)
        self.from_user, self.from_family, self.from_site = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(3))
        self.measured = GATv2Conv(
            (HIDDEN, OPTION_WIDTH), HIDDEN // HEADS, heads=HEADS, edge_dim=EDGE_WIDTH, add_self_loops=False
        )
        self.clock_in, self.clock_out = nn.Linear(HIDDEN + CLOCK_WIDTH, HIDDEN), nn.Linear(HIDDEN, CLOCK_OUTPUTS)
        self.time_in, self.time_out = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, TIME_OUTPUTS)
        self.mean = MeanAggregation()
        self.register_buffer("clocks", torch.tensor(clock_columns()), persistent=False)

    def forward(self, data: HeteroData) -> tuple[Tensor, Tensor]:
        """Return shaped outputs: clocks [options, knots, CLOCK_OUTPUTS] and times [options, TIME_OUTPUTS]."""
        run_type = data["run", "to", "gpu_type"].edge_index[1]
        run = torch.relu(self.run(torch.cat([data["run"].x, data["gpu_type"].x[run_type]], dim=1)))
        o = self.option(data["option"].x)
        if self.hierarchical:
            name = torch.relu(self.name(self._pooled(run, data, "run", "name")))
            user = torch.relu(self.user(self._pooled(name, data, "name", "user")))
            family = torch.relu(self.family(self._pooled(name, data, "name", "family")))
            site = torch.relu(self.site(self._pooled(user, data, "user", "site")))
            o = o + self._given(self.from_user(user), data, "user")
            o = o + self._given(self.from_family(family), data, "family")
            o = o + self._given(self.from_site(site), data, "site")
        if self.has_measurements:
            edges = data["run", "to", "option"]
            o = o + self.measured((run, data["option"].x), edges.edge_index, edges.edge_attr)
        o = torch.relu(o)  # [options, HIDDEN]
        wide = torch.cat(
            [
                o[:, None].expand(-1, len(KNOTS), -1),
                self.clocks.expand(len(o), -1, -1),  # type: ignore[operator]  # a buffer is a tensor
            ],
            dim=2,
        )
        clock = shaped_clock(self.clock_out(torch.relu(self.clock_in(wide))))
        return clock, shaped_time(self.time_out(torch.relu(self.time_in(o))))

    def _pooled(self, x: Tensor, data: HeteroData, source: str, target: str) -> Tensor:
        begin, end = data[source, "to", target].edge_index
        order = torch.argsort(end, stable=True)
        pooled: Tensor = self.mean(x[begin[order]], end[order], dim_size=data[target].num_nodes)
        return pooled

    @staticmethod
    def _given(x: Tensor, data: HeteroData, source: str) -> Tensor:
        begin, end = data[source, "to", "option"].edge_index
        return x.new_zeros(len(data["option"].x), HIDDEN).index_add(0, end, x[begin])

    def arrays(self) -> dict[str, FloatArray]:
        """Return the weights as they are exported."""
        return {name: value.detach().cpu().numpy().astype(np.float32) for name, value in self.state_dict().items()}


def shaped_clock(raw: Tensor) -> Tensor:
    """See `inference.shaped_clock`."""
    share = torch.sigmoid(raw[..., :2])
    upper = share[..., 1:] + (1.0 - share[..., 1:]) * torch.sigmoid(raw[..., 2:3])
    mean = -1.0 + 4.0 * torch.sigmoid(raw[..., 3:4])
    low = -1.0 + 4.0 * torch.sigmoid(raw[..., 4:5])
    middle = low + (3.0 - low) * torch.sigmoid(raw[..., 5:6])
    high = middle + (3.0 - middle) * torch.sigmoid(raw[..., 6:7])
    return torch.cat([share, upper, mean, low, middle, high], dim=-1)


def shaped_time(raw: Tensor) -> Tensor:
    """See `inference.shaped_time`."""
    middle = 3.0 * raw[..., 1:2]
    softplus = nn.functional.softplus
    return torch.cat([middle - 3.0 * softplus(raw[..., 0:1]), middle, middle + 3.0 * softplus(raw[..., 2:3])], dim=-1)


def pinball(error: Tensor, quantile: float) -> Tensor:
    """Return the loss of a quantile; error: target less prediction."""
    return torch.maximum(quantile * error, (quantile - 1.0) * error)


def outcome_loss(data: HeteroData, clock: Tensor, time: Tensor) -> Tensor:
    """Return the mean loss over options, weighed by joules."""
    option = data["option"]
    clocks = torch.tensor(KNOTS)
    longer, fall = 1.0 / clocks - 1.0, -torch.log(clocks)
    share = (option.share[..., None] - clock[..., :3]) * longer[:, None]
    energy = (option.exponent[..., None] - clock[..., 3:]) * fall[:, None]
    loss = 5.0 * share[..., 0] ** 2 + pinball(share[..., 1], 0.5) + pinball(share[..., 2], UPPER)
    loss = loss + 5.0 * energy[..., 0] ** 2
    for column, quantile in enumerate(ENERGY_QUANTILES, 1):
        loss = loss + pinball(energy[..., column], quantile)
    weight = option.weight / option.weight.mean()
    total: Tensor = (loss.mean(dim=1) * weight).mean()
    miss = option.log_hours[option.ran][:, None] - time[option.ran]
    # A run that was cut off took at least so long: a prediction above that is no error.
    miss = torch.where(option.cut_off[option.ran][:, None], miss.clamp(min=0.0), miss)
    times = sum((pinball(miss[:, column], one) for column, one in enumerate(TIME_QUANTILES)), torch.zeros(len(miss)))
    return torch.add(total, times.mean(), alpha=_TIME_WEIGHT)


def sites(first: int, count: int) -> list[HeteroData]:
    """Return the graphs of some sites that have jobs to ask for."""
    found = (random_site(seed) for seed in range(first, first + count))
    return [site_graph(site) for site in found if site.asked]


def trained(
    graphs: Sequence[HeteroData], *, rounds: int, seed: int = 0, hierarchical: bool = True, measured: bool = True
) -> OutcomeModel:
    """Return a network that was trained on some sites."""
    torch.manual_seed(seed)
    model = OutcomeModel(hierarchical=hierarchical, measured=measured)
    optimiser = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=1e-4)
    loader = DataLoader(graphs, batch_size=_BATCH, shuffle=True)
    steps = rounds * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=_RATE, total_steps=max(1, steps))
    for number in range(rounds):
        losses = []
        for batch in loader:
            optimiser.zero_grad()
            loss = outcome_loss(batch, *model(batch))
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            losses.append(float(loss.detach()))
        logger.info("round of training round=%d loss=%.5f", number, sum(losses) / max(1, len(losses)))
    return model.eval()


def main(arguments: Iterable[str] | None = None) -> int:
    """Train, and write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--write", type=Path, default=SHIPPED, help="file to write (default: the shipped one)")
    parser.add_argument("--sites", type=int, default=TRAINED_SITES, help="randomised sites (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=25, help="passes over all of them (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(None if arguments is None else list(arguments))
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    model = trained(sites(FIRST_TRAINED, given.sites), rounds=given.rounds, seed=given.seed)
    weights = model.arrays()
    digest = hashlib.sha256(b"".join(weights[name].tobytes() for name in sorted(weights))).hexdigest()
    about = {
        "version": digest[:12],
        "made_by": f"python -m slurm_energy.learning.outcomes.training --sites {given.sites} "
        f"--rounds {given.rounds} --seed {given.seed}",
        "sites": f"random_site({FIRST_TRAINED}) to random_site({FIRST_TRAINED + given.sites - 1})",
        "torch": torch.__version__,
        "weights_sha256": digest,
    }
    write_atomically(given.write, weights_file(weights, about), mode=0o644)
    sys.stdout.write(f"{given.write}: version {digest[:12]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
