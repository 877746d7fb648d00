"""The exact policy: for each GPU type the clock of least energy inside the bound, and the cheapest partition."""

from slurm_energy.domain.decision import ClockChoice, PolicyAnswer, Reason
from slurm_energy.domain.ids import PartitionName
from slurm_energy.policy.base import Case
from slurm_energy.policy.site.comparison import Candidate, clock_choice, landing_on, landing_types, with_room
from slurm_energy.policy.site.type_bound import cheapest, default_candidate, lacks_runs_at_home


class OraclePolicy:
    """Exact on what was measured: nothing better exists among the supported clocks under the same bound.

    Which kind of work a job does is not known: the bound holds for every measured workload of the GPU type, the saving
    is their mean. Both are against what the site's boards reach at their default clock inside their power limit.
    """

    name = "oracle"
    version = "1"

    def decide(self, case: Case) -> PolicyAnswer:
        """Return a clock for each GPU type that the job can land on and, where routing is open, a partition."""
        partitions, reasons, notes = self._route(case)
        return PolicyAnswer(
            partitions=partitions,
            clocks=oracle_clocks(case, partitions),
            reasons=(Reason.POLICY, *reasons),
            notes=notes,
        )

    def _route(self, case: Case) -> tuple[tuple[PartitionName, ...] | None, tuple[Reason, ...], tuple[str, ...]]:
        """Return the chosen partition, or None to leave the job where it is, with reasons and notes."""
        if not case.may_route:
            return None, (), ()
        if not with_room(case.candidates):
            return None, (Reason.NO_IDLE_PARTITION,), ("no partition has room now: the choice is left to Slurm",)
        best = cheapest(case.candidates, case.type_bound)
        if best is None:
            return None, (), ("the GPU types with room cannot be compared: the choice is left to Slurm",)
        name, idle = best.candidate.partition.name, with_room(case.candidates)
        own = default_candidate(idle)
        if landing_on(idle, None) == (best.candidate,) and len(idle) == 1:
            return None, (), (f"{name} alone has room now: Slurm starts the job there without our doing",)
        if best.candidate is own:
            return None, (), (f"{name}, where Slurm starts the job, costs the least: it is not sent elsewhere",)
        if lacks_runs_at_home(best.candidate, own, case.comparison):
            return None, (), (trial_note(best.candidate),)
        return (name,), (), (f"{name} costs the least of those with room now",)


def oracle_clocks(case: Case, partitions: tuple[PartitionName, ...] | None) -> tuple[ClockChoice, ...]:
    """Return the clock of least energy inside the bound for each GPU type that the job can land on.

    Args:
        case: The job's.
        partitions: Those to which the job is sent, None where it stays as it was submitted; sent elsewhere, it has
            what its bounds leave against where Slurm would start it.
    """
    limits, comparison, type_bound = case.board_limits, case.comparison, case.type_bound
    choices = []
    for gpu_type in landing_types(landing_on(case.candidates, partitions)):
        bound = case.max_slowdown if partitions is None else type_bound.left(gpu_type)
        if bound is not None:
            table = comparison.clock_table(gpu_type)
            choices.append(clock_choice(gpu_type, None if table is None else table.best(bound), limits))
    return tuple(choice for choice in choices if choice is not None)


def trial_note(candidate: Candidate) -> str:
    """Return why a job is not sent to the partition of the least cost."""
    name = candidate.partition.name
    return f"{name} is the cheapest by tables; this run is left to Slurm, to compare those of its name there with"
