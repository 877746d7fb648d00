"""Column types that take any text: what a database refuses is made visible, what is too long is cut with a mark."""

import hashlib
import json
import math
import re
from typing import Any

from sqlalchemy import Dialect, Double, String, Text, TypeDecorator
from sqlalchemy.dialects.mysql import LONGTEXT
from sqlalchemy.types import TypeEngine

from slurm_energy.errors import StoreError, ValueRangeError

MAX_JSON_CHARACTERS = 4_194_304
_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")


def storable(text: str) -> str:
    r"""Return the text with NUL (refused by PostgreSQL) and bytes that are not UTF-8 as visible `\xNN` or `\uNNNN`."""
    return _NOT_STORABLE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code == 0:
        return "\\x00"
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def bounded(text: str, limit: int) -> str:
    """Return the text, or its beginning and a mark with length and digest: different long texts stay different."""
    if len(text) <= limit:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    mark = f"…[cut from {len(text)} characters, sha256 {digest}]"
    return text[: limit - len(mark)] + mark


def stored_text(text: str, limit: int) -> str:
    """Return the text as a column of that length holds it."""
    return bounded(storable(text), limit)


class FiniteDouble(TypeDecorator[float]):
    """An IEEE double; NaN and infinity, which MariaDB lacks and PostgreSQL sorts above all, are refused."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:  # noqa: ARG002  # the base class asks for it
        """Return the value as it is."""
        if value is not None and not math.isfinite(value):
            raise ValueRangeError(f"{value} is not a finite number")
        return value


UnixSeconds = FiniteDouble
"""Times are Unix seconds (UTC) as IEEE doubles: exact to the microsecond on SQLite, PostgreSQL and MariaDB alike."""


class BoundedText(TypeDecorator[str]):
    """Text of at most `length` characters (64 or more), stored and compared after `storable` and `bounded`."""

    impl = String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002  # the base class asks for it
        """Return what is stored."""
        return None if value is None else stored_text(value, self.length)


class LongText(BoundedText):
    """Text that is never part of a key or an index."""

    impl = Text
    cache_ok = True

    def __init__(self, length: int = 16_384) -> None:
        super().__init__(length)

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return LONGTEXT on MariaDB, whose TEXT ends at 64 KiB."""
        return _long_text(dialect)


class JsonText(TypeDecorator[Any]):
    """JSON in ASCII, so that every character, NUL included, comes back as it was."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return LONGTEXT on MariaDB, whose TEXT ends at 64 KiB."""
        return _long_text(dialect)

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002  # the base class asks for it
        """Return the JSON text."""
        if value is None:
            return None
        text = json.dumps(value, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":"))
        if len(text) > MAX_JSON_CHARACTERS:
            raise StoreError(f"JSON of {len(text)} characters is over the database's {MAX_JSON_CHARACTERS}")
        return text

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002  # the base class asks for it
        """Return the value."""
        return None if value is None else json.loads(value)


def _long_text(dialect: Dialect) -> TypeEngine[Any]:
    return LONGTEXT() if dialect.name in {"mariadb", "mysql"} else Text()
