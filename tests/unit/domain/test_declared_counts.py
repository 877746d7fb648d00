"""Numbers of GPUs as a user writes them, and speed-ups over them."""

from itertools import pairwise

import pytest

from slurm_energy.domain.gpu_count import UNKNOWN_SCALING, parse_gpu_counts, speedup_at
from slurm_energy.domain.job import scaled_limit
from slurm_energy.errors import ValueRangeError


@pytest.mark.parametrize(
    ("text", "counts"),
    [("2-8", (2, 3, 4, 5, 6, 7, 8)), ("2,4,8", (2, 4, 8)), ("8,2-3,2", (2, 3, 8)), ("4", (4,))],
)
def test_ranges_and_lists_are_ascending_numbers(text: str, counts: tuple[int, ...]) -> None:
    assert parse_gpu_counts(text) == counts


@pytest.mark.parametrize("text", ["", "0", "2-", "-2", "8-2", "a", "1-33", "1,", "4097", "²", "2 - 4", "1-99999"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueRangeError, match="numbers of GPUs"):
        parse_gpu_counts(text)


def test_fewer_gpus_get_the_longer_time_and_more_keep_theirs() -> None:
    assert [scaled_limit(20.0, 4, gpus) for gpus in (1, 3, 4, 8)] == [80.0, 27.0, 20.0, 20.0]
    assert scaled_limit(None, 4, 1) is None


def test_speed_grows_less_with_each_gpu_and_two_always_beat_none() -> None:
    speeds = [speedup_at(gpus, UNKNOWN_SCALING.log_loss) for gpus in (1, 2, 4, 8)]
    assert speeds[0] == 1.0
    ratios = [later / earlier for earlier, later in pairwise(speeds)]
    assert ratios == sorted(ratios, reverse=True)
    assert 1.0 < ratios[-1] < ratios[0] < 2.0
