from dataclasses import replace
from pathlib import Path

import pytest
from simgpu_nodes import built_library

from slurm_energy.energy_model.catalog import CATALOG, gpu_type_from_device_name
from slurm_energy.errors import LabError
from slurm_energy.lab.simgpu.profiles import LoadProfile
from slurm_energy.lab.simgpu.specs import SIMULATED_TYPES, standard_gpus
from slurm_energy.lab.simgpu.state import create_state


@pytest.mark.parametrize("gpu_type", SIMULATED_TYPES)
def test_standard_gpu_has_the_catalogues_name_and_clocks(gpu_type: str) -> None:
    gpu = standard_gpus(gpu_type, 1, "n1")[0]

    name = gpu_type_from_device_name(gpu.name)
    assert name == gpu_type
    assert gpu.sm_clocks_mhz == CATALOG[name].sm_clocks_mhz


@pytest.mark.parametrize("gpu_type", SIMULATED_TYPES)
def test_every_type_knows_the_general_profiles(gpu_type: str) -> None:
    names = [profile.name for profile in standard_gpus(gpu_type, 1, "n1")[0].profiles]

    assert names[:4] == ["training", "compute", "memory", "host"]
    assert len(set(names)) == len(names)


def test_minor_numbers_run_against_the_drivers_order_on_v100_only() -> None:
    assert [gpu.minor_number for gpu in standard_gpus("v100", 4, "n1")] == [3, 2, 1, 0]
    assert [gpu.minor_number for gpu in standard_gpus("a100", 4, "n1")] == [0, 1, 2, 3]


def test_uuids_depend_on_node_and_index_only() -> None:
    assert standard_gpus("a100", 2, "n1") == standard_gpus("a100", 2, "n1")
    uuids = {gpu.uuid for node in ("n1", "n2") for gpu in standard_gpus("a40", 8, node)}
    assert len(uuids) == 16


@pytest.mark.parametrize(("gpu_type", "count"), [("mi300x", 1), ("a100", 0), ("a100", 17), ("", 1)])
def test_unknown_type_or_count_out_of_bounds_is_refused(gpu_type: str, count: int) -> None:
    with pytest.raises(LabError):
        standard_gpus(gpu_type, count, "n1")


def test_a_spec_that_no_driver_could_report_is_refused() -> None:
    gpu = standard_gpus("a100", 1, "n1")[0]
    for change in (
        {"sm_clocks_mhz": (1410, 210)},
        {"sm_clocks_mhz": ()},
        {"memory_clocks_mhz": ()},
        {"site_power_limit_watts": 501.0},
        {"site_locked_clocks_mhz": (210, 1500)},
        {"profiles": gpu.profiles * 2},
    ):
        with pytest.raises(LabError):
            replace(gpu, **change)


def test_a_profile_name_longer_than_the_state_holds_is_refused() -> None:
    with pytest.raises(LabError, match="31 bytes"):
        LoadProfile(
            name="x" * 32,
            cubic_watts=1.0,
            linear_watts=0.0,
            constant_watts=0.0,
            memory_share=0.0,
            compute_share=1.0,
            fixed_share=0.0,
            reference_clock_mhz=1410.0,
        )


@pytest.mark.parametrize("thing", ["uuid", "minor_number", "pci_bus"])
def test_two_gpus_of_a_node_cannot_share_an_identity(tmp_path: Path, thing: str) -> None:
    first, second = standard_gpus("a100", 2, "n1")
    twin = replace(second, **{thing: getattr(first, thing)})

    with pytest.raises(LabError, match=thing):
        create_state(tmp_path / "n1.state", (first, twin), library=built_library().library)


@pytest.mark.parametrize("time_scale", [-1.0, float("nan"), 1e7])
def test_absurd_time_scale_is_refused(tmp_path: Path, time_scale: float) -> None:
    with pytest.raises(LabError, match="time scale"):
        create_state(
            tmp_path / "n1.state",
            standard_gpus("a100", 1, "n1"),
            time_scale=time_scale,
            library=built_library().library,
        )
