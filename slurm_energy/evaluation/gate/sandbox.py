"""A candidate in a process of its own, with limits on time, memory and files, over states at the edges."""

import hashlib
import json
import multiprocessing
import os
import resource
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from math import isfinite
from multiprocessing.connection import Connection
from pathlib import Path

from slurm_energy.config import Config
from slurm_energy.domain.decision import EnergyDecision, PolicyAnswer, Reason
from slurm_energy.errors import SlurmEnergyError
from slurm_energy.estimation.job_history import JobHistory
from slurm_energy.evaluation.gate.decisions import NOTHING_KNOWN, GuardedCandidate, decision_text
from slurm_energy.evaluation.gate.sheet import StageResult, StageVerdict
from slurm_energy.evaluation.gate.states import EdgeState, probe_states
from slurm_energy.policy.base import Case, Policy
from slurm_energy.policy.candidate import CandidatePolicy, read_candidate

_NINES = 0.99
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What a candidate may take."""

    states: int = 10_000
    seconds: float = 600.0
    """CPU time of the whole run; the wall clock ends it at four times that."""
    memory_mib: int = 4096
    """Address space beyond what the process has when it starts, which libraries of learning fill with maps."""
    latency_milliseconds: float = 20.0
    """CPU time within which 99 of 100 decisions are made."""
    max_guard_changes: float = 0.01
    """Share of the answers that the guard changes beyond those of the incumbent, or of `oracle` where it changes more
    of them: states at the edges are made so that it has something to do."""


@dataclass(slots=True, kw_only=True)
class Observed:
    """What was seen of a policy over the states."""

    states: int = 0
    answers: int = 0
    errors: int = 0
    not_finite: int = 0
    mask_violations: int = 0
    """Answers that name a partition which is not open to the job, or a GPU type that is not there."""
    guard_changes: int = 0
    latency_milliseconds: float = 0.0
    """CPU time of the 99th of 100 decisions."""
    slowest_milliseconds: float = 0.0
    digest: str = ""
    """SHA-256 of all decisions."""
    examples: dict[str, str] = field(default_factory=dict)
    """The first of each kind."""


class _Watched:
    """Asks a policy and keeps what it was asked and said."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.name, self.version = policy.name, policy.version
        self.case: Case | None = None
        self.answer: object = None
        self.error: str | None = None

    def forget(self) -> None:
        self.case = None

    def decide(self, case: Case) -> PolicyAnswer:
        self.case, self.answer, self.error = case, None, None
        try:
            answer = self._policy.decide(case)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"[:200]
            raise
        self.answer = answer
        return answer


def observe(
    candidate: CandidatePolicy, config: Config, states: Iterable[EdgeState], known: JobHistory = NOTHING_KNOWN
) -> Observed:
    """Return what a candidate does in each state, by what is known of earlier jobs.

    Raises:
        SlurmEnergyError: its policy cannot be made.
    """
    watched: list[_Watched] = []

    def watch(policy: Policy) -> Policy:
        watched.append(_Watched(policy))
        return watched[0]

    decider = GuardedCandidate(candidate, config, watch, known)
    seen, times, digest = Observed(), [], hashlib.sha256()
    for state in states:
        watched[0].forget()
        began = time.process_time()
        decision = decider.decide(state)
        times.append(1000.0 * (time.process_time() - began))
        digest.update(decision_text(decision).encode() + b"\n")
        seen.states += 1
        if watched[0].case is not None:
            seen.answers += 1
            for kind in _faults(watched[0], decision):
                setattr(seen, kind, getattr(seen, kind) + 1)
                seen.examples.setdefault(kind, watched[0].error or _shown(watched[0].answer, state))
    times.sort()
    seen.latency_milliseconds = times[int(_NINES * (len(times) - 1))] if times else 0.0
    seen.slowest_milliseconds = times[-1] if times else 0.0
    seen.digest = digest.hexdigest()
    return seen


def _faults(watched: _Watched, decision: EnergyDecision) -> Iterable[str]:
    """Yield the counters of what is wrong with an answer."""
    answer, case = watched.answer, watched.case
    if watched.error is not None or not isinstance(answer, PolicyAnswer) or case is None:
        yield "errors"
        return
    figures = [
        figure
        for clock in answer.clocks
        for figure in (clock.sm_clock_mhz, clock.predicted_slowdown, clock.predicted_energy_change)
    ] + [figure for option in answer.details.options for figure in option.parts.values()]
    if not all(isfinite(figure) for figure in figures):
        yield "not_finite"
    if Reason.POLICY_ERROR in decision.reasons:
        yield "errors"
        return
    open_ones = {one.partition.name for one in case.candidates if one.may_be_named} if case.may_route else set()
    types = {name for one in case.candidates for name in one.gpu_types}
    if not open_ones >= set(answer.partitions or ()) or not types >= {clock.gpu_type for clock in answer.clocks}:
        yield "mask_violations"
    if not {Reason.SLOWDOWN_BOUND, Reason.TIME_LIMIT, Reason.DEADLINE, Reason.CLOCK_TABLE}.isdisjoint(decision.reasons):
        yield "guard_changes"


