"""Sections on the cluster of 128 GPU nodes: the paper's table, disturbances, and forms of the network."""

from dataclasses import replace

from research.results.cases import BALANCED, SAVER, Case, Column, Goal, Section, plan_of
from research.results.sections import reasons

_DAY_HOURS = 24.0
_TOTAL, _PRODUCT, _SPAN = "total_joules", "energy_time_product_joule_seconds", "makespan_seconds"
_TURNAROUND, _BOUND = "mean_turnaround_seconds", "bound_arrivals_joules"
_PERFORMANCE = "price:V=100000"
_SWEPT = "fixed-dvfs"
_TUM_PRICED = ("total-cost:V=200", f"total-cost:{BALANCED}", f"total-cost:{SAVER}")
_TUM_RULES = ("fcfs", "sjf-backfill", _PERFORMANCE, "price:V=20", "price:V=200", "greedy", "edp", *_TUM_PRICED, _SWEPT)
_STRONGEST = Goal(
    text="product below the strongest rule's",
    figure=_PRODUCT,
    kind="percent",
    most=0.0,
    is_strict=True,
    why=reasons.SAVING_HAS_THE_PRODUCT,
)


def _no_worse_than_its_rule(label: str, settings: str) -> Goal:
    """Return whether the network does any harm to the product, beside the same settings without one."""
    rule = f"total-cost:{settings}"
    return Goal(
        text=f"product at most {_HARM_PERCENT:g} % above the same settings without the network",
        figure=_PRODUCT,
        kind="percent",
        most=_HARM_PERCENT,
        against=rule,
        of=label,
        why=reasons.NETWORK_MAY_HARM,
    )


_HARM_PERCENT = 2.0
_NETWORK = (
    _no_worse_than_its_rule("learned prices", BALANCED),
    _no_worse_than_its_rule("learned prices, saving", SAVER),
)


_WHY = {
    _TOTAL: reasons.ENERGY_OF_THE_PAPER,
    _TURNAROUND: reasons.TIME_OF_THE_PAPER,
    _PRODUCT: reasons.CHANCE_OF_THE_LONGEST,
}


def _below(percent: float, figure: str, what: str, against: str) -> Goal:
    return Goal(
        text=f"{what} {percent:g} % below {against}",
        figure=figure,
        kind="percent",
        most=-percent,
        against=against,
        bound_figure=_BOUND if figure == _TOTAL else "",
        why=_WHY[figure],
    )


_PUBLISHED = (
    _below(34.0, _TOTAL, "energy", "fcfs"),
    _below(18.0, _TURNAROUND, "mean turnaround", "fcfs"),
    _below(28.0, _TOTAL, "energy", "sjf-backfill"),
    Goal(
        text="makespan no longer than sjf-backfill",
        figure=_SPAN,
        kind="percent",
        most=0.0,
        against="sjf-backfill",
        why=reasons.CHANCE_OF_THE_LONGEST,
    ),
    _below(19.0, _TOTAL, "energy", _SWEPT),
    _below(32.0, _PRODUCT, "energy-time product", _PERFORMANCE),
    _below(24.0, _PRODUCT, "energy-time product", _SWEPT),
)
"""The figures of the paper on hierarchical graph networks (its results) as goals."""

_TUM_COLUMNS = (
    Column(figure=_PRODUCT, heading="product, TJ s", per=1e12, digits=0, interval=True),
    Column(figure=_TOTAL, heading="energy, GJ", per=1e9, digits=2),
    Column(figure="above_arrivals_bound_percent", heading="above bound, %", digits=1),
    Column(figure=_SPAN, heading="makespan, h", per=3600.0, digits=1),
    Column(figure=_TURNAROUND, heading="turnaround, s", digits=0),
    Column(figure="mean_wait_seconds", heading="wait, s", digits=0),
    Column(figure="deadline_misses", heading="missed", digits=0),
    Column(figure="timeouts", heading="TIMEOUT", digits=1),
)


_MANY_SEEDS = 12
"""The makespan is that of the longest job, which is chance: of five seeds little could be said."""


def _tum(world: str, title: str, *goals: Goal, undisturbed: str = "", seeds: int = 5) -> Case:
    return Case(
        key=world,
        title=title,
        plan=plan_of(world, hours=_DAY_HOURS, drain=True, seeds=seeds),
        rules=_TUM_RULES,
        reference="fcfs",
        goals=(*goals, *_NETWORK, _STRONGEST),
        undisturbed=undisturbed,
    )


TUM = Section(
    key="tum128",
    title="A cluster of 128 GPU nodes and CPU nodes",
    text=f"""
A day of arrivals of worlds `tum128…`, run until no job is left. The makespan is set by the longest job. The
bound is the least energy of this work under any policy, at any speed: where it is less than a goal away from a
policy, no policy can meet the goal. `fixed-dvfs` has the best common clock, by a sweep on other arrivals: where
that is the highest it is `fcfs`, and where no job waits `sjf-backfill` is, too. Performance first is
`{_PERFORMANCE}`, a price of time so high that energy does not count.
""",
    figure=_PRODUCT,
    is_relative=True,
    columns=_TUM_COLUMNS,
    cases=(
        _tum("tum128", "Mixed work", *_PUBLISHED, seeds=_MANY_SEEDS),
        _tum("tum128-busy", "Near the capacity", *_PUBLISHED, seeds=_MANY_SEEDS),
        _tum(
            "tum128-deadlines",
            "Flexible deadlines",
            _below(36.0, _TOTAL, "energy", "fcfs"),
            Goal(
                text="no more missed deadlines than fcfs",
                figure="deadline_misses",
                kind="difference",
                most=0.0,
                against="fcfs",
            ),
        ),
    ),
)

