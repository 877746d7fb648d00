"""Mistakes of installation and of nodes, each planted alone on an installation in order: doctor finds every one.

Before the first and before each of a node the doctor says that all is well, so that what it then finds is the mistake;
afterwards the mistake is taken back. Time that cannot be waited for is written into what a node said last.
"""

import json
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from energy_lab import until
from lab_fixtures import EXACT, require_lab

from slurm_energy.lab.cluster import Lab, LabSpec, PartitionSpec, start_lab
from slurm_energy.lab.jobs import submit

pytestmark = pytest.mark.lab

PARTITIONS = (
    PartitionSpec(name="a100", nodes=2, gpus_per_node=4),
    PartitionSpec(name="a40", nodes=1, gpus_per_node=2),
)
DOCTOR_SECONDS = 90.0
_TELL = (
    "import os, sys; from slurm_energy.node import main\n"
    "for node in sys.argv[1:]:\n"
    "    os.environ['SLURMD_NODENAME'] = node\n"
    "    for verb in ('repair', 'flush'): main.run([verb, '--node', node])\n"
)
"""The two hooks of the timers on several nodes, from one process."""
_DOCTOR = (
    "import sys; from slurm_energy.cli.doctor import cluster_checks; from slurm_energy.cli.main import main; "
    "cluster_checks.FIRST_WORDS_SECONDS = float(sys.argv[1]); sys.exit(main(sys.argv[2:]))"
)
"""The doctor itself, but for how long a daemon must have run before a node without a status is a fault."""
_BEHIND = (
    "import sys, time; now = time.time; time.time = lambda: now() - 200.0; "
    "from slurm_energy.node import main; sys.exit(main.run(['flush', '--node', sys.argv[1]]))"
)


@dataclass
class Site:
    """An installation whose timers are the test's own, so that nothing is put right behind its back."""

    lab: Lab
    undo: ExitStack = field(default_factory=ExitStack)
    first_words_seconds: float | None = None
    """How long a node may be silent after the start of the daemon; None: the doctor's own time."""

    @property
    def state(self) -> Path:
        return self.lab.layout.state / "energyd"

    def doctor(self, role: str = "controller") -> tuple[int, list[dict[str, str]]]:
        seconds = self.first_words_seconds
        program = ["slurm-energy"] if seconds is None else ["python3", "-c", _DOCTOR, str(seconds)]
        done = self.lab.run([*program, "doctor", "--json", "--role", role], timeout=DOCTOR_SECONDS)
        assert "Traceback" not in done.stderr
        findings: list[dict[str, str]] = json.loads(done.stdout)
        return done.returncode, findings

    def hook(self, node: str, verb: str, **env: str) -> None:
        self.lab.run(["slurm-energy-hook", verb, "--node", node], env={"SLURMD_NODENAME": node, **env}, timeout=60)

    def tell(self, *nodes: str) -> None:
        """Let nodes tell how they are now, due or not."""
        told = nodes or self.lab.spec.node_names
        for node in told:
            for name in ("status.sent", "status.json"):
                (self.lab.layout.hooks_spool / node / name).unlink(missing_ok=True)
        self.lab.run(["python3", "-I", "-c", _TELL, *told], timeout=60)

    def keep(self, path: Path) -> None:
        """Put a file back as it is now, with owner and mode, when the test ends."""
        status, content = path.stat(), path.read_bytes()

        def back() -> None:
            path.unlink(missing_ok=True)
            path.write_bytes(content)
            os.chown(path, status.st_uid, status.st_gid)
            path.chmod(status.st_mode & 0o7777)

        self.undo.callback(back)

    def rights(self, path: Path, *, owner: int | None = None, mode: int | None = None) -> None:
        """Change owner or mode until the test ends."""
        status = path.stat()
        self.undo.callback(os.chown, path, status.st_uid, status.st_gid)
        self.undo.callback(path.chmod, status.st_mode & 0o7777)
        if owner is not None:
            os.chown(path, owner, -1)
        if mode is not None:
            path.chmod(mode)

    def replace(self, path: Path, old: str, new: str) -> None:
        """Change a file until the test ends."""
        self.keep(path)
        text = path.read_text()
        assert old in text, f"{path} has no {old!r}"
        path.write_text(text.replace(old, new))

    def slurm_conf(self, old: str, new: str) -> None:
        """Change slurm.conf and restart slurmctld with it; both again at the end."""
        self.undo.callback(self.lab.restart_slurmctld)
        self.replace(self.lab.layout.slurm_conf, old, new)
        self.lab.restart_slurmctld()

    def settings(self, section: str, line: str) -> None:
        """Set one key of slurm-energy.toml until the test ends; the daemon keeps what it has read."""
        path = self.lab.layout.energy_config
        self.keep(path)
        key = line.partition("=")[0].strip()
        text = re.sub(rf'^"?{re.escape(key)}"? = .*\n', "", path.read_text(), count=1, flags=re.MULTILINE)
        path.write_text(text.replace(f"[{section}]\n", f"[{section}]\n{line}\n"))


