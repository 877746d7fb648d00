"""Measure submission, decision and hooks in laboratory clusters on this machine, and write the page of figures.

Absolute times depend on the machine; ratios of things measured in turn in one run are what counts.
"""

import argparse
import compileall
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path
from statistics import median, quantiles

from scipy.stats import bootstrap

import slurm_energy
from slurm_energy.lab.cluster import Lab, LabSpec, PartitionSpec, start_lab
from slurm_energy.resources import shared_directory
from slurm_energy.wire.client import exchange
from slurm_energy.wire.codec import Message

PARTITIONS = (PartitionSpec(name="a100", nodes=1, gpus_per_node=4),)
SUBMISSIONS = 300
UNCOUNTED = 6
EXCHANGES = 2000
HOOK_RUNS = 60
JOB_SECONDS = 1.0
REAL_TIME_PRIORITY = 10
_ORDERS = tuple(permutations(range(3)))

# Runs inside a lab: prints the seconds of each of N submissions, read by the alternating loop below.
_SUBMIT_ONE = """
import subprocess, sys, time
for line in sys.stdin:
    begin = time.perf_counter()
    subprocess.run(["sbatch", "--parsable", "--hold", "-o", "/dev/null", "--gres=gpu:1", "-t", "5", "-J", line.strip(),
                    "--wrap", "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    print(time.perf_counter() - begin, flush=True)
"""


_HOW = """\
How: three laboratory clusters run side by side, one with the plugin and two without; held jobs are submitted to the
three in turn by a process already inside, which waits for each; each cluster is as often the first of a round. The
*control* is the second cluster without the plugin against the first: what is measured where nothing differs. Brackets
are 95 % bootstrap intervals of the median. Equal jobs of
one user are answered by the plugin itself for a second after the daemon has decided on one of them, and the daemon is
notified: with several pairs a second, hardly one of them waits for Python. Jobs that differ (here each has a name of
its own) are sent to the daemon one by one; it gives one that differs in its name alone the answer of the like job
before it. Decisions go over the unix socket from one running client, one connection each. Hooks are whole processes,
interpreter start included; the simulated NVML answers in microseconds, so nearly all of it is beyond the NVML calls (a
real counter read takes about 4 ms). In it are two waits for the disk (fsync) in prolog and epilog each, and the start
of the sampler. The flush hook is off the job's path; here it also looks at the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured quantity, in milliseconds unless the unit says otherwise."""

    thing: str
    runs: int
    p50: float
    interval: tuple[float, float] | None = None
    """Of the median, 95 %."""
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

    def submit(self, name: str) -> float:
        """Submit one held job of a name and return the seconds sbatch took."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(timeout=10)


def measure_submission(plain: Lab, control: Lab, energy: Lab, *, equal: bool) -> list[Figure]:
    """Return sbatch's time without and with the plugin, taken in turn, and their ratio, for equal or differing jobs."""
    submitters = [Submitter(lab) for lab in (plain, control, energy)]
    times: list[list[float]] = [[] for _ in submitters]
    try:
        for number in range(SUBMISSIONS + UNCOUNTED):
            # What one leaves to be done is done while the next is measured: every order comes as often.
            for which in _ORDERS[number % len(_ORDERS)]:
                took = submitters[which].submit("bench" if equal else f"bench-{number}")
                if number >= UNCOUNTED:
                    times[which].append(took)
    finally:
        for submitter in submitters:
            submitter.close()
    jobs = "equal jobs" if equal else "jobs that differ in name, each sent to the daemon"
    return [
        figure(f"sbatch, without the plugin, {jobs}", times[0]),
        figure(f"sbatch, with the plugin, {jobs}", times[2]),
        ratio(f"ratio with / without, pair by pair, {jobs}", times[0], times[2], goal="≤ 1.10" if equal else ""),
        ratio(f"control: ratio without / without, {jobs}", times[0], times[1]),
    ]


def ratio(thing: str, without: list[float], compared: list[float], goal: str = "") -> Figure:
    """Return the median of ratios, pair by pair, with its interval."""
    ratios = [mine / base for base, mine in zip(without, compared, strict=True)]
    found = bootstrap((ratios,), median, n_resamples=2000, method="percentile", vectorized=False, random_state=1)
    return Figure(
        thing=thing, runs=len(ratios), p50=median(ratios), interval=tuple(found.confidence_interval), unit="", goal=goal
    )


def measure_decisions(lab: Lab) -> list[Figure]:
    """Return the round trip of a decision over the daemon's socket, from a client that is already running."""
    request = Message(
        "decide",
        {
            "client": "benchmark",
            "uid": "1000",
            "gid": "1000",
            "name": "bench",
            "time_limit": "5",
            "min_nodes": "1",
            "tres_per_node": "gres:gpu:1",
        },
    )
    seconds = []
    for number in range(EXCHANGES + 100):
        begin = time.perf_counter()
        answer = exchange(lab.layout.plugin_socket, request, 0.5)
        took = time.perf_counter() - begin
        assert answer.verb == "ok", answer
        if number >= 100:
            seconds.append(took)
    return [figure("decision, round trip over the socket", seconds, "p99 ≤ 50 ms, the plugin's deadline")]


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
        low_high = "" if item.interval is None else " [{:.2f}, {:.2f}]".format(*item.interval)
        lines.append(f"| {item.thing} | {item.runs} | {item.p50:.2f}{low_high} | {p99} | {item.unit} | {item.goal} |")
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
        figures = [
            *measure_submission(plain, control, energy, equal=True),
            *measure_submission(plain, control, energy, equal=False),
        ]
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
