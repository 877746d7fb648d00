"""The script that slurmd itself runs: whatever it finds, it exits 0, so no job fails and no node is drained."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

SHIPPED = Path(__file__).parents[2] / "plugin" / "hook" / "slurm-energy.sh"
HOOKS = ("prolog", "epilog")
BROKEN = {
    "exits 1": "#!/bin/sh\nexit 1\n",
    "exits 127": "#!/bin/sh\nexit 127\n",
    "is killed": "#!/bin/sh\nkill -KILL $$\n",
    "is terminated": "#!/bin/sh\nkill -TERM $$\n",
    "aborts": "#!/bin/sh\nkill -ABRT $$\n",
    "prints garbage": "#!/bin/sh\nhead -c 300000 /dev/urandom\nhead -c 300000 /dev/urandom >&2\nexit 3\n",
    "has no interpreter itself": "#!/nonexistent/sh\n",
    "is no program": "\x7fELF nothing of the kind",
}


def script(folder: Path, interpreter: str | Path | None = None) -> Path:
    """Return slurmd's script as it ships, or with an interpreter's path as `install` writes it."""
    if interpreter is None:
        return SHIPPED
    text = SHIPPED.read_text(encoding="utf-8")
    assert "'@PYTHON@'" in text
    made = folder / SHIPPED.name
    made.write_text(text.replace("@PYTHON@", str(interpreter)), encoding="utf-8")
    made.chmod(0o755)
    return made


def run(path: Path, hook: str | None, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a script as slurmd does, with nothing in its environment but what is given."""
    context = {} if hook is None else {"SLURM_SCRIPT_CONTEXT": f"{hook}_slurmd"}
    words = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in (context | environment).items()), str(path)]
    return subprocess.run(words, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize("context", [{}, {"SLURM_SCRIPT_CONTEXT": "prolog_slurmctld"}, {"SLURM_SCRIPT_CONTEXT": ""}])
def test_outside_of_prolog_and_epilog_of_slurmd_it_does_nothing(context: dict[str, str], tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\necho called\n")
    interpreter.chmod(0o755)
    done = run(script(tmp_path, interpreter), None, **context)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("hook", HOOKS)
def test_script_as_shipped_is_executable_and_exits_0_without_any_other_environment(hook: str, tmp_path: Path) -> None:
    assert run(script(tmp_path), hook).returncode == 0


@pytest.mark.parametrize("interpreter", ["there", "none"])
def test_a_pipe_in_place_of_the_file_that_names_the_hook_holds_no_job(interpreter: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "slurm-energy-hook.path")
    program = tmp_path / "there"
    program.write_text("#!/bin/sh\necho called\n")
    program.chmod(0o755)
    done = run(script(tmp_path, tmp_path / interpreter), "prolog", SLURM_CONF=str(tmp_path / "slurm.conf"))
    assert (done.returncode, done.stdout) == (0, b"called\n" if interpreter == "there" else b"")


@pytest.mark.parametrize("hook", HOOKS)
def test_missing_interpreter_is_said_and_exits_0(hook: str, tmp_path: Path) -> None:
    done = run(script(tmp_path, tmp_path / "none/python"), hook, SLURM_CONF=str(tmp_path / "slurm.conf"))
    assert (done.returncode, done.stdout) == (0, b"")
    assert f"is missing: no {hook}".encode() in done.stderr


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("how", BROKEN)
def test_broken_interpreter_exits_0(hook: str, how: str, tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(BROKEN[how], encoding="latin-1")
    interpreter.chmod(0o755)
    assert run(script(tmp_path, interpreter), hook, SLURM_JOB_ID="7", SLURM_JOB_GPUS="0").returncode == 0


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("how", BROKEN)
def test_broken_hook_program_that_a_file_names_exits_0(hook: str, how: str, tmp_path: Path) -> None:
    program = tmp_path / "hook"
    program.write_text(BROKEN[how], encoding="latin-1")
    program.chmod(0o755)
    (tmp_path / "slurm-energy-hook.path").write_text(str(program))  # no line feed at its end
    assert run(script(tmp_path), hook, SLURM_CONF=str(tmp_path / "slurm.conf"), SLURM_JOB_ID="7").returncode == 0


@pytest.mark.parametrize("hook", HOOKS)
def test_interpreter_that_is_a_folder_exits_0(hook: str, tmp_path: Path) -> None:
    assert run(script(tmp_path, tmp_path), hook).returncode == 0


@pytest.mark.parametrize("hook", HOOKS)
def test_script_runs_the_hook_of_its_name(hook: str, tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text('#!/bin/sh\necho "$1 $2 $3 $5"\n')
    interpreter.chmod(0o755)
    done = run(script(tmp_path, interpreter), hook)
    assert (done.returncode, done.stdout.decode()) == (0, f"-I -S -c {hook}\n")


SAYS_HOW = "import sys\ndef main():\n    print(sys.argv[1:], 'site' in sys.modules, __file__)\n"


@pytest.mark.parametrize("editable", [False, True])
def test_hook_starts_without_site_unless_only_that_finds_the_package(editable: bool, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    packages = next((tmp_path / "venv").glob("lib/python3*/site-packages"))
    package = (tmp_path / "checkout" if editable else packages) / "slurm_energy" / "node"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "main.py").write_text(SAYS_HOW)
    if editable:
        (packages / "slurm_energy" / "_shared").mkdir(parents=True)  # what such an install has there
        (packages / "slurm_energy.pth").write_text(f"{tmp_path / 'checkout'}\n")
    done = run(script(tmp_path, tmp_path / "venv/bin/python"), "prolog")
    assert done.stdout.decode() == f"['prolog'] {editable} {package / 'main.py'}\n", done.stderr


@pytest.mark.parametrize("hook", HOOKS)
def test_the_real_interpreter_without_slurms_variables_exits_0(hook: str, tmp_path: Path) -> None:
    assert run(script(tmp_path, sys.executable), hook).returncode == 0
