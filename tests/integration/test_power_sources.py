"""A node's power from an ipmitool and a Redfish controller that answer, lie, redirect or hang."""

import json
import os
import select
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from hook_node import HookNode, wait_until

from slurm_energy.device.power import IpmiPower, PowerReading, RedfishPower
from slurm_energy.domain.ids import JobId
from slurm_energy.errors import DeviceError

GOOD = json.dumps({"PowerControl": [{"PowerConsumedWatts": 431, "PowerMetrics": {"IntervalInMin": 1}}]})


def tool(folder: Path, script: str) -> str:
    path = folder / "ipmitool"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_the_tools_words_are_read(tmp_path: Path) -> None:
    script = '[ "$*" = "dcmi power reading" ] || exit 9\necho "  Instantaneous power reading:  431 Watts"'
    assert IpmiPower(tool=tool(tmp_path, script)).read() == PowerReading(watts=431.0, source="ipmi")


@pytest.mark.parametrize("script", ["exit 1", "echo Could not open device; exit 1", "echo '<html>'", "kill -9 $$"])
def test_a_tool_that_fails_gives_a_reason(tmp_path: Path, script: str) -> None:
    with pytest.raises(DeviceError, match="ipmi"):
        IpmiPower(tool=tool(tmp_path, script)).read()


def test_a_tool_that_is_missing_gives_a_reason(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="cannot be run"):
        IpmiPower(tool=str(tmp_path / "none")).read()


def test_a_tool_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    path = tool(tmp_path, f"sleep 600 &\necho $! > {pid}.part; mv {pid}.part {pid}\nwait")
    with pytest.raises(DeviceError, match="did not answer within 2 s"):
        IpmiPower(tool=path, deadline_seconds=2.0).read()
    if not pid.exists():  # on a machine so loaded that the script had not begun there is no child
        return
    try:
        child = os.pidfd_open(int(pid.read_text()))
    except ProcessLookupError:
        return
    try:
        assert select.select([child], [], [], 60.0)[0]  # readable when it has ended
    finally:
        os.close(child)


class Controller(BaseHTTPRequestHandler):
    """A board's controller: the path says how it behaves."""

    asked: ClassVar[list[tuple[str, str | None]]]
    released: ClassVar[threading.Event]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization")))
        if self.path == "/hang":
            self.released.wait(60.0)
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", "/good")
            self.end_headers()
            return
        self.send_response(401 if self.path == "/denied" else 200)
        self.end_headers()
        body = {"/good": GOOD, "/html": "<html>login</html>", "/huge": "x" * 1_000_000}.get(self.path, "")
        try:
            self.wfile.write(body.encode())
            while self.path == "/drip" and not self.released.wait(0.1):
                self.wfile.write(b" ")
                self.wfile.flush()
        except OSError:
            return

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def controller() -> Iterator[tuple[str, type[Controller]]]:
    class OneController(Controller):
        asked: ClassVar[list[tuple[str, str | None]]] = []
        released = threading.Event()

    kind = OneController
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", kind
    kind.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_controller_is_read_with_the_password_of_roots_file(
    controller: tuple[str, type[Controller]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    secret = tmp_path / "redfish"
    secret.write_text("energy:s3cret\n")
    secret.chmod(0o600)
    url, kind = controller
    reading = RedfishPower(url=f"{url}/good", credentials_path=secret).read()
    assert reading == PowerReading(watts=431.0, source="redfish", window_seconds=60.0)
    assert kind.asked == [("/good", "Basic ZW5lcmd5OnMzY3JldA==")]


@pytest.mark.parametrize("path", ["/html", "/huge", "/denied", "/away", "/hang", "/drip", "/empty"])
def test_an_answer_that_is_none_gives_a_reason_in_time(controller: tuple[str, type[Controller]], path: str) -> None:
    url, kind = controller
    with pytest.raises(DeviceError, match="redfish"):
        RedfishPower(url=f"{url}{path}", deadline_seconds=1.0).read()
    assert [asked for asked, _ in kind.asked] == [path]


def test_a_sampler_takes_the_nodes_power_less_its_gpus_and_its_report_says_of_what(tmp_path: Path) -> None:
    said = 'echo "  Instantaneous power reading:  2000 Watts"; echo "  Sampling period:  00000001 Seconds."'
    node = HookNode(tmp_path, time_scale=1.0)
    node.configure(host_power="ipmi", ipmi_tool=tool(tmp_path, said), power_interval_seconds=1.0)
    try:
        node.prolog(7, "0")
        wait_until(lambda: (covered_seconds(node) or 0.0) > 1.0)
        node.epilog(7, "0")
        (report,) = node.reports()
        gpus = sum(gpu.reading().power_watts for gpu in node.gpus.gpus)
    finally:
        node.end_samplers()
    assert "host: power of the node by ipmi, over 1 s, less its GPUs" in report.events
    host = report.host
    assert host is not None and host.node_joules is not None and host.meter_id is not None
    assert host.node_joules / host.coverage_seconds == pytest.approx(2000.0 - gpus, rel=0.01)


def covered_seconds(node: HookNode) -> float | None:
    """Return over what time the sampler has the node's power, by its last heartbeat."""
    job = node.spool.read_state(JobId(7))
    heartbeat = None if job is None else node.spool.read_heartbeat(job)
    return None if heartbeat is None or heartbeat.host is None else heartbeat.host.sampled_seconds
