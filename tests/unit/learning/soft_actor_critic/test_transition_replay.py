"""The replay: what it keeps is what was seen and came of it, in bounded memory, and it goes on exactly."""

import io
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from seen_moments import make_step, scene_of, seen_moment, seen_steps

from slurm_energy.errors import ConfigError, TrainingError
from slurm_energy.learning.experience import Costs, DecisionMoment
from slurm_energy.learning.soft_actor_critic.critics import answers, batch_of, scene
from slurm_energy.learning.soft_actor_critic.records import Record, RecordPool, pack
from slurm_energy.learning.soft_actor_critic.replay import Replay
from slurm_energy.learning.soft_actor_critic.settings import SoftActorCriticSettings
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.network import create_network


def filled(capacity: int = 100, seed: int = 3) -> Replay:
    replay = Replay(capacity, seed)
    replay.add(seen_steps())
    return replay


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    found: dict[str, Any] = torch.load(buffer, weights_only=True)
    return found


def same(block: Any, other: Any) -> None:
    for item in fields(block):
        mine, theirs = getattr(block, item.name), getattr(other, item.name)
        if mine is None:
            assert theirs is None
            continue
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape, item.name
        if mine.dtype == np.float32:
            np.testing.assert_allclose(theirs, mine, rtol=1e-3, atol=1e-6)
        else:
            np.testing.assert_array_equal(theirs, mine)


def packed_bytes(replay: Replay) -> int:
    return sum(len(record.packed) for record in replay._distinct_records())


def test_a_packed_moment_is_what_was_seen() -> None:
    for step in seen_steps():
        packed = pack(step.moment, RecordPool())
        for block, other in zip(step.moment.state, packed.blocks({}), strict=True):
            same(block, other)
        same(step.moment.decision, packed.block())


@pytest.mark.parametrize("largest", [0, 126, 127, 128, 32_767, 32_768, 2**31])
def test_indices_of_any_size_are_kept_exactly(largest: int) -> None:
    arrays: list[np.ndarray] = [
        np.array([[0, 1, largest], [-1, 2, 3]], dtype=np.int64),
        np.zeros((0, 5), dtype=np.float32),
    ]
    found = RecordPool().record(arrays).arrays()
    np.testing.assert_array_equal(found[0], arrays[0])
    assert found[1].shape == (0, 5) and found[1].dtype == np.float32


def test_what_moments_share_is_kept_once_and_only_as_long_as_it_is_needed() -> None:
    pool = RecordPool()
    moments = [pack(step.moment, pool) for step in seen_steps()]
    assert len({id(moment.wiring) for moment in moments}) == 1
    assert len(pool) < 6 * len(moments)
    moments.clear()
    assert len(pool) == 0


def test_the_granted_option_is_learned_from_and_not_the_one_asked_for() -> None:
    replay = Replay(10, 0)
    moments = [seen_moment(number) for number in range(3)]
    replay.add([make_step(moment, 2, asked=0) for moment in moments])
    batch = batch_of(replay.sample(5))
    rows = batch.taken - torch.tensor([int((batch.now.option_job < job).sum()) for job in range(5)])
    assert rows.tolist() == [2] * 5
    assert batch.now.option_job[batch.taken].tolist() == list(range(5))


def test_masks_are_those_of_decision_time_now_and_next() -> None:
    now, following = seen_moment(0, [1, 2]), seen_moment(5, [0])
    replay = Replay(10, 0)
    replay.add([make_step(now, 1, following=following)])
    masks = [moment.decision.option_open.copy() for moment in (now, following)]
    for moment in (now, following):
        moment.decision.option_open[:] = True  # the cluster has changed since
    batch = batch_of(replay.sample(1))
    assert batch.following is not None
    assert batch.now.option_open.tolist() == masks[0].tolist()
    assert batch.following.option_open.tolist() == masks[1].tolist()


def test_a_refused_start_is_kept_under_the_option_that_was_asked_for() -> None:
    refused = make_step(seen_moment(0), -1, asked=2, reward=-5.0, elapsed_seconds=60.0, following=seen_moment(1))
    replay = Replay(10, 0)
    assert replay.add([refused]) == 1
    batch = batch_of(replay.sample(1))
    assert (batch.taken.tolist(), batch.starts.tolist()) == ([2], [False])
    assert (batch.reward.tolist(), batch.elapsed_seconds.tolist(), batch.continues.tolist()) == ([-5.0], [60.0], [0])
    with pytest.raises(TrainingError, match="refused option 2, which is not open among its"):
        replay.add([replace(refused, moment=seen_moment(0, [0, 1]))])


def test_steps_without_a_known_continuation_are_not_kept() -> None:
    cut = replace(make_step(seen_moment(0), 0), is_terminal=False)
    closed: DecisionMoment = seen_moment(1, [])
    replay = Replay(10, 0)
    steps = [cut, make_step(seen_moment(0), 0, following=closed)]
    assert replay.add(steps) == 0 and len(replay) == 0
    assert replay.add([make_step(seen_moment(0), 0)]) == 1


def test_an_end_is_told_from_what_goes_on() -> None:
    replay = Replay(10, 0)
    replay.add([make_step(seen_moment(0), 0, reward=-1.0, following=seen_moment(1)), make_step(seen_moment(1), 0)])
    batch = batch_of([*replay._kept, replay._kept[0]])
    assert batch.continues.tolist() == [0, 2]
    assert batch.following is not None and batch.following.num_jobs == 2


