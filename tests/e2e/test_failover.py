"""Two slurmctld, each with a daemon beside it, and one database: the standby takes over, then the first daemon goes."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from energy_lab import await_reports, drained, node_states, submit_decided, until, workload
from lab_fixtures import StartLab

from slurm_energy.errors import SlurmEnergyError
from slurm_energy.lab.cluster import Lab
from slurm_energy.lab.jobs import wait_for
from slurm_energy.wire.client import exchange
from slurm_energy.wire.codec import Message

pytestmark = pytest.mark.lab

CONTROLLERS = """\
SlurmctldHost=primary(127.0.0.1)
SlurmctldHost=standby(127.0.0.2)
CommunicationParameters=NoCtldInAddrAny
"""
# A host of its own, as far as Slurm and the daemon see: name, sockets, process ids' files and address.
STANDBY_HOST = """
hostname standby
for folder in run pid; do mount --bind "$1/$folder" "$LAB/$folder"; done
setpriv --reuid slurm --regid "$(id -g slurm)" --init-groups python3 -I -m slurm_energy.daemon.app \
    >"$1/energyd.log" 2>&1 &
echo $! >"$1/energyd"
slurmctld -D -f "$SLURM_CONF" >"$1/slurmctld.log" 2>&1 &
wait
"""


def become_two(lab: Lab) -> None:
    """Give a lab's controller a name of its own and a second one beside it, in slurm.conf."""
    path = lab.layout.slurm_conf
    lines = [line for line in path.read_text().splitlines() if not line.startswith("SlurmctldHost=")]
    path.write_text(CONTROLLERS + "\n".join(lines) + "\n")
    hosts = lab.directory / "hosts"
    hosts.write_text("127.0.0.1 localhost primary\n127.0.0.2 standby\n")
    hosts.chmod(0o644)
    lab.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)  # in the lab's own namespace
    lab.run(["hostname", "primary"], check=True)
    for action in ("stop", "start"):  # restart_slurmctld would wait for nodes that ask the controller of before
        lab._service(action, "slurmctld")
    restart_nodes(lab)


def restart_nodes(lab: Lab) -> None:
    """Let the nodes register with whichever controller is in charge."""
    for node in lab.spec.node_names:
        lab.kill_slurmd(node)
        lab.start_slurmd(node)
    until("all nodes", lambda: set(node_states(lab).values()) == {"idle"})


@contextmanager
def standby(lab: Lab) -> Iterator[Path]:
    """Run a second controller with its own daemon; yield its folder, in which its sockets are."""
    folder = lab.directory / "standby"
    slurm = lab.run(["id", "-u", "slurm"], check=True).stdout.strip()
    for name in ("run", "pid", "state"):
        (folder / name).mkdir(parents=True)
        os.chown(folder / name, int(slurm), -1)
    folder.chmod(0o777)
    argv, environment = lab.command(["unshare", "--uts", "--mount", "sh", "-c", STANDBY_HOST, "sh", str(folder)])
    environment |= {
        "LAB": str(lab.directory),
        "SLURM_ENERGY_DAEMON_REPORT_HOST": "127.0.0.2",
        "SLURM_ENERGY_DAEMON_STATE_DIRECTORY": str(folder / "state"),
    }
    process = subprocess.Popen(argv, env=environment, start_new_session=True)
    try:
        yield folder
    except BaseException as error:
        for log in folder.glob("*.log"):
            error.add_note(f"{log.name}: {log.read_text(errors='replace')[-3000:]}")
        raise
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=120)


def status(socket_path: Path) -> dict[str, Any]:
    """Return what a daemon says of itself, nothing while it does not answer yet."""
    try:
        reply = exchange(socket_path, Message("query", {"what": "status"}), 30.0)
    except SlurmEnergyError:
        return {}
    document: dict[str, Any] = json.loads(reply.fields["json"])["daemon"]
    return document


def run_job(lab: Lab) -> int:
    job = submit_decided(lab, ["-p", "a100", "--gres=gpu:1", "-t", "5"], wrap=workload(60))
    wait_for(lab, job, {"COMPLETED"})
    return job


def test_when_the_standby_takes_over_jobs_are_decided_and_measured_as_before(new_lab: StartLab) -> None:
    lab = new_lab(energy=True, settings={"node": {"daemon_address": "127.0.0.1:8470, 127.0.0.2:8470"}})
    become_two(lab)
    with standby(lab) as folder:
        second = folder / "run" / lab.layout.energyd_socket.name
        until("the second daemon", lambda: status(second).get("snapshot_nodes"))
        jobs = [run_job(lab)]
        await_reports(lab, jobs[0])
        assert status(second)["counters"].get("decisions", 0) == 0

        lab.run(["scontrol", "takeover"], check=True, timeout=60)
        log = folder / "slurmctld.log"
        until("the standby in charge", lambda: "Running as primary controller" in log.read_text())
        restart_nodes(lab)
        jobs.append(run_job(lab))
        await_reports(lab, jobs[1])
        assert status(second)["counters"]["decisions"] >= 1

        lab.stop_daemon()
        jobs.append(run_job(lab))
        for job in jobs:
            (report,) = await_reports(lab, job)
            assert report.gpus[0].joules is not None
        until("a report at the standby", lambda: status(second)["counters"].get("reports accepted"))
        assert drained(lab) == {}
