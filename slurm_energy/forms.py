"""Forms of texts in settings: database URL, HOST:PORT, partition name; and any value or unknown name in a message.

No I/O and few imports: hooks use it too.
"""

from collections.abc import Iterable

from slurm_energy.errors import ConfigError

DATABASE_DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mariadb": "mariadb+pymysql"}
"""SQLAlchemy's name of the driver for each database."""


def is_plain(text: str, others: str, max_length: int) -> bool:
    """Return whether a text is letters and digits of ASCII and these other characters, at least one, and no longer.

    The forms that hooks check are written with this: a regular expression costs more to compile than all their uses.
    """
    for character in others:
        text = text.replace(character, "a")
    return text.isascii() and text.isalnum() and len(text) <= max_length


def shown(value: object, length: int = 80) -> str:
    """Return a value for a message: on one line, not longer than that, whatever it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # ValueError: an integer of more digits than Python prints
        text = f"a {type(value).__name__} too large to print"
    return text if len(text) <= length else text[: length - 1] + "…"


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that is most like another, None when none is as near as `cutoff`, from 0 to 1."""
    from difflib import get_close_matches  # noqa: PLC0415  # hooks, which load this module, never come here

    return next(iter(get_close_matches(word, list(known), 1, cutoff)), None)


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the hint of a message about an unknown name: the nearest one that is known, else all of them.

    Args:
        word: The name.
        known: Names that there are.
        cutoff: How near one must be, from 0 to 1.
    """
    names = list(known)
    near = nearest(word, names, cutoff)
    if near is not None:
        return f"did you mean {near}?"
    return f"there are {', '.join(names)}" if names else "there are none"


def database_driver(name: str) -> str | None:
    """Return the driver for the part of a URL before `://`, None for one that is not supported."""
    database = name.partition("+")[0]
    supported = DATABASE_DRIVERS.get(database)
    return supported if name in {database, supported, "sqlite+pysqlite"} else None


def check_database_url(text: str) -> None:
    """Refuse a URL of no supported database; the message never holds the URL, which may have a password.

    Raises:
        ConfigError: it is one.
    """
    name, separator, _ = text.partition("://")
    if not separator:
        raise ConfigError("store.url is not a database URL such as sqlite:////var/lib/slurm-energy/energy.sqlite")
    if database_driver(name) is None:
        known = ", ".join(DATABASE_DRIVERS.values())
        raise ConfigError(f"store.url is for {name[:40]!r}, which is not supported: use {known}")


def hide_password(url: str) -> str:
    """Return a database URL with *** for its password."""
    head, at, tail = url.rpartition("@")
    scheme, separator, login = head.partition("://")
    user, colon, _ = login.partition(":")
    return f"{scheme}{separator}{user}{':***' if colon else ''}{at}{tail}" if at and separator else url


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT` or `[IPV6]:PORT`.

    Raises:
        ConfigError: it is neither.
    """
    host, separator, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536
    if not separator or not is_plain(host, "._%:-", 255) or not is_port:
        raise ConfigError(
            f"node.daemon_address is {text[:200]!r}, HOST:PORT is needed, with a port between 1 and 65535"
        )
    return host, int(port)


def parse_addresses(text: str) -> tuple[tuple[str, int], ...]:
    """Return hosts and ports of `HOST:PORT[,HOST:PORT...]`, in order.

    Raises:
        ConfigError: one of them is not of that form.
    """
    return tuple(parse_address(one.strip()) for one in text.split(","))


def is_partition_name(text: str) -> bool:
    """Return whether a partition can have this name, in slurm.conf and in the daemon's replies."""
    return is_plain(text, "_.-", 64)


def is_feature_name(text: str) -> bool:
    """Return whether a text is one node feature and nothing more in --prefer, where `&`, `|`, `*` and `[` say more."""
    return is_plain(text, "_.:-", 64)
