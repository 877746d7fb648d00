"""slurmrestd as the reader of queue, nodes and accounting, over a Unix socket or TCP.

Its rows are those of Slurm's commands with `--json`, so that the same converters serve both. Partitions and switches
are still read with `scontrol`: up to v0.0.44 no answer of slurmrestd says which partition is the default one, or which
are for root or reservations alone (read in Slurm's data_parser/v0.0.42: flags are skipped).
"""

import base64
import http.client
import json
import os
import re
import socket
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from slurm_energy.config import Config
from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.ids import JobId
from slurm_energy.errors import SlurmError
from slurm_energy.slurm.command import MAX_OUTPUT_BYTES
from slurm_energy.slurm.conversion import Converted
from slurm_energy.slurm.convert_accounting import convert_accounted_job
from slurm_energy.slurm.convert_cluster import convert_node
from slurm_energy.slurm.convert_job import convert_job
from slurm_energy.slurm.json_client import ClusterReading, JsonAnswer, JsonReader

VERSIONS = tuple(f"v0.0.{number}" for number in range(45, 36, -1))
"""Versions of the API that are understood, newest first: v0.0.45 of Slurm 26.05 down to v0.0.37 of 21.08."""
MAX_TOKEN_BYTES = 16_384
JOBS_IN_ONE_QUERY = 200
"""Of accounting: their numbers stand in the address, which slurmrestd bounds."""
_PIECE_BYTES = 1 << 18
_SHOWN_CHARACTERS = 200
_TOKEN = re.compile(r"[A-Za-z0-9_=-]+\.[A-Za-z0-9_=-]+\.[A-Za-z0-9_=-]*")
_NEXT_STEP = "set cluster.reader = 'commands' to read without it"

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestSettings:
    """Where slurmrestd listens and how it is asked."""

    url: str
    """unix:/PATH, http://HOST:PORT or https://HOST:PORT."""
    token_path: str = ""
    """File with a JSON web token; empty: none is sent, which a Unix socket with auth/local takes."""
    timeout_seconds: float = 30.0

    @classmethod
    def of(cls, config: Config) -> "RestSettings":
        """Return the settings of an installation."""
        cluster = config.cluster
        return cls(
            url=cluster.slurmrestd_url,
            token_path=cluster.slurmrestd_token_path,
            timeout_seconds=config.daemon.command_timeout_seconds,
        )


class RestReader:
    """Reads jobs, nodes and accounting through slurmrestd; one request each, one connection per request."""

    def __init__(self, settings: RestSettings, commands: JsonReader) -> None:
        self._settings = settings
        self._commands = commands
        self._version = ""
        self._known: dict[str, dict[bytes, Any]] = {}
        """What the rows of the last answers were converted to, by key."""

    def read_cluster(self) -> ClusterReading:
        """Return partitions, nodes and jobs.

        Raises:
            SlurmError: slurmrestd or scontrol gave no usable answer in time.
        """
        version = self.api_version()
        try:
            nodes = self._rows("nodes", convert_node, f"/slurm/{version}/nodes/", repeated=True)
            jobs = self._rows("jobs", convert_job, f"/slurm/{version}/jobs/", repeated=True)
        except SlurmError:
            self._version = ""  # it may be another release by now
            raise
        return self._commands.reading(self._commands.read_partitions(), nodes, jobs)

    def read_ended_jobs(self, job_ids: Sequence[JobId]) -> tuple[JobState, ...]:
        """Return what accounting knows of some jobs.

        Raises:
            SlurmError: slurmrestd gave no usable answer in time.
        """
        path = f"/slurmdb/{self.api_version()}/jobs/?show_duplicates=true&skip_steps=true&step="
        found: list[JobState] = []
        for begin in range(0, len(job_ids), JOBS_IN_ONE_QUERY):
            numbers = ",".join(str(job_id) for job_id in job_ids[begin : begin + JOBS_IN_ONE_QUERY])
            found += self._rows("jobs", convert_accounted_job, path + numbers).items
        return tuple(found)

    def api_version(self) -> str:
        """Return the newest version of the API that both sides know, found by asking for each.

        Raises:
            SlurmError: slurmrestd does not answer, refuses, or offers none of `VERSIONS`.
        """
        for version in () if self._version else VERSIONS:
            status, _ = self._ask(f"/slurm/{version}/ping/", lambda _: None)
            if status == http.client.OK:
                self._version = version
                break
            if status not in (http.client.NOT_FOUND, http.client.METHOD_NOT_ALLOWED, http.client.NOT_IMPLEMENTED):
                raise SlurmError(self._refusal(status, f"/slurm/{version}/ping/", b""))
        if not self._version:
            raise SlurmError(
                f"slurmrestd at {self._settings.url} offers none of the API's versions {VERSIONS[-1]} to "
                f"{VERSIONS[0]}: start it with -s openapi/slurmctld,openapi/slurmdbd (22.05: openapi/v0.0.38), "
                f"or {_NEXT_STEP}"
            )
        return self._version

    def _rows(
        self, key: str, convert: Callable[[Mapping[str, object]], _Item], path: str, *, repeated: bool = False
    ) -> Converted[_Item]:
        answer = JsonAnswer(key, convert, self._known.get(key) if repeated else None)
        status, begin = self._ask(path, answer.feed)
        if status != http.client.OK:
            raise SlurmError(self._refusal(status, path, begin))
        try:
            answer.close()
        except (ValueError, RecursionError) as error:
            raise SlurmError(
                f"slurmrestd at {self._settings.url} answered {_bare(path)} with no JSON: {answer.head!r}; see that "
                f"cluster.slurmrestd_url is slurmrestd's own address, or {_NEXT_STEP}"
            ) from error
        if repeated:
            self._known[key] = answer.seen
        return answer.converted()

    def _ask(self, path: str, take: Callable[[bytes], None]) -> tuple[int, bytes]:
        """Send one request and give the body to `take`; return the status and how the body begins.

        Raises:
            SlurmError: no connection, no whole answer in time, a body over the bound, or no HTTP.
        """
        settings = self._settings
        headers = {"Accept": "application/json", "Connection": "close", **_token_headers(settings.token_path)}
        connection = _connection(settings)
        ended = threading.Event()
        expiry = threading.Timer(settings.timeout_seconds, _end, (connection, ended))
        expiry.daemon = True
        expiry.start()
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            begin = _take_body(response, take if response.status == http.client.OK else lambda _: None)
            if ended.is_set():
                raise TimeoutError
        except (OSError, http.client.HTTPException, _TooLong) as error:
            raise SlurmError(self._failure(path, error, late=ended.is_set())) from error
        finally:
            expiry.cancel()
            connection.close()
        return response.status, begin

    def _failure(self, path: str, error: Exception, *, late: bool) -> str:
        where = f"slurmrestd at {self._settings.url}"
        if late or isinstance(error, TimeoutError):
            return f"{where} gave no whole answer to {_bare(path)} within {self._settings.timeout_seconds:g} s"
        if isinstance(error, _TooLong):
            return f"{where} answered {_bare(path)} with over {MAX_OUTPUT_BYTES} bytes"
        if isinstance(error, http.client.HTTPException):
            return f"{where} does not speak HTTP ({type(error).__name__}): see cluster.slurmrestd_url, or {_NEXT_STEP}"
        reason = getattr(error, "strerror", None) or error
        return f"{where} cannot be reached ({reason}): see that it runs and that this user may connect, or {_NEXT_STEP}"

    def _refusal(self, status: int, path: str, body: bytes) -> str:
        said = " ".join(body.decode("utf-8", "replace").split())[:_SHOWN_CHARACTERS]
        where = f"slurmrestd at {self._settings.url} answered {_bare(path)} with {status}"
        if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            refused = "token" if self._settings.token_path else "user (auth/local)"
            return (
                f"{where}: it does not take this daemon's {refused}: write a new token with `scontrol token "
                f"lifespan=SECONDS` to the file of cluster.slurmrestd_token_path, or {_NEXT_STEP}"
            )
        return f"{where}{': ' + said if said else ''}; {_NEXT_STEP}"


