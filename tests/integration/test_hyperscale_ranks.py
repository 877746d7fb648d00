"""Training over parts in processes of their own: the weights of one process, and a clear end where a rank is lost."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from part_graphs import case, run_ranks, small_graph, written
from safetensors.torch import load_file
from torch import Tensor
from torch.optim import Adam

from slurm_energy.hyperscale.lost_ranks import RankPresence
from slurm_energy.hyperscale.training import CHECKPOINT_FILE, TrainedRun, TrainSettings, build_model, train
from slurm_energy.rendezvous import Rendezvous

EXACT = TrainSettings(hidden_channels=16, heads=2, dropout=0.0, epochs=6, evaluate_every=3, checkpoint_every=2)


def alone(settings: TrainSettings, graph: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[float]]:
    """Return weights and losses of torch_geometric's own model, trained in one process on the whole graph."""
    model = build_model(settings, graph["x"].shape[1], int(graph["y"].max()) + 1)
    optimizer = Adam(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    losses = []
    for _ in range(settings.epochs):
        optimizer.zero_grad()
        logits = model(graph["x"], graph["edge_index"])
        loss = torch.nn.functional.cross_entropy(logits[graph["train_mask"]], graph["y"][graph["train_mask"]])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return model.state_dict(), losses


def said(ends: list[subprocess.CompletedProcess[str]]) -> list[dict[str, Any]]:
    """Return what rank 0 says of each case, after all ranks have said the same."""
    assert [end.returncode for end in ends] == [0] * len(ends), "".join(end.stderr for end in ends)
    assert all(end.stdout == ends[0].stdout for end in ends)
    found: list[dict[str, Any]] = json.loads(ends[0].stdout)
    return found


def check_weights(folder: Path, name: str, expected: Mapping[str, Tensor], bound: float) -> None:
    found = load_file(folder / f"weights-{name}.safetensors")
    assert set(found) == set(expected)
    for key, weight in expected.items():
        torch.testing.assert_close(found[key], weight, atol=bound, rtol=0.0)


def test_ranks_with_exact_halos_learn_what_one_process_learns_also_where_parts_move(tmp_path: Path) -> None:
    graph = small_graph()
    parts, _ = written(tmp_path, graph, 5)
    places = [2, 0, 1, 0, 2]
    of = {"gcn": EXACT, "sage": replace(EXACT, model="sage", num_layers=3), "gat": replace(EXACT, model="gat")}
    cases = [case(parts, places, settings, name) for name, settings in of.items()]
    moving = case(parts, places, EXACT, "moving", moves=[2, [1, 0, 0, 2, 2]])
    found = said(run_ranks(3, *cases, moving))
    for name, one in zip([*of, "moving"], found, strict=True):
        weights, losses = alone(of.get(name, EXACT), graph)
        check_weights(tmp_path, name, weights, 1e-5)
        assert one["losses"] == pytest.approx(losses, abs=1e-5)
        assert one["complete"]


def test_stale_halos_learn_nearly_the_same_and_begin_exact(tmp_path: Path) -> None:
    parts, _ = written(tmp_path, small_graph(), 2)
    exact = replace(EXACT, epochs=40, smoothing=0.5, input_dropout=0.1)
    models: tuple[Any, ...] = ("gcn", "gat")
    for model in models:
        one = replace(exact, model=model)
        cases = [case(parts, [0, 1], replace(one, stale_halos=stale)) for stale in (True, False)]
        stale, other = said(run_ranks(2, *cases))
        assert stale["losses"][0] == pytest.approx(other["losses"][0], abs=1e-6)
        assert stale["losses"][1:3] != pytest.approx(other["losses"][1:3], abs=1e-6), "nothing was stale"
        assert stale["losses"][-1] < 0.95 * stale["losses"][0]
        assert stale["losses"][-1] == pytest.approx(other["losses"][-1], rel=0.25)
        assert stale["sent"] == other["sent"]


def test_a_stopped_training_resumes_to_the_weights_of_one_that_ran_through(tmp_path: Path) -> None:
    parts, _ = written(tmp_path, small_graph(), 2)
    settings = replace(EXACT, dropout=0.3)
    through, first, second = said(
        run_ranks(
            2,
            case(parts, [0, 1], settings, "through"),
            case(parts, [0, 1], settings, "stopped", stops=3),
            case(parts, [0, 1], settings, "resumed", resumes=True),
        )
    )
    assert [(end["epochs"], end["complete"]) for end in (first, second)] == [(3, False), (6, True)]
    assert first["losses"] + second["losses"] == through["losses"]
    check_weights(tmp_path, "resumed", load_file(tmp_path / "weights-through.safetensors"), 0.0)


@pytest.mark.parametrize("lost", [0, 2])
def test_a_lost_rank_is_named_and_the_training_resumes_where_it_was(tmp_path: Path, lost: int) -> None:
    graph = small_graph()
    parts, _ = written(tmp_path, graph, 3)
    settings = replace(EXACT, checkpoint_every=1000)
    ends = run_ranks(3, case(parts, [0, 1, 2], settings, dies=[lost, 4]))
    assert [end.returncode for end in ends] == [3 if number == lost else 1 for number in range(3)]
    for number, end in enumerate(ends):
        if number != lost:
            assert f"rank {lost} of 3" in end.stderr
            assert "is lost" in end.stderr
            assert "in epoch 5 of 6; resume from epoch 4" in end.stderr
            assert str(tmp_path / CHECKPOINT_FILE) in end.stderr
            assert "Traceback" not in end.stderr
    only = RankPresence(Rendezvous(number=0, count=1, address="127.0.0.1", port=1), None)
    run = TrainedRun(parts_file=parts, folder=tmp_path, presence=only, rank_of_part=(0, 0, 0), resumes=True)
    resumed = train(settings, run).weights
    for name, weight in alone(settings, graph)[0].items():
        torch.testing.assert_close(resumed[name], weight, atol=1e-5, rtol=0.0)


def test_the_others_say_what_happened_on_a_rank_that_failed(tmp_path: Path) -> None:
    parts, _ = written(tmp_path, small_graph(), 2)
    first, second = run_ranks(2, case(parts, [0, 1], EXACT, raises=[1, 3]))
    assert "MemoryError" in second.stderr
    assert "rank 1 of 2 (on " in first.stderr
    assert "failed: there is not enough memory for this in epoch 4 of 6" in first.stderr
