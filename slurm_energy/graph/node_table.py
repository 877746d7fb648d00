"""Nodes of the graph with their devices and the links between these, and who runs on them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from slurm_energy.domain.cluster import GpuLink, NodeGpus, NodeState
from slurm_energy.domain.ids import NodeName
from slurm_energy.energy_model.catalog import BoardLimits
from slurm_energy.graph.blocks import DeviceBlock, Flags, Floats, Indices
from slurm_energy.graph.columns import ColumnStore, Scaler, raw
from slurm_energy.graph.holdings import held_devices
from slurm_energy.graph.job_table import JobVertices
from slurm_energy.graph.partitions import Types
from slurm_energy.graph.place_features import (
    NODE_SCALER,
    UPLINK_SCALER,
    DeviceState,
    DeviceType,
    catalogue_type,
    device_rows,
    device_state,
    device_type,
    node_row,
    processor_type,
    uplink_row,
)
from slurm_energy.graph.schema import GPU, LINK, NODE, UPLINK

MAX_DEVICES = 256
"""GPUs of one node that become vertices; slices of sixteen GPUs are 112."""
_NO_DEVICES: Floats = np.zeros((0, len(GPU)), dtype=np.float32)
_NO_RUNS: Indices = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class NodeDevices:
    """What lies inside one node."""

    gpu_x: Floats = field(default_factory=lambda: _NO_DEVICES)
    """[devices, GPU]."""
    link_index: Indices = field(default_factory=lambda: device_links(0, None, None)[0])
    link_x: Floats = field(default_factory=lambda: device_links(0, None, None)[1])
    run_task: Indices = field(default_factory=lambda: _NO_RUNS)
    """Vertex of the job of each run, [runs]."""
    run_device: Indices = field(default_factory=lambda: _NO_RUNS)
    """Device of each run, counted within the node, [runs]."""


class _Wiring(NamedTuple):
    """How the devices of some nodes are linked, side by side."""

    links: tuple[Indices, ...]
    """Of each node, which tell whether it is still so."""
    counts: Indices
    gpu_node: Indices
    link_index: Indices
    link_x: Floats


class NodeTable:
    """Nodes by name, each with a slot that stays."""

    def __init__(self, gpu_types: Mapping[str, str], board_limits: BoardLimits) -> None:
        self._gpu_types = gpu_types
        self._limits = board_limits
        self.index: dict[NodeName, int] = {}
        self.states: dict[int, NodeState] = {}
        self.devices: dict[int, NodeDevices] = {}
        self.store = ColumnStore(
            {
                "x": (np.float32, len(NODE)),
                "uplink_x": (np.float32, len(UPLINK)),
                "gpus": (np.int64, 0),
                "devices": (np.int64, 0),
                "free": (np.int64, 0),
                "available": (np.bool_, 0),
                "suspended": (np.bool_, 0),
                "cluster": (np.int64, 0),
            }
        )
        self._wiring: _Wiring | None = None
        self._types: dict[tuple[NodeGpus, ...], tuple[tuple[str | None, ...], tuple[DeviceType, ...]]] = {}

    def set_node(self, node: NodeState) -> int:
        """Take a node in, or its new state; return its slot."""
        slot = self.index.get(node.name)
        if slot is None:
            slot = self.store.take()
            self.index[node.name] = slot
            self.devices[slot] = NodeDevices()
        self.states[slot] = node
        return slot

    def remove_node(self, name: NodeName) -> int | None:
        """Take a node out; return the slot that it had, None when it was not there."""
        slot = self.index.pop(name, None)
        if slot is not None:
            self.store.free(slot)
            del self.states[slot], self.devices[slot]
        return slot

    def write_nodes(self, slots: Collection[int]) -> None:
        """Work out the nodes' own columns, and what is counted of them."""
        if not slots:
            return
        where = np.fromiter(slots, dtype=np.int64, count=len(slots))
        nodes = [self.states[slot] for slot in slots]
        store = self.store
        store["x"][where] = NODE_SCALER.scaled([node_row(node) for node in nodes])
        store["uplink_x"][where] = UPLINK_SCALER.scaled([uplink_row(node) for node in nodes])
        gpus = [node.gpu_count for node in nodes]
        store["gpus"][where] = gpus
        store["devices"][where] = [count or 1 for count in gpus]
        store["free"][where] = [_free_devices(node) for node in nodes]
        store["available"][where] = [node.available for node in nodes]
        store["suspended"][where] = [node.is_suspended for node in nodes]

    def write_devices(self, slots: Collection[int], jobs: JobVertices) -> None:
        """Work out the devices of some nodes, their links and runs."""
        types: list[DeviceType] = []
        states: list[DeviceState] = []
        ends: list[int] = []
        for slot in slots:
            node = self.states[slot]
            slurm_types, device_types = self.types_of(node)
            held = held_devices(slurm_types, node, jobs.holdings(node.name))
            types += device_types
            states += _states(node, device_types, held.in_use)
            ends.append(len(types))
            devices = self.devices[slot]
            devices.run_task = np.array(held.tasks, dtype=np.int64)
            devices.run_device = np.array(held.devices, dtype=np.int64)
            devices.link_index, devices.link_x = device_links(len(device_types), node.gpu_link, device_types[0])
        rows = device_rows(types, states)
        begin = 0
        for slot, end in zip(slots, ends, strict=True):
            self.devices[slot].gpu_x = rows[begin:end]
            begin = end

    def types_of(self, node: NodeState) -> tuple[tuple[str | None, ...], tuple[DeviceType, ...]]:
        """Return GRES type and device type of each GPU; no GRES type and one device for a node without GPUs."""
        if node.gpu_count <= 0:
            name = processor_type(node.features)
            return (), (device_type(name, is_cpu=True, limits=self._limits),)
        # How many are allocated does not matter here.
        key = tuple(NodeGpus(slurm_type=gpus.slurm_type, count=gpus.count) for gpus in node.gpus)
        found = self._types.get(key)
        if found is None:
            slurm_types = _slurm_types(key)
            names = {kind: catalogue_type(kind, self._gpu_types) for kind in slurm_types}
            by_kind = {kind: device_type(name, limits=self._limits) for kind, name in names.items()}
            found = self._types[key] = slurm_types, tuple(by_kind[kind] for kind in slurm_types)
        return found

    def kinds_of(self, node: NodeState) -> Types:
        """Return the types of a node's GPUs."""
        return tuple(dict.fromkeys(device.name for device in self.types_of(node)[1] if not device.is_cpu))

    def running(self, slots: Indices) -> Indices:
        """Return the vertices of the jobs on some nodes, ascending: their order in `block`."""
        return np.unique(_joined([self.devices[slot].run_task for slot in slots.tolist()]))

    def block(self, slots: Indices, jobs: JobVertices) -> DeviceBlock:
        """Return whole nodes in the order of their slots as given."""
        parts = [self.devices[slot] for slot in slots.tolist()]
        counts = np.array([len(part.gpu_x) for part in parts], dtype=np.int64)
        begins = np.cumsum(counts) - counts
        wiring = self._wired(parts, counts, begins)
        runs = np.array([len(part.run_task) for part in parts], dtype=np.int64)
        tasks, run_task = np.unique(_joined([part.run_task for part in parts]), return_inverse=True)
        run_device = _joined([part.run_device for part in parts]) + np.repeat(begins, runs)
        empty = NodeDevices()
        job_slots = jobs.store
        return DeviceBlock(
            node_x=self.store["x"][slots],
            gpu_x=np.concatenate([part.gpu_x for part in (*parts, empty)]),
            gpu_node=wiring.gpu_node,
            link_index=wiring.link_index,
            link_x=wiring.link_x,
            task_x=job_slots["x"][tasks],
            run_index=np.stack([run_task.reshape(-1), run_device]),
            run_x=job_slots["run_x"][tasks][run_task.reshape(-1)],
        )

    def _wired(self, parts: Sequence[NodeDevices], counts: Indices, begins: Indices) -> _Wiring:
        """Return how the devices of some nodes are linked: the same arrays again while nothing of it changed.

        What keeps blocks, as an episode does all of its own, would else hold megabytes of equal links for each of
        them where nodes have hundreds of devices.
        """
        last = self._wiring
        if (
            last is not None
            and len(last.links) == len(parts)
            and all(one is part.link_index for one, part in zip(last.links, parts, strict=True))
            and np.array_equal(last.counts, counts)
        ):
            return last
        empty = NodeDevices()
        links = np.array([len(part.link_x) for part in parts], dtype=np.int64)
        index = np.concatenate([part.link_index for part in (*parts, empty)], axis=1)
        self._wiring = _Wiring(
            links=tuple(part.link_index for part in parts),
            counts=counts,
            gpu_node=np.repeat(np.arange(len(parts)), counts),
            link_index=index + np.repeat(begins, links),
            link_x=np.concatenate([part.link_x for part in (*parts, empty)]),
        )
        return self._wiring


