"""What is chosen for the cases of a site that hides its jobs, on arrivals that no comparison sees.

    python -m research.results.tuning [--write research/results/tuned.json]

For every load and share of named partitions: the order in which the site lists its partitions (all of them are tried,
at default clocks), the best static clocks in that order, and the settings of a rule by the same search: least energy
per unit of work, among those whose mean slowdown (`slurm_place`) and mean turnaround are at most 5 % above those of the
same order at default clocks. Each is the mean over the same few seeds; the rule knows what every policy knows.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import inf
from pathlib import Path

from research.results.slurm_place import SlurmPlaceRule, slurm_place_figures
from slurm_energy.evaluation.arena.comparison import WorkerCall, WorkerPool
from slurm_energy.evaluation.arena.plan import ArenaPlan, world_of_plan
from slurm_energy.evaluation.arena.run import simulated_run
from slurm_energy.evaluation.contenders import create_contender
from slurm_energy.evaluation.metrics import metrics_of
from slurm_energy.twin.world import World

TUNED = Path(__file__).with_name("tuned.json")
SEEDS = (900_101, 900_102)
MAX_SLOWDOWN_PERCENT, MAX_LONGER = 5.0, 1.05
_RELATIVE = (1.0, 0.93, 0.86, 0.79, 0.72)
_RULES = tuple(
    f"total-cost:V={v:g},slowdown={slowdown:g},opened_nodes=0.03,by_place={by_place}"
    for v in (0.0, 200.0)
    for slowdown in (0.3, 3.0)
    for by_place in (0, 1)
)
Key = tuple[float, float]
"""Arrivals per second, and the share of users who name a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What was chosen for one load and share of named partitions."""

    order: tuple[str, ...]
    static: str
    """Text of the rule of fixed clocks."""
    rule: str
    runs: int


def read_tuned(path: Path = TUNED) -> dict[Key, Tuned]:
    """Return what was chosen; nothing where there is no file."""
    if not path.exists():
        return {}
    return {
        (row["rate_per_second"], row["named_partitions"]): Tuned(
            order=tuple(row["order"]), static=row["static"], rule=row["rule"], runs=row["runs"]
        )
        for row in json.loads(path.read_text(encoding="utf-8"))
    }


class Search:
    """Runs of one load and share of named partitions, each policy once."""

    def __init__(self, plan: ArenaPlan, seeds: Sequence[int] = SEEDS) -> None:
        self._plan = plan
        self._seeds = seeds
        self._known: dict[tuple[tuple[str, ...], str], Mapping[str, float]] = {}

    @property
    def runs(self) -> int:
        """How many runs were made."""
        return len(self._known) * len(self._seeds)

    def best_order(self, world: World, *, all_alike: bool = False) -> tuple[str, ...]:
        """Return the order of least energy at default clocks whose turnaround is within 5 % of the shortest.

        Args:
            world: Its partitions.
            all_alike: Whether every job names its partition, so that no order differs from another.
        """
        own = tuple(partition.name for partition in world.partitions)
        if all_alike:
            return own
        orders = list(permutations(own))
        found = {order: self.figures(order, "slurm-default") for order in orders}
        shortest = min(one["mean_turnaround_seconds"] for one in found.values())
        fit = [order for order in orders if found[order]["mean_turnaround_seconds"] <= MAX_LONGER * shortest]
        return min(fit, key=lambda order: found[order]["joules_per_unit"])

    def best_clocks(self, order: tuple[str, ...], devices: Sequence[str]) -> str:
        """Return the best fixed clocks: one relative clock first, then each type's own, in two rounds."""
        common = min(
            _RELATIVE, key=lambda clock: self.score(order, _fixed({device: float(clock) for device in devices}))
        )
        chosen = {device: float(common) for device in devices}
        for _ in range(2):
            for device in devices:
                around = [clock for clock in _RELATIVE if abs(clock - chosen[device]) < 0.08]
                scores = {clock: self.score(order, _fixed({**chosen, device: clock})) for clock in around}
                chosen[device] = min(around, key=scores.__getitem__)
        return _fixed(chosen)

    def best_of(self, order: tuple[str, ...], rules: Sequence[str]) -> str:
        """Return the best of some rules."""
        return min(rules, key=lambda rule: self.score(order, rule))

    def score(self, order: tuple[str, ...], rule: str) -> float:
        """Return energy per unit; infinite, but for how far it is off, where jobs become too slow or late."""
        default, found = self.figures(order, "slurm-default"), self.figures(order, rule)
        slow = found["slurm_place_slowdown_percent"] - MAX_SLOWDOWN_PERCENT
        late = found["mean_turnaround_seconds"] / default["mean_turnaround_seconds"] - MAX_LONGER
        if slow > 0.0 or late > 0.0:
            return 1e12 + 1e9 * max(0.0, slow) + 1e11 * max(0.0, late)
        return found["joules_per_unit"]

    def figures(self, order: tuple[str, ...], rule: str) -> Mapping[str, float]:
        """Return the mean figures of a rule over the seeds."""
        if (order, rule) not in self._known:
            # What Slurm and fixed clocks do does not depend on what is known of earlier runs.
            days = self._plan.history_days if rule.startswith("total-cost") else 0.0
            plan = replace(self._plan, partition_order=order, history_days=days)
            runs = [_figures(plan, rule, seed) for seed in self._seeds]
            self._known[order, rule] = {name: sum(run[name] for run in runs) / len(runs) for name in runs[0]}
        return self._known[order, rule]


