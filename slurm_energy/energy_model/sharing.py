"""Two programs on one GPU: how fast each runs beside the other, and what the GPU then draws.

Measured pairs come first; pairs that nobody measured come from a fitted model and say so. Whether both programs fit
into the GPU's memory is known only for pairs that were tried.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import exp
from typing import Any, Literal

from slurm_energy.energy_model.coefficients import coefficients
from slurm_energy.errors import ValueRangeError


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEstimate:
    """What two programs reach on one GPU, each relative to having it alone."""

    speed: float
    partner_speed: float
    source: Literal["measured", "model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairModel:
    """Sharing of one GPU type. log speed = mean + own(job) + partner(other job) + family(model, other model)."""

    gpu: str
    mean: float
    own: Mapping[str, float]
    """How well a job type keeps its speed, by job type such as `ResNet-18 (batch size 16)`."""
    partner: Mapping[str, float]
    """How much a job type leaves to others."""
    family: Mapping[str, Mapping[str, float]]
    """What is peculiar to two networks together: by the job's, then the partner's."""
    measured: Mapping[tuple[str, str], tuple[float, float]]
    """Speeds of both, by the two job types."""
    infeasible: frozenset[tuple[str, str]]
    """Pairs that were tried and did not fit into the memory, in both orders."""

    def estimate(self, job: str, partner: str) -> PairEstimate | None:
        """Return both speeds, None when the two are known not to fit or when a job type is not known."""
        if (job, partner) in self.infeasible:
            return None
        for key in ((job, partner), (partner, job)):
            if key in self.measured:
                first, second = self.measured[key] if key[0] == job else self.measured[key][::-1]
                return PairEstimate(speed=first, partner_speed=second, source="measured")
        if not {job, partner} <= self.own.keys():
            return None
        return PairEstimate(
            speed=self.modelled(job, partner), partner_speed=self.modelled(partner, job), source="model"
        )

    def modelled(self, job: str, partner: str) -> float:
        """Return the speed of a job beside a partner by the model alone, at most 1."""
        family = self.family[family_of(job)][family_of(partner)]
        return min(1.0, exp(self.mean + self.own[job] + self.partner[partner] + family))


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceModel:
    """Time slicing by utilisation, measured on one H100: for programs of which only the solo utilisation is known."""

    crowding: float
    """1/speed - 1 for each unit of utilisation beyond a full GPU."""
    idle_watts: float
    """With an open context and nothing to do."""
    power_factor: float
    """Power above idle over the sum of the solo powers above idle, each weighted with its relative speed."""

    def speed(self, utilisation: float, partner_utilisation: float) -> float:
        """Return the relative speed of each of two programs, of solo utilisations 0..1."""
        for value in (utilisation, partner_utilisation):
            if not 0.0 <= value <= 1.0:
                raise ValueRangeError(f"utilisation {value} is not a share from 0 to 1")
        return 1.0 / (1.0 + self.crowding * max(0.0, utilisation + partner_utilisation - 1.0))

    def watts(self, idle_watts: float, speeds: tuple[float, float], solo_watts: tuple[float, float]) -> float:
        """Return the power in W of a GPU that two programs share.

        Args:
            idle_watts: Power of the GPU with an open context and nothing to do.
            speeds: Relative speed of each.
            solo_watts: Power when each runs alone.
        """
        weighted = sum(speed * (watts - idle_watts) for speed, watts in zip(speeds, solo_watts, strict=True))
        return idle_watts + self.power_factor * weighted


def family_of(job: str) -> str:
    """Return the network of a job type: `ResNet-18` of `ResNet-18 (batch size 16)`."""
    return job.partition(" (")[0]


@cache
def pair_models() -> Mapping[str, PairModel]:
    """Return the sharing of every measured GPU type: k80, p100, v100."""
    return {gpu: _pair_model(gpu, entry) for gpu, entry in coefficients("sharing")["pairs"].items()}


@cache
def slice_model() -> SliceModel:
    """Return the model of time slicing by utilisation."""
    entry = coefficients("sharing")["time_slicing"]
    return SliceModel(crowding=entry["crowding"], idle_watts=entry["idle_watts"], power_factor=entry["power_factor"])


def _pair_model(gpu: str, entry: Mapping[str, Any]) -> PairModel:
    infeasible = [(job, partner) for job, partner in entry["infeasible"]]
    return PairModel(
        gpu=gpu,
        mean=entry["mean"],
        own=entry["own"],
        partner=entry["partner"],
        family=entry["family"],
        measured={(job, partner): (first, second) for job, partner, first, second in entry["measured"]},
        infeasible=frozenset(infeasible + [pair[::-1] for pair in infeasible]),
    )
