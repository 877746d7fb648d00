"""Sites that hide what their jobs do: policies know what an installed product knows, yardsticks beside them more."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from research.results.cases import Case, Column, Section, plan_of
from research.results.tuning import Key, Tuned, read_tuned
from slurm_energy.evaluation.arena.plan import ArenaPlan

WORLD = "mixed-hidden"
KEY = "hidden"
NOTHING, STATIC, PRODUCT, RULE = "slurm-default", "static-best", "auto, as installed", "tuned rule"
TRIALS, MEAN, MEAN_FAIR = "auto, trials", "auto, mean profile", "auto, mean profile, fair exchange"
INSTALLED: dict[str, str] = {
    PRODUCT: "daemon/auto",
    TRIALS: "daemon/auto:trials=on",
    MEAN: "daemon/auto:mean=1,exchange=0,trials=on,assumed=1",
    MEAN_FAIR: "daemon/auto:mean=1,trials=on,assumed=1",
}
"""What is installed: as it comes, and with what a site may switch on."""
IN_THE_MIDDLE = (TRIALS, MEAN_FAIR)
"""Of these, what is judged on the site in the middle alone."""
STATIC_EACH = "static clocks, each job's bound and fair exchange"
_EACH_JOB_CLOCKS = "fixed-clock:a100=0.904,a40=0.897,v100=0.891,h100=0.939"
"""The lowest of each type's clocks at which none of the world's kinds of work takes more than 5 % longer, and at which
their mean saves 2 % for each per cent of time: what `auto, as installed` has to keep, by one who measured them all."""
KNOWING_RULE, KNOWING_SLURM = "tuned rule, true kinds and lengths", "EASY, true run times"
NEIGHBOURS = "EASY, run times of alike jobs"
SEEDS = 4
_HOURS, _WARM_UP_HOURS = 96.0, 24.0
_ENERGY = "joules_per_unit"
_RATES = {0.3: 0.00061, 0.6: 0.00122, 0.9: 0.00183}
"""Arrivals per second by load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteKind:
    """A kind of site: what differs from the one in the middle."""

    key: str
    title: str
    history_days: float = 7.0
    load: float = 0.6
    limits: str = "margins"
    generic_names: float = 0.5
    named_partitions: float = 0.5

    @property
    def tuning_key(self) -> Key:
        """Of what was chosen for it."""
        return _RATES[self.load], self.named_partitions

    def plan(self, tuned: Tuned | None) -> ArenaPlan:
        """Return the comparison's plan, with the site's list of partitions as it was chosen."""
        plan = plan_of(
            WORLD,
            hours=_HOURS,
            warm_up_hours=_WARM_UP_HOURS,
            seeds=SEEDS,
            settings=(
                ("rate_per_second", _RATES[self.load]),
                ("limits", self.limits),
                ("generic_names", self.generic_names),
                ("named_partitions", self.named_partitions),
            ),
        )
        order = () if tuned is None else tuned.order
        return replace(plan, history_days=self.history_days, partition_order=order)


KINDS = (
    SiteKind(key="hidden-middle", title="in the middle: 7 days of history, half of all, load 0.6"),
    SiteKind(key="hidden-day-0", title="no history", history_days=0.0),
    SiteKind(key="hidden-day-1", title="1 day of history", history_days=1.0),
    SiteKind(key="hidden-day-3", title="3 days of history", history_days=3.0),
    SiteKind(key="hidden-day-31", title="31 days of history", history_days=31.0),
    SiteKind(key="hidden-names-nothing", title="no user's names say anything", generic_names=1.0),
    SiteKind(key="hidden-names-all", title="all users' names say something", generic_names=0.0),
    SiteKind(key="hidden-limits-7-days", title="60 % of the users ask for 7 days", limits="longest"),
    SiteKind(key="hidden-open", title="no user names a partition", named_partitions=0.0),
    SiteKind(key="hidden-named", title="all users name a partition", named_partitions=1.0),
    SiteKind(key="hidden-load-30", title="load 0.3", load=0.3),
    SiteKind(key="hidden-load-90", title="load 0.9", load=0.9),
)
KIND_TITLES = {kind.key: kind.title for kind in KINDS}


