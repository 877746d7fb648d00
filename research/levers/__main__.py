"""Energy, turnaround and jobs beyond their bound of each lever against the best static set-up.

    python -m research.levers --output FILE [--kinds half,named,open,wide] [--loads 0.6] [--seeds 3] [--budget 1500]
    python -m research.levers --output FILE --page

World `mixed-hidden`: policies know what an installed product knows, and learn from runs that ended. The base line is
`static-best`: the order of the partitions and the clock of each GPU type that were chosen for the site on other
arrivals. Rows are of the same arrivals and users: what users leave to the site is all that differs. Runs are added to
the file one by one, those that it has are not done again, and none is begun after the budget of seconds.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from tempfile import mkdtemp
from time import monotonic

from research.results.sections.hidden_site import KINDS, WORLD
from research.results.slurm_place import SlurmPlaceRule, slurm_place_figures
from research.results.tuning import Tuned, read_tuned
from slurm_energy.evaluation.arena.plan import ArenaPlan
from slurm_energy.evaluation.arena.run import simulated_run
from slurm_energy.evaluation.arena.summary import Estimate, paired_difference_percent
from slurm_energy.evaluation.contenders import create_contender
from slurm_energy.evaluation.metrics import metrics_of
from slurm_energy.twin.engine.knowledge import workload_kinds
from slurm_energy.twin.world.device_model import Scaling
from slurm_energy.twin.world.file import shipped_world
from slurm_energy.twin.world.writer import world_to_toml

STATIC, NOTHING = "static-best", "nothing"
HOURS, WARM_UP_HOURS = 48.0, 12.0
KINDS_OF_SITE = {"open": 0.0, "half": 0.5, "named": 1.0, "wide": 0.5}
"""Share of the users who name one partition in all their jobs."""
WIDE = "wide"
"""Kind of site at which jobs ask for 1, 2, 4 or 8 GPUs alike, and work scales as measured of training on A100."""
CURVES = Path(__file__).parents[1] / "calibration" / "scaling.json"
RATES = {0.3: 0.00061, 0.6: 0.00122, 0.9: 0.00183}
_ROUTES = "open=1"
_CLOCKS = "mean=1,exchange=0"
_COUNTS = "gpu_count=on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A lever, or several."""

    title: str
    policy: str
    """As the arena names it."""
    open_partitions: float = 0.0
    """Share of those who name a partition and accept the invitation."""
    gpu_ranges: float = 0.0
    """Share of the users whose jobs name several numbers of GPUs."""


ROWS = {
    "clocks": Row(title="clocks alone, 5 % in the mean of programs", policy=f"daemon/auto:{_CLOCKS},gpu_count=off"),
    "invite": Row(
        title="partitions, half of those who name one accept", policy=f"daemon/auto:{_ROUTES},gpu_count=off",
        open_partitions=0.5,
    ),
    "redecide": Row(
        title="the same, decided again while jobs wait", policy=f"daemon/auto:{_ROUTES},gpu_count=off,redecide=300",
        open_partitions=0.5,
    ),
    "counts100": Row(title="GPU counts, all give a range", policy=f"daemon/auto:{_COUNTS}", gpu_ranges=1.0),
    "counts30": Row(title="GPU counts, 30 % give a range", policy=f"daemon/auto:{_COUNTS}", gpu_ranges=0.3),
    "all30": Row(
        title="all together, half accept, 30 % give a range",
        policy=f"daemon/auto:{_ROUTES},{_CLOCKS},{_COUNTS},redecide=300", open_partitions=0.5, gpu_ranges=0.3,
    ),
    "all100": Row(
        title="all together, all accept, all give a range",
        policy=f"daemon/auto:{_ROUTES},{_CLOCKS},{_COUNTS},redecide=300", open_partitions=1.0, gpu_ranges=1.0,
    ),
}  # fmt: skip
PARTITION_ROWS = ("invite", "redecide")
"""Rows of partitions alone: without meaning where no user names one, as such jobs wait for all partitions anyway."""
FIGURES = (
    "joules_per_unit",
    "mean_turnaround_seconds",
    "jobs_beyond_bound_percent",
    "slurm_place_slowdown_percent",
)


