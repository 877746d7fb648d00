"""What a network of clock outcomes reaches in the simulated cluster, beside tables and the best static set-up."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from research.results.provenance import revision
from research.results.sections.hidden_site import KINDS
from research.results.slurm_place import SlurmPlaceRule, slurm_place_figures
from research.results.tuning import read_tuned
from slurm_energy.evaluation.arena.run import simulated_run
from slurm_energy.evaluation.arena.summary import Estimate, paired_difference_percent
from slurm_energy.evaluation.contenders import create_contender
from slurm_energy.evaluation.metrics import metrics_of

FILE = Path("docs/reference/results/outcomes.json")
SEEDS = (820101, 820102, 820103, 820104)
"""Nothing was chosen on them."""
STATIC, SLURM = "static-best", "Slurm alone"
ROWS = {
    STATIC: "",
    SLURM: "slurm-default",
    "bound in the mean, any exchange, tables": "daemon/oracle:mean=1,exchange=0",
    "the same, network": "daemon/oracle:mean=1,exchange=0,predictions=network",
    "defaults, tables": "daemon/oracle",
    "defaults, network": "daemon/oracle:predictions=network",
}
"""Contenders by their titles; the best static set-up is the one that was chosen for the site."""
Runs = dict[str, dict[str, dict[str, float | str]]]
"""Figures by row and seed."""


def figures_of_run(title: str, seed: int) -> dict[str, float | str]:
    """Return the figures of one run."""
    site = KINDS[0]
    tuned = read_tuned()[site.tuning_key]
    watched = SlurmPlaceRule(create_contender(ROWS[title] or tuned.static))
    done = simulated_run(site.plan(tuned), watched, seed)
    metrics = metrics_of(done.outcome, done.world, done.jobs)
    return {
        "joules_per_unit": metrics.joules_per_unit or 0.0,
        "mean_turnaround_seconds": 0.0 if metrics.turnaround is None else metrics.turnaround.mean_seconds,
        "jobs": float(metrics.jobs),
        "revision": revision(),
        **slurm_place_figures(watched, done.world, done.jobs, done.outcome),
    }


def run_missing(path: Path = FILE) -> Runs:
    """Run what the file lacks, whole seeds first, and write it after each run."""
    runs: Runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for seed in SEEDS:
        for title in ROWS:
            mine = runs.setdefault(title, {})
            if str(seed) not in mine:
                mine[str(seed)] = figures_of_run(title, seed)
                path.write_text(json.dumps(runs, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return runs


def reached_table(runs: Mapping[str, Mapping[str, Mapping[str, float | str]]]) -> Iterator[str]:
    """Yield the lines of the table; rows without a run are left out."""
    yield "| | energy, % [95 %] | mean slowdown, % | beyond 5 %, % of jobs | turnaround against Slurm's, % | seeds |"
    yield "|---|---|---|---|---|---|"
    for title in ROWS:
        mine = runs.get(title, {})
        seeds = sorted(mine.keys() & runs.get(STATIC, {}).keys() & runs.get(SLURM, {}).keys())
        if not seeds:
            continue

        def column(of: str, figure: str, seeds: Sequence[str] = seeds) -> list[float]:
            return [float(runs[of][seed][figure]) for seed in seeds]

        energy, turnaround = (
            paired_difference_percent(column(title, figure), column(base, figure))
            for figure, base in (("joules_per_unit", STATIC), ("mean_turnaround_seconds", SLURM))
        )
        slowdown, beyond = (
            fmean(column(title, figure)) for figure in ("slurm_place_slowdown_percent", "jobs_beyond_bound_percent")
        )
        cells = (
            title,
            "0" if title == STATIC else _text(energy),
            f"{slowdown:.1f}",
            f"{beyond:.1f}",
            _text(turnaround, interval=False),
            len(seeds),
        )
        yield f"| {' | '.join(map(str, cells))} |"


def _text(found: Estimate | None, *, interval: bool = True) -> str:
    if found is None:
        return "-"
    if not interval or found.low is None or found.high is None:
        return f"{found.mean:+.1f}"
    return f"{found.mean:+.1f} [{found.low:+.1f}, {found.high:+.1f}]"
