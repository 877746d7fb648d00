"""Sections on clusters of several GPU types: time limits, types new to the network, agents that choose options."""

from dataclasses import replace

from research.results.cases import HUNGRY_HOSTS, PACKED, Case, Column, Goal, Section, plan_of
from research.results.merit import Merit
from research.results.sections import reasons
from research.results.sections.published_sites import CHEAPER_THAN_THE_RULE

_DAY_HOURS = 24.0
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

_UNSEEN_RULES = (
    "slurm-default",
    "fixed-dvfs",
    "sjf-backfill",
    "greedy",
    "edp",
    "price:V=20",
    "price:V=20,share=1",
    "adaptive-price:V=200",
    f"total-cost:{PACKED}",
    f"total-cost:{HUNGRY_HOSTS}",
)

UNSEEN = Section(
    key="unseen",
    title="GPU types that no training has met",
    text="""
World `gavel-shared`: 24 K80, 16 P100 and 8 V100 in hosts of 256 to 665 W, eight days of which the last six count; no
job may use several devices. K80 and P100 are in none of the worlds that the shipped network was trained on. Hosts draw
most of the energy here: what a policy gains on devices it loses where it wakes another node, and Slurm's own choice,
the first partition with room, keeps most nodes asleep. The settings of the section above save half of what those of
the last rule do, which were chosen for such hosts, on other arrivals.
""",
    figure=_ENERGY,
    is_relative=True,
    columns=(
        Column(figure=_ENERGY, heading="J/unit", digits=1, interval=True),
        Column(figure="bound_gap_percent", heading="above bound, %", digits=1),
        Column(figure="mean_bounded_slowdown", heading="slowdown", digits=3),
        Column(figure="mean_turnaround_seconds", heading="turnaround, s", digits=0),
        Column(figure="mean_wait_seconds", heading="wait, s", digits=0),
        Column(figure="unfinished_jobs", heading="open", digits=0),
    ),
    cases=(
        Case(
            key="gavel-shared",
            title="A cluster of K80, P100 and V100",
            plan=plan_of("gavel-shared", hours=192.0, warm_up_hours=48.0, seeds=8),
            rules=_UNSEEN_RULES,
            reference="slurm-default",
            goals=(
                Goal(
                    text="energy per unit below slurm-default",
                    figure=_ENERGY,
                    kind="percent",
                    is_strict=True,
                    against="slurm-default",
                    bound_figure="bound_joules_per_unit",
                    why=reasons.HOSTS_DRAW_MOST,
                ),
                Goal(
                    text="mean slowdown at most 5 % above slurm-default",
                    figure="mean_bounded_slowdown",
                    kind="percent",
                    most=5.0,
                    against="slurm-default",
                    why=reasons.HOSTS_DRAW_MOST,
                ),
                Goal(
                    text="energy per unit at most 1 % above the same settings without the network",
                    figure=_ENERGY,
                    kind="percent",
                    most=1.0,
                    against=f"total-cost:{HUNGRY_HOSTS}",
                    why=reasons.FEW_SEEDS,
                ),
            ),
        ),
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
