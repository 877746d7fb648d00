"""Power around the GPUs: what measured A100 servers draw, and the node constants of other systems."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from slurm_energy.energy_model.coefficients import coefficients
from slurm_energy.errors import ValueRangeError


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSpread:
    """Power in W of one kind of device or server over a month; drop-outs of the sensors are left out."""

    idle_watts: float
    """Fifth percentile."""
    median_watts: float
    high_watts: float
    """Ninetieth percentile."""
    peak_watts: float
    """Highest that was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShare:
    """What an 8-GPU server draws beside its GPUs: constant + (per_gpu_watt - 1) of the GPUs' power.

    Fitted to percentiles of servers and GPUs of the same rank: no joint samples exist.
    """

    constant_watts: float
    """CPUs, memory, network, fans of a server whose GPUs draw nothing."""
    per_gpu_watt: float
    """Server power for each W of GPU power; what is above 1 is fans and supply losses."""

    def server_watts(self, gpus_watts: float) -> float:
        """Return the power in W of a server whose GPUs draw this much together."""
        if not gpus_watts >= 0.0:
            raise ValueRangeError(f"GPU power {gpus_watts} W is not a number from 0 up")
        return self.constant_watts + self.per_gpu_watt * gpus_watts

    def host_watts(self, gpus_watts: float) -> float:
        """Return the part of it that is not the GPUs'."""
        return self.server_watts(gpus_watts) - gpus_watts


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConstants:
    """Node of another system as its model has it: constants that were chosen, not measured."""

    system: str
    cpus: int
    gpus: int
    cpu_idle_watts: float
    cpu_max_watts: float
    gpu_idle_watts: float
    gpu_max_watts: float
    rest_watts: float
    """Memory, network cards, disks."""

    @property
    def idle_watts(self) -> float:
        """Whole node, nothing running."""
        return self.cpus * self.cpu_idle_watts + self.gpus * self.gpu_idle_watts + self.rest_watts

    @property
    def max_watts(self) -> float:
        """Whole node, everything busy."""
        return self.cpus * self.cpu_max_watts + self.gpus * self.gpu_max_watts + self.rest_watts


@cache
def power_spreads() -> Mapping[str, PowerSpread]:
    """Return the spreads of `kalos-gpu`, `seren-gpu`, `gpu-server` (8 A100) and `cpu-server`."""
    return {name: PowerSpread(**entry) for name, entry in coefficients("host")["spreads"].items()}


@cache
def host_share() -> HostShare:
    """Return the host's share of an 8-GPU A100 server."""
    return HostShare(**coefficients("host")["host_share"])


@cache
def node_constants() -> Mapping[str, NodeConstants]:
    """Return the nodes of other systems by name, such as `selene` or `philly/8-gpu`."""
    return {name: NodeConstants(system=name, **entry) for name, entry in coefficients("host")["nodes"].items()}
