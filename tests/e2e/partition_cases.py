"""Random partition settings and random requests on a real slurmctld, with an answerer that may say anything.

Runs inside a lab, as root, with the standard library alone: each case submits the same request twice, once with
--energy=off, once with an answer that names partitions at random, and prints every case in which Slurm then refuses or
does not start what it accepted or started before.

    partition_cases.py '{"socket": ..., "seed": 1, "count": 60, "user": "alice", "left": ["QoS="],
        "opened": false, "groups": [[["p", ["p-1", "p-2"]]]]}'

Where they are opened, jobs leave the partitions that they name open (--energy-open), and answers name any.
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

TRIES_IN_PEACE = 3
FILLER = "filler"
"""A partition of all nodes, for the jobs that keep nodes busy."""

SETTINGS: dict[str, Sequence[str]] = {
    "State=": ("UP", "UP", "UP", "UP", "UP", "DOWN", "DRAIN", "INACTIVE"),
    "AllowGroups=": ("ALL", "ALL", "ALL", "ALL", "alice", "bob", "root"),
    "AllowAccounts=": ("ALL", "ALL", "ALL", "physics", "chemistry"),
    "DenyAccounts=": ("", "", "", "physics", "chemistry"),
    "AllowQos=": ("ALL", "ALL", "ALL", "ALL", "high", "normal"),
    "DenyQos=": ("", "", "", "high", "normal"),
    "QoS=": ("", "", "", "small", "strict"),
    "AllocNodes=": ("ALL", "ALL", "ALL", "ALL", "nowhere", "HOST"),
    "MinNodes=": ("0", "0", "0", "1", "2"),
    "MaxNodes=": ("UNLIMITED", "UNLIMITED", "UNLIMITED", "1", "2"),
    "MaxCPUsPerNode=": ("UNLIMITED", "UNLIMITED", "UNLIMITED", "4", "8"),
    "MaxMemPer": ("Node=0", "Node=0", "Node=0", "Node=8000", "Node=2000", "CPU=1000", "CPU=200"),
    "DefMemPer": ("Node=0", "Node=0", "Node=0", "Node=4000", "CPU=500", "CPU=4000"),
    "MaxTime=": ("UNLIMITED", "UNLIMITED", "60", "10"),
    "DefaultTime=": ("5", "5", "5", "30", "UNLIMITED"),
    "OverTimeLimit=": ("0", "0", "10"),
    "RootOnly=": ("NO", "NO", "NO", "NO", "NO", "YES"),
    "DisableRootJobs=": ("NO", "NO", "YES"),
    "ReqResv=": ("NO", "NO", "NO", "NO", "NO", "YES"),
    "ExclusiveUser=": ("NO", "NO", "NO", "YES"),
    "LLN=": ("NO", "NO", "YES"),
    "OverSubscribe=": ("NO", "NO", "NO", "EXCLUSIVE", "YES:2", "FORCE:2"),
    "PreemptMode=": ("OFF", "OFF", "REQUEUE", "CANCEL"),
    "PriorityTier=": ("1", "1", "1", "2"),
    "PriorityJobFactor=": ("1", "1", "1", "10"),
    "TRESBillingWeights=": ("CPU=1", "CPU=1", "CPU=2,Mem=1"),
    "JobDefaults=": ("DefCpuPerGPU=1", "DefCpuPerGPU=1", "DefCpuPerGPU=6", "DefCpuPerGPU=1,DefMemPerGPU=3000"),
}
"""Beginnings and ends of what `scontrol update` reads; the first end of each is the usual one."""
QUIET = {key: values[0] for key, values in SETTINGS.items()}

OPTIONS: Sequence[tuple[float, Sequence[str]]] = (
    (0.3, ("-c 2", "-c 8", "-c 4", "-c 24")),
    (0.25, ("-N 1", "-N 2", "-N 1-2")),
    (0.2, ("-n 2", "-n 6", "-n 2 --ntasks-per-node=1")),
    (0.25, ("--mem=1000", "--mem=6000", "--mem=1000", "--mem=60000", "--mem-per-cpu=500", "--mem=0")),
    (0.7, ("-t 5", "-t 5", "-t 45", "-t 5")),
    (0.05, ("--time-min=2", "--time-min=20", "--deadline=now+1hour", "--deadline=now+2minutes")),
    (0.1, ("--exclude=FIRST", "--exclude=ALL-OF-FIRST", "-w ONE")),
    (0.1, ("--exclusive", "--oversubscribe", "--exclusive=user")),
    (0.1, ("-A physics", "-A chemistry", "-A biology")),
    (0.1, ("-q normal", "-q high", "-q strict")),
    (0.1, ("--gpus-per-task=1 -n 2", "--cpus-per-gpu=2", "--mem-per-gpu=500", "--ntasks-per-gpu=2")),
    (0.1, ("-C fast", "-C slow", "-C fast|slow", "-C fast&big", "-C nosuch", "--prefer=fast", "--prefer=big")),
    (0.05, ("-L disk:1", "-L disk:9", "-L nosuch:1")),
    (0.05, ("--begin=now+1", "--begin=now+1hour", "--hold")),
    (0.05, ("-d singleton", "-d afterany:1", "-d afterok:1")),
    (0.05, ("-a 0-1", "-a 0-3%1")),
    (0.05, ("--reservation=RESERVED", "--reservation=RESERVED", "--reservation=nosuch")),
    (0.05, ("--contiguous", "--mincpus=4", "--threads-per-core=1", "--nice=5", "--tmp=1", "--switches=1")),
    (
        0.05,
        ("--spread-job", "--use-min-nodes", "--gres-flags=enforce-binding", "--core-spec=1", "--sockets-per-node=1"),
    ),
    (0.05, ("-I",)),
    (0.05, (": --gres=gpu:1 -t 5", ": -p LAST -n 1 -t 5")),
)
GPUS = (
    *("--gres=gpu:1",) * 4, *("--gres=gpu:2",) * 2, "--gres=gpu:4", "--gpus=2", "--gpus=6", "--gpus-per-node=1",
    "--gpus-per-node=a40:2", "--gres=gpu:a100:1", "--gpus=v100:1", "--gpus-per-socket=1 --sockets-per-node=1",
    "--gres=gpu:nosuch:1", "--gres=none",
)  # fmt: skip
FEATURES = ("", "", "fast", "slow", "fast,big", "big")
HINTS = ("", "", "", "", "fast", "slow", "big", "nosuch")


@dataclass(frozen=True)
class Group:
    """Partitions that one case after the other has to itself, with their nodes."""

    partitions: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.partitions]

    @property
    def nodes(self) -> list[str]:
        return list(dict.fromkeys(node for _, nodes in self.partitions for node in nodes))

    @property
    def own_nodes(self) -> list[tuple[str, tuple[str, ...]]]:
        """The partitions without those that are made of other partitions' nodes."""
        known: set[str] = set()
        own = []
        for name, nodes in self.partitions:
            if known.isdisjoint(nodes):
                own.append((name, nodes))
            known.update(nodes)
        return own


