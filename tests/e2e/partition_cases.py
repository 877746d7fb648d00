"""Random partition settings and random requests on a real slurmctld, with an answerer that may say anything.

Runs inside a lab, as root, with the standard library alone: each case submits the same request twice, once with
--energy=off, once with an answer that names partitions at random, and prints every case in which Slurm then refuses or
does not start what it accepted or started before.

    partition_cases.py '{"socket": ..., "seed": 1, "count": 60, "user": "alice", "groups": [[["p", ["p-1", "p-2"]]]]}'
"""

import contextlib
import json
import pwd
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SETTLE_SECONDS = 2.5
"""A job that slurmctld could start on idle nodes has started by then, or counts as one that it would not start."""
PATIENCE_SECONDS = 45.0
"""How long a job may take that is known to start; a busy machine may be slow."""

SETTINGS: dict[str, Sequence[str]] = {
    "State": ("UP", "UP", "UP", "UP", "UP", "DOWN", "DRAIN", "INACTIVE"),
    "AllowGroups": ("ALL", "ALL", "ALL", "ALL", "alice", "bob", "root"),
    "AllowAccounts": ("ALL", "ALL", "ALL", "physics", "chemistry"),
    "AllowQos": ("ALL", "ALL", "ALL", "ALL", "high"),
    "AllocNodes": ("ALL", "ALL", "ALL", "ALL", "nowhere", "HOST"),
    "MinNodes": ("0", "0", "0", "1", "2"),
    "MaxNodes": ("UNLIMITED", "UNLIMITED", "UNLIMITED", "1", "2"),
    "MaxCPUsPerNode": ("UNLIMITED", "UNLIMITED", "UNLIMITED", "4", "8"),
    "MaxMemPerNode": ("0", "0", "0", "8000", "2000"),
    "DefMemPerNode": ("0", "0", "0", "4000"),
    "MaxTime": ("UNLIMITED", "UNLIMITED", "60", "10"),
    "DefaultTime": ("5", "5", "5", "30", "UNLIMITED"),
    "RootOnly": ("NO", "NO", "NO", "NO", "NO", "YES"),
    "ReqResv": ("NO", "NO", "NO", "NO", "NO", "YES"),
    "ExclusiveUser": ("NO", "NO", "NO", "YES"),
    "OverSubscribe": ("NO", "NO", "NO", "EXCLUSIVE", "YES:2"),
    "PriorityTier": ("1", "1", "1", "2"),
    "PriorityJobFactor": ("1", "1", "1", "10"),
    "JobDefaults": ("DefCpuPerGPU=1", "DefCpuPerGPU=1", "DefCpuPerGPU=6"),
}
QUIET = {key: values[0] for key, values in SETTINGS.items()}

OPTIONS: Sequence[tuple[float, Sequence[str]]] = (
    (0.3, ("-c 2", "-c 8", "-c 4", "-c 24")),
    (0.25, ("-N 1", "-N 2", "-N 1-2")),
    (0.2, ("-n 2", "-n 6", "-n 2 --ntasks-per-node=1")),
    (0.25, ("--mem=1000", "--mem=6000", "--mem=1000", "--mem=60000", "--mem-per-cpu=500", "--mem=0")),
    (0.7, ("-t 5", "-t 5", "-t 45", "-t 5")),
    (0.05, ("--time-min=2", "--time-min=20")),
    (0.1, ("--exclude=FIRST", "--exclude=ALL-OF-FIRST", "-w ONE")),
    (0.1, ("--exclusive", "--oversubscribe")),
    (0.1, ("-A physics", "-A chemistry", "-A biology")),
    (0.1, ("--gpus-per-task=1 -n 2", "--cpus-per-gpu=2", "--mem-per-gpu=500")),
    (0.05, ("--contiguous", "--mincpus=4", "--threads-per-core=1", "--nice=5")),
)
GPUS = ("--gres=gpu:1", "--gres=gpu:1", "--gres=gpu:2", "--gpus=2", "--gres=gpu:4")


@dataclass(frozen=True)
class Group:
    """Partitions that one case after the other has to itself, with their nodes."""

    partitions: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.partitions]

    @property
    def nodes(self) -> list[str]:
        return [node for _, nodes in self.partitions for node in nodes]


