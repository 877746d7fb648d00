"""Two controllers, each with a daemon, and one database: either may go, and nothing is lost or counted twice."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from daemon_support import KEY, FakeSlurm, RunningDaemon, free_port, make_job, start_daemon, wait_until, write_config
from test_daemon_reports import make_report

from slurm_energy.config import NodeConfig
from slurm_energy.domain.ids import ClusterName, NodeName
from slurm_energy.node.context import HookContext
from slurm_energy.node.flush import run_flush
from slurm_energy.node.gpu_order import GpuOrder
from slurm_energy.node.log import HookLog
from slurm_energy.node.settings import HookSettings
from slurm_energy.node.spool import Spool
from slurm_energy.wire.report import decode_report


def never() -> object:
    raise AssertionError("delivering reports needs no GPU")


class Node:
    """The spool of a node, and the address list that its reports go by."""

    def __init__(self, directory: Path, addresses: str) -> None:
        key = directory / "node.key"
        key.write_text(KEY)
        key.chmod(0o600)
        self.spool = Spool(directory / "spool")
        self.spool.prepare()
        self.lines: list[str] = []
        settings = NodeConfig(
            spool_directory=str(self.spool.root),
            log_path="",
            daemon_address=addresses,
            authentication="hmac",
            hmac_key_path=str(key),
        )
        hook = HookSettings(
            node=settings,
            cluster=ClusterName("lab"),
            node_name=NodeName("n1"),
            spool_directory=self.spool.root,
            log_path="",
        )
        self.context = HookContext(
            settings=hook,
            spool=self.spool,
            driver=never,  # type: ignore[arg-type]  # never called
            log=HookLog("", "test", self.lines.append),
            boot_id="boot",
            now=time.time,
            monotonic=time.monotonic,
            pause=time.sleep,
            stage=lambda _text: None,
            start_sampler=lambda _job: None,
            live_jobs=frozenset,
            gpu_order=lambda _slurm_conf: GpuOrder(),
        )

    def report(self, job_id: int, gpu: int = 0) -> None:
        """Write a report and deliver it."""
        report = decode_report(make_report(job_id, gpu=gpu))
        self.spool.write_report(report, "boot", time.monotonic() - 100.0)
        assert run_flush(self.context), self.lines


def controller(directory: Path, database: Path) -> Callable[[], RunningDaemon]:
    """Return what starts one controller's daemon, with a state directory of its own and the shared database."""
    directory.mkdir()
    slurm, port = FakeSlurm(directory / "slurm"), free_port()
    config = write_config(directory, slurm, port)
    config.write_text(config.read_text().replace(f"{directory}/energy.sqlite", str(database)))
    return lambda: start_daemon(directory, slurm, port, config)


def recorded_decisions(daemon: RunningDaemon) -> set[str]:
    return {record["decision_id"] for record in daemon.query("decisions")["record"]}


def energies(daemon: RunningDaemon) -> dict[int, float | None]:
    jobs = daemon.query("report-job")["record"]["jobs"]
    assert len({job["job_id"] for job in jobs}) == len(jobs), "a job has two rows"
    return {job["job_id"]: job["gpu"]["joules"] for job in jobs}


def test_when_a_controller_is_lost_the_other_decides_and_takes_the_reports(tmp_path: Path) -> None:
    start_first = controller(tmp_path / "a", tmp_path / "energy.sqlite")
    start_second = controller(tmp_path / "b", tmp_path / "energy.sqlite")
    first = start_first()
    wait_until(lambda: "database created" in first.log, "a database", first)
    second = start_second()
    daemons = [first, second]
    try:
        node = Node(tmp_path, f"127.0.0.1:{first.port},127.0.0.1:{second.port}")
        now = int(time.time())
        ended = {"job_state": "COMPLETED", "start_time": now - 100, "end_time": now - 1, "nodes": "n1"}
        decided = [first.decide().fields["decision_id"]]
        for daemon in daemons:
            daemon.slurm.set_jobs([make_job(number, **ended) for number in (1, 2, 3)])
        node.report(1, gpu=1)
        assert "reports accepted" not in second.query("status")["daemon"]["counters"]

        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
        decided.append(second.decide().fields["decision_id"])
        node.report(2, gpu=2)
        assert any("takes no report" in line for line in node.lines)
        # Job 1's report was acknowledged by the daemon that is gone: it may lie in that one's journal.
        wait_until(lambda: energies(second).get(2) == 20_000.25, "job 2", second)

        daemons[0] = first = start_first()
        node.report(3, gpu=3)
        expected = dict.fromkeys((1, 2, 3), 20_000.25)
        for daemon in daemons:
            wait_until(lambda daemon=daemon: energies(daemon) == expected, "all energy once", daemon)
        wait_until(lambda: set(decided) <= recorded_decisions(second), "every decision once", second)
    finally:
        for daemon in daemons:
            if daemon.process.poll() is None:
                daemon.stop()