def test_the_oldest_make_room() -> None:
    replay = Replay(4, 0)
    replay.add([make_step(seen_moment(0), 0, reward=float(-number)) for number in range(10)])
    assert len(replay) == 4
    assert sorted({one.reward for one in replay.sample(200)}) == [-9.0, -8.0, -7.0, -6.0]


def test_capacity_and_batch_are_those_of_the_paper_s_table() -> None:
    settings = SoftActorCriticSettings()
    assert (settings.capacity, settings.batch_size) == (200_000, 256)


@pytest.mark.slow
def test_a_replay_of_the_paper_s_size_holds_the_newest_and_nothing_of_those_before() -> None:
    settings, extra = SoftActorCriticSettings(), 500
    first, others = seen_moment(0), [seen_moment(number) for number in range(1, 9)]
    replay = Replay(settings.capacity, 0)
    assert replay.add(make_step(first, 0, reward=float(number)) for number in range(extra)) == extra
    moments = [others[number % len(others)] for number in range(settings.capacity)]
    replay.add(make_step(moment, 0, reward=float(extra + number)) for number, moment in enumerate(moments))
    assert len(replay) == settings.capacity
    assert sorted(one.reward for one in replay._kept) == list(range(extra, extra + settings.capacity))
    drawn = replay.sample(settings.batch_size)
    assert len(drawn) == settings.batch_size
    assert all(extra <= one.reward < extra + settings.capacity for one in drawn)
    few = Replay(len(others), 0)
    few.add(make_step(moment, 0) for moment in others)
    assert packed_bytes(replay) == packed_bytes(few)
    assert len(replay._pool) == len(few._pool)


def test_a_step_that_cannot_be_is_refused() -> None:
    replay = Replay(4, 0)
    with pytest.raises(TrainingError, match="granted option 0, which is not open among its"):
        replay.add([make_step(seen_moment(0, [1]), 0)])
    with pytest.raises(TrainingError, match="must be finite"):
        replay.add([make_step(seen_moment(0), 0, costs=Costs(float("nan"), 0.0, 0.0))])
    with pytest.raises(TrainingError, match="empty"):
        replay.sample(1)
    with pytest.raises(ConfigError, match="capacity 0"):
        Replay(0, 0)


def test_a_restored_replay_draws_the_same_and_goes_on_the_same() -> None:
    first = filled(capacity=20)
    first.add([make_step(seen_moment(2), -1, asked=1, following=seen_moment(3))])
    first.sample(7)
    second = Replay(20, seed=99)
    second.restore(through_a_file(first.state()))
    for replay in (first, second):
        replay.add([make_step(seen_moment(number), 1, following=seen_moment(number + 1)) for number in range(3)])
    assert len(first) == len(second) == 20
    assert packed_bytes(first) == packed_bytes(second)
    mine, theirs = batch_of(first.sample(60)), batch_of(second.sample(60))
    assert not bool(mine.starts.all())
    for name in ("taken", "starts", "reward", "costs", "elapsed_seconds", "continues"):
        assert torch.equal(getattr(mine, name), getattr(theirs, name)), name
    for one, other in ((mine.now, theirs.now), (mine.following, theirs.following)):
        assert one is not None and other is not None
        np.testing.assert_array_equal(one.decision.option_x, other.decision.option_x)
        np.testing.assert_array_equal(one.blocks.devices.gpu_x, other.blocks.devices.gpu_x)


def test_an_empty_replay_can_be_restored() -> None:
    replay = filled()
    replay.restore(through_a_file(Replay(100, 5).state()))
    assert len(replay) == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.update(lengths=state["lengths"] * 1000),
        lambda state: state.update(rows=state["rows"] + 10_000),
        lambda state: state.update(moments=state["moments"] + 10_000),
        lambda state: state.update(moments=state["moments"].flip(1)),
        lambda state: state.update(figures=state["figures"][:3]),
        lambda state: state.update(next=7),
        lambda state: state.update(generator="{}"),
        lambda state: state["payload"].fill_(7),
        lambda state: state.pop("rows"),
    ],
)
def test_a_state_that_is_none_is_refused_and_changes_nothing(change: Any) -> None:
    replay, state = filled(), filled().state()
    change(state)
    with pytest.raises(TrainingError):
        replay.restore(state)
    assert [one.reward for one in replay.sample(9)] == [one.reward for one in filled().sample(9)]


def test_bytes_that_are_no_record_are_refused() -> None:
    whole = RecordPool().record([np.ones((3, 2), dtype=np.float32)]).packed
    for packed in (b"", b"nothing", whole[:-3]):
        with pytest.raises(TrainingError, match="record of the replay"):
            Record(packed).arrays()


def test_moments_side_by_side_have_their_own_options() -> None:
    moments = [seen_moment(number) for number in (0, 3, 7)]
    found = scene_of(*moments)
    counts = [len(moment.decision.option_open) for moment in moments]
    assert torch.bincount(found.option_job).tolist() == counts
    assert found.num_jobs == 3


def test_a_network_that_reads_no_links_answers_alike_without_them() -> None:
    config = NetworkConfig(hierarchy="vector", attention="none", hidden=24, quantiles=8)
    vector = create_network(config, 1).eval()
    pool = RecordPool()
    moments = [pack(seen_moment(number), pool) for number in (0, 5, 9)]
    whole, bare = scene(moments), scene(moments, links=False)
    assert len(whole.blocks.devices.link_x) > 0 and len(bare.blocks.devices.link_x) == 0
    with torch.no_grad():
        (_, with_links), (_, without) = (answers(vector, one, critics=True) for one in (whole, bare))
    assert torch.equal(with_links.options.log_prob, without.options.log_prob)