@dataclass(frozen=True)
class Case:
    """Settings, a request and an answer."""

    number: int
    settings: dict[str, dict[str, str]]
    partitions: str
    request: list[str]
    answer: str
    waits_in_queue: bool
    """sbatch; else salloc, which slurmctld tries to start at once."""


class Answerer:
    """Stands at the daemon's socket; the name of a job chooses its answer."""

    def __init__(self, path: str) -> None:
        self.answers: dict[str, str] = {}
        Path(path).unlink(missing_ok=True)
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(path)
        Path(path).chmod(0o666)
        self._server.listen(64)
        self.named = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._server.accept()
            with connection, contextlib.suppress(OSError):
                asked = b""
                while not asked.endswith(b"\nend\n") and (more := connection.recv(65_536)):
                    asked += more
                fields = dict(line.partition("=")[::2] for line in asked.decode().splitlines())
                answer = self.answers.get(fields.get("name", ""), "")
                body = "" if not answer or fields.get("energy_mode") == "off" else f"partition={answer}\n"
                self.named += bool(body)
                connection.sendall(
                    f"slurm-energy/1 ok\ndecision_id=abcdefgh1\nadmin_comment=energy:abcdefgh1\n{body}end\n".encode()
                )


def make_case(number: int, rng: random.Random, group: Group, *, has_default: bool) -> Case:
    """Return a case: most settings are left as they are, so that many requests can run at all."""
    changes = rng.choice((0.0, 0.02, 0.05, 0.1))
    common = rng.sample(sorted(SETTINGS), rng.choice((0, 0, 1, 2)))
    everywhere = {key: rng.choice(SETTINGS[key]) for key in common}
    settings = {
        name: everywhere | {key: rng.choice(values) for key, values in SETTINGS.items() if rng.random() < changes}
        for name in group.names
    }
    listed = rng.sample(group.names, rng.choice((1, 2, 2, 3, 3)))
    partitions = "" if has_default and rng.random() < 0.4 else ",".join(listed)
    request = [rng.choice(GPUS)]
    for chance, choices in OPTIONS:
        if rng.random() < chance:
            request += rng.choice(choices).split()
    first = dict(group.partitions)[listed[0]]
    one = rng.choice(group.nodes)
    request = [
        text.replace("ALL-OF-FIRST", ",".join(first)).replace("FIRST", first[0]).replace("ONE", one) for text in request
    ]
    pool = [*group.names, *group.names, *group.names, "nosuch", "nosuch2"]
    kind = rng.random()
    if kind < 0.6:
        named = rng.sample(listed, rng.randint(1, len(listed)))
    elif kind < 0.85:
        named = rng.sample(group.names, rng.randint(1, len(group.names)))
    else:
        named = rng.sample(pool, rng.randint(1, 4))
    return Case(number, settings, partitions, request, ",".join(named), rng.random() < 0.75)


