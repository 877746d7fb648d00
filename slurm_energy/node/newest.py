"""The newest decision of a job that starts: asked of the daemon within a tight deadline, else the job's own counts.

Only for a job whose entry says that a newer one may be known, and on one node: nodes that wait for each other must not
run at several clocks because one of them got no answer.
"""

import hmac
import os
import time
from pathlib import Path

from slurm_energy.domain.decision import DecisionEntry
from slurm_energy.errors import AuthenticationError, ConfigError, SlurmEnergyError, ValueRangeError
from slurm_energy.forms import parse_addresses
from slurm_energy.node.settings import HookSettings

DEADLINE_SECONDS = 0.2
"""For all daemons together; a prolog has 60 ms of work of its own."""


def newest_entry(carried: DecisionEntry, settings: HookSettings, events: list[str]) -> DecisionEntry:
    """Return what the daemon knows of a job's decision now; what travels in the job where it knows no more.

    Args:
        carried: What travels in the job.
        settings: The node's.
        events: Why there was no answer is added.
    """
    if not carried.may_change or not settings.node.daemon_address:
        return carried
    end = time.monotonic() + DEADLINE_SECONDS
    problem: Exception | None = None
    try:
        addresses = parse_addresses(settings.node.daemon_address)
    except ConfigError as error:
        addresses, problem = (), error
    for address in addresses:
        left = end - time.monotonic()
        if left <= 0.0:
            break
        try:
            text = _ask(address, carried, settings, left)
            return carried if text is None else _checked(text, carried)
        except (SlurmEnergyError, OSError) as error:
            problem = error
    if problem is not None:
        events.append(f"newest decision not fetched, the job's own counts: {problem}")
    return carried


def _ask(address: tuple[str, int], carried: DecisionEntry, settings: HookSettings, seconds: float) -> str | None:
    """Return the newest entry that a daemon knows, None where it knows none; with a shared key it is signed."""
    from slurm_energy.wire.authentication import load_key, newest_mac  # noqa: PLC0415  # most prologs ask nothing
    from slurm_energy.wire.client import exchange_tcp  # noqa: PLC0415
    from slurm_energy.wire.codec import Message  # noqa: PLC0415

    nonce = os.urandom(16).hex()
    request = Message("newest", {"decision_id": str(carried.decision_id), "nonce": nonce})
    reply = exchange_tcp(address, request, seconds)
    if reply.verb != "ok":
        raise AuthenticationError(f"the daemon says {reply.verb}: {reply.fields.get('reason', '')[:200]}")
    text = reply.fields.get("entry", "")
    if settings.node.authentication == "hmac":
        key = load_key(Path(settings.node.hmac_key_path))
        given = reply.fields.get("mac", "")
        if not hmac.compare_digest(newest_mac(key, nonce, text).encode(), given.encode("utf-8", "replace")):
            raise AuthenticationError("the signature of the daemon's answer is wrong")
    return text or None


def _checked(text: str, carried: DecisionEntry) -> DecisionEntry:
    """Return the fetched entry where it is one of this decision, and changes no more than the job's own may.

    Raises:
        ValueRangeError: it is malformed, or another decision's.
    """
    found = DecisionEntry.decode(text)
    if found.decision_id != carried.decision_id or found.mode != carried.mode:
        raise ValueRangeError(f"the daemon answered for decision {found.decision_id} in mode {found.mode}")
    return found
