"""What a network is made of, read from a document that may be anybody's."""

from typing import Any

import pytest

from slurm_energy.errors import ConfigError
from slurm_energy.policy.gnn.configuration import NetworkConfig


@pytest.mark.parametrize(
    "document",
    [
        {"hierarchy": "x" * 900_000},
        {"hierarchy": ["flat"] * 100_000},
        {"hidden": "x" * 900_000},
        {"hidden": {str(number): 1 for number in range(100_000)}},
        {"hidden": 10**4000},
        {"sampling_rate": 1e300},
        {"x" * 900_000: 1},
    ],
)
def test_whatever_a_value_is_the_message_stays_short(document: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^network setting ") as refused:
        NetworkConfig.parse(document)
    assert len(str(refused.value)) < 400


def test_settings_are_read_back_as_they_were_written() -> None:
    config = NetworkConfig(hidden=12, heads=6, policy="prices")
    assert NetworkConfig.parse(config.document()) == config
