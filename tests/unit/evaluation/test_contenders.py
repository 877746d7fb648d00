"""What can be put into the arena: a network by its checkpoint, as a placement rule and as the daemon serves it."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from small_networks import small_checkpoint
from small_worlds import same

from slurm_energy.config import Config, PolicyConfig
from slurm_energy.domain.decision import Reason
from slurm_energy.errors import CheckpointError, ConfigError, PolicyError
from slurm_energy.evaluation import contenders
from slurm_energy.evaluation.contenders import create_contender
from slurm_energy.policy.gnn.policy import GnnPolicy
from slurm_energy.policy.registry import LEARNED, create_policy, create_rule, known_policy_names
from slurm_energy.twin.adapters.served import ServedPolicy
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.world.file import shipped_world

LAB = shipped_world("lab")
KNOWN = "it has checkpoint: folder of the learned policy; clocks: .*; mode: .*; sampling: "


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoint(tmp_path_factory.mktemp("checkpoints") / "random", seed=3, version="2.1")


def lab_jobs(count: int = 16, partitions: tuple[str, ...] = ()) -> list[Job]:
    random = Random(3)
    return [
        Job(
            job_id=number,
            submitted_seconds=20.0 * number,
            true_units=random.uniform(200.0, 2000.0),
            kind=random.choice(["training", "compute", "memory"]),
            gpu_counts=(random.choice([1, 2, 4]),),
            partitions=partitions,
        )
        for number in range(1, count + 1)
    ]


def outcome_of(text: str, jobs: Sequence[Job]) -> Outcome:
    return run(LAB, Workload(name="jobs", jobs=tuple(jobs)), create_contender(text), seed=1)


def test_a_network_is_made_from_its_checkpoint(checkpoint: Path) -> None:
    rule = create_contender(f"gnn:checkpoint={checkpoint}")
    daemon = create_policy(Config(policy=PolicyConfig(name="gnn", checkpoint=str(checkpoint))))
    assert type(rule) is type(daemon) is GnnPolicy
    assert (rule.name, rule.version, rule.routes) == ("gnn", "2.1", False)


@pytest.mark.slow
def test_clocks_are_the_exact_oracle_s_unless_they_are_learned(checkpoint: Path) -> None:
    """Random weights choose clocks that no oracle would."""
    jobs = lab_jobs()
    exact, written, learned = (
        outcome_of(f"gnn:checkpoint={checkpoint}{more}", jobs) for more in ("", ",clocks=0", ",clocks=1")
    )
    assert same(exact, written)
    assert not same(exact, learned)
    assert learned.state == ["COMPLETED"] * len(jobs)


@pytest.mark.slow
def test_a_mode_says_what_time_and_energy_are_worth_to_the_jobs(checkpoint: Path) -> None:
    jobs = lab_jobs()
    plain, balanced, saver = (
        outcome_of(f"gnn:checkpoint={checkpoint},clocks=1{more}", jobs)
        for more in ("", ",mode=balanced", ",mode=saver")
    )
    assert same(plain, balanced)
    assert not same(plain, saver)


def test_a_share_of_the_nodes_is_enough_to_lose_no_job(checkpoint: Path) -> None:
    jobs = lab_jobs(8)
    for share in ("0.5", "1"):
        first, again = (outcome_of(f"gnn:checkpoint={checkpoint},sampling={share}", jobs) for _ in range(2))
        assert first.state == ["COMPLETED"] * len(jobs)
        assert same(first, again)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("", f"policy gnn needs checkpoint=FOLDER; {KNOWN}"),
        (":", "is not of the form key=value"),
        (":checkpoint=", "'checkpoint=' is not of the form key=value"),
        (":clocks=1", "needs checkpoint=FOLDER"),
        (":checkpoint=HERE,clock=1", f"has no setting 'clock'; {KNOWN}"),
        (":checkpoint=HERE,max_slowdown=0.1", "has no setting 'max_slowdown'"),
        (":checkpoint=HERE,clocks=2", "clocks=2 of gnn is neither 0 nor 1"),
        (":checkpoint=HERE,mode=fast", "mode=fast of gnn is none of balanced, saver"),
        (":checkpoint=HERE,clocks=", "'clocks=' is not of the form key=value"),
        (":checkpoint=HERE,sampling=half", "sampling='half' of gnn is not a number"),
        (":checkpoint=HERE,sampling=0", "sampling_rate is 0.0, it must be between 0.01 and 1"),
        (":checkpoint=HERE,sampling=1.5", "sampling_rate is 1.5, it must be between 0.01 and 1"),
        (":checkpoint=HERE,sampling=nan", "sampling_rate is nan, it must be between"),
    ],
)
def test_settings_of_a_network_that_cannot_be_are_refused_by_name(
    settings: str, message: str, checkpoint: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        create_contender("gnn" + settings.replace("HERE", str(checkpoint)))


@pytest.mark.parametrize("name", ["gnn", "daemon/gnn"])
def test_a_checkpoint_that_is_not_there_is_told(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="none does not exist"):
        create_contender(f"{name}:checkpoint={tmp_path / 'none'}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="empty is no checkpoint"):
        create_contender(f"{name}:checkpoint={tmp_path / 'empty'}")


def test_without_torch_the_message_says_what_to_install(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(contenders, "import_module", missing)
    with pytest.raises(ConfigError, match=r"policy gnn needs the extra `daemon` \(torch\)"):
        create_contender(f"gnn:checkpoint={checkpoint}")


def test_every_policy_that_decides_jobs_can_be_compared_by_its_own_name() -> None:
    names = [name for name in known_policy_names() if name not in LEARNED]
    assert [create_contender(name).name.removeprefix("daemon/") for name in names] == names


def test_the_exact_policy_runs_as_the_daemon_serves_it() -> None:
    one, other = (create_contender(f"{name}:max_slowdown=0.2") for name in ("oracle", "daemon/oracle"))
    jobs = Workload(name="jobs", jobs=tuple(lab_jobs()), source="test")
    assert isinstance(one, ServedPolicy)
    assert same(run(LAB, jobs, one, seed=1), run(LAB, jobs, other, seed=1))


def test_a_name_that_only_begins_like_the_network_s_is_another_rule() -> None:
    with pytest.raises(PolicyError, match="gnn2"):
        create_contender("gnn2:checkpoint=x")


def test_the_daemon_s_network_sends_jobs_behind_the_guard_and_loses_none(checkpoint: Path) -> None:
    jobs = lab_jobs()
    rule = create_contender(f"daemon/gnn:checkpoint={checkpoint},open=1")
    assert isinstance(rule, ServedPolicy)
    assert (rule.name, rule.version) == ("gnn", "2.1")
    outcome = run(LAB, Workload(name="jobs", jobs=tuple(jobs)), rule, seed=1)
    default = run(LAB, Workload(name="jobs", jobs=tuple(jobs)), create_rule("slurm-default"), seed=1)
    assert outcome.state == default.state == ["COMPLETED"] * len(jobs)
    assert outcome.balance_error < 1e-9
    assert len(set(outcome.place.tolist())) > 1 and set(default.place.tolist()) == {0}
    assert rule.reasons[Reason.POLICY] == len(jobs)
    assert rule.reasons[Reason.POLICY_ERROR] == 0


def test_closed_routing_keeps_the_daemon_s_network_in_the_default_partition(checkpoint: Path) -> None:
    jobs = lab_jobs(8)
    outcome = outcome_of(f"daemon/gnn:checkpoint={checkpoint}", jobs)
    assert set(outcome.place.tolist()) == {0}
    assert outcome.state == ["COMPLETED"] * len(jobs)


def test_the_daemon_s_network_keeps_a_slowdown_bound(checkpoint: Path) -> None:
    jobs = lab_jobs(8)
    text = f"daemon/gnn:checkpoint={checkpoint},exchange=0,max_slowdown="
    none, some = (outcome_of(f"{text}{bound}", jobs) for bound in ("0", "0.2"))
    default = outcome_of("slurm-default", jobs)
    assert none.run_seconds.tolist() == pytest.approx(default.run_seconds.tolist())
    assert some.run_seconds.sum() > none.run_seconds.sum()
    assert (some.run_seconds <= 1.21 * none.run_seconds).all()  # the world's grid is coarser than the daemon's table
    assert some.energy_joules.sum() < none.energy_joules.sum()
