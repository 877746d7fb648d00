"""Several ranks in processes of their own: equal in their weights, and told when one of them is gone."""

import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import tiny_learner
import torch
from daemon_support import free_port
from torch.nn import Parameter

from slurm_energy.cli.main import main
from slurm_energy.errors import TrainingError
from slurm_energy.learning.algorithms import ALGORITHMS
from slurm_energy.learning.experience import episode_seed
from slurm_energy.learning.ranks import joined
from slurm_energy.learning.training_state import read_state
from slurm_energy.policy.gnn.checkpoint import read_checkpoint
from slurm_energy.rendezvous import rendezvous
from slurm_energy.settings import toml_text

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload([__name__, "torch._dynamo"])
"""Torch and the package, and what an optimizer of torch imports for two seconds, are imported once: ranks are forks."""


def average() -> None:
    with joined(rendezvous(os.environ)) as ranks:
        reached, alone, never = (Parameter(torch.zeros(2, 2)), Parameter(torch.zeros(3)), Parameter(torch.zeros(1)))
        reached.grad = torch.full((2, 2), float(ranks.number + 1))
        if ranks.number == 1:
            alone.grad = torch.tensor([1.0, 2.0, 3.0])
        ranks.average([reached, alone, never])
        ranks.end_updates()
        exact = Parameter(torch.zeros(1, dtype=torch.float64))
        exact.grad = torch.tensor([0.1 + ranks.number], dtype=torch.float64)
        ranks.average([exact])
        ranks.end_updates()
        assert reached.grad is not None and alone.grad is not None and exact.grad is not None
        print(reached.grad.tolist(), alone.grad.tolist(), never.grad, exact.grad.item(), exact.grad.dtype)
        print(ranks.any_of(ranks.number == 1), ranks.any_of(False))
        print([len(data) for data in ranks.gather(b"x" * (ranks.number + 1))])
        weights = {"w": torch.tensor([float(ranks.number)])}
        try:
            ranks.check_equal(weights)
        except TrainingError as error:
            print(error)
        ranks.begin_equal(weights)
        ranks.check_equal(weights)
        print(weights["w"].tolist())


def train(*words: str) -> None:
    ALGORITHMS["tiny"] = tiny_learner.ALGORITHM
    sys.exit(main(["train", *words]))


def run_as_rank(program: Callable[..., None], words: tuple[str, ...], environment: dict[str, str], out: Path) -> None:
    """Run a program as a process of its own would: with its environment, and what it prints in files."""
    os.environ.update(environment)
    for number, suffix in ((1, ".out"), (2, ".err")):
        file = os.open(out.with_suffix(suffix), os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    program(*words)


@dataclass(frozen=True)
class End:
    returncode: int | None
    stdout: str
    stderr: str


def run_ranks(program: Callable[..., None], *words: str, count: int = 2) -> list[End]:
    """Run a program on some ranks on this machine and return how each ended."""
    base = {
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    with TemporaryDirectory() as folder:
        outputs = [Path(folder) / str(number) for number in range(count)]
        running = [
            FORKED.Process(target=run_as_rank, args=(program, words, {**base, "RANK": str(number)}, out))
            for number, out in enumerate(outputs)
        ]
        for process in running:
            process.start()
        try:
            for process in running:
                process.join(250.0)
        finally:
            for process in running:
                process.kill()
                process.join()
        return [
            End(process.exitcode, out.with_suffix(".out").read_text(), out.with_suffix(".err").read_text())
            for process, out in zip(running, outputs, strict=True)
        ]


def write_config(folder: Path, **tables: dict[str, Any]) -> Path:
    base: dict[str, Any] = {
        "training": {"algorithm": "tiny", "world": "lab", "rounds": 4, "save_every_rounds": 2},
        "network": tiny_learner.NETWORK,
        "episodes": {},
        "learner": {},
    }
    path = folder / "train.toml"
    path.write_text(toml_text({name: {**table, **tables.get(name, {})} for name, table in base.items()}))
    return path


def test_gradients_are_means_over_all_ranks_and_what_none_reached_has_none() -> None:
    first, second = run_ranks(average)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    mine, theirs = first.stdout.splitlines(), second.stdout.splitlines()
    assert mine[0] == theirs[0] == "[[1.5, 1.5], [1.5, 1.5]] [0.5, 1.0, 1.5] None 0.6000000000000001 torch.float64"
    assert mine[1] == theirs[1] == "True False"
    assert (mine[2], theirs[2]) == ("[1, 2]", "[]")
    assert mine[3] == theirs[3]
    assert "the weights of ranks 1 are not those of rank 0" in mine[3]
    assert mine[4] == theirs[4] == "[0.0]"


def trained(*words: str) -> None:
    ends = run_ranks(train, "--distributed", *words)
    assert [end.returncode for end in ends] == [0, 0], "".join(end.stderr for end in ends)
    assert ends[1].stdout == ""
    assert "checkpoint" in ends[0].stdout


@pytest.fixture(scope="module")
def two_rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which two ranks trained for two rounds of four; a test takes a copy."""
    folder = tmp_path_factory.mktemp("ranks")
    trained("--config", str(write_config(folder)), "--output", str(folder / "part"), "--rounds", "2")
    return folder / "part"


def test_two_ranks_train_one_network_and_go_on_as_if_never_stopped(two_rounds: Path, tmp_path: Path) -> None:
    shutil.copytree(two_rounds, tmp_path / "part", symlinks=True)
    trained("--config", str(write_config(tmp_path)), "--output", str(tmp_path / "whole"))
    trained("--resume", str(tmp_path / "part"), "--rounds", "4")
    whole, part = (read_checkpoint(tmp_path / name / "last").tensors for name in ("whole", "part"))
    assert all(torch.equal(tensor, part[name]) for name, tensor in whole.items())
    learners = read_state(tmp_path / "whole").learners
    assert len(learners) == 2
    for name, tensor in learners[0]["network"].items():
        assert torch.equal(tensor, learners[1]["network"][name])


def test_one_rank_cannot_go_on_with_a_training_of_two(two_rounds: Path, tmp_path: Path) -> None:
    shutil.copytree(two_rounds, tmp_path / "made", symlinks=True)
    (end,) = run_ranks(train, "--resume", str(tmp_path / "made"), "--rounds", "4", count=1)
    assert end.returncode == 1
    assert "training.ranks: 1, was 2" in end.stderr


def test_ranks_that_update_unequally_often_are_told_and_do_not_wait_for_ever(tmp_path: Path) -> None:
    config = write_config(tmp_path, learner={"per_step": True})
    ends = run_ranks(train, "--config", str(config), "--distributed", "--output", str(tmp_path / "made"))
    assert [end.returncode for end in ends] == [1, 1]
    for end in ends:
        assert "1 of 2 ranks make an update number 5 in this round" in end.stderr
        assert "Traceback" not in end.stderr


def test_a_rank_whose_episode_fails_ends_all(tmp_path: Path) -> None:
    seed = episode_seed(0, 2, 1)  # of rank 1's collector
    config = write_config(tmp_path, episodes={"fault": "raises", "faulty_seed": seed})
    first, second = run_ranks(train, "--config", str(config), "--distributed", "--output", str(tmp_path / "made"))
    assert (first.returncode, second.returncode) == (1, 1)
    assert f"episode of seed {seed}: ValueError" in second.stderr
    assert "another rank does not answer any more" in first.stderr
