"""The hook's verbs, put together with the real doors."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from slurm_energy.device.gpu import GpuDriver, is_amd_node
from slurm_energy.domain.ids import JobId, NodeName, Sluid, parse_job_id
from slurm_energy.errors import SlurmEnergyError
from slurm_energy.node.context import HookContext
from slurm_energy.node.gpu_order import GpuOrder, order_finder
from slurm_energy.node.lock_records import LockRecords
from slurm_energy.node.log import HookLog, append_lines
from slurm_energy.node.processes import read_boot_id, spawn_flush, spawn_sampler
from slurm_energy.node.settings import (
    HookSettings,
    conf_path,
    hook_limit_seconds,
    load_settings,
    slurmd_limit_seconds,
)
from slurm_energy.node.spool import Spool
from slurm_energy.slurm.hook_env import parse_hook_environment

OFF_PATH_SECONDS = 120.0
"""flush and repair keep no job waiting and may take longer."""

ORDER_SHARE = 0.4
"""Share of a hook's time in which slurmd may tell its order of GPUs, where that is not known."""


class ProgressPipe:
    """How the working process talks to the one that watches it: one line per word, in one pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.log_path = ""
        self.kept: list[str] = []
        """Lines for the log, written after the result is sent."""

    def say(self, kind: str, text: str) -> None:
        """Send one line: L to show, S for the stage, T for the time limit, F for the log's path, X for the result."""
        line = f"{kind}{text[:3000]}".replace("\n", " ")
        os.write(self._descriptor, line.encode("utf-8", "replace") + b"\n")

    def echo(self, text: str) -> None:
        """Show a line."""
        self.say("L", text)

    def stage(self, text: str) -> None:
        """Say what is being done."""
        self.say("S", text)

    def finish(self, status: int) -> None:
        """Tell the result, which ends the waiting; then write the log, which may hang."""
        self.say("X", f"{status}")
        append_lines(self.log_path, self.kept)


def execute(verb: str, options: Mapping[str, str], environment: Mapping[str, str], progress: ProgressPipe) -> int:
    """Run one verb; return 0 when all was done, 1 when something is left or failed."""
    said: list[str] = []

    def echo(line: str) -> None:
        said.append(line)
        progress.echo(line)

    log = HookLog("", verb, echo, progress.kept)
    try:
        if verb in {"prolog", "epilog"}:
            hook = parse_hook_environment(environment)
        settings = load_settings(environment, options.get("node"))
        if verb == "prolog" and not hook.has_gpus and not settings.node.cpu_jobs:
            return 0
        progress.log_path = settings.log_path
        if settings.problem is not None:
            log.write(settings.problem)
        progress.say("F", settings.log_path)
        on_path = verb in {"prolog", "epilog"}
        progress.say("T", f"{_limit_seconds(verb, settings, environment) if on_path else OFF_PATH_SECONDS}")
        context = make_context(settings, log, progress.stage)
        return 0 if _run(verb, options, environment, context, said) else 1
    except SlurmEnergyError as error:
        log.write(str(error))
        return 1


def _limit_seconds(verb: str, settings: HookSettings, environment: Mapping[str, str]) -> float:
    """Return how long a hook may take."""
    slurm_conf = conf_path(environment.get("SLURM_CONF") or settings.slurm_conf)
    return hook_limit_seconds(settings.node.time_limit_seconds, slurmd_limit_seconds(slurm_conf, verb))


def run_sample(options: Mapping[str, str], environment: Mapping[str, str]) -> int:
    """Run the sampler in this process until its job ends."""
    from slurm_energy.node.sampler import run_sampler  # noqa: PLC0415  # its own process only

    settings = load_settings(environment, options.get("node"))
    context = make_context(settings, HookLog(settings.log_path, "sample", _discard), _discard)
    job_id = parse_job_id(options.get("job", ""))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        run_sampler(context, job_id, _sleep_until_terminated)
    except SlurmEnergyError as error:
        context.log.write(f"job {job_id}: sampler ends: {error}")
        return 1
    return 0


def deliver_status(environment: Mapping[str, str]) -> None:
    """Send this node's status as `flush` does, whether or not it is due.

    Raises:
        SlurmEnergyError: settings cannot be used, the daemon is away, or it takes nothing from here.
    """
    from slurm_energy.node.flush import send_status  # noqa: PLC0415  # a person asked, no job waits
    from slurm_energy.node.status import node_status  # noqa: PLC0415

    settings = load_settings(environment)
    context = make_context(settings, HookLog("", "flush", _discard), _discard)
    send_status(context, node_status(context))


