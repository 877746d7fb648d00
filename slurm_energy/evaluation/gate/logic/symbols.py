"""Runs functions on symbols in place of numbers and follows both sides of each condition that they meet.

What a function does is so taken from the function itself: every path through it, with the conditions under which it is
taken, is its decision table, and z3 proves a promise over each row of that table, for all numbers at once. A symbol is
an exact real or whole number; what is not finite or not there is a path of its own, with Python's own inf, nan or None.
The rounding of doubles, about one part in 10^15, is not part of the proof.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isnan, nan
from typing import Any, Final, NamedTuple, TypeVar, cast

import z3

from slurm_energy.errors import EvaluationError

T = TypeVar("T")
_SOLVER_MILLISECONDS = 20_000
_MAX_PATHS = 20_000
_UNSETTLED: Final = object()


class Infeasible(Exception):
    """The path does not meet what a promise assumes."""


class Refuted(Exception):
    """A promise that does not hold, with numbers for which it fails."""


class _Branch(NamedTuple):
    """The other side of a condition, for a path of its own."""

    taken: tuple[bool, ...]
    """Answers up to it; the last one is its own."""
    level: int
    formula: Any
    model: Any


class _Explorer:
    """The solver of a search: it keeps what the path so far has settled, and goes back by levels."""

    def __init__(self) -> None:
        self.solver = z3.Solver()
        self.solver.set("timeout", _SOLVER_MILLISECONDS)
        self.level = 0

    def enter(self, formula: Any) -> None:
        self.solver.push()
        self.solver.add(formula)
        self.level += 1

    def back_to(self, level: int) -> None:
        self.solver.pop(self.level - level)
        self.level = level

    def model_with(self, formula: Any) -> Any:
        """Return numbers with which a condition holds too, None where there are none, `_UNSETTLED` in doubt."""
        self.solver.push()
        self.solver.add(formula)
        found = self.solver.check()
        model = self.solver.model() if found == z3.sat else (None if found == z3.unsat else _UNSETTLED)
        self.solver.pop()
        return model


class Path:
    """One way through a function: which side each condition took so far."""

    def __init__(self, search: _Explorer, start: _Branch | None = None) -> None:
        self.untried: list[_Branch] = []
        self._search = search
        self._replayed = () if start is None else start.taken
        self._taken: list[bool] = []
        self._model = None if start is None else start.model
        self._names = 0

    def branch(self, condition: "Callable[[], Any]") -> bool:
        """Return which side of a condition this path takes; the other one is left for another path."""
        step = len(self._taken)
        if step < len(self._replayed):
            self._taken.append(self._replayed[step])
            return self._taken[-1]
        taken = self._settled(z3.simplify(condition()))
        self._taken.append(taken)
        return taken

    def _settled(self, condition: Any) -> bool:
        if z3.is_true(condition) or z3.is_false(condition):
            return bool(z3.is_true(condition))
        if self._model is None or self._model is _UNSETTLED:
            self._model = self._search.model_with(z3.BoolVal(val=True))
        # A model of the path so far shows one side to be possible: the solver is asked of the other alone.
        known = self._model not in (None, _UNSETTLED) and self._model.eval(condition, model_completion=True)
        taken = not z3.is_false(known)
        other = z3.Not(condition) if taken else condition
        model = self._search.model_with(other)
        if model is not None:
            self.untried.append(_Branch((*self._taken, not taken), self._search.level, other, model))
        self._search.enter(condition if taken else z3.Not(condition))
        return taken

    @property
    def _is_replay(self) -> bool:
        return len(self._taken) < len(self._replayed)

    def assume(self, condition: object) -> None:
        """Continue only where a condition holds."""
        if not isinstance(condition, Truth):
            if not condition:
                raise Infeasible
        elif not self._is_replay:
            self._model = self._search.model_with(condition.formula)
            if self._model is None:
                raise Infeasible
            self._search.solver.add(condition.formula)

    def promise(self, condition: object, text: str) -> None:
        """Prove that a condition holds for all numbers of this path.

        Raises:
            Refuted: it does not, or the solver cannot tell.
        """
        if self._is_replay:
            return
        if isinstance(condition, Truth):
            model = self._search.model_with(z3.Not(condition.formula))
        else:
            model = None if condition else self._search.model_with(z3.BoolVal(val=True))
            if not condition and model is None:
                raise Infeasible
        if model is not None:
            raise Refuted(f"{text}: {'the solver cannot tell' if model is _UNSETTLED else _shown(model)}")

    def boolean(self, name: str) -> bool:
        """Return True on one path and False on another."""
        name = self._name(name)
        return self.branch(lambda: z3.Bool(name))

    def real(self, name: str, low: float | None = None, high: float | None = None) -> float:
        """Return a symbol for a finite number between two bounds."""
        return cast(float, self._bounded(z3.Real(self._name(name)), low, high))

    def whole(self, name: str, low: int | None = None, high: int | None = None) -> int:
        """Return a symbol for a whole number between two bounds."""
        return cast(int, self._bounded(z3.Int(self._name(name)), low, high))

    def choice(self, name: str, among: Sequence[T]) -> T:
        """Return each of some values, on a path of its own."""
        for index, value in enumerate(among[:-1]):
            if self.boolean(f"{name} is {index}"):
                return value
        return among[-1]

    def maybe(self, name: str, make: Callable[[], T]) -> T | None:
        """Return a value on one path, None on another."""
        return make() if self.boolean(f"{name} is given") else None

    def _bounded(self, expression: Any, low: float | None, high: float | None) -> "Number":
        if not self._is_replay:
            if low is not None:
                self._search.solver.add(expression >= _exact(low))
            if high is not None:
                self._search.solver.add(expression <= _exact(high))
            self._model = None
        return Number(self, lambda: expression)

    def _name(self, name: str) -> str:
        self._names += 1
        return f"{name} #{self._names}"


class Truth:
    """A condition on symbols; asking whether it is true decides the path."""

    def __init__(self, path: Path, make: Callable[[], Any]) -> None:
        self.path = path
        self._make = make

    @property
    def formula(self) -> Any:
        """The condition as the solver has it; worked out where it is asked for, since a replay needs none."""
        return self._make()

    def __bool__(self) -> bool:
        return self.path.branch(self._make)

    def __index__(self) -> int:
        return int(bool(self))

    def __and__(self, other: object) -> "Truth":
        return Truth(self.path, lambda: z3.And(self.formula, _formula(other)))

    def __or__(self, other: object) -> "Truth":
        return Truth(self.path, lambda: z3.Or(self.formula, _formula(other)))

    def __invert__(self) -> "Truth":
        return Truth(self.path, lambda: z3.Not(self.formula))

    def __radd__(self, other: object) -> object:
        return cast(Any, other) + int(bool(self))

    __rand__, __ror__ = __and__, __or__


class Number:
    """A symbol, or what arithmetic made of symbols; the expression is worked out where a condition needs it."""

    def __init__(self, path: Path, make: Callable[[], Any]) -> None:
        self.path = path
        self._make = make
        self._made: Any = None

    @property
    def expression(self) -> Any:
        """The number as the solver has it."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def _with(self, other: object, make: Callable[[Any, Any], Any]) -> Any:
        if not isinstance(other, Number | int | float):
            return NotImplemented
        return Number(self.path, lambda: make(self.expression, _exact(other)))

    def __add__(self, other: object) -> Any:
        return other if _is_beyond(other) else self._with(other, lambda a, b: a + b)

    def __sub__(self, other: object) -> Any:
        return -cast(float, other) if _is_beyond(other) else self._with(other, lambda a, b: a - b)

    def __rsub__(self, other: object) -> Any:
        return other if _is_beyond(other) else self._with(other, lambda a, b: b - a)

    def __mul__(self, other: object) -> Any:
        if _is_beyond(other):
            return nan if isnan(cast(float, other)) or self == 0 else (other if self > 0 else -cast(float, other))
        return self._with(other, lambda a, b: a * b)

    def __truediv__(self, other: object) -> Any:
        if _is_beyond(other):
            return nan if isnan(cast(float, other)) else 0.0
        if other == 0:
            raise ZeroDivisionError("division by zero")
        return self._with(other, lambda a, b: _real(a) / _real(b))

    def __rtruediv__(self, other: object) -> Any:
        if self == 0:
            raise ZeroDivisionError("division by zero")
        if _is_beyond(other):
            return other if self > 0 else -cast(float, other)
        return self._with(other, lambda a, b: _real(b) / _real(a))

    def __pow__(self, other: object) -> Any:
        """Return some number above 0: a power of symbols is not worked out, and may be any."""
        return self.path.real("power", 1e-9)

    def __floordiv__(self, other: object) -> Any:
        if other == 0:
            raise ZeroDivisionError("division by zero")
        return self._with(other, lambda a, b: a / b)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> "Number":
        return Number(self.path, lambda: -self.expression)

    def __abs__(self) -> "Number":
        return Number(self.path, lambda: z3.If(self.expression >= 0, self.expression, -self.expression))

    def __ceil__(self) -> "Number":
        return Number(self.path, lambda: self.expression if self.expression.is_int() else -z3.ToInt(-self.expression))

    def _compared(self, other: object, make: Callable[[Any, Any], Any], beyond: Callable[[float], bool]) -> Any:
        if isinstance(other, float) and _is_beyond(other):
            return beyond(other)
        if not isinstance(other, Number | int | float):
            return NotImplemented
        return Truth(self.path, lambda: make(self.expression, _exact(other)))

    def __lt__(self, other: object) -> Any:
        return self._compared(other, lambda a, b: a < b, lambda end: end > 0.0)

    def __le__(self, other: object) -> Any:
        return self._compared(other, lambda a, b: a <= b, lambda end: end > 0.0)

    def __gt__(self, other: object) -> Any:
        return self._compared(other, lambda a, b: a > b, lambda end: end < 0.0)

    def __ge__(self, other: object) -> Any:
        return self._compared(other, lambda a, b: a >= b, lambda end: end < 0.0)

    def __eq__(self, other: object) -> Any:
        return self._compared(other, lambda a, b: a == b, lambda end: False)  # noqa: ARG005  # one form for all

    def __ne__(self, other: object) -> Any:
        return self._compared(other, lambda a, b: a != b, lambda end: True)  # noqa: ARG005  # one form for all

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __hash__(self) -> int:
        return 0  # dictionaries then compare, and a comparison decides the path

    def __format__(self, spec: str) -> str:
        return "x"

    def __repr__(self) -> str:
        return "x"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What came of a promise."""

    name: str
    paths: int
    """Rows of the decision table over which it was proved."""
    counterexample: str = ""
    """Empty where it holds."""

    @property
    def holds(self) -> bool:
        """Whether it is proved for all numbers."""
        return not self.counterexample


def prove(name: str, run: Callable[[Path], None], *, max_paths: int = _MAX_PATHS) -> Proof:
    """Return what comes of a promise on every path of a run; a run that raises breaks it.

    Raises:
        EvaluationError: there are too many paths.
    """
    paths = 0
    try:
        for _ in explore(run, max_paths=max_paths):
            paths += 1
    except Refuted as refuted:
        return Proof(name=name, paths=paths, counterexample=str(refuted))
    if not paths:
        return Proof(name=name, paths=0, counterexample="no path meets what the promise assumes")
    return Proof(name=name, paths=paths)


def explore(run: Callable[[Path], T], *, max_paths: int = _MAX_PATHS) -> Iterator[tuple[Path, T]]:
    """Yield each path through a run with what it returned.

    Raises:
        Refuted: a promise fails on a path, or the run raises there.
        EvaluationError: there are too many paths.
    """
    search = _Explorer()
    waiting: list[_Branch | None] = [None]
    count = 0
    while waiting:
        start = waiting.pop()
        if start is not None:
            search.back_to(start.level)
            search.enter(start.formula)
        path = Path(search, start)
        count += 1
        if count > max_paths:
            raise EvaluationError(f"a function has more than {max_paths} paths: give its promise fewer symbols")
        try:
            value = run(path)
        except Infeasible:
            continue
        except Refuted:
            raise
        except Exception as error:  # whatever code under proof raises breaks the promise to answer
            raise Refuted(f"raises {type(error).__name__}: {error}") from error
        finally:
            waiting += path.untried
        yield path, value


def _exact(value: object) -> Any:
    if isinstance(value, Number):
        return value.expression
    if isinstance(value, bool | int):
        return z3.IntVal(int(value))
    numerator, denominator = float(cast(float, value)).as_integer_ratio()
    return z3.Q(numerator, denominator)


def _formula(condition: object) -> Any:
    return condition.formula if isinstance(condition, Truth) else z3.BoolVal(bool(condition))


def _real(expression: Any) -> Any:
    return z3.ToReal(expression) if expression.is_int() else expression


def _is_beyond(value: object) -> bool:
    return isinstance(value, float) and not -inf < value < inf


def _shown(model: Any) -> str:
    found = sorted((str(name).rpartition(" #")[0], str(model[name])) for name in model.decls())
    return ", ".join(f"{name} = {value}" for name, value in found)[:600] or "for all values"