def _joined(arrays: Sequence[Indices]) -> Indices:
    return np.concatenate((*arrays, _NO_RUNS))


def _slurm_types(gpus: Iterable[NodeGpus]) -> tuple[str | None, ...]:
    types: list[str | None] = []
    for group in gpus:
        types += [group.slurm_type] * min(max(0, group.count), MAX_DEVICES - len(types))
    return tuple(types)


def _free_devices(node: NodeState) -> int:
    """Return the devices that a job could have now; the CPUs of a node without GPUs count as one device."""
    if not node.available:
        return 0
    return node.gpus_idle if node.gpu_count > 0 else int(node.cpus_allocated < node.cpus)


def _states(node: NodeState, types: Sequence[DeviceType], in_use: Sequence[bool]) -> list[DeviceState]:
    if not node.gpu_readings:
        return [device_state(kind, None, is_allocated=held) for kind, held in zip(types, in_use, strict=True)]
    readings = {reading.index: reading for reading in node.gpu_readings}
    return [
        device_state(kind, readings.get(place), is_allocated=held)
        for place, (kind, held) in enumerate(zip(types, in_use, strict=True))
    ]


LINK_SCALER = Scaler(LINK)
MESH_DEVICES = 32
"""Up to so many devices, each is linked with each."""
BAND_DEVICES = 16
"""Beyond (slices of GPUs), each is linked with so many on either side of it."""


