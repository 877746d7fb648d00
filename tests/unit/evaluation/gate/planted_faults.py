"""Where faults are planted, and the promises that must refute them."""

from collections.abc import Mapping, Sequence
from random import Random

from mutants import Mutant, functions, mutants_of, planted

from slurm_energy.evaluation.gate.logic import PROMISES
from slurm_energy.evaluation.gate.logic.symbols import prove

FAULTS = 300
_LIMITS = ("time limit", "mean and slowest", "clock of the table", "deadline and bound", "no end after the limit")
PLACES: Mapping[tuple[str, ...], Sequence[str]] = {
    _LIMITS: functions(
        "guard.clocks",
        "SlowdownRoom.smallest SlowdownRoom.best_of SlowdownRoom.broken_by allowed_clock _saves_too_little "
        "time_limit_seconds expected_runtime _predicted_seconds _deadline_room _room _shortest_limit",
    ),
    ("node hint", "open partitions with room"): functions(
        "guard.partitions", "allowed_partitions allowed_hint _could_run _could_hold _has_gpus"
    ),
    ("declared count", "nodes for a count"): functions(
        "guard.gpu_count", "with_chosen_count _may_have _fits_nodes _fits _sizes"
    ),
    ("trials inside every rule", "measured clock"): functions(
        "guard.trials", "counted_clocks has_trials trial_bounds learned_verdict"
    ),
    ("closed partitions", "limits of a partition", "partitions of the user's list", "room"): functions(
        "site.candidates",
        "asked_partitions routable_partitions has_idle_room _idle_gpus _memory_fits _cpus_fit "
        "_memory_allowed _time_fits _listed _group_allowed refusal",
    ),
    ("landing", "fair exchange", "open partitions with room"): [
        *functions("site.comparison", "landing_on first_tried with_room rivals_of time_ratio"),
        *functions("site.type_bound", "slowdown_left"),
        *functions("site.clock_terms", "ClockTerms.is_worth_its_time ClockTerms.min_ratio"),
    ],
    ("formula of the cost", "price of power", "bounds of a job", "masks and power", "cheapest of the allowed"): [
        *functions("rules.cost_table", "CostTable.choose CostTable._within CostTable._costs CostTable._running_costs"),
        *functions("rules.cost_table", "CostTable._nodes"),
        *functions("rules.tables", "bounds_of"),
        *functions("rules.total_cost", "PowerPrice.move"),
    ],
}


def planted_faults(count: int = FAULTS, seed: int = 1) -> list[tuple[Mutant, tuple[str, ...]]]:
    """Return faults drawn from all that can be planted, each with the promises to ask."""
    every = [
        (mutant, names)
        for names, paths in PLACES.items()
        for path in paths
        for mutant in mutants_of(path)
        if (mutant.function.rpartition(":")[2], mutant.text) not in SAME
    ]
    return Random(seed).sample(every, min(count, len(every)))


def refuted_by(mutant: Mutant, names: Sequence[str]) -> str | None:
    """Return the promise that a fault breaks, None where all hold."""
    with planted(mutant):
        return next((name for name in names if not prove(name, PROMISES[name]).holds), None)


SAME: frozenset[tuple[str, str]] = frozenset(
    {
        ("_could_run", "constant: 0.0 -> 1.0"),  # the largest of no node: no node holds the job either way
        ("slowdown_left", "operator: 1.0 + max_slowdown -> 1.0 - max_slowdown"),  # a matter of rounding alone
    }
)
"""Changes that change no decision, by function and text, each with the reason."""
