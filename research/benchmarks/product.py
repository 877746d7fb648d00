"""Measure submission, decision and hooks in laboratory clusters on this machine, and write the page of figures.

Absolute times depend on the machine; ratios of things measured in turn in one run are what counts.
"""

import argparse
import compileall
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles

import slurm_energy
from slurm_energy.errors import LabError
from slurm_energy.lab.cluster import Lab, LabSpec, PartitionSpec, start_lab
from slurm_energy.resources import shared_directory
from slurm_energy.wire.client import exchange
from slurm_energy.wire.codec import Message

PARTITIONS = (PartitionSpec(name="a100", nodes=1, gpus_per_node=4),)
SUBMISSIONS = 300
UNCOUNTED = 5
EXCHANGES = 2000
HOOK_RUNS = 60
JOB_SECONDS = 1.0
REAL_TIME_PRIORITY = 10
RESAMPLES = 2000
SEED = 1
LOAD_SECONDS = 120.0

EQUAL = "equal jobs"
OTHER_NAMES = "jobs that differ in name"
OTHER_LIMITS = "jobs that differ in time limit, each decided by the daemon"

REQUEST = Message(
    "decide",
    {
        "client": "benchmark",
        "uid": "1000",
        "gid": "1000",
        "name": "bench",
        "time_limit": "5",
        "min_nodes": "1",
        "tres_per_node": "gres:gpu:1",
        "held": "1",
    },
)

# Runs inside a lab: prints the seconds of each of N submissions, read by the alternating loop below.
_SUBMIT_ONE = """
import subprocess, sys, time
for line in sys.stdin:
    begin = time.perf_counter()
    name, minutes = line.split()
    subprocess.run(["sbatch", "--parsable", "--hold", "-o", "/dev/null", "--gres=gpu:1", "-t", minutes, "-J", name,
                    "--wrap", "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    print(time.perf_counter() - begin, flush=True)
"""


_HOW = """\
How: three laboratory clusters run side by side, two without the plugin and one with it; held jobs are submitted to
the three in turn by a process already inside, which waits for each; each cluster is the first as often as the others.
The policy's network is loaded before. A ratio is that of two submissions of one turn; the interval holds 95 % of the
medians of 2,000 samples drawn from the turns with replacement. The ratio of the two clusters without the plugin shows
how far such a figure is from 1 by chance. Equal jobs of one user, and jobs that differ in a name that has no earlier
runs, are answered by the plugin itself for a second after the daemon has decided on one of them, and the daemon is
notified. Jobs that differ otherwise (here each has a time limit of its own) are decided by the daemon one by one:
that is the whole wait for a Python process, and their ratio misses the goal. A decision is 0.3 ms of CPU by tables and
0.6 to 0.9 ms by the default policy while its code is warm; the rest is waking the process and caches that are cold by
then. Decisions go over the unix socket from one running client, one connection each. Hooks are whole processes,
interpreter start included; the simulated NVML answers in microseconds, so nearly all of it is beyond
the NVML calls (a real counter read takes about 4 ms). In it are two waits for the disk (fsync) in
prolog and epilog each, and the start of the sampler. The flush hook is off the job's path; here it also looks at the
node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured quantity, in milliseconds unless the unit says otherwise."""

    thing: str
    runs: int
    p50: float
    p99: float | None = None
    unit: str = "ms"
    goal: str = ""


def figure(thing: str, seconds: list[float], goal: str = "") -> Figure:
    """Return median and 99th percentile of some durations."""
    p99 = quantiles(seconds, n=100)[98] if len(seconds) >= 20 else max(seconds)
    return Figure(thing=thing, runs=len(seconds), p50=1e3 * median(seconds), p99=1e3 * p99, goal=goal)


