"""A policy child whose policy behaves as the name of its checkpoint says; run by the daemon in the real one's place."""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from slurm_energy.config import Config
from slurm_energy.daemon.policy.process import serve
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import PolicyAnswer
from slurm_energy.errors import CheckpointError
from slurm_energy.policy.base import Case
from slurm_energy.policy.oracle import OraclePolicy

SLOW_SECONDS = 0.15


class FakePolicy(OraclePolicy):
    """The oracle, with a behaviour."""

    name = "gnn"

    def __init__(self, behaviour: str) -> None:
        self.version = behaviour

    def warm_up_steps(self, snapshot: ClusterSnapshot) -> Iterator[None]:
        """Follow in two steps, or never come to an end."""
        yield
        while self.version == "stuck":
            time.sleep(0.01)
        yield

    def decide(self, case: Case) -> PolicyAnswer:
        """Return the oracle's answer, if it comes to that; root's jobs, with which it is rehearsed, are no trouble."""
        if case.job.user_id == 0:
            return super().decide(case)
        sys.stderr.write(f"asked version={self.version} pid={os.getpid()}\n")
        if self.version == "slow":
            time.sleep(SLOW_SECONDS)
        elif self.version == "hang":
            while True:
                time.sleep(0.01)
        elif self.version == "crash":
            os.abort()
        elif self.version == "raise":
            raise ValueError("no row")
        answer = super().decide(case)
        return replace(answer, notes=(f"seen by pid {os.getpid()} with {len(case.snapshot.jobs)} jobs", *answer.notes))


def make(config: Config) -> FakePolicy:
    """Return the policy, unless it is to be refused."""
    if config.policy.checkpoint == "refuse":
        raise CheckpointError("checkpoint refuse has no weights")
    return FakePolicy(config.policy.checkpoint)


def main(argv: list[str]) -> int:
    """Run the child."""
    return serve(argv, make)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
