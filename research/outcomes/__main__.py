"""Measure predictions of clock outcomes and run times on randomised sites that no training saw.

    python -m research.outcomes [--sites 150] [--write docs/explanation/outcomes.md]
    python -m research.outcomes --reached [--write docs/explanation/outcomes.md]

Each site has jobs of three splits: names with runs (later in time), names without, and users without. Slowdown and
energy are judged at six clocks on every GPU type of the site, each job by the root of its joules.
With --reached it is energy and slowdown in the simulated cluster: runs are kept in
docs/reference/results/outcomes.json, and those that it has are not done again.
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from torch import nn
from torch_geometric.data import HeteroData
from torch_geometric.loader import DataLoader

from research.outcomes.reached import reached_table, run_missing
from slurm_energy.estimation.run_time import EndedRun, RunTimes
from slurm_energy.learning.outcomes.sites import DrawnSite, random_site
from slurm_energy.learning.outcomes.training import (
    FIRST_HELD_OUT,
    FIRST_TRAINED,
    UPPER,
    OutcomeModel,
    site_graph,
    trained,
)
from slurm_energy.policy.gnn.outcomes.graph import KNOTS, clock_columns
from slurm_energy.policy.gnn.outcomes.inference import loaded_network

Array = NDArray[np.float64]
SPLITS = ("time", "name", "user")
MARK = "<!-- outcomes -->"
REACHED_MARK = "<!-- reached -->"
_LONGER = 1.0 / np.array(KNOTS) - 1.0
_FALL = -np.log(np.array(KNOTS))


class Predicted(NamedTuple):
    """Of options at the knots, [options, knots]."""

    share: Array
    upper: Array
    exponent: Array


class Truth(NamedTuple):
    """What came of the options of some sites, and how much each counts."""

    share: Array
    exponent: Array
    weight: Array
    split: NDArray[np.int64]


def truth_of(graphs: Sequence[HeteroData]) -> Truth:
    """Return the targets of graphs."""
    options = [graph["option"] for graph in graphs]
    return Truth(
        share=np.vstack([one.share.numpy() for one in options]).astype(np.float64),
        exponent=np.vstack([one.exponent.numpy() for one in options]).astype(np.float64),
        weight=np.concatenate([one.weight.numpy() / float(one.weight.mean()) for one in options]).astype(np.float64),
        split=np.concatenate([one.split.numpy() for one in options]),
    )


def by_network(model: OutcomeModel, graphs: Sequence[HeteroData]) -> Predicted:
    """Return what a network says."""
    with torch.no_grad():
        found = [model(batch)[0].numpy() for batch in DataLoader(list(graphs), batch_size=8)]
    clock = np.vstack(found).astype(np.float64)
    return Predicted(clock[..., 0], clock[..., 2], clock[..., 3])


def flat_features(graph: HeteroData) -> Array:
    """Return what is known of options as one row each: type, counts, and means of own, alike and all measurements."""
    option, run = graph["option"], graph["run"].x.numpy()
    edges = graph["run", "to", "option"]
    source, target = edges.edge_index.numpy()
    flags = edges.edge_attr.numpy()
    kinds = [
        (flags[:, 0] > 0) & (flags[:, 1] > 0),
        flags[:, 1] > 0,
        flags[:, 2] > 0,
        flags[:, 3] > 0,
    ]
    columns = [option.x.numpy()]
    for kept in kinds:
        total = np.zeros((len(option.x), run.shape[1] + 1))
        np.add.at(total, target[kept], np.hstack([run[source[kept]], np.ones((int(kept.sum()), 1))]))
        number = total[:, -1:]
        columns += [np.where(number > 0, total[:, :-1] / np.maximum(number, 1.0), np.nan), number]
    site = run.mean(axis=0) if len(run) else np.zeros(run.shape[1])
    columns.append(np.tile(site, (len(option.x), 1)))
    return np.hstack(columns).astype(np.float64)


def _rows(graphs: Sequence[HeteroData]) -> Array:
    """Return flat features with a knot's columns, [options * knots, columns]."""
    flat = np.vstack([flat_features(graph) for graph in graphs])
    clocks = clock_columns()
    return np.hstack([np.repeat(flat, len(clocks), axis=0), np.tile(clocks, (len(flat), 1))])


def by_boosting(train: Sequence[HeteroData], test: Sequence[HeteroData]) -> Predicted:
    """Return what boosted trees say."""
    rows, wanted, truth = _rows(train), _rows(test), truth_of(train)
    weight = np.repeat(truth.weight, len(KNOTS))

    def said(target: Array, quantile: float | None) -> Array:
        loss = "squared_error" if quantile is None else "quantile"
        model = HistGradientBoostingRegressor(loss=loss, quantile=quantile, max_iter=80, random_state=0)
        model.fit(rows, target.reshape(-1), sample_weight=weight)
        found: Array = model.predict(wanted).reshape(-1, len(KNOTS))
        return found

    share = np.clip(said(truth.share, None), 0.0, 1.0)
    return Predicted(share, np.clip(said(truth.share, UPPER), 0.0, 1.0), said(truth.exponent, None))


