"""Run the node's hooks around real loads on this machine's first NVIDIA GPU and compare what they report with NVML.

No setting of the GPU is changed: the job is only observed. Needs the NVIDIA driver; PyTorch for the loads.

    python -m research.benchmarks.real_gpu --seconds 15 --output real_gpu.json
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

from slurm_energy.device.gpu import Gpu
from slurm_energy.device.nvml import NvmlDriver
from slurm_energy.domain.decision import DecisionEntry
from slurm_energy.domain.energy import NodeReport
from slurm_energy.domain.ids import DecisionId
from slurm_energy.domain.job import EnergyMode
from slurm_energy.node.spool import Spool
from slurm_energy.wire.report import decode_report

HOOK = (sys.executable, "-m", "slurm_energy.node.main")
PASSED = ("SLURM_ENERGY_SIM_GPU_STATE",)
"""Which simulated GPUs a test means."""
LOADS = {
    "idle": "import time; time.sleep(SECONDS)",
    "matrix product": (
        "a = torch.randn(8192, 8192, device='cuda', dtype=torch.bfloat16); b = a.clone()\n"
        "while time.monotonic() < end:\n"
        "    for _ in range(20): a @ b\n"
        "    torch.cuda.synchronize()\n"
    ),
    "copy": (
        "a = torch.randn(1 << 28, device='cuda'); b = torch.empty_like(a)\n"
        "while time.monotonic() < end:\n"
        "    for _ in range(20): b.copy_(a)\n"
        "    torch.cuda.synchronize()\n"
    ),
    "half the time": (
        "a = torch.randn(8192, 8192, device='cuda', dtype=torch.bfloat16); b = a.clone()\n"
        "while time.monotonic() < end:\n"
        "    stop = time.monotonic() + 0.5\n"
        "    while time.monotonic() < stop:\n"
        "        a @ b; torch.cuda.synchronize()\n"
        "    time.sleep(0.5)\n"
    ),
}


class PowerIntegral(threading.Thread):
    """Trapezoid over NVML's power readings every 20 ms."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(daemon=True)
        self.joules = 0.0
        self.clocks: list[int] = []
        self._gpu = gpu
        self._stop_now = threading.Event()

    def run(self) -> None:
        """Read until stopped."""
        before, watts = time.monotonic(), self._gpu.power_watts()
        while not self._stop_now.wait(0.02):
            now, more = time.monotonic(), self._gpu.power_watts()
            self.joules += 0.5 * (watts + more) * (now - before)
            before, watts = now, more
            self.clocks.append(self._gpu.sm_clock_mhz())

    def stop(self) -> None:
        """End the thread."""
        self._stop_now.set()
        self.join()


def hook(verb: str, folder: Path, job_id: int) -> float:
    """Run a hook as slurmd does; return its seconds."""
    entry = DecisionEntry(decision_id=DecisionId("abcdef0123456789"), mode=EnergyMode.OBSERVE).encode()
    environment = {
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "SLURM_ENERGY_CONFIG": str(folder / "slurm-energy.toml"),
        "SLURM_JOB_ID": str(job_id),
        "SLURM_JOB_GPUS": "0",
        "SLURM_JOB_UID": "1000",
        "SLURM_JOB_RESTART_COUNT": "0",
        "SLURM_CLUSTER_NAME": "bench",
        "SLURMD_NODENAME": "n1",
        "SPANK_ENERGY_DECISION": entry,
        **{name: os.environ[name] for name in PASSED if name in os.environ},
    }
    before = time.monotonic()
    done = subprocess.run([*HOOK, verb], env=environment, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0 or done.stderr:
        print(f"{verb}: exit {done.returncode} {done.stderr}", file=sys.stderr)
    return time.monotonic() - before


def measure(gpu: Gpu, folder: Path, job_id: int, load: str, seconds: float) -> dict[str, object]:
    """Return what the hooks and NVML say of one load."""
    integral = PowerIntegral(gpu)
    first = gpu.energy_joules()
    integral.start()
    prolog_seconds = hook("prolog", folder, job_id)
    code = LOADS[load].replace("SECONDS", str(seconds))
    if load != "idle":
        code = f"import time, torch\nend = time.monotonic() + {seconds}\n" + code
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=seconds + 120)
    ran = time.monotonic() - began
    epilog_seconds = hook("epilog", folder, job_id)
    integral.stop()
    counted = gpu.energy_joules() - first
    reports = [
        decode_report(json.loads(path.read_bytes())) for path in Spool(folder / "spool" / "n1").waiting_reports()
    ]
    mine: NodeReport = next(report for report in reports if report.job_id == job_id)
    return {
        "load": load,
        "load_seconds": round(ran, 2),
        "prolog_seconds": round(prolog_seconds, 3),
        "epilog_seconds": round(epilog_seconds, 3),
        "counter_joules": round(counted, 1),
        "power_integral_joules": round(integral.joules, 1),
        "median_sm_clock_mhz": median(integral.clocks),
        "reported": [
            {name: getattr(row, name) for name in row.__slots__ if not name.startswith("_")} for row in mine.gpus
        ],
    }


def main() -> None:
    """Measure every load and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="length of each load, s")
    parser.add_argument("--output", type=Path, help="file for the JSON (default: standard output)")
    parser.add_argument("--loads", default=",".join(LOADS), help="names of loads by comma (default: %(default)s)")
    parser.add_argument("--nvml-library", default="", help="path of libnvidia-ml.so.1 (default: the system's)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, NvmlDriver(arguments.nvml_library) as driver:
        folder = Path(name)
        (folder / "slurm-energy.toml").write_text(
            f'[node]\nspool_directory = "{folder}/spool/%n"\nlog_path = "{folder}/hook.log"\nset_clocks = false\n'
            f'gpu_numbering = "index"\nnvml_library = "{arguments.nvml_library}"\n'
        )
        gpu = driver.gpus()[0]
        clocks = gpu.supported_sm_clocks_mhz()
        facts: dict[str, object] = {
            "identity": str(gpu.identity),
            "clocks_mhz": [clocks[0], clocks[-1], len(clocks)],
            "power_limit_watts": gpu.power_limit_watts(),
            "utilisation": gpu.utilisation(),
        }
        rows = []
        for number, load in enumerate(arguments.loads.split(",")):
            rows.append(measure(gpu, folder, 100 + number, load, arguments.seconds))
            print(json.dumps(rows[-1], default=str), file=sys.stderr, flush=True)
        log = folder / "hook.log"
        facts["hook_log"] = log.read_text().splitlines()[-40:] if log.exists() else []
    text = json.dumps({"gpu": facts, "loads": rows}, indent=1, default=str)
    if arguments.output is None:
        print(text)
    else:
        arguments.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