def _figures(plan: ArenaPlan, text: str, seed: int) -> dict[str, float]:
    """Return what the search looks at; bounds, which take longer than a run, are left out."""
    rule = SlurmPlaceRule(create_contender(text))
    world, _, jobs, outcome = simulated_run(plan, rule, seed)
    found = metrics_of(outcome, world, jobs)
    return {
        "joules_per_unit": found.joules_per_unit or inf,
        "mean_turnaround_seconds": inf if found.turnaround is None else found.turnaround.mean_seconds,
        **slurm_place_figures(rule, world, jobs, outcome),
    }


def _fixed(clocks: Mapping[str, float]) -> str:
    return "fixed-clock:" + ",".join(f"{name}={clock:g}" for name, clock in clocks.items())


def tuned(plan: ArenaPlan, seeds: Sequence[int] = SEEDS, rules: Sequence[str] = _RULES) -> Tuned:
    """Return what is chosen for a plan's world and settings."""
    world = world_of_plan(plan)
    search = Search(plan, seeds)
    named = float(world.workload_settings.get("named_partitions", 0.0)) >= 1.0
    order = search.best_order(world, all_alike=named)
    devices = list(dict.fromkeys(pool.device for pool in world.pools))
    return Tuned(
        order=order,
        static=search.best_clocks(order, devices),
        rule=search.best_of(order, rules),
        runs=search.runs,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Choose for every case of the page and write the file."""
    from research.results.sections.hidden_site import plans_to_tune  # noqa: PLC0415  # it reads the file

    parser = argparse.ArgumentParser(prog="python -m research.results.tuning", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--write", type=Path, default=TUNED, metavar="FILE", help="file to write (default: the page's)")
    parser.add_argument("--workers", type=int, metavar="N", help="processes; else one for each CPU")
    given = parser.parse_args(arguments)
    plans = plans_to_tune()
    steps = [WorkerCall(f"{rate:g}/s, {named:g} named", None, tuned, (plan,)) for (rate, named), plan in plans.items()]
    with WorkerPool(given.workers or len(os.sched_getaffinity(0))) as pool:
        found, failed = pool.results(steps, _say, "tuning")
    rows = [_row(key, found[number]) for number, key in enumerate(plans) if number in found]
    given.write.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    sys.stderr.writelines(f"failed: {failure.policy}: {failure.error}\n" for failure in failed)
    return 1 if failed else 0


def _row(key: Key, found: Tuned) -> dict[str, object]:
    rate, named = key
    return {
        "rate_per_second": rate,
        "named_partitions": named,
        "order": list(found.order),
        "static": found.static,
        "rule": found.rule,
        "seeds": list(SEEDS),
        "runs": found.runs,
    }


def _say(doing: str, done: int, of: int) -> None:
    sys.stderr.write(f"{doing}: {done} of {of}\n")


if __name__ == "__main__":
    sys.exit(main())
