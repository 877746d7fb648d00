"""Nodes that sleep, wake, fail and grow warm: the power of what is not a job."""

from math import inf, nextafter
from typing import TYPE_CHECKING

from slurm_energy.twin.engine.job import STARTING, Allocation, JobRun
from slurm_energy.twin.engine.ledger import HOST, IDLE
from slurm_energy.twin.engine.ledger import SUSPENDED as SUSPENDED_POWER
from slurm_energy.twin.engine.ledger import WAKING as WAKING_POWER
from slurm_energy.twin.engine.pool_state import AWAKE, DOWN, SUSPENDED, WAKING
from slurm_energy.twin.world.device_model import DeviceModel, steady_celsius, temperature_after

if TYPE_CHECKING:
    from slurm_energy.twin.engine.execution import Execution


class NodePower:
    """Power states of the nodes of every pool whose nodes are distinguished."""

    def __init__(self, execution: "Execution") -> None:
        self._execution = execution
        self._temperatures: dict[tuple[int, int], tuple[float, float]] = {}
        self.suspended_nodes = 0
        self.suspended_node_seconds = 0.0
        self._since = 0.0

    def occupy(self, pool_index: int, allocation: Allocation, asleep: list[int], now: float) -> tuple[float, int]:
        """Wake the nodes that sleep; return when all are awake, and how many of the devices are on awake nodes."""
        pool = self._execution.pools[pool_index]
        for node in asleep:
            self._wake(pool_index, node, now)
        waking = [node for node, _, _ in allocation if pool.power[node] == WAKING]
        ready = max((pool.ready_seconds[node] for node in waking), default=now)
        return ready, sum(used for node, used, _ in allocation if pool.power[node] == AWAKE)

    def up_seconds(self, pool_index: int, allocation: Allocation, now: float) -> float:
        """Return when all nodes of an allocation would be awake if a job took them now."""
        pool = self._execution.pools[pool_index]
        settings = pool.pool.suspend
        if settings is None:
            return now
        up = now
        for node, _, _ in allocation:
            if pool.power[node] == SUSPENDED:
                up = max(up, now + settings.resume_seconds)
            elif pool.power[node] == WAKING:
                up = max(up, pool.ready_seconds[node])
        return up

    def awake_gpus(self, pool_index: int, allocation: Allocation) -> int:
        """Return how many devices of an allocation are on nodes that are awake."""
        power = self._execution.pools[pool_index].power
        return sum(used for node, used, _ in allocation if power[node] == AWAKE)

    def set_timers(self, pool_index: int, nodes: list[int], now: float) -> None:
        """Let nodes that are idle from now on be suspended after a while, unless they are used before."""
        execution = self._execution
        pool = execution.pools[pool_index]
        settings = pool.pool.suspend
        if settings is None:
            return
        after_pass = nextafter(now, inf)  # jobs that wait get a node that falls idle before it is suspended
        for node in nodes:
            version = pool.idle_version[node]

            def suspend(then: float, node: int = node, version: int = version) -> None:
                if pool.idle_version[node] == version and pool.is_idle(node):
                    self._suspend(pool_index, node, then)

            execution.events.add_call(max(now + settings.idle_seconds, after_pass), suspend)

    def all_idle(self, now: float) -> None:
        """Set the timers of every node that is idle at the start."""
        for index, pool in enumerate(self._execution.pools):
            if pool.by_node and pool.pool.suspend is not None:
                self.set_timers(index, [node for node in range(pool.pool.nodes) if pool.is_idle(node)], now)

    def close(self, now: float) -> None:
        """Account suspended time until now."""
        self._count(0, now)

    def fail(self, pool_index: int, node: int, now: float) -> None:
        """Take down a node that holds no job: it draws nothing until it is repaired."""
        execution = self._execution
        pool, ledger = execution.pools[pool_index], execution.ledger_of_pool[pool_index]
        if pool.power[node] == AWAKE:
            ledger.change(HOST, -pool.pool.host_idle_watts, now)
            ledger.change(IDLE, -pool.free[node] * execution.devices[pool_index].free_watts, now)
        elif pool.power[node] == SUSPENDED and pool.pool.suspend is not None:
            ledger.change(SUSPENDED_POWER, -pool.pool.suspend.suspended_watts, now)
            self._count(-1, now)
        elif pool.power[node] == WAKING and pool.pool.suspend is not None:
            ledger.change(WAKING_POWER, -pool.pool.suspend.resume_watts, now)
        pool.idle_version[node] += 1
        pool.set_power(node, DOWN)
        execution.show_free(pool_index)

    def repair(self, pool_index: int, node: int, now: float) -> None:
        """Bring a node back, awake and idle."""
        execution = self._execution
        pool, ledger = execution.pools[pool_index], execution.ledger_of_pool[pool_index]
        pool.set_power(node, AWAKE)
        ledger.change(HOST, pool.pool.host_idle_watts, now)
        ledger.change(IDLE, pool.free[node] * execution.devices[pool_index].free_watts, now)
        execution.show_free(pool_index)
        self.set_timers(pool_index, [node], now)

    def warm_start(self, run: JobRun, device: DeviceModel, now: float) -> None:
        """Give a job's devices the temperature that the last job on its first node left, cooled since."""
        thermal = device.thermal
        if thermal is None:
            return
        execution = self._execution
        ambient = thermal.ambient_celsius if execution.pace.ambient_celsius is None else execution.pace.ambient_celsius
        idle = steady_celsius(thermal, ambient, device.free_watts)
        warm, since = self._temperatures.get(self._first_node(run), (idle, now))
        run.temperature_celsius = temperature_after(thermal, warm, idle, now - since)

    def keep_temperature(self, run: JobRun, now: float) -> None:
        """Remember the temperature at which a job leaves its first node."""
        self._temperatures[self._first_node(run)] = (run.temperature_celsius, now)

    def _first_node(self, run: JobRun) -> tuple[int, int]:
        allocation = run.allocation or (run.partner.allocation if run.partner is not None else [])
        return self._execution.places[run.place].pool_index, allocation[0][0] if allocation else 0

    def _suspend(self, pool_index: int, node: int, now: float) -> None:
        execution = self._execution
        pool, ledger = execution.pools[pool_index], execution.ledger_of_pool[pool_index]
        settings = pool.pool.suspend
        if settings is None:
            return
        ledger.change(HOST, -pool.pool.host_idle_watts, now)
        ledger.change(IDLE, -pool.free[node] * execution.devices[pool_index].free_watts, now)
        ledger.change(SUSPENDED_POWER, settings.suspended_watts, now)
        pool.set_power(node, SUSPENDED)
        self._count(1, now)

    def _wake(self, pool_index: int, node: int, now: float) -> None:
        execution = self._execution
        pool, ledger = execution.pools[pool_index], execution.ledger_of_pool[pool_index]
        settings = pool.pool.suspend
        if settings is None:
            return
        ledger.change(SUSPENDED_POWER, -settings.suspended_watts, now)
        ledger.change(WAKING_POWER, settings.resume_watts, now)
        pool.set_power(node, WAKING)
        pool.ready_seconds[node] = now + settings.resume_seconds
        self._count(-1, now)
        version = pool.ready_seconds[node]

        def awake(then: float) -> None:
            if pool.power[node] == WAKING and pool.ready_seconds[node] == version:
                self._awake(pool_index, node, then)

        execution.events.add_call(pool.ready_seconds[node], awake)

    def _awake(self, pool_index: int, node: int, now: float) -> None:
        """Let a node that has booted draw what its host, its free devices and its waiting jobs draw."""
        execution = self._execution
        pool, ledger = execution.pools[pool_index], execution.ledger_of_pool[pool_index]
        settings = pool.pool.suspend
        if settings is None:
            return
        device = execution.devices[pool_index]
        pool.set_power(node, AWAKE)
        used = {
            run.job_id: sum(count for at, count, _ in run.allocation if at == node)
            for run in pool.runs_on[node].values()
        }
        slope = (pool.pool.host_busy_watts - pool.pool.host_idle_watts) / pool.pool.gpus_per_node
        busy = sum(used.values())
        free = pool.pool.gpus_per_node - pool.broken[node] - busy
        ledger.change(WAKING_POWER, -settings.resume_watts, now)
        ledger.change(HOST, pool.pool.host_idle_watts + slope * busy, now)
        ledger.change(IDLE, free * device.free_watts, now)
        for run in list(pool.runs_on[node].values()):
            if run.phase == STARTING:
                run.settle(now)
                watts = used[run.job_id] * run.starting_watts
                run.watts += watts
                ledger.change_jobs(watts, now)
        if not pool.runs_on[node]:
            pool.idle_version[node] += 1
            self.set_timers(pool_index, [node], now)

    def _count(self, nodes: int, now: float) -> None:
        self.suspended_node_seconds += self.suspended_nodes * (now - self._since)
        self._since = now
        self.suspended_nodes += nodes
