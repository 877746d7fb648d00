"""Policies as they were used: name, version and settings."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from slurm_energy.store.tables import PolicyRow
from slurm_energy.store.upsert import insert_if_absent


def ensure_policy(
    session: Session, name: str, version: str, settings: Mapping[str, Any], used_at_seconds: float
) -> PolicyRow:
    """Return the policy's row, made at its first use."""
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=False)
    digest = hashlib.sha256(text.encode()).hexdigest()
    query = select(PolicyRow).where(
        PolicyRow.name == name, PolicyRow.version == version, PolicyRow.settings_digest == digest
    )
    row = session.scalar(query)
    if row is None:
        values = {
            "name": name,
            "version": version,
            "settings_digest": digest,
            "settings": json.loads(text),
            "first_used_at_seconds": used_at_seconds,
        }
        insert_if_absent(session, PolicyRow, [values])
        row = session.scalars(query).one()
    return row
