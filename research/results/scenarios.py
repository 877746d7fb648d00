"""Six scenarios on the published sites in which the assumptions of simple rules fail, each with one figure of merit.

Worlds and figures are fixed before any learned policy is run in them. The worlds say what they model and what of it is
assumed. V = 20 W throughout: the price rule's own, at which it is best in the world that the scenarios are made from.
"""

from research.results import reasons
from research.results.cases import Case, Column, Goal, Section, plan_of
from research.results.merit import Merit

_DAY_HOURS = 24.0
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
