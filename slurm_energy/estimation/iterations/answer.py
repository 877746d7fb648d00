"""The detector in a process of its own: windows come in as JSON, and one answer for all of a job's GPUs goes out.

The sampler beside a job starts it for half a second now and then, and so stays small itself. Nothing that this process
does or fails to do can reach the job: it has no right it needs, little time, and bounded memory.
"""

import json
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from typing import Any

MAX_CPU_SECONDS = 20
MAX_MEMORY_BYTES = 1 << 30
NICENESS = 10


def answer(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return `slowdown` and `error` of the GPU that is slowed most, or `unknown` with the reason and `longer_may_help`.

    Args:
        pairs: For each GPU a window `before`, at the default clock, and one `after`, at the lower.
    """
    from slurm_energy.domain.trials import CAUTION  # noqa: PLC0415  # numpy comes with it, once bounds are set
    from slurm_energy.estimation.iterations.slowdown import Unknown, slowdown_between  # noqa: PLC0415

    worst: dict[str, Any] = {"unknown": "no GPU was measured"}
    for pair in pairs:
        found = slowdown_between(_trace(pair["before"]), _trace(pair["after"]))
        if isinstance(found, Unknown):
            return {"unknown": found.reason, "longer_may_help": found.longer_may_help}
        upper = found.value + CAUTION * found.error
        if "slowdown" not in worst or upper > worst["slowdown"] + CAUTION * worst["error"]:
            worst = {"slowdown": found.value, "error": found.error}
    return worst


def _trace(window: Mapping[str, Any]) -> Any:
    import numpy as np  # noqa: PLC0415  # as above

    from slurm_energy.estimation.iterations.traces import Trace  # noqa: PLC0415

    def column(values: Sequence[float | None]) -> Any:
        return np.array([np.nan if value is None else value for value in values], float)

    seconds = column(window["seconds"])
    rates = {name: column(values) for name, values in window["work_rates"].items()}
    if "watts" in window:
        return Trace(
            seconds=seconds, watts=column(window["watts"]), sm_clock_mhz=window["sm_clock_mhz"], work_rates=rates
        )
    return Trace.from_energy_counter(
        seconds, column(window["joules"]), sm_clock_mhz=window["sm_clock_mhz"], work_rates=rates
    )


def main() -> int:
    """Answer what stands on standard input, on standard output."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    try:
        found = answer(json.load(sys.stdin)["pairs"])
    except Exception as error:  # noqa: BLE001  # whatever the windows hold, the answer is then not known
        found = {"unknown": f"the detector failed: {type(error).__name__}: {str(error)[:100]}"}
    json.dump(found, sys.stdout)
    return 0
