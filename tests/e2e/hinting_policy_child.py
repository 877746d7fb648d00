"""A policy child that prefers the node feature in a job's name, `hint-FEATURE`; run in the real one's place."""

import sys
from collections.abc import Iterator
from dataclasses import replace

from slurm_energy.config import Config
from slurm_energy.daemon.policy.process import serve
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import PolicyAnswer
from slurm_energy.policy.base import Case
from slurm_energy.policy.oracle import OraclePolicy

_PREFIX = "hint-"


class HintingPolicy(OraclePolicy):
    """The oracle with a hint."""

    name = "gnn"
    version = "hinting"

    def warm_up_steps(self, snapshot: ClusterSnapshot) -> Iterator[None]:
        """Follow in one step."""
        yield

    def decide(self, case: Case) -> PolicyAnswer:
        """Return the oracle's answer with the feature that the job's name asks for."""
        answer = super().decide(case)
        feature = case.job.name.removeprefix(_PREFIX)
        return answer if feature == case.job.name else replace(answer, prefer=feature)


def make(config: Config) -> HintingPolicy:
    """Return the policy."""
    return HintingPolicy()


def main(argv: list[str]) -> int:
    """Run the child."""
    return serve(argv, make)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