def by_flat_network(train: Sequence[HeteroData], test: Sequence[HeteroData]) -> Predicted:
    """Return what a network without a graph says, from what the trees get."""
    rows, wanted, truth = _rows(train), _rows(test), truth_of(train)
    middle, width = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0) + 1e-3

    def table(values: Array) -> torch.Tensor:
        scaled = np.clip((values - middle) / width, -5.0, 5.0)
        known = np.isfinite(scaled)
        return torch.tensor(np.hstack([np.where(known, scaled, 0.0), known]), dtype=torch.float32)

    shown, asked = table(rows), table(wanted)
    share = torch.tensor(truth.share.reshape(-1), dtype=torch.float32)
    exponent = torch.tensor(truth.exponent.reshape(-1), dtype=torch.float32)
    weight = torch.tensor(np.repeat(truth.weight, len(KNOTS)), dtype=torch.float32)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(shown.shape[1], 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)
    for _ in range(6):
        for part in torch.split(torch.randperm(len(shown)), 1024):
            said = model(shown[part])
            above = share[part] - said[:, 1]
            loss = (said[:, 0] - share[part]) ** 2 + torch.maximum(UPPER * above, (UPPER - 1.0) * above)
            loss = loss + (said[:, 2] - exponent[part]) ** 2
            optimiser.zero_grad()
            (loss * weight[part]).mean().backward()
            optimiser.step()
    with torch.no_grad():
        found = model(asked).numpy().astype(np.float64).reshape(-1, len(KNOTS), 3)
    return Predicted(np.clip(found[..., 0], 0.0, 1.0), np.clip(found[..., 1], 0.0, 1.0), found[..., 2])


def by_means(train: Sequence[HeteroData], test: Sequence[HeteroData]) -> Predicted:
    """Return one table for all work: means over what was trained on, and the quantile of slowdown."""
    truth, options = truth_of(train), sum(len(graph["option"].x) for graph in test)
    share, exponent = (np.average(one, axis=0, weights=truth.weight) for one in (truth.share, truth.exponent))
    upper = np.quantile(truth.share, UPPER, axis=0)
    return Predicted(*(np.tile(one, (options, 1)) for one in (share, upper, exponent)))


def by_trials(train: Sequence[HeteroData], test: Sequence[HeteroData]) -> Predicted:
    """Return the mean table, and for names whose clocks were tried on the type, what that measured, in proportion."""
    table = by_means(train, test)
    share, upper = table.share.copy(), table.upper.copy()
    begin = 0
    for graph in test:
        edges, run = graph["run", "to", "option"], graph["run"].x.numpy()
        source, target = edges.edge_index.numpy()
        flags = edges.edge_attr.numpy()
        tried = (flags[:, 0] > 0) & (flags[:, 1] > 0) & (run[source, 4] > 0)
        for option in np.unique(target[tried]):
            rows = run[source[tried & (target == option)]]
            share[begin + option] = np.clip(rows[:, 6].mean(), 0.0, 1.0)
            upper[begin + option] = np.clip((rows[:, 6] + 1.5 * rows[:, 7]).max(), 0.0, 1.0)
        begin += len(graph["option"].x)
    return Predicted(share, upper, table.exponent)


def worst_of_all(train: Sequence[HeteroData], test: Sequence[HeteroData]) -> Predicted:
    """Return the slowdown of work that the clock alone paces, with mean energy."""
    table = by_means(train, test)
    return Predicted(np.ones_like(table.share), np.ones_like(table.share), table.exponent)


class Score(NamedTuple):
    """How far predictions were off, over options and knots."""

    slowdown_points: float
    """Mean absolute error of expected slowdown, in points."""
    upper_loss: float
    """Pinball loss of the upper quantile, in points."""
    covered: float
    """Share of slowdowns at most the upper quantile, %."""
    energy_points: float
    """Mean absolute error of the energy change, in points."""
    lost_points: float
    """Energy that a clock chosen by it, inside a bound of 5 % of the upper quantile, takes more than the best one."""
    beyond: float
    """Share of chosen clocks that break the bound, %."""


def score(predicted: Predicted, truth: Truth, split: int) -> Score:
    """Return the score on one split."""
    kept = truth.split == split
    weight = truth.weight[kept]

    def mean(values: Array) -> float:
        return float(np.average(values if values.ndim == 1 else values.mean(axis=1), weights=weight))

    share, upper, exponent = (one[kept] for one in predicted)
    slowdown, energy = truth.share[kept] * _LONGER, np.exp(-truth.exponent[kept] * _FALL)
    above = slowdown - upper * _LONGER
    said_energy = np.exp(-exponent * _FALL)
    inside = upper * _LONGER <= 0.05
    allowed = np.where(inside, said_energy, np.inf)
    ones = np.ones((len(allowed), 1))
    chosen = np.argmin(np.hstack([allowed, ones]), axis=1)
    real_energy, real_slowdown = np.hstack([energy, ones]), np.hstack([slowdown, 0.0 * ones])
    best = np.where(real_slowdown <= 0.05, real_energy, np.inf).min(axis=1)
    at = np.arange(len(chosen))
    return Score(
        slowdown_points=100.0 * mean(np.abs(share * _LONGER - slowdown)),
        upper_loss=100.0 * mean(np.maximum(UPPER * above, (UPPER - 1.0) * above)),
        covered=100.0 * mean((above <= 1e-6).astype(np.float64)),
        energy_points=100.0 * mean(np.abs(said_energy - energy)),
        lost_points=100.0 * mean(real_energy[at, chosen] - best),
        beyond=100.0 * mean((real_slowdown[at, chosen] > 0.055).astype(np.float64)),
    )


