"""First estimates for jobs that never ran: by what their scripts say, from runs of other jobs on every GPU type.

The similarity of rates (`rates`) has scales that were fitted to public measurements: how much families of programs
differ in what they gain from a GPU type, how much batch sizes do, and what data sheets say. Given the site's own runs
it says what a job of the same family gains. Programs of one family may do any amount of work, so that a term for the
amount is added: only ratios between types are known, each with its doubt.
"""

from collections.abc import Iterator, Mapping
from math import log2

import numpy as np

from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.domain.work import WorkEstimate
from slurm_energy.estimation.gaussian_process import (
    GaussianProcess,
    Kernel,
    Term,
    doubt_factor,
    factor,
    fit_process,
    read_kernel,
)
from slurm_energy.estimation.job_groups import GROUP_MARK, script_family
from slurm_energy.estimation.rates import KERNELS, Codes, RatePlace, Work, catalogue_sheets, rate_columns
from slurm_energy.estimation.run_groups import RunGroups

MAX_ENTRIES = 400
"""Means of one name on one GPU type that estimates are made from, those of most runs: time grows with their cube."""
MAX_ESTIMATES = 500
_AMOUNT = Term(scale=2.0, factors=(factor("same work"),))
_ANY_JOB = "any job"


def first_estimates(
    groups: RunGroups, scripts: Mapping[tuple[int | str, str], ScriptFeatures]
) -> Iterator[tuple[str, WorkEstimate]]:
    """Yield what is expected of a job that never ran, by the words of `alike_groups`.

    Args:
        groups: Runs of all names.
        scripts: What was read of the scripts of some names.
    """
    works = _works(groups, scripts)
    entries = sorted(
        ((int(groups.runs[row, column]), row, column) for row in works for column in range(len(groups.gpu_types))),
        reverse=True,
    )
    chosen = [(row, column) for runs, row, column in entries[:MAX_ENTRIES] if runs]
    if not chosen or len(groups.gpu_types) < 2:
        return
    model = _ScriptModel(groups, works, chosen)
    seen: dict[str, Work] = {}
    for row, _ in chosen:
        work = works[row]
        seen.setdefault(f"{GROUP_MARK}{work.family}", Work(_ANY_JOB, work.family))
        if work.batch_size is not None:
            magnitude = round(log2(work.batch_size))
            seen.setdefault(f"{GROUP_MARK}{work.family} {magnitude}", Work(_ANY_JOB, work.family, 2.0**magnitude))
    for key, work in list(seen.items())[:MAX_ESTIMATES]:
        yield key, model.estimate(work, like_names=len({row for row, _ in chosen if works[row].family == work.family}))


def _works(groups: RunGroups, scripts: Mapping[tuple[int | str, str], ScriptFeatures]) -> dict[int, Work]:
    """Return the work of each row whose script says of what family it is."""
    found = {}
    for row, name in enumerate(groups.names):
        script = scripts.get((name.user, name.name))
        family = "" if script is None else script_family(script)
        if script is not None and family and groups.runs[row].any():
            batch = None if script.batch_size is None else float(script.batch_size)
            found[row] = Work(f"{name.user} {name.name}", family, batch)
    return found


class _ScriptModel:
    """Time and power of all work on all types of a site."""

    def __init__(self, groups: RunGroups, works: Mapping[int, Work], chosen: list[tuple[int, int]]) -> None:
        self._types, self._sheets, self._codes = groups.gpu_types, catalogue_sheets(), Codes()
        entries = [(works[row], RatePlace(groups.gpu_types[column])) for row, column in chosen]
        columns = rate_columns(entries, self._codes, self._sheets, learn=True)
        rows, places = (np.array(index) for index in zip(*chosen, strict=True))
        cells = [np.array([entry == other for other in entries]) for entry in dict.fromkeys(entries)]
        rates, power = read_kernel(KERNELS, "rates"), read_kernel(KERNELS, "power")
        self._processes: list[GaussianProcess] = []
        self._factors: list[float] = []
        for quantity, kernel in enumerate((Kernel(terms=(*rates.terms, _AMOUNT), noise=rates.noise), power)):
            values = groups.means[rows, quantity, places]
            process = fit_process(kernel, columns, values, groups.variances[rows, quantity, places])
            self._processes.append(process)
            self._factors.append(max(1.0, doubt_factor(process, cells, np.ones(len(entries), dtype=bool))))

    def estimate(self, work: Work, like_names: int) -> WorkEstimate:
        """Return what is expected of some work that never ran, on all types."""
        entries = [(work, RatePlace(name)) for name in self._types]
        columns = rate_columns(entries, self._codes, self._sheets, learn=True)  # one job: alike to itself on all types
        (log_seconds, covariance), (log_watts, watts_covariance) = (one.joint(columns) for one in self._processes)
        own = np.diag(covariance)
        apart = np.sqrt(np.maximum(own[:, None] + own[None, :] - 2.0 * covariance, 0.0)) * self._factors[0]
        return WorkEstimate(
            runs_by_type={},
            gpu_types=self._types,
            log_seconds=tuple(log_seconds.tolist()),
            log_seconds_doubt=tuple(map(tuple, apart.tolist())),
            log_watts=tuple(log_watts.tolist()),
            watts_spread=float(np.sqrt(np.diag(watts_covariance).max())) * self._factors[1],
            like_names=like_names,
        )
