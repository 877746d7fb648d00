"""Numbers of GPUs that sbatch's options leave open (`--energy-gpus`), as far as these options alone tell: for dry runs.

The plugin of slurmctld has the last word: it also looks at the script's own numbers and at limits of partitions and
accounts, which only slurmctld knows. What this module cannot tell for sure, it leaves to that plugin.
"""

from dataclasses import dataclass
from math import ceil
from typing import Final

from slurm_energy.domain.gpu_count import GpuCountOption, parse_gpu_counts
from slurm_energy.slurm.gres import gpu_demands
from slurm_energy.slurm.sbatch_options import keeps_others_out
from slurm_energy.slurm.sbatch_values import Options, memory_mib, node_range, tres_request, whole_number

_KEEPS: Final = {
    "nodelist": "it names its nodes (--nodelist)",
    "nodefile": "it names its nodes (--nodefile)",
    "reservation": "it runs in a reservation",
    "gpus-per-socket": "it asks for GPUs by socket",
    "switches": "it limits its switches",
    "time-min": "it gives a least time (--time-min)",
    "deadline": "it has a deadline of Slurm (--deadline)",
    "threads-per-core": "it limits the threads of a core (--threads-per-core or --hint)",
    "core-spec": "it sets cores or threads aside (--core-spec or --thread-spec)",
    "thread-spec": "it sets cores or threads aside (--core-spec or --thread-spec)",
    "contiguous": "it asks for nodes side by side (--contiguous)",
    "mincpus": "it asks for CPUs of a node (--mincpus)",
    "clusters": "it names clusters or a burst buffer",
    "bb": "it names clusters or a burst buffer",
    "overcommit": "it shares CPUs among tasks (--overcommit)",
}
"""Options with which a job keeps its number, and the plugin's words for why."""
_OPEN: Final = "which numbers this job could have is only known when it is submitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCounts:
    """What a user named, and what the job could be given of it."""

    text: str
    options: tuple[GpuCountOption, ...] = ()
    refusal: str = ""

    def fields(self) -> dict[str, str]:
        """Return them in the fields of the wire's `preview`."""
        shown = ",".join(
            f"{one.gpus}:{one.nodes}:{one.cpus_per_node}:{int(one.memory_per_node_mib or 0)}" for one in self.options
        )
        found = {"energy_gpus": self.text, "gpu_options": shown, "gpu_refusal": self.refusal}
        return {key: value for key, value in found.items() if value}


def named_counts(options: Options, *, is_single: bool = True) -> NamedCounts | None:
    """Return the numbers of GPUs that `--energy-gpus` leaves open; None without it.

    Args:
        options: Those in force.
        is_single: Whether the job has one component.

    Raises:
        ValueRangeError: the numbers, or another option, cannot be read.
    """
    text = options.get("energy-gpus")
    if text is None:
        return None
    counts = parse_gpu_counts(text)
    refusal = _refusal(options, is_single=is_single)
    if refusal:
        return NamedCounts(text=text, refusal=refusal)
    nodes, max_nodes = node_range(options.get("nodes"))
    if max_nodes is not None and max_nodes != nodes:
        return NamedCounts(text=text, refusal="it gives a range of nodes")
    tasks = _tasks(options, nodes)
    demands = gpu_demands(tres_request(options, nodes, max_nodes, tasks))
    if len(demands) > 1:
        return NamedCounts(text=text, refusal="its GPUs are of several types, or not a plain number")
    per_gpu = whole_number("--ntasks-per-gpu", options.get("ntasks-per-gpu"))
    asked = demands[0].count if demands else (tasks or 0) // (per_gpu or 1) if per_gpu and tasks else 0
    if not asked:
        return NamedCounts(text=text, refusal="it asks for no number of GPUs")
    if asked not in counts:
        return NamedCounts(text=text, refusal="its own number of GPUs is not among those of --energy-gpus")
    form = _AskedForm(options=options, asked=asked, nodes=nodes or (1 if (tasks or 1) == 1 else 0), tasks=tasks)
    found = tuple(one for one in map(form.option, counts) if one is not None)
    if len(found) < 2:
        return NamedCounts(text=text, refusal=_OPEN)
    return NamedCounts(text=text, options=found)


def _refusal(options: Options, *, is_single: bool) -> str:
    if not is_single:
        return "it is a part of a heterogeneous job"
    if "exclusive" in options and keeps_others_out(options["exclusive"]):
        return "it takes whole nodes (--exclusive)"
    return next((why for name, why in _KEEPS.items() if name in options), "")


def _tasks(options: Options, nodes: int | None) -> int | None:
    tasks = whole_number("--ntasks", options.get("ntasks"))
    per_node = whole_number("--ntasks-per-node", options.get("ntasks-per-node"))
    return tasks if tasks is not None or per_node is None else per_node * (nodes or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _AskedForm:
    """In what form a job asks for its own number."""

    options: Options
    asked: int
    nodes: int
    """0: Slurm chooses."""
    tasks: int | None

    def option(self, gpus: int) -> GpuCountOption | None:
        """Return what the job needs with another number; None where nodes and tasks do not follow it."""
        nodes, asked = self.nodes, self.asked
        if nodes > 1 and (asked % nodes or (gpus % (asked // nodes) and gpus > asked // nodes)):
            return None
        if nodes > 1:
            nodes = max(1, gpus // (asked // nodes))
        tasks = self._tasks_with(gpus, nodes)
        if tasks is None:
            return None
        cpus = tasks * (whole_number("--cpus-per-task", self.options.get("cpus-per-task")) or 1)
        by_gpu = whole_number("--cpus-per-gpu", self.options.get("cpus-per-gpu"))
        cpus = max(cpus, gpus * (by_gpu or 0))
        if not nodes and gpus > asked:
            return None  # on how many nodes Slurm places its tasks is open
        return GpuCountOption(
            gpus=gpus, nodes=nodes, cpus_per_node=ceil(cpus / max(1, nodes)), memory_per_node_mib=self._memory(gpus)
        )

    def _tasks_with(self, gpus: int, nodes: int) -> int | None:
        own = self.tasks or max(1, self.nodes)
        per_task = whole_number("--gpus-per-task", (self.options.get("gpus-per-task") or "").rpartition(":")[2] or None)
        if per_task:
            return None if gpus % per_task else gpus // per_task
        if "ntasks-per-gpu" not in self.options and self.nodes and own == self.nodes:
            return None if self.asked == 1 and self.tasks == 1 else nodes
        return None if own % self.asked else own // self.asked * gpus

    def _memory(self, gpus: int) -> float | None:
        memory = memory_mib("--mem", self.options.get("mem"))
        if memory is None or self.nodes > 1 or gpus <= self.asked:
            return memory
        return float(ceil(memory * gpus / self.asked))
