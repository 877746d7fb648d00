"""slurmrestd as a server may be: right, refusing, broken, slow or another program; over a Unix socket."""

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_energy.domain.ids import JobId
from slurm_energy.errors import SlurmError
from slurm_energy.slurm import rest_client
from slurm_energy.slurm.json_client import CommandSettings, JsonReader
from slurm_energy.slurm.reader import RETRY_SECONDS, ChosenReader
from slurm_energy.slurm.rest_client import VERSIONS, RestReader, RestSettings

DATA = Path(__file__).parents[1] / "data"
FIXTURES = DATA / "measured" / "slurm_rest_fixtures"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
NODES = (DATA / "slurm" / "nodes-24.11.json").read_bytes()
JOBS = (FIXTURES / "slurm-24.11_openapi-0.0.41" / "slurm-jobs.json").read_bytes()


def ok(body: bytes, *, length: int | None = None) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(body) if length is None else length) + body


class Server:
    """Answers each request with the bytes for its path; `None` says nothing until the client gives up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, bytes | None] = {}
        self.requests: list[str] = []
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def api(self, version: str, nodes: bytes | None = None, jobs: bytes | None = None) -> None:
        """Offer one version of the API."""
        self.answers[f"/slurm/{version}/ping/"] = ok(b"{}")
        self.answers[f"/slurm/{version}/nodes/"] = ok(NODES) if nodes is None else nodes
        self.answers[f"/slurm/{version}/jobs/"] = ok(JOBS) if jobs is None else jobs

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines:
                head = b"".join(iter(lambda lines=lines: lines.readline().strip(b"\n"), b"\r")).decode()  # type: ignore[misc]
                self.requests.append(head)
                answer = self.answers.get(head.split(" ")[1].partition("?")[0], NOT_FOUND)
                try:
                    if answer is None:
                        lines.read(1)  # until the client closes
                    elif answer.startswith(b"trickle"):
                        self._trickle(connection)
                    else:
                        connection.sendall(answer)
                except OSError:
                    continue

    @staticmethod
    def _trickle(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:  # a header that never ends: each byte comes in time, the answer does not
            connection.sendall(b"X-A: b\r\n")
            time.sleep(0.1)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path / "rest")
    yield running
    running.close()


def commands(folder: Path) -> JsonReader:
    """Return a reader whose commands know one partition and no job."""
    for name, answer in {
        "scontrol": "PartitionName=a100 State=UP",
        "sinfo": '{"nodes": []}',
        "squeue": '{"jobs": []}',
    }.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\necho '{answer}'\n")
        path.chmod(0o755)
    return JsonReader(CommandSettings(bin_directory=str(folder)), {"PATH": "/usr/bin:/bin"})


def reader(server: Server, folder: Path, *, token: str = "", seconds: float = 30.0) -> RestReader:
    settings = RestSettings(url=f"unix:{server.path}", token_path=token, timeout_seconds=seconds)
    return RestReader(settings, commands(folder))


@pytest.mark.parametrize("version", [VERSIONS[0], "v0.0.41", VERSIONS[-1]])
def test_the_newest_common_version_is_found_by_asking_once(server: Server, tmp_path: Path, version: str) -> None:
    server.api(version)
    rest = reader(server, tmp_path)
    first, second = rest.read_cluster(), rest.read_cluster()
    assert [partition.name for partition in first.partitions] == ["a100"]
    assert first.nodes
    assert first.jobs
    assert first == second
    assert sum("/ping/" in head for head in server.requests) == VERSIONS.index(version) + 1


def refused(status: str, body: bytes = b"") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (refused("401 Unauthorized", b"Authentication failure"), "scontrol token"),
        (refused("500 Internal Server Error", b'{"errors": ["slurmctld is away"]}'), "with 500: .*slurmctld is away"),
        (refused("404 Not Found"), "with 404"),
        (ok(b"<!DOCTYPE html><html>Sign in</html>"), "with no JSON: b'<!DOCTYPE html>.*slurmrestd_url"),
        (ok(b'{"jobs": [{"job_id": 1}, {"job'), "with no JSON"),
        (ok(b'{"jobs": []}', length=500), "IncompleteRead"),
        (ok(b'{"nodes": []}'), "no list 'jobs'"),
        (ok(b'{"jobs": [], "errors": [{"error": "Access denied"}]}'), "Access denied"),
        (ok(b"[" * 100_000), "with no JSON"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP"),
        (b"", "does not speak HTTP|cannot be reached"),
    ],
)
def test_an_answer_that_is_none_is_our_own_error_with_a_next_step(
    server: Server, tmp_path: Path, answer: bytes, said: str
) -> None:
    server.api("v0.0.42", jobs=answer)
    with pytest.raises(SlurmError, match=said):
        reader(server, tmp_path).read_cluster()


@pytest.mark.parametrize("answer", [None, b"trickle"])
def test_a_server_that_hangs_or_trickles_costs_no_more_than_the_time_limit(
    server: Server, tmp_path: Path, answer: bytes | None
) -> None:
    server.api("v0.0.42")
    server.answers["/slurm/v0.0.42/jobs/"] = answer
    with pytest.raises(SlurmError, match=r"no whole answer to /slurm/v0.0.42/jobs/ within 0.5 s"):
        reader(server, tmp_path, seconds=0.5).read_cluster()


def test_an_answer_over_the_bound_is_left(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_client, "MAX_OUTPUT_BYTES", 1000)
    server.api("v0.0.42", jobs=ok(b'{"jobs": [' + b" " * 2000 + b"]}"))
    with pytest.raises(SlurmError, match="over 1000 bytes"):
        reader(server, tmp_path).read_cluster()


def test_a_server_without_a_known_version_says_which_were_asked_for(server: Server, tmp_path: Path) -> None:
    with pytest.raises(SlurmError, match=r"none of the API's versions v0.0.37 to v0.0.45"):
        reader(server, tmp_path).read_cluster()


def test_a_release_that_changes_under_the_daemon_is_asked_for_its_version_again(server: Server, tmp_path: Path) -> None:
    server.api("v0.0.41")
    rest = reader(server, tmp_path)
    rest.read_cluster()
    server.answers.clear()
    server.api("v0.0.44")
    with pytest.raises(SlurmError, match="with 404"):
        rest.read_cluster()
    assert rest.read_cluster().jobs


@pytest.mark.parametrize(
    "url", ["", "unix:relative", "ftp://host", "http://", "http://u@host:1", "http://host:x", "http://h/p"]
)
def test_an_address_of_no_known_form_is_named(tmp_path: Path, url: str) -> None:
    with pytest.raises(SlurmError, match=r"cluster.slurmrestd_url is .*unix:/PATH"):
        RestReader(RestSettings(url=url), commands(tmp_path)).read_cluster()


def token(user: str) -> str:
    payload = base64.urlsafe_b64encode(json.dumps({"sun": user, "exp": 1}).encode()).decode().rstrip("=")
    return f"eyJhbGciOiJIUzI1NiJ9.{payload}.c2lnbmF0dXJl"


def token_file(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "token"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_token_is_sent_with_its_user_and_read_again_each_time(server: Server, tmp_path: Path) -> None:
    server.api("v0.0.45")
    rest = reader(server, tmp_path, token=token_file(tmp_path, f"SLURM_JWT={token('slurm')}\n"))
    rest.read_cluster()
    assert f"X-SLURM-USER-TOKEN: {token('slurm')}" in server.requests[-1]
    assert "X-SLURM-USER-NAME: slurm" in server.requests[-1]
    token_file(tmp_path, token("other"))
    rest.read_cluster()
    assert "X-SLURM-USER-NAME: other" in server.requests[-1]


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("a.b.c", 0o640, "mode 600"),
        ("", 0o600, "no JSON web token"),
        ("a.b.c\r\nX-Other: 1", 0o600, "no JSON web token"),
        ("not a token", 0o600, "no JSON web token"),
    ],
)
def test_a_token_file_that_cannot_be_used_is_not_used(
    server: Server, tmp_path: Path, text: str, mode: int, said: str
) -> None:
    with pytest.raises(SlurmError, match=said):
        reader(server, tmp_path, token=token_file(tmp_path, text, mode)).read_cluster()
    assert server.requests == []


def test_what_accounting_knows_is_asked_for_by_number_in_bounded_addresses(server: Server, tmp_path: Path) -> None:
    server.api("v0.0.41")
    server.answers["/slurmdb/v0.0.41/jobs/"] = ok((DATA / "slurm" / "sacct-24.11.json").read_bytes())
    found = reader(server, tmp_path).read_ended_jobs([JobId(number) for number in range(1, 301)])
    asked = [head for head in server.requests if "/slurmdb/" in head]
    assert len(asked) == 2
    assert all(len(head) < 2500 for head in asked)
    assert "step=1,2,3," in asked[0]
    assert found


def test_the_commands_are_read_while_the_server_is_away_and_it_is_asked_again_later(
    server: Server, tmp_path: Path
) -> None:
    now = [0.0]
    own = commands(tmp_path)
    rest = RestReader(RestSettings(url=f"unix:{server.path}", timeout_seconds=5.0), own)
    chosen = ChosenReader("slurmrestd", rest, own, clock=lambda: now[0])
    server.answers["/slurm/v0.0.45/ping/"] = refused("401 Unauthorized")
    assert chosen.read_cluster().jobs == ()
    assert (chosen.name, "scontrol token" in chosen.note) == ("commands", True)
    server.api("v0.0.45")
    requests = len(server.requests)
    now[0] = RETRY_SECONDS - 1
    assert chosen.read_cluster().jobs == ()
    assert len(server.requests) == requests, "a server that failed is left alone for a minute"
    now[0] = RETRY_SECONDS
    assert chosen.read_cluster().jobs
    assert (chosen.name, chosen.note) == ("slurmrestd", "")
