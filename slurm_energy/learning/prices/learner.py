"""Policy gradient on prices: tried prices that made a job's bill smaller than expected become likelier."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import cycle, islice
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slurm_energy.errors import TrainingError
from slurm_energy.learning.experience import Averaging, Weights, alone
from slurm_energy.learning.prices.collector import PricedEpisode, PricedStep
from slurm_energy.learning.prices.settings import PriceLearnerSettings
from slurm_energy.learning.ranks import agreed, shares_of_mean
from slurm_energy.learning.torch_device import batched_states, state_of_cluster
from slurm_energy.learning.training_state import restore_adam, same_form
from slurm_energy.policy.gnn.embeddings import Published, batch_index
from slurm_energy.policy.gnn.network import Blocks, HierarchicalNetwork
from slurm_energy.policy.gnn.price_head import PRICED_JOB, PriceContext, PriceHead
from slurm_energy.policy.prices import JOB_PRICES

_TINY = 1e-6
_MAX_CHANGE = 10.0
_MAX_WEIGHT = 10.0
"""One job among thousands must not be the whole lesson."""
_LOOKS = 32
"""Of an episode, from which the head learns what is usual."""
_FOLLOWING = 0.2
_VALUES = 2
"""Of the job's own bill, and of waiting."""


class PriceCritic(nn.Module):
    """What a job's bill and the wait after it are expected to be, from the state and the job.

    Shapes: state [jobs, hidden] as `PriceContext.job`, job_x [jobs, PRICED_JOB] as the head has it -> [jobs, 2].
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.job = nn.Linear(PRICED_JOB, hidden)
        self.between = nn.Linear(2 * hidden, hidden)
        self.last = nn.Linear(hidden, _VALUES)

    def forward(self, state: Tensor, job_x: Tensor) -> Tensor:
        """Return the values."""
        first = torch.relu(torch.cat([state, self.job(job_x)], 1))
        value: Tensor = self.last(torch.relu(self.between(first)))
        return value


class _Batch:
    """Jobs priced at some looks at the cluster, on the learner's device."""

    def __init__(self, states: Sequence[Blocks], steps: Sequence[tuple[int, PricedStep]], device: torch.device) -> None:
        def moved(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(array).to(device)

        self.blocks = batched_states(states, device)
        self.moment_of_cluster = state_of_cluster(states, device)
        partitions = np.cumsum([0] + [state.top.partition_x.shape[0] for state in states])
        self.moment = torch.tensor([moment for moment, _ in steps], device=device)
        self.job_x = moved(np.stack([step.job_x for _, step in steps]))
        self.job_raw = moved(np.stack([step.job_raw for _, step in steps]))
        self.job_mean = moved(np.stack([step.job_mean for _, step in steps]))
        self.device_raw = moved(np.concatenate([step.device_raw for _, step in steps]))
        self.device_mean = moved(np.concatenate([step.device_mean for _, step in steps]))
        self.device_step = moved(np.repeat(np.arange(len(steps)), [len(step.device_raw) for _, step in steps]))
        self.device_row = moved(
            np.concatenate([np.arange(partitions[moment], partitions[moment + 1]) for moment, _ in steps])
        )
        weights = torch.tensor([step.weight for _, step in steps], device=device).clamp(max=_MAX_WEIGHT)
        self.weights = weights / weights.mean()
        self.costs = torch.tensor([[step.cost, step.waiting] for _, step in steps], device=device)


class PriceLearner:
    """Proximal policy gradient on Gaussian prices around the network's.

    Each job is a decision of its own: its bill is known when it has ended, and its advantage is the bill that the
    critic expected less the one that came, with the discounted wait of all jobs after it. The spread of the prices is
    that of the exploration and is not learned.
    """

    def __init__(
        self,
        network: HierarchicalNetwork,
        settings: PriceLearnerSettings,
        *,
        noise: float,
        seed: int,
        average: Averaging = alone,
    ) -> None:
        if network.prices is None:
            raise TrainingError('prices are learned by a network whose setting policy is "prices"')
        self.network = network
        self._head: PriceHead = network.prices
        self._settings, self._noise, self._average = settings, noise, average
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            critic = PriceCritic(network.config.hidden)
        self._device = network.torch_device
        self._critic = critic.to(self._device)
        heads = [*self._head.parameters(), *self._critic.parameters()]
        known = {id(parameter) for parameter in heads}
        encoder = [parameter for parameter in network.parameters() if id(parameter) not in known]
        self._parameters = [*encoder, *heads]
        groups = [{"params": encoder, "share": settings.encoder_rate_share}, {"params": heads, "share": 1.0}]
        self._optimiser = torch.optim.Adam(groups, lr=settings.learning_rate)
        self._generator = np.random.default_rng(seed)
        self._rounds = 0
        self._centre, self._spread = torch.zeros(_VALUES, device=self._device), torch.ones(_VALUES, device=self._device)

    @property
    def acting(self) -> Weights:
        """The network's weights."""
        return {name: value.detach().clone() for name, value in self.network.state_dict().items()}

    def absorb(self, experience: Sequence[PricedEpisode]) -> Mapping[str, float]:
        """Learn from the bills of some episodes."""
        episodes = [episode for episode in experience if episode.steps]
        if not episodes:
            raise TrainingError("no job of the episodes has ended: give them more hours")
        self._centre_costs([step for episode in episodes for step in episode.steps])
        for group in self._optimiser.param_groups:
            group["lr"] = group["share"] * self._settings.learning_rate_after(self._rounds)
        self._follow_states(episodes)
        self.network.train()
        sums: dict[str, float] = {}
        batches = 0
        for _ in range(self._settings.epochs):
            for batch in self._batches(episodes):
                figures = self._improve(batch)
                batches += 1
                for name, value in figures.items():
                    sums[name] = sums.get(name, 0.0) + value
        self.network.eval()
        self._rounds += 1
        cost = float(np.mean([episode.cost_per_job for episode in episodes]))
        return {
            "score": -cost,
            "cost_per_job": cost,
            "jobs": float(sum(len(episode.steps) for episode in episodes)),
            **{name: value / batches for name, value in sums.items()},
        }

    def state(self) -> dict[str, Any]:
        """Return all that is needed to resume; later rounds do not change it."""
        found: dict[str, Any] = {
            "network": dict(self.network.state_dict()),
            "critic": dict(self._critic.state_dict()),
            "optimiser": self._optimiser.state_dict(),
            "generator": _plain(self._generator.bit_generator.state),
            "rounds": self._rounds,
            "centre": self._centre,
            "spread": self._spread,
        }
        return deepcopy(found)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from such a state; `restore_learner` tells what is wrong with one.

        Raises:
            ValueError: the costs that were seen so far are none.
        """
        centre, spread = state["centre"], state["spread"]
        if not all(same_form(one, self._centre.shape) for one in (centre, spread)) or bool((spread <= 0.0).any()):
            raise ValueError(f"centre and spread of costs are not {_VALUES} numbers each, the latter above 0")
        self.network.load_state_dict(state["network"])
        self._critic.load_state_dict(state["critic"])
        restore_adam(self._optimiser, state["optimiser"])
        self._generator.bit_generator.state = _whole(state["generator"])
        self._rounds = int(state["rounds"])
        # Copies: both are moved in place.
        self._centre, self._spread = (one.to(self._device, copy=True) for one in (centre, spread))

    def _batches(self, episodes: Sequence[PricedEpisode]) -> Iterator[_Batch]:
        """Yield batches in random order, each of one episode: what a batch's advantages are compared within.

        Clusters of different sizes side by side would be padded to the largest, too.
        """
        size = self._settings.states_per_batch
        chunks: list[tuple[PricedEpisode, list[int]]] = []
        for episode in episodes:
            priced = np.array(sorted({step.state for step in episode.steps}))
            order = self._generator.permutation(priced).tolist()
            chunks.extend((episode, order[begin : begin + size]) for begin in range(0, len(order), size))
        order = self._generator.permutation(len(chunks)).tolist()
        (batches,) = agreed([float(len(chunks))], self._average)  # all ranks step equally often
        for index in islice(cycle(order), max(1, round(batches))):
            episode, chosen = chunks[index]
            moment = {state: number for number, state in enumerate(chosen)}
            steps = [(moment[step.state], step) for step in episode.steps if step.state in moment]
            steps.sort(key=itemgetter(0))
            yield _Batch([episode.states[state] for state in chosen], steps, self._device)

    def _follow_states(self, episodes: Sequence[PricedEpisode]) -> None:
        """Tell the head what embeddings are like in these episodes, each of the same weight whatever its length."""
        seen: list[tuple[Tensor, ...]] = []
        with torch.no_grad():
            for episode in episodes:
                kept = np.linspace(0, len(episode.states) - 1, min(len(episode.states), _LOOKS)).astype(int).tolist()
                states = [episode.states[index] for index in kept]
                published = self.network.state(batched_states(states, self._device)).published
                moments = batch_index(published, state_of_cluster(states, self._device))
                jobs = torch.from_numpy(np.stack([step.job_x for step in episode.steps])).to(self._device)
                seen.append(self._head.seen(published, moments, jobs))
        common = [self._common(torch.stack(parts).mean(0)) for parts in zip(*seen, strict=True)]
        self._head.follow(common, 1.0 if self._rounds == 0 else _FOLLOWING)

    def _common(self, figures: Tensor) -> Tensor:
        """Return the mean over all ranks."""
        common = agreed(figures.flatten().tolist(), self._average)
        return torch.tensor(common, dtype=figures.dtype, device=self._device).reshape(figures.shape)

    def _centre_costs(self, steps: Sequence[PricedStep]) -> None:
        """Bring what the critic learns near 0 and 1: mean and spread of costs, moved slowly."""
        costs = _capped(torch.tensor([[step.cost, step.waiting] for step in steps], device=self._device))
        mean, spread = self._of_all_ranks(
            costs.mean(0).double(),
            (costs.std(0) if len(costs) > 1 else torch.ones_like(costs[0])).double(),
            len(costs),
        )
        spread = spread.clamp(min=1e-3)
        share = 1.0 if self._rounds == 0 else 0.1
        self._centre += share * (mean - self._centre)
        self._spread += share * (spread - self._spread)

    def _of_all_ranks(self, mean: Tensor, spread: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return mean and spread of all ranks' costs, each cost of the same weight: the critic is one for all.

        On one rank they stay what they are to the last digit.
        """
        (share,) = shares_of_mean([float(count)], self._average)
        common = self._common(share * mean)
        variance = self._common(share * (spread.square() + (mean - common).square()))
        return common.float(), variance.sqrt().float()

    def _improve(self, batch: _Batch) -> dict[str, float]:
        """Take one step through the whole network, and some through the heads alone on the same embeddings."""
        published = self.network.state(batch.blocks).published
        moments = batch_index(published, batch.moment_of_cluster)
        figures = self._step(batch, self._head.context(published, moments))
        kept = Published(*(part.detach() for part in published))
        for _ in range(self._settings.head_steps):
            self._step(batch, self._head.context(kept, moments))
        return figures

    def _step(self, batch: _Batch, context: PriceContext) -> dict[str, float]:
        settings = self._settings
        job_raw = self._head(context, batch.job_x, batch.moment)
        value = self._critic(context.job[batch.moment], self._head.usual_job(batch.job_x))
        goal = (_capped(batch.costs) - self._centre) / self._spread
        value_loss = nn.functional.smooth_l1_loss(value, goal)
        advantage = ((value.detach() - goal) * self._spread).sum(1)
        if len(advantage) > 1:
            advantage = (advantage - advantage.mean()) / (advantage.std() + _TINY)
        advantage = advantage.clamp(-settings.max_advantage, settings.max_advantage)
        device_mean = context.devices[batch.device_row]
        explored = batch.job_raw != batch.job_mean  # a price that was not tried says nothing
        change = (self._log_ratio(batch.job_raw, job_raw, batch.job_mean) * explored).sum(1)
        own = self._log_ratio(batch.device_raw, device_mean, batch.device_mean)
        change = change.index_add(0, batch.device_step, own)
        ratio = change.clamp(-_MAX_CHANGE, _MAX_CHANGE).exp()
        clipped = ratio.clamp(1.0 - settings.clip, 1.0 + settings.clip)
        gain = (batch.weights * torch.minimum(ratio * advantage, clipped * advantage)).mean()
        decay = job_raw.square().mean() + context.devices.square().mean()
        loss = -gain + settings.value_weight * value_loss + settings.price_decay * decay
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self._average(self._parameters)
        nn.utils.clip_grad_norm_(self._parameters, settings.gradient_norm)
        self._optimiser.step()
        return {
            "value_loss": float(value_loss.detach()),
            "gain": float(gain.detach()),
            "ratio_spread": float(ratio.detach().std()) if len(ratio) > 1 else 0.0,
            "raw_devices": float(context.devices.detach().mean()),
            "spread_devices": float(context.devices.detach().std(correction=0)),
            "spread_job": float(job_raw.detach().std(0, correction=0).mean()),
            **{f"raw_{name}": float(raw) for name, raw in zip(JOB_PRICES, job_raw.detach().mean(0), strict=True)},
        }

    def _log_ratio(self, tried: Tensor, mean: Tensor, before: Tensor) -> Tensor:
        """Return by how much the log-probability of what was tried has changed."""
        return ((tried - before).square() - (tried - mean).square()) / (2.0 * self._noise**2)


def _capped(costs: Tensor) -> Tensor:
    """Return costs with their long tail bent: ln(1 + cost), which keeps the order and the sign of a difference."""
    return torch.log1p(costs.clamp(min=0.0))


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a generator's state as texts and numbers that any reader takes: its integers have 128 bits."""
    inner = {name: str(value) for name, value in state["state"].items()}
    return {**{name: value for name, value in state.items() if name != "state"}, "state": inner}


def _whole(state: Mapping[str, Any]) -> dict[str, Any]:
    return {**state, "state": {name: int(value) for name, value in state["state"].items()}}
