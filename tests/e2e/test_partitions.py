"""No job is refused or waits because of an answer: partitions on a real slurmctld, whatever the answer names."""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from energy_lab import until
from lab_fixtures import PATIENT, lab_spec, require_lab
from partition_cases import FILLER, Answerer

from slurm_energy.cli.installing.plan import Installation
from slurm_energy.cli.installing.roles import LUA_SCRIPT, InstallOptions
from slurm_energy.config import load_config
from slurm_energy.lab.cluster import Lab, PartitionSpec, start_lab
from slurm_energy.lab.jobs import show_job, submit, wait_for

pytestmark = pytest.mark.lab

PARTITIONS = (
    PartitionSpec(name="a100", nodes=2, gpus_per_node=4),
    PartitionSpec(name="a40", nodes=2, gpus_per_node=4),
    PartitionSpec(name="v100", nodes=1, gpus_per_node=4),
)
NO_HOOKS = ("Prolog=/bin/true", "Epilog=/bin/true")
"""What these tests look at is over when a job starts."""
LIST = ("-p", "a100,a40", "--gres=gpu:1", "-t", "5")
PLUGIN = Path(__file__).parents[2] / "plugin"
CASES_VARIABLE = "SLURM_ENERGY_PARTITION_CASES"
"""How many random cases; 1,000 take about ten minutes on two cores."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Lab]:
    """A lab with the plugin and without a daemon."""
    require_lab(energy=True)
    spec = lab_spec(
        name=f"order-{os.getpid()}",
        partitions=PARTITIONS,
        daemon=False,
        slurm_conf_lines=NO_HOOKS,
        plugin_settings=PATIENT,
    )
    with start_lab(spec, owned=True) as running:
        yield running


@pytest.fixture(scope="module")
def answerer(slurm: Lab) -> Answerer:
    """Who stands in for the daemon."""
    return Answerer(str(slurm.layout.plugin_socket))


@contextlib.contextmanager
def changed(lab: Lab, partition: str, **settings: str) -> Iterator[None]:
    """Change settings of a partition, and take them back."""
    usual = {
        "State": "UP", "MaxCPUsPerNode": "UNLIMITED", "MaxMemPerNode": "0", "MinNodes": "0", "AllocNodes": "ALL",
        "AllowGroups": "ALL", "DefaultTime": "60", "PriorityTier": "1", "RootOnly": "NO",
    }  # fmt: skip

    def update(values: dict[str, str]) -> None:
        pairs = [f"{key}={value}" for key, value in values.items()]
        lab.run(["scontrol", "update", f"PartitionName={partition}", *pairs], check=True)

    update(settings)
    try:
        yield
    finally:
        update({key: usual[key] for key in settings})


def started_in(lab: Lab, answerer: Answerer, answer: str, arguments: Sequence[str]) -> str:
    """Submit with an answer, and return where the job started."""
    answerer.answers["asked"] = answer
    job = submit(lab, ["-J", "asked", *arguments], wrap="sleep 60")
    try:
        assert show_job(lab, job)["AdminComment"].startswith("energy:"), "the answer came too late"
        return wait_for(lab, job, {"RUNNING"}, timeout=300)[0]["Partition"]
    finally:
        lab.run(["scancel", str(job)], check=True)
        wait_for(lab, job, {"CANCELLED"})


def test_what_an_answer_names_is_tried_first_by_sbatch_and_by_salloc(slurm: Lab, answerer: Answerer) -> None:
    assert started_in(slurm, answerer, "a40", LIST) == "a40"
    assert started_in(slurm, answerer, "a100", LIST) == "a100"
    assert started_in(slurm, answerer, "", LIST) == "a100"
    answerer.answers["held"] = "a40"
    done = slurm.run(["salloc", "--no-shell", "-J", "held", *LIST], user="alice", check=True, timeout=60)
    (job,) = re.findall(r"job allocation (\d+)", done.stderr)[-1:]
    assert show_job(slurm, int(job))["Partition"] == "a40"
    slurm.run(["scancel", job], check=True)


def test_a_job_waits_for_none_of_its_partitions_where_another_has_room(slurm: Lab, answerer: Answerer) -> None:
    full = submit(slurm, ["-p", "a40", "-N", "2", "--gres=gpu:4", "-t", "5", "--energy=off"], wrap="sleep 60")
    wait_for(slurm, full, {"RUNNING"})
    try:
        assert started_in(slurm, answerer, "a40", LIST) == "a100"
    finally:
        slurm.run(["scancel", str(full)], check=True)
        wait_for(slurm, full, {"CANCELLED"})


def test_a_waiting_job_shows_all_its_partitions_and_is_started_in_the_answers_when_both_come_free(
    slurm: Lab, answerer: Answerer
) -> None:
    both = submit(slurm, ["-p", "v100", "--gres=gpu:1", "-t", "5", "--energy=off"], wrap="sleep 60")
    answerer.answers["asked"] = "a40"
    job = submit(slurm, ["-J", "asked", *LIST, "-d", f"after:{both}+30"], wrap="sleep 60")
    assert show_job(slurm, job)["Partition"] == "a40,a100"
    slurm.run(["scontrol", "update", f"JobId={job}", "Dependency="], check=True)
    assert wait_for(slurm, job, {"RUNNING"})[0]["Partition"] == "a40"
    slurm.run(["scancel", str(job), str(both)], check=True)


@pytest.mark.parametrize(
    ("own", "settings", "more"),
    [
        ("a100,a40", {"State": "UP"}, ["--exclude=a100-[1-2]"]),
        ("a100,a40", {"MaxCPUsPerNode": "4"}, ["-c", "8"]),
        ("a100,a40", {"MaxMemPerNode": "2000"}, ["--mem=4000"]),
        ("a100,a40", {"MinNodes": "2"}, ["-N", "1-1"]),
        # Slurm itself stops reading a list at a partition that is closed to the user: what comes after is lost.
        ("a40,a100", {"AllocNodes": "elsewhere"}, []),
        ("a40,a100", {"AllowGroups": "bob"}, []),
        ("a40,a100", {"RootOnly": "YES"}, []),
        ("a100,a40", {"State": "DRAIN"}, []),
        ("a100,a40", {"State": "INACTIVE"}, []),
        ("a100,a40", {"State": "DOWN"}, []),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else " ".join(value),
)
def test_a_job_that_slurm_would_start_elsewhere_starts_there_though_the_answer_names_one_that_cannot_take_it(
    slurm: Lab, answerer: Answerer, own: str, settings: dict[str, str], more: list[str]
) -> None:
    request = ["-p", own, "--gres=gpu:1", "-t", "5", *more]
    with changed(slurm, "a100", **settings):
        for answer in ("", "a100", "a100,a40"):
            assert started_in(slurm, answerer, answer, request) == "a40"


@pytest.mark.parametrize("answer", ["nosuch", "nosuch,a40", "v100,nosuch"])
def test_a_name_that_does_not_exist_leaves_the_submission_as_it_was(
    slurm: Lab, answerer: Answerer, answer: str
) -> None:
    assert started_in(slurm, answerer, answer, LIST) == "a100"
    assert started_in(slurm, answerer, answer, ["--gres=gpu:1", "-t", "5"]) == "a100"


@pytest.mark.parametrize("state", ["DRAIN", "INACTIVE", "DOWN"])
def test_a_partition_that_went_down_after_the_snapshot_leaves_the_submission_as_it_was(
    slurm: Lab, answerer: Answerer, state: str
) -> None:
    with changed(slurm, "a40", State=state):
        assert started_in(slurm, answerer, "a40", ["--gres=gpu:1", "-t", "5"]) == "a100"
        assert started_in(slurm, answerer, "a40", LIST) == "a100"
    comment = show_job(slurm, _last_job(slurm))["AdminComment"]
    assert comment == "energy:abcdefgh1 partition-kept"


def test_a_time_limit_that_the_user_did_not_give_is_that_of_his_own_first_partition(
    slurm: Lab, answerer: Answerer
) -> None:
    with changed(slurm, "a40", DefaultTime="1"):
        answerer.answers["asked"] = "a40"
        job = submit(slurm, ["-J", "asked", "-p", "a100,a40", "--gres=gpu:1"], wrap="sleep 60")
        row = wait_for(slurm, job, {"RUNNING"})[0]
        assert (row["Partition"], row["TimeLimit"]) == ("a100", "01:00:00")
        slurm.run(["scancel", str(job)], check=True)


def test_the_limits_of_a_partitions_qos_refuse_no_job_that_slurm_would_have_taken(
    new_lab: Callable[..., Lab],
) -> None:
    enforce = "AccountingStorageEnforce=associations,limits,qos"
    lab = new_lab(partitions=PARTITIONS[:2], energy=True, daemon=False, accounting=True, slurm_conf_lines=NO_HOOKS)
    admin = ["sacctmgr", "-i", "add"]
    lab.run([*admin, "qos", "small", "MaxTRESPerJob=gres/gpu=1"], check=True)
    lab.run([*admin, "account", "physics"], check=True)
    lab.run([*admin, "user", "alice", "account=physics"], check=True)
    lab.run([*admin, "user", "bob", "account=physics"], check=True)
    lab.run([*admin, "user", "bob", "account=physics", "partition=a40"], check=True)
    conf = lab.layout.etc / "slurm.conf"
    conf.write_text(f"{enforce}\n{conf.read_text()}")
    lab.run(["scontrol", "reconfigure"], check=True)
    until(
        "bob's association for a partition in slurmctld",
        lambda: "Partition=a40" in lab.run(["scontrol", "-o", "show", "assoc_mgr", "users=bob"], check=True).stdout,
    )
    answerer = Answerer(str(lab.layout.plugin_socket))
    two = ["--gres=gpu:2", "-t", "5"]
    assert started_in(lab, answerer, "a40", [*LIST[:2], *two]) == "a40", "without limits the answer is tried first"
    # bob has an association for one partition: Slurm refuses lists with it.
    answerer.answers["asked"] = "a40"
    one = ["-A", "physics", "--gres=gpu:1", "-t", "5"]
    refused = lab.run(["sbatch", "-p", "a40,a100", *one, "--wrap", "true"], user="bob", check=False)
    assert refused.returncode != 0, "this Slurm takes such lists"
    job = submit(lab, ["-J", "asked", *one], wrap="true", user="bob")
    assert wait_for(lab, job, {"COMPLETED"})[0]["Partition"] == "a100"
    lab.run(["scontrol", "update", "PartitionName=a40", "QoS=small"], check=True)
    assert started_in(lab, answerer, "a40", [*LIST[:2], *two]) == "a100"
    lab.run(["scontrol", "update", "PartitionName=a40", "QoS="], check=False)


def _last_job(lab: Lab) -> int:
    shown = lab.run(["squeue", "-h", "-t", "all", "-o", "%i"], check=True).stdout.split()
    return max(int(number) for number in shown)


@dataclass(frozen=True)
class Site:
    """A cluster for random cases: EnforcePartLimits, whether it has accounts, and who asks the answerer."""

    enforced: str
    accounts: bool = False
    lua: bool = False
    opened: bool = False
    """Whether jobs leave the partitions that they name open."""

    @property
    def left(self) -> list[str]:
        """Settings that stay as they are: what it does not have, and what slurm.conf must say for the script."""
        return ([] if self.accounts else ["QoS=", "AllowQos=", "DenyQos="]) + (["JobDefaults="] if self.lua else [])

    def __str__(self) -> str:
        marks = (("accounts", self.accounts), ("lua", self.lua), ("opened", self.opened))
        return "-".join([self.enforced, *(word for word, holds in marks if holds)])


SITES = (
    Site("NO"),
    Site("ANY", accounts=True),
    Site("ALL"),
    Site("NO", accounts=True, lua=True),
    Site("ANY", accounts=True, opened=True),
)
GROUPS = 4
LINES = (
    *NO_HOOKS, "Licenses=disk:2", "PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE",
    "AccountingStorageEnforce=associations,limits,qos",
)  # fmt: skip


@pytest.mark.parametrize("site", SITES, ids=str)
def test_what_slurm_accepts_and_starts_alone_it_accepts_and_starts_with_any_answer(
    new_lab: Callable[..., Lab], site: Site
) -> None:
    count = -(-int(os.environ.get(CASES_VARIABLE, "30")) // len(SITES))
    partitions = tuple(
        PartitionSpec(name=f"g{group}{letter}", nodes=2, gpus_per_node=4, gpu_type=gpu_type)
        for group in range(GROUPS)
        for letter, gpu_type in zip("abc", ("a100", "a40", "v100"), strict=True)
    )
    lab = new_lab(partitions=partitions, energy=True, daemon=False, accounting=site.accounts, slurm_conf_lines=NO_HOOKS)
    groups = [_group(partitions[3 * at : 3 * at + 3], f"g{at}d") for at in range(GROUPS)]
    _open_site(lab, site, groups)
    given = {
        "socket": str(lab.layout.plugin_socket),
        "seed": f"{site}-2",
        "count": count,
        "user": "alice",
        "left": site.left,
        "opened": site.opened,
        "groups": groups,
    }
    driver = Path(__file__).with_name("partition_cases.py")
    done = lab.run(["python3", str(driver), json.dumps(given)], check=True, timeout=60.0 + 12.0 * count)
    found = json.loads(done.stdout)
    print(site, found["counts"], f"{found['named']} answers named something,", f"{found['tried_again']} tried again")
    assert sum(found["counts"].values()) == count
    assert found["failures"] == []


def _group(own: Sequence[PartitionSpec], shared: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return three partitions with nodes of their own, and one that shares those of the first two."""
    named = [(one.name, one.node_names) for one in own]
    return [*named, (shared, named[0][1] + named[1][1])]


