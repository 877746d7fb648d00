"""A real daemon that gives each job as many GPUs as its name says, `count-4`; the argument is its configuration's path.

`count-told` gets what the file wanted-count beside the configuration says at the moment.

The guard has its usual last word: only what the user named and the plugin offers is chosen.
"""

import asyncio
import logging
import re
import sys
from pathlib import Path

from slurm_energy.config import PolicyConfig, load_config
from slurm_energy.daemon.lifecycle import EnergyDaemon
from slurm_energy.policy.base import Case
from slurm_energy.policy.guard import gpu_count
from slurm_energy.policy.site.gpu_count import ChosenCount

WANTED = "wanted-count"


def named_count(case: Case, settings: PolicyConfig) -> ChosenCount:  # the rule's form
    """Return the number in the job's name, offered or not: what is not offered is the guard's to keep out."""
    told = Path(sys.argv[1]).with_name(WANTED)
    if case.job.name == "count-told" and told.exists():
        wanted = int(told.read_text())
        return ChosenCount(gpus=wanted if wanted in case.gpu_counts else case.job.gpu_count, note="as told")
    found = re.search(r"count-(\d+)", case.job.name)
    wanted = int(found.group(1)) if found else case.job.gpu_count
    return ChosenCount(gpus=wanted if wanted in case.gpu_counts else case.job.gpu_count, note="by the job's name")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    logging.basicConfig(level="INFO", stream=sys.stderr)
    setattr(gpu_count, "chosen_count", named_count)  # noqa: B010  # the guard's own name for it
    asyncio.run(EnergyDaemon(load_config(path), reload=lambda: load_config(path)).run())
