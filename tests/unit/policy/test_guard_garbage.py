from typing import Any

import pytest
from guard_questions import AnswerPolicy, decide
from policy_factory import (
    A100,
    changes_job,
    make_clock,
    make_job,
)

from slurm_energy.domain.decision import PolicyAnswer, Reason
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.policy.base import Case


def _raise(case: Case) -> None:
    raise RuntimeError("evil\n\x1b[31m" + "x" * 10_000)


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no")


def _raise_unprintable(case: Case) -> None:
    raise _Unprintable


def forged(**changes: Any) -> PolicyAnswer:
    """Return an answer of which a field is of the wrong kind."""
    answer = PolicyAnswer()
    for name, value in changes.items():
        object.__setattr__(answer, name, value)
    return answer


def forged_clock(**changes: Any) -> PolicyAnswer:
    clock = make_clock(A100, 1335)
    for name, value in changes.items():
        object.__setattr__(clock, name, value)
    return forged(clocks=(clock,))


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(_raise, id="raises"),
        pytest.param(_raise_unprintable, id="raises what cannot be printed"),
        None,
        "garbage",
        {"clocks": []},
        forged(clocks=None),
        forged(clocks=7),
        forged(clocks=(None,)),
        forged(clocks=(make_clock(A100, 1335),) * 2),
        forged(clocks=tuple(make_clock(GpuTypeName(f"t{i}"), 1) for i in range(65))),
        forged(partitions="a100"),
        forged(partitions=()),
        forged(partitions=(1, 2)),
        forged(partitions=("a100", "a100")),
        forged(partitions=([],)),
        forged(prefer=""),
        forged(prefer="a&b"),
        forged(prefer="x" * 65),
        forged(prefer=b"nvlink"),
        forged(prefer=("nvlink",)),
        forged(notes=5),
        forged(reasons=None),
        forged_clock(sm_clock_mhz=float("nan")),
        forged_clock(sm_clock_mhz=float("inf")),
        forged_clock(sm_clock_mhz=10**400),
        forged_clock(sm_clock_mhz=True),
        forged_clock(sm_clock_mhz="1335"),
        forged_clock(predicted_slowdown=float("nan")),
        forged_clock(predicted_energy_change=float("-inf")),
        forged_clock(predicted_slowdown=None),
        forged_clock(gpu_type=None),
    ],
    ids=lambda answer: str(answer)[:40],
)
def test_policy_that_raises_or_answers_garbage_leaves_the_job_unchanged(answer: Any) -> None:
    decision = decide(make_job(partitions=("a40", "a100")), policy=AnswerPolicy(answer))
    assert not changes_job(decision)
    assert decision.reasons[0] is Reason.POLICY_ERROR
    assert decision.notes and all(note.isprintable() and len(note) <= 200 for note in decision.notes)


def test_notes_of_a_policy_are_cut_and_made_printable() -> None:
    answer = PolicyAnswer(notes=("a\nb\x1b[0m" * 1000, *("more",) * 1000))
    decision = decide(make_job(), policy=AnswerPolicy(answer))
    assert decision.notes == (("a?b?[0m" * 1000)[:200], "more")


def test_policy_without_a_name_still_gets_a_decision() -> None:
    class Nameless:
        @property
        def name(self) -> str:
            raise RuntimeError

        def decide(self, case: Case) -> PolicyAnswer:
            return PolicyAnswer()

    decision = decide(make_job(), policy=Nameless())  # type: ignore[arg-type]  # the point of the test
    assert (decision.policy, decision.policy_version) == ("unknown", "unknown")
