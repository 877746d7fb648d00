"""The sections of the results page: what is compared, with which rules, and what is asked for."""

from dataclasses import replace

from slurm_energy.evaluation.results import reasons
from slurm_energy.evaluation.results.cases import Case, Column, Goal, Section, plan_of
from slurm_energy.evaluation.results.merit import Merit
from slurm_energy.evaluation.results.scenarios import SCENARIOS

_DAY_HOURS = 24.0
_EXCESS = "frontier_excess_percent"
_BOUNDED = Goal(
    text="queue at day's end does not grow by more than 1 % of a day's arrivals",
    figure="queue_growth_percent",
    kind="value",
    most=1.0,
)
_NO_WORSE_POINTS = 0.03
"""Half of the interval of adaptive-price's own excess at 0.045 jobs/s."""
_NO_WORSE = Goal(
    text=f"excess no more than {_NO_WORSE_POINTS:g} points above adaptive-price's",
    figure=_EXCESS,
    kind="difference",
    most=_NO_WORSE_POINTS,
    against="adaptive-price",
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
_PACKED = "V=0,slowdown=0.5,opening=0.03,by_place=1,pack=0.01,wait=0.1"
"""Prices of what nodes and fast devices are worth to others, chosen on arrivals that no comparison sees."""
_PHILLY_RULES = (
    "slurm-default",
    "fixed-clock",
    "fixed-dvfs",
    "sjf-backfill",
    "job-table",
    "daemon/oracle",
    "greedy",
    "edp",
    "price:V=200",
    "adaptive-price:V=200",
    "total-cost:V=0,slowdown=0.3",
    f"total-cost:{_PACKED}",
)


def _philly(world: str, title: str) -> Case:
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
            Goal(
                text="no more missed deadlines than slurm-default",
                figure="deadline_misses",
                kind="difference",
                most=0.0,
                against="slurm-default",
            ),
            Goal(text="no TIMEOUT", figure="timeouts", kind="value", most=0.0),
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
Worlds `philly-a100…`: eight days of which the last six count. Clocks of `fixed-clock` and `fixed-dvfs` are
the best static ones, found by a sweep on arrivals that no comparison sees. Slowdown is against a run at the
default clock on the same devices, so that a low clock counts as slowdown.
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
        _philly("philly-a100-limits", "The same with time limits and deadlines"),
    ),
)

_TOTAL, _PRODUCT, _SPAN = "total_joules", "energy_time_product_joule_seconds", "makespan_seconds"
_TURNAROUND, _BOUND = "mean_turnaround_seconds", "bound_arrivals_joules"
_PERFORMANCE = "price:V=100000"
_SWEPT, _FIXED = "fixed-dvfs", "fixed-dvfs:f=0.9"
"""Where low clocks make queues of thousands of jobs, a sweep takes long: there the clock is a given one."""
_NODES = "opening=0.03,spare=0.05,span=75000,pack=0.01"
"""Nodes that empty together, room for long jobs, and the makespan at about the cluster's mean power."""
_BALANCED, _SAVER = f"V=200,by_place=1,wait=0.1,{_NODES}", f"V=50,{_NODES}"
"""For short turnarounds, and for energy and makespan; chosen on arrivals that no comparison sees."""
_TUM_PRICED = ("total-cost:V=200", f"total-cost:{_BALANCED}", f"total-cost:{_SAVER}")
_TUM_RULES = ("fcfs", "sjf-backfill", _PERFORMANCE, "price:V=20", "price:V=200", "greedy", "edp", *_TUM_PRICED)
_COST = "cost_joules_per_unit"
_STRONGEST = Goal(
    text="product below the strongest rule's",
    figure=_PRODUCT,
    kind="percent",
    most=0.0,
    is_strict=True,
    why=reasons.SAVING_HAS_THE_PRODUCT,
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


def _published(fixed: str) -> tuple[Goal, ...]:
    """Return the figures of the paper on hierarchical graph networks (its results) as goals, and the strongest rule."""
    return (
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
        _below(19.0, _TOTAL, "energy", fixed),
        _below(32.0, _PRODUCT, "energy-time product", _PERFORMANCE),
        _below(24.0, _PRODUCT, "energy-time product", fixed),
        _STRONGEST,
    )


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
"""Where five left a goal's verdict open: its bound lay within the interval."""


def _tum(  # a case's own settings
    world: str, title: str, *goals: Goal, fixed: str = _FIXED, undisturbed: str = "", seeds: int = 5
) -> Case:
    return Case(
        key=world,
        title=title,
        plan=plan_of(world, hours=_DAY_HOURS, drain=True, seeds=seeds),
        rules=(*_TUM_RULES, fixed),
        reference="fcfs",
        goals=goals or (_STRONGEST,),
        undisturbed=undisturbed,
    )


TUM = Section(
    key="tum128",
    title="A cluster of 128 GPU nodes and CPU nodes",
    text=f"""
A day of arrivals of worlds `tum128…`, run until no job is left. The makespan is set by the longest job. The
bound is the least energy of this work for anybody, at any speed: where it is less than a goal away from a
policy, no policy can meet the goal. `fixed-dvfs` without a clock has the best common one, by a sweep;
performance first is `{_PERFORMANCE}`, a price of time so high that energy does not count.
""",
    figure=_PRODUCT,
    is_relative=True,
    columns=_TUM_COLUMNS,
    cases=(
        _tum("tum128", "Mixed work", *_published(_SWEPT), fixed=_SWEPT, seeds=_MANY_SEEDS),
        _tum("tum128-busy", "Near the capacity", *_published(_FIXED), seeds=_MANY_SEEDS),
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
            _STRONGEST,
            fixed=_SWEPT,
        ),
    ),
)