def run_time_losses(sites: Sequence[DrawnSite], model: OutcomeModel) -> list[tuple[str, float, float]]:
    """Return by split how far the middle of the run time is off in the logarithm: the network's, and what is served."""
    misses: dict[str, list[tuple[float, float]]] = {split: [] for split in SPLITS}
    for site in sites:
        times = RunTimes()
        for run in sorted(site.runs, key=lambda one: one.ended_at_seconds):
            if run.relative_clock == 1.0:
                times.add(
                    EndedRun(user=run.user, name=run.group, seconds=run.seconds, limit_seconds=None, cut_off=False)
                )
        with torch.no_grad():
            hours = model(site_graph(site))[1].numpy()
        types = len(site.facts)
        for number, one in enumerate(site.asked):
            if one.cut_off:
                continue
            limit = 3600.0 * one.limit_hours if np.isfinite(one.limit_hours) else None
            seconds = times.estimate(one.ask.user, one.ask.group, limit).seconds
            true = float(np.log(max(one.hours, 1e-4)))
            served = abs(float(np.log(max(seconds, 1.0) / 3600.0)) - true)
            misses[one.split].append((abs(float(hours[number * types + one.gpu_type, 1]) - true), served))
    means = [(split, np.mean(rows, axis=0)) for split, rows in misses.items() if rows]
    return [(split, float(mean[0]), float(mean[1])) for split, mean in means]


def tables(sites: int, trained_sites: int, rounds: int) -> str:
    """Return the tables as text."""
    held_out = [one for one in map(random_site, range(FIRST_HELD_OUT, FIRST_HELD_OUT + sites)) if one.asked]
    test = [site_graph(site) for site in held_out]
    train = [
        site_graph(one) for one in map(random_site, range(FIRST_TRAINED, FIRST_TRAINED + trained_sites)) if one.asked
    ]
    shipped = OutcomeModel()
    shipped.load_state_dict({name: torch.tensor(value.copy()) for name, value in loaded_network().weights.items()})
    estimators: dict[str, Callable[[], Predicted]] = {
        "**graph network (shipped)**": lambda: by_network(shipped.eval(), test),
        "the same trained as the next": lambda: by_network(trained(train, rounds=rounds), test),
        "without pooling to user, script, site": lambda: by_network(
            trained(train, rounds=rounds, hierarchical=False), test
        ),
        "pooling without measured edges": lambda: by_network(trained(train, rounds=rounds, measured=False), test),
        "boosted trees, flat features": lambda: by_boosting(train, test),
        "flat network": lambda: by_flat_network(train, test),
        "clocks learned by name, else means": lambda: by_trials(train, test),
        "mean table": lambda: by_means(train, test),
        "worst of all": lambda: worst_of_all(train, test),
    }
    truth = truth_of(test)
    lines = [
        "| split | estimator | slowdown | upper quantile's loss | covered, % | energy | energy lost | beyond, % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    found = {name: make() for name, make in estimators.items()}
    for number, split in enumerate(SPLITS):
        for name, predicted in found.items():
            one = score(predicted, truth, number)
            lines.append(
                f"| {split} | {name} | {one.slowdown_points:.2f} | {one.upper_loss:.2f} | {one.covered:.0f} | "
                f"{one.energy_points:.2f} | {one.lost_points:.2f} | {one.beyond:.1f} |"
            )
    lines += ["", "| split | run time, network | run time, by name, user and limit |", "|---|---|---|"]
    lines += [f"| {split} | {ours:.2f} | {served:.2f} |" for split, ours, served in run_time_losses(held_out, shipped)]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; with --write put them into a page between its marks."""
    parser = argparse.ArgumentParser(prog="python -m research.outcomes", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--sites", type=int, default=150, help="held-out sites (default %(default)s)")
    parser.add_argument("--trained-sites", type=int, default=300, help="sites of the others (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="passes of the compared networks (default %(default)s)")
    parser.add_argument("--write", type=Path, metavar="PAGE")
    parser.add_argument("--reached", action="store_true", help="the simulated cluster instead of held-out sites")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    mark = REACHED_MARK if given.reached else MARK
    if given.reached:
        text = "\n".join(reached_table(run_missing()))
    else:
        text = tables(given.sites, given.trained_sites, given.rounds)
    sys.stdout.write(text + "\n")
    if given.write is not None:
        page = given.write.read_text(encoding="utf-8")
        parts = re.split(re.escape(mark), page)
        given.write.write_text(f"{parts[0]}{mark}\n{text}\n{mark}{parts[-1]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
