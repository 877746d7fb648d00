"""Train sb3-contrib's MaskablePPO on the simulated cluster for a few minutes, and compare it with simple rules.

Needs `pip install torch --index-url https://download.pytorch.org/whl/cpu`, then
`pip install './slurm-energy[twin]' sb3-contrib` in the folder above the clone.
Run `python docs/examples/masked_ppo.py --help`.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from sb3_contrib import MaskablePPO

from slurm_energy.policy.placement import PlacementRule
from slurm_energy.policy.registry import create_rule
from slurm_energy.twin.engine.simulation import policy_stream
from slurm_energy.twin.environment import ENVIRONMENT_ID, ClusterEnvironment
from slurm_energy.twin.episode import RewardWeights

HOUR = 3600.0
TEST_SEEDS = (1, 2, 3)
"""Arrivals that training never meets: it draws its seeds from the whole range of 31 bits."""


class ChargeAtStart(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Charges a job's expected energy and time when it starts, in the place of the cluster's energy as it is drawn.

    A job draws its energy while hundreds of later decisions are taken. Charged at its start, the cost stands beside the
    decision that caused it. Summed over a run both differ by what the devices draw when free, which no decision
    changes on this world, and by jobs still running at the end.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], watts_of_time: float) -> None:
        """Store the price of a second of a job's time, W."""
        super().__init__(env)
        self._watts = watts_of_time

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step and replace its reward."""
        inner: Any = self.env.unwrapped
        job, choices = inner.job, inner.choices
        observation, _, terminated, truncated, state = self.env.step(action)
        place, gpus, clock = state["granted"].tolist()
        cost = state["expected_joules"] + self._watts * state["waiting_job_seconds"]
        if place >= 0:
            seconds = choices.costs.seconds[place, choices.costs.gpu_counts.index(gpus), clock]
            cost += self._watts * job.estimated_units * float(seconds)
        return observation, -cost / inner.scale_joules, terminated, truncated, state

    def action_masks(self) -> np.ndarray:
        """Return the legal actions, for sb3-contrib."""
        inner: Any = self.env.unwrapped
        masks: np.ndarray = inner.action_masks()
        return masks


def make_environment(arguments: argparse.Namespace) -> ClusterEnvironment:
    """Return the environment that is trained and tested on."""
    environment = gymnasium.make(
        ENVIRONMENT_ID,
        world=arguments.world,
        workload_settings={"rate_per_second": arguments.rate},
        horizon_seconds=arguments.hours * HOUR,
        weights=RewardWeights(waiting_watts=arguments.watts, running_watts=arguments.watts),
        may_wait=False,
        disable_env_checker=True,
    ).unwrapped
    assert isinstance(environment, ClusterEnvironment)
    return environment


Chooses = Callable[[ClusterEnvironment, Any], int]


def measure(name: str, environment: ClusterEnvironment, begin: Callable[[int], Chooses], watts_of_time: float) -> None:
    """Print what a policy comes to on the test arrivals.

    Total and active energy per unit, mean turnaround of the jobs that ended, and the cost that is to be made small: the
    total energy plus the price of all jobs' time in the cluster until their end or that of the run, per unit.
    """
    total, active, turnaround, cost = [], [], [], []
    for seed in TEST_SEEDS:
        observation, _ = environment.reset(seed=seed)
        choose, is_over = begin(seed), False
        while not is_over:
            observation, _, terminated, truncated, _ = environment.step(choose(environment, observation))
            is_over = terminated or truncated
        outcome = environment.outcome(name)
        units = float(outcome.units.sum())
        ended = np.isfinite(outcome.ended_seconds)
        total.append(outcome.total_joules / units)
        active.append(outcome.jobs_joules / units)
        turnaround.append(float(np.mean((outcome.ended_seconds - outcome.submitted_seconds)[ended])))
        in_cluster = np.minimum(outcome.ended_seconds, outcome.end_seconds) - outcome.submitted_seconds
        cost.append((outcome.total_joules + watts_of_time * float(in_cluster.sum())) / units)
    print(  # noqa: T201  # what the example shows
        f"{name:24} {np.mean(total):7.3f} ± {np.std(total, ddof=1):.3f} J/unit  active {np.mean(active):6.3f}  "
        f"turnaround {np.mean(turnaround):6.0f} s  cost {np.mean(cost):7.3f} J/unit",
        flush=True,
    )


def of_rule(text: str) -> Callable[[int], Chooses]:
    """Return a placement rule as a chooser of actions."""

    def begin(seed: int) -> Chooses:
        rule: PlacementRule = create_rule(text)
        has_begun = False

        def choose(environment: ClusterEnvironment, observation: Any) -> int:  # noqa: ARG001  # one form for all
            nonlocal has_begun
            if not has_begun:
                rule.begin(environment.view, policy_stream(seed))
                has_begun = True
            assert environment.job is not None
            return environment.action_of(rule.place(environment.job, environment.view))

        return choose

    return begin


def of_network(model: MaskablePPO) -> Callable[[int], Chooses]:
    """Return a network that takes its most likely action."""

    def choose(environment: ClusterEnvironment, observation: Any) -> int:
        action, _ = model.predict(observation, action_masks=environment.action_masks(), deterministic=True)
        return int(action)

    return lambda _seed: choose


def main() -> None:
    """Measure, train, measure again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--world", default="chsac")
    parser.add_argument("--hours", type=float, default=6.0, help="length of a run")
    parser.add_argument("--rate", type=float, default=0.02, help="arrivals per second at each ingress")
    parser.add_argument("--watts", type=float, default=20.0, help="price of a job's time, W")
    parser.add_argument("--steps", type=int, default=60_000, help="decisions to train on")
    parser.add_argument("--accrued", action="store_true", help="train on the environment's own reward, as it accrues")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    test = make_environment(arguments)
    for text in ("masked-random", "greedy", f"price:V={arguments.watts:g}"):
        measure(text, test, of_rule(text), arguments.watts)
    inner = make_environment(arguments)
    model = MaskablePPO(
        "MultiInputPolicy",
        inner if arguments.accrued else ChargeAtStart(inner, arguments.watts),
        n_steps=2048,
        batch_size=256,
        n_epochs=6,
        learning_rate=1e-3,
        gamma=0.99 if arguments.accrued else 0.9,
        gae_lambda=0.9,
        ent_coef=0.003,
        policy_kwargs={"net_arch": [128, 128]},
        seed=arguments.seed,
        device="cpu",
    )
    measure("MaskablePPO, untrained", test, of_network(model), arguments.watts)
    before, cpu = time.monotonic(), time.process_time()
    model.learn(arguments.steps)
    spent, cpu = time.monotonic() - before, time.process_time() - cpu
    print(f"trained on {arguments.steps} decisions in {spent:.0f} s, {cpu:.0f} s of CPU time")  # noqa: T201
    measure("MaskablePPO, trained", test, of_network(model), arguments.watts)


if __name__ == "__main__":
    main()
