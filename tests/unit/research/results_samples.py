"""Small cases and made-up results for the tests of the results page."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from research.results.cases import Case, Column, Goal, Section, plan_of
from research.results.document import CaseResult, Figures, Results
from research.results.merit import Merit

COST = "cost_joules_per_unit"
RULES = ("first", "second", "third")
GOALS = (
    Goal(text="cheaper than the strongest rule", figure=COST, kind="percent", most=0.0),
    Goal(
        text="a third less than first", figure=COST, kind="percent", most=-33.0, against="first", bound_figure="floor"
    ),
    Goal(text="no more misses than first", figure="misses", kind="difference", most=0.0, against="first"),
    Goal(text="no growth", figure="queue_growth_percent", kind="value", most=1.0),
)


def make_case(key: str = "one", world: str = "pair.toml", **changes: object) -> Case:
    case = Case(
        key=key,
        title=f"Case {key}",
        plan=plan_of(world, hours=0.5, warm_up_hours=0.1, seeds=2),
        rules=RULES,
        reference="first",
        merit=Merit(),
        goals=GOALS,
    )
    return replace(case, **changes)  # type: ignore[arg-type]  # per field


def make_section(*cases: Case) -> Section:
    return Section(
        key="some",
        title="Some section",
        text="What it is.",
        figure=COST,
        is_relative=True,
        columns=(
            Column(figure=COST, heading="cost", digits=1, interval=True),
            Column(figure="misses", heading="missed", digits=0),
        ),
        cases=cases or (make_case(),),
    )


def make_result(costs: Mapping[str, float], **more: Mapping[str, float]) -> CaseResult:
    """Return a case with three seeds: each policy's cost is its own times 1.0, 1.1, 0.9; `more` are further figures."""
    runs: dict[str, dict[int, Figures]] = {
        label: {
            seed: {COST: cost * share, "queue_growth_percent": 0.0}
            | {name: values[label] for name, values in more.items() if label in values}
            for seed, share in ((1, 1.0), (2, 1.1), (3, 0.9))
        }
        for label, cost in costs.items()
    }
    learned = [label for label in costs if label not in RULES]
    return CaseResult(fingerprint="made up", texts={label: label for label in costs}, learned=learned, runs=runs)


def make_results(result: CaseResult, key: str = "one") -> Results:
    return Results(cases={key: result})


def world_in(folder: Path) -> str:
    """Return the file of a small world with its own jobs."""
    path = folder / "pair.toml"
    path.write_text(WORLD, encoding="utf-8")
    return str(path)


WORLD = """
name = "pair"

[workload]
name = "poisson"

[workload.settings]
ingresses = 1
rate_per_second = 0.02
median_units = 2000
max_gpus = 2
hours = 1

[devices.thrifty]
relative_clocks = [0.6, 0.8, 1.0]
free_watts = 10
[devices.thrifty.kinds.training]
power = [100, 20, 30]
runtime = [0, 0.1, 0.01]

[devices.hungry]
relative_clocks = [0.5, 1.0]
free_watts = 20
[devices.hungry.kinds.training]
power = [250, 30, 40]
runtime = [0, 0.06, 0.01]

[pools.one]
device = "thrifty"
nodes = 2
gpus_per_node = 4

[pools.two]
device = "hungry"
nodes = 1
gpus_per_node = 4

[partitions.one]
pools = ["one"]

[partitions.two]
pools = ["two"]
"""
