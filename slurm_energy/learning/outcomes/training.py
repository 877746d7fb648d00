"""Training of the network of option outcomes on randomised sites, and the file that is shipped.

    python -m slurm_energy.learning.outcomes.training --write slurm_energy/policy/gnn/outcomes/outcomes.safetensors

Quantiles by the pinball loss, in slowdown and in the logarithm of energy, weighed by the root of a job's joules; run
times that a limit cut off count as at least as long. Expected values by squared errors. One seed gives one file on one
version of torch.
"""

import argparse
import hashlib
import logging
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.loader import DataLoader

from slurm_energy.files import write_atomically
from slurm_energy.learning.outcomes.network import OutcomeModel, site_graph
from slurm_energy.learning.outcomes.sites import random_site
from slurm_energy.policy.gnn.outcomes.graph import KNOTS
from slurm_energy.policy.gnn.outcomes.inference import SHIPPED, weights_file

logger = logging.getLogger(__name__)

UPPER = 0.9
"""Quantile of slowdown that a bound is held against."""
ENERGY_QUANTILES, TIME_QUANTILES = (0.1, 0.5, 0.9), (0.1, 0.5, 0.9)
TRAINED_SITES, FIRST_TRAINED, FIRST_HELD_OUT = 700, 5_000_000, 6_000_000
_BATCH, _RATE, _TIME_WEIGHT = 8, 3e-3, 0.05


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
