"""Collectors in processes: answers in order, failures with their seed, and no process that is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from short_trainings import LEARNERS, write_config
from tiny_learner import TinyCollector, TinyEpisodes

from slurm_energy.errors import TrainingError
from slurm_energy.learning import round_training
from slurm_energy.learning.collectors import InOrder, Processes, create_episode_runner
from slurm_energy.learning.round_training import train_in_rounds
from slurm_energy.learning.training_settings import training_settings
from slurm_energy.policy.gnn.checkpoint import read_checkpoint

WEIGHTS = {"a": torch.arange(4.0), "flag": torch.tensor([True, False]), "count": torch.tensor(3)}
ORPHANS = """
import sys, time, torch
from tiny_learner import TinyCollector, TinyEpisodes
from slurm_energy.learning.collectors import Processes
if __name__ == "__main__":
    crew = Processes(TinyCollector(episodes=TinyEpisodes(world="lab", fault="hangs", faulty_seed=3)), 2)
    crew.collect({"a": torch.zeros(1)}, [1, 2])
    print(*(process.pid for process, _ in crew._members), flush=True)
    crew.collect({"a": torch.zeros(1)}, [3, 3])
"""


def collector(fault: str = "none", faulty_seed: int = -1) -> TinyCollector:
    return TinyCollector(episodes=TinyEpisodes(world="lab", fault=fault, faulty_seed=faulty_seed))  # type: ignore[arg-type]  # one of its literals


def test_processes_answer_in_order_and_as_one_process_does() -> None:
    in_order = InOrder(collector())
    with Processes(collector(), 3) as crew:
        for seeds in ([5, 6, 7], [8, 9, 10]):
            assert crew.collect(WEIGHTS, seeds) == in_order.collect(WEIGHTS, seeds)
    assert crew._members == []


def test_an_episode_that_raises_is_told_with_its_seed_and_place() -> None:
    told = (
        r"collector 1 failed in the episode of seed 6: ValueError: nothing comes of 6 \(.*tiny_learner\.py, line \d+\)"
    )
    with Processes(collector("raises", 6), 2) as crew, pytest.raises(TrainingError, match=told) as caught:
        crew.collect(WEIGHTS, [5, 6])
    assert "Traceback" in "".join(caught.value.__notes__)
    with pytest.raises(TrainingError, match="collector 1 failed in the episode of seed 6: ValueError"):
        InOrder(collector("raises", 6)).collect(WEIGHTS, [5, 6])


def test_a_process_that_dies_is_told_at_once_while_others_still_run() -> None:
    with (
        Processes(collector("dies", 6), 2) as crew,
        pytest.raises(TrainingError, match=r"collector 1 was ended by SIGKILL; .* \(episode of seed 6\)"),
    ):
        crew.collect(WEIGHTS, [5, 6])


def test_a_process_that_died_between_rounds_is_told_in_the_next() -> None:
    with Processes(collector(), 1) as crew:
        crew.collect(WEIGHTS, [1])
        process, _ = crew._members[0]
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(120.0)
        with pytest.raises(TrainingError, match=r"collector 0 was ended by SIGKILL; .* \(episode of seed 2\)"):
            crew.collect(WEIGHTS, [2])


def test_a_collector_cannot_change_the_learners_weights() -> None:
    class Changing:
        def __call__(self, weights: dict[str, torch.Tensor], *, seed: int) -> list[float]:
            weights["a"].add_(1.0)
            return []

    InOrder(Changing()).collect(WEIGHTS, [1])  # type: ignore[arg-type]  # takes a dict, is given one
    assert torch.equal(WEIGHTS["a"], torch.arange(4.0))


def test_one_collector_needs_no_process() -> None:
    assert isinstance(create_episode_runner(collector(), 1), InOrder)
    crew = create_episode_runner(collector(), 2)
    assert isinstance(crew, Processes)
    crew.close()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "prices" else pytest.mark.long) for name in LEARNERS]
)
def test_several_processes_learn_what_one_after_the_other_would(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path, name)
    settings = training_settings(config, {"collectors": 2, "rounds": 2, "world": "lab-open"})
    train_in_rounds(settings, tmp_path / "processes")
    monkeypatch.setattr(round_training, "create_episode_runner", lambda collector, _count: InOrder(collector))
    train_in_rounds(settings, tmp_path / "in-order")
    found, expected = (read_checkpoint(tmp_path / folder / "last").tensors for folder in ("processes", "in-order"))
    assert all(torch.equal(tensor, expected[key]) for key, tensor in found.items())


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_its_parent(number: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(ORPHANS, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None and parent.stderr is not None
        children = [int(word) for word in parent.stdout.readline().split()]
        assert len(children) == 2 and all(is_alive(child) for child in children)
        parent.send_signal(number)
        errors = parent.stderr.read()
        parent.wait(120.0)
    end = time.monotonic() + 120.0
    while any(is_alive(child) for child in children):
        assert time.monotonic() < end, "a collector lives on"
        time.sleep(0.05)
    assert errors.count("Traceback") <= 1  # the parent's own
