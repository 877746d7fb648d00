"""What a server draws beside its GPUs, from measured A100 servers."""

from dataclasses import dataclass
from functools import cache

from slurm_energy.energy_model.coefficients import coefficients
from slurm_energy.errors import ValueRangeError


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShare:
    """What an 8-GPU server draws beside its GPUs: constant + (per_gpu_watt - 1) of the GPUs' power.

    Fitted to percentiles of servers and GPUs of the same rank: no joint samples exist.
    """

    constant_watts: float
    """CPUs, memory, network, fans of a server whose GPUs draw nothing."""
    per_gpu_watt: float
    """Server power for each W of GPU power; what is above 1 is fans and supply losses."""

    def host_watts(self, gpus_watts: float) -> float:
        """Return the power in W beside the GPUs of a server whose GPUs draw this much together."""
        if not gpus_watts >= 0.0:
            raise ValueRangeError(f"GPU power {gpus_watts} W is not a number from 0 up")
        return self.constant_watts + (self.per_gpu_watt - 1.0) * gpus_watts


@cache
def host_share() -> HostShare:
    """Return the host's share of an 8-GPU A100 server."""
    return HostShare(**coefficients("host")["host_share"])
