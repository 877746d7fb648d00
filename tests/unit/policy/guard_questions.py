"""Questions to a guard, and policies that answer what a test wants."""

from typing import Any

from policy_factory import (
    A100,
    NOW,
    ids,
    make_clock,
    make_config,
    make_snapshot,
)

from slurm_energy.config import Config
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import EnergyDecision, PolicyAnswer, RuntimeEstimate
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.domain.job import JobRequest
from slurm_energy.policy.base import Case, Policy
from slurm_energy.policy.guard import Guard
from slurm_energy.policy.oracle import OraclePolicy


class AnswerPolicy:
    """Gives the answer, or does what the function does."""

    name = "made-up"
    version = "0"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def decide(self, case: Case) -> Any:
        return self.answer(case) if callable(self.answer) else self.answer


def decide(
    job: JobRequest,
    *,
    policy: Policy | None = None,
    snapshot: ClusterSnapshot | None = None,
    config: Config | None = None,
    **arguments: Any,
) -> EnergyDecision:
    guard = Guard(config or make_config(), ids())
    return guard.decide(policy or OraclePolicy(), job, snapshot or make_snapshot(), NOW, **arguments)


def asking(mhz: int, gpu_type: GpuTypeName = A100, **changes: Any) -> AnswerPolicy:
    return AnswerPolicy(PolicyAnswer(clocks=(make_clock(gpu_type, mhz, **changes),)))


def routing_to(*names: str) -> AnswerPolicy:
    return AnswerPolicy(PolicyAnswer(partitions=tuple(PartitionName(name) for name in names)))


def clocks(decision: EnergyDecision) -> dict[str, int]:
    return {clock.gpu_type: clock.sm_clock_mhz for clock in decision.clocks}


def estimate(upper_seconds: float) -> RuntimeEstimate:
    return RuntimeEstimate(seconds=0.5 * upper_seconds, upper_seconds=upper_seconds, source="history")
