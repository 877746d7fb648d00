"""Every command: its help, its place in the reference, its exit codes."""

import json
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from slurm_energy.cli import reference
from slurm_energy.cli.main import NOUNS, cli, main
from slurm_energy.daemon.app import main as daemon_main
from slurm_energy.forms import hide_password
from slurm_energy.policy.registry import known_policy_names

REPOSITORY = Path(__file__).parents[3]
COMMANDS = dict(reference.walk(cli, ("slurm-energy",)))
NO_VERB = {"the", "a", "an", "this", "it", "for", "with"}


@pytest.fixture(autouse=True)
def _no_site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_ENERGY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_ENERGY_DAEMON_SOCKET_PATH", str(tmp_path / "none.sock"))
    monkeypatch.setenv("SLURM_ENERGY_STORE_URL", f"sqlite:///{tmp_path}/energy.sqlite")


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_starts_with_a_verb_and_ends_with_an_example_of_this_command(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    first, *_ = (command.help or "").split()
    assert first.istitle()
    assert first.lower() not in NO_VERB
    assert not first.endswith("s"), f"{first} is not an imperative"
    assert (command.epilog or "").startswith("Example: ")
    words = (command.epilog or "").removeprefix("Example: ").replace("sudo -u slurm ", "").replace("sudo ", "").split()
    assert words[: len(path)] == list(path)


def test_every_option_and_argument_is_explained() -> None:
    options = [
        (f"{' '.join(path)} {parameter.opts}", parameter.help)
        for path, command in COMMANDS.items()
        for parameter in command.params
        if isinstance(parameter, click.Option)
    ]
    assert len(options) > 100
    assert [(name, text) for name, text in options if not text or not text.endswith((".", "?"))] == []


def test_every_command_is_in_the_reference() -> None:
    page = (REPOSITORY / "docs/reference/cli.md").read_text(encoding="utf-8")
    assert [path for path in COMMANDS if f"# `{' '.join(path)}`\n" not in page] == []


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_reference_pages_are_up_to_date(name: str) -> None:
    page = REPOSITORY / "docs/reference" / name
    assert page.read_text(encoding="utf-8") == reference.PAGES[name](), (
        "run: python -m slurm_energy.cli.reference --write"
    )


@pytest.mark.parametrize("name", NOUNS)
def test_the_list_of_commands_says_what_each_help_says(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.get_short_help_str(limit=200).rstrip(".") == NOUNS[name].summary.rstrip(".")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--version"], 0),
        (["policy", "list"], 0),
        (["policy", "show", "nonesuch"], 1),
        (["status"], 1),
        (["decisions"], 1),
        (["report", "user"], 1),
        (["explain", "1"], 1),
        (["nonesuch"], 2),
        (["report", "job", "1_2"], 2),
        (["report", "job", "0"], 2),
        (["report", "job", "x"], 2),
        (["report", "user", "--since", "soon"], 2),
        (["report", "user", "--since", "2026-03-02", "--until", "2026-03-01"], 2),
        (["config", "show", "nonesuch"], 2),
        (["--config", "/nonexistent.toml", "config", "show"], 1),
    ],
)
def test_exit_codes(words: list[str], code: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(words) == code
    said = capfd.readouterr()
    assert "Traceback" not in said.err
    if code:
        assert said.err
        assert said.out == ""


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupted)
    assert main([]) == 130
    assert capfd.readouterr().err == "slurm-energy: interrupted\n"


