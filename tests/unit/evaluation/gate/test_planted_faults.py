import os

import pytest
from planted_faults import FAULTS, planted_faults, refuted_by

from slurm_energy.evaluation.gate.logic import PROMISES
from slurm_energy.evaluation.gate.logic.symbols import prove


def test_fault_is_in_force_only_while_it_is_planted() -> None:
    mutant, names = next(
        (mutant, names) for mutant, names in planted_faults() if mutant.function.endswith(":slowdown_left")
    )
    assert refuted_by(mutant, names) is not None
    assert prove("landing", PROMISES["landing"]).holds


IN_THE_SUITE = 24
"""Faults of the short form; the long one (SLURM_ENERGY_TRIAL=long) plants all of them."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_planted_faults_are_refuted() -> None:
    is_long = os.environ.get("SLURM_ENERGY_TRIAL") == "long"
    faults = planted_faults(FAULTS if is_long else IN_THE_SUITE)
    alive = [fault for fault, names in faults if refuted_by(fault, names) is None]
    print(f"{len(faults) - len(alive)} of {len(faults)} planted faults refuted")
    for fault in alive:
        print(f"not refuted: {fault.function} line {fault.line}: {fault.text}")
    assert len(alive) <= len(faults) // 10
