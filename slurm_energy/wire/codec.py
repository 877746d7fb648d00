"""The one message form between plugin, people and daemon, easy to read and to parse in C.

    slurm-energy/1 VERB
    key=value            (any number; keys are [a-z0-9_], values are UTF-8 with %XX for control characters and %)
    end

The last line proves that nothing was cut off. One connection carries one request and one reply.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_energy.errors import WireError

PROTOCOL = "slurm-energy/1"
MAX_DECIDE_BYTES = 65_536
MAX_MESSAGE_BYTES = 33_554_432
END_LINE = b"end\n"

_KEY = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
_VERB = re.compile(r"[a-z][a-z0-9-]{0,31}\Z")
_ESCAPE = re.compile(r"[%\x00-\x1f\x7f\x80-\x9f\u2028\u2029\ud800-\udfff]")
_PERCENT = re.compile(rb"%([0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class Message:
    """A verb (requests) or a status (replies: `ok`, `refused`, `error`) with its fields."""

    verb: str
    fields: Mapping[str, str] = field(default_factory=dict)


def escape(value: str) -> str:
    """Return the value with control characters, % and line separators as %XX of their UTF-8 bytes."""
    return _ESCAPE.sub(
        lambda match: "".join(f"%{byte:02X}" for byte in match.group().encode("utf-8", "surrogateescape")), value
    )


def unescape(value: str) -> str:
    """Return the value that `escape` was given; bytes that are not UTF-8 come back as surrogates."""
    if "%" not in value:
        return value
    raw = value.encode("utf-8", "surrogateescape")
    return _PERCENT.sub(lambda match: bytes([int(match.group(1), 16)]), raw).decode("utf-8", "surrogateescape")


def encode(message: Message) -> bytes:
    """Return the bytes of a message.

    Raises:
        WireError: the verb or a key has other characters than the protocol allows.
    """
    if not _VERB.match(message.verb):
        raise WireError(f"verb {message.verb[:64]!r} is not lower-case letters, digits and '-'")
    lines = [f"{PROTOCOL} {message.verb}"]
    for key, value in message.fields.items():
        if not _KEY.match(key):
            raise WireError(f"key {key[:64]!r} is not lower-case letters, digits and '_'")
        lines.append(f"{key}={escape(value)}")
    lines.append("end\n")
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def decode(raw: bytes, limit_bytes: int = MAX_MESSAGE_BYTES) -> Message:
    """Return the message in `raw`, which must be exactly one whole message.

    Raises:
        WireError: too long, cut off, another protocol, a malformed or repeated line.
    """
    if len(raw) > limit_bytes:
        raise WireError(f"message of {len(raw)} bytes is over {limit_bytes}")
    if not raw.endswith(b"\n" + END_LINE):
        raise WireError(f"message of {len(raw)} bytes is cut off: its last line is not 'end'")
    lines = raw.decode("utf-8", "surrogateescape").split("\n")[:-2]
    protocol, _, verb = lines[0].partition(" ")
    if protocol != PROTOCOL:
        raise WireError(f"message speaks {protocol[:64]!r}, this code speaks {PROTOCOL}")
    if not _VERB.match(verb):
        raise WireError(f"verb {verb[:64]!r} is not lower-case letters, digits and '-'")
    fields: dict[str, str] = {}
    for number, line in enumerate(lines[1:], start=2):
        key, separator, value = line.partition("=")
        if not separator or not _KEY.match(key):
            raise WireError(f"line {number} is not key=value: {line[:64]!r}")
        if key in fields:
            raise WireError(f"line {number} repeats the key {key!r}")
        fields[key] = unescape(value)
    return Message(verb, fields)