@dataclass(frozen=True)
class Case:
    """Settings, a request and an answer."""

    number: int
    settings: dict[str, dict[str, str]]
    partitions: str
    request: list[str]
    answer: str
    prefer: str
    """The node feature that the answer names."""
    waits_in_queue: bool
    """sbatch; else salloc, which slurmctld tries to start at once."""
    features: dict[str, str]
    """Features of the nodes of each partition."""
    reserved: tuple[str, str]
    """A partition whose nodes are reserved, and for whom; empty: none."""
    busy: str
    """A partition whose nodes another job holds; empty: none."""


class Answerer:
    """Stands at the daemon's socket; the name of a job chooses its answer."""

    def __init__(self, path: str) -> None:
        self.answers: dict[str, str] = {}
        self.hints: dict[str, str] = {}
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
                name = fields.get("name", "")
                answer, hint = self.answers.get(name, ""), self.hints.get(name, "")
                body = (f"partition={answer}\n" if answer else "") + (f"prefer={hint}\n" if hint else "")
                body += "open=1\n" if answer and fields.get("energy_open") == "on" else ""
                body = "" if fields.get("energy_mode") == "off" else body
                self.named += bool(body)
                connection.sendall(
                    f"slurm-energy/1 ok\ndecision_id=abcdefgh1\nadmin_comment=energy:abcdefgh1\n{body}end\n".encode()
                )