def test_config_show_tells_where_each_value_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.toml"
    file.write_text('[policy]\nname = "fixed-clock"\n', encoding="utf-8")
    monkeypatch.setenv("SLURM_ENERGY_NODE_TIME_SCALE", "60")
    monkeypatch.setenv("SLURM_ENERGY_STORE_URL", "postgresql+psycopg://energy:secret@db/e")
    result = CliRunner().invoke(cli, ["--config", str(file), "config", "show", "--json"], standalone_mode=False)
    rows = json.loads(result.stdout)
    assert rows["policy.name"] == {"value": "fixed-clock", "origin": str(file), "default": "auto"}
    assert rows["node.time_scale"]["origin"] == "$SLURM_ENERGY_NODE_TIME_SCALE"
    assert rows["node.time_scale"]["value"] == 60.0
    assert rows["guard.min_energy_saving"]["origin"] == "default"
    assert rows["store.url"]["value"] == "postgresql+psycopg://energy:***@db/e"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:////var/lib/e@x.sqlite", "sqlite:////var/lib/e@x.sqlite"),
        ("postgresql://u:p@h/d", "postgresql://u:***@h/d"),
        ("mariadb://u:p:q@r@h/d", "mariadb://u:***@h/d"),
        ("mariadb://u@h/d", "mariadb://u@h/d"),
    ],
)
def test_passwords_are_never_shown(url: str, shown: str) -> None:
    assert hide_password(url) == shown


def test_config_check_names_the_fault(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.toml"
    file.write_text("[policy]\nmax_slowdown = 9\n", encoding="utf-8")
    assert main(["config", "check", str(file)]) == 1
    assert "policy.max_slowdown is 9" in capfd.readouterr().err
    file.write_text("[policy]\nmax_slowdown = 0.1\n", encoding="utf-8")
    assert main(["config", "check", str(file)]) == 0


def test_config_check_and_the_daemon_refuse_the_same_with_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.toml"
    file.write_text(
        '[policy]\nname = "magic"\nfixed_clocks_mhz = { a100 = 5 }\n[store]\nurl = "oracle://u:secret@h/d"\n'
        '[node]\ndaemon_address = "ctl"\nsite_locked_clocks_mhz = { a100 = 7 }\n'
        '[gpu_types]\nx = "y"\n[routing]\npartitions = ["a b"]\n'
    )
    for variable in ("SLURM_ENERGY_STORE_URL", "SLURM_ENERGY_DAEMON_SOCKET_PATH"):
        monkeypatch.delenv(variable)
    assert main(["config", "check", str(file)]) == 1
    people = [line.removeprefix("slurm-energy: ") for line in capfd.readouterr().err.splitlines()]
    for words in (["--check-config"], []):
        assert daemon_main(["--config", str(file), *words]) == 1
        said = [line.removeprefix("slurm-energyd: ") for line in capfd.readouterr().err.splitlines()]
        assert said == people
    assert len(people) == 7 and "secret" not in "".join(people)


def test_config_check_says_what_it_could_not_check(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.toml"
    file.write_text("[node.site_locked_clocks_mhz]\nt4 = 900\n")
    assert main(["config", "check", str(file)]) == 0
    said = capfd.readouterr()
    assert (said.out, "no clock table of t4" in said.err) == (f"{file} is good.\n", True)


def test_policy_list_marks_the_configured_one(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "list"]) == 0
    lines = capfd.readouterr().out.split("\n\n")[0].splitlines()
    assert [line[2:].split()[0] for line in lines] == list(known_policy_names())
    assert next(line for line in lines if line.startswith("*")).startswith("* gnn"), "what auto stands for with torch"


def test_lab_commands_without_a_lab(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SLURM_ENERGY_LAB_ROOT", "/nonexistent/labs")  # short: it holds sockets
    assert main(["lab", "status", "--json"]) == 0
    assert capfd.readouterr().out == "[]\n"
    assert main(["lab", "down", "--all"]) == 0
    for words in (["down"], ["shell", "true"], ["logs"]):
        assert main(["lab", *words]) == 1
        assert "no lab 'lab' runs" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--partition", "a100"], "is not NAME:NODESxGPUS"),
        (["--partition", "a100:0x4"], "has 0 nodes"),
        (["--name", "../x"], "lab name '../x'"),
        (["--time-scale", "nan"], "time scale nan"),
    ],
)
def test_a_lab_that_cannot_be_is_refused(words: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "up", *words]) == 1
    assert message in capfd.readouterr().err


def test_the_command_page_does_not_depend_on_who_asked_for_help_before() -> None:
    before = reference.command_page()
    for path in COMMANDS:
        CliRunner().invoke(cli, [*path[1:], "--help"])
    assert reference.command_page() == before
    assert "-h, --help" in before
