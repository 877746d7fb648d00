"""How devices hang together inside a node, and nodes through switches."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLink:
    """What joins the GPUs of a node: islands of `island_gpus` devices by `kind`, PCIe between islands."""

    kind: Literal["nvlink", "pcie"]
    bandwidth_gb_per_second: float | None = None
    """Of one device to another, one way."""
    latency_microseconds: float | None = None
    island_gpus: int | None = None
    """None: all devices of the node are one island."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchState:
    """One switch of the network between nodes; a root has no parent."""

    name: str
    parent: str | None = None
    capacity_gb_per_second: float | None = None
    """Of all its downward links together."""
    congestion: float | None = None
    """Share of the capacity in use, 0 to 1."""
