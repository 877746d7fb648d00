"""The network of option outcomes as it is served: its file, its graph, and what it says of a site."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.domain.work import MeasuredRun
from slurm_energy.energy_model.catalog import BoardLimits
from slurm_energy.errors import CheckpointError
from slurm_energy.estimation.job_history import ANY_USER, NEVER_RAN, JobHistory
from slurm_energy.policy.gnn.outcomes.graph import KNOTS, Ask, RunVertex, catalogue_facts, option_graph, run_graph
from slurm_energy.policy.gnn.outcomes.inference import (
    SHIPPED,
    OutcomeNetwork,
    layer_shapes,
    loaded_network,
    weights_file,
)
from slurm_energy.policy.gnn.outcomes.site import SitePredictions, run_records

A100, V100 = GpuTypeName("a100-sxm4-80gb"), GpuTypeName("v100-pcie-16gb")
NOW = 1e9
FORMAT = "slurm-energy outcomes 1"


def made_weights(seed: int = 0) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    random = np.random.default_rng(seed)
    return {name: random.normal(0.0, 0.3, shape).astype(np.float32) for name, shape in layer_shapes().items()}


def run(name: str = "bert", *, user: int = 1, gpu_type: GpuTypeName = A100, watts: float = 390.0) -> MeasuredRun:
    return MeasuredRun(
        user=user, name=name, gpu_type=gpu_type, gpus=1, seconds=3600.0, watts=watts, ended_at_seconds=NOW - 100.0
    )


def predictions(*runs: MeasuredRun, network: OutcomeNetwork | None = None) -> SitePredictions:
    records = list(run_records(runs, {}, {}))
    return SitePredictions(network or loaded_network(), records, BoardLimits(), NOW)


def test_the_shipped_file_says_where_it_comes_from_and_is_small() -> None:
    data = SHIPPED.read_bytes()
    about = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    assert len(data) < 5 * 1024 * 1024
    assert about["made_by"].startswith("python -m slurm_energy.learning.outcomes.training")
    assert loaded_network().version == about["version"] == about["weights_sha256"][:12]


def test_a_written_file_is_read_as_it_was(tmp_path: Path) -> None:
    weights = made_weights()
    (tmp_path / "one").write_bytes(weights_file(weights, {"version": "v1"}))
    found = loaded_network(tmp_path / "one")
    assert found.version == "v1"
    assert all(np.array_equal(found.weights[name], weights[name]) for name in weights)


def hostile_files() -> dict[str, bytes]:
    weights = made_weights()
    good = weights_file(weights, {})
    bad_value = {**weights, "run.bias": np.full_like(weights["run.bias"], np.nan)}
    other_shape = {**weights, "run.bias": np.zeros(3, dtype=np.float32)}
    missing = {name: value for name, value in weights.items() if name != "run.bias"}
    foreign = good.replace(FORMAT.encode(), b"somebody else's form 01")
    return {
        "empty": b"",
        "cut off": good[:-5],
        "long header": (2**40).to_bytes(8, "little") + b"{}",
        "no header": b"\x08" + bytes(7) + b"12345678",
        "not finite": weights_file(bad_value, {}),
        "other shape": weights_file(other_shape, {}),
        "missing": weights_file(missing, {}),
        "unknown": weights_file({**weights, "more": np.zeros(1, dtype=np.float32)}, {}),
        "foreign": foreign,
        "code": b"cos\nsystem\n(S'true'\ntR.",
        "too large": good + bytes(5 * 1024 * 1024),
    }


@pytest.mark.parametrize("name", hostile_files())
def test_a_file_that_is_no_network_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(hostile_files()[name])
    with pytest.raises(CheckpointError, match=str(path)):
        loaded_network(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        loaded_network(tmp_path / "none")


def test_a_curve_begins_at_the_default_clock_and_a_lower_clock_is_never_faster() -> None:
    for seed in range(5):
        network = OutcomeNetwork(weights=made_weights(seed))
        found = predictions(run(), run(gpu_type=V100), network=network).of(Ask(1, "bert", ""))
        assert found is not None and set(found.clocks) == {A100, V100}
        for clocks in found.clocks.values():
            assert clocks.relative_clocks == (*KNOTS, 1.0)
            assert clocks.slowdown[-1] == clocks.energy_change[-1] == 0.0
            assert list(clocks.slowdown) == sorted(clocks.slowdown, reverse=True)
            assert all(upper >= mean for upper, mean in zip(clocks.upper_slowdown, clocks.slowdown, strict=True))


def test_work_that_draws_little_is_expected_to_slow_down_less_than_work_at_the_limit() -> None:
    found = predictions(*(run("light", watts=130.0),) * 4, *(run("heavy", user=2, watts=340.0),) * 4)
    light, heavy = found.of(Ask(1, "light", "")), found.of(Ask(2, "heavy", ""))
    assert light is not None and heavy is not None
    assert light.clocks[A100].slowdown[2] < heavy.clocks[A100].slowdown[2]


def test_the_evidence_counts_runs_of_the_name_and_of_similar_jobs() -> None:
    found = predictions(run("one"), run("one"), run("other")).of(Ask(1, "one", ""))
    assert found is not None and (found.own_runs, found.alike_runs) == (2, 1)
    assert found.evidence == "2 runs of this name and 1 of similar jobs"
    none = predictions(run("one")).of(Ask(9, "new", ""))
    assert none is not None and none.evidence == "all runs of this site"


def test_without_runs_nothing_is_expected() -> None:
    assert predictions().of(Ask(1, "bert", "")) is None
    assert list(predictions().table()) == []


def test_runs_that_make_no_sense_and_types_without_figures_are_left_out() -> None:
    facts = catalogue_facts((A100, GpuTypeName("abacus")), BoardLimits())
    good = RunVertex(1, "bert", "", A100, 1, 60.0, 300.0, NOW)
    bad = (good._replace(watts=float("nan")), good._replace(seconds=0.0), good._replace(gpu_type=GpuTypeName("abacus")))
    graph = run_graph((good, *bad, good._replace(ended_at_seconds=float("inf"))), facts, NOW)
    assert len(graph.run_x) == 1
    assert np.isfinite(option_graph(graph, [Ask(1, "bert", "")]).edge_x).all()


def test_trials_are_measurements_beside_a_run_of_the_name() -> None:
    learned = LearnedClock(
        sm_clock_mhz=1110, default_clock_mhz=1410, slowdown=0.02, error=0.004, energy_change=-0.1, runs=2
    )
    records = list(run_records([run()], {}, {(1, "bert"): {A100: learned}}))
    assert [round(one.relative_clock, 3) for one in records] == [1.0, 0.787]
    assert records[1].slowdown == 0.02


def test_a_job_is_looked_up_by_name_then_script_then_user_then_site() -> None:
    script = ScriptFeatures(model="bert-large")
    key = script.key
    runs = [replace(run("train"), script_key=key), run("plain", user=2)]
    records = list(run_records(runs, {key: script}, {}))
    table = SitePredictions(loaded_network(), records, BoardLimits(), NOW).table()
    history = JobHistory(predicted={(user, name): found for user, name, found in table})
    own = history.predicted_of(1, "train", script)
    assert own is not None and own.own_runs == 1
    alike = history.predicted_of(7, "new", script)
    assert alike is history.predicted[ANY_USER, "script:bert-large"]
    assert history.predicted_of(2, "new", None) is history.predicted[2, NEVER_RAN]
    assert history.predicted_of(7, "new", None) is history.predicted[ANY_USER, NEVER_RAN]
    assert JobHistory().predicted_of(1, "train", script) is None