@pytest.fixture(scope="module")
def running() -> Iterator[Lab]:
    require_lab(energy=True)
    spec = LabSpec(name=f"mistakes-{os.getpid()}", settings=EXACT, partitions=PARTITIONS)
    with start_lab(spec, owned=True) as lab:
        until("a database", lab.layout.database.exists)
        lab.run(["pkill", "-f", "service.sh timers"], check=True)  # inside: the lab's own
        yield lab


@pytest.fixture(scope="module")
def running_well(running: Lab) -> Lab:
    """A lab in order, before any mistake."""
    put_in_order(Site(running))
    return running


@pytest.fixture
def site(running_well: Lab) -> Iterator[Site]:
    """An installation whose mistakes are taken back; what is left of one is found before the first of a node."""
    site = Site(running_well)
    with site.undo:
        yield site


@pytest.fixture
def site_in_order(running: Lab) -> Iterator[Site]:
    """An installation in order: the doctor says so, before each mistake."""
    site = Site(running)
    put_in_order(site)
    with site.undo:
        yield site


def put_in_order(site: Site) -> None:
    for _ in range(4):  # what was taken back is over for the daemon in a moment, later on a busy machine
        code, findings = site.doctor()
        left = [finding for finding in findings if finding["verdict"] not in {"ok", "skip"}]
        if not left:
            break
        site.tell()  # the nodes' mistakes are over when they have told so
    assert left == []
    assert code == 0


Plant = Callable[[Site], None]


def state_folder_of_root(site: Site) -> None:
    site.rights(site.state, owner=0, mode=0o755)


def database_of_root(site: Site) -> None:
    site.rights(site.lab.layout.database, owner=0, mode=0o600)