_HOME = "prices learned on scientific jobs"
"""A candidate of `research/agents`."""


def _undisturbed(percent: float, figure: str, text: str, why: str = "") -> Goal:
    return Goal(text=text, figure=figure, kind="undisturbed", most=percent, why=why)


_DISTURBED_RULES = ("fcfs", "sjf-backfill", "price:V=200", "greedy", *_TUM_PRICED)
"""One of each kind."""


def _disturbed(world: str, title: str, *goals: Goal, undisturbed: str = "", seeds: int = 5) -> Case:
    return replace(_tum(world, title, *goals, undisturbed=undisturbed, seeds=seeds), rules=_DISTURBED_RULES)


ROBUSTNESS = Section(
    key="robustness",
    title="Disturbances",
    text="""
The same cluster when a tenth of its GPUs fails for twelve hours, when the bandwidth between nodes is a quarter,
and when jobs are of other kinds than in the mixture. *Against undisturbed* is the rise of the energy-time
product over the case without the disturbance, on the same arrivals. A decision is one question to the policy, also
one whose answer is to wait or is refused by the guard or by backfill. *Wide jobs* may use several devices; shown is
their mean time from submission to end, the inverse of their throughput at an equal number of jobs in the system.
""",
    figure=_PRODUCT,
    is_relative=True,
    columns=(
        *_TUM_COLUMNS,
        Column(figure="hours_per_wide_job", heading="wide jobs, h", digits=2),
        Column(figure="max_decisions_until_restart", heading="decisions until back", digits=1),
        Column(figure="against_undisturbed_percent", heading="against undisturbed, %", digits=1, interval=True),
    ),
    cases=(
        _disturbed(
            "tum128-failures",
            "A tenth of the GPUs fails",
            Goal(
                text="every job hit by a failure runs again within 3 decisions",
                figure="max_decisions_until_restart",
                kind="largest",
                most=3.0,
            ),
            Goal(
                text="no job hit by a failure is lost",
                figure="interrupted_jobs_not_restarted",
                kind="largest",
                most=0.0,
            ),
            _undisturbed(6.0, _TOTAL, "energy at most 6 % above undisturbed", reasons.WORK_IS_DONE_AGAIN),
            undisturbed="tum128-busy",
            seeds=_MANY_SEEDS,
        ),
        _disturbed("tum128-wide", "Wide jobs, undisturbed"),
        _disturbed(
            "tum128-slow-links",
            "A quarter of the bandwidth",
            # The inverse: throughput falls by 12 % where the time of a job rises by 1 / 0.88 - 1 = 13.6 %.
            _undisturbed(
                13.6,
                "hours_per_wide_job",
                "throughput of jobs that may use several devices at most 12 % below undisturbed",
            ),
            undisturbed="tum128-wide",
        ),
        _disturbed("tum128-training", "Training alone"),
        _disturbed(
            "tum128-scientific",
            "Scientific jobs alone",
            Goal(
                text=f"product at most 8 % above {_HOME}",
                figure=_PRODUCT,
                kind="percent",
                most=8.0,
                against=_HOME,
            ),
        ),
    ),
)


def _form(percent: float, figure: str, what: str, other: str) -> Goal:
    """Return a figure of the paper's ablations (section 4.3) as a goal."""
    return Goal(
        text=f"{what} {percent:g} % below the {other} form's",
        figure=figure,
        kind="percent",
        most=-percent,
        against=f"tum128 prices, {other}",
        of="tum128 prices, hierarchical",
        why=reasons.FORM_MATTERS_LITTLE if figure == _TOTAL else reasons.LOOKS_ARE_RARE,
    )


FORMS = Section(
    key="forms",
    title="Forms of the network",
    text="""
Half a day of world `tum128`, run until no job is left: learned prices of networks of several forms, each trained in
this world alone with the same recipe and as long (`research/agents/prices.toml`), once: intervals are over arrivals
and leave out what another training seed would change. In the paper the network chooses by itself; here it moves the
prices of an exact optimiser, whatever its form. Agents that choose by themselves are in the section above.
""",
    figure=_PRODUCT,
    is_relative=True,
    columns=(*_TUM_COLUMNS[:6], Column(figure="mean_decision_seconds", heading="decision, ms", per=1e-3, digits=2)),
    cases=(
        Case(
            key="tum128-forms",
            title="Hierarchical, flat, vector, one propagation alone",
            plan=plan_of("tum128", hours=0.5 * _DAY_HOURS, drain=True),
            rules=("total-cost:V=200", "price:V=200", "greedy", "edp", "fcfs"),
            reference="total-cost:V=200",
            goals=(
                _form(19.0, _TOTAL, "energy", "vector"),
                _form(13.0, _TOTAL, "energy", "flat"),  # 15 % more is 13 % less, seen from there
                _form(10.7, _TOTAL, "energy", "spatial"),
                _form(10.7, _TOTAL, "energy", "spectral"),
                _form(18.0, "mean_decision_seconds", "time of a decision", "flat"),
                replace(_STRONGEST, why=reasons.FORM_MATTERS_LITTLE),
            ),
        ),
    ),
)