class Submitter:
    """A process inside a lab that submits once when it is asked to."""

    def __init__(self, lab: Lab) -> None:
        argv, environment = lab.command([sys.executable, "-c", _SUBMIT_ONE], user="alice")
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def submit(self, name: str, minutes: int) -> float:
        """Submit one held job of a name and a time limit and return the seconds sbatch took."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{name} {minutes}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(timeout=10)


def interval(values: list[float], draws: random.Random) -> tuple[float, float]:
    """Return between what 95 % of the medians lie of samples drawn from some values with replacement."""
    medians = sorted(median(draws.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[round(0.025 * RESAMPLES)], medians[round(0.975 * RESAMPLES) - 1]


def measure_submission(plain: Lab, control: Lab, energy: Lab, jobs: str) -> list[Figure]:
    """Return sbatch's time without and with the plugin, taken in turn, and their ratio, for one kind of jobs."""
    submitters = [Submitter(plain), Submitter(control), Submitter(energy)]
    times: list[list[float]] = [[], [], []]
    draws = random.Random(SEED)
    try:
        for number in range(SUBMISSIONS + UNCOUNTED):
            name = f"bench-{number}" if jobs == OTHER_NAMES else "bench"
            minutes = 5 + number if jobs == OTHER_LIMITS else 5
            # What one leaves to be done is done while another is measured: by chance, it is now this one, now that.
            for which in draws.sample(range(3), 3):
                took = submitters[which].submit(name, minutes)
                if number >= UNCOUNTED:
                    times[which].append(took)
    finally:
        for submitter in submitters:
            submitter.close()
    figures = [
        figure(f"sbatch, without the plugin, {jobs}", times[0]),
        figure(f"sbatch, with the plugin, {jobs}", times[2]),
    ]
    for thing, measured, goal in (
        ("with / without", times[2], "≤ 1.10"),
        ("without / without (control)", times[1], ""),
    ):
        ratios = [one / other for one, other in zip(measured, times[0], strict=True)]
        low, high = interval(ratios, draws)
        figures.append(
            Figure(
                thing=f"ratio {thing}, turn by turn, {jobs}",
                runs=len(ratios),
                p50=median(ratios),
                unit=f"95 %: {low:.2f} to {high:.2f}",
                goal=goal,
            )
        )
    return figures


def wait_for_network(lab: Lab) -> None:
    """Return once the policy's network is loaded: until then the answers are others, and loading takes a processor.

    Raises:
        LabError: it is not loaded in time.
    """
    end = time.monotonic() + LOAD_SECONDS
    while "reuse_milliseconds" not in exchange(lab.layout.plugin_socket, REQUEST, 0.5).fields:
        if time.monotonic() > end:
            raise LabError(f"the policy of lab {lab.name} is not loaded after {LOAD_SECONDS:g} s: see {lab.layout.log}")
        time.sleep(0.1)


def measure_decisions(lab: Lab) -> list[Figure]:
    """Return the round trip of a decision over the daemon's socket, from a client that is already running."""
    seconds = []
    for number in range(EXCHANGES + 100):
        begin = time.perf_counter()
        answer = exchange(lab.layout.plugin_socket, REQUEST, 0.5)
        took = time.perf_counter() - begin
        assert answer.verb == "ok", answer
        if number >= 100:
            seconds.append(took)
    thing = "decision as on a like job, round trip over the socket"
    return [figure(thing, seconds, "p99 ≤ 50 ms, the plugin's deadline")]


def installed_hook(folder: Path) -> list[str]:
    """Install the package as nodes have it, compiled and in a virtual environment; return how slurmd starts a hook."""
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python3*/site-packages"))
    shutil.copytree(Path(slurm_energy.__file__).parent, packages / "slurm_energy")
    compileall.compile_dir(packages, quiet=2)
    script = (shared_directory("plugin") / "hook" / "slurm-energy.sh").read_text(encoding="utf-8")
    start = script.partition("START='")[2].partition("'")[0]
    return [str(folder / "bin" / "python"), "-I", "-S", "-c", start]


