"""The sections of the results page: what is compared, with which rules, and what is asked for."""

from dataclasses import replace

from research.results import reasons
from research.results.cases import Case, Column, Goal, Section, plan_of
from research.results.cluster128 import FORMS, ROBUSTNESS, TUM
from research.results.merit import Merit
from research.results.price_settings import BALANCED, HUNGRY_HOSTS, PACKED, SAVER
from research.results.scenarios import CHEAPER_THAN_THE_RULE, SCENARIOS
from research.results.unseen_types import UNSEEN

_DAY_HOURS = 24.0
_EXCESS = "frontier_excess_percent"
_BOUNDED = Goal(
    text="queue at day's end does not grow by more than 1 % of a day's arrivals",
    figure="queue_growth_percent",
    kind="value",
    most=1.0,
)
_NO_WORSE = Goal(
    text="excess above adaptive-price's by no more than half of the interval of that, in points",
    figure=_EXCESS,
    kind="difference",
    against="adaptive-price",
    within_interval=True,
    why=reasons.FEW_SEEDS,
)
_LIGHT_LOAD = 0.04
"""Arrivals up to which a policy shall come within 0.5 % of the frontier, above it within 1 %."""


def _near_frontier(rate: float) -> Goal:
    most = 0.5 if rate <= _LIGHT_LOAD else 1.0
    return Goal(text=f"at most {most:g} % above the frontier", figure=_EXCESS, kind="value", most=most)


_FRONTIER_RULES = ("adaptive-price", "total-cost", "price:V=20", "greedy", "masked-random")


def _load(rate: float) -> Case:
    return Case(
        key=f"chsac-{rate:g}",
        title=f"{rate:g} jobs/s at each ingress",
        plan=plan_of("chsac", hours=72.0, warm_up_hours=24.0, settings=(("rate_per_second", rate),)),
        rules=_FRONTIER_RULES,
        reference="adaptive-price",
        frontier=True,
        goals=(_near_frontier(rate), _NO_WORSE, _BOUNDED),
    )


FRONTIER = Section(
    key="frontier",
    title="The published sites at every load",
    text="""
World `chsac`, three days of which the last two count. *Excess* is a run's energy above the least that any
policy can have whose jobs are in the system no longer in the mean (a linear programme, at the load that was
really carried); no run can be below 0. The least possible mean energy falls with the time that jobs may take,
so rules with other speeds can be compared by it. A rule that leaves work undone has little to carry: see the
queue. The daily cycle (mean 0.04 jobs/s, amplitude 60 %) is held against the frontier of its mean load, which
is loose.
""",
    figure=_EXCESS,
    is_relative=False,
    columns=(
        Column(figure=_EXCESS, heading="excess, %", digits=2, interval=True),
        Column(figure="joules_per_unit", heading="J/unit", digits=3),
        Column(figure="system_turnaround_seconds", heading="turnaround, s", digits=0),
        Column(figure="first_queue_at_day_end", heading="queue, day 1", digits=0),
        Column(figure="last_queue_at_day_end", heading="last day", digits=0),
        Column(figure="gpu_utilisation_share", heading="GPUs held, %", per=0.01, digits=0),
    ),
    cases=(
        *(_load(rate) for rate in (0.01, 0.02, 0.03, 0.04, 0.045, 0.05, 0.055, 0.06)),
        Case(
            key="chsac-daily",
            title="daily cycle, mean 0.04 jobs/s, amplitude 60 %",
            plan=plan_of(
                "chsac",
                hours=72.0,
                warm_up_hours=24.0,
                generator="daily",
                settings=(("rate_per_second", 0.04), ("amplitude", 0.6)),
            ),
            rules=_FRONTIER_RULES,
            reference="adaptive-price",
            frontier=True,
            goals=(replace(_near_frontier(0.04), why=reasons.LOOSE_OVER_THE_DAY), _NO_WORSE, _BOUNDED),
        ),
    ),
)

_ENERGY = "joules_per_unit"
_PHILLY_RULES = (
    "slurm-default",
    "fixed-clock",
    "fixed-dvfs",
    "sjf-backfill",
    "job-table",
    "daemon/oracle",
    "daemon/oracle:learn=0",
    "greedy",
    "edp",
    "price:V=200",
    "adaptive-price:V=200",
    "total-cost:V=0,slowdown=0.3",
    f"total-cost:{PACKED}",
)


def _philly(world: str, title: str, *goals: Goal) -> Case:
    return Case(
        key=world,
        title=title,
        plan=plan_of(world, hours=192.0, warm_up_hours=48.0, seeds=8),
        rules=_PHILLY_RULES,
        reference="slurm-default",
        goals=(
            _cheaper(30.0, "slurm-default"),
            _cheaper(10.0, "fixed-clock"),
            Goal(
                text="mean slowdown at most 5 % above slurm-default",
                figure="mean_bounded_slowdown",
                kind="percent",
                most=5.0,
                against="slurm-default",
            ),
            *goals,
            Goal(
                text="energy per unit below the strongest rule",
                figure=_ENERGY,
                kind="percent",
                most=0.0,
                is_strict=True,
                why=reasons.EQUAL_BUT_FOR_THE_DAEMON,
            ),
        ),
    )


