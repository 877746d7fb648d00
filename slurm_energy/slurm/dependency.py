"""Texts of `--dependency` as Slurm shows them: `afterok:12(unfulfilled),afterany:13_*`; pure and total."""

import re

from slurm_energy.domain.cluster import JobDependency
from slurm_energy.domain.ids import MAX_JOB_ID, JobId

MAX_DEPENDENCIES = 1000
MAX_DEPENDENCY_CHARACTERS = 65_536

_SEPARATORS = re.compile(r"[,?]")
"""`,` wants all, `?` any of them; a job waits for each until then."""
_NUMBER = re.compile(r"[0-9]{1,10}")
_NEEDS_SUCCESS = frozenset({"afterok", "aftercorr"})
_WAITS = frozenset({"after", "afterany", "afternotok", "afterburstbuffer"}) | _NEEDS_SUCCESS
_DONE = "(fulfilled)"


def parse_dependencies(text: str) -> tuple[JobDependency, ...]:
    """Return the jobs that a job still waits for, at most `MAX_DEPENDENCIES`, each once.

    An array (`13_*`) and its tasks (`13_5`) stand under the array's number, a heterogeneous job's parts (`13+1`) under
    its leader's. `singleton` and `expand` name no job to wait for, and what cannot be read is left out.
    """
    needs_success: dict[int, bool] = {}
    for part in _SEPARATORS.split(text[:MAX_DEPENDENCY_CHARACTERS]):
        kind, _, jobs = part.strip().lower().partition(":")
        if kind not in _WAITS:
            continue
        for item in jobs.split(":"):
            match = _NUMBER.match(item)
            number = 0 if match is None or item.endswith(_DONE) else int(match.group())
            if 0 < number <= MAX_JOB_ID:
                needs_success[number] = needs_success.get(number, False) or kind in _NEEDS_SUCCESS
                if len(needs_success) == MAX_DEPENDENCIES:
                    return _dependencies(needs_success)
    return _dependencies(needs_success)


def _dependencies(needs_success: dict[int, bool]) -> tuple[JobDependency, ...]:
    return tuple(JobDependency(job_id=JobId(number), needs_success=needed) for number, needed in needs_success.items())
