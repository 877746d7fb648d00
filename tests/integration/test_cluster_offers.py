"""Daemons that answer for clusters, and energy-sbatch in front of them: its choice, and that it hurts no submission."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from daemon_support import KEY, RunningDaemon, free_port, has_snapshot, make_node, running_daemon, wait_until
from fake_sbatch import FakeSbatch
from sbatch_wrapper import WRAPPER, environment

from slurm_energy.wire.authentication import sign
from slurm_energy.wire.client import exchange_tcp
from slurm_energy.wire.codec import Message, encode
from slurm_energy.wire.offers import Asker, ask_offer

ASKER = Asker(key=KEY.encode(), daemon_user_ids={0}, user_id=1000)
JOB = {"name": "train", "partition": "a100", "tres_per_node": "gres:gpu:1", "time_limit": "60"}
SCRIPT = "#!/bin/sh\n#SBATCH --partition=a100 --gres=gpu:1 --time=60\n{more}\ntrue\n"


@dataclass
class Site:
    daemon: RunningDaemon
    fake: FakeSbatch
    directory: Path

    def submit(
        self, *words: str, config: str = "", script: str | None = None, **more: str
    ) -> subprocess.CompletedProcess[bytes]:
        """Run energy-sbatch by a configuration file of its own."""
        path = self.directory / "login.toml"
        key = self.daemon.directory / "report.key"
        path.write_text(
            f'[cluster]\nname = "here"\n[daemon]\nsocket_path = "{self.directory}/none.sock"\n'
            f'[node]\nauthentication = "hmac"\nhmac_key_path = "{key}"\n[script]\nread = "off"\n{config}'
        )
        variables = {**environment(self.fake, more), "SLURM_ENERGY_CONFIG": str(path)}
        variables.pop("SLURM_ENERGY_DAEMON_SOCKET_PATH")
        stdin = None if script is None else script.encode()
        return subprocess.run(
            [*WRAPPER, *words], input=stdin, capture_output=True, timeout=120, env=variables, check=False
        )

    def clusters(self, **more: Any) -> str:
        addresses = {"lab": f"127.0.0.1:{self.daemon.port}", **more.pop("addresses", {})}
        table = ", ".join(f'{name} = "{address}"' for name, address in addresses.items())
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in {"deadline_seconds": 20.0, **more}.items())
        return f"[clusters]\naddresses = {{ {table} }}\n{lines}"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture
def site(daemon: RunningDaemon, tmp_path: Path) -> Site:
    fake = FakeSbatch(tmp_path / "fake")
    fake.with_plugin()
    fake.lay_out("stdout", b"Submitted batch job 7 on cluster lab\n")
    return Site(daemon, fake, tmp_path)


def ask(daemon: RunningDaemon, cluster: str = "lab", **fields: str) -> Any:
    return ask_offer(cluster, [("127.0.0.1", daemon.port)], {**JOB, **fields}, ASKER, 60.0)


def test_an_offer_has_energy_start_and_end_and_leaves_no_decision_behind(daemon: RunningDaemon) -> None:
    before = daemon.query("status")["daemon"]
    offer = ask(daemon)
    assert offer["cluster"] == "lab" and offer["partition"] == "a100" and offer["gpus"] == 1
    assert offer["wait_seconds"] == 0.0 and offer["wait_source"] == "room now"
    assert offer["default_seconds"] == pytest.approx(0.8 * 3600.0) and offer["seconds_source"] == "time-limit"
    assert 50.0 < offer["gpu_watts"] < 500.0 and offer["host_per_gpu_watt"] > 1.0 and offer["pue"] == 1.0
    after = daemon.query("status")["daemon"]
    assert daemon.query("decisions")["record"] == []
    assert after.get("decisions", 0) == before.get("decisions", 0)


def test_a_daemon_says_who_it_is_and_serves_no_other_name(daemon: RunningDaemon) -> None:
    me = ask_offer("lab", [("127.0.0.1", daemon.port)], {}, ASKER, 60.0)
    assert set(me) == {"cluster", "version", "now_seconds"}
    with pytest.raises(Exception, match="serves cluster lab, not other"):
        ask(daemon, "other")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"partition": "nowhere"}, "there is no partition nowhere here"),
        ({"tres_per_node": ""}, "asks for no GPUs"),
        ({"tres_per_node": "gres:gpu:400"}, "no partition here takes 400 GPUs"),
        ({"tres_per_node": "gres:gpu:h100:1"}, "no partition here takes 1 GPUs of h100"),
        ({"time_limit": "6000"}, "no partition here takes"),
    ],
)
def test_what_cannot_run_here_is_no_offer(daemon: RunningDaemon, fields: dict[str, str], reason: str) -> None:
    with pytest.raises(Exception, match=reason):
        ask(daemon, **fields)


def test_who_is_not_authenticated_hears_nothing_and_reaches_no_decision(daemon: RunningDaemon) -> None:
    address = ("127.0.0.1", daemon.port)
    body = encode(Message("offer", {**JOB, "for_cluster": "lab", "nonce": "ab" * 16, "uid": "1000"}))
    forged = sign(body, key=b"x" * 32, verb="offer")
    asked = daemon.query("status")["daemon"]["counters"].get("request offer", 0)
    for request in (forged, Message("offer", {"auth": "munge", "credential": "MUNGE:x:"}), Message("offer", dict(JOB))):
        reply = exchange_tcp(address, request, 60.0)
        assert reply.verb in {"refused", "error"} and "json" not in reply.fields and "offer" not in reply.fields
    replayed = sign(body, key=KEY.encode(), verb="offer")
    assert exchange_tcp(address, replayed, 60.0).verb == "ok"
    assert "same nonce" in exchange_tcp(address, replayed, 60.0).fields["reason"]
    assert daemon.query("status")["daemon"]["counters"]["request offer"] == asked + 1


def test_the_job_goes_where_the_offer_comes_from_and_sbatch_keeps_its_words(site: Site) -> None:
    script = site.directory / "job.sh"
    script.write_text(SCRIPT.format(more=""))
    done = site.submit(
        "--energy-clusters=gone,lab",
        "--parsable",
        str(script),
        "x",
        config=site.clusters(addresses={"gone": f"127.0.0.1:{free_port()}"}),
    )
    assert site.fake.calls == [[b"--clusters=lab", b"--parsable", os.fsencode(script), b"x"]]
    assert (done.returncode, done.stdout) == (0, b"Submitted batch job 7 on cluster lab\n")
    assert b"cluster lab: " in done.stderr and b"left out: gone: no daemon answers" in done.stderr


def test_options_in_the_script_and_from_a_pipe_are_carried_out(site: Site) -> None:
    site.fake.lay_out("read_stdin", b"1")
    script = SCRIPT.format(more="#SBATCH --energy-clusters=lab --energy-data=100GB@far")
    done = site.submit(config=site.clusters(), script=script)
    assert site.fake.calls == [[b"--clusters=lab"]], done.stderr
    assert site.fake.recorded("stdin") == script.encode()
    assert b"data 675 kJ" in done.stderr


def test_the_sites_list_holds_and_off_the_users_own_cluster_and_local_things_win(site: Site) -> None:
    config = site.clusters(names=["lab"])
    script = site.directory / "job.sh"
    script.write_text(SCRIPT.format(more=""))
    name = os.fsencode(script)
    site.submit(str(script), config=config)
    site.submit("--energy-clusters=off", str(script), config=config)
    site.submit("-M", "mine", str(script), config=config)
    site.submit("--energy-clusters=lab", "--clusters=mine", str(script), config=config)
    site.submit(str(script), config=config, SBATCH_CLUSTERS="mine")
    site.submit("--dependency=afterok:5", str(script), config=config)
    script.write_text(SCRIPT.format(more="#SBATCH -M mine"))
    site.submit(str(script), config=config)
    assert site.fake.calls == [
        [b"--clusters=lab", name],
        [name],
        [b"-M", b"mine", name],
        [b"--clusters=mine", name],
        [name],
        [b"--dependency=afterok:5", name],
        [name],
    ]


def test_without_any_offer_the_job_goes_through_as_without_the_option(site: Site) -> None:
    script = site.directory / "job.sh"
    script.write_text(SCRIPT.format(more=""))
    site.fake.lay_out("rc", b"3")
    closed = site.clusters(addresses={"lab": f"127.0.0.1:{free_port()}"})
    done = site.submit("--energy-clusters=lab,b", str(script), config=closed)
    assert site.fake.calls == [[os.fsencode(script)]]
    assert done.returncode == 3
    assert b"no cluster made an offer" in done.stderr and b"clusters.addresses has no b" in done.stderr
    site.submit("--energy-clusters=a;b", str(script), config=closed)
    site.submit("--energy-clusters=lab", "--energy-data=much", str(script), config=site.clusters())
    assert site.fake.calls[1:] == [[os.fsencode(script)]] * 2


def test_a_script_that_cannot_be_read_is_sbatchs_to_complain_of(site: Site) -> None:
    site.fake.lay_out("rc", b"1")
    quoted = site.directory / "quoted.sh"
    quoted.write_text('#!/bin/sh\n#SBATCH --energy-clusters="lab\n')
    for name in (str(site.directory / "missing.sh"), str(quoted)):
        done = site.submit(name, config=site.clusters())
        assert (done.returncode, done.stderr) == (1, b"")
    assert site.fake.calls == [[os.fsencode(site.directory / "missing.sh")], [os.fsencode(quoted)]]
    pipe = site.directory / "pipe"
    os.mkfifo(pipe)  # which has no writer: who opened it would wait for ever
    for words in ((str(pipe),), ("--energy-clusters=lab", str(pipe))):
        assert site.submit(*words, config=site.clusters()).returncode == 1
    alone = site.submit("--energy-data=5GB@lab", "--wrap", "true", config=site.clusters())
    assert b"--energy-data says nothing without --energy-clusters" in alone.stderr


def test_a_cluster_that_hangs_costs_the_deadline_and_no_more(site: Site) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as silent:
        config = site.clusters(addresses={"slow": f"127.0.0.1:{silent.getsockname()[1]}"}, deadline_seconds=8.0)
        done = site.submit(
            "--energy-clusters=slow,lab", "--gres=gpu:1", "-t60", "-pa100", "--wrap", "true", config=config
        )
    assert site.fake.calls == [[b"--clusters=lab", b"--gres=gpu:1", b"-t60", b"-pa100", b"--wrap", b"true"]], (
        done.stderr
    )
    assert b"slow: no answer within 8 s" in done.stderr


def test_a_dry_run_shows_all_offers_and_submits_nothing(site: Site) -> None:
    words = ("--energy-clusters=lab,gone", "--energy-dry-run", "--gres=gpu:1", "-t60", "-pa100", "--wrap", "true")
    table = site.submit(*words, config=site.clusters())
    lines = table.stdout.decode().splitlines()
    assert table.returncode == 0 and lines[0] == "Dry run: nothing was submitted."
    assert lines[2].split()[:2] == ["*", "lab"] and "a100" in lines[2]
    assert "left out: gone: clusters.addresses has no gone" in lines
    found = json.loads(site.submit("--json", *words, config=site.clusters()).stdout)
    assert found["chosen"] == "lab" and found["left_out"] == {"gone": "clusters.addresses has no gone"}
    (offer,) = found["offers"]
    assert offer["joules"] > 0.0 and offer["cost"] == pytest.approx(sum(offer["parts"].values()))
    assert site.fake.calls == []


def test_where_slurmdbd_is_away_the_job_goes_to_the_local_cluster(site: Site) -> None:
    program = (site.fake.bin / "sbatch").read_text().replace(
        'end = time.monotonic()',
        'if words[0].startswith(b"--clusters"):\n'
        '    write_all(2, b"sbatch: error: There is a problem talking to the database: Connection refused.  Only local '
        'cluster communication is available, remove --cluster from your command line.\\n")\n'
        "    os._exit(1)\nend = time.monotonic()", 1
    )  # fmt: skip
    site.fake.install("sbatch", program)
    done = site.submit(
        "--energy-clusters=lab", "--gres=gpu:1", "-t60", "-pa100", "--wrap", "true", config=site.clusters()
    )
    assert [call[0] for call in site.fake.calls] == [b"--clusters=lab", b"--gres=gpu:1"]
    assert done.returncode == 0 and b"sbatch was run for the local one" in done.stderr


def test_a_full_partition_says_when_room_is_expected(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        full = make_node("n1", "a100", gres_used="gpu:a100:4(IDX:0-3)", state="allocated")
        daemon.slurm.set_nodes([full, make_node("n2", "a40")])
        wait_until(
            lambda: has_snapshot(daemon) and ask(daemon).get("wait_source") != "room now", "the full node", daemon
        )
        offer = ask(daemon)
        assert offer["wait_seconds"] is None and offer["wait_source"] == "not known"
