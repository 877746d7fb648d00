"""Which NVIDIA devices a job's cgroup lets it open: a word of the kernel's on which GPUs the job holds.

Only cgroup v1 has a list that can be read (devices.list, where ConstrainDevices is on); with v2 it is an eBPF program.
It exists from the job's first step on, after the prolog: it is a check on what was proven then.
"""

import re
from pathlib import Path

from slurm_energy.domain.ids import JobId

DEVICES_ROOT = Path("/sys/fs/cgroup/devices")
FIRST_OTHER_MINOR = 250
"""From here on the minors of NVIDIA's devices are no GPUs': 254 is nvidia-modeset, 255 nvidiactl."""

_ALLOWED = re.compile(r"^c 195:([0-9]+) ", re.MULTILINE)
_EVERYTHING = re.compile(r"^(?:a|c) (?:\*|195):\* ", re.MULTILINE)


def cgroup_minors(job_id: JobId, root: Path = DEVICES_ROOT) -> frozenset[int] | None:
    """Return the minor numbers of the GPUs that the job may open, None where no cgroup limits it."""
    for path in root.glob(f"slurm*/uid_*/job_{job_id}/devices.list"):
        try:
            text = path.read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        if _EVERYTHING.search(text):
            return None
        return frozenset(minor for minor in map(int, _ALLOWED.findall(text)) if minor < FIRST_OTHER_MINOR)
    return None