def device_links(count: int, link: GpuLink | None, device: DeviceType | None) -> tuple[Indices, Floats]:
    """Return the links of a node with `count` devices, both directions, [2, links] and [links, LINK].

    Devices of one island are joined by the link's kind, islands by PCIe. Where nothing is known of the topology, the
    links are there without features. A bandwidth that was not measured is the data sheet's of the device type.
    """
    nvlink = None if device is None else device.nvlink_gb_per_second
    pcie = None if device is None else device.pcie_gb_per_second
    return _device_links(count, link, nvlink, pcie)


@lru_cache(maxsize=1024)
def _device_links(
    count: int, link: GpuLink | None, nvlink_sheet: float | None, pcie_sheet: float | None
) -> tuple[Indices, Floats]:
    source, target = np.nonzero(_adjacent(count))
    rows = np.zeros((len(source), len(LINK)), dtype=np.float32)
    if link is not None and len(source):
        island = max(1, link.island_gpus) if link.island_gpus is not None else max(1, count)
        inside = source // island == target // island
        measured, latency = link.bandwidth_gb_per_second, raw(link.latency_microseconds)
        is_nvlink = link.kind == "nvlink"
        sheet = nvlink_sheet if is_nvlink else pcie_sheet
        own = (float(is_nvlink), float(not is_nvlink), raw(sheet if measured is None else measured), latency)
        between = (0.0, 1.0, raw(pcie_sheet), raw(None))
        rows[:] = np.where(inside[:, None], *LINK_SCALER.scaled([own, between])[:, None, :])
    index = np.stack([source, target]).astype(np.int64)
    index.flags.writeable = rows.flags.writeable = False
    return index, rows


def _adjacent(count: int) -> Flags:
    positions = np.arange(count)
    distance = np.abs(positions[:, None] - positions[None, :])
    reach = count if count <= MESH_DEVICES else BAND_DEVICES
    near: Flags = (distance > 0) & (distance <= reach)
    return near
