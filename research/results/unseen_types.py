"""A cluster whose GPU types no training has met."""

from research.results import reasons
from research.results.cases import Case, Column, Goal, Section, plan_of
from research.results.price_settings import HUNGRY_HOSTS, PACKED

_ENERGY = "joules_per_unit"
_RULES = (
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
            rules=_RULES,
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