def _shown(answer: object, state: EdgeState) -> str:
    return f"{answer!r:.300} for a job of {state.job.gpu_count} GPUs"


def sandboxed(
    candidate: CandidatePolicy,
    config: Config,
    limits: SandboxLimits,
    seed: int = 0,
    known: JobHistory = NOTHING_KNOWN,
) -> tuple[Observed | None, str]:
    """Return what a candidate does in a process of its own, and why nothing is known where it does not come back."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_in_child, args=(theirs, candidate, config, limits, seed, known), daemon=True)
    child.start()
    theirs.close()
    try:
        if not ours.poll(4.0 * limits.seconds + 60.0):
            return None, f"was not done after {4.0 * limits.seconds + 60.0:.0f} s"
        found = json.loads(ours.recv_bytes())
    except (EOFError, OSError):
        child.join(5.0)
        code = child.exitcode
        return None, "ended by a limit" if code is not None and code < 0 else f"ended without an answer (exit {code})"
    finally:
        child.kill()
        child.join(5.0)
        ours.close()
    if "error" in found:
        return None, str(found["error"])
    return Observed(**found), ""


def _in_child(  # all that the other process gets
    connection: Connection,
    candidate: CandidatePolicy,
    config: Config,
    limits: SandboxLimits,
    seed: int,
    known: JobHistory,
) -> None:
    """Set the limits, run over the states and send what was seen."""
    try:
        fresh = candidate if candidate.folder is None else read_candidate(candidate.folder)
        GuardedCandidate(fresh, config)  # libraries are loaded before memory and files are closed
        seconds = int(limits.seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
        most = taken + limits.memory_mib * _MIB
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        found = asdict(observe(fresh, config, probe_states(fresh, limits.states, seed), known))
    except (SlurmEnergyError, MemoryError, OSError) as error:
        found = {"error": f"{type(error).__name__}: {error}"[:500]}
    connection.send_bytes(json.dumps(found).encode())
    connection.close()


def sandbox_result(
    found: Observed | None, trouble: str, incumbent: Observed | None, limits: SandboxLimits
) -> StageResult:
    """Return what the sandbox says of a candidate.

    Args:
        found: What was seen of it, None where it did not come back.
        trouble: Why not.
        incumbent: What was seen of the incumbent, or of `oracle`, over the same kind of states.
        limits: What it may take.
    """
    if found is None:
        return StageResult(stage="sandbox", verdict=StageVerdict.STOPPED, summary=f"the candidate {trouble}", score=0.0)
    answers = max(1, found.answers)
    changed = found.guard_changes / answers
    usual = 0.0 if incumbent is None else incumbent.guard_changes / max(1, incumbent.answers)
    most = limits.max_guard_changes + usual
    objections = [
        f"{count} {words}"
        for count, words in (
            (found.errors, "answers that were errors"),
            (found.not_finite, "answers with a figure that is not finite"),
            (found.mask_violations, "answers outside what was open to the job"),
        )
        if count
    ]
    if changed > most:
        objections.append(f"the guard changed {changed:.1%} of the answers, at most {most:.1%} is allowed")
    if found.latency_milliseconds > limits.latency_milliseconds:
        objections.append(
            f"99 of 100 decisions took up to {found.latency_milliseconds:.1f} ms, "
            f"{limits.latency_milliseconds:g} ms is allowed"
        )
    figures = {
        "states": float(found.states),
        "errors": float(found.errors),
        "not_finite": float(found.not_finite),
        "mask_violations": float(found.mask_violations),
        "guard_changes_share": changed,
        "incumbent_guard_changes_share": usual,
        "p99_milliseconds": found.latency_milliseconds,
        "slowest_milliseconds": found.slowest_milliseconds,
    }
    summary = "; ".join(objections) or (
        f"{found.states} states: no error, nothing outside the masks, {changed:.2%} changed by the guard, "
        f"99 of 100 within {found.latency_milliseconds:.1f} ms"
    )
    return StageResult(
        stage="sandbox",
        verdict=StageVerdict.STOPPED if objections else StageVerdict.PASSED,
        summary=summary,
        score=0.0 if objections else 1.0 - 0.5 * changed / most,
        figures=figures,
        notes=tuple(f"{kind}: {example}" for kind, example in found.examples.items() if kind != "guard_changes"),
    )
