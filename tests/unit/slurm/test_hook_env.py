import pytest

from slurm_energy.errors import SlurmError
from slurm_energy.slurm.hook_env import parse_hook_environment

BASE = {"SLURM_JOB_ID": "42"}


def test_everything_slurmd_tells_is_read() -> None:
    hook = parse_hook_environment(
        {
            **BASE,
            "SLURM_JOB_RESTART_COUNT": "2",
            "SLURM_JOB_UID": "1001",
            "SLURM_JOB_PARTITION": "a100",
            "SLURM_CLUSTER_NAME": "lab",
            "SLURMD_NODENAME": "n1",
            "SLURM_JOB_GPUS": "0,1",
            "CUDA_VISIBLE_DEVICES": "0,1",
            "SPANK_ENERGY_DECISION": "v=1",
            "SLURM_CONF": "/etc/slurm/slurm.conf",
            "SLURM_JOB_EXIT_CODE2": "0:9",
        }
    )
    assert (hook.job_id, hook.restart_count, hook.user_id, hook.node) == (42, 2, 1001, "n1")
    assert (hook.gpu_numbers, hook.entry, hook.exit_code, hook.problems) == ((0, 1), "v=1", 137, ())


@pytest.mark.parametrize(
    ("environment", "numbers"),
    [
        ({"SLURM_JOB_GPUS": "0,1"}, (0, 1)),  # CUDA_VISIBLE_DEVICES is empty on AMD
        ({"SLURM_JOB_GPUS": "3", "CUDA_VISIBLE_DEVICES": "0"}, (3,)),
        ({"SLURM_JOB_GPUS": "0-2,5"}, (0, 1, 2, 5)),
        ({"SLURM_JOB_GPUS": "1,1"}, (1,)),
        ({"CUDA_VISIBLE_DEVICES": "2"}, (2,)),
        ({"SLURM_JOB_GPUS": "", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ()),
        ({}, ()),
    ],
)
def test_gpu_numbers(environment: dict[str, str], numbers: tuple[int, ...]) -> None:
    assert parse_hook_environment({**BASE, **environment}).gpu_numbers == numbers


def test_mig_and_gpu_identifiers_are_kept_as_such() -> None:
    visible = "MIG-1f2e3d4c-0000-1111-2222-333344445555,GPU-aaaa-bbbb,MIG-GPU-cccc/1/0"
    hook = parse_hook_environment({**BASE, "CUDA_VISIBLE_DEVICES": visible})
    assert hook.gpu_uuids == tuple(visible.split(","))
    assert hook.gpu_numbers == () and hook.has_gpus


@pytest.mark.parametrize("bad", ["", "x", "0", "-1", "4294967296", "1;rm", "7_1", " 7", "\u0667", "9" * 5000])
def test_without_a_job_id_there_is_no_hook(bad: str) -> None:
    with pytest.raises(SlurmError, match="SLURM_JOB_ID"):
        parse_hook_environment({"SLURM_JOB_ID": bad})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_JOB_GPUS", "$(reboot)"),
        ("SLURM_JOB_GPUS", "7-3"),
        ("SLURM_JOB_GPUS", "99999"),
        ("SLURM_JOB_GPUS", "-1"),
        ("SLURM_JOB_UID", "4294967294"),
        ("SLURM_JOB_UID", "root"),
        ("SLURM_JOB_RESTART_COUNT", "1e3"),
        ("SLURMD_NODENAME", "../../etc"),
        ("SLURMD_NODENAME", "a..b"),
        ("SLURM_CLUSTER_NAME", "x\ny"),
        ("SLURM_JOB_PARTITION", "\x1b[31mred"),
    ],
)
def test_hostile_value_is_dropped_and_named(name: str, value: str) -> None:
    hook = parse_hook_environment({**BASE, name: value})
    assert len(hook.problems) == 1 and name in hook.problems[0]
    assert (hook.gpu_numbers, hook.user_id, hook.restart_count) == ((), None, 0)
    assert (hook.node, hook.cluster, hook.partition) == (None, None, None)


@pytest.mark.parametrize(
    ("environment", "code"),
    [
        ({"SLURM_JOB_EXIT_CODE2": "1:0"}, 1),
        ({"SLURM_JOB_EXIT_CODE": "256"}, 1),
        ({"SLURM_JOB_EXIT_CODE": "15"}, 143),
        ({"SLURM_JOB_EXIT_CODE2": "a:b"}, None),
        ({}, None),
    ],
)
def test_exit_code(environment: dict[str, str], code: int | None) -> None:
    assert parse_hook_environment({**BASE, **environment}).exit_code == code
