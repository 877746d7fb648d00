"""The answering process from start to stop: doors, children, reload, drain."""

import asyncio
import fcntl
import gc
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurm_energy.config import Config
from slurm_energy.daemon.decide import create_decider
from slurm_energy.daemon.doors.callers import privileged_user_ids, user_id_of
from slurm_energy.daemon.doors.listeners import local_listener, plugin_listener, report_listener
from slurm_energy.daemon.doors.plugin import PluginDoor
from slurm_energy.daemon.ipc.children import ChildProcess
from slurm_energy.daemon.ipc.frames import SnapshotBegins, SnapshotComplete, SnapshotPart
from slurm_energy.daemon.metrics.counts import load_counts, save_counts
from slurm_energy.daemon.pending.loop import PendingLoop
from slurm_energy.daemon.policy.candidates import CandidateSlot
from slurm_energy.daemon.policy.remote import RemotePolicy
from slurm_energy.daemon.policy.slot import POLICY_MODULE, PolicySlot
from slurm_energy.daemon.recorder.entries import DAEMON_STREAM, JournalQueue
from slurm_energy.daemon.recorder.journal import JournalWriter, journal_directory
from slurm_energy.daemon.recorder.link import RecorderLink
from slurm_energy.daemon.reuse import NamesWithRuns
from slurm_energy.daemon.snapshot.feed import SnapshotFeed
from slurm_energy.daemon.state import DaemonState
from slurm_energy.daemon.uncarried import ANSWER_SECONDS
from slurm_energy.daemon.verbs import DoorLink, LocalVerbs
from slurm_energy.domain.ids import JobId
from slurm_energy.domain.promotion import LivePolicy
from slurm_energy.errors import ConfigError, DaemonUnavailable, SlurmEnergyError
from slurm_energy.estimation.job_history import JobHistory
from slurm_energy.policy.automatic import chosen_policy
from slurm_energy.slurm.command import admin_comments
from slurm_energy.wire.authentication import load_key

logger = logging.getLogger(__name__)

SNAPSHOT_MODULE = "slurm_energy.daemon.snapshot.process"
RECORDER_MODULE = "slurm_energy.daemon.recorder.process"
METRICS_MODULE = "slurm_energy.daemon.metrics.process"
DOOR_MODULE = "slurm_energy.daemon.doors.process"
DRAIN_SECONDS = 1.5