def plan_of_site(kind: str, load: float, row: Row | None) -> tuple[ArenaPlan, Tuned]:
    """Return the arrivals of a kind of site at a load, with the partition order that was chosen for it."""
    site = replace(KINDS[0], load=load, named_partitions=KINDS_OF_SITE[kind])
    every = read_tuned()
    tuned = every.get(site.tuning_key) or every[KINDS[0].tuning_key]
    plan = site.plan(tuned)
    settings = dict(plan.settings)
    if row is not None:
        settings |= {"open_partitions": row.open_partitions, "gpu_ranges": row.gpu_ranges}
    if kind == WIDE:
        # As much work as elsewhere in GPU time with the numbers that jobs ask for.
        settings |= {"gpu_mix": "1:1,2:1,4:1,8:1", "rate_per_second": float(settings["rate_per_second"]) / _mean_loss()}
    return replace(
        plan,
        world=wide_world_file() if kind == WIDE else WORLD,
        horizon_seconds=HOURS * 3600.0,
        warm_up_seconds=WARM_UP_HOURS * 3600.0,
        settings=tuple(settings.items()),
    ), tuned


@cache
def _efficiencies() -> tuple[dict[int, float], ...]:
    """Return nine of the thirteen curves of ElasticFlow's applications on A100, evenly taken, by number of GPUs."""
    known = [one["efficiency_by_count"] for one in json.loads(CURVES.read_text())["curves"] if one["gpu"] == "a100"]
    chosen = [known[round(at * (len(known) - 1) / 8)] for at in range(9)]
    return tuple({gpus: float(one[str(gpus)]) for gpus in (1, 2, 4, 8)} for one in chosen)


def _mean_loss() -> float:
    return fmean(1.0 / share for one in _efficiencies() for share in one.values())


@cache
def wide_world_file() -> str:
    """Write the world in which each kind of work scales by one of the curves; return where."""
    world = shipped_world(WORLD)
    kinds = dict(zip(workload_kinds(world), _efficiencies(), strict=True))
    devices = {
        name: replace(
            device,
            loads={
                kind: replace(load, scaling=Scaling(efficiency_by_count=kinds[kind])) if kind in kinds else load
                for kind, load in device.loads.items()
            },
        )
        for name, device in world.devices.items()
    }
    path = Path(mkdtemp(prefix="levers-"), "wide.toml")
    path.write_text(world_to_toml(replace(world, devices=devices)), encoding="utf-8")
    return str(path)


def figures_of_run(kind: str, load: float, name: str, seed: int) -> dict[str, float]:
    """Return the figures of one run."""
    row = ROWS.get(name)
    plan, tuned = plan_of_site(kind, load, row)
    text = row.policy if row is not None else tuned.static if name == STATIC else "slurm-default"
    watched = SlurmPlaceRule(create_contender(text))
    done = simulated_run(plan, watched, seed)
    metrics = metrics_of(done.outcome, done.world, done.jobs)
    found = {
        "joules_per_unit": metrics.joules_per_unit or 0.0,
        "total_joules": metrics.total_joules,
        "mean_turnaround_seconds": 0.0 if metrics.turnaround is None else metrics.turnaround.mean_seconds,
        "jobs": float(metrics.jobs),
        "completed_jobs": float(metrics.completed_jobs),
        "timeouts": float(metrics.jobs_by_state.get("TIMEOUT", 0)),
    }
    return found | slurm_place_figures(watched, done.world, done.jobs, done.outcome)


Runs = dict[str, dict[str, dict[str, float]]]
"""Figures by `KIND LOAD ROW` and seed."""