class Cluster:
    """Runs Slurm's commands, those of the user as the user."""

    def __init__(self, user: str, answerer: Answerer) -> None:
        account = pwd.getpwnam(user)
        self._as_user: dict[str, Any] = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        self._home = account.pw_dir
        self.answerer = answerer

    def admin(self, *argv: str, check: bool = True) -> str:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0 or not check, (argv, done.stdout, done.stderr)
        return done.stdout

    def user(self, argv: list[str], seconds: float) -> tuple[int, str]:
        with subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self._home, **self._as_user
        ) as process:
            try:
                return process.wait(seconds), process.communicate()[0]
            except subprocess.TimeoutExpired:
                process.terminate()
                return 124, process.communicate()[0]

    def configure(self, case: Case, group: Group, *, default: str) -> None:
        """Give the partitions the settings of a case, and those that it does not name their usual ones."""
        for name in group.names:
            given = {**QUIET, **case.settings[name]}
            if given["AllocNodes"] == "HOST":
                given["AllocNodes"] = socket.gethostname().split(".")[0]
            done = subprocess.run(
                ["scontrol", "update", f"PartitionName={name}", *(f"{key}={value}" for key, value in given.items())],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, (given, done.stderr)
        if default:
            self.admin("scontrol", "update", f"PartitionName={group.names[0]}", f"Default={default}")

    def await_idle(self, group: Group) -> None:
        """Wait until no job holds or awaits the group's nodes."""
        end = time.monotonic() + PATIENCE_SECONDS
        nodes = ",".join(group.nodes)
        while True:
            states = self.admin("sinfo", "-h", "-N", "-n", nodes, "-o", "%T").split()
            if set(states) == {"idle"}:
                return
            for word in ("drain", "down", "fail"):
                assert not any(word in state for state in states), states
            assert time.monotonic() < end, f"{nodes} stay {sorted(set(states))}"
            time.sleep(0.05)

    def try_once(self, case: Case, *, off: bool, patience: float) -> tuple[bool, bool, str]:
        """Return whether Slurm accepted and started a request, and what it said."""
        name = f"case-{case.number}"
        self.answerer.answers[name] = case.answer
        argv = ["-J", name, *(["-p", case.partitions] if case.partitions else []), *case.request]
        argv += ["--energy=off"] if off else []
        if not case.waits_in_queue:
            code, said = self.user(["salloc", "--no-shell", *argv], max(patience, SETTLE_SECONDS))
            job = re.search(r"job allocation (\d+)", said)
            accepted = job is not None
            if job is not None:
                self.admin("scancel", job[1], check=False)
            return accepted, code == 0, said
        code, said = self.user(
            ["sbatch", "--parsable", "-o", "/dev/null", *argv, "--wrap", "sleep 60"], PATIENCE_SECONDS
        )
        if code != 0:
            return False, False, said
        number = said.split()[-1]
        started, said = self._await_start(number, patience)
        self.admin("scancel", number, check=False)
        return True, started, said

    def _await_start(self, number: str, seconds: float) -> tuple[bool, str]:
        end = time.monotonic() + seconds
        while True:
            shown = self.admin("scontrol", "show", "job", "-o", number, check=False)
            state = re.search(r"JobState=(\w+)", shown)
            if state is None or state[1] not in {"PENDING"}:
                return True, shown
            if time.monotonic() > end:
                return False, shown
            time.sleep(0.05)


def is_another_order(case: Case, group: Group) -> bool:
    """Return whether the answer puts the partitions of the job into another order, or adds some."""
    own = case.partitions.split(",") if case.partitions else group.names[:1]
    return list(dict.fromkeys([*case.answer.split(","), *own])) != own


def run_case(cluster: Cluster, case: Case, group: Group, default: str) -> tuple[str, dict[str, object] | None]:
    """Return what Slurm does by itself, and the failure of a case, None if there is none."""
    cluster.configure(case, group, default=default)
    cluster.await_idle(group)
    without = cluster.try_once(case, off=True, patience=SETTLE_SECONDS)
    if not without[0]:
        return "refused", None
    cluster.await_idle(group)
    outcome = "started" if without[1] else "waited"
    answered = cluster.try_once(case, off=False, patience=PATIENCE_SECONDS if without[1] else 0.0)
    comment = re.search(r"AdminComment=(.*)", answered[2])
    if comment is not None and "kept" not in comment[1] and is_another_order(case, group):
        outcome += " with the answer's order"
    if answered[0] and (answered[1] or not without[1]):
        return outcome, None
    return outcome, {"case": case.__dict__, "default": default, "without": without, "with": answered}


def run_group(cluster: Cluster, group: Group, seed: int, numbers: list[int], *, owns_default: bool) -> Iterator[Any]:
    """Run some cases one after the other."""
    for number in numbers:
        rng = random.Random(f"{seed}-{number}")
        default = rng.choice(("YES", "YES", "NO")) if owns_default else ""
        yield run_case(cluster, make_case(number, rng, group, has_default=owns_default), group, default)


def main() -> None:
    """Run the cases that the argument describes and print one JSON line of counts and failures."""
    given = json.loads(sys.argv[1])
    answerer = Answerer(given["socket"])
    cluster = Cluster(given["user"], answerer)
    groups = [Group(tuple((name, tuple(nodes)) for name, nodes in group)) for group in given["groups"]]
    numbers = [int(number) for number in given.get("numbers", range(given["count"]))]
    counts: dict[str, int] = {}
    failures: list[object] = []

    def work(place: int) -> None:
        mine = [number for number in numbers if number % len(groups) == place]
        for outcome, failure in run_group(cluster, groups[place], given["seed"], mine, owns_default=place == 0):
            counts[outcome] = counts.get(outcome, 0) + 1
            if failure is not None:
                failures.append(failure)

    with ThreadPoolExecutor(len(groups)) as pool:
        list(pool.map(work, range(len(groups))))
    print(json.dumps({"counts": counts, "named": answerer.named, "failures": failures}))


if __name__ == "__main__":
    main()