def plans_to_tune() -> dict[Key, ArenaPlan]:
    """Return a plan for each load and share of named partitions, the first kind of site that has it."""
    found: dict[Key, ArenaPlan] = {}
    for kind in KINDS:
        found.setdefault(kind.tuning_key, kind.plan(None))
    return found


def _case(kind: SiteKind, chosen: Mapping[Key, Tuned]) -> Case:
    tuned = chosen.get(kind.tuning_key)
    rules = {"easy-estimates": "easy-estimates", "oracle, as installed": "daemon/oracle", STATIC_EACH: _EACH_JOB_CLOCKS}
    yardsticks = {KNOWING_SLURM: "clairvoyant/easy-estimates", "clairvoyant": "clairvoyant"}
    if tuned is not None:
        rules |= {STATIC: tuned.static, RULE: tuned.rule, f"{RULE}, as installed": f"daemon/{tuned.rule}"}
        yardsticks |= {KNOWING_RULE: f"clairvoyant/{tuned.rule}"}
    return Case(
        key=kind.key,
        title=kind.title[0].upper() + kind.title[1:],
        plan=kind.plan(tuned),
        rules=(NOTHING,),
        labelled=tuple(({NEIGHBOURS: "neighbours/easy-estimates"} | rules).items()),
        yardsticks=tuple(yardsticks.items()),
        reference=NOTHING if tuned is None else STATIC,
    )


HIDDEN = Section(
    key=KEY,
    title="What an installed product reaches",
    text="""
World `mixed-hidden`, 96 GPUs of four types, four days of which the first is a warm-up. **Policies know what a site
knows**: a job's user, name, script features, request and time limit, and what ended runs measured. Kind, length and
own curves of a job are known to the yardsticks alone (*true* in their names, `clairvoyant`, and the least possible
energy). Rules see tables that are means over the kinds of work, and lengths from ended runs and limits; the installed
product (`daemon/…`) sees what the daemon serves. Cases differ from the one in the middle in one thing each. The
history is 31 days of jobs of the same users under Slurm alone, of which policies get the days that are stated.
`static-best` is what an administrator reaches without any program: the order of the partitions, of all 24, and the
clock of each GPU type that take least energy at a mean slowdown and a turnaround of at most 5 % above default clocks;
the order is every policy's. `tuned rule` is `total-cost` with the best of 8 settings by the same search. Both were
chosen on other arrivals (`python -m research.results.tuning`, seeds 900101 and 900102). The installed product comes
as it is installed; with clocks tried while jobs run (`policy.clock_trials`; the detector's answers are drawn as
measured of it, nothing was tried before the four days); with the
[mean profile](../explanation/clocks.md#the-mean-profile), under which the bound is held in the mean over jobs, as that
of `static-best` is; and with that profile where a clock must still save 2 % for each per cent of time
(`policy.min_saving_per_slowdown`). `static clocks, each job's bound and fair exchange` are fixed clocks that keep what
the product keeps as it is installed, by one who measured every kind of work:
the two are to be compared with each other. *Slowdown* and *beyond bound*
(5 %, with half a point of tolerance) compare each job's run with that at the default clock where Slurm alone would
have started it at that moment. The tuned rule, with true kinds and lengths or not, chooses when and on which node a
job starts, which the simulated scheduler carries out; under Slurm a policy is asked once, at submission.
""",
    figure=_ENERGY,
    is_relative=True,
    columns=(
        Column(figure=_ENERGY, heading="J/unit", digits=1, interval=True),
        Column(figure="bound_gap_percent", heading="above least possible, %", digits=1),
        Column(figure="mean_turnaround_seconds", heading="turnaround, h", per=3600.0, digits=2),
        Column(figure="slurm_place_slowdown_percent", heading="slowdown, %", digits=2),
        Column(figure="jobs_beyond_bound_percent", heading="beyond bound, %", digits=2),
        Column(figure="timeouts", heading="TIMEOUT", digits=1),
        Column(figure="completed_jobs", heading="completed", digits=0),
    ),
    cases=tuple(_case(kind, read_tuned()) for kind in KINDS),
)