class _TooLong(Exception):  # control flow of this module
    pass


def _take_body(response: http.client.HTTPResponse, take: Callable[[bytes], None]) -> bytes:
    """Give the body to `take` piece by piece and return how it begins."""
    total, begin = 0, b""
    while piece := response.read(_PIECE_BYTES):
        total += len(piece)
        if total > MAX_OUTPUT_BYTES:
            raise _TooLong
        begin = (begin + piece[:_SHOWN_CHARACTERS])[:_SHOWN_CHARACTERS]
        take(piece)
    if response.length:  # fewer bytes than the header says
        raise http.client.IncompleteRead(begin, response.length)
    return begin


def _end(connection: http.client.HTTPConnection, ended: threading.Event) -> None:
    """End a connection whose time is over, at whichever byte it is: a slow trickle cannot hold a reading up."""
    ended.set()
    if connection.sock is not None:
        try:
            connection.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket's path."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _connection(settings: RestSettings) -> http.client.HTTPConnection:
    """Return a connection that is not open yet.

    Raises:
        SlurmError: the address has none of the three forms.
    """
    kind, _, rest = settings.url.partition(":")
    if kind == "unix" and rest.startswith("/"):
        return _UnixConnection(rest, settings.timeout_seconds)
    try:
        parts = urlsplit(settings.url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if kind not in ("http", "https") or not host or parts.path.strip("/") or parts.username:
        raise SlurmError(
            f"cluster.slurmrestd_url is {settings.url!r}; unix:/PATH, http://HOST:PORT or https://HOST:PORT is needed"
        )
    if kind == "https":
        return http.client.HTTPSConnection(host, port, timeout=settings.timeout_seconds)
    return http.client.HTTPConnection(host, port, timeout=settings.timeout_seconds)


def _token_headers(path: str) -> dict[str, str]:
    """Return the headers of a token, read at each request so that a new one is taken at once.

    Raises:
        SlurmError: the file cannot be read, is open to other users, or holds no JSON web token.
    """
    if not path:
        return {}
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(MAX_TOKEN_BYTES).decode("ascii", "replace").strip().removeprefix("SLURM_JWT=")
    except OSError as error:
        raise SlurmError(f"slurmrestd's token {path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid not in (0, os.geteuid()):
        raise SlurmError(
            f"slurmrestd's token {path} must be a file of root or this user with mode 600 (mode "
            f"{status.st_mode & 0o777:o}, uid {status.st_uid}): chmod 600 {path}, and make a new token"
        )
    if not _TOKEN.fullmatch(text):
        raise SlurmError(f"{path} holds no JSON web token: write one with `scontrol token lifespan=SECONDS`")
    name = _user_of(text)
    return {"X-SLURM-USER-TOKEN": text} | ({"X-SLURM-USER-NAME": name} if name else {})


def _user_of(token: str) -> str:
    """Return the user that a token was made for (`sun`), empty where it cannot be read: slurmrestd checks it anyway."""
    payload = token.split(".")[1].rstrip("=")
    try:
        name = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["sun"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return name if isinstance(name, str) and re.fullmatch(r"[\x21-\x7e]{1,256}", name) else ""


def _bare(path: str) -> str:
    return path.partition("?")[0]
