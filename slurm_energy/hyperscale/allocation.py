"""Which device computes which part: by an agent that learns, by the greedy rule, and exactly where parts are few.

State: (U_1..U_n, B_1..B_n, C) of HyperScale's formulation: of each device the share of the reference time that it
computes and that it receives halo rows, and the share of all exchanged bytes that cross devices. Action: a device for
the next part, the largest first. Reward, at the end: -T - lambda C, with the time T of an epoch and the seconds C that
all crossing bytes take. The paper leaves the learner open: here the policy is one small network for every device, so it
holds for any number of them, and it learns by policy gradient (Williams 1992) with the batch's mean as baseline, each
reward in multiples of the reference time. Times follow from measured speeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.optim import Adam

from slurm_energy.errors import ConfigError

FloatArray = NDArray[np.float64]
_FEATURES = 7
_MAX_EXACT_VARIABLES = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartAllocation:
    """Parts to be placed on devices."""

    work: tuple[float, ...]
    """Of each part, in edges."""
    part_bytes: tuple[int, ...]
    """Memory that each part needs."""
    exchanged_bytes: FloatArray
    """Bytes that part j receives from part k in an epoch where they are on other devices, [parts, parts]."""
    speeds: tuple[float, ...]
    """Of each device, edges per second."""
    memory_bytes: tuple[int, ...]
    """Of each device."""
    link_bytes_per_second: float
    """At which a device receives."""
    communication_weight: float = 0.1
    """Lambda: seconds of an epoch that one second of all transfers together is worth."""

    def __post_init__(self) -> None:
        parts, devices = len(self.work), len(self.speeds)
        if not parts or not devices or len(self.part_bytes) != parts or len(self.memory_bytes) != devices:
            raise ConfigError(
                f"{parts} parts and {devices} devices: each part needs work and bytes, each device memory"
            )
        if self.exchanged_bytes.shape != (parts, parts):
            raise ConfigError(f"exchanged bytes have the shape {self.exchanged_bytes.shape}, there are {parts} parts")
        figures = [*self.work, *self.speeds, self.link_bytes_per_second]
        if not np.isfinite(figures).all() or min(self.work) < 0.0 or min(figures[parts:]) <= 0.0:
            raise ConfigError("work must be 0 or more, speeds and link_bytes_per_second more than 0")
        if not np.isfinite(self.exchanged_bytes).all() or self.exchanged_bytes.min() < 0.0:
            raise ConfigError("exchanged bytes must be finite and 0 or more")
        if sum(self.part_bytes) > sum(self.memory_bytes) or max(self.part_bytes) > max(self.memory_bytes):
            raise ConfigError(
                f"parts need {sum(self.part_bytes)} bytes together and {max(self.part_bytes)} at most, devices have "
                f"{sum(self.memory_bytes)} and {max(self.memory_bytes)}: take more devices, or more and smaller parts"
            )

    @property
    def reference_seconds(self) -> float:
        """The time of an epoch that is spread perfectly and exchanges nothing."""
        return max(sum(self.work) / sum(self.speeds), 1e-12)

    def epoch_seconds(self, device_of_part: Sequence[int]) -> float:
        """Return T: of the device that computes and receives for longest."""
        return float((self._compute(device_of_part) + self._receive(device_of_part)).max())

    def cost(self, device_of_part: Sequence[int]) -> float:
        """Return T + lambda C, seconds; infinite where a device has too little memory."""
        used = _sums(device_of_part, np.array(self.part_bytes, dtype=np.float64), len(self.speeds))
        if (used > np.array(self.memory_bytes)).any():
            return float("inf")
        crossing = float(self._receive(device_of_part).sum())
        return self.epoch_seconds(device_of_part) + self.communication_weight * crossing

    def _compute(self, places: Sequence[int]) -> FloatArray:
        seconds: FloatArray = _sums(places, np.array(self.work), len(self.speeds)) / np.array(self.speeds)
        return seconds

    def _receive(self, places: Sequence[int]) -> FloatArray:
        return self.received_bytes(places) / self.link_bytes_per_second

    def received_bytes(self, device_of_part: Sequence[int]) -> FloatArray:
        """Return what each device receives in an epoch, [devices]."""
        at = np.asarray(device_of_part)
        apart = self.exchanged_bytes * (at[:, None] != at[None, :])
        return _sums(device_of_part, apart.sum(axis=1), len(self.speeds))


def _sums(places: Sequence[int], of_part: FloatArray, devices: int) -> FloatArray:
    return np.bincount(places, weights=of_part, minlength=devices).astype(np.float64)


def greedy(problem: PartAllocation) -> tuple[int, ...]:
    """Return a device for each part: the largest part first, where the cost so far is least.

    Raises:
        ConfigError: a part fits on no device that still has room.
    """
    places = np.full(len(problem.work), -1)
    for part in _largest_first(problem):
        room = [_with(places, part, device) for device in range(len(problem.speeds))]
        costs = [_cost_so_far(problem, one) for one in room]
        if not np.isfinite(costs).any():
            raise ConfigError(f"part {part} of {problem.part_bytes[part]} bytes has no room left: make smaller parts")
        places[part] = int(np.argmin(costs))
    return tuple(places.tolist())


def _largest_first(problem: PartAllocation) -> list[int]:
    return sorted(range(len(problem.work)), key=lambda part: (-problem.work[part], part))


def _with(places: NDArray[np.int64], part: int, device: int) -> NDArray[np.int64]:
    other = places.copy()
    other[part] = device
    return other


def _cost_so_far(problem: PartAllocation, places: NDArray[np.int64]) -> float:
    placed = np.flatnonzero(places >= 0)
    only = replace(
        problem,
        work=tuple(problem.work[part] for part in placed),
        part_bytes=tuple(problem.part_bytes[part] for part in placed),
        exchanged_bytes=problem.exchanged_bytes[np.ix_(placed, placed)],
    )
    return only.cost(places[placed].tolist())


def exact(problem: PartAllocation, time_limit_seconds: float = 60.0) -> tuple[int, ...]:
    """Return the cheapest allocation, by HiGHS.

    Raises:
        ConfigError: there are too many parts and devices for it, no allocation fits the memory, or the time is over.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415  # SciPy is slow to import
    from scipy.sparse import lil_array  # noqa: PLC0415  # likewise

    parts, devices = len(problem.work), len(problem.speeds)
    pairs = [(j, k) for j in range(parts) for k in range(parts) if j != k and problem.exchanged_bytes[j, k] > 0.0]
    x, z = parts * devices, len(pairs) * devices
    if x + z > _MAX_EXACT_VARIABLES:
        raise ConfigError(f"{parts} parts on {devices} devices are too many for the exact allocation: use the agent")
    scale, link = problem.reference_seconds, problem.link_bytes_per_second
    rows = lil_array((parts + 2 * devices + z, x + z + 1))
    low, high = np.full(rows.shape[0], -np.inf), np.zeros(rows.shape[0])
    for j in range(parts):  # each part has one device
        rows[j, j * devices : (j + 1) * devices] = 1.0
        low[j] = high[j] = 1.0
    for i in range(devices):
        time, room = parts + i, parts + devices + i
        for j in range(parts):
            rows[time, j * devices + i] = problem.work[j] / problem.speeds[i] / scale
            rows[room, j * devices + i] = problem.part_bytes[j] / problem.memory_bytes[i]
        for number, (j, k) in enumerate(pairs):
            rows[time, x + number * devices + i] = problem.exchanged_bytes[j, k] / link / scale
            apart = parts + 2 * devices + number * devices + i  # j is here and k is not
            rows[apart, j * devices + i], rows[apart, k * devices + i] = 1.0, -1.0
            rows[apart, x + number * devices + i] = -1.0
        rows[time, x + z] = -1.0
        high[room] = 1.0
    goal = np.zeros(x + z + 1)
    goal[-1] = 1.0
    for number, (j, k) in enumerate(pairs):
        crossing = problem.communication_weight * problem.exchanged_bytes[j, k] / link / scale
        goal[x + number * devices : x + (number + 1) * devices] = crossing
    found = milp(
        goal,
        constraints=LinearConstraint(rows.tocsr(), low, high),
        integrality=np.r_[np.ones(x), np.zeros(z + 1)],
        bounds=Bounds(0.0, np.r_[np.ones(x + z), np.inf]),
        options={"time_limit": time_limit_seconds},
    )
    if found.status != 0:
        raise ConfigError(f"there is no exact allocation of {parts} parts on {devices} devices: {found.message}")
    return tuple(np.argmax(found.x[:x].reshape(parts, devices), axis=1).tolist())