def _open_site(lab: Lab, site: Site, groups: Sequence[Sequence[tuple[str, tuple[str, ...]]]]) -> None:
    """Give slurmctld the accounts, partitions and settings of a site, and start it with them."""
    if site.accounts:
        admin = ["sacctmgr", "-i", "add"]
        for qos in (["high", "Priority=10"], ["small", "MaxTRESPerJob=gres/gpu=1"],
                    ["strict", "MaxWall=10", "MaxTRESPerJob=cpu=6", "Flags=DenyOnLimit"]):  # fmt: skip
            lab.run([*admin, "qos", *qos], check=True)
        for account in ("physics", "chemistry"):
            lab.run([*admin, "account", account, "QOS=normal,high,strict"], check=True)
            for user in ("alice", "root"):
                lab.run([*admin, "user", user, f"account={account}"], check=True)
    conf = lab.layout.slurm_conf
    lines = [*LINES, f"EnforcePartLimits={site.enforced}"]
    lines += [f"PartitionName={name} Nodes={','.join(nodes)}" for *_, (name, nodes) in groups]
    every = ",".join(node for group in groups for _, nodes in group[:3] for node in nodes)
    lines.append(f"PartitionName={FILLER} Nodes={every} RootOnly=YES PriorityTier=9 PreemptMode=OFF")
    kept = [line for line in conf.read_text().splitlines() if not line.startswith(("Enforce", "Preempt"))]
    conf.write_text("\n".join([*kept, *lines, ""]))
    if site.lua:
        _use_lua(lab)
    lab.restart_slurmctld()


def _use_lua(lab: Lab) -> None:
    """Put the script that `install` writes in the place of the plugin, with what only the site can say."""
    config = load_config(lab.layout.energy_config, environment={})
    options = InstallOptions(roles=("controller",), job_submit="lua", plugin_directory=lab.layout.plugins)
    conf = lab.layout.slurm_conf
    files = Installation(config, options, {"SLURM_CONF": str(conf)}).files()
    (script,) = (item.content.decode() for item in files if item.path == LUA_SCRIPT)
    assert "JOB_DEFAULTS = false" in script, "no partition of slurm.conf has JobDefaults"
    script = script.replace("HAS_PARTITION_ASSOCIATIONS = true", "HAS_PARTITION_ASSOCIATIONS = false")
    (lab.layout.etc / "job_submit.lua").write_text(script)
    conf.write_text(conf.read_text().replace("JobSubmitPlugins=energy", "JobSubmitPlugins=lua"))
