"""Which nodes belong to which partitions, and what the nodes of each partition add up to."""

from dataclasses import dataclass

import numpy as np

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.graph.blocks import Indices
from slurm_energy.graph.columns import ColumnStore

Types = tuple[GpuTypeName | None, ...]
"""GPU types by catalogue name, each once; None stands for those that are not known."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlaceSums:
    """Sums over the nodes of each partition, [partitions]."""

    nodes: Indices
    suspended: Indices
    gpus: Indices
    devices: Indices
    """GPUs, and one for each node without."""
    free: Indices
    """Devices that a job could have now."""
    gpus_free: Indices


class Memberships:
    """Partitions of each node by its slot, also as two flat arrays."""

    def __init__(self, num_partitions: int) -> None:
        self.num_partitions = num_partitions
        self._places: dict[int, tuple[int, ...]] = {}
        self._kinds: dict[int, Types] = {}
        self._flat: tuple[Indices, Indices] | None = None
        self._types: tuple[Types, ...] | None = None

    def __getitem__(self, slot: int) -> tuple[int, ...]:
        return self._places[slot]

    def set_node(self, slot: int, places: tuple[int, ...], kinds: Types) -> None:
        """Say where a node belongs, and which types of GPUs it has."""
        if self._places.get(slot) != places:
            self._places[slot] = places
            self._flat = self._types = None
        if self._kinds.get(slot) != kinds:
            self._kinds[slot] = kinds
            self._types = None

    def remove_node(self, slot: int) -> None:
        """Take a node out of all its partitions."""
        del self._places[slot], self._kinds[slot]
        self._flat = self._types = None

    def flat(self) -> tuple[Indices, Indices]:
        """Return node slot and partition of every membership, nodes ascending."""
        if self._flat is None:
            self._flat = self.of(np.array(sorted(self._places), dtype=np.int64))
        return self._flat

    def of(self, slots: Indices) -> tuple[Indices, Indices]:
        """Return node slot and partition of every membership of some nodes, in their order."""
        places = [self._places[slot] for slot in slots.tolist()]
        counts = np.array([len(found) for found in places], dtype=np.int64)
        return np.repeat(slots, counts), np.array([place for found in places for place in found], dtype=np.int64)

    def types(self) -> tuple[Types, ...]:
        """Return the GPU types of each partition by name, None last; the same object while they are the same."""
        if self._types is None:
            found: list[set[GpuTypeName | None]] = [set() for _ in range(self.num_partitions)]
            for slot, kinds in self._kinds.items():
                for place in self._places[slot]:
                    found[place].update(kinds)
            self._types = tuple(tuple(sorted(types, key=lambda name: (name is None, name or ""))) for types in found)
        return self._types

    def sums(self, nodes: ColumnStore) -> PlaceSums:
        """Return what the nodes of each partition add up to."""
        slots, places = self.flat()

        def total(values: Indices) -> Indices:
            return np.bincount(places, weights=values[slots], minlength=self.num_partitions).astype(np.int64)

        gpus, free = nodes["gpus"], nodes["free"]
        return PlaceSums(
            nodes=np.bincount(places, minlength=self.num_partitions),
            suspended=total(nodes["suspended"]),
            gpus=total(gpus),
            devices=total(nodes["devices"]),
            free=total(free),
            gpus_free=total(np.where(gpus > 0, free, 0)),
        )
