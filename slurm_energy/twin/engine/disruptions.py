"""What happens to a cluster from outside: failures and repairs, congestion, heat of the room, power budget."""

from collections.abc import Callable
from functools import partial
from math import inf

import numpy as np

from slurm_energy.twin.adapters.view import TwinView, value_at
from slurm_energy.twin.engine.events import Events
from slurm_energy.twin.engine.execution import Execution
from slurm_energy.twin.engine.job import JobRun
from slurm_energy.twin.engine.ledger import IDLE
from slurm_energy.twin.engine.pool_state import AWAKE, DOWN
from slurm_energy.twin.world import Outage, Series, World


class Disruptions:
    """Brings the world's disturbances into a run; random ones from a stream of their own."""

    def __init__(  # the parts of one run, put together once
        self,
        world: World,
        execution: Execution,
        events: Events,
        view: TwinView,
        seed: int,
        requeue: Callable[[JobRun, float], None],
    ) -> None:
        self.congestion = 1.0
        self.count = 0
        """Nodes and GPUs that failed."""
        self._world = world
        self._execution = execution
        self._events = events
        self._view = view
        self._requeue = requeue
        self._random = np.random.default_rng(np.random.SeedSequence(seed).spawn(4)[2])

    def start(self) -> None:
        """Plan everything that is known to come."""
        world = self._world
        for series, apply in (
            (world.congestion, self._congest),
            (world.ambient_celsius, self._heat),
            (world.power_budget_watts, self._budget),
        ):
            if series is not None:
                apply(value_at(series, 0.0), 0.0)
                self._plan(series, apply)
        for series in (*world.carbon_grams_per_kwh.values(), *world.price_per_kwh.values()):
            self._plan(series, self._ask_again)
        for outage in world.outages:
            self._events.add_call(outage.at_seconds, partial(self._outage, outage))
        for index, pool in enumerate(world.pools):
            rate = pool.nodes / world.failures.node_mtbf_seconds
            self._plan_failure(rate, partial(self._random_node, index), 0.0)
            gpus = 0 if world.devices[pool.device].is_cpu else pool.nodes * pool.gpus_per_node
            rate = gpus / world.failures.gpu_mtbf_seconds
            self._plan_failure(rate, partial(self._random_gpu, index), 0.0)

    def fail_node(self, pool_index: int, node: int, now: float, until: float) -> None:
        """Take down a node with everything on it, until a time."""
        pool = self._execution.pools[pool_index]
        if pool.power[node] == DOWN:
            return
        self.count += 1
        while pool.runs_on[node]:
            self._requeue(next(iter(pool.runs_on[node].values())), now)
        self._execution.nodes.fail(pool_index, node, now)
        if until < inf:
            self._events.add_call(until, lambda then: self._execution.nodes.repair(pool_index, node, then))

    def fail_gpu(self, pool_index: int, node: int, index: int, now: float, until: float) -> None:
        """Take one device of a node out of use; the job that holds it dies."""
        execution = self._execution
        pool = execution.pools[pool_index]
        if pool.power[node] == DOWN or index >= pool.gpus_per_node - pool.broken[node]:
            return
        for run in list(pool.runs_on[node].values()):
            held = sum(count for at, _, count in run.allocation if at == node)
            if index < held:
                partner = run.partner
                self._requeue(run, now)
                if partner is not None:
                    self._requeue(partner, now)
                break
            index -= held
        self.count += 1
        pool.break_device(node)
        self._power_of_device(pool_index, node, -1.0, now)
        if until < inf:
            self._events.add_call(until, lambda then: self._repair_device(pool_index, node, then))

    def _repair_device(self, pool_index: int, node: int, now: float) -> None:
        self._execution.pools[pool_index].repair_device(node)
        self._power_of_device(pool_index, node, 1.0, now)

    def _power_of_device(self, pool_index: int, node: int, sign: float, now: float) -> None:
        execution = self._execution
        if execution.pools[pool_index].power[node] == AWAKE:
            watts = execution.devices[pool_index].free_watts
            execution.ledger_of_pool[pool_index].change(IDLE, sign * watts, now)
        execution.show_free(pool_index)

    def _outage(self, outage: Outage, now: float) -> None:
        index = next(number for number, pool in enumerate(self._world.pools) if pool.name == outage.pool)
        pool = self._execution.pools[index]
        up = [node for node in range(pool.pool.nodes) if pool.power[node] != DOWN]
        chosen = self._random.permutation(len(up))[: outage.nodes]
        for number in chosen:
            self.fail_node(index, up[int(number)], now, outage.until_seconds)
        devices = [
            (node, device)
            for node in range(pool.pool.nodes)
            if pool.power[node] != DOWN
            for device in range(pool.gpus_per_node - pool.broken[node])
        ]
        picked = [devices[int(number)] for number in self._random.permutation(len(devices))[: outage.gpus]]
        for node, device in sorted(picked, reverse=True):
            self.fail_gpu(index, node, device, now, outage.until_seconds)

    def _random_node(self, pool_index: int, now: float) -> None:
        node = int(self._random.integers(self._world.pools[pool_index].nodes))
        self.fail_node(pool_index, node, now, now + self._repair_seconds())

    def _random_gpu(self, pool_index: int, now: float) -> None:
        pool = self._world.pools[pool_index]
        node, index = int(self._random.integers(pool.nodes)), int(self._random.integers(pool.gpus_per_node))
        self.fail_gpu(pool_index, node, index, now, now + self._repair_seconds())

    def _repair_seconds(self) -> float:
        return float(self._random.exponential(self._world.failures.mean_repair_seconds))

    def _plan_failure(self, rate: float, fail: Callable[[float], None], now: float) -> None:
        """Let something fail after an exponential time, again and again."""
        if rate <= 0.0:
            return

        def due(then: float) -> None:
            fail(then)
            self._plan_failure(rate, fail, then)

        self._events.add_call(now + float(self._random.exponential(1.0 / rate)), due, background=True)

    def _plan(self, series: Series, apply: Callable[[float, float], None]) -> None:
        for time, value in zip(series.times_seconds, series.values, strict=True):
            if time > 0.0:
                self._events.add_call(time, partial(apply, value))

    def _congest(self, factor: float, now: float) -> None:
        execution = self._execution
        self.congestion = factor
        execution.tables.set_congestion(factor)
        execution.estimates.set_congestion(factor)
        for run in list(execution.computing.values()):
            if run.gpus > execution.places[run.place].pool.gpus_per_node:
                execution.pace.reprice(run, now)

    def _heat(self, ambient_celsius: float, now: float) -> None:
        execution = self._execution
        hot = [run for run in execution.computing.values() if execution.places[run.place].device.thermal is not None]
        for run in hot:
            execution.pace.reprice(run, now)
        execution.pace.ambient_celsius = ambient_celsius
        for run in hot:
            run.power_cap_watts = inf
            execution.pace.reprice(run, now)

    def _budget(self, watts: float, now: float) -> None:
        self._view.power_budget_watts = watts
        self._ask_again(watts, now)

    def _ask_again(self, value: float, now: float) -> None:  # noqa: ARG002  # the form of every change
        """Let the rule look at the jobs that wait: it may have waited for this change."""
        self._execution.changed.update(range(len(self._execution.places)))
