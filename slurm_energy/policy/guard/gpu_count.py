"""What the guard lets through of a number of GPUs: one that the user named, and that Slurm and the nodes allow."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from slurm_energy.config import Config
from slurm_energy.domain.cluster import NodeState, PartitionState
from slurm_energy.domain.decision import Reason, RuntimeEstimate
from slurm_energy.domain.gpu_count import UNKNOWN_SCALING, GpuCountOption
from slurm_energy.policy.base import Case, CountCost
from slurm_energy.policy.site.candidates import asked_partitions
from slurm_energy.policy.site.gpu_count import cheapest_count, chosen_count, count_effect

_DEVIATIONS = 1.645
"""Of the doubt in how work scales: a run time is passed in one of twenty cases."""

_USABLE = 0.9
"""Share of a node's CPUs and memory that jobs surely get: CoreSpecCount and MemSpecLimit may keep back the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedCase:
    """A case in which the job has the number of GPUs that it is given."""

    case: Case
    asked: int
    gpus: int | None = None
    """None where there was no choice."""
    longer: float = 1.0
    """Run time over that with the job's own number, in the middle."""
    joules_ratio: float = 1.0
    """The same of the GPUs' energy."""
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether the number is another than the job's own."""
        return self.gpus is not None and self.gpus != self.asked


CountCosts = Callable[[Sequence[Case]], Sequence[CountCost]]
"""What a policy says of a job with each of several numbers of GPUs; nothing where it weighs none."""


def with_chosen_count(case: Case, config: Config, costs: CountCosts | None = None) -> CountedCase:
    """Return the case with the number of GPUs that the job is given; its own where none was to be chosen.

    Args:
        case: The job's, with its own number.
        config: The site's.
        costs: Asked where the name's runs tell how its work scales; without an answer a rule chooses.
    """
    job, asked = case.job, case.job.gpu_count
    unchanged = CountedCase(case=case, asked=asked)
    if not job.options.gpu_counts:
        return unchanged
    if config.policy.gpu_count == "off":
        return replace(unchanged, reasons=(Reason.GPU_COUNT_OFF,))
    if job.count_refusal or not job.count_options:
        why = job.count_refusal or "no other number is offered"
        return replace(unchanged, reasons=(Reason.GPU_COUNT_REFUSED,), notes=(f"the number of GPUs stays: {why}",))
    options = {option.gpus: option for option in job.count_options if option.gpus == asked or _may_have(case, option)}
    case = replace(case, gpu_counts=tuple(sorted(options)))
    if len(options) < 2:
        note = f"no other number of GPUs fits nodes or deadline: {asked} as asked for"
        return replace(unchanged, case=case, gpus=asked, reasons=(Reason.GPU_COUNT_KEPT,), notes=(note,))
    chosen = chosen_count(case, config.policy)
    if costs is not None and config.policy.gpu_count == "on" and case.scaling is not None and case.scaling.is_measured:
        chosen = cheapest_count(case, costs(tuple(_weighed(case, one) for one in options.values()))) or chosen
    if chosen.gpus == asked:
        return CountedCase(
            case=replace(case, runtime=_runtime(case, asked)),
            asked=asked,
            gpus=asked,
            reasons=(Reason.GPU_COUNT_KEPT,),
            notes=(chosen.note,),
        )
    longer, joules_ratio = count_effect(case, chosen.gpus)
    return CountedCase(
        case=_with(case, options[chosen.gpus]),
        asked=asked,
        gpus=chosen.gpus,
        longer=longer,
        joules_ratio=joules_ratio,
        reasons=(Reason.GPU_COUNT,),
        notes=(chosen.note,),
    )


def _with(case: Case, option: GpuCountOption) -> Case:
    return replace(case, job=case.job.with_count(option), runtime=_runtime(case, option.gpus))


def _weighed(case: Case, option: GpuCountOption) -> Case:
    """Return the case with a number of GPUs as a policy weighs it: what more than asked for gain is doubted."""
    given, scaling = _with(case, option), case.scaling
    if scaling is None or given.runtime is None or option.gpus <= case.job.gpu_count:
        return given
    doubt = max(1.0, scaling.speedup(option.gpus) / scaling.speedup(option.gpus, 1.0))
    doubt /= max(1.0, scaling.speedup(case.job.gpu_count) / scaling.speedup(case.job.gpu_count, 1.0))
    seconds = given.runtime.seconds * max(1.0, doubt)
    known = replace(given.runtime, seconds=seconds, upper_seconds=max(seconds, given.runtime.upper_seconds))
    return replace(given, runtime=known)


def _runtime(case: Case, gpus: int) -> RuntimeEstimate | None:
    """Return the run time with some number of GPUs; its bound has the doubt of how the work scales."""
    known = case.runtime
    if known is None:
        return None
    scaling, before = case.scaling or UNKNOWN_SCALING, known.gpus or case.job.gpu_count
    if before == gpus:
        return known
    ratios = [scaling.speedup(before, away) / scaling.speedup(gpus, away) for away in (0.0, -_DEVIATIONS, _DEVIATIONS)]
    return replace(known, seconds=known.seconds * ratios[0], upper_seconds=known.upper_seconds * max(ratios), gpus=gpus)


def _may_have(case: Case, option: GpuCountOption) -> bool:
    """Return whether nodes and deadline allow a number; Slurm's side has looked at partitions and accounts."""
    if option.gpus > case.job.gpu_count:
        return _fits_nodes(case, option)
    deadline = case.job.options.deadline_seconds
    if deadline is None:
        return True
    runtime = _runtime(case, option.gpus)
    return runtime is not None and case.now_seconds + runtime.upper_seconds <= deadline


def _fits_nodes(case: Case, option: GpuCountOption) -> bool:
    """Return whether each of the job's partitions has nodes for it, free or not: Slurm may start it in any of them."""
    partitions = asked_partitions(case)
    return bool(partitions) and all(_fits(case, one, option) for one in partitions)


def _fits(case: Case, partition: PartitionState, option: GpuCountOption) -> bool:
    found = sorted(_sizes(case, partition), key=lambda size: size[0], reverse=True)
    if not found:
        return False
    nodes = option.nodes or ceil(option.gpus / found[0][0])
    # Where Slurm chooses the nodes, what is said of one node is of the whole job.
    cpus = option.cpus_per_node if option.nodes else ceil(option.cpus_per_node / nodes)
    memory = option.memory_per_node_mib or 0.0
    gpus = ceil(option.gpus / nodes)
    fitting = sum(
        node_gpus >= gpus and node.cpus * _USABLE >= cpus and (node.memory_mib or 0.0) * _USABLE >= memory
        for node_gpus, node in found
    )
    return fitting >= nodes


def _sizes(case: Case, partition: PartitionState) -> Iterator[tuple[int, NodeState]]:
    """Yield GPUs of the type asked for and the node, of each node in which Slurm starts jobs."""
    asked = case.job.gpu_types
    for node in case.snapshot.nodes_by_partition.get(partition.name, ()):
        gpus = sum(some.count for some in node.gpus if not asked or some.slurm_type in asked)
        if node.available and gpus:
            yield gpus, node
