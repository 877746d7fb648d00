"""What the devices of a pool of the twin read, as a node's own tools would tell it."""

from math import inf
from operator import attrgetter

from slurm_energy.domain.cluster import GpuReading
from slurm_energy.energy_model.catalog import gpu_type, gpu_type_from_slurm_type
from slurm_energy.twin.engine.job import COMPUTING, STARTING, JobRun
from slurm_energy.twin.view import TwinView
from slurm_energy.twin.world import Pool
from slurm_energy.twin.world.device_model import (
    DeviceModel,
    Thermal,
    steady_celsius,
    sustainable_watts,
    temperature_after,
)

JOB_MARK = attrgetter("job_id", "version", "phase", "watts", "partner")
"""What a reading of a job's devices hangs on: a change of clock raises the version, a node that wakes the power."""
_Kept = tuple[tuple[object, ...], list[GpuReading]]


class DeviceReadings:
    """Readings of one pool's devices; those of a job that did not change stay the same objects."""

    def __init__(self, view: TwinView, device: DeviceModel, pool: Pool) -> None:
        self._view = view
        self._device = device
        self._memory_gib = device.memory_gib if device.memory_gib < inf else None
        self._clocks_mhz = clocks_in_mhz(device)
        self._gpus_per_node = pool.gpus_per_node
        self._free: list[GpuReading] = []
        """Of devices that no job holds, by number."""
        self._kept: list[dict[int, _Kept]] = [{} for _ in range(pool.nodes)]
        """By node and job: what the readings hang on, and they."""

    @property
    def cooling_watts(self) -> float | None:
        """Power of one device at which its temperature limit is just held, None without a heat model."""
        thermal = self._device.thermal
        return None if thermal is None else sustainable_watts(thermal, self._ambient(thermal))

    def of_node(self, node: int, count: int, used: list[tuple[JobRun, tuple[int, ...]]]) -> tuple[GpuReading, ...]:
        """Return the readings of a node of so many devices, given which numbers each job uses."""
        idle = self._idle_celsius()
        if not self._free or self._free[0].temperature_celsius != idle:
            self._free = [self._free_reading(number, idle) for number in range(self._gpus_per_node)]
        readings = self._free[:count]
        before, kept = self._kept[node], {}
        for run, numbers in used:
            celsius = self.celsius(run)
            basis = (numbers, celsius, JOB_MARK(run), None if run.partner is None else JOB_MARK(run.partner))
            known = before.get(run.job_id)
            if known is None or known[0] != basis:
                known = (basis, [self._reading(run, number, celsius) for number in numbers])
            kept[run.job_id] = known
            for number, reading in zip(numbers, known[1], strict=True):
                readings[number] = reading
        self._kept[node] = kept
        return tuple(readings)

    def celsius(self, run: JobRun) -> float | None:
        """Return the temperature of a job's devices in whole degrees, as sensors tell it; None without a heat model."""
        thermal = self._device.thermal
        if thermal is None:
            return None
        partner = run.partner
        if run.phase != COMPUTING:
            return self.celsius(partner) if partner is not None and partner.phase == COMPUTING else self._idle_celsius()
        watts = run.watts / run.gpus
        watts += partner.watts if partner is not None and partner.phase == COMPUTING else 0.0
        steady = steady_celsius(thermal, self._ambient(thermal), watts)
        seconds = self._view.now_seconds - run.updated_seconds
        return float(round(temperature_after(thermal, run.temperature_celsius, steady, seconds)))

    def _reading(self, run: JobRun, number: int, celsius: float | None) -> GpuReading:
        """Return what a device shows whose job holds it; a job that stages or starts does not compute yet."""
        both = [run] if run.partner is None else [run, run.partner]
        computing = [each for each in both if each.phase == COMPUTING]
        clock = computing[0].clock if computing else None
        return GpuReading(
            index=number,
            slurm_type=self._device.name,
            utilisation=1.0 if computing else 0.0,
            memory_used_gib=sum((self._device.loads[each.kind].memory_gib for each in computing), 0.0),
            memory_gib=self._memory_gib,
            sm_clock_mhz=self._clocks_mhz[clock] if clock is not None and self._clocks_mhz else None,
            power_watts=watts_per_device(run),
            temperature_celsius=celsius,
            is_slowed=-1 < run.set_clock < len(self._device.relative_clocks) - 1,
        )

    def _free_reading(self, number: int, celsius: float | None) -> GpuReading:
        return GpuReading(
            index=number,
            slurm_type=self._device.name,
            utilisation=0.0,
            memory_used_gib=0.0,
            memory_gib=self._memory_gib,
            power_watts=self._device.free_watts,
            temperature_celsius=celsius,
        )

    def _idle_celsius(self) -> float | None:
        """Return what a free device tends to; what its last job left cools within minutes and is not followed."""
        thermal = self._device.thermal
        if thermal is None:
            return None
        return float(round(steady_celsius(thermal, self._ambient(thermal), self._device.free_watts)))

    def _ambient(self, thermal: Thermal) -> float:
        ambient = self._view.ambient_celsius
        return thermal.ambient_celsius if ambient is None else ambient


def clocks_in_mhz(device: DeviceModel) -> tuple[float, ...]:
    """Return a device's clocks; a world that has only relative ones takes the catalogue's highest as the last."""
    if device.clocks_mhz:
        return tuple(float(clock) for clock in device.clocks_mhz)
    name = gpu_type_from_slurm_type(device.name)
    row = None if name is None else gpu_type(name)
    if row is None or row.max_sm_clock_mhz is None:
        return ()
    highest, last = row.max_sm_clock_mhz, device.relative_clocks[-1]
    return tuple(float(round(highest * clock / last)) for clock in device.relative_clocks)


def watts_per_device(run: JobRun) -> float:
    """Return the power of each device that a job uses on nodes that are up, a neighbour's on the same GPU with it."""
    if run.phase == STARTING and run.partner is None:
        return run.starting_watts  # its `watts` are of the devices on nodes that are up
    watts = run.watts / run.gpus
    return watts if run.partner is None else watts + run.partner.watts
