"""Who is at the other end of the unix socket, and what he may ask."""

import contextlib
import os
import pwd
import socket
import struct
from dataclasses import dataclass
from typing import Protocol

_CREDENTIALS = struct.Struct("iII")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The kernel's word on a caller."""

    process_id: int
    user_id: int
    privileged: bool
    """root, SlurmUser or the daemon's own user: may ask for decisions and about everybody's jobs."""


class HasSocketOptions(Protocol):
    """A socket, or asyncio's view of one."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        """Return the raw value of an option."""
        ...


def privileged_user_ids(slurm_user: str) -> frozenset[int]:
    """Return the uids that may ask for decisions; an unknown `slurm_user` adds none."""
    slurm_user_id = user_id_of(slurm_user)
    return frozenset({0, os.geteuid()} | (set() if slurm_user_id is None else {slurm_user_id}))


def user_id_of(user: str) -> int | None:
    """Return the uid of a login name or of a number, None for an unknown one."""
    with contextlib.suppress(KeyError):
        return int(user) if user.isdigit() else pwd.getpwnam(user).pw_uid
    return None


def peer_of(connection: HasSocketOptions, privileged: frozenset[int]) -> Peer:
    """Return the peer of a connected unix socket."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process_id, user_id, _group_id = _CREDENTIALS.unpack(raw)
    return Peer(process_id=process_id, user_id=user_id, privileged=user_id in privileged)
