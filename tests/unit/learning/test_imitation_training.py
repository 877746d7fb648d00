"""A training from a world's name to a checkpoint that the arena runs: the same twice, and refused before any work."""

from dataclasses import replace
from pathlib import Path

import pytest
from small_networks import SMALL
from small_worlds import same

from slurm_energy.errors import (
    CheckpointError,
    ConfigError,
    EvaluationError,
    PolicyError,
    SlurmEnergyError,
    TrainingError,
)
from slurm_energy.evaluation.arena.clock_sweep import sweep_seed
from slurm_energy.evaluation.arena.plan import FIRST_TRAINING_SEED, MAX_SEEDS, ArenaPlan, checked_plan, seeds_from
from slurm_energy.evaluation.contenders import create_contender
from slurm_energy.learning import imitation_training as train_module
from slurm_energy.learning.imitation import ImitationProgress, ImitationSettings
from slurm_energy.learning.imitation_training import (
    TrainingPlan,
    demonstrated,
    hash_of,
    network_settings,
    train,
)
from slurm_energy.policy.checkpoint_files import CheckpointMetadata, check_files
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.workloads.registry import create_workload
from slurm_energy.twin.world.file import shipped_world

NETWORK_TOML = """
hidden = 12
heads = 3
device_layers = 1
task_layers = 1
top_layers = 1
chebyshev_order = 2
pooled_vertices = 1
quantiles = 4
"""
PLAN = TrainingPlan(
    world="lab",
    teacher="price:V=20",
    hours=0.5,
    network=SMALL,
    settings=ImitationSettings(epochs=2, batch_size=8),
)
DEVICE_AND_POOL = """
[devices.gpu]
relative_clocks = [0.5, 1.0]
free_watts = 20
[devices.gpu.kinds.training]
power = [100, 50, 40]
runtime = [0.5, 1, 0.25]
[pools.p]
device = "gpu"
nodes = 2
gpus_per_node = 4
[partitions.main]
pools = ["p"]
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CheckpointMetadata]:
    folder = tmp_path_factory.mktemp("trained")
    settings = folder / "network.toml"
    settings.write_text(NETWORK_TOML, encoding="utf-8")
    plan = replace(PLAN, version="first", network=network_settings(settings))
    return folder / "first", train(plan, folder / "first")


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where the teacher would begin to run."""

    def worked(*_: object, **__: object) -> None:
        raise AssertionError("a run of the teacher began")

    monkeypatch.setattr(train_module, "run", worked)


def test_a_training_writes_a_checkpoint_that_says_what_it_is(trained: tuple[Path, CheckpointMetadata]) -> None:
    folder, metadata = trained
    assert check_files(folder) == metadata
    assert (metadata.name, metadata.version, metadata.architecture) == ("gnn", "first", SMALL)
    assert metadata.metrics["decisions"] == len(demonstrated(PLAN)) > 5
    assert 0.0 <= metadata.metrics["agreement"] <= 1.0
    assert sorted(path.name for path in folder.parent.iterdir()) == ["first", "network.toml"]


@pytest.mark.slow
def test_the_arena_runs_what_was_trained(trained: tuple[Path, CheckpointMetadata]) -> None:
    folder, _ = trained
    world = shipped_world("lab")
    workload = create_workload(world.workload, {**world.workload_settings, "hours": 0.5}, 1)
    outcomes = [
        run(world, workload, create_contender(f"gnn:checkpoint={folder},clocks={clocks}"), seed=1)
        for clocks in (0, 0, 1)
    ]
    assert all(outcome.state == ["COMPLETED"] * len(workload.jobs) for outcome in outcomes)
    assert same(outcomes[0], outcomes[1])
    assert create_contender(f"gnn:checkpoint={folder}").version == "first"


def test_the_same_plan_gives_the_same_weights_and_another_seed_others(
    trained: tuple[Path, CheckpointMetadata], tmp_path: Path
) -> None:
    _, first = trained
    again = train(replace(PLAN, version="again"), tmp_path / "again")
    other = train(replace(PLAN, settings=replace(PLAN.settings, seed=1)), tmp_path / "other")
    assert (again.weights_sha256, again.training_data_sha256) == (first.weights_sha256, first.training_data_sha256)
    assert again.metrics == first.metrics
    assert other.weights_sha256 != first.weights_sha256
    assert other.training_data_sha256 != first.training_data_sha256


def test_each_epoch_and_each_run_of_the_teacher_is_told(tmp_path: Path) -> None:
    epochs: list[ImitationProgress] = []
    runs: list[tuple[int, int]] = []
    plan = replace(PLAN, runs=2, every=2)
    metadata = train(
        plan,
        tmp_path / "told",
        report_epoch=epochs.append,
        report_run=lambda number, decisions: runs.append((number, decisions)),
    )
    assert [progress.epoch for progress in epochs] == [1, 2]
    assert metadata.metrics["loss"] == epochs[-1].loss
    assert [number for number, _ in runs] == [1, 2]
    assert 0 < runs[0][1] < runs[1][1] == metadata.metrics["decisions"]


def test_decisions_are_learned_from_up_to_the_most_over_all_runs() -> None:
    first, both = demonstrated(PLAN), demonstrated(replace(PLAN, runs=2))
    some = demonstrated(replace(PLAN, runs=2, most=len(first) + 3))
    assert len(both) > len(some) == len(first) + 3
    assert hash_of(some) == hash_of(both[: len(some)])


def test_the_hash_of_what_is_learned_from_sees_order_and_choice() -> None:
    found = demonstrated(PLAN)
    turned = [found[1], found[0], *found[2:]]
    other_clock = [replace(found[0], clock=found[0].clock - 1), *found[1:]]
    hashes = {hash_of(found), hash_of(turned), hash_of(other_clock), hash_of(found[:-1]), hash_of([])}
    assert len(hashes) == 5
    assert hash_of(found) == hash_of(demonstrated(PLAN))


