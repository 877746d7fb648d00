import os

import pytest
from mutants import mutants_of
from planted_faults import ALIKE, FAULTS, PLACES, is_alike, planted_faults, refuted_by

from slurm_energy.evaluation.gate.logic import PROMISES
from slurm_energy.evaluation.gate.logic.symbols import prove


def test_fault_is_in_force_only_while_it_is_planted() -> None:
    mutant, names = next(
        (mutant, names) for mutant, names in planted_faults() if mutant.function.endswith(":slowdown_left")
    )
    assert refuted_by(mutant, names) is not None
    assert prove("landing", PROMISES["landing"]).holds


IN_THE_SUITE = 6
"""Faults of the short form; the long one (SLURM_ENERGY_TRIAL=long) plants all of them."""


@pytest.mark.parametrize("name", sorted({name for name, _ in ALIKE}))
def test_changes_that_decide_nothing_are_proved_to(name: str) -> None:
    listed = [
        mutant
        for paths in PLACES.values()
        for path in paths
        if path.rpartition(":")[2] == name
        for mutant in mutants_of(path)
        if (name, mutant.text) in ALIKE
    ]
    assert any(is_alike(mutant) for mutant in listed)


def test_a_change_that_decides_something_is_not_taken_for_nothing() -> None:
    mutant = next(
        mutant
        for mutant in mutants_of("slurm_energy.policy.site.type_bound:slowdown_left")
        if mutant.text.startswith("compare")
    )
    assert not is_alike(mutant)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_planted_faults_are_refuted() -> None:
    is_long = os.environ.get("SLURM_ENERGY_TRIAL") == "long"
    faults = planted_faults(FAULTS if is_long else IN_THE_SUITE)
    left = [fault for fault, names in faults if refuted_by(fault, names) is None]
    alive = [fault for fault in left if not is_alike(fault)]
    counted = len(faults) - len(left) + len(alive)
    print(f"{counted - len(alive)} of {counted} planted faults refuted, {len(left) - len(alive)} proved to be none")
    for fault in alive:
        print(f"not refuted: {fault.function} line {fault.line}: {fault.text}")
    assert len(alive) <= counted // 100
