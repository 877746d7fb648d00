from dataclasses import replace
from math import ceil, inf, nan

import pytest
from gate_samples import make_candidate

from slurm_energy.domain.trials import LearnedClock
from slurm_energy.evaluation.gate.logic import PROMISES, candidate_faults, logic_result
from slurm_energy.evaluation.gate.logic.symbols import Path, Proof, prove
from slurm_energy.evaluation.gate.sheet import StageVerdict
from slurm_energy.policy.candidate import SiteEstimates
from slurm_energy.policy.guard.clocks import SlowdownRoom

_QUICK = ("time limit", "fair exchange", "measured clock", "landing", "price of power")


@pytest.mark.parametrize("name", _QUICK)
def test_promise_is_proved_over_the_guards_own_functions(name: str) -> None:
    proof = prove(name, PROMISES[name])
    assert proof.holds, proof.counterexample
    assert proof.paths > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROMISES if name not in _QUICK])
def test_every_other_promise_is_proved(name: str) -> None:
    proof = prove(name, PROMISES[name])
    assert proof.holds, proof.counterexample


def test_every_path_is_followed_and_its_conditions_are_kept() -> None:
    seen = []

    def run(path: Path) -> None:
        number = path.real("x", 0.0, 10.0)
        kind = "small" if number < 3 else "large" if number > 7 else "middle"
        seen.append(kind)
        path.promise(number < 7 if kind == "small" else number >= 3, "what it was called by")

    assert prove("kinds", run) == Proof(name="kinds", paths=3)
    assert sorted(seen) == ["large", "middle", "small"]


def test_promise_that_fails_at_one_number_alone_is_refuted_with_it() -> None:
    def run(path: Path) -> None:
        number = path.real("x", 0.0, 10.0)
        path.promise(number * number != 2.25, "no square is 2.25")

    proof = prove("square", run)
    assert not proof.holds
    assert "x = 3/2" in proof.counterexample


def test_function_that_raises_on_a_path_breaks_its_promise() -> None:
    def run(path: Path) -> None:
        assert 1.0 / (path.real("x") - 4.0) is not None

    assert "ZeroDivisionError" in prove("division", run).counterexample


def test_promise_about_nothing_is_no_proof() -> None:
    def run(path: Path) -> None:
        number = path.real("x", 0.0, 1.0)
        path.assume(number > 2.0)

    assert not prove("nothing", run).holds


def test_numbers_round_up_and_meet_infinity_as_pythons_do() -> None:
    def run(path: Path) -> None:
        number = path.real("x", 0.5, 3.0)
        path.promise(ceil(number) >= number, "up")
        path.promise(ceil(number) - number < 1.0, "by less than one")
        path.promise(number < inf and number + inf == inf and number / inf == 0.0, "infinity")
        path.promise(not bool(number <= nan), "no number")  # noqa: PLW0177  # what a symbol does there

    assert prove("numbers", run).holds


def test_fault_in_the_guards_own_code_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlowdownRoom, "broken_by", lambda self, slowdown, worst=None: ())
    assert not prove("x", PROMISES["no end after the limit"]).holds


def test_candidate_with_a_price_below_zero_or_an_absurd_factor_is_named() -> None:
    assert candidate_faults(make_candidate("total-cost:V=20,share=0.5")) == ()
    assert "V = -1" in candidate_faults(make_candidate("total-cost:V=-1"))[0]
    assert "share = nan" in candidate_faults(make_candidate("total-cost:share=nan"))[0]
    estimates = SiteEstimates(power_factors={"a40": 40.0})
    assert "factor 40.0 of a40" in candidate_faults(make_candidate(estimates=estimates))[0]


def test_refuted_promise_stops_every_candidate() -> None:
    held = Proof(name="a", paths=3)
    passed, stopped = (
        logic_result(make_candidate(), (held, one)) for one in (held, replace(held, counterexample="x = 1"))
    )
    assert passed.verdict is StageVerdict.PASSED
    assert passed.summary == "2 promises proved over 6 rows of the decision tables"
    assert stopped.verdict is StageVerdict.STOPPED
    assert "x = 1" in stopped.summary
    assert (passed.notes, passed.details) == ((), ("a: proved, 3 rows", "a: proved, 3 rows"))
    assert stopped.notes == ("1 of 2 promises proved", "a: REFUTED, 3 rows")
    assert stopped.details == ("a: proved, 3 rows", "a: REFUTED, 3 rows")


def test_learned_clock_is_what_the_promise_of_measured_clocks_speaks_of() -> None:
    # The promise stands a plain object in for it: its figures must be the ones that the guard reads.
    assert {"sm_clock_mhz", "slowdown", "upper", "energy_change", "others", "runs"} <= set(dir(LearnedClock))
