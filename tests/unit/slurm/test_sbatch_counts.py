"""What a dry run offers of the numbers of GPUs that a user named, by sbatch's options alone."""

import pytest

from slurm_energy.errors import ValueRangeError
from slurm_energy.slurm.sbatch_counts import named_counts
from slurm_energy.slurm.sbatch_options import ENERGY_OPTIONS, split_arguments


def options(line: str) -> dict[str, str | None]:
    split = split_arguments(line.split(), ENERGY_OPTIONS)
    return {option.name: option.value for option in split.options}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("--gres=gpu:4", "1:1:1:0,2:1:1:0,4:1:1:0,8:1:1:0"),
        ("--gpus=a100:4 -N1 -n4", "1:1:1:0,2:1:2:0,4:1:4:0,8:1:8:0"),
        ("--gpus=4 -n4", "1:0:1:0,2:0:2:0,4:0:4:0"),
        ("--gpus-per-node=4 -N2 --ntasks-per-node=4", "1:1:1:0,2:1:2:0,4:1:4:0,8:2:4:0"),
        ("--gpus=4 -N1 --cpus-per-gpu=8 --mem=1000", "1:1:8:1000,2:1:16:1000,4:1:32:1000,8:1:64:2000"),
        ("-N1 -n2 --gpus-per-task=2", "2:1:1:0,4:1:2:0,8:1:4:0"),
        ("-N1 -n4 --ntasks-per-gpu=1", "1:1:1:0,2:1:2:0,4:1:4:0,8:1:8:0"),
    ],
)
def test_numbers_follow_nodes_tasks_and_memory_as_the_plugin_has_them_follow(line: str, offered: str) -> None:
    found = named_counts(options(f"{line} --energy-gpus=1,2,4,8"))
    assert found is not None
    assert found.fields() == {"energy_gpus": "1,2,4,8", "gpu_options": offered}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--gres=gpu:4 --exclusive", "whole nodes"),
        ("--gres=gpu:4 -w n1", "names its nodes"),
        ("--gpus=4 -N1-2", "range of nodes"),
        ("--gpus=4 -n6", "only known when it is submitted"),
        ("--gpus=3", "not among those"),
        ("-n2", "no number of GPUs"),
        ("--gpus=a100:2,a40:2", "several types"),
    ],
)
def test_a_job_that_keeps_its_number_is_said_to(line: str, why: str) -> None:
    found = named_counts(options(f"{line} --energy-gpus=1,2,4"))
    assert found is not None
    assert why in found.fields()["gpu_refusal"]
    assert not found.options


def test_without_the_option_nothing_is_said_and_bad_numbers_are_an_error() -> None:
    assert named_counts(options("--gpus=4")) is None
    with pytest.raises(ValueRangeError, match="numbers of GPUs"):
        named_counts(options("--gpus=4 --energy-gpus=4-x"))
