"""The temperature brings a masked categorical policy to the entropy that is asked of it."""

from math import log

import pytest
import torch
from seen_moments import distribution_of

from slurm_energy.errors import ConfigError
from slurm_energy.learning.soft_actor_critic.learner import actor_loss
from slurm_energy.learning.soft_actor_critic.multipliers import Temperature, TemperatureSettings, target_entropy

JOB = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
OPEN = torch.tensor([True, True, True, True, False, True, True, False])
VALUE = torch.tensor([-1.0, -1.5, -2.0, -3.0, 100.0, -1.0, -1.2, 100.0])


def test_the_target_is_a_share_of_what_the_open_options_allow() -> None:
    assert float(target_entropy(OPEN, JOB, 2, 0.5)) == pytest.approx(0.5 * (log(4) + log(2)) / 2)
    assert float(target_entropy(torch.tensor([True]), torch.tensor([0]), 1, 0.5)) == 0.0


@pytest.mark.parametrize("share", [0.6, *(pytest.param(share, marks=pytest.mark.slow) for share in (0.3, 0.98))])
def test_a_bandit_reaches_its_target_from_either_side(share: float) -> None:
    for first in (0.02, 3.0):
        temperature = Temperature(TemperatureSettings(entropy_share=share, first=first, learning_rate=0.05))
        logit = torch.zeros(8, requires_grad=True)
        optimiser = torch.optim.Adam([logit], lr=0.1)
        for _ in range(350):
            policy = distribution_of(logit, OPEN, JOB)
            optimiser.zero_grad()
            actor_loss(policy, VALUE, temperature.value).backward()  # type: ignore[no-untyped-call]  # untyped in torch
            optimiser.step()
            temperature.update(policy.entropy.mean(), temperature.target(policy, OPEN))
        policy = distribution_of(logit, OPEN, JOB)
        assert float(policy.entropy.detach().mean()) == pytest.approx(share * (log(4) + log(2)) / 2, rel=0.05)
        assert policy.log_prob[:4].argmax() == 0


def test_the_temperature_stays_inside_its_bounds() -> None:
    temperature = Temperature(TemperatureSettings(first=0.2, least=0.1, most=0.4, learning_rate=0.5))
    for _ in range(5):
        temperature.update(torch.tensor(2.0), torch.tensor(1.0))
    assert temperature.value == pytest.approx(0.1)
    for _ in range(20):
        temperature.update(torch.tensor(0.0), torch.tensor(1.0))
    assert temperature.value == pytest.approx(0.4)


def test_a_restored_temperature_goes_on_as_if_nothing_had_been() -> None:
    first, second = (Temperature(TemperatureSettings(first=first)) for first in (0.2, 0.3))
    for _ in range(3):
        first.update(torch.tensor(1.0), torch.tensor(0.5))
    second.restore(first.state())
    for one in (first, second):
        one.update(torch.tensor(0.2), torch.tensor(0.5))
    assert first.value == second.value


def test_an_entropy_that_cannot_be_reached_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learner\.temperature\.entropy_share is 1\.5"):
        TemperatureSettings(entropy_share=1.5)
    with pytest.raises(ConfigError, match=r"entropy_share is -3\.0"):
        TemperatureSettings(entropy_share=-3.0)
    with pytest.raises(ConfigError, match="do not ascend"):
        TemperatureSettings(first=0.1, least=0.2)
