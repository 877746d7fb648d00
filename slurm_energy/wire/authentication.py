"""How a node authenticates a report, and a user his question: a munge credential that holds it, or an HMAC by a key.

A munge credential names who made it, and its payload is encrypted with the clusters' common key.
"""

import hmac
import os
import re
import subprocess
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_energy.errors import AuthenticationError, WireError
from slurm_energy.wire.codec import Message

MIN_KEY_BYTES = 32
MAX_AGE_SECONDS = 300.0
"""A signature that is older, or further in the future, is refused: as long as munge's own credentials live."""
MAX_MUNGE_PAYLOAD_BYTES = 524_288
"""munged refuses requests over 1 MiB, and base64 makes a credential a third longer."""
TOOL_TIMEOUT_SECONDS = 10.0

_TOOL_FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/munge/bin")
_NONCE = re.compile(r"[0-9a-f]{32}\Z")
_TIMESTAMP = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?\Z")
_MUNGE_STATUS = re.compile(rb"^STATUS: *([^\n]*)", re.MULTILINE)
_MUNGE_UID = re.compile(rb"^UID:[^\n]*\(([0-9]+)\)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A body whose sender is authenticated; `user_id` is None for a shared key, which names no user."""

    body: bytes
    user_id: int | None


class ReplayGuard:
    """Remembers the nonces of the last minutes, so that no signed message is taken twice."""

    def __init__(self, keep_seconds: float = 2 * MAX_AGE_SECONDS) -> None:
        self._keep_seconds = keep_seconds
        self._seen: dict[str, float] = {}
        self._lock = threading.Lock()

    def first_time(self, nonce: str, now_seconds: float) -> bool:
        """Return True and remember the nonce, or False when it was seen before."""
        with self._lock:
            return self._first_time(nonce, now_seconds)

    def _first_time(self, nonce: str, now_seconds: float) -> bool:
        while self._seen:
            oldest = next(iter(self._seen))
            if self._seen[oldest] > now_seconds - self._keep_seconds:
                break
            del self._seen[oldest]
        if nonce in self._seen:
            return False
        self._seen[nonce] = now_seconds
        return True


def sign(
    body: bytes,
    *,
    key: bytes | None = None,
    now_seconds: float | None = None,
    tool_seconds: float = TOOL_TIMEOUT_SECONDS,
    verb: str = "report",
) -> Message:
    """Return the message that carries the body: with a key by HMAC, without one by munge.

    Args:
        body: What is sent; it begins as its verb's bodies do, so that none can pass for one of another verb.
        key: The shared key; None for munge.
        now_seconds: Unix time.
        tool_seconds: How long munge may take.
        verb: Of the message.

    Raises:
        AuthenticationError: munge is missing, refuses or hangs.
    """
    if key is None:
        return Message(verb, {"auth": "munge", "credential": _munge(body, tool_seconds)})
    timestamp = f"{time.time() if now_seconds is None else now_seconds:.3f}"
    nonce = os.urandom(16).hex()
    mac = _mac(key, timestamp, nonce, body)
    text = body.decode("utf-8", "surrogateescape")
    fields = {"auth": "hmac", "body": text, "timestamp": timestamp, "nonce": nonce, "mac": mac}
    return Message(verb, fields)


def verify(
    message: Message,
    *,
    key: bytes | None,
    replay: ReplayGuard,
    allowed_user_ids: Collection[int] | None = (0,),
    now_seconds: float | None = None,
) -> Verified:
    """Return the body of a signed message if its sender is authenticated.

    Args:
        message: The message as it came.
        key: The shared key when the site uses HMAC, None when it uses munge; a message made the other way is refused.
        replay: Nonces seen before; one for the whole process.
        allowed_user_ids: Who may send it by munge: hooks run as root; None: every user.
        now_seconds: Unix time.

    Raises:
        AuthenticationError: anything else than a fresh, untouched message of an allowed sender.
    """
    now = time.time() if now_seconds is None else now_seconds
    way = message.fields.get("auth", "")
    if way != ("munge" if key is None else "hmac"):
        raise AuthenticationError(
            f"report is proven by {way[:32]!r}, this site uses {'munge' if key is None else 'hmac'}"
        )
    if key is not None:
        return Verified(body=_verify_mac(message, key, replay, now), user_id=None)
    body, user_id = _unmunge(message.fields.get("credential", ""))
    if allowed_user_ids is not None and user_id not in allowed_user_ids:
        raise AuthenticationError(f"report comes from uid {user_id}, allowed: {sorted(allowed_user_ids)}")
    return Verified(body=body, user_id=user_id)


def load_key(path: Path) -> bytes:
    """Return the shared key.

    Raises:
        AuthenticationError: unreadable, under 32 bytes, or open to other users.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            key = file.read(65_536).strip()
    except OSError as error:
        raise AuthenticationError(f"report key {path} cannot be read: {error.strerror}") from error
    if mode & 0o007:
        raise AuthenticationError(f"report key {path} is open to every user (mode {mode & 0o777:o}): chmod 640 or 600")
    if len(key) < MIN_KEY_BYTES:
        raise AuthenticationError(f"report key {path} has {len(key)} bytes, at least {MIN_KEY_BYTES} are needed")
    return key


def prove_answer(
    kind: str, nonce: str, text: str, key: bytes | None, *, for_user_id: int | None = None
) -> dict[str, str]:
    """Return the fields that prove an answer to be the daemon's own: a signature, or a credential that holds it.

    Args:
        kind: What was asked for: an answer to one question is none to another.
        nonce: That was asked with.
        text: The answer.
        key: The shared key; None for munge.
        for_user_id: Who alone can open the credential; None: who can run munge here.

    Raises:
        AuthenticationError: munge is missing, refuses or hangs.
    """
    if key is not None:
        return {"mac": answer_mac(kind, key, nonce, text)}
    return {"credential": _munge(_answer_body(kind, nonce, text), TOOL_TIMEOUT_SECONDS, for_user_id)}


def check_answer(
    kind: str, reply: Message, nonce: str, key: bytes | None, user_ids: Collection[int], *, tool_seconds: float
) -> str:
    """Return the text of an answer that a daemon has proven to be its own.

    Args:
        kind: What was asked for; the reply's field of this name has the text where it is signed.
        reply: The answer.
        nonce: That was asked with.
        key: The shared key; None for munge.
        user_ids: Whom the daemon may run as.
        tool_seconds: How long munge may take.

    Raises:
        AuthenticationError: there is no such proof.
    """
    if key is not None:
        text = reply.fields.get(ANSWER_FIELDS[kind], "")
        given = reply.fields.get("mac", "").encode("utf-8", "replace")
        if not hmac.compare_digest(answer_mac(kind, key, nonce, text).encode(), given):
            raise AuthenticationError("the signature of the daemon's answer is wrong")
        return text
    body, user_id = _unmunge(reply.fields.get("credential", ""), tool_seconds)
    if user_id not in user_ids:
        raise AuthenticationError(f"the answer comes from uid {user_id}, and not from the daemon")
    head = _answer_body(kind, nonce, "")
    if not body.startswith(head):
        raise AuthenticationError("the daemon's answer was made for another question, or changed on its way")
    return body[len(head) :].decode("ascii", "replace")


ANSWER_FIELDS: Final = {"newest": "entry", "offer": "offer"}
"""Field of the reply that has an answer's text, by what was asked for."""


def _answer_body(kind: str, nonce: str, text: str) -> bytes:
    return f"{kind} {nonce}\n{text}".encode("ascii", "replace")


def answer_mac(kind: str, key: bytes, nonce: str, text: str) -> str:
    """Return the signature of the daemon's answer to a question."""
    return _mac(key, kind, nonce, text.encode("ascii", "replace"))


def _mac(key: bytes, timestamp: str, nonce: str, body: bytes) -> str:
    return hmac.new(key, f"{timestamp}\n{nonce}\n".encode() + body, "sha256").hexdigest()


def _verify_mac(message: Message, key: bytes, replay: ReplayGuard, now_seconds: float) -> bytes:
    fields = message.fields
    timestamp, nonce = fields.get("timestamp", ""), fields.get("nonce", "")
    if not _TIMESTAMP.match(timestamp) or not _NONCE.match(nonce):
        raise AuthenticationError("report has a malformed timestamp or nonce")
    body = fields.get("body", "").encode("utf-8", "surrogateescape")
    given = fields.get("mac", "").encode("utf-8", "surrogateescape")
    if not hmac.compare_digest(_mac(key, timestamp, nonce, body).encode(), given):
        raise AuthenticationError("report's signature is wrong: the key differs, or the report was changed on its way")
    if abs(now_seconds - float(timestamp)) > MAX_AGE_SECONDS:
        raise AuthenticationError(
            f"report was signed {now_seconds - float(timestamp):.0f} s ago, "
            f"{MAX_AGE_SECONDS:.0f} s are allowed: do the clocks agree?"
        )
    if not replay.first_time(nonce, now_seconds):
        raise AuthenticationError("report was sent before with the same nonce")
    return body


def _munge(body: bytes, seconds: float, for_user_id: int | None = None) -> str:
    if len(body) > MAX_MUNGE_PAYLOAD_BYTES:
        raise WireError(f"report of {len(body)} bytes is over munge's {MAX_MUNGE_PAYLOAD_BYTES}")
    options = () if for_user_id is None else (f"--restrict-uid={for_user_id}",)
    credential = _run("munge", body, seconds, options).strip()
    if not (credential.startswith(b"MUNGE:") and credential.endswith(b":")):
        raise AuthenticationError("munge printed no credential")
    return credential.decode("ascii", "replace")


def _unmunge(credential: str, seconds: float = TOOL_TIMEOUT_SECONDS) -> tuple[bytes, int]:
    if not credential.startswith("MUNGE:") or not credential.isascii():
        raise AuthenticationError("report has no munge credential")
    metadata, separator, payload = _run("unmunge", credential.encode("ascii"), seconds).partition(b"\n\n")
    uid = _MUNGE_UID.search(metadata)
    if not separator or uid is None:
        raise AuthenticationError("unmunge printed no user: is its version known?")
    return payload, int(uid.group(1))


def _run(tool: str, stdin: bytes, seconds: float = TOOL_TIMEOUT_SECONDS, options: tuple[str, ...] = ()) -> bytes:
    path = next((f"{folder}/{tool}" for folder in _TOOL_FOLDERS if os.access(f"{folder}/{tool}", os.X_OK)), None)
    if path is None:
        raise AuthenticationError(f"{tool} is in none of {', '.join(_TOOL_FOLDERS)}: install munge, or use hmac")
    try:
        done = subprocess.run(  # noqa: PLW1510  # the exit code is read below
            [path, *options], input=stdin, capture_output=True, timeout=seconds, env={"LC_ALL": "C"}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AuthenticationError(f"{path} failed: {error}") from error
    if done.returncode != 0:
        status = _MUNGE_STATUS.search(done.stdout)
        said = (done.stderr or (status.group(1) if status else b"")).decode("utf-8", "replace").strip()[:200]
        raise AuthenticationError(f"{path} ended with {done.returncode}: {said}")
    return done.stdout
