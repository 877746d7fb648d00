"""What each reason means, in words for people."""

from collections.abc import Mapping

from slurm_energy.domain.decision import Reason

REASON_SENTENCES: Mapping[Reason, str] = {
    Reason.POLICY: "The policy chose this setting.",
    Reason.NOTHING_CHANGED: "The policy left the job as it was asked for.",
    Reason.NO_CLOCK_IN_BOUND: "No lower clock is inside the allowed slowdown: it stays at the default.",
    Reason.USER_OFF: "The user opted out with --energy=off.",
    Reason.OBSERVE_ONLY: "Only observed: recorded, nothing changed.",
    Reason.USER_PARTITION: "The user named the partition; it was kept.",
    Reason.USER_CLOCK: "The user set a GPU clock with --gpu-freq; it was kept.",
    Reason.UNKNOWN_PARTITION: "No partition that the job goes to is known here: nothing could be chosen.",
    Reason.NO_SUCH_GPU: "No node of the job's partitions has GPUs of the type asked for: there is no clock to choose.",
    Reason.ROUTING_CLOSED: "The site does not let the policy choose partitions.",
    Reason.PARTITION_NOT_ALLOWED: "A partition was left out: this user, account, QOS or request may not run there.",
    Reason.NO_IDLE_PARTITION: "No partition has room now; the job waits where Slurm puts it.",
    Reason.NO_GPU: "The job asks for no GPU: there is no clock to choose.",
    Reason.UNKNOWN_GPU_TYPE: "A GPU type is not in the catalogue: its clock stays at the default.",
    Reason.STALE_SNAPSHOT: "The picture of the cluster was too old to decide on.",
    Reason.NO_SNAPSHOT: "There was no picture of the cluster yet.",
    Reason.POLICY_ERROR: "The policy failed; the baseline decided, or the job went through unchanged.",
    Reason.POLICY_LOADING: "The learned policy was not ready yet; the baseline decided.",
    Reason.POLICY_TIMEOUT: "The learned policy did not answer in time; the baseline decided.",
    Reason.SLOWDOWN_BOUND: "The clock was kept high enough for the allowed slowdown.",
    Reason.TIME_LIMIT: "The clock was kept high enough for the job's time limit.",
    Reason.DEADLINE: "The clock was kept high enough for the job's deadline.",
    Reason.CLOCK_TABLE: "The clock was moved to one that the GPU supports.",
    Reason.NO_SAVING: "No clock would save enough energy: it stays at the default.",
}


_ASKED = "The policy was asked."


def reason_sentence(reason: str, *, changed: bool = True) -> str:
    """Return the sentence for a reason; a code that this version does not know stands for itself.

    Args:
        reason: Its code.
        changed: Whether the decision changed anything: what was left as it was, nobody chose.
    """
    if reason == Reason.POLICY and not changed:
        return _ASKED
    try:
        return REASON_SENTENCES.get(Reason(reason), str(reason))
    except ValueError:
        return str(reason)