def database_of_an_older_version(site: Site) -> None:
    def revise(revision: str) -> None:
        with sqlite3.connect(site.lab.layout.database, timeout=30) as connection:
            connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
        connection.close()

    with sqlite3.connect(site.lab.layout.database) as connection:
        (now,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    connection.close()
    site.undo.callback(revise, now)
    revise("0001")


def journal_that_does_not_drain(site: Site) -> None:
    holder = sqlite3.connect(site.lab.layout.database, isolation_level=None, timeout=30)
    holder.execute("BEGIN IMMEDIATE")
    site.undo.callback(holder.close)
    site.undo.callback(holder.rollback)
    submit(site.lab, ["-p", "a100", "--gres=gpu:1", "-t", "1", "--hold"], wrap="true")
    site.undo.callback(site.lab.run, ["scancel", "-u", "alice"])


def settings_closed_to_the_daemon(site: Site) -> None:
    site.rights(site.lab.layout.energy_config, mode=0o600)


def another_slurm_user(site: Site) -> None:
    site.settings("cluster", 'slurm_user = "munge"')


def another_cluster_name(site: Site) -> None:
    site.settings("cluster", 'name = "elsewhere"')


def gres_type_of_another_model(site: Site) -> None:
    site.settings("gpu_types", 'a100 = "v100-sxm2-16gb"')


def gres_type_unknown(site: Site) -> None:
    def restart() -> None:
        site.lab.kill_slurmd("a40-1")
        site.lab.start_slurmd("a40-1")
        site.lab.restart_slurmctld()
        site.lab.run(["scontrol", "update", "NodeName=a40-1", "State=RESUME"])
        until("an idle a40-1", lambda: "idle" in site.lab.run(["sinfo", "-h", "-n", "a40-1", "-o", "%T"]).stdout)

    site.undo.callback(restart)
    site.replace(site.lab.layout.etc / "gres.conf", "Type=a40", "Type=mystery")
    site.replace(site.lab.layout.slurm_conf, "gpu:a40:", "gpu:mystery:")
    restart()


def energy_before_lua(site: Site) -> None:
    (site.lab.layout.etc / "job_submit.lua").write_text(
        "function slurm_job_submit(d, p, u) return slurm.SUCCESS end\n"
        "function slurm_job_modify(d, r, p, u) return slurm.SUCCESS end\nreturn slurm.SUCCESS\n"
    )
    site.slurm_conf("JobSubmitPlugins=energy", "JobSubmitPlugins=energy,lua")


def no_energy_plugin(site: Site) -> None:
    site.slurm_conf("JobSubmitPlugins=energy", "JobSubmitPlugins=all_partitions")


def prolog_at_the_first_step(site: Site) -> None:
    site.slurm_conf("PrologFlags=Alloc", "PrologFlags=DeferBatch")


def no_prolog(site: Site) -> None:
    text = site.lab.layout.slurm_conf.read_text()
    line = next(line for line in text.splitlines() if line.startswith("Prolog="))
    site.slurm_conf(f"{line}\n", "")


def plugin_that_asks_elsewhere(site: Site) -> None:
    text = site.lab.layout.plugin_config.read_text()
    line = next(line for line in text.splitlines() if line.startswith("socket="))
    site.replace(site.lab.layout.plugin_config, line, "socket=/run/elsewhere.sock")


def socket_closed_to_slurmctld(site: Site) -> None:
    site.rights(site.lab.layout.energyd_socket.parent, owner=0, mode=0o700)


def no_line_in_plugstack(site: Site) -> None:
    site.replace(site.lab.layout.etc / "plugstack.conf", "optional", "#optional")


def no_daemon(site: Site) -> None:
    site.undo.callback(site.lab.start_daemon)
    site.lab.stop_daemon()


@pytest.mark.parametrize(
    ("plant", "subject", "names", "fix"),
    [
        (state_folder_of_root, "state directory", "slurm cannot use it", "chown -R slurm"),
        (database_of_root, "database", "energy.sqlite", "chown slurm"),
        (database_of_an_older_version, "database", "0001", "slurm-energy database upgrade"),
        (journal_that_does_not_drain, "journal", "wait for the database", "journalctl -u slurm-energyd"),
        (settings_closed_to_the_daemon, "daemon's settings", "slurm-energy.toml", "chmod 644"),
        (another_slurm_user, "daemon's user", "slurmctld runs as slurm", 'slurm_user = "slurm"'),
        (another_cluster_name, "cluster name", "elsewhere", "under [cluster]"),
        (gres_type_of_another_model, "GPU types", "a100 is taken for v100-sxm2-16gb", '"a100" = "a100-sxm4-80gb"'),
        (gres_type_unknown, "GPU types", "mystery is not in the catalogue", '"mystery" = "a40"'),
        (energy_before_lua, "JobSubmitPlugins", "lua runs after energy", "energy last"),
        (no_energy_plugin, "JobSubmitPlugins", "slurmctld does not ask", "add energy to JobSubmitPlugins"),
        (prolog_at_the_first_step, "PrologFlags", "DeferBatch", "add Alloc"),
        (no_prolog, "Prolog", "nothing is measured", "slurm-energy install"),
        (plugin_that_asks_elsewhere, "plugin settings", "/run/elsewhere.sock", "slurm-energy install"),
        (socket_closed_to_slurmctld, "slurmctld to daemon", "closed to this user", "chmod 755"),
        (no_line_in_plugstack, "plugstack.conf", "has no line", "slurm-energy install"),
        (no_daemon, "socket", "No such file", "systemctl start slurm-energyd"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_mistake_of_installation_or_settings_is_found(
    site: Site, plant: Plant, subject: str, names: str, fix: str
) -> None:
    plant(site)
    found_alone(site, subject, names, fix)


def clock_behind(site: Site) -> None:
    (site.lab.layout.hooks_spool / "a100-2" / "status.sent").unlink(missing_ok=True)
    site.lab.run(["python3", "-c", _BEHIND, "a100-2"], env={"SLURMD_NODENAME": "a100-2"}, timeout=60, check=True)


def hook_without_interpreter(site: Site) -> None:
    for script in site.lab.layout.hooks.glob("*/*"):
        if "slurm_energy.node.main" in script.read_text():
            text = re.sub(r"'/[^']+' -I", "'/opt/gone/bin/python' -I", script.read_text())
            site.keep(script)
            script.write_text(text)
            script.chmod(0o755)
    site.tell("a100-2")


def spool_open_to_everybody(site: Site) -> None:
    site.rights(site.lab.layout.hooks_spool / "a100-2", mode=0o777)
    site.hook("a100-2", "flush")


def spool_of_a_user(site: Site) -> None:
    site.rights(site.lab.layout.hooks_spool / "a100-2", owner=20001)
    site.hook("a100-2", "flush")


def settings_damaged_on_the_node(site: Site) -> None:
    damaged = site.lab.layout.etc / "damaged.toml"
    damaged.write_text(site.lab.layout.energy_config.read_text() + "\n[guard\n")
    site.undo.callback(damaged.unlink)
    site.hook("a100-2", "flush", SLURM_ENERGY_CONFIG=str(damaged))


def another_cluster_on_the_node(site: Site) -> None:
    site.hook("a100-2", "flush", SLURM_ENERGY_CLUSTER_NAME="south")


def no_repair(site: Site) -> None:
    (site.lab.layout.hooks_spool / "a100-2" / "status.json").unlink()
    site.hook("a100-2", "flush")


def driver_gone(site: Site) -> None:
    for name in ("status.json", "status.sent"):
        (site.lab.layout.hooks_spool / "a100-2" / name).unlink(missing_ok=True)
    for verb in ("repair", "flush"):
        site.hook("a100-2", verb, SLURM_ENERGY_NODE_NVML_LIBRARY="/opt/gone/libnvidia-ml.so.1")


def another_munge_key(site: Site) -> None:
    """A second munged with a key of its own makes the credential, as on a node whose key is another."""
    folder = site.lab.layout.directory / "munge"
    key = folder / "other.key"
    key.write_bytes(os.urandom(1024))
    shutil.chown(key, "munge", "munge")
    key.chmod(0o400)
    arguments = [
        f"--key-file={key}", f"--socket={folder}/other.socket", f"--pid-file={folder}/other.pid",
        f"--seed-file={folder}/other.seed", f"--log-file={folder}/other.log",
    ]  # fmt: skip
    become = ["setpriv", "--reuid", "munge", "--regid", "munge", "--init-groups", "--"]
    site.lab.run([*become, "munged", "--force", *arguments], check=True)
    site.undo.callback(site.lab.run, [*become, "munged", "--stop", f"--socket={folder}/other.socket"])
    wrapper = folder / "munge"
    wrapper.write_text(f"#!/bin/sh\nexec /usr/bin/munge --socket={folder}/other.socket\n")
    wrapper.chmod(0o755)
    code = (
        "import sys; from slurm_energy.wire import authentication as a; a._TOOL_FOLDERS = (sys.argv[2],); "
        "from slurm_energy.node import main; main.run(['flush', '--node', sys.argv[1]])"
    )
    (site.lab.layout.hooks_spool / "a100-2" / "status.sent").unlink(missing_ok=True)
    site.lab.run(["python3", "-c", code, "a100-2", str(folder)], env={"SLURMD_NODENAME": "a100-2"}, timeout=60)
    site.undo.callback(site.tell)


def silent_for_two_hours(site: Site) -> None:
    path = site.state / "nodes" / "a100-2.json"
    document: dict[str, Any] = json.loads(path.read_text())
    document["received_at_seconds"] -= 7200.0
    document["status"]["sent_at_seconds"] -= 7200.0
    path.write_text(json.dumps(document))


def never_heard_of(site: Site) -> None:
    """A node without our files: its timers are not there to report anything; a daemon that is younger waits for it."""
    (site.state / "nodes" / "a100-2.json").unlink()
    site.first_words_seconds = 86_400.0
    code, findings = site.doctor()
    (waiting,) = (finding for finding in findings if finding["verdict"] not in {"ok", "skip"})
    assert (code, waiting["verdict"], waiting["subject"]) == (0, "warn", "nodes")
    assert waiting["found"].startswith("not heard of yet: a100-2 (gpu:a100:4"), waiting
    site.first_words_seconds = 0.0


@pytest.mark.parametrize(
    ("plant", "subject", "names", "fix"),
    [
        (clock_behind, "nodes' clocks", "a100-2: 200 s behind", "chrony"),
        (hook_without_interpreter, "nodes' settings", "/opt/gone/bin/python", "slurm-energy install --role node"),
        (spool_open_to_everybody, "nodes' spools", "mode 0777", "chmod 700"),
        (spool_of_a_user, "nodes' spools", "belongs to uid 20001", "chown -R root"),
        (settings_damaged_on_the_node, "nodes' settings", "damaged.toml", "slurm-energy-hook flush"),
        (another_cluster_on_the_node, "nodes' settings", "cluster.name is south", "under [cluster]"),
        (no_repair, "nodes' repairs", "no repair has run", "slurm-energy-repair.timer"),
        (driver_gone, "nodes' GPUs", "/opt/gone/libnvidia-ml.so.1", "nvidia-smi"),
        (another_munge_key, "messages refused", "Invalid credential", "munge keys differ"),
        (silent_for_two_hours, "nodes", "stopped reporting: a100-2 (2.0 h)", "slurm-energy-flush.timer"),
        (never_heard_of, "nodes", "have never reported: a100-2 (gpu:a100:4", "slurm-energy install --role node"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_mistake_on_a_node_is_found_from_the_controller(
    site_in_order: Site, plant: Plant, subject: str, names: str, fix: str
) -> None:
    plant(site_in_order)
    found_alone(site_in_order, subject, names, fix)


def found_alone(site: Site, subject: str, names: str, fix: str) -> None:
    """The doctor fails, names the thing and says how to fix it; all that it finds has a fix, the worst comes first."""
    code, findings = site.doctor()
    assert code == 1, findings
    wanted = [finding for finding in findings if finding["subject"] == subject and finding["verdict"] == "fail"]
    assert wanted, [finding for finding in findings if finding["verdict"] != "ok"]
    assert any(names in finding["found"] and fix in finding["fix"] for finding in wanted), wanted
    assert all(finding["fix"] for finding in findings if finding["verdict"] != "ok")
    order = [["fail", "warn", "skip", "ok"].index(finding["verdict"]) for finding in findings]
    assert order == sorted(order)


def test_a_node_itself_is_in_order_too(site_in_order: Site) -> None:
    done = site_in_order.lab.run(
        ["slurm-energy", "doctor", "--json", "--role", "all"],
        env={"SLURMD_NODENAME": "a100-1"},
        timeout=DOCTOR_SECONDS,
    )
    findings = json.loads(done.stdout)
    assert [finding for finding in findings if finding["verdict"] not in {"ok", "skip"}] == []
    assert next(one for one in findings if one["subject"] == "delivery")["verdict"] == "ok"


def test_each_gpu_type_is_told_what_it_can_save(site_in_order: Site) -> None:
    _code, findings = site_in_order.doctor()
    told = [finding["found"] for finding in findings if finding["subject"] == "possible saving"]
    assert any(text.startswith("a100 (a100-sxm4-80gb): clock curve measured") for text in told), told
    assert len(told) == 2


def test_the_status_names_what_waits_and_who_is_silent(site_in_order: Site) -> None:
    silent = site_in_order.state / "nodes" / "a100-2.json"
    os.utime(silent, (time.time() - 7200.0,) * 2)
    document = json.loads(site_in_order.lab.run(["slurm-energy", "status", "--json"], check=True).stdout)
    assert document["nodes"]["stopped_reporting"] == ["a100-2"]
    assert document["nodes"]["reporting"] == 2
    assert document["daemon"]["journal_waiting_bytes_on_disk"] == 0