_IN_TIME = (
    Goal(
        text="no more missed deadlines than slurm-default",
        figure="deadline_misses",
        kind="difference",
        most=0.0,
        against="slurm-default",
    ),
    Goal(text="no TIMEOUT", figure="timeouts", kind="value", most=0.0),
)
"""Where jobs have limits and deadlines."""


def _cheaper(percent: float, against: str) -> Goal:
    return Goal(
        text=f"energy per unit {percent:g} % below {against}",
        figure=_ENERGY,
        kind="percent",
        most=-percent,
        against=against,
        bound_figure="bound_joules_per_unit",
        why=reasons.ASKED_ONCE,
    )


PHILLY = Section(
    key="philly",
    title="A mixed cluster with time limits",
    text="""
Worlds `philly-a100…`: eight days of which the last six count. Clocks of `fixed-clock` and `fixed-dvfs` are the best
static ones, found by a sweep on arrivals that no comparison sees. Slowdown is against a run at the default clock on
the same devices, so that a low clock counts as slowdown. Jobs name no partition and are submitted to all, as with
`sbatch -p a100,a40,v100,h100`. Each has one of 108 names, by which `job-table` and the daemon learn, from nothing at
the start of each run; with `learn=0` the daemon compares GPU types by tables alone. `total-cost` and `learned prices`
also say on which nodes a job runs and which jobs wait for a better one: the simulated scheduler carries that out,
where Slurm asks a policy once, at submission. What the installed product does under Slurm is `the daemon`. Limits
leave room for the slowest device, so that no policy has a TIMEOUT here; what being slow costs shows in the deadlines.
""",
    figure=_ENERGY,
    is_relative=True,
    columns=(
        Column(figure=_ENERGY, heading="J/unit", digits=1, interval=True),
        Column(figure="bound_gap_percent", heading="above bound, %", digits=1),
        Column(figure="mean_bounded_slowdown", heading="slowdown", digits=3),
        Column(figure="p95_bounded_slowdown", heading="p95", digits=2),
        Column(figure="mean_turnaround_seconds", heading="turnaround, h", per=3600.0, digits=2),
        Column(figure="deadline_misses", heading="missed", digits=1),
        Column(figure="timeouts", heading="TIMEOUT", digits=1),
        Column(figure="unfinished_jobs", heading="open", digits=0),
    ),
    cases=(
        _philly("philly-a100", "As many arrivals as in the Philly trace"),
        _philly("philly-a100-limits", "The same with time limits and deadlines", *_IN_TIME),
    ),
)

_COST = "cost_joules_per_unit"

AGENTS = Section(
    key="agents",
    title="Agents that choose among options",
    text="""
World `lab-open`, a day of 56 GPUs of three types, small enough to train agents on graphs for minutes each. The two
algorithms of the papers choose partition and device count themselves, the clock is the exact one. `chsac` begins with
weights that imitate `price:V=20` (*imitation*); the policy gradient begins from nothing, with the hierarchical
network, a flat one and a plain vector, over jobs of every weight of time and energy; *saver* is the same network asked
to save. `cost` is energy plus the time that users wait at 20 W. The recipes are in `research/agents`: one training
seed, 24 rounds, no constraints. Where agents have the same figures in every column they decided alike on all seeds:
what came after the imitation then left its decisions as they were.
""",
    figure=_COST,
    is_relative=True,
    columns=(
        Column(figure=_COST, heading="cost, J/unit", digits=1, interval=True),
        Column(figure="cost_above_bound_percent", heading="above bound, %", digits=1),
        Column(figure=_ENERGY, heading="energy, J/unit", digits=1),
        Column(figure="mean_turnaround_seconds", heading="turnaround, s", digits=0),
        Column(figure="mean_decision_seconds", heading="decision, ms", per=1e-3, digits=2),
    ),
    cases=(
        Case(
            key="lab-open",
            title="The laboratory cluster, all partitions open",
            plan=plan_of("lab-open", hours=_DAY_HOURS, drain=True),
            rules=("price:V=20", "adaptive-price", "total-cost", "greedy", "edp", "slurm-default", "masked-random"),
            reference="price:V=20",
            merit=Merit(),
            goals=(
                replace(CHEAPER_THAN_THE_RULE, why=reasons.AGENTS_IMITATE),
                Goal(
                    text="energy per unit below that of the same network in mode balanced",
                    figure=_ENERGY,
                    kind="percent",
                    most=0.0,
                    is_strict=True,
                    against="policy gradient, hierarchical",
                    of="policy gradient, hierarchical, saver",
                    why=reasons.SAVES_NO_MORE,
                ),
            ),
        ),
    ),
)

SECTIONS = (FRONTIER, SCENARIOS, PHILLY, UNSEEN, TUM, ROBUSTNESS, AGENTS, FORMS)
CANDIDATES: tuple[str, ...] = (
    "learned prices::frontier,scenarios::learned-price:checkpoint=shipped,V=20",
    f"learned prices::philly::learned-price:checkpoint=shipped,{PACKED}",
    "the daemon::philly::daemon/gnn",
    f"learned prices::unseen::learned-price:checkpoint=shipped,{HUNGRY_HOSTS}",
    f"learned prices::tum128,robustness::learned-price:checkpoint=shipped,{BALANCED}",
    f"learned prices, saving::tum128,robustness::learned-price:checkpoint=shipped,{SAVER}",
)
"""Learned policies that the page judges beside the rules, as `candidate_of` reads them: one line each."""
