"""The sockets at which the daemon listens: made before anything is answered, and never beside another daemon's."""

import errno
import logging
import os
import socket
import stat
import time
from pathlib import Path

from slurm_energy.errors import ConfigError

logger = logging.getLogger(__name__)

BACKLOG = 1024
PREDECESSOR_SECONDS = 3.0
"""How long the processes of a daemon that was killed may take to end."""
_PAUSE_SECONDS = 0.1


def local_listener(path: Path, mode: int) -> socket.socket:
    """Return a unix socket that listens at a path; one at which no daemon answers any more is replaced.

    Raises:
        ConfigError: another daemon answers there, or the path cannot be used.
    """
    remove_stale_socket(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)  # no connection before the mode is the configured one
    try:
        listening.bind(str(path))
        listening.listen(BACKLOG)
        path.chmod(mode)
    except OSError as error:
        listening.close()
        raise ConfigError(f"daemon.socket_path {path} cannot be used: {error.strerror or error}") from error
    finally:
        os.umask(mask)
    return listening


def plugin_listener(path: Path, slurm_user_id: int | None) -> socket.socket:
    """Return the socket for slurmctld, open to its user and to root.

    Raises:
        ConfigError: the path cannot be used.
    """
    listening = local_listener(path, 0o600)
    if slurm_user_id not in {None, os.geteuid()}:
        try:
            os.chown(path, slurm_user_id or 0, -1)
        except OSError:
            path.chmod(0o666)
            logger.warning("socket open to every user path=%s: run the daemon as SlurmUser, who alone asks there", path)
    return listening


def report_listener(host: str, port: int) -> socket.socket:
    """Return the TCP socket at which nodes report; it outlives the processes that accept at it.

    Raises:
        ConfigError: the address cannot be used.
    """
    end = time.monotonic() + PREDECESSOR_SECONDS
    while True:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            (found, *_rest) = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            return socket.create_server(found[4][:2], family=family, backlog=BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > end:
                raise ConfigError(
                    f"daemon.report_host {host} with report_port {port} cannot be used: {error.strerror or error}"
                ) from error
        time.sleep(_PAUSE_SECONDS)


def remove_stale_socket(path: Path) -> None:
    """Remove a socket at which no daemon answers any more.

    Raises:
        ConfigError: another daemon answers at the path, or something else than a socket lies there.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"daemon.socket_path {path} is not a socket: remove it or choose another path")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return
    end = time.monotonic() + PREDECESSOR_SECONDS
    while _answers(path):
        if time.monotonic() > end:
            raise ConfigError(f"another daemon answers at {path}: stop it first, or choose another daemon.socket_path")
        time.sleep(_PAUSE_SECONDS)
    path.unlink(missing_ok=True)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except (BlockingIOError, TimeoutError):  # its queue is full: something listens
            return True
        except OSError as error:
            raise ConfigError(f"daemon.socket_path {path} cannot be tried: {error.strerror or error}") from error
    return True
