"""A second account of power: from the state of nodes and jobs by the documented rules, not by differences.

The ledger adds one number to a component and to the total, so its balance cannot tell a wrong number. This can.
"""

import pytest

from slurm_energy.twin.adapters.view import regional_series, value_at
from slurm_energy.twin.engine.execution import Execution
from slurm_energy.twin.engine.job import COMPUTING, STARTING, JobRun
from slurm_energy.twin.engine.ledger import COMPONENTS, HOST, IDLE, WAKING, Ledger
from slurm_energy.twin.engine.ledger import SUSPENDED as SUSPENDED_POWER
from slurm_energy.twin.engine.loop import Engine
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.pool_state import AWAKE, SUSPENDED, PoolState
from slurm_energy.twin.engine.pool_state import WAKING as WAKES
from slurm_energy.twin.engine.sampling import Sampler
from slurm_energy.twin.world import Series

JOBS = len(COMPONENTS)
_JOULES_PER_KWH = 3.6e6


def nodes_of(pool: PoolState) -> list[tuple[int, int, int]]:
    """Return power state, devices that work and devices that jobs use of each node."""
    if not pool.by_node:
        return [(AWAKE, pool.total, sum(run.gpus for run in pool.runs.values()))]
    used = [0] * pool.pool.nodes
    for run in pool.runs.values():
        for node, count, _ in run.allocation:
            used[node] += count
    working = [pool.gpus_per_node - broken for broken in pool.broken]
    return list(zip(pool.power, working, used, strict=True))


def pool_watts(execution: Execution, index: int) -> list[float]:
    """Return the power of a pool: the components of the ledger, then its jobs."""
    pool, free_watts = execution.pools[index], execution.devices[index].free_watts
    settings, idle, busy = pool.pool.suspend, pool.pool.host_idle_watts, pool.pool.host_busy_watts
    watts = [0.0] * (JOBS + 1)
    for power, working, used in nodes_of(pool):
        if power == AWAKE:  # a device that an exclusive job keeps from others and does not use draws as a free one
            watts[IDLE] += (working - used) * free_watts
            watts[HOST] += idle + (busy - idle) * used / pool.pool.gpus_per_node
        elif power == SUSPENDED:
            assert settings is not None and used == 0
            watts[SUSPENDED_POWER] += settings.suspended_watts
        elif power == WAKES:
            assert settings is not None
            watts[WAKING] += settings.resume_watts
    watts[JOBS] = sum(run.watts for run in pool.runs.values())
    return watts


def check_power(engine: Engine) -> None:
    """Assert that every ledger has the power that the state of its pools and their jobs gives."""
    execution = engine._execution
    expected: dict[int, tuple[Ledger, list[float]]] = {}
    for index, ledger in enumerate(execution.ledger_of_pool):
        _, watts = expected.setdefault(id(ledger), (ledger, [0.0] * (JOBS + 1)))
        for component, more in enumerate(pool_watts(execution, index)):
            watts[component] += more
        for run in execution.pools[index].runs.values():
            check_job(engine, index, run)
    for ledger, watts in expected.values():
        assert ledger.power_watts == pytest.approx(watts[:JOBS], rel=1e-9, abs=1e-8)
        assert ledger.total_watts == pytest.approx(sum(watts), rel=1e-9, abs=1e-8)


def check_job(engine: Engine, pool_index: int, run: JobRun) -> None:
    """Assert that a job draws what its devices draw at its clock, or what they draw until it computes."""
    execution = engine._execution
    pool, device = execution.pools[pool_index], execution.devices[pool_index]
    if run.phase == STARTING:
        awake = [count for node, count, _ in run.allocation if not pool.by_node or pool.power[node] == AWAKE]
        gpus = sum(awake) if pool.by_node else run.gpus
        assert run.watts >= gpus * device.free_watts - 1e-9
        if not run.job.input_gigabytes:  # no data, so no energy of a link
            assert run.watts <= gpus * device.context_watts + 1e-9
        return
    assert run.phase == COMPUTING
    load, partner = device.loads[run.kind], run.partner
    if partner is None or partner.phase != COMPUTING:
        link = load.scaling.traffic_gigabytes_per_unit * run.gpus * pool.pool.link_joules_per_gigabyte
        link *= run.gpus > pool.gpus_per_node
        assert run.watts == pytest.approx(run.gpus * load.watts[run.clock] + link * run.units_per_second, rel=1e-9)
        return
    pair, other = device.pair(run.kind, partner.kind), device.loads[partner.kind]
    assert pair is not None and run.clock == partner.clock
    fall = (load.watts[run.clock] + other.watts[run.clock]) / (load.watts[-1] + other.watts[-1])
    assert run.watts + partner.watts == pytest.approx(pair.watts * fall, rel=1e-9)


class PowerAccount(Sampler):
    """Stands for an engine's sampler to see the state that held until each event: power is constant in between."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine._execution, engine._waiting, engine._horizon)
        self.next_seconds = -1.0
        self._engine = engine
        self._since = 0.0
        self._joules = [0.0] * (JOBS + 1)
        self._suspended_node_seconds = self._grams = self._cost = 0.0

    def sample(self, now: float) -> float:
        """Count up to a time, before the effect of its events; ask to be called at the next time too."""
        super().sample(now)
        check_power(self._engine)
        execution, since, seconds = self._engine._execution, self._since, now - self._since
        assert seconds >= 0.0
        for index, pool in enumerate(execution.pools):
            watts = pool_watts(execution, index)
            for component, value in enumerate(watts):
                self._joules[component] += value * seconds
            kilowatt_hours = sum(watts) * seconds / _JOULES_PER_KWH
            world, region = execution.world, pool.pool.region
            self._grams += kilowatt_hours * _value(regional_series(world.carbon_grams_per_kwh, region), since)
            self._cost += kilowatt_hours * _value(regional_series(world.price_per_kwh, region), since)
            self._suspended_node_seconds += seconds * sum(power == SUSPENDED for power, _, _ in nodes_of(pool))
        self._since = now
        return -1.0

    def check(self, outcome: Outcome) -> None:
        """Assert that an outcome has the energy that was counted here."""
        assert self._since == outcome.end_seconds
        assert outcome.total_joules == pytest.approx(sum(self._joules), rel=1e-9, abs=1e-6)
        assert outcome.jobs_joules == pytest.approx(self._joules[JOBS], rel=1e-9, abs=1e-6)
        counted = dict(zip(COMPONENTS, self._joules, strict=False))
        assert outcome.joules_by_component == pytest.approx(counted, rel=1e-9, abs=1e-6)
        assert outcome.suspended_node_hours * 3600.0 == pytest.approx(self._suspended_node_seconds, rel=1e-9, abs=1e-6)
        assert (outcome.carbon_grams or 0.0) == pytest.approx(self._grams, rel=1e-9, abs=1e-9)
        assert (outcome.cost or 0.0) == pytest.approx(self._cost, rel=1e-9, abs=1e-9)


def _value(series: Series | None, time: float) -> float:
    return 0.0 if series is None else value_at(series, time)