def make_case(  # each is one thing that cases differ in
    number: int, rng: random.Random, group: Group, *, has_default: bool, left: frozenset[str], opened: bool
) -> Case:
    """Return a case: most settings are left as they are, so that many requests can run at all."""
    drawn = {key: values for key, values in SETTINGS.items() if key not in left}
    changes = rng.choice((0.0, 0.02, 0.05, 0.1))
    common = rng.sample(sorted(drawn), rng.choice((0, 0, 1, 2)))
    everywhere = {key: rng.choice(drawn[key]) for key in common}
    settings = {
        name: everywhere | {key: rng.choice(values) for key, values in drawn.items() if rng.random() < changes}
        for name in group.names
    }
    listed = rng.sample(group.names, rng.choice((1, 2, 2, 3, 3, 4)))
    partitions = "" if has_default and rng.random() < 0.4 else ",".join(listed)
    nodes = dict(group.partitions)
    marked = rng.random() < 0.4
    return Case(
        number=number,
        settings=settings,
        partitions=partitions,
        request=[*(["--energy-open"] if opened else []), *_make_request(rng, group, listed)],
        answer=_make_answer(rng, group, group.names if opened else listed),
        prefer=rng.choice(HINTS),
        waits_in_queue=rng.random() < 0.75,
        features={name: rng.choice(FEATURES) if marked else "" for name in nodes},
        reserved=(rng.choice(group.names), rng.choice(("alice", "bob"))) if rng.random() < 0.1 else ("", ""),
        busy=rng.choice(group.names) if rng.random() < 0.2 else "",
    )


def _make_request(rng: random.Random, group: Group, listed: list[str]) -> list[str]:
    request = rng.choice(GPUS).split()
    talk = rng.choice((0.1, 0.3, 1.0))  # the fewer options, the more often Slurm takes the job and the answer moves it
    for chance, choices in OPTIONS:
        if rng.random() < chance * talk:
            request += rng.choice(choices).split()
    first = dict(group.partitions)[listed[0]]
    words = {
        "ALL-OF-FIRST": ",".join(first),
        "FIRST": first[0],
        "ONE": rng.choice(group.nodes),
        "LAST": listed[-1],
        "RESERVED": f"reserved-{group.names[0]}",
    }
    for word, meaning in words.items():
        request = [text.replace(word, meaning) for text in request]
    return request


def _make_answer(rng: random.Random, group: Group, listed: list[str]) -> str:
    pool = [*group.names, *group.names, *group.names, "nosuch", "nosuch2"]
    kind = rng.random()
    if kind < 0.75:
        named = rng.sample(listed, rng.randint(1, len(listed)))
    elif kind < 0.9:
        named = rng.sample(group.names, rng.randint(1, len(group.names)))
    else:
        named = rng.sample(pool, rng.randint(1, 4))
    return ",".join(named)