class EnergyDaemon:
    """Holds everything the answering process has open."""

    def __init__(self, config: Config, reload: Callable[[], Config], policy_module: str = POLICY_MODULE) -> None:
        """Make the parts; nothing is opened before `run`.

        Args:
            config: What to begin with.
            reload: Called at SIGHUP for the configuration as it is then.
            policy_module: What the child of a learned policy runs.

        Raises:
            SlurmEnergyError: the configuration names something that cannot be used.
        """
        self._reload = reload
        choice = chosen_policy(config)
        config = choice.config
        names_with_runs = NamesWithRuns()
        link = RecorderLink(self._use_history, self._use_live, names_with_runs)
        self.state = DaemonState(
            names_with_runs=names_with_runs,
            config=config,
            decider=create_decider(config),
            journal=JournalQueue(JournalWriter(journal_directory(config), DAEMON_STREAM)),
            recorder=link,
            privileged=privileged_user_ids(config.cluster.slurm_user),
            policy_note=choice.note,
        )
        self.state.uncarried.ask = self._admin_comments
        self._metrics = ChildProcess("metrics", METRICS_MODULE, self._current_config, lambda _frame: None)
        self._report_key = report_key(config)
        self._listeners: list[socket.socket] = []
        verbs = LocalVerbs(self.state)
        door = DoorLink(verbs, self.state)
        self._door_link = door
        self._plugin_door = PluginDoor(lambda: self.state.privileged, verbs.slurm.answer_now)
        self._feed = SnapshotFeed(self.state)
        self._candidates = CandidateSlot(self.state.candidates, lambda: self.state.config, lambda: self.state.snapshot)
        self._policy = PolicySlot(self.state, self._feed.copy, policy_module)
        self._snapshot = ChildProcess("snapshot", SNAPSHOT_MODULE, self._reading_config, self._take)
        self._recorder = ChildProcess("recorder", RECORDER_MODULE, self._current_config, link.receive)
        self._door = ChildProcess("door", DOOR_MODULE, self._current_config, door.receive)
        link.child, door.child = self._recorder, self._door
        self._stop = asyncio.Event()
        self._failed = False

    def _admin_comments(self, job_ids: Sequence[JobId]) -> Mapping[JobId, str]:
        cluster = self.state.config.cluster
        return admin_comments(job_ids, cluster.slurm_bin_directory, cluster.slurm_conf, timeout_seconds=ANSWER_SECONDS)

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises:
            SlurmEnergyError: a door cannot be opened, or a part of the daemon failed.
        """
        daemon = self.state.config.daemon
        lock = lock_state_directory(Path(daemon.state_directory))
        self._listen_to_signals()
        tasks = [asyncio.create_task(self.state.journal.run(), name="journal")]
        try:
            self.state.decision_counts = load_counts(Path(daemon.state_directory))
            self._open_doors()
            children = [self._door, self._snapshot, self._recorder]
            if self.state.config.metrics.host:
                children.append(self._metrics)
            tasks += [asyncio.create_task(child.run(), name=child.name) for child in children]
            tasks.append(asyncio.create_task(self._policy.run(), name="policy"))
            tasks.append(asyncio.create_task(PendingLoop(self.state).run(), name="pending"))
            notify_systemd("READY=1")
            logger.info("daemon ready socket=%s policy=%s", daemon.socket_path, self.state.decider.policy.name)
            self._log_policy_note()
            # Thousands of long-lived values would make each full collection a pause without answers; young
            # values are looked through often, since 50,000 of them at once took 5 ms.
            for task in tasks:
                task.add_done_callback(self._part_ended)
            gc.freeze()
            gc.set_threshold(2_000, 50, 1000)
            await self._stop.wait()
        finally:
            await self._shut_down(tasks)
            os.close(lock)
        if self._failed:
            raise DaemonUnavailable("a part of the daemon failed, see the log: it stopped, to be started afresh")

    def _open_doors(self) -> None:
        """Listen for slurmctld here, and for all others in the name of the door's process.

        Raises:
            ConfigError: a path or an address cannot be used.
        """
        daemon = self.state.config.daemon
        self._listeners.append(local_listener(Path(daemon.socket_path), daemon.socket_mode))
        slurm_user_id = user_id_of(self.state.config.cluster.slurm_user)
        self._plugin_door.open(plugin_listener(Path(daemon.plugin_socket_path), slurm_user_id))
        if daemon.report_host:
            self._listeners.append(report_listener(daemon.report_host, daemon.report_port))
        self._door.inherited = tuple(listener.fileno() for listener in self._listeners)

    async def _shut_down(self, tasks: list[asyncio.Task[None]]) -> None:
        notify_systemd("STOPPING=1")
        self.state.draining = True
        paths = [listener.getsockname() for listener in self._listeners if listener.family == socket.AF_UNIX]
        paths += self._plugin_door.close()
        for listener in self._listeners:
            listener.close()
        await self._door_link.drain(DRAIN_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.state.journal.close()
        directory = Path(self.state.config.daemon.state_directory)
        save_counts(directory, self.state.decision_counts, self.state.counters)
        for path in paths:
            Path(path).unlink(missing_ok=True)
        logger.info("daemon stopped uptime_seconds=%.0f", self.state.uptime_seconds)

    def _part_ended(self, task: asyncio.Task[None]) -> None:
        """Stop when a part fails that must never end: half a daemon would answer from an ever older snapshot."""
        if not task.cancelled() and not self._stop.is_set():
            logger.critical("part failed name=%s", task.get_name(), exc_info=task.exception())
            self._failed = True
            self._stop.set()

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self.reload)

    def reload(self) -> None:
        """Use the configuration file as it is now; a bad one changes nothing and is logged."""
        try:
            is_serving = isinstance(self.state.decider.policy, RemotePolicy)
            choice = chosen_policy(self._reload(), is_serving=is_serving)
            config = choice.config
            decider = create_decider(config)
            key = report_key(config)
        except SlurmEnergyError as error:
            for line in str(error).splitlines():
                logger.error("configuration not reloaded, the old one stays error=%s", line)
            return
        old, self.state.config = self.state.config, config
        door_differs = key != self._report_key or _door_part(old) != _door_part(config)
        self._report_key = key
        self.state.policy_note = choice.note
        self._policy.use(config, decider)
        self._candidates.reload()
        self.state.privileged = privileged_user_ids(config.cluster.slurm_user)
        logging.getLogger().setLevel(config.daemon.log_level)
        if fixed_part(old) != fixed_part(config):
            logger.warning("configuration reloaded, but a changed socket, address or state directory needs a restart")
        if door_differs:
            self._door.restart()
        if (old.cluster, old.daemon) != (config.cluster, config.daemon):
            self._snapshot.restart()
        if old != config:  # whatever it is: reports and estimates rest on settings of many sections
            self._recorder.restart()
        logger.info("configuration reloaded policy=%s", self.state.decider.policy.name)
        self._log_policy_note()

    def _log_policy_note(self) -> None:
        if self.state.policy_note:
            logger.info("policy chosen automatically note=%s", self.state.policy_note)

    def _current_config(self) -> Config:
        return self.state.config

    def _reading_config(self) -> Config:
        """Return the configuration for reading Slurm: without pyslurm once that has crashed."""
        config, crash = self.state.config, self._snapshot.crash
        was_pyslurm = self.state.reader == "pyslurm" or self.state.reader_crash
        if not crash or config.cluster.reader not in ("pyslurm", "auto") or not was_pyslurm:
            self.state.reader_crash = ""
            return config
        self.state.reader_crash = f"pyslurm crashed ({crash}) and is tried again when the daemon starts again"
        logger.error("pyslurm is not used reason=%s", self.state.reader_crash)
        cluster = replace(config.cluster, reader="slurmrestd" if config.cluster.slurmrestd_url else "commands")
        return replace(config, cluster=cluster)

    def _take(self, frame: Any) -> Iterator[None]:
        """Take one frame of the snapshot child in short steps."""
        yield from self._feed.receive(frame)
        if isinstance(frame, SnapshotBegins | SnapshotPart | SnapshotComplete):
            self._policy.forward(frame)

    def _use_history(self, history: JobHistory) -> None:
        self.state.history = history

    def _use_live(self, live: LivePolicy) -> None:
        self._candidates.use(live)


def fixed_part(config: Config) -> tuple[object, ...]:
    """Return the settings that only a restart changes."""
    daemon = config.daemon
    doors = (daemon.socket_path, daemon.socket_mode, daemon.report_host, daemon.report_port, daemon.state_directory)
    return (*doors, config.metrics)


def _door_part(config: Config) -> tuple[object, ...]:
    """Return the settings that the door's process works with."""
    return (config.cluster.slurm_user, config.daemon, config.node.authentication, config.node.hmac_key_path)


def report_key(config: Config) -> bytes | None:
    """Return the key that reports are proven with, None when munge proves them.

    Raises:
        AuthenticationError: the key file cannot be used.
    """
    return load_key(Path(config.node.hmac_key_path)) if config.node.authentication == "hmac" else None


def lock_state_directory(directory: Path) -> int:
    """Return the descriptor that holds the state directory for this daemon alone.

    Raises:
        ConfigError: another daemon holds it, or it cannot be written.
    """
    path = directory / "slurm-energyd.lock"
    try:
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"daemon.state_directory {directory} cannot be used: {error.strerror or error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise ConfigError(f"another daemon uses {directory}: stop it first, or set daemon.state_directory") from None
    return descriptor


def notify_systemd(text: str) -> None:
    """Send one notification to systemd, if it listens (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    name = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.sendto(text.encode(), name)
    except OSError as error:
        logger.warning("systemd not notified text=%s error=%s", text, error)
