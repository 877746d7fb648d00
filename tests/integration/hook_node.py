"""A node with simulated NVML, its spool and configuration, whose hooks run as slurmd runs them: bare, without PATH."""

import atexit
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from compiled_library import compiled_library

from slurm_energy.domain.decision import DecisionEntry
from slurm_energy.domain.energy import NodeReport
from slurm_energy.domain.ids import DecisionId, GpuTypeName, JobId
from slurm_energy.domain.job import EnergyMode
from slurm_energy.lab.simgpu.build import LIBRARY_NAME, BuiltLibrary
from slurm_energy.lab.simgpu.specs import standard_gpus
from slurm_energy.lab.simgpu.state import NodeGpuState, create_state
from slurm_energy.node.processes import hook_command
from slurm_energy.node.spool import Spool
from slurm_energy.wire.report import decode_report

HOOK = tuple(hook_command(sys.executable))


class HookNode:
    """One simulated node."""

    def __init__(self, root: Path, *, gpu_type: str = "a100", count: int = 4, time_scale: float = 60.0) -> None:
        self.root = root
        for folder in ("lib", "gpus", "etc"):
            (root / folder).mkdir()
        built = _built()
        shutil.copy2(built.library, root / "lib" / LIBRARY_NAME)
        state = root / "gpus" / "n1.state"
        create_state(state, standard_gpus(gpu_type, count, "n1"), time_scale=time_scale, library=built.library)
        self.gpus = NodeGpuState(state, built.library)
        self.spool = Spool(root / "spool" / "n1")
        self.log = root / "hooks.log"
        self.time_scale = time_scale
        self.settings: dict[str, object] = {
            "spool_directory": str(root / "spool" / "%n"),
            "run_directory": str(root / "run" / "%n"),
            "log_path": str(self.log),
            "nvml_library": str(root / "lib" / LIBRARY_NAME),
            "time_scale": time_scale,
            "sample_interval_seconds": 0.05,
            "gpu_numbering": "minor",  # there is no slurmd to ask
            "time_limit_seconds": 60.0,  # a busy machine makes no hook give up that is not tested for it
        }
        self.configure()

    def configure(self, **settings: object) -> None:
        self.settings.update(settings)
        lines = [f"{key} = {json.dumps(value)}" for key, value in self.settings.items()]
        (self.root / "etc" / "slurm-energy.toml").write_text("[node]\n" + "\n".join(lines) + "\n")

    def environment(self, job_id: int, gpus: str, entry: str | None = None, **more: str) -> dict[str, str]:
        environment = {
            "SLURM_JOB_ID": str(job_id),
            "SLURM_JOB_GPUS": gpus,
            "SLURM_JOB_UID": "1000",
            "SLURM_JOB_RESTART_COUNT": "0",
            "SLURM_CLUSTER_NAME": "lab",
            "SLURMD_NODENAME": "n1",
            "SLURM_CONF": str(self.root / "etc" / "slurm.conf"),
            **more,
        }
        return environment if entry is None else {**environment, "SPANK_ENERGY_DECISION": entry}

    def run(
        self, verb: str, environment: Mapping[str, str], *options: str, timeout: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*HOOK, verb, *options], env=dict(environment), capture_output=True, text=True, timeout=timeout, check=False
        )

    def start(self, verb: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*HOOK, verb], env=dict(environment), stderr=subprocess.DEVNULL)

    def prolog(self, job_id: int, gpus: str, entry: str | None = None, **more: str) -> None:
        done = self.run("prolog", self.environment(job_id, gpus, entry, **more))
        assert done.returncode == 0, done.stderr

    def epilog(self, job_id: int, gpus: str, **more: str) -> None:
        done = self.run("epilog", self.environment(job_id, gpus, **more))
        assert done.returncode == 0, done.stderr

    def locks(self) -> list[tuple[int, int] | None]:
        return [gpu.locked_clocks_mhz for gpu in self.gpus.gpus]

    def reports(self) -> list[NodeReport]:
        return [decode_report(json.loads(path.read_bytes())) for path in self.spool.waiting_reports()]

    def sampler_pid(self, job_id: int) -> int:
        path = self.spool.sampler_path(JobId(job_id))
        wait_until(path.exists)
        return int(json.loads(path.read_bytes())["pid"])

    def end_samplers(self) -> None:
        for path in self.spool.active.glob("*.json"):
            path.unlink()


@cache
def _built() -> BuiltLibrary:
    folder = Path(tempfile.mkdtemp(prefix="hook-node-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return compiled_library(folder)


def entry(
    mhz: int = 1275,
    gpu_type: str = "a100-sxm4-80gb",
    time_limit_minutes: int | None = None,
    assumed_watts: int | None = None,
) -> str:
    return DecisionEntry(
        decision_id=DecisionId("abcdef0123456789"),
        mode=EnergyMode.BALANCED,
        clocks_mhz={GpuTypeName(gpu_type): mhz},
        assumed_watts={} if assumed_watts is None else {GpuTypeName(gpu_type): assumed_watts},
        time_limit_minutes=time_limit_minutes,
    ).encode()


def wait_until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def children_of(pid: int) -> list[int]:
    """Return the processes that a process started, none when it has ended."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"} and Path(f"/proc/{pid}").exists()