def run_all(output: Path, kinds: list[str], loads: list[float], seeds: list[int], budget_seconds: float) -> None:
    """Run what the file lacks, whole seeds first, until the budget is spent."""
    runs: Runs = json.loads(output.read_text()) if output.exists() else {}
    end = monotonic() + budget_seconds
    for load in loads:
        for seed in seeds:
            for kind in kinds:
                for name in (STATIC, NOTHING, *ROWS):
                    if name in PARTITION_ROWS and not KINDS_OF_SITE[kind]:
                        continue
                    mine = runs.setdefault(f"{kind} {load:g} {name}", {})
                    if str(seed) in mine:
                        continue
                    if monotonic() > end:
                        return
                    mine[str(seed)] = figures_of_run(kind, load, name, seed)
                    output.write_text(json.dumps(runs, indent=1, sort_keys=True) + "\n")
                    print(kind, load, name, seed, mine[str(seed)], flush=True)


def page(runs: Runs) -> Iterator[str]:
    """Yield the tables, with what was not run."""
    for load in sorted({float(key.split()[1]) for key in runs}):
        for kind in KINDS_OF_SITE:
            base = runs.get(f"{kind} {load:g} {STATIC}", {})
            rows = [line for name in (NOTHING, *ROWS) if (line := _line(runs, kind, load, name, base))]
            if rows:
                yield f"## {_SITE[kind]}, load {load:g}\n"
                yield "| lever | energy, % | turnaround, % | slowdown, % | beyond bound, % | TIMEOUT | seeds |"
                yield "|---|---|---|---|---|---|---|"
                yield f"| `static-best` | 0 | 0 | {' | '.join(_absolute(base))} | {len(base)} |"
                yield from rows
                yield ""


_SITE = {
    "open": "No user names a partition",
    "half": "Half of the users name one partition",
    "named": "All users name one partition",
    "wide": "Half name one partition, jobs ask for 1, 2, 4 or 8 GPUs, work scales as measured",
}


def _line(runs: Runs, kind: str, load: float, name: str, base: Mapping[str, Mapping[str, float]]) -> str:
    mine = runs.get(f"{kind} {load:g} {name}", {})
    seeds = sorted(mine.keys() & base.keys())
    if not seeds:
        return ""
    energy, turnaround = (
        paired_difference_percent([mine[seed][figure] for seed in seeds], [base[seed][figure] for seed in seeds])
        for figure in FIGURES[:2]
    )
    title = ROWS[name].title if name in ROWS else "Slurm at default clocks"
    cells = (title, _text(energy, sign=True), _text(turnaround, sign=True), *_absolute(mine))
    return f"| {' | '.join(cells)} | {len(seeds)} |"


def _absolute(runs: Mapping[str, Mapping[str, float]]) -> tuple[str, str, str]:
    """Return slowdown, jobs beyond their bound, and jobs that were cut off, in the mean of the seeds."""
    slowdown, beyond = (_mean(runs, figure) for figure in (FIGURES[3], FIGURES[2]))
    return f"{slowdown + 0.0:+.1f}".replace("-0.0", "+0.0"), f"{beyond:.1f}", f"{_mean(runs, 'timeouts'):.1f}"


def _mean(runs: Mapping[str, Mapping[str, float]], figure: str) -> float:
    return fmean(run[figure] for run in runs.values()) if runs else 0.0


def _text(found: Estimate | None, *, sign: bool = False) -> str:
    if found is None:
        return "-"
    form = "+.1f" if sign else ".1f"
    if found.low is None or found.high is None:
        return f"{found.mean:{form}}"
    return f"{found.mean:{form}} [{found.low:.1f}, {found.high:.1f}]"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--kinds", default="half,named,open,wide")
    parser.add_argument("--loads", default="0.6,0.3,0.9")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=101)
    parser.add_argument("--budget", type=float, default=1e9)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    if given.page:
        print("\n".join(page(json.loads(given.output.read_text()))))
    else:
        run_all(
            given.output,
            given.kinds.split(","),
            [float(load) for load in given.loads.split(",")],
            list(range(given.first_seed, given.first_seed + given.seeds)),
            given.budget,
        )