def measure_hooks(lab: Lab, hook: list[str]) -> list[Figure]:
    """Return the whole wall time of each hook process on an idle node with two GPUs, NVML calls included."""
    seconds: dict[str, list[float]] = {"interpreter alone": [], "prolog": [], "epilog": [], "flush": []}
    base = {"SLURMD_NODENAME": lab.spec.node_names[0], "SLURM_CLUSTER_NAME": lab.spec.cluster_name}
    script = (
        "import subprocess,sys,time,json,os\n"
        "t=time.perf_counter(); r=subprocess.run(json.loads(sys.argv[1]),env=json.loads(sys.argv[2]),"
        "stdout=subprocess.DEVNULL,stderr=subprocess.DEVNULL); print(time.perf_counter()-t, r.returncode)"
    )
    for number in range(HOOK_RUNS):
        job = {
            **base,
            "SLURM_CONF": str(lab.layout.slurm_conf),
            "SLURM_JOB_ID": str(900_000 + number),
            "SLURM_JOB_UID": "1000",
            "SLURM_JOB_GPUS": "0,1",
            "SLURM_JOB_PARTITION": "a100",
            "SLURM_JOB_RESTART_COUNT": "0",
            "SPANK_ENERGY_DECISION": "v=1;id=benchmark01;mode=balanced;clocks=a100-sxm4-80gb:1290;limit=5",
        }
        for verb, taken in seconds.items():
            argv = [*hook[:-1], "pass"] if verb.startswith("inter") else [*hook, verb]
            done = lab.run([sys.executable, "-c", script, json.dumps(argv), json.dumps(job)], check=True)
            took, code = done.stdout.split()
            assert code == "0", done
            taken.append(float(took))
            if verb == "prolog":
                time.sleep(JOB_SECONDS)  # no job is so short that its epilog meets its sampler's start
    found = []
    for verb, took_list in seconds.items():
        goal = "≤ 80 ms beyond the NVML calls" if verb in {"prolog", "epilog"} else ""
        found.append(figure(verb if verb.startswith("inter") else f"{verb} hook, whole process", took_list, goal))
    return found


def take_real_time_priority() -> bool:
    """Give this process and all that it starts a real-time priority, so that other load counts less; return whether."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(REAL_TIME_PRIORITY))
    except OSError:
        return False
    return True


def page(figures: list[Figure], slurm_version: str, *, real_time: bool) -> str:
    """Return the Markdown page."""
    machine = f"{os.cpu_count()} CPU cores; Python {platform.python_version()}; {slurm_version}"
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`. Times are wall times on the machine below; read ratios first. Of their own are the",
        "pages on [decisions and the daemon's memory](benchmarks-decision.md), the same for [a network of",
        "options](benchmarks-decision-options.md), [sampling](benchmarks-sampling.md) and [the",
        "simulator](benchmarks-twin.md).",
        "",
        f"- Date: {datetime.now(UTC):%Y-%m-%d}; {machine}; simulated GPUs; "
        + ("all processes at real-time priority." if real_time else "at the usual priority."),
        "",
        "| what | runs | p50 | p99 | unit | goal |",
        "|---|---:|---:|---:|---|---|",
    ]
    for item in figures:
        p99 = "" if item.p99 is None else f"{item.p99:.2f}"
        lines.append(f"| {item.thing} | {item.runs} | {item.p50:.2f} | {p99} | {item.unit} | {item.goal} |")
    lines += [
        "",
        _HOW,
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """Measure everything and print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="file to write the page to")
    arguments = parser.parse_args()

    def tell(step: str) -> None:
        print(f"bench: {step}", file=sys.stderr)

    real_time = take_real_time_priority()
    tell("starting three laboratory clusters" + (" at real-time priority" if real_time else ""))
    with (
        start_lab(LabSpec(name="bench-plain", partitions=PARTITIONS, energy=False), owned=True) as plain,
        start_lab(LabSpec(name="bench-control", partitions=PARTITIONS, energy=False), owned=True) as control,
        start_lab(LabSpec(name="bench-energy", partitions=PARTITIONS), owned=True) as energy,
    ):
        tell("submissions in turn")
        wait_for_network(energy)
        figures = []
        for jobs in (EQUAL, OTHER_NAMES, OTHER_LIMITS):
            figures += measure_submission(plain, control, energy, jobs)
        tell("decisions")
        figures += measure_decisions(energy)
        tell("hooks")
        with tempfile.TemporaryDirectory(prefix="slurm-energy-bench-", dir=energy.directory) as folder:
            figures += measure_hooks(energy, installed_hook(Path(folder) / "venv"))
        version = energy.run(["sinfo", "--version"], check=True).stdout.strip()
    text = page(figures, version, real_time=real_time)
    print(text)
    if arguments.write:
        arguments.write.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
