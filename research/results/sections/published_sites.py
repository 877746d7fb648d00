"""Sections on the published sites: every load against the frontier, and six scenarios in which simple rules fail.

Worlds and figures are fixed before any learned policy is run in them. The worlds say what they model and what of it is
assumed. V = 20 W throughout: the price rule's own, at which it is best in the world that the scenarios are made from.
"""

from dataclasses import replace

from research.results.cases import Case, Column, Goal, Section, plan_of
from research.results.merit import Merit
from research.results.sections import reasons

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
"""Arrivals up to which a policy must come within 0.5 % of the frontier, above it within 1 %."""


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

_REFERENCE = "adaptive-price"
_RULES = (
    "adaptive-price",
    "adaptive-price:V=5",
    "total-cost",
    "greedy",
    "slurm-default",
    "masked-random",
)
_COST = "cost_joules_per_unit"
CHEAPER_THAN_THE_RULE = Goal(
    text="costs less than the strongest rule",
    figure=_COST,
    kind="percent",
    most=0.0,
    is_strict=True,
    why=reasons.EQUAL_TO_THE_RULE,
)
_GOALS = (
    Goal(
        text="costs less than adaptive-price",
        figure=_COST,
        kind="percent",
        most=0.0,
        is_strict=True,
        against=_REFERENCE,
        why=reasons.FOUR_OF_SIX,
    ),
    CHEAPER_THAN_THE_RULE,
)
_COLUMNS = (
    Column(figure=_COST, heading="cost, J/unit", digits=3, interval=True),
    Column(figure="cost_above_bound_percent", heading="above bound, %", digits=1),
    Column(figure="joules_per_unit", heading="energy, J/unit", digits=3),
    Column(figure="cost_time_joules_per_unit", heading="time", digits=3),
    Column(figure="cost_misses_joules_per_unit", heading="misses", digits=3),
    Column(figure="cost_above_budget_joules_per_unit", heading="over budget", digits=3),
    Column(figure="mean_turnaround_seconds", heading="turnaround, s", digits=0),
    Column(figure="deadline_misses", heading="missed", digits=0),
    Column(figure="seconds_above_power_budget", heading="over budget, h", per=3600.0, digits=1),
    Column(figure="longest_queue_at_day_end", heading="queue", digits=0),
)


def _scenario(key: str, title: str, merit: Merit, *more: str) -> Case:
    return Case(
        key=key,
        title=title,
        plan=plan_of(f"chsac-{key}", hours=2 * _DAY_HOURS, warm_up_hours=_DAY_HOURS),
        rules=(*_RULES, *more),
        reference=_REFERENCE,
        merit=merit,
        goals=_GOALS,
    )


SCENARIOS = Section(
    key="scenarios",
    title="Where the assumptions of rules fail",
    text="""
Six worlds on the sites of `chsac`, two days of which the second counts. Each has one figure of merit, a cost in
joules for each unit of work, fixed before any learned policy ran. `cost` is energy plus the time that users
wait at 20 W (the columns *energy* and *time*) plus the stated penalties. Time counts from submission to end, of
all jobs while they are in the system; of task graphs until the last task has ended. *Above bound* holds the
cost against a linear programme that no policy can pass; it leaves out waiting, waking, penalties, and the time
of graphs.
""",
    figure=_COST,
    is_relative=True,
    columns=_COLUMNS,
    cases=(
        _scenario("wakeup", "Daily cycle, nodes that sleep and wake", Merit()),
        # A result that comes too late costs as much as eight more hours of its user's time.
        _scenario("deadlines", "Deadlines on all jobs", Merit(miss_joules=20.0 * 8.0 * 3600.0), "edp"),
        # Energy above the budget is paid three times over on top.
        _scenario(
            "power-budget",
            "A power budget that changes over the day",
            Merit(budget_factor=3.0),
            "cap-greedy",
            "cap-uniform",
        ),
        _scenario("misled", "Wrong initial estimates", Merit(), "ucb1"),
        # A batch that is late costs as much as an hour of its users' time.
        _scenario("mixed", "Inference beside training", Merit(miss_joules=20.0 * 3600.0), "edp"),
        _scenario("graphs", "Task graphs", Merit(of_graphs=True), "price:V=20", "price:V=2"),
    ),
)
