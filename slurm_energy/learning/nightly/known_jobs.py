"""What the daemon knows of earlier jobs, read from its database at once: a candidate is judged on the same."""

from collections.abc import Mapping
from dataclasses import replace

from slurm_energy.config import Config
from slurm_energy.domain.ids import ClusterName, GpuTypeName
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.estimation.job_history import (
    CompareTypes,
    JobHistory,
    NameOf,
    ended_run,
    named_work,
    scaled_names,
    timed_names,
)
from slurm_energy.estimation.learned_clocks import learned_clocks
from slurm_energy.estimation.run_time import RUNS_PER_NAME
from slurm_energy.estimation.site_clocks import EndedJobs, site_clocks
from slurm_energy.policy.site.comparison import TypeComparison
from slurm_energy.policy.site.settings import site_board_limits
from slurm_energy.store.clock_trials import trials_of_names
from slurm_energy.store.past_runs import (
    HISTORY_DAYS,
    all_recent_runtimes,
    counted_failures,
    failed_jobs,
    measured_runs,
    read_scripts,
)
from slurm_energy.store.session import Session


def known_jobs(session: Session, cluster: ClusterName, config: Config, now_seconds: float) -> JobHistory:
    """Return what ended jobs say of the next ones, under the site's settings.

    Args:
        session: Of the site's database.
        cluster: Whose jobs.
        config: The site's: what its daemon learns from runs, it learns here.
        now_seconds: Unix time.

    Raises:
        StoreError: the database cannot be read.
    """
    policy, limits = config.policy, site_board_limits(config)
    begin = now_seconds - HISTORY_DAYS * 86_400.0
    timed = list(all_recent_runtimes(session, cluster, begin, RUNS_PER_NAME))
    measured = list(measured_runs(session, cluster, begin, RUNS_PER_NAME))
    scripts = read_scripts(session, cluster, begin) if policy.learn_from_runs else {}
    failed = counted_failures(run for _, _, run in failed_jobs(session, cluster, begin))
    works = named_work(measured, failed, scripts)[0] if policy.learn_from_runs else []
    work = {(user, name): estimate for user, name, estimate in works}

    def compare_for(user: int, name: str) -> CompareTypes:
        return TypeComparison(limits=limits, work=work.get((user, name))).cost

    tried = [] if policy.clock_trials == "off" else list(learned_clocks(trials_of_names(session, cluster, begin)))
    clocks: dict[NameOf, Mapping[GpuTypeName, LearnedClock]] = {(user, name): found for user, name, found in tried}
    history = JobHistory(
        runtimes={(user, name): found for user, name, found in timed_names(timed, compare_for)[0]},
        work=work,
        clocks=clocks,
    )
    if policy.learn_from_runs:
        scaling = scaled_names(timed, compare_for)
        history = replace(history, scaling={(user, name): found for user, name, found in scaling})
    if policy.slowdown_bound == "mean":
        bounds = (policy.max_slowdown, policy.saver_max_slowdown)
        ended = EndedJobs(timed=map(ended_run, timed))
        of_site = site_clocks(tried, measured, bounds, limits, now_seconds, ended)
        history = replace(history, site_clocks=of_site)
    if policy.clock_predictions == "network":
        from slurm_energy.policy.gnn.outcomes.inference import loaded_network  # noqa: PLC0415  # numpy: no base
        from slurm_energy.policy.gnn.outcomes.site import SitePredictions, run_records  # noqa: PLC0415  # the same

        records = list(run_records(measured if policy.learn_from_runs else (), scripts, clocks))
        table = SitePredictions(loaded_network(), records, limits, now_seconds).table()
        history = replace(history, predicted={(user, name): found for user, name, found in table})
    return history
