"""Fits the scales of a kernel to measurements: the largest marginal likelihood, with a prior about where it begins."""

from math import log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from research.estimates.data import (
    GAVEL_SHEETS,
    ZEUS_SHEETS,
    read_elasticflow,
    read_neighbours,
    read_pollux,
    read_rates,
    read_zeus,
)
from research.estimates.kernels import NEIGHBOURS, POWER, RATES, SCALING, starting_kernel
from slurm_energy.estimation.gaussian_process import Columns, Factor, FloatArray, Kernel, Term, kernel_document
from slurm_energy.estimation.rates import Codes, neighbour_columns, rate_columns
from slurm_energy.estimation.scaling import log_losses, scaling_columns

SOURCE = (
    "scales by marginal likelihood: rates and neighbours on Gavel, OSDI 2020, "
    "stanford-futuredata/gavel c4fa4009 (MIT); "
    "scaling on ElasticFlow, ASPLOS 2023, pkusys/ElasticFlow 04a0109a (Apache-2.0), and Pollux, OSDI 2021, "
    "petuum/adaptdl c793c708 (Apache-2.0); power on Zeus, NSDI 2023, ml-energy/zeus 75a8b939 (Apache-2.0)"
)

_PRIOR_SPREAD = 1.5
"""Standard deviation of a logarithm of a scale about its start."""
_MIN_NOISE = 0.02


def fit_kernel(
    start: Kernel, columns: Columns, values: FloatArray, rounds: int = 25, extra_variance: FloatArray | None = None
) -> Kernel:
    """Return the kernel with other scales, lengths and noise.

    Args:
        start: Terms, and the scales that the prior is about.
        columns: Of the measured entries.
        values: Measured, as logarithms.
        rounds: Of L-BFGS, at most.
        extra_variance: Of single measurements, beside the noise.
    """
    factors = list(dict.fromkeys(factor for term in start.terms for factor in term.factors))
    near = [factor for factor in factors if factor.kind == "near"]
    bases = {factor: torch.from_numpy(factor.base(columns, columns)) for factor in factors}
    target = torch.from_numpy(values - values.mean())
    first = torch.tensor(
        [log(term.scale) for term in start.terms] + [log(start.noise)] + [log(factor.length) for factor in near],
        dtype=torch.float64,
    )
    free = first.clone().requires_grad_()
    num_terms = len(start.terms)
    extra = (
        torch.zeros(len(target), dtype=torch.float64) if extra_variance is None else torch.from_numpy(extra_variance)
    )

    def loss() -> Tensor:
        lengths = {factor: free[num_terms + 1 + index] for index, factor in enumerate(near)}
        alike = {
            factor: torch.exp(-0.5 * base * torch.exp(-2.0 * lengths[factor])) if factor in lengths else base
            for factor, base in bases.items()
        }
        total = (torch.exp(2.0 * free[num_terms]) + _MIN_NOISE**2) * torch.eye(
            len(target), dtype=torch.float64
        ) + torch.diag(extra)
        for index, term in enumerate(start.terms):
            product = torch.exp(2.0 * free[index])
            for factor in term.factors:
                product = product * alike[factor]
            total = total + product
        root = torch.linalg.cholesky(total)
        weights = torch.cholesky_solve(target[:, None], root)[:, 0]
        prior = 0.5 * ((free - first) ** 2).sum() / _PRIOR_SPREAD**2
        return 0.5 * target @ weights + torch.log(torch.diagonal(root)).sum() + prior

    optimiser = torch.optim.LBFGS([free], max_iter=rounds, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        found = loss()
        found.backward()  # type: ignore[no-untyped-call]  # torch's own
        return found

    optimiser.step(closure)  # type: ignore[no-untyped-call]  # torch's own
    fitted = np.exp(free.detach().numpy())
    lengths = {factor: float(fitted[num_terms + 1 + index]) for index, factor in enumerate(near)}

    def moved(factor: Factor) -> Factor:
        if factor not in lengths:
            return factor
        return Factor(kind=factor.kind, column=factor.column, length=lengths[factor])

    terms = tuple(
        Term(scale=float(scale), factors=tuple(moved(factor) for factor in term.factors))
        for scale, term in zip(fitted, start.terms, strict=False)
    )
    return Kernel(terms=terms, noise=float(np.hypot(fitted[num_terms], _MIN_NOISE)))


def fit_kernels(data: Path) -> dict[str, Any]:
    """Return kernels.json: the scales of all kernels."""
    rates, neighbours = read_rates(data), read_neighbours(data)
    speedups = [*read_elasticflow(data), *read_pollux(data)]
    alone = rate_columns([(r.work, r.place) for r in rates], Codes(), GAVEL_SHEETS, learn=True)
    beside = neighbour_columns([row.beside for row in neighbours], Codes(), learn=True)
    spread = scaling_columns([(row.work, row.spread) for row in speedups], Codes(), learn=True)
    _, watts = read_zeus(data)
    drawing = rate_columns([(row.work, row.place) for row in watts], Codes(), ZEUS_SHEETS, learn=True)
    log_loss, error = log_losses(speedups)
    fitted = {
        "rates": fit_kernel(starting_kernel(RATES), alone, np.log([row.value for row in rates]), rounds=60),
        "neighbours": fit_kernel(starting_kernel(NEIGHBOURS), beside, np.log([row.value for row in neighbours])),
        "power": fit_kernel(starting_kernel(POWER), drawing, np.log([row.value for row in watts])),
        "scaling": fit_kernel(starting_kernel(SCALING), spread, log_loss, extra_variance=error),
    }
    kernels = {name: kernel_document(kernel) for name, kernel in fitted.items()}
    return {"format": 1, "source": SOURCE, "kernels": kernels}
