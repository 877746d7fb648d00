"""What the wrapper asks the daemon: one short line about a job that was submitted, or about one that might be."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_energy.errors import PermissionRefused, SlurmEnergyError, WireError
from slurm_energy.wire.client import exchange
from slurm_energy.wire.codec import Message


def explanation_line(socket_path: str, job_id: str, deadline_seconds: float) -> str:
    """Return the message that was decided for a job; empty when there is none.

    Raises:
        SlurmEnergyError: no daemon, no answer in time, not allowed, or a malformed answer.
    """
    reply = asked(socket_path, Message("query", {"what": "explain", "job": job_id}), deadline_seconds)
    record = json_document(reply).get("record")
    decision = record.get("decision") if isinstance(record, dict) else None
    if not isinstance(decision, dict) or _is_quiet(decision):
        return ""
    return str(decision.get("message") or "")


def _is_quiet(decision: Mapping[str, Any]) -> bool:
    """Return whether the user asked for silence, be it in the script."""
    value: Any = decision
    for key in ("asked", "options", "quiet"):
        value = value.get(key) if isinstance(value, dict) else None
    return bool(value)


def asked(socket_path: str, request: Message, deadline_seconds: float) -> Message:
    """Return the daemon's reply if it is `ok`.

    Raises:
        PermissionRefused: the daemon refuses this request from this user.
        SlurmEnergyError: it cannot serve the request, or cannot be reached.
    """
    reply = exchange(Path(socket_path), request, deadline_seconds)
    reason = reply.fields.get("reason") or "without a reason"
    if reply.verb == "refused":
        raise PermissionRefused(f"the daemon refuses: {reason}")
    if reply.verb == "error":
        raise SlurmEnergyError(f"the daemon cannot answer: {reason}")
    if reply.verb != "ok":
        raise WireError(f"the daemon's reply has status {reply.verb!r}, one of ok, refused and error is known")
    return reply


def json_document(reply: Message) -> dict[str, Any]:
    """Return the object in a reply's `json` field.

    Raises:
        WireError: there is none, or it is not a JSON object.
    """
    try:
        document = json.loads(reply.fields["json"])
    except (KeyError, ValueError, RecursionError) as error:
        raise WireError("the daemon's reply carries no JSON") from error
    if not isinstance(document, dict):
        raise WireError("the daemon's reply carries no JSON object")
    return document


def preview(socket_path: str, fields: Mapping[str, str], deadline_seconds: float) -> tuple[str, dict[str, Any]]:
    """Return the line and the explanation of what would be decided for a job.

    Raises:
        SlurmEnergyError: no daemon, no answer in time, not allowed, or a malformed answer.
    """
    reply = asked(socket_path, Message("preview", fields), deadline_seconds)
    return reply.fields.get("message", ""), json_document(reply)
