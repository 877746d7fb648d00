"""What is wrong with one node, from what it reported, and findings that hold for many nodes at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slurm_energy.cli.doctor.finding import Finding, Verdict, several
from slurm_energy.cli.installing.roles import SPANK_PLUGIN
from slurm_energy.domain.node_status import NO_OTHER_RELEASE, GpuStatus, NodeStatus, ReceivedStatus, SpoolStatus
from slurm_energy.slurm.plugin_file import parse_release

MAX_SKEW_SECONDS = 10.0
"""A message's way to the daemon takes less; times of a job on two hosts then still make sense together."""
MAX_REPAIR_AGE_SECONDS = 3600.0
MAX_WAITING_SECONDS = 3600.0
MIN_FREE_BYTES = 64 * 1024 * 1024
CLOCKS, VERSIONS, SPOOLS = "nodes' clocks", "nodes' versions", "nodes' spools"
SETTINGS, GPUS, NUMBERS, REPAIRS = "nodes' settings", "nodes' GPUs", "nodes' GPU numbers", "nodes' repairs"
SUBJECTS = (CLOCKS, VERSIONS, SETTINGS, SPOOLS, GPUS, NUMBERS, REPAIRS)
_SLICE_MARK = "g."
"""In the GRES type of a MIG slice, such as 1g.10gb: Slurm counts more of them than there are GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFinding:
    """One thing about one node; many nodes with the same fix become one finding."""

    node: str
    subject: str
    verdict: Verdict
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJudge:
    """Judges nodes of one cluster."""

    cluster: str
    version: str
    now_seconds: float

    def judged(self, node: str, gpu_count: int, received: ReceivedStatus) -> Iterator[NodeFinding]:
        """Yield what is wrong with a node, and for each subject in which nothing is, that it is well.

        Args:
            node: Slurm's name of it.
            gpu_count: How many GPUs Slurm counts there.
            received: What it reported last.
        """
        status = received.status
        found = [
            *self._clock(received),
            *self._versions(status),
            *self._settings(status),
            *_spool(status.spool),
            *_gpus(status, gpu_count),
            *_numbers(status.gpus or ()),
            *self._repair(status),
        ]
        wrong = {subject for subject, *_ in found}
        for subject, verdict, text, fix in found:
            yield NodeFinding(node=node, subject=subject, verdict=verdict, text=text, fix=fix)
        for subject in SUBJECTS:
            if subject not in wrong:
                yield NodeFinding(node=node, subject=subject, verdict=Verdict.OK, text="")

    def _clock(self, received: ReceivedStatus) -> Iterator[tuple[str, Verdict, str, str]]:
        skew = received.clock_skew_seconds
        if abs(skew) > MAX_SKEW_SECONDS:
            text = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the controller"
            yield CLOCKS, Verdict.FAIL, text, "run chrony or another NTP client there and on the controller"

    def _versions(self, status: NodeStatus) -> Iterator[tuple[str, Verdict, str, str]]:
        if status.hook_version != self.version:
            text = f"slurm-energy {status.hook_version}, the controller has {self.version}"
            yield VERSIONS, Verdict.WARN, text, "install the same version on every host"
        slurmd = parse_release(status.slurm_version or "")
        for plugin in status.plugins:
            built = parse_release(plugin.version)
            if not plugin.path.endswith(SPANK_PLUGIN) or slurmd is None or built is None:
                continue
            if plugin.version.endswith(NO_OTHER_RELEASE) and built.series != slurmd.series:
                text = f"{plugin.path} is built for Slurm {built}, slurmd is {slurmd}: each step prints an error"
                yield VERSIONS, Verdict.FAIL, text, "slurm-energy install --role node --build-plugin there"

    def _settings(self, status: NodeStatus) -> Iterator[tuple[str, Verdict, str, str]]:
        if status.cluster != self.cluster:
            text = f"cluster.name is {status.cluster} there and {self.cluster} here: its reports find no job"
            yield SETTINGS, Verdict.FAIL, text, f'name = "{self.cluster}" under [cluster] in slurm-energy.toml there'
        for problem in status.problems:
            yield SETTINGS, Verdict.FAIL, problem, "slurm-energy install --role node there; slurm-energy-hook flush"

    def _repair(self, status: NodeStatus) -> Iterator[tuple[str, Verdict, str, str]]:
        timer = "systemctl enable --now slurm-energy-repair.timer there"
        if status.repaired_at_seconds is None:
            yield REPAIRS, Verdict.FAIL, "no repair has run: clocks that an interrupted epilog left would stay", timer
            return
        age = status.sent_at_seconds - status.repaired_at_seconds
        if age > MAX_REPAIR_AGE_SECONDS:
            yield REPAIRS, Verdict.FAIL, f"the last repair ran {age / 3600.0:.1f} h ago", timer
        elif status.repair_clean is False:
            said = f": {status.repair_said[-1]}" if status.repair_said else ""
            fix = "slurm-energy-hook repair (as root, there) says what it cannot put back"
            yield REPAIRS, Verdict.FAIL, f"the last repair left something{said}", fix


def _spool(spool: SpoolStatus) -> Iterator[tuple[str, Verdict, str, str]]:
    where = spool.path
    if not spool.exists:
        return  # the first job makes it
    if spool.owner_user_id not in (None, 0):
        text = f"{where} belongs to uid {spool.owner_user_id}, who could change what is measured"
        yield SPOOLS, Verdict.FAIL, text, f"chown -R root: {where}; chmod 700 {where}"
    if spool.mode is not None and spool.mode & 0o022:
        text = f"{where} has mode {spool.mode:04o}: others may write to it"
        yield SPOOLS, Verdict.FAIL, text, f"chmod 700 {where}, and look for files that are not root's"
    if spool.free_bytes is not None and spool.free_bytes < MIN_FREE_BYTES:
        text = f"{where} has {spool.free_bytes // 1024} KiB left on its disk: reports get lost"
        yield SPOOLS, Verdict.FAIL, text, "make room there, or set node.spool_directory to another disk"
    if spool.oldest_waiting_seconds is not None and spool.oldest_waiting_seconds > MAX_WAITING_SECONDS:
        text = f"{spool.waiting_reports} reports wait, the oldest {spool.oldest_waiting_seconds / 3600.0:.1f} h"
        yield SPOOLS, Verdict.FAIL, text, "slurm-energy-hook flush (as root, there) says why they are not delivered"
    if spool.rejected_files:
        text = f"{spool.rejected_files} files in {where}/rejected that could not be used"
        yield SPOOLS, Verdict.WARN, text, "read them, report the fault, then delete them"


def _gpus(status: NodeStatus, gpu_count: int) -> Iterator[tuple[str, Verdict, str, str]]:
    if not gpu_count:
        return
    if status.driver_problem is not None:
        yield (
            GPUS,
            Verdict.FAIL,
            status.driver_problem,
            "nvidia-smi there; install the driver, or set node.nvml_library",
        )
        return
    if status.gpus is None:
        return  # no repair has run since it started, which `repairs` says
    sliced = any(_SLICE_MARK in (gpu.slurm_type or "") for gpu in status.gpus)
    if len(status.gpus) < gpu_count and not sliced:
        text = f"Slurm counts {gpu_count} GPUs there, the driver shows {len(status.gpus)}"
        yield GPUS, Verdict.FAIL, text, "nvidia-smi there: one that fell off the bus needs a restart of the node"


def _numbers(gpus: Sequence[GpuStatus]) -> Iterator[tuple[str, Verdict, str, str]]:
    """Yield where it is not proven which GPU each of Slurm's numbers is, and where three orders of them differ."""
    unproven = [gpu for gpu in gpus if not gpu.proof and (gpu.position is not None or gpu.unproven)]
    forgotten = [gpu for gpu in gpus if gpu.position is None and not gpu.unproven]
    apart = [gpu for gpu in gpus if gpu.minor_number is not None and gpu.minor_number != gpu.index]
    if unproven:
        why = several(dict.fromkeys(gpu.unproven or "it is not known why" for gpu in unproven), 2)
        text = f"{len(unproven)} of {len(gpus)} GPUs are not proven to be one of Slurm's, no clock is set there: {why}"
        fix = (
            "slurm-energy doctor there shows each; compare slurmd -G with nvidia-smi -q, then slurm-energy-hook repair"
        )
        yield NUMBERS, Verdict.FAIL, text, fix
    if forgotten:
        text = f"Slurm does not count {len(forgotten)} of {len(gpus)} GPUs: {several(gpu.uuid for gpu in forgotten)}"
        yield NUMBERS, Verdict.WARN, text, "add them to gres.conf and slurm.conf, unless they are not for jobs"
    if apart and not unproven:
        pairs = several((f"/dev/nvidia{gpu.minor_number} is the driver's {gpu.index}" for gpu in apart), 4)
        mapping = several((f"{gpu.position} = {gpu.uuid}" for gpu in gpus), 8)
        ways = several(dict.fromkeys(gpu.proof for gpu in gpus), 2)
        yield NUMBERS, Verdict.OK, f"{pairs}; Slurm's numbers are {mapping} (by {ways})", ""


def findings_of(judged: Sequence[NodeFinding]) -> Iterator[Finding]:
    """Yield one finding for each thing that is wrong, whatever the number of nodes, and one for all that is well."""
    for subject in SUBJECTS:
        of_subject = [one for one in judged if one.subject == subject]
        groups: dict[tuple[Verdict, str], list[NodeFinding]] = {}
        for one in of_subject:
            if one.verdict is not Verdict.OK or one.text:
                groups.setdefault((one.verdict, one.fix), []).append(one)
        for (verdict, fix), members in groups.items():
            yield Finding(subject=subject, verdict=verdict, found=_where(members), fix=fix)
        if of_subject and not groups:
            yield Finding(subject=subject, verdict=Verdict.OK, found=f"{len(of_subject)} nodes as they should be")


def _where(members: Sequence[NodeFinding]) -> str:
    texts = {one.text for one in members}
    if len(texts) == 1:
        return f"{several(one.node for one in members)}: {members[0].text}"
    return several((f"{one.node}: {one.text}" for one in members), 4)