def make_context(settings: HookSettings, log: HookLog, stage: Callable[[str], None]) -> HookContext:
    """Return the real doors."""

    def driver() -> GpuDriver:
        if not settings.node.nvml_library and is_amd_node():
            from slurm_energy.device.amd import AmdDriver  # noqa: PLC0415  # few nodes

            return AmdDriver()
        from slurm_energy.device.nvml import NvmlDriver  # noqa: PLC0415  # jobs without GPUs do not pay for it

        return NvmlDriver(settings.node.nvml_library)

    silent: list[JobId] = []

    def job_state(job_id: JobId, node: NodeName) -> str | None:
        from slurm_energy.slurm.command import job_on_node  # noqa: PLC0415  # repair only, and rarely

        if silent:  # once is enough: each question may take its whole time
            return None
        state = job_on_node(job_id, node, settings.slurm_bin_directory, settings.slurm_conf)
        silent.extend([job_id] if state is None else [])
        return state

    def start_sampler(job_id: JobId) -> None:
        spawn_sampler(sys.executable, job_id, settings.node_name)

    boot_id = read_boot_id()

    def live_jobs() -> frozenset[JobId | Sluid]:
        from slurm_energy.node.steps import live_jobs  # noqa: PLC0415  # most hooks do not ask

        return live_jobs()

    def gpu_order(slurm_conf: str | None) -> GpuOrder:
        limit_seconds = ORDER_SHARE * settings.node.time_limit_seconds
        return order_finder(settings, boot_id, slurm_conf).order(limit_seconds)

    def start_flush() -> None:
        spawn_flush(sys.executable, settings.node_name)

    return HookContext(
        settings=settings,
        spool=Spool(settings.spool_directory),
        driver=driver,
        log=log,
        boot_id=boot_id,
        now=time.time,
        monotonic=time.monotonic,
        pause=time.sleep,
        stage=stage,
        start_sampler=start_sampler,
        start_flush=start_flush,
        live_jobs=live_jobs,
        gpu_order=gpu_order,
        job_state=job_state,
        lock_records=LockRecords(settings.run_directory),
    )


def learn_order(context: HookContext, slurm_conf: str | None) -> None:
    """Learn Slurm's order of the GPUs before a job needs it, where it is not known."""
    context.stage("learning the order of the GPUs from slurmd")
    context.spool.prepare()
    order = order_finder(context.settings, context.boot_id, slurm_conf).refresh()
    if order.problem and (order.ways or order.stated):  # not on a node without GPUs
        context.log.write(f"order of GPUs: {order.problem}")


def _run(
    verb: str, options: Mapping[str, str], environment: Mapping[str, str], context: HookContext, said: Sequence[str]
) -> bool:
    if verb == "flush":
        from slurm_energy.node.flush import run_flush, run_flush_soon  # noqa: PLC0415

        if "soon" in options:
            import random  # noqa: PLC0415  # prolog and epilog do not pay for it

            return run_flush_soon(context, environment.get("SLURM_NODELIST", ""), random.random)
        return run_flush(context)
    if verb == "repair":
        from slurm_energy.node.repair import run_repair  # noqa: PLC0415
        from slurm_energy.node.status import note_repair  # noqa: PLC0415

        learn_order(context, environment.get("SLURM_CONF"))
        clean = False
        try:
            clean = run_repair(context, everything="all" in options)
        except SlurmEnergyError as error:
            context.log.write(str(error))
        note_repair(context, clean=clean, said=said)
        return clean
    hook = parse_hook_environment(environment)
    from slurm_energy.node.hooks import run_epilog, run_prolog  # noqa: PLC0415

    (run_prolog if verb == "prolog" else run_epilog)(context, hook)
    return True


def _sleep_until_terminated(seconds: float) -> bool:
    """Wait; return True when SIGTERM, which is blocked, came."""
    if seconds <= 0.0:
        return signal.SIGTERM in signal.sigpending()
    return signal.sigtimedwait([signal.SIGTERM], seconds) is not None


def _discard(text: str) -> None:
    """Drop a line."""
