"""What all windows of one program together say of its slowdown at a clock: the same arithmetic in a run and by name.

Windows at one clock are averaged by their errors. A window at a lower clock says something of the clocks above it too:
a higher clock is nowhere slower, and slowdown is nearly in proportion to that of work that the clock alone paces, or
less. How far it is from proportion differs between programs; that doubt is in the error.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, hypot, sqrt

from slurm_energy.domain.trials import CAUTION

RUN_SPREAD = 0.002
"""Standard deviation of a slowdown from run to run, beside the error of its measurement: assumed."""
BEND = 0.4
"""Standard deviation of what proportion gets wrong, over the slowdown at the lower clock: programs whose slowdown comes
in one step, at any clock on the way, are 0.3 to 0.7 of it away in the mean."""

MISFIT = 0.006
"""Standard deviation of a program's slowdown about the best form of `ResponseForms`: readings of measured programs."""
MAX_DISTANCE = 12.0
"""Of one answer from a form, squared, in errors: one wrong answer does not rule out all that the others say."""
_SHARES = tuple(0.1 * number for number in range(11))
_BEGINS = tuple(0.025 * number for number in range(21))
FORMS = tuple((share, begin) for share in _SHARES for begin in _BEGINS)
"""Share of what the clock alone would cost, and slowdown of the clock alone at which it begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockAnswer:
    """A slowdown against the default clock, from the detector or from the program's own progress."""

    slowdown: float
    error: float
    """Standard error."""

    @property
    def upper(self) -> float:
        """What it exceeds in one case of 15."""
        return self.slowdown + CAUTION * self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredWindow:
    """One answer, and where it was measured."""

    worst: float
    """Slowdown that work which the clock alone paces has at this clock."""
    answer: ClockAnswer
    run: int = 0


def slowdown_at(worst: float, windows: Iterable[AnsweredWindow]) -> ClockAnswer | None:
    """Return the slowdown at a clock by all windows there and at lower clocks; None where there is none.

    Args:
        worst: Of the clock, see `AnsweredWindow`.
        windows: Of one program.
    """
    by_place: dict[float, list[AnsweredWindow]] = {}
    for window in windows:
        if window.worst >= worst - 1e-9:
            by_place.setdefault(round(window.worst, 6), []).append(window)
    found: list[ClockAnswer] = []
    for place, here in by_place.items():
        mean = _mean(here)
        share = 1.0 if place <= worst + 1e-6 or place <= 0.0 else worst / place
        error = hypot(share * mean.error, BEND * max(mean.slowdown, 0.0) * (1.0 - share))
        found.append(ClockAnswer(slowdown=share * mean.slowdown, error=error))
    return _together(found) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseForms:
    """What slowdown may look like below the lowest clock of which something is known, each form with its weight.

    A form takes no time at first, and from some clock on a share of what the clock alone would cost.
    """

    forms: tuple[tuple[float, float, float], ...]
    """Share, slowdown of the clock alone at which it begins, weight; weights add up to 1."""

    @classmethod
    def after(cls, windows: Iterable[AnsweredWindow]) -> "ResponseForms":
        """Return the forms as likely as answers leave them; before any, each is as likely as the next."""
        known = [(one.worst, one.answer.slowdown, hypot(one.answer.error, MISFIT)) for one in windows]
        weighed = []
        for share, begin in FORMS:
            distance = sum(
                min(((slowdown - share * max(worst - begin, 0.0)) / error) ** 2, MAX_DISTANCE)
                for worst, slowdown, error in known
            )
            weighed.append((share, begin, exp(-0.5 * distance)))
        total = sum(weight for _, _, weight in weighed)
        return cls(forms=tuple((share, begin, weight / total) for share, begin, weight in weighed))

    def chance_within(self, worst: float, slowdown: float) -> float:
        """Return how likely it is that the slowdown at a clock is at most this."""
        return sum(weight for share, begin, weight in self.forms if share * max(worst - begin, 0.0) <= slowdown)


def _mean(windows: Sequence[AnsweredWindow]) -> ClockAnswer:
    """Return all windows at one clock together; runs of a name differ by a little."""
    runs = {window.run for window in windows}
    spread = RUN_SPREAD / sqrt(len(runs))
    mean = _together([window.answer for window in windows])
    return ClockAnswer(slowdown=mean.slowdown, error=hypot(mean.error, spread))


def _together(answers: Sequence[ClockAnswer]) -> ClockAnswer:
    """Return the mean by errors; answers that lie farther apart than their errors make it less sure, never surer."""
    weights = [1.0 / max(answer.error, 1e-4) ** 2 for answer in answers]
    total = sum(weights)
    mean = sum(w * answer.slowdown for w, answer in zip(weights, answers, strict=True)) / total
    error = 1.0 / sqrt(total)
    if len(answers) > 1:
        variance = sum(w * (answer.slowdown - mean) ** 2 for w, answer in zip(weights, answers, strict=True))
        error = max(error, sqrt(variance / total / (len(answers) - 1)))
    return ClockAnswer(slowdown=mean, error=error)
