"""Where faults are planted, and the promises that must refute them."""

from collections.abc import Callable, Mapping, Sequence
from random import Random

from mutants import Mutant, functions, mutants_of, planted

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.job import GpuDemand
from slurm_energy.evaluation.gate.logic import PROMISES
from slurm_energy.evaluation.gate.logic.cases import HOME, NOW, SymbolComparison, case_of, job_of, partition
from slurm_energy.evaluation.gate.logic.symbols import Path, prove
from slurm_energy.policy.guard.clocks import _room
from slurm_energy.policy.guard.partitions import _could_run
from slurm_energy.policy.site.candidates import has_idle_room
from slurm_energy.policy.site.type_bound import slowdown_left

FAULTS = 300
_LIMITS = ("time limit", "mean and slowest", "clock of the table", "deadline and bound", "no end after the limit")
PLACES: Mapping[tuple[str, ...], Sequence[str]] = {
    _LIMITS: functions(
        "guard.clocks",
        "SlowdownRoom.smallest SlowdownRoom.best_of SlowdownRoom.broken_by allowed_clock _saves_too_little "
        "time_limit_seconds expected_runtime _predicted_seconds _deadline_room _room _shortest_limit",
    ),
    ("node hint", "nodes of a hint", "open partitions with room"): functions(
        "guard.partitions", "allowed_partitions allowed_hint _could_run _could_hold _has_gpus"
    ),
    ("declared count", "nodes for a count"): functions(
        "guard.gpu_count", "with_chosen_count _may_have _fits_nodes _fits _sizes"
    ),
    ("trials inside every rule", "trials of a bound in the mean", "measured clock", "best measured clock"): functions(
        "guard.trials", "counted_clocks has_trials trial_bounds learned_verdict"
    ),
    ("closed partitions", "limits of a partition", "partitions of the user's list", "room"): functions(
        "site.candidates",
        "asked_partitions routable_partitions has_idle_room _idle_gpus _memory_fits _cpus_fit "
        "_memory_allowed _time_fits _listed _group_allowed refusal",
    ),
    ("landing", "fastest rival", "fair exchange", "open partitions with room", "deadline and bound"): [
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
    every = [(mutant, names) for names, paths in PLACES.items() for path in paths for mutant in mutants_of(path)]
    return Random(seed).sample(every, min(count, len(every)))


def refuted_by(mutant: Mutant, names: Sequence[str]) -> str | None:
    """Return the promise that a fault breaks, None where all hold."""
    with planted(mutant):
        return next((name for name in names if not prove(name, PROMISES[name]).holds), None)


def is_alike(mutant: Mutant) -> bool:
    """Return whether a change is proved to change no decision, where the promises cannot see it; False if unknown."""
    check = ALIKE.get((mutant.function.rpartition(":")[2], mutant.text))

    def run(path: Path) -> None:
        assert check is not None
        decide = check(path)
        before = decide()
        with planted(mutant):
            after = decide()
        path.promise(before == after, "the same decision")

    return check is not None and prove(mutant.text, run).holds


def _without_a_node(path: Path) -> Callable[[], bool]:
    """No node of the partition is up: what stands for the largest of none decides nothing."""
    nodes, memory = path.whole("nodes", 1, 4), path.maybe("memory", lambda: path.real("MiB", 0.0))
    job = job_of(nodes_min=nodes, memory_per_node_mib=memory)
    return lambda: bool(_could_run(job, "fast", ()))


def _without_idle_gpus(path: Path) -> Callable[[], bool]:
    """No node of the partition has a GPU: how many of them are idle by default decides nothing."""
    job = job_of(gpus=(GpuDemand(count=path.whole("GPUs", 1, 16)),))
    home = partition(HOME)
    snapshot = ClusterSnapshot(cluster=ClusterName("c"), taken_at_seconds=NOW, partitions=(home,), nodes=())
    case = case_of(job, SymbolComparison(path), snapshot=snapshot)
    return lambda: has_idle_room(case, home)


def _exact_numbers(path: Path) -> Callable[[], object]:
    """The first line of `slowdown_left` only spares the rounding of doubles: exact numbers come to the same."""
    ratio, bound = path.real("ratio", 1.0), path.real("bound", 0.0, 2.0)
    return lambda: slowdown_left(ratio, bound)


def _any_slowdown(path: Path) -> Callable[[], bool]:
    """No slowdown is below 0: how far below 0 the room is decides nothing."""
    seconds = float("inf") if path.boolean("no limit") else path.real("seconds")
    predicted, slowdown = path.real("predicted", 0.0), path.real("slowdown", 0.0)
    return lambda: bool(slowdown > _room(seconds, predicted))


ALIKE: Mapping[tuple[str, str], Callable[[Path], Callable[[], object]]] = {
    ("_could_run", "constant: 0.0 -> 1.0"): _without_a_node,
    ("has_idle_room", "constant: 0 -> 1"): _without_idle_gpus,
    ("slowdown_left", "operator: 1.0 + max_slowdown -> 1.0 - max_slowdown"): _exact_numbers,
    ("_room", "constant: 1.0 -> 2.0"): _any_slowdown,
}
"""Changes, by function and text, that decide nothing, each with a run over all symbols that proves it. Only those that
no promise refutes are asked: a promise covers the cases that a run here leaves out."""