_HOME = "prices learned on scientific jobs"
"""A candidate of `benchmarks/agents`."""


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
one whose answer is to wait or is refused by the guard or by backfill. *Wide jobs* may use several devices; told is
their mean time from submission to end, the inverse of their throughput at an equal number of jobs in the system.
""",
    figure=_PRODUCT,
    is_relative=True,
    columns=(
        *_TUM_COLUMNS,
        Column(figure="hours_per_wide_job", heading="wide jobs, h", digits=2),
        Column(figure="most_decisions_until_back", heading="decisions until back", digits=1),
        Column(figure="against_undisturbed_percent", heading="against undisturbed, %", digits=1, interval=True),
    ),
    cases=(
        _disturbed(
            "tum128-failures",
            "A tenth of the GPUs fails",
            Goal(
                text="every job hit by a failure runs again within 3 decisions",
                figure="most_decisions_until_back",
                kind="value",
                most=3.0,
            ),
            Goal(text="no job hit by a failure is lost", figure="hit_jobs_never_back", kind="value", most=0.0),
            _undisturbed(6.0, _TOTAL, "energy at most 6 % above undisturbed", reasons.WORK_IS_DONE_AGAIN),
            _STRONGEST,
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
                "throughput of jobs on several devices at most 12 % below undisturbed",
            ),
            _STRONGEST,
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
            _STRONGEST,
        ),
    ),
)

AGENTS = Section(
    key="agents",
    title="Agents that choose among options",
    text="""
World `lab-open`, a day of 56 GPUs of three types, small enough to train agents on graphs for minutes each. The
two algorithms of the papers choose partition and device count themselves, the clock is the exact one. `chsac`
begins with weights that imitate `price:V=20` (*imitation*); the policy gradient begins from nothing, with the
hierarchical network, a flat one and a plain vector. `cost` is energy plus the time that users wait at 20 W. The
recipes are in `benchmarks/agents`: one training seed, 24 rounds, no constraints. Where `chsac`, `imitation` and
`policy gradient, flat` have the same figures they decide alike, job by job: what came after the imitation left its
decisions as they were.
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
                Goal(
                    text="costs less than the strongest rule",
                    figure=_COST,
                    kind="percent",
                    most=0.0,
                    is_strict=True,
                    why=reasons.AGENTS_IMITATE,
                ),
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
Half a day of world `tum128`, run until no job is left: learned prices of networks of several forms, each trained
in this world alone with the same recipe and as long (`benchmarks/agents/prices.toml`).
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

SECTIONS = (FRONTIER, SCENARIOS, PHILLY, TUM, ROBUSTNESS, AGENTS, FORMS)
CANDIDATES: tuple[str, ...] = (
    "learned prices::frontier,scenarios::learned-price:checkpoint=shipped,V=20",
    f"learned prices::philly::learned-price:checkpoint=shipped,{_PACKED}",
    "the daemon::philly-a100::daemon/gnn",
    f"learned prices::tum128,robustness::learned-price:checkpoint=shipped,{_BALANCED}",
    f"learned prices, saving::tum128,robustness::learned-price:checkpoint=shipped,{_SAVER}",
)
"""Learned policies that the page judges beside the rules, as `candidate_of` reads them: one line each."""
