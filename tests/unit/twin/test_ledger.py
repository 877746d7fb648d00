"""Power and energy by differences, against sums over the stretches between changes."""

from random import Random

import pytest

from slurm_energy.twin.engine.ledger import COMPONENTS, HOST, IDLE, Ledger


def test_a_swap_is_a_change_of_free_devices_and_one_of_jobs() -> None:
    swapped, apart, random, now = Ledger(), Ledger(), Random(1), 0.0
    for _ in range(50):
        now += random.choice((0.0, 1.5, 7.0))
        idle, jobs = random.uniform(-9.0, 9.0), random.uniform(-9.0, 9.0)
        swapped.swap(idle, jobs, now)
        apart.change(IDLE, idle, now)
        apart.change_jobs(jobs, now)
    assert swapped.power_watts == apart.power_watts
    assert swapped.energy_joules == apart.energy_joules
    assert swapped.total_at(now + 3.0) == pytest.approx(apart.total_at(now + 3.0), rel=1e-12)


def test_every_component_has_the_energy_of_its_own_stretches() -> None:
    ledger = Ledger()
    for component in range(len(COMPONENTS)):
        ledger.change(component, 10.0 * (component + 1), 0.0)
    ledger.swap(-4.0, 100.0, 2.0)
    ledger.change(HOST, 5.0, 3.0)
    ledger.close(10.0)
    assert ledger.power_watts == [6.0, 25.0, 30.0, 40.0]
    assert ledger.energy_joules == [20.0 + 48.0, 60.0 + 175.0, 300.0, 400.0]
    assert ledger.total_joules == sum(ledger.energy_joules) + 800.0
    assert ledger.total_watts == sum(ledger.power_watts) + 100.0
