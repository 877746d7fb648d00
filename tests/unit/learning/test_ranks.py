"""Several ranks: found by their variables; one alone agrees with itself."""

import socket

import pytest
import torch
from torch.nn import Parameter

from slurm_energy.errors import ConfigError, TrainingError
from slurm_energy.learning.ranks import Ranks, joined
from slurm_energy.rendezvous import Rendezvous, rendezvous

STEP = {
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "4",
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "1",
    "SLURM_JOB_NODELIST": "gpu[07-09],login",
}
LAUNCHER = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4711"}


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def test_a_rank_alone_agrees_with_itself() -> None:
    ranks = Ranks()
    parameter = Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([1.0, 2.0])
    ranks.average([parameter])
    ranks.end_updates()
    assert parameter.grad.tolist() == [1.0, 2.0]
    assert (ranks.any_of(True), ranks.any_of(False), ranks.gather(b"x")) == (True, False, [b"x"])


def test_slurms_variables_say_rank_address_and_a_port_of_the_step() -> None:
    found = rendezvous(STEP)
    assert (found.number, found.count, found.address) == (2, 4, "gpu07")
    assert found.port == rendezvous({**STEP, "SLURM_PROCID": "0"}).port
    assert found.port != rendezvous({**STEP, "SLURM_STEP_ID": "2"}).port
    assert 1024 < found.port < 32768
    named = rendezvous({**STEP, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "99"})
    assert (named.address, named.port) == ("10.0.0.1", 99)
    of_step = rendezvous({**STEP, "SLURM_STEP_NODELIST": "gpu09"})
    assert of_step.address == "gpu09"


def test_a_launchers_variables_go_before_slurms() -> None:
    assert rendezvous({**STEP, **LAUNCHER}) == Rendezvous(number=1, count=2, address="10.0.0.1", port=4711)


def test_a_rank_knows_its_number_on_its_own_machine() -> None:
    assert rendezvous({**STEP, "SLURM_LOCALID": "1"}).local == 1
    assert rendezvous({**LAUNCHER, "LOCAL_RANK": "3"}).local == 3
    assert rendezvous(STEP).local == rendezvous(LAUNCHER).local == 0
    with pytest.raises(ConfigError, match=r"\$SLURM_LOCALID is 'first'"):
        rendezvous({**STEP, "SLURM_LOCALID": "first"})


def without(environment: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key != name}


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "start it with `srun --ntasks=N"),
        (without(STEP, "SLURM_NTASKS"), "SLURM_PROCID is set and SLURM_NTASKS is not"),
        (without(STEP, "SLURM_PROCID"), "SLURM_NTASKS is set and SLURM_PROCID is not"),
        (without(STEP, "SLURM_STEP_ID"), "no task of an srun step"),
        (without(STEP, "SLURM_JOB_NODELIST"), "set MASTER_ADDR"),
        ({**STEP, "SLURM_JOB_NODELIST": "gpu[07"}, r"'gpu\[07', which names no host"),
        ({**STEP, "SLURM_PROCID": "two"}, r"\$SLURM_PROCID is 'two'"),
        ({**STEP, "SLURM_PROCID": "4"}, "rank 4 is none of 4"),
        ({**STEP, "SLURM_NTASKS": "2000"}, "2000 ranks"),
        ({**STEP, "MASTER_PORT": "70000"}, "port 70000"),
        (without(LAUNCHER, "MASTER_PORT"), "MASTER_PORT is not"),
        (without(LAUNCHER, "WORLD_SIZE"), "WORLD_SIZE is not"),
    ],
)
def test_half_a_set_of_variables_is_refused_by_name(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rendezvous(environment)


def test_ranks_that_do_not_come_are_not_waited_for_for_ever() -> None:
    place = Rendezvous(number=1, count=2, address="127.0.0.1", port=free_port())
    with pytest.raises(TrainingError, match=r"rank 1 of 2 found no way .* within 1 s"), joined(place, join_seconds=1.0):
        pass
