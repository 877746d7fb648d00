"""Two small neural networks as GOGH has them: one for the first estimate, one that corrects it by a measurement."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from research.estimates.baselines import Entry, RateFeatures
from research.estimates.data import GAVEL_SHEETS
from slurm_energy.estimation.gaussian_process import FloatArray
from slurm_energy.estimation.rates import MeasuredRate, fit_rates

_HIDDEN, _STEPS, _MEMBERS = 32, 200, 1
_DECAY, _RATE = 1e-2, 1e-2


def first_estimate(measured: Sequence[MeasuredRate], wanted: Sequence[Entry]) -> FloatArray:
    """Return what a network says of each entry, from what boosted trees get: job, data sheet, rates elsewhere."""
    shown, asked, target = _tables(measured, wanted)
    return _trained_and_asked(shown, target, [asked])[0]


def corrected_estimate(measured: Sequence[MeasuredRate], wanted: Sequence[Entry]) -> FloatArray:
    """Return the first estimate corrected by a second network from what each job was measured to do elsewhere.

    The first network is asked what it says without any rate of the job; the second learns from pairs of entries of one
    job how far a miss at one entry tells the miss at another.
    """
    entries = [(row.work, row.place) for row in measured]
    features = RateFeatures(measured, own_rates=False)
    shown, asked = _filled(features.matrix(entries)), _filled(features.matrix(wanted))
    target = np.log([row.value for row in measured])
    said_shown, said_asked = _trained_and_asked(shown, target, [shown, asked])
    miss = target - said_shown
    by_name: dict[str, list[int]] = {}
    for index, row in enumerate(measured):
        by_name.setdefault(row.work.name, []).append(index)
    pairs = [(i, j) for rows in by_name.values() for i in rows for j in rows if i != j]
    chosen = np.random.default_rng(0).permutation(len(pairs))[:3_000]
    sources, targets = np.array([pairs[index] for index in chosen]).T
    inputs = np.hstack([miss[sources, None], shown[sources], shown[targets]])
    questions, owners = [], []
    for index, (work, _) in enumerate(wanted):
        for source in by_name.get(work.name, ())[:8]:
            questions.append(np.concatenate([[miss[source]], shown[source], asked[index]]))
            owners.append(index)
    if not questions:
        return said_asked
    (corrections,) = _trained_and_asked(inputs, miss[targets], [np.array(questions)])
    total, number = np.zeros(len(wanted)), np.zeros(len(wanted))
    np.add.at(total, owners, corrections)
    np.add.at(number, owners, 1.0)
    return said_asked + total / np.maximum(number, 1.0)


def combined_estimate(measured: Sequence[MeasuredRate], wanted: Sequence[Entry]) -> FloatArray:
    """Return the mean of the Gaussian process and the two networks: they err in different ways."""
    process = np.array([one.log_middle for one in fit_rates(measured, GAVEL_SHEETS).estimates(wanted)])
    return 0.5 * (process + corrected_estimate(measured, wanted))


def _tables(measured: Sequence[MeasuredRate], wanted: Sequence[Entry]) -> tuple[FloatArray, FloatArray, FloatArray]:
    features = RateFeatures(measured)
    shown = features.matrix([(row.work, row.place) for row in measured])
    return _filled(shown), _filled(features.matrix(wanted)), np.log([row.value for row in measured])


def _filled(table: FloatArray) -> FloatArray:
    """Return numbers with 0 for what is not known, and which are known, side by side."""
    known = np.isfinite(table)
    return np.hstack([np.where(known, table, 0.0), known.astype(np.float64)])


def _trained_and_asked(inputs: FloatArray, target: FloatArray, asked: Sequence[FloatArray]) -> list[FloatArray]:
    """Return what some networks, trained alike from different starts, say in the mean."""
    mean, spread = inputs.mean(axis=0), inputs.std(axis=0) + 1e-3
    middle, width = float(target.mean()), float(target.std()) + 1e-6
    shown = torch.tensor((inputs - mean) / spread, dtype=torch.float32)
    goal = torch.tensor((target - middle) / width, dtype=torch.float32)
    tables = [torch.tensor(np.clip((one - mean) / spread, -5.0, 5.0), dtype=torch.float32) for one in asked]
    said = [np.zeros(len(one)) for one in asked]
    for member in range(_MEMBERS):
        torch.manual_seed(member)
        network = _network(inputs.shape[1])
        optimiser = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=_DECAY)
        for _ in range(_STEPS):
            optimiser.zero_grad()
            loss: Tensor = nn.functional.smooth_l1_loss(network(shown)[:, 0], goal, beta=0.3)
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            optimiser.step()
        with torch.no_grad():
            for index, table in enumerate(tables):
                said[index] += network(table)[:, 0].numpy().astype(np.float64) / _MEMBERS
    return [middle + width * one for one in said]


def _network(inputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for one, other in pairwise((inputs, _HIDDEN, _HIDDEN)):
        layers += [nn.Linear(one, other), nn.SiLU()]
    return nn.Sequential(*layers, nn.Linear(_HIDDEN, 1))
