"""Energy by differences: every change of power closes the stretch before it, so no event walks over running jobs.

The total is integrated apart from its parts; that both agree is a property which tests hold.
"""

from collections.abc import Sequence

from slurm_energy.twin.world import World
from slurm_energy.twin.world.device_model import DeviceModel

IDLE, HOST, SUSPENDED, WAKING = range(4)
COMPONENTS = ("idle", "host", "suspended", "waking")
"""What no job is charged for: free devices, hosts, suspended nodes, nodes that boot."""


class Ledger:
    """Power and energy of a cluster. Jobs carry their own energy; here they count in the total only."""

    __slots__ = (
        "_idle_joules",
        "_idle_since",
        "_idle_watts",
        "_joules",
        "_since",
        "_total_since",
        "_watts",
        "total_joules",
        "total_watts",
    )

    def __init__(self) -> None:
        self._watts = [0.0] * len(COMPONENTS)
        self._joules = [0.0] * len(COMPONENTS)
        self._since = [0.0] * len(COMPONENTS)
        self._idle_watts = self._idle_joules = self._idle_since = 0.0
        """Of IDLE, apart from the lists: every start and every end changes it."""
        self.total_watts = 0.0
        self.total_joules = 0.0
        self._total_since = 0.0

    @property
    def power_watts(self) -> list[float]:
        """Power by component."""
        return [self._idle_watts, *self._watts[1:]]

    @property
    def energy_joules(self) -> list[float]:
        """Energy by component, up to its last change."""
        return [self._idle_joules, *self._joules[1:]]

    def change(self, component: int, watts: float, now: float) -> None:
        """Add to the power of a component from now on."""
        if component == IDLE:
            self.swap(watts, 0.0, now)
            return
        self._joules[component] += self._watts[component] * (now - self._since[component])
        self._since[component] = now
        self._watts[component] += watts
        self.change_jobs(watts, now)

    def swap(self, idle_watts: float, job_watts: float, now: float) -> None:
        """Add to the power of free devices and of jobs at once: what a start or an end does."""
        self._idle_joules += self._idle_watts * (now - self._idle_since)
        self._idle_since = now
        self._idle_watts += idle_watts
        self.total_joules += self.total_watts * (now - self._total_since)
        self._total_since = now
        self.total_watts += idle_watts + job_watts

    def change_jobs(self, watts: float, now: float) -> None:
        """Add to the power of jobs from now on."""
        self.total_joules += self.total_watts * (now - self._total_since)
        self._total_since = now
        self.total_watts += watts

    def add_joules(self, joules: float) -> None:
        """Add energy that jobs take in no time, such as data over a link without a speed."""
        self.total_joules += joules

    def total_at(self, now: float) -> float:
        """Return the energy in J of the whole cluster from time 0 until now."""
        return self.total_joules + self.total_watts * (now - self._total_since)

    def close(self, now: float) -> None:
        """Account everything until now."""
        for component in range(len(COMPONENTS)):
            self.change(component, 0.0, now)
        self.change_jobs(0.0, now)


def ledger_of_pool(world: World, devices: Sequence[int], kinds: Sequence[DeviceModel]) -> list[Ledger]:
    """Return each pool's ledger: one for all, or one per region where energy has a regional price or carbon.

    Args:
        world: The cluster.
        devices: How many each pool has.
        kinds: Their kind.
    """
    regional = bool(world.carbon_grams_per_kwh or world.price_per_kwh)
    by_region: dict[str, Ledger] = {}
    found = []
    for pool, count, kind in zip(world.pools, devices, kinds, strict=True):
        ledger = by_region.setdefault(pool.region if regional else "", Ledger())
        ledger.change(IDLE, count * kind.free_watts, 0.0)
        ledger.change(HOST, pool.nodes * pool.host_idle_watts, 0.0)
        found.append(ledger)
    return found
