"""Forms of texts in settings: TOML values, database URL, HOST:PORT, partition name; and any value in a message.

No I/O and few imports: hooks use it too.
"""

from collections.abc import Mapping

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


def toml_value(value: object) -> str:
    """Return a value of the configuration as TOML."""
    import json  # noqa: PLC0415  # hooks write none

    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        items = ", ".join(
            f"{json.dumps(str(key), ensure_ascii=False)} = {toml_value(item)}" for key, item in value.items()
        )
        return f"{{ {items} }}" if items else "{}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return json.dumps(str(value), ensure_ascii=False)  # JSON's text is a TOML basic string


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
