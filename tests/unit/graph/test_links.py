import numpy as np
import pytest

from slurm_energy.domain.cluster import GpuLink
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.graph.node_table import BAND_DEVICES, MESH_DEVICES, device_links
from slurm_energy.graph.place_features import device_type
from slurm_energy.graph.schema import LINK

V100 = device_type(GpuTypeName("v100-sxm2-16gb"))


def scaled(*values: float) -> list[float]:
    return [feature.scaled(value) for feature, value in zip(LINK, values, strict=True)]


def test_each_device_is_linked_with_each_other_both_ways() -> None:
    index, rows = device_links(4, None, None)
    assert sorted(map(tuple, index.T.tolist())) == [(i, j) for i in range(4) for j in range(4) if i != j]
    assert rows.shape == (12, len(LINK))
    assert not rows.any()


def test_islands_are_joined_by_pcie() -> None:
    index, rows = device_links(4, GpuLink(kind="nvlink", island_gpus=2, latency_microseconds=1.5), V100)
    for (source, target), row in zip(index.T.tolist(), rows, strict=True):
        inside = source // 2 == target // 2
        np.testing.assert_allclose(row, scaled(1, 0, 150.0, 1.5) if inside else scaled(0, 1, 16.0, 0), rtol=1e-6)


def test_a_measured_bandwidth_counts_before_the_data_sheet() -> None:
    _, rows = device_links(2, GpuLink(kind="pcie", bandwidth_gb_per_second=12.0), V100)
    np.testing.assert_allclose(rows, [scaled(0, 1, 12.0, 0)] * 2, rtol=1e-6)


@pytest.mark.parametrize("count", [0, 1])
def test_a_lone_device_has_no_link(count: int) -> None:
    index, rows = device_links(count, GpuLink(kind="nvlink"), V100)
    assert index.shape == (2, 0)
    assert rows.shape == (0, len(LINK))


def test_the_links_of_many_slices_are_bounded() -> None:
    count = 4 * MESH_DEVICES
    index, _ = device_links(count, None, None)
    assert np.abs(index[0] - index[1]).max() == BAND_DEVICES
    assert index.shape[1] < count * 2 * BAND_DEVICES


def test_a_strange_island_is_one_device() -> None:
    _, rows = device_links(2, GpuLink(kind="nvlink", island_gpus=0), V100)
    np.testing.assert_allclose(rows[:, 1], 1.0)
