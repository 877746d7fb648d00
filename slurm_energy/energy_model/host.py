"""What a server draws beside its GPUs, from measured A100 servers."""

from dataclasses import dataclass
from functools import cache

from slurm_energy.energy_model.coefficients import coefficients


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShare:
    """What an 8-GPU server draws beside its GPUs: constant + (per_gpu_watt - 1) of the GPUs' power.

    Fitted to percentiles of servers and GPUs of the same rank: no joint samples exist.
    """

    constant_watts: float
    """CPUs, memory, network, fans of a server whose GPUs draw nothing."""
    per_gpu_watt: float
    """Server power for each W of GPU power; what is above 1 is fans and supply losses."""


@cache
def host_share() -> HostShare:
    """Return the host's share of an 8-GPU A100 server."""
    return HostShare(**coefficients("host")["host_share"])