class Agent:
    """A policy that places parts one by one and learns from what the placements cost."""

    def __init__(self, seed: int = 0, hidden: int = 32) -> None:
        """Draw the weights of the policy; the same seed gives the same placements."""
        self._random = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._policy = nn.Sequential(nn.Linear(_FEATURES, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        self._optimizer = Adam(self._policy.parameters(), lr=0.02)

    def learn(self, problem: PartAllocation, *, updates: int = 60, batch: int = 48) -> tuple[int, ...]:
        """Learn on one problem, and return the cheapest allocation that was tried.

        Args:
            problem: With speeds as they were measured.
            updates: Of the policy.
            batch: Allocations tried for an update.

        Raises:
            ConfigError: no allocation that was tried fits the memory.
        """
        best: tuple[int, ...] = ()
        best_cost = float("inf")
        for _ in range(updates):
            places, log_probability = self.tried(problem, batch)
            costs = np.array([problem.cost(one) for one in places.tolist()])
            if costs.min() < best_cost:
                best, best_cost = tuple(places[int(costs.argmin())].tolist()), float(costs.min())
            fits = np.isfinite(costs)
            worst = costs[fits].max() if fits.any() else 1.0
            reward = torch.tensor(-np.where(fits, costs, 2.0 * worst) / problem.reference_seconds, dtype=torch.float32)
            advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
            loss = -(advantage * log_probability).mean()
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            self._optimizer.step()
        if not best:
            raise ConfigError("no allocation of the parts fits the devices' memory: make smaller parts")
        return best

    def tried(self, problem: PartAllocation, batch: int) -> tuple[Tensor, Tensor]:
        """Return placements drawn from the policy, [batch, parts], and their log-probabilities, [batch]."""
        parts, devices = len(problem.work), len(problem.speeds)
        scale = problem.reference_seconds
        seconds = torch.tensor(np.outer(problem.work, 1.0 / np.array(problem.speeds)) / scale, dtype=torch.float32)
        exchanged = torch.tensor(problem.exchanged_bytes, dtype=torch.float32)
        exchanged = exchanged / problem.link_bytes_per_second / scale
        all_bytes = exchanged.sum().clamp(min=1e-12)
        room = torch.tensor(problem.memory_bytes, dtype=torch.float64).repeat(batch, 1)
        places = torch.full((batch, parts), -1)
        on = torch.zeros((batch, devices, parts))  # which parts each device has
        compute, received = torch.zeros(batch, devices), torch.zeros(batch, devices)
        crossing, log_probability = torch.zeros(batch, 1), torch.zeros(batch)
        for part in _largest_first(problem):
            is_placed = on.sum(dim=1)  # [batch, parts]
            into = (is_placed @ exchanged[part])[:, None] - on @ exchanged[part]  # [batch, devices]
            out = (is_placed @ exchanged[:, part])[:, None] - on @ exchanged[:, part]
            after, got = compute + seconds[part], received + into
            worst = torch.maximum((compute + received).max(dim=1, keepdim=True).values, after + got)
            state = (compute, received, (crossing / all_bytes).expand(-1, devices))
            step = (after, got, (into + out) / all_bytes, worst)
            scores = self._policy(torch.stack([*state, *step], dim=-1)).squeeze(-1)
            fits = room >= problem.part_bytes[part]
            fits = fits | ~fits.any(dim=1, keepdim=True)
            choice = Categorical(logits=scores.masked_fill(~fits, -1e9))
            action = torch.multinomial(choice.probs, 1, generator=self._random).squeeze(-1)
            log_probability = log_probability + choice.log_prob(action)  # type: ignore[no-untyped-call]  # torch's
            row = torch.arange(batch)
            places[:, part] = action
            compute = compute.clone()
            compute[row, action] += seconds[part, action]
            # The other devices receive from this part now.
            received = received + (on @ exchanged[:, part]) * (torch.arange(devices) != action[:, None])
            received[row, action] += into[row, action]
            crossing = crossing + (into + out)[row, action][:, None]
            room[row, action] -= problem.part_bytes[part]
            on[row, action, part] = 1.0
        return places, log_probability
