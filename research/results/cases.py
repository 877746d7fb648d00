"""What the results page is made of: sections of cases, each a comparison with its own columns and goals."""

from dataclasses import dataclass, replace
from typing import Literal

from research.results.merit import Merit
from slurm_energy.errors import ConfigError
from slurm_energy.evaluation.arena.plan import ArenaPlan, seeds_from

SEPARATOR = "::"
FIRST_SEED = 101
"""Of every case, below those of sweeps, of choices by hand and of training. Rules and networks were worked on beside
figures of seeds 1 to 12, though nothing was chosen by them; those from here on were new to this page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A figure in a table: the mean over seeds with its interval, divided by a unit."""

    figure: str
    heading: str
    per: float = 1.0
    digits: int = 2
    interval: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a policy must reach in a case.

    `value` reads the figure itself and `largest` its largest value of all seeds, `difference` and `percent` its
    paired difference from the policy `against`, as it is or in per cent, and `undisturbed` that from the same policy
    without the disturbance, in per cent. A goal is met if the whole 95 % interval is at or below the limit: a mean
    that may be chance does not meet it.
    """

    text: str
    figure: str
    kind: Literal["value", "largest", "percent", "difference", "undisturbed"]
    most: float = 0.0
    is_strict: bool = False
    """Whether the interval must be below the limit: an equal is not better."""
    against: str = ""
    """Text of a policy; empty for the strongest rule."""
    within_interval: bool = False
    """Whether the limit is half of the interval of the figure of the policy `against`, in the place of `most`."""
    bound_figure: str = ""
    """Figure of the candidate's own run that no policy can go below, to see whether the goal is possible."""
    of: str = ""
    """Label of the only policy that is held against it; empty for all."""
    why: str = ""
    """Why it is missed, as far as was found; shown where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One comparison: a world and its jobs, met by every policy with every seed."""

    key: str
    title: str
    plan: ArenaPlan
    """Without policies."""
    rules: tuple[str, ...]
    """Each under its own text."""
    reference: str
    """The rule that the others are held against."""
    merit: Merit | None = None
    frontier: bool = False
    """Whether the excess over the energy-latency frontier is worked out."""
    goals: tuple[Goal, ...] = ()
    labelled: tuple[tuple[str, str], ...] = ()
    """Further rules: label and text."""
    yardsticks: tuple[tuple[str, str], ...] = ()
    """The same that know more than the policies of the case, and are never the strongest rule."""
    undisturbed: str = ""
    """Key of the case that differs in nothing but the disturbance."""

    @property
    def compared_rules(self) -> dict[str, str]:
        """Text by label of what a policy is held against."""
        return {rule: rule for rule in self.rules} | dict(self.labelled)

    @property
    def all_rules(self) -> dict[str, str]:
        """Text by label of everything that is no candidate."""
        return self.compared_rules | dict(self.yardsticks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page."""

    key: str
    title: str
    text: str
    figure: str
    """Figure by which the strongest rule is the one with the least mean; see `strongest_rule`."""
    is_relative: bool
    """Whether differences of the figure are stated in per cent of it; else in its own unit."""
    columns: tuple[Column, ...]
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long and how often everything runs."""

    length_share: float = 1.0
    """Of each run's length."""
    max_seeds: int = 1_000
    max_cases: int = 1_000
    """Of a section."""

    def of(self, case: Case) -> Case:
        """Return a case of this effort."""
        plan = case.plan
        assert plan.horizon_seconds is not None
        shorter = replace(
            plan,
            seeds=plan.seeds[: self.max_seeds],
            horizon_seconds=plan.horizon_seconds * self.length_share,
            warm_up_seconds=plan.warm_up_seconds * self.length_share,
        )
        return replace(case, plan=shorter)


FULL = Effort()
QUICK = Effort(length_share=1.0 / 12.0, max_seeds=2, max_cases=6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A policy that is judged against the rules."""

    label: str
    text: str
    sections: tuple[str, ...] = ()
    """Keys of sections or of cases in which it runs; empty for all."""

    def runs_in(self, section: Section, case: Case) -> bool:
        """Return whether it runs in a case."""
        return not self.sections or section.key in self.sections or case.key in self.sections


def candidate_of(text: str) -> Candidate:
    """Return the candidate that `[LABEL::[WHERE,…::]]POLICY` describes; WHERE are keys of sections or cases.

    Raises:
        ConfigError: label or policy is empty.
    """
    label, *places, policy = text.split(SEPARATOR) if SEPARATOR in text else (text, text)
    if not label or not policy or len(places) > 1:
        raise ConfigError(f"policy {text[:64]!r} is not of the form [LABEL::[WHERE,…::]]POLICY")
    where = tuple(part for part in places[0].split(",") if part) if places else ()
    return Candidate(label=label, text=policy, sections=where)


def plan_of(  # noqa: PLR0913  # a comparison's own settings
    world: str,
    *,
    hours: float,
    warm_up_hours: float = 0.0,
    seeds: int = 5,
    drain: bool = False,
    generator: str = "",
    settings: tuple[tuple[str, float | int | str], ...] = (),
) -> ArenaPlan:
    """Return the plan of a case; its seeds are `FIRST_SEED` and the following, which no training meets."""
    return ArenaPlan(
        policies=(),
        world=world,
        seeds=seeds_from(FIRST_SEED, seeds),
        horizon_seconds=hours * 3600.0,
        warm_up_seconds=warm_up_hours * 3600.0,
        drain=drain,
        generator=generator,
        settings=settings,
    )


# Settings of `total-cost` on the page, also of learned prices: chosen by hand on arrivals that no case sees.
PACKED = "V=0,slowdown=0.5,opened_nodes=0.03,by_place=1,awake_time=0.01,max_node_wait=0.1"
"""Prices of what nodes and fast devices are worth to others, on a mixed cluster."""
HUNGRY_HOSTS = "V=0,slowdown=2,opened_nodes=0.03,awake_time=1,max_node_wait=0.2"
"""For hosts that draw more than their GPUs."""
_NODES = "opened_nodes=0.03,type_headroom=0.05,makespan=75000,awake_time=0.01"
"""Nodes that empty together, room for long jobs, and the makespan at about the cluster's mean power."""
BALANCED, SAVER = f"V=200,by_place=1,max_node_wait=0.1,{_NODES}", f"V=50,{_NODES}"
"""On the cluster of 128 nodes: for short turnarounds, and for energy and makespan."""
