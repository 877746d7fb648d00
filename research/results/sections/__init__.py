"""The sections of the results page: what is compared, with which rules, and what is asked for."""

from research.results.cases import BALANCED, HUNGRY_HOSTS, PACKED, SAVER
from research.results.sections.cluster128 import FORMS, ROBUSTNESS, TUM
from research.results.sections.hidden_site import HIDDEN, IN_THE_MIDDLE, INSTALLED
from research.results.sections.mixed_cluster import AGENTS, PHILLY, UNSEEN
from research.results.sections.published_sites import FRONTIER, SCENARIOS

SECTIONS = (FRONTIER, SCENARIOS, PHILLY, UNSEEN, TUM, ROBUSTNESS, AGENTS, FORMS, HIDDEN)
CANDIDATES: tuple[str, ...] = (
    *(
        f"{label}::{'hidden-middle' if label in IN_THE_MIDDLE else 'hidden'}::{text}"
        for label, text in INSTALLED.items()
    ),
    "learned prices::frontier,scenarios::learned-price:checkpoint=shipped,V=20",
    f"learned prices::philly::learned-price:checkpoint=shipped,{PACKED}",
    "the daemon::philly::daemon/gnn",
    f"learned prices::unseen::learned-price:checkpoint=shipped,{HUNGRY_HOSTS}",
    f"learned prices::tum128,robustness::learned-price:checkpoint=shipped,{BALANCED}",
    f"learned prices, saving::tum128,robustness::learned-price:checkpoint=shipped,{SAVER}",
)
"""Learned policies that the page judges beside the rules, as `candidate_of` reads them: one line each."""
