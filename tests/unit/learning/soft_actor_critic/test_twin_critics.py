"""Twin critics: who trains what, how targets follow, and what the actor sees."""

import pytest
import torch
from seen_moments import network, scene_of, seen_moment

from slurm_energy.learning.soft_actor_critic.critics import Judged, TwinCritics, answers, policy_of
from slurm_energy.learning.soft_actor_critic.learner import actor_loss, critic_loss


def reached(module: torch.nn.Module, parts: int = 3) -> set[str]:
    """Return the first parts of the names of parameters that a gradient other than 0 reached."""
    return {
        ".".join(name.split(".")[:parts])
        for name, one in module.named_parameters()
        if one.grad is not None and bool(one.grad.abs().sum() > 0.0)
    }


def judged() -> tuple[TwinCritics, Judged]:
    critics = TwinCritics(network(), seed=4)
    return critics, critics(scene_of(seen_moment(0), seen_moment(9)))


def test_the_loss_of_the_critics_trains_the_encoder_and_both_heads_alone() -> None:
    critics, found = judged()
    critic_loss(found.first, found.second, torch.ones_like(found.first)).backward()  # type: ignore[no-untyped-call]
    names = reached(critics)
    assert {"network.decision.quantile", "second.first.weight", "network.decision.job", "network.device.gpu"} <= names
    assert not names & {"network.decision.policy", "network.decision.clocks", "network.decision.value"}
    learned = {id(one) for one in critics.learned()}
    assert all(id(one) in learned for one in critics.parameters() if one.grad is not None)
    assert not any(id(one) in learned for one in critics.network.decision.policy.parameters())


def test_the_loss_of_the_actor_trains_its_head_and_never_the_encoder() -> None:
    critics, found = judged()
    moments = scene_of(seen_moment(0), seen_moment(9))
    policy = policy_of(critics.network, moments, found.context.detach())
    actor_loss(policy, found.lower().mean(1), 0.1).backward()  # type: ignore[no-untyped-call]
    assert reached(critics) == {"network.decision.policy"}


@pytest.mark.parametrize("temperature", [0.0, 0.1])
def test_the_loss_of_the_actor_reaches_every_layer_of_the_partition_s_and_of_the_count_s_head(
    temperature: float,
) -> None:
    """Without a temperature all of it is the critics' gradient."""
    critics, found = judged()
    moments = scene_of(seen_moment(0), seen_moment(9))
    policy = policy_of(critics.network, moments, found.context.detach())
    actor_loss(policy, found.lower().mean(1), temperature).backward()  # type: ignore[no-untyped-call]
    heads = ("network.decision.policy.partition", "network.decision.policy.count")
    assert reached(critics, parts=4) == set(heads)
    layers = {f"{head}.{layer}" for head in heads for layer in (0, 2, 4)}
    assert reached(critics, parts=5) == layers


def test_the_actor_of_the_learner_is_the_one_that_acts() -> None:
    critics, found = judged()
    moments = scene_of(seen_moment(0), seen_moment(9))
    _, decisions = answers(critics.network, moments, critics=False)
    assert torch.allclose(policy_of(critics.network, moments, found.context).log_prob, decisions.options.log_prob)


def test_each_option_has_the_quantiles_of_the_critic_that_expects_less() -> None:
    _, found = judged()
    lower = found.lower()
    for option in range(len(lower)):
        less = found.first if found.first[option].mean() <= found.second[option].mean() else found.second
        assert torch.equal(lower[option], less[option])
    assert not torch.equal(lower, found.first) or not torch.equal(lower, found.second)


def test_the_two_critics_begin_apart_and_the_second_from_its_seed() -> None:
    critics, found = judged()
    assert not torch.allclose(found.first, found.second)
    again = TwinCritics(network(), seed=4)
    assert torch.equal(again.second.first.weight, critics.second.first.weight)
    assert not torch.equal(TwinCritics(network(), seed=5).second.first.weight, critics.second.first.weight)


def test_targets_go_a_share_of_the_way_and_no_gradient_reaches_them() -> None:
    critics, _ = judged()
    targets = critics.copied()
    before = [one.clone() for one in targets.learned()]
    with torch.no_grad():
        for one in critics.parameters():
            one.add_(1.0)
    targets.follow(critics, 0.1)
    for was, now in zip(before, targets.learned(), strict=True):
        assert torch.allclose(now, was + 0.1, atol=1e-6)
    assert not any(one.requires_grad for one in targets.parameters())
    assert all(one.requires_grad for one in critics.parameters())


def test_critics_begin_at_the_level_that_they_are_given() -> None:
    critics, _ = judged()
    critics.begin_at(-20.0)
    found = critics(scene_of(seen_moment(0)))
    for quantiles in (found.first, found.second):
        assert float(quantiles.detach().mean()) == pytest.approx(-20.0, abs=1.0)
