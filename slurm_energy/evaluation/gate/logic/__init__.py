"""The first stage: the guard's promises on this code, and the shapes and the objective of a candidate."""

from functools import lru_cache
from math import isfinite

from slurm_energy.errors import SlurmEnergyError
from slurm_energy.evaluation.gate.logic.clocks import CLOCK_PROMISES
from slurm_energy.evaluation.gate.logic.costs import COST_PROMISES
from slurm_energy.evaluation.gate.logic.masks import MASK_PROMISES
from slurm_energy.evaluation.gate.logic.symbols import Proof, prove
from slurm_energy.evaluation.gate.sheet import StageResult, StageVerdict
from slurm_energy.policy.candidate import CandidatePolicy
from slurm_energy.policy.checkpoint_files import check_files
from slurm_energy.policy.rules.settings import split_text

PROMISES = {**CLOCK_PROMISES, **MASK_PROMISES, **COST_PROMISES}


@lru_cache(maxsize=1)
def proofs() -> tuple[Proof, ...]:
    """Return what comes of every promise over the code that runs here; worked out once in a process."""
    return tuple(prove(name, run) for name, run in PROMISES.items())


def candidate_faults(candidate: CandidatePolicy) -> tuple[str, ...]:
    """Return what is wrong with a candidate's graph and objective, without running it.

    The features that its network was trained on must be those that decisions are made with. A price below 0, or one
    that is not finite, would reward what it should charge for: the proofs of the costs hold for prices from 0 up.
    """
    faults = []
    if candidate.network is not None:
        try:
            check_files(candidate.network)
        except SlurmEnergyError as error:
            faults.append(f"network: {error}")
    if candidate.policy is not None:
        name, settings = split_text(candidate.policy)
        for key, text in settings.items():
            try:
                price = float(text)
            except ValueError:
                continue  # a word, which the policy's own reader has checked
            if not isfinite(price) or price < 0.0:
                faults.append(f"objective: {name} has {key} = {text}, no price from 0 up")
    estimates = candidate.estimates
    for table in () if estimates is None else (estimates.time_factors, estimates.power_factors):
        faults += [
            f"estimates: factor {factor} of {gpu_type} is not from 0.1 to 10"
            for gpu_type, factor in table.items()
            if not 0.1 <= factor <= 10.0
        ]
    return tuple(faults)


def logic_result(candidate: CandidatePolicy, found: tuple[Proof, ...]) -> StageResult:
    """Return whether every promise is proved, and the candidate is one that they speak of."""
    broken = [proof for proof in found if not proof.holds]
    faults = candidate_faults(candidate)
    objections = [f"{proof.name}: {proof.counterexample}" for proof in broken] + list(faults)
    rows = sum(proof.paths for proof in found)
    summary = "; ".join(objections)[:400] or f"{len(found)} promises proved over {rows} rows of the decision tables"
    return StageResult(
        stage="logic",
        verdict=StageVerdict.STOPPED if objections else StageVerdict.PASSED,
        summary=summary,
        figures={
            "promises": float(len(found)),
            "proved": float(len(found) - len(broken)),
            "rows": float(rows),
            "candidate_faults": float(len(faults)),
        },
        notes=(f"{len(found) - len(broken)} of {len(found)} promises proved", *map(_line, broken)) if broken else (),
        details=tuple(map(_line, found)),
    )


def _line(proof: Proof) -> str:
    return f"{proof.name}: {'proved' if proof.holds else 'REFUTED'}, {proof.paths} rows"
