"""From measured runs to what a job of the same user and name needs on each GPU type."""

import logging
from collections.abc import Iterable

from slurm_energy.domain.work import FailedRuns, MeasuredRun, WorkEstimate
from slurm_energy.resources import install_command

logger = logging.getLogger(__name__)

MAX_NAMES = 10_000
NamedWork = tuple[int, str, WorkEstimate]


def named_work(runs: Iterable[MeasuredRun], failures: Iterable[FailedRuns] = ()) -> list[NamedWork]:
    """Return estimates of the names that ran last, those that only failed behind them; none without numpy."""
    try:
        from slurm_energy.estimation.run_groups import group_runs  # noqa: PLC0415  # numpy is no part of the base
        from slurm_energy.estimation.work_model import work_estimates  # noqa: PLC0415
    except ImportError as error:
        logger.info("runs say nothing of GPU types, %s reason=%s", install_command("daemon"), error)
        return []
    known = list(runs)
    newest: dict[tuple[int | str, str], float] = {}
    for run in known:
        key = run.user, run.name
        newest[key] = max(run.ended_at_seconds, newest.get(key, run.ended_at_seconds))
    found = [
        (newest.get((name.user, name.name), 0.0), int(name.user), name.name, estimate)
        for name, estimate in work_estimates(group_runs(known, failures))
    ]
    found.sort(key=lambda item: (-item[0], item[1], item[2]))
    return [(user_id, name, estimate) for _, user_id, name, estimate in found[:MAX_NAMES]]
