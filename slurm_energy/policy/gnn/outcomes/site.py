"""What the network expects of a site's jobs, from the same ended runs that the other estimates rest on."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.predicted_clocks import PredictedWork
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.domain.work import MeasuredRun
from slurm_energy.energy_model.catalog import BoardLimits
from slurm_energy.estimation.job_groups import GROUP_MARK, job_group, script_family
from slurm_energy.estimation.job_history import ANY_USER, NEVER_RAN, NameOf
from slurm_energy.policy.gnn.outcomes.graph import MAX_RUNS, Ask, RunVertex, catalogue_facts, run_graph
from slurm_energy.policy.gnn.outcomes.inference import OutcomeNetwork

MAX_PREDICTED_NAMES = 2_000
"""Those that ran last."""
_NO_USER = ""
NamedPrediction = tuple[int | str, str, PredictedWork]


def run_records(
    runs: Iterable[MeasuredRun],
    scripts: Mapping[str, ScriptFeatures],
    clocks: Mapping[NameOf, Mapping[GpuTypeName, LearnedClock]],
) -> Iterator[RunVertex]:
    """Yield runs, and what trials measured in the runs of a name beside the latest of them on the type.

    Args:
        runs: Brought to their default clocks.
        scripts: What was read of scripts, by their keys.
        clocks: What trials measured, by name.
    """
    latest: dict[tuple[NameOf, GpuTypeName], RunVertex] = {}
    for run in runs:
        script = None if run.script_key is None else scripts.get(run.script_key)
        record = RunVertex(
            user=run.user,
            group=job_group(run.name, run.script_key),
            family="" if script is None else script_family(script),
            gpu_type=run.gpu_type,
            gpus=run.gpus,
            seconds=run.seconds,
            watts=run.watts,
            ended_at_seconds=run.ended_at_seconds,
        )
        yield record
        key = (record.user, record.group), record.gpu_type
        if key not in latest or latest[key].ended_at_seconds < record.ended_at_seconds:
            latest[key] = record
    for (name, gpu_type), record in latest.items():
        learned = clocks.get(name, {}).get(gpu_type)
        for one in () if learned is None else (learned, *learned.others):
            if one.sm_clock_mhz < one.default_clock_mhz:
                tried = one.sm_clock_mhz / one.default_clock_mhz
                yield record._replace(relative_clock=tried, slowdown=one.slowdown, error=one.error)


class SitePredictions:
    """One look at a site's runs; what is expected of a job is worked out when it is asked for, and kept."""

    def __init__(
        self, network: OutcomeNetwork, records: Sequence[RunVertex], limits: BoardLimits, now_seconds: float
    ) -> None:
        facts = catalogue_facts({record.gpu_type for record in records}, limits)
        known = (record for record in records if record.gpu_type in facts)
        self._network, self._limits = network, limits
        self._records = nlargest(MAX_RUNS, known, key=lambda record: record.ended_at_seconds)
        self._graph = run_graph(self._records, facts, now_seconds)
        self._known: dict[Ask, PredictedWork | None] = {}

    def corrected(
        self, names: Collection[NameOf], records: Iterable[RunVertex], now_seconds: float
    ) -> "SitePredictions":
        """Return the look with the runs of some names in the place of theirs: its cost does not go with the history.

        Args:
            names: Those of which a run ended.
            records: All their runs.
            now_seconds: Unix time.
        """
        kept = [record for record in self._records if (record.user, record.group) not in names]
        return SitePredictions(self._network, [*kept, *records], self._limits, now_seconds)

    def of(self, ask: Ask) -> PredictedWork | None:
        """Return what is expected of a job; None where no run was measured."""
        if ask not in self._known:
            self._known[ask] = next(iter(self._of([ask])), None)
        return self._known[ask]

    def table(self, names: Collection[NameOf] | None = None) -> Iterator[NamedPrediction]:
        """Yield what is expected of names that ran, newest first, of names that never ran, and by script.

        Args:
            names: Whose predictions are wanted; None for all, and those that stand for jobs that never ran.
        """
        if not self._graph.types:
            return
        family_of = {index: family for family, index in self._graph.families.items()}
        known = self._graph.name_family.tolist()
        wanted = [
            (user, group, Ask(user, group, family_of.get(known[index], "")))
            for (user, group), index in self._graph.names.items()
            if names is None or (user, group) in names
        ][:MAX_PREDICTED_NAMES]
        if names is None:
            wanted += [(user, NEVER_RAN, Ask(user, NEVER_RAN, "")) for user in self._graph.users]
            wanted += [
                (ANY_USER, f"{GROUP_MARK}{family}", Ask(_NO_USER, NEVER_RAN, family)) for family in self._graph.families
            ]
            wanted.append((ANY_USER, NEVER_RAN, Ask(_NO_USER, NEVER_RAN, "")))
        for (user, name, _), found in zip(wanted, self._of([ask for _, _, ask in wanted]), strict=True):
            yield user, name, found

    def _of(self, asks: Sequence[Ask]) -> list[PredictedWork]:
        return self._network.predicted(self._graph, asks) if self._graph.types else []
