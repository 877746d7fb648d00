"""The newest decision of a job that starts: asked of the daemon within a tight deadline, else the job's own counts.

Only for a job whose entry says that a newer one may be known, or where jobs carry none, and on one node: nodes that
wait for each other must not run at several clocks because one of them got no answer.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_energy.domain.decision import DecisionEntry
from slurm_energy.domain.ids import JobId
from slurm_energy.errors import AuthenticationError, ConfigError, SlurmEnergyError, ValueRangeError
from slurm_energy.forms import parse_addresses
from slurm_energy.node.settings import HookSettings

if TYPE_CHECKING:
    from slurm_energy.wire.codec import Message

_NOT_FETCHED = "newest decision not fetched, the job's own counts"
DEADLINE_SECONDS = 0.2
"""For all daemons together, whatever is in the way; a prolog has 60 ms of work of its own."""
JOB_DEADLINE_SECONDS = 1.0
"""The same by the job's number: the daemon must be shown who asks, and may have to ask Slurm."""


def newest_entry(carried: DecisionEntry, settings: HookSettings, events: list[str]) -> DecisionEntry:
    """Return what the daemon knows of a job's decision now; what travels in the job where it knows no more.

    Args:
        carried: What travels in the job.
        settings: The node's.
        events: Why there was no answer is added.
    """
    if not carried.may_change:
        return carried
    text = _first_answer(settings, events, DEADLINE_SECONDS, lambda: _of_decision(carried))
    try:
        return carried if text is None else _checked(text, carried)
    except SlurmEnergyError as error:
        events.append(f"{_NOT_FETCHED}: {error}")
        return carried


def entry_of_job(job_id: JobId, settings: HookSettings, events: list[str]) -> DecisionEntry | None:
    """Return what the daemon decided about a job that carries no decision; None where it decided nothing, or is away.

    Args:
        job_id: Slurm's own number, of an array's task too.
        settings: The node's.
        events: Why there was no answer is added.
    """
    end = time.monotonic() + JOB_DEADLINE_SECONDS
    text = _first_answer(settings, events, JOB_DEADLINE_SECONDS, lambda: _of_job(job_id, settings, end))
    try:
        return None if text is None else DecisionEntry.decode(text)
    except SlurmEnergyError as error:
        events.append(f"{_NOT_FETCHED}: {error}")
        return None


def _first_answer(
    settings: HookSettings, events: list[str], seconds: float, question: "Callable[[], Message]"
) -> str | None:
    """Return the entry that the first daemon to answer gave, None where it knows none or no daemon answered in time.

    In a thread: the names of daemons may be looked up in a network that is away, which no time limit ends.
    """
    if not settings.node.daemon_address:
        return None
    end = time.monotonic() + seconds
    found: list[tuple[str | None, str]] = []

    def ask() -> None:
        problem = ""
        try:
            for address in parse_addresses(settings.node.daemon_address):
                if time.monotonic() >= end:
                    break
                try:
                    found.append(ask_daemon(address, question(), settings, end))
                    return
                except (SlurmEnergyError, OSError) as error:
                    problem = f"{error}"
        except ConfigError as error:
            problem = f"{error}"
        found.append((None, problem))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(seconds)
    text, problem = found[0] if found else (None, f"no daemon answered within {seconds:g} s")
    if problem:
        events.append(f"{_NOT_FETCHED}: {problem}")
    return text


def _of_decision(carried: DecisionEntry) -> "Message":
    from slurm_energy.wire.codec import Message  # noqa: PLC0415  # most prologs ask nothing

    return Message("newest", {"decision_id": str(carried.decision_id), "nonce": os.urandom(16).hex()})


def _of_job(job_id: JobId, settings: HookSettings, end_seconds: float) -> "Message":
    """Return the question by the job's number, with a proof that a node asks."""
    from slurm_energy.wire.authentication import load_key, sign  # noqa: PLC0415  # most prologs ask nothing
    from slurm_energy.wire.codec import Message  # noqa: PLC0415

    nonce = os.urandom(16).hex()
    key = load_key(Path(settings.node.hmac_key_path)) if settings.node.authentication == "hmac" else None
    left = max(end_seconds - time.monotonic(), 0.05)
    signed = sign(f"newest {job_id}".encode(), key=key, tool_seconds=left)
    return Message("newest", {"nonce": nonce, **signed.fields})


def ask_daemon(
    address: tuple[str, int], request: "Message", settings: HookSettings, end_seconds: float
) -> tuple[str | None, str]:
    """Return the entry that a daemon answers with, None where it has none, and what it says of that.

    An entry counts only with a proof that the daemon sent it: signed with the shared key, or in a credential that munge
    made for root or SlurmUser. Another process that listens at the daemon's port sets no clock.
    """
    from slurm_energy.wire.authentication import check_answer, load_key  # noqa: PLC0415  # most prologs ask nothing
    from slurm_energy.wire.client import exchange_tcp  # noqa: PLC0415

    reply = exchange_tcp(address, request, max(end_seconds - time.monotonic(), 0.001))
    if reply.verb != "ok":
        raise AuthenticationError(f"the daemon says {reply.verb}: {reply.fields.get('reason', '')[:200]}")
    if not reply.fields.get("entry"):
        return None, reply.fields.get("note", "")[:200]
    key = load_key(Path(settings.node.hmac_key_path)) if settings.node.authentication == "hmac" else None
    left = max(end_seconds - time.monotonic(), 0.05)
    text = check_answer("newest", reply, request.fields["nonce"], key, _daemon_user_ids(settings), tool_seconds=left)
    return text, ""


def _daemon_user_ids(settings: HookSettings) -> frozenset[int]:
    """Return whom the daemon may run as: root, or SlurmUser where this node knows it."""
    import pwd  # noqa: PLC0415  # most prologs ask nothing

    try:
        return frozenset({0, pwd.getpwnam(settings.slurm_user).pw_uid})
    except KeyError:
        return frozenset({0})


def _checked(text: str, carried: DecisionEntry) -> DecisionEntry:
    """Return the fetched entry where it is one of this decision, in the same mode.

    Raises:
        ValueRangeError: it is malformed, or another decision's.
    """
    found = DecisionEntry.decode(text)
    if found.decision_id != carried.decision_id or found.mode != carried.mode:
        raise ValueRangeError(f"the daemon answered for decision {found.decision_id} in mode {found.mode}")
    return found
