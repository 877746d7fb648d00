import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from slurm_energy.lab.layout import closed_ancestor
from slurm_energy.node import main as hook_main

COMMAND = [sys.executable, "-I", "-m", "slurm_energy.node.main"]
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0", "SLURMD_NODENAME": "n1"}


def run(*arguments: str, environment: Mapping[str, str] = JOB) -> subprocess.CompletedProcess[str]:
    """Run the hook with exactly this environment: no PATH, no HOME."""
    return subprocess.run(
        [*COMMAND, *arguments], env=dict(environment), capture_output=True, text=True, timeout=60, check=False
    )


def config(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "slurm-energy.toml"
    path.write_text(text)
    return {**JOB, "SLURM_ENERGY_CONFIG": str(path)}


def node_section(tmp_path: Path, **more: str) -> str:
    lines = {
        "spool_directory": f'"{tmp_path}/spool"',
        "log_path": f'"{tmp_path}/log"',
        "nvml_library": '"/nonexistent/libnvidia-ml.so.1"',
        **more,
    }
    return "[node]\n" + "".join(f"{key} = {value}\n" for key, value in lines.items())


@pytest.mark.parametrize("verb", ["prolog", "epilog"])
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[node", "cannot be read"),
        ("[node]\nspool = 1\n", "[node] has no 'spool'; "),
        ("[node]\ntime_limit_seconds = 0.0\n", "between 0.5 and 60"),
        ('[node]\nspool_directory = "relative"\nlog_path = ""\n', "absolute path"),
    ],
)
def test_bad_configuration_is_told_and_exits_0(tmp_path: Path, verb: str, text: str, told: str) -> None:
    done = run(verb, environment=config(tmp_path, text))
    assert (done.returncode, done.stdout) == (0, "")
    assert told in done.stderr


@pytest.mark.parametrize("broken", ["[policy]\nnonsense =\n", "[guard\n", "[store]\nurl = 'sqlite\n"])
def test_broken_text_in_another_section_does_not_stop_the_hooks(tmp_path: Path, broken: str) -> None:
    for text in (broken + node_section(tmp_path), node_section(tmp_path) + broken):
        done = run("prolog", environment=config(tmp_path, text))
        assert done.returncode == 0 and "continued with its [node] and [cluster]" in done.stderr
        assert "libnvidia-ml.so.1 cannot be loaded" in (tmp_path / "log").read_text()
        (tmp_path / "log").unlink()


@pytest.mark.parametrize("verb", ["prolog", "epilog"])
def test_missing_configuration_that_was_named_exits_0(verb: str) -> None:
    done = run(verb, environment={**JOB, "SLURM_ENERGY_CONFIG": "/nonexistent.toml"})
    assert done.returncode == 0 and "/nonexistent.toml does not exist" in done.stderr


def test_errors_of_other_sections_do_not_stop_the_hooks(tmp_path: Path) -> None:
    environment = config(
        tmp_path,
        '[policy]\nnme = 1\n[gpu_types]\nx = "y"\n[store]\nurl = "oracle://h"\n[routing]\npartitions = ["a b"]\n'
        + node_section(tmp_path, daemon_address='"nonsense"', site_locked_clocks_mhz="{ a1oo = 5 }"),
    )
    done = run("prolog", environment=environment)
    assert done.returncode == 0 and "libnvidia-ml.so.1 cannot be loaded" in done.stderr
    assert "libnvidia-ml.so.1 cannot be loaded" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("verb", ["prolog", "epilog"])
def test_spool_that_cannot_be_made_exits_0(tmp_path: Path, verb: str) -> None:
    (tmp_path / "file").write_text("")
    text = node_section(tmp_path, spool_directory=f'"{tmp_path}/file/spool"', log_path='"/nonexistent/log"')
    done = run(verb, environment=config(tmp_path, text))
    assert done.returncode == 0 and "file/spool" in done.stderr


@pytest.mark.parametrize("verb", ["prolog", "epilog"])
def test_missing_job_id_exits_0(verb: str) -> None:
    done = run(verb, environment={"SLURM_JOB_GPUS": "0"})
    assert done.returncode == 0 and "SLURM_JOB_ID" in done.stderr


@pytest.mark.parametrize("verb", ["prolog", "epilog"])
def test_wrong_options_of_a_hook_still_exit_0(verb: str) -> None:
    assert run(verb, "--wrong", environment={"SLURM_JOB_ID": "7"}).returncode == 0


def test_job_without_gpus_reads_no_configuration() -> None:
    done = run("prolog", environment={"SLURM_JOB_ID": "7", "SLURM_ENERGY_CONFIG": "/nonexistent.toml"})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="drops root's rights")
@pytest.mark.parametrize("verb", ["prolog", "epilog"])
def test_hook_without_rights_exits_0(tmp_path: Path, verb: str) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o700)
    environment = config(tmp_path, node_section(tmp_path, spool_directory=f'"{locked}/spool"'))
    become = ["/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    if closed_ancestor(Path(sys.executable)) is not None:
        # A checkout in /root: the right to read is what it takes to start at all.
        become += ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    done = subprocess.run([*become, *COMMAND, verb], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "Permission denied" in done.stderr) == (0, True)


def test_closed_stderr_does_not_matter() -> None:
    shell = f"exec 1>&- 2>&-; exec {' '.join(COMMAND)} prolog"
    environment = {**JOB, "SLURM_ENERGY_CONFIG": "/nonexistent.toml"}
    assert subprocess.run(["/bin/sh", "-c", shell], env=environment, check=False).returncode == 0


@pytest.mark.parametrize("arguments", [(), ("prolgo",), ("flush", "--al"), ("sample",), ("repair", "--node")])
def test_wrong_usage_is_2_with_the_usage(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and "usage: slurm-energy-hook" in done.stderr


def test_help_starts_with_a_verb_and_ends_with_an_example() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Run ") and done.stdout.splitlines()[-1].startswith("example: ")


def test_flush_and_repair_tell_by_their_exit_code(tmp_path: Path) -> None:
    environment = config(tmp_path, node_section(tmp_path))
    assert run("repair", "--all", environment=environment).returncode == 0
    assert run("flush", "--node", "n1", environment=environment).returncode == 0
    (tmp_path / "spool" / "active" / "7.json").write_text("{}")
    done = run("repair", environment=environment)
    assert done.returncode == 1 and "7.json" in done.stderr
    assert run("repair", environment=environment).returncode == 0


@pytest.mark.parametrize("name", ["../../etc", "", "a/b", "x\ny"])
def test_hostile_node_name_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    environment = config(tmp_path, node_section(tmp_path, spool_directory=f'"{tmp_path}/spool/%n"'))
    done = run("repair", "--node", name, environment={**environment, "SLURMD_NODENAME": name})
    assert done.returncode == (0 if name == "" else 1)
    assert {path.name for path in tmp_path.iterdir()} <= {"slurm-energy.toml", "spool", "log"}


def test_fork_that_fails_exits_0(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_fork() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setenv("SLURM_JOB_GPUS", "0")
    monkeypatch.setattr(os, "fork", no_fork)
    monkeypatch.setattr("signal.signal", lambda number, action: None)
    assert hook_main.run(["prolog"]) == 0
    assert hook_main.run(["flush"]) == 1
