"""Login names of users whom no snapshot has named yet; looked up where nobody waits, in the recorder."""

import pwd
from dataclasses import replace

from slurm_energy.domain.job import JobRequest

MAX_KNOWN = 10_000

_known: dict[int, str] = {}


def login_name(user_id: int) -> str | None:
    """Return the name that this host knows for a user id, None when it knows none or its directory does not answer."""
    if user_id not in _known:
        try:
            name = pwd.getpwuid(user_id).pw_name
        except (KeyError, OSError, OverflowError):
            return None
        if len(_known) >= MAX_KNOWN:
            _known.clear()
        _known[user_id] = name
    return _known[user_id]


def with_login_name(job: JobRequest) -> JobRequest:
    """Return the job with its user's name, where it has none or only the number."""
    if job.user_name not in {None, "", str(job.user_id)}:
        return job
    return replace(job, user_name=login_name(job.user_id) or job.user_name)
