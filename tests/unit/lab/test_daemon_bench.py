import pytest

from slurm_energy.lab.bench.daemon_bench import MAX_REQUESTS, Asking, quietest_asking


@pytest.mark.parametrize(
    ("shares", "kept", "asked"),
    [
        ([None], 0, 1),
        ([0.01], 0, 1),
        ([0.3, 0.019, 0.0], 1, 2),
        ([0.3, 0.1, 0.2, 0.05, 0.4, 0.0], 3, MAX_REQUESTS),
    ],
)
def test_decisions_are_asked_for_again_while_the_host_disturbs(
    shares: list[float | None], kept: int, asked: int
) -> None:
    tries = iter(Asking([float(number)], share) for number, share in enumerate(shares))
    assert quietest_asking(lambda: next(tries)).seconds == [float(kept)]
    assert len(list(tries)) == len(shares) - asked
