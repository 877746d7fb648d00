"""slurmd's own list of this node's GPUs, as `slurmd -G` prints it, beside what Slurm's files state.

It is the program that counts, reading the files that it reads. With -f it asks no controller, and it takes some
milliseconds, or what detecting the GPUs takes.
"""

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from slurm_energy.node.gpu_order import GpuOrder, SlurmGpu, order_files, shown
from slurm_energy.node.gres_conf import MAX_FILES, ConfiguredGpus, expand_hostlist

BY_SLURMD = "slurmd -G"
BY_FILES = "gres.conf"
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

_GRES = re.compile(r"Gres Name=(\S+) Type=(.*?) Count=([0-9]+) (?:.*?\bFile=(\S+))?")
_LONGEST = 1_048_576


def ask_slurmd(places: Sequence[str], conf: Path, node: str, limit_seconds: float) -> GpuOrder:
    """Return the order that slurmd prints, or why it prints none.

    Args:
        places: Where the program may be.
        conf: Its slurm.conf.
        node: The node's name.
        limit_seconds: How long it may take.
    """
    program = next((place for place in places if os.access(place, os.X_OK)), None)
    if program is None:
        return GpuOrder(problem=f"slurmd is in none of {', '.join(places)}")
    try:
        return parse_slurmd(_run(program, conf, node, limit_seconds))
    except subprocess.TimeoutExpired:
        return GpuOrder(problem=f"{program} -G did not answer within {limit_seconds:g} s")
    except (OSError, subprocess.SubprocessError) as error:
        return GpuOrder(problem=f"{program} -G failed: {error}")


def parse_slurmd(text: str) -> GpuOrder:
    """Return the order that `slurmd -G` printed."""
    gpus: list[SlurmGpu] = []
    shares = False
    for line in text.splitlines():
        match = _GRES.search(line)
        if match is None:
            continue
        name, gpu_type, count = match[1].lower(), match[2], int(match[3])
        shares = shares or (name in {"shard", "mps"} and count > 0)
        if name != "gpu" or count == 0:
            continue
        files = tuple(islice(expand_hostlist(match[4] or ""), MAX_FILES))
        if not files or (count != len(files) and count != 1):
            return GpuOrder(problem=f"slurmd -G names {len(files)} files for {count} GPUs", shares_gpus=shares)
        is_slice = len(files) > count  # MultipleFiles=: one device of several files, the board's first
        known = None if gpu_type in {"", "(null)"} else gpu_type
        used = files[:1] if is_slice else files
        gpus += (SlurmGpu(gpu_type=known, device_file=file, is_slice=is_slice) for file in used)
    if not gpus:
        return GpuOrder(problem="slurmd -G names no GPU of this node", shares_gpus=shares)
    return GpuOrder(gpus=tuple(gpus), ways=(BY_SLURMD,), shares_gpus=shares)


def agreed_order(counted: GpuOrder, stated: ConfiguredGpus) -> GpuOrder:
    """Return slurmd's order, unless the files state another one; their order alone proves nothing."""
    found = replace(counted, stated=stated.gpus, shares_gpus=counted.shares_gpus or stated.shares_gpus)
    if counted.problem:
        return found
    if stated.count is not None and len(counted.gpus) != stated.count:
        # What was asked from within a job's cgroup detects the job's GPUs only.
        return replace(found, problem=f"slurmd -G counts {len(counted.gpus)} GPUs, Gres= in slurm.conf {stated.count}")
    if stated.gpus is None:
        return found
    if order_files(counted.gpus) == order_files(stated.gpus):
        return replace(found, ways=(*found.ways, BY_FILES))
    problem = f"slurmd -G counts {shown(counted.gpus)}, slurm.conf and gres.conf state {shown(stated.gpus)}"
    return replace(found, problem=problem)


def _run(program: str, conf: Path, node: str, limit_seconds: float) -> str:
    # It must be called slurmd to know itself, and Debian's file is slurmd-wlm. -v: SlurmdDebug must hide nothing.
    command = ["slurmd", "-G", "-v", "-N", node, "-f", str(conf)]
    environment = {
        "PATH": SYSTEM_PATH,
        "LC_ALL": "C",
        "SLURM_CONF": str(conf),
        # 22.05 moves a slurmd that systemd did not start into the cgroup of the steps; this one only prints.
        "INVOCATION_ID": "0" * 32,
    }
    done = subprocess.run(
        command,
        executable=program,
        capture_output=True,
        timeout=limit_seconds,
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    text = (done.stdout + b"\n" + done.stderr)[:_LONGEST].decode("utf-8", "replace")
    if done.returncode != 0:
        said = (text.strip().splitlines() or ["nothing was said"])[-1]
        raise OSError(f"exit code {done.returncode}: {said[:200]}")
    return text
