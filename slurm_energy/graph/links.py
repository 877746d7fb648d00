"""Links between the devices of one node, as arrays; nodes that are built alike share them."""

from functools import lru_cache

import numpy as np

from slurm_energy.domain.cluster import GpuLink
from slurm_energy.graph.blocks import Flags, Floats, Indices
from slurm_energy.graph.device_features import DeviceType
from slurm_energy.graph.scaling import Scaler, raw
from slurm_energy.graph.schema import LINK

LINK_SCALER = Scaler(LINK)
MESH_DEVICES = 32
"""Up to so many devices, each is linked with each."""
BAND_DEVICES = 16
"""Beyond (slices of GPUs), each is linked with so many on either side of it."""


def device_links(count: int, link: GpuLink | None, device: DeviceType | None) -> tuple[Indices, Floats]:
    """Return the links of a node with `count` devices, both directions, [2, links] and [links, LINK].

    Devices of one island are joined by the link's kind, islands by PCIe. Where nothing is known of the topology, the
    links are there without features. A bandwidth that nobody measured is the data sheet's of the device type.
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