class Cluster:
    """Runs Slurm's commands, those of the user as the user."""

    def __init__(self, user: str, answerer: Answerer, *, left: frozenset[str]) -> None:
        account = pwd.getpwnam(user)
        self._as_user: dict[str, Any] = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        self._home = account.pw_dir
        self.answerer = answerer
        self._left = left
        self._features: dict[str, str] = {}

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
            given = {key: value for key, value in {**QUIET, **case.settings[name]}.items() if key not in self._left}
            if given["AllocNodes="] == "HOST":
                given["AllocNodes="] = socket.gethostname().split(".")[0]
            pairs = [f"{key}{value}" for key, value in given.items()]
            self.admin("scontrol", "update", f"PartitionName={name}", *pairs)
        if default:
            self.admin("scontrol", "update", f"PartitionName={group.names[0]}", f"Default={default}")
        for name, nodes in group.own_nodes:
            if self._features.get(name, "") != case.features[name]:
                features = case.features[name]
                pair = [f"AvailableFeatures={features}", f"ActiveFeatures={features}"]
                self.admin("scontrol", "update", f"NodeName={','.join(nodes)}", *pair)
                self._features[name] = features

    @contextlib.contextmanager
    def occupied(self, case: Case, group: Group) -> Iterator[None]:
        """Reserve nodes and fill nodes as a case has it."""
        made: list[tuple[str, ...]] = []
        nodes = dict(group.partitions)
        partition, user = case.reserved
        if partition:
            name = f"reserved-{group.names[0]}"
            self.admin(
                "scontrol", "create", "reservation", f"ReservationName={name}", f"Users={user}", "StartTime=now",
                "Duration=60", f"Nodes={','.join(nodes[partition])}",
            )  # fmt: skip
            made.append(("scontrol", "delete", f"ReservationName={name}"))
        if case.busy and not partition:
            count = str(len(nodes[case.busy]))
            where = ["-p", FILLER, "-w", ",".join(nodes[case.busy]), "-N", count, "--exclusive", "--energy=off"]
            said = self.admin("sbatch", "--parsable", "-o", "/dev/null", *where, "-t", "60", "--wrap", "sleep 600")
            number = said.strip()
            started, shown = self.await_start(number, PATIENCE_SECONDS)
            assert started, shown
            made.append(("scancel", number))
        try:
            yield
        finally:
            for argv in made:
                self.admin(*argv)

    def await_idle(self, group: Group) -> None:
        """Wait until no job holds or awaits the group's nodes."""
        end = time.monotonic() + PATIENCE_SECONDS
        nodes = ",".join(group.nodes)
        while True:
            states = self.admin("sinfo", "-h", "-N", "-n", nodes, "-o", "%T").split()
            if set(states) <= {"idle", "reserved"}:
                return
            for word in ("drain", "down", "fail"):
                assert not any(word in state for state in states), states
            assert time.monotonic() < end, f"{nodes} stay {sorted(set(states))}"
            time.sleep(0.05)

    def try_once(self, case: Case, *, off: bool, patience: float) -> tuple[bool, bool, str]:
        """Return whether Slurm accepted and started a request, and what it said."""
        name = f"case-{case.number}"
        self.answerer.answers[name] = case.answer
        self.answerer.hints[name] = case.prefer
        argv = ["-J", name, *(["-p", case.partitions] if case.partitions else []), *case.request]
        argv = ["--energy=off", *argv] if off else argv
        if ":" in argv:
            # Each component is a submission of its own, with its own name and its own options.
            at = argv.index(":") + 1
            argv[at:at] = ["-J", name, *(["--energy=off"] if off else [])]
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
        started, said = self.await_start(number, patience)
        self.admin("scancel", number, check=False)
        return True, started, said

    def await_start(self, number: str, seconds: float) -> tuple[bool, str]:
        """Return whether no part of a job waits, at the latest after so many seconds, and what Slurm shows of it."""
        end = time.monotonic() + seconds
        while True:
            shown = self.admin("scontrol", "show", "job", "-o", number, check=False)
            if "JobState=PENDING" not in shown:
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
    with cluster.occupied(case, group):
        without = cluster.try_once(case, off=True, patience=SETTLE_SECONDS)
    if not without[0]:
        return "refused", None
    cluster.await_idle(group)
    outcome = "started" if without[1] else "waited"
    with cluster.occupied(case, group):
        answered = cluster.try_once(case, off=False, patience=PATIENCE_SECONDS if without[1] else 0.0)
    comment = re.search(r"AdminComment=(.*)", answered[2])
    if without[1] and case.waits_in_queue and comment is None:
        outcome += " without an answer"
    elif comment is not None and "kept" not in comment[1] and is_another_order(case, group):
        outcome += " with the answer's order"
    if answered[0] and (answered[1] or not without[1]):
        return outcome, None
    return outcome, {"case": case.__dict__, "default": default, "without": without, "with": answered}


Place = tuple[Case, Group, str]
"""A case with the partitions it has, and whether the first of them is the default one."""


def place_of(number: int, seed: object, groups: list[Group], left: frozenset[str], *, opened: bool) -> Place:
    """Return a case by its number."""
    group = groups[number % len(groups)]
    owns_default = group is groups[0]
    rng = random.Random(f"{seed}-{number}")
    default = rng.choice(("YES", "YES", "NO")) if owns_default else ""
    return make_case(number, rng, group, has_default=owns_default, left=left, opened=opened), group, default


def main() -> None:
    """Run the cases that the argument describes and print one JSON line of counts and failures."""
    given = json.loads(sys.argv[1])
    answerer = Answerer(given["socket"])
    left, opened = frozenset(given["left"]), bool(given.get("opened"))
    cluster = Cluster(given["user"], answerer, left=left)
    groups = [Group(tuple((name, tuple(nodes)) for name, nodes in group)) for group in given["groups"]]
    numbers = [int(number) for number in given.get("numbers", range(given["count"]))]
    counts: dict[str, int] = {}
    failed: list[Place] = []

    def work(mine: list[Place]) -> None:
        for place in mine:
            outcome, failure = run_case(cluster, *place)
            counts[outcome] = counts.get(outcome, 0) + 1
            if failure is not None:
                failed.append(place)

    places = [
        [
            place_of(number, given["seed"], groups, left, opened=opened)
            for number in numbers
            if number % len(groups) == at
        ]
        for at in range(len(groups))
    ]
    with ThreadPoolExecutor(len(groups)) as pool:
        list(pool.map(work, places))
    # What waits in one group makes slurmctld test a job of another instead of starting it: in peace each has its
    # own three tries, in which none may fail.
    again = [run_case(cluster, *place)[1] for place in failed for _ in range(TRIES_IN_PEACE)]
    failures = [failure for failure in again if failure is not None]
    print(json.dumps({"counts": counts, "named": answerer.named, "tried_again": len(failed), "failures": failures}))


if __name__ == "__main__":
    main()
