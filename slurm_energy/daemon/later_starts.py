"""A later start for jobs whose users allow one (--energy-start-before): at the hour of least price or CO2 until then.

The series are the site's own (facility.tariff_file, facility.intensity_file); what they do not hold is not guessed.
Many jobs would choose the same hour: those that were sent to one already make it dearer for the next.
"""

import logging
import threading
import time
import weakref
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from slurm_energy.config import FacilityConfig
from slurm_energy.domain.decision import EnergyDecision
from slurm_energy.domain.ids import DecisionId
from slurm_energy.domain.job import EnergyMode, JobRequest
from slurm_energy.energy_model.facility import Facility, StepSeries, site_facility
from slurm_energy.errors import ConfigError
from slurm_energy.policy.guard.explanation import joined_line

logger = logging.getLogger(__name__)

STEP_SECONDS = 900.0
"""Between two starts that are compared, and the time over which those that choose the same are spread."""
MAX_AHEAD_SECONDS = 7 * 86_400.0
MIN_SAVING = 0.02
"""Of the price or CO2 of a start now that a later one must save."""
UNKNOWN_RUNTIME_SHARE = 0.8
"""Of its limit that a job without any estimate is taken to run."""
READ_SECONDS = 60.0
"""Between two looks at the files: prices of the next day come in the afternoon."""
_MODES = frozenset({EnergyMode.BALANCED, EnergyMode.SAVER})


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterStart:
    """When a job is to begin, and why."""

    begins_at_seconds: int
    """Unix time."""
    saving: float
    """Share of the price or CO2 of a start now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartQuestion:
    """What is asked for one job."""

    now_seconds: float
    latest_seconds: float
    run_seconds: float
    gpus: int
    cluster_gpus: int
    decision_id: DecisionId


class LaterStarts:
    """Chooses starts, and remembers those that it chose."""

    def __init__(self, config: FacilityConfig) -> None:
        """Store the settings; nothing is read yet."""
        self._config = config
        self._facility = Facility()
        self.problem = "the series were not read yet"
        self._booked: dict[DecisionId, tuple[float, int]] = {}

    def follow(self) -> None:
        """Read the series now, and every minute in a thread that does not hold up the process's end."""
        if self._config.later_starts != "off":
            self.read()
            threading.Thread(target=_read_on, args=(weakref.ref(self),), name="later starts", daemon=True).start()

    def read(self) -> None:
        """Read the series; where that fails the ones that were read last stay."""
        try:
            self._facility = site_facility(self._config)
            self.problem = ""
        except ConfigError as error:
            if str(error) != self.problem:
                logger.error("series for later starts not read error=%s", error)
            self.problem = str(error)

    def applied(
        self, decision: EnergyDecision, job: JobRequest, cluster_gpus: int, *, is_submission: bool
    ) -> EnergyDecision:
        """Return a decision with the job's start, and with the reason where its user allowed one and none is chosen.

        Args:
            decision: What was decided else.
            job: The job.
            cluster_gpus: All GPUs, 0 where that is not known.
            is_submission: Whether the start counts for the next job; a preview's does not.
        """
        latest = job.options.start_before_seconds
        if latest is None:
            return decision
        now = decision.decided_at_seconds
        found = self._refusal(decision, job)
        if not found:
            limit = job.time_limit_minutes
            known = decision.estimate
            run = known.seconds if known is not None else UNKNOWN_RUNTIME_SHARE * 60.0 * (limit or 0.0)
            upper = known.upper_seconds if known is not None else 60.0 * (limit or 0.0)
            deadline = job.options.deadline_seconds
            question = StartQuestion(
                now_seconds=now,
                latest_seconds=latest if deadline is None else min(latest, deadline - upper),
                run_seconds=run,
                gpus=max(job.gpu_count, 1),
                cluster_gpus=cluster_gpus,
                decision_id=decision.decision_id,
            )
            chosen = self.chosen(question)
            if isinstance(chosen, LaterStart):
                if is_submission:
                    self._booked[decision.decision_id] = float(chosen.begins_at_seconds), question.gpus
                return self._with(decision, chosen)
            found = chosen
        return replace(decision, notes=(*decision.notes, f"no later start: {found}"))

    def chosen(self, question: StartQuestion) -> LaterStart | str:
        """Return the start of least cost, or why the job starts as soon as it can."""
        series = self._series
        if series is None:
            return f"the site states no {self._what}"
        now, run = question.now_seconds, max(question.run_seconds, 1.0)
        present = series.mean(now, now + run)
        if present is None:
            return f"the {self._what} of now is not known"
        latest = min(question.latest_seconds, now + MAX_AHEAD_SECONDS)
        found: list[tuple[float, float]] = []
        begin = now
        while (begin := begin + STEP_SECONDS) <= latest:
            value = series.mean(begin, begin + run)
            if value is not None:
                found.append((begin, value))
        if not found:
            return "none of the times until then is far enough ahead and known"
        values = [value for _, value in found]
        spread = max(present, *values) - min(present, *values)
        total = max(question.cluster_gpus, question.gpus, 1)
        self._forget(now)
        begin, value = min(found, key=lambda one: (one[1] + spread * self._booked_near(one[0]) / total, one[0]))
        if present - value < MIN_SAVING * abs(present) or present == value:
            return f"the {self._what} is no lower until then"
        # Not all in the same second: the decision's number spreads them.
        moved = begin + int(question.decision_id[:8], 36) % int(STEP_SECONDS)
        return LaterStart(
            begins_at_seconds=int(min(moved, latest)), saving=(present - value) / abs(present) if present else 0.0
        )

    def _refusal(self, decision: EnergyDecision, job: JobRequest) -> str:
        if self._config.later_starts == "off":
            return "this site lets no job wait for cheaper energy (facility.later_starts is off)"
        if decision.mode not in _MODES:
            return f"mode {decision.mode} changes nothing"
        if job.starts_later:
            return "the job is held, depends on others or has a begin of its own"
        if job.reservation:
            return "the job has a reservation"
        if decision.estimate is None and not job.time_limit_minutes:
            return "nothing is known of how long it runs"
        return ""

    def _with(self, decision: EnergyDecision, chosen: LaterStart) -> EnergyDecision:
        at = datetime.fromtimestamp(chosen.begins_at_seconds, UTC).strftime("%Y-%m-%dT%H:%MZ")
        saved = f"{100.0 * chosen.saving:.0f} % less {'CO2' if self._config.later_starts == 'carbon' else 'cost'}"
        line = f"begins no sooner than {at} ({saved} for the same energy)"
        said = f"begins later, when the {self._what} is lower"
        sources = ", ".join(self._facility.sources)[:120]
        return replace(
            decision,
            begins_at_seconds=chosen.begins_at_seconds,
            notes=(*decision.notes, f"{line}, by {sources}"),
            message=joined_line(decision.message, line),
            message_in_place=joined_line(decision.message_in_place, line) if decision.message_in_place else "",
            announcement=joined_line(decision.announcement, said),
            announcement_in_place=(
                joined_line(decision.announcement_in_place, said) if decision.announcement_in_place else ""
            ),
        )

    @property
    def _what(self) -> str:
        return "CO2 of a kWh" if self._config.later_starts == "carbon" else "price of a kWh"

    @property
    def _series(self) -> StepSeries | None:
        return self._facility.intensity if self._config.later_starts == "carbon" else self._facility.price

    def _booked_near(self, begin_seconds: float) -> int:
        return sum(gpus for at, gpus in self._booked.values() if abs(at - begin_seconds) < 2.0 * STEP_SECONDS)

    def _forget(self, now: float) -> None:
        for key in [key for key, (at, _) in self._booked.items() if at < now]:
            del self._booked[key]


def _read_on(series: "weakref.ref[LaterStarts]") -> None:
    """Read the series every minute for as long as they are used."""
    while True:
        time.sleep(READ_SECONDS)
        found = series()
        if found is None:
            return
        found.read()
        del found