def seeds_of(plan: TrainingPlan, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the seeds with which the teacher would run."""
    seen: list[int] = []
    monkeypatch.setattr(train_module, "run", lambda world, workload, rule, *, seed, horizon_seconds: seen.append(seed))
    demonstrated(plan)
    return seen


def test_training_never_meets_the_arrivals_of_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = set(seeds_from(1, MAX_SEEDS)) | {sweep_seed((1,))}
    for seed in (0, 1, 1_000_000):
        plan = replace(PLAN, hours=0.01, runs=3, settings=ImitationSettings(seed=seed))
        found = seeds_of(plan, monkeypatch)
        assert len(found) == len(set(found)) == 3
        assert min(found) >= FIRST_TRAINING_SEED > max(compared)


def test_two_trainings_with_different_seeds_share_no_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [replace(PLAN, hours=0.01, runs=4, settings=ImitationSettings(seed=seed)) for seed in range(5)]
    found = [seed for plan in plans for seed in seeds_of(plan, monkeypatch)]
    assert len(found) == len(set(found)) == 20


def test_a_folder_that_exists_is_refused_before_any_work(tmp_path: Path, no_work: None) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in (".", "dangling"):
        with pytest.raises(CheckpointError, match="exists: name a new folder"):
            train(PLAN, tmp_path / name)


def test_a_folder_that_could_not_be_written_is_refused_before_any_work(tmp_path: Path, no_work: None) -> None:
    with pytest.raises(CheckpointError, match="none of checkpoint first does not exist"):
        train(PLAN, tmp_path / "none" / "first")


@pytest.mark.parametrize("changes", [{"version": "1 beta"}, {"version": ""}, {"name": "../gnn"}])
def test_a_name_that_no_checkpoint_can_have_is_refused_before_any_work(
    changes: dict[str, str], tmp_path: Path, no_work: None
) -> None:
    with pytest.raises(CheckpointError, match=f"checkpoint's {next(iter(changes))} is"):
        train(replace(PLAN, **changes), tmp_path / "first")  # type: ignore[arg-type]  # name and version are texts
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"teacher": "prise:V=20"}, PolicyError, "prise"),
        ({"teacher": "gnn"}, ConfigError, "needs checkpoint=FOLDER"),
        ({"world": "nowhere"}, ConfigError, "nowhere"),
        ({"hours": -1.0}, ConfigError, "hours"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_before_any_work(
    changes: dict[str, object], error: type[SlurmEnergyError], message: str, tmp_path: Path, no_work: None
) -> None:
    with pytest.raises(error, match=message):
        train(replace(PLAN, **changes), tmp_path / "first")  # type: ignore[arg-type]  # of several types


def test_a_world_without_a_generator_is_refused(tmp_path: Path, no_work: None) -> None:
    path = tmp_path / "trace.toml"
    path.write_text(DEVICE_AND_POOL, encoding="utf-8")
    with pytest.raises(ConfigError, match="world trace has no workload of its own: training needs"):
        train(replace(PLAN, world=str(path)), tmp_path / "first")


def test_a_teacher_that_starts_nothing_teaches_nothing(tmp_path: Path) -> None:
    quiet = tmp_path / "quiet.toml"
    quiet.write_text(
        DEVICE_AND_POOL + '[workload]\nname = "poisson"\n[workload.settings]\nrate_per_second = 0\n', encoding="utf-8"
    )
    with pytest.raises(TrainingError, match=r"price:V=20 started no job on .*quiet\.toml in 0\.5 hours"):
        train(replace(PLAN, world=str(quiet)), tmp_path / "first")
    assert not (tmp_path / "first").exists()


def test_network_settings_come_from_a_file_or_are_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "network.toml"
    path.write_text(NETWORK_TOML, encoding="utf-8")
    assert network_settings(path) == SMALL
    assert network_settings(None) == NetworkConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hiden = 12", r"\[network\] has no 'hiden'; did you mean hidden\?"),
        ("hidden = '12'", r"network\.hidden is '12', it must be a whole number"),
        ("hidden = 7", "heads must be a multiple of 3 and divide hidden"),
        ("pooling = 'max'", "allowed: mixed"),
        ("hidden = ", r"network\.toml is no TOML"),
        pytest.param(f"hidden = 1{'0' * 5000}", r"network\.toml is no TOML: .*digits", id="5001 digits"),
        pytest.param(f"hidden = {'[' * 5000}", r"network\.toml is no TOML: .*recursion", id="5000 lists"),
    ],
)
def test_network_settings_that_cannot_be_are_refused_by_name(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "network.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        network_settings(path)


def test_whole_numbers_of_a_file_fit_where_a_network_needs_a_number(tmp_path: Path) -> None:
    path = tmp_path / "network.toml"
    path.write_text("sampling_rate = 1", encoding="utf-8")
    rate = network_settings(path).sampling_rate
    assert (rate, type(rate)) == (1.0, float)


def test_a_network_of_prices_cannot_be_taught_choices() -> None:
    with pytest.raises(ConfigError, match='policy="prices": imitation of choices needs "options"'):
        replace(PLAN, network=replace(SMALL, policy="prices"))


def test_a_file_of_settings_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml does not exist"):
        network_settings(tmp_path / "none.toml")


def test_a_comparison_on_arrivals_of_training_is_refused() -> None:
    plan = ArenaPlan(policies=("greedy",), world="lab", seeds=(1, FIRST_TRAINING_SEED))
    with pytest.raises(EvaluationError, match="seed 1000000 is kept for training"):
        checked_plan(plan)
