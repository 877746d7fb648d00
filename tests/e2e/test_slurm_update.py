"""An update of Slurm never keeps slurmctld from starting: the plugins are of other releases than the real daemons here.

A lab has one release of Slurm. What an update does is turned round: the files of the plugins say that they were
compiled for another one.
"""

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from energy_lab import drained, submit_decided
from lab_fixtures import EXACT, PATIENT, SMALL, lab_spec, require_lab

from slurm_energy.errors import LabError
from slurm_energy.lab.cluster import Lab, start_lab
from slurm_energy.lab.jobs import show_job, submit, wait_for
from slurm_energy.slurm.plugin_file import Release, parse_release, read_plugin_file

pytestmark = pytest.mark.lab

JOB_SUBMIT, SPANK = "job_submit_energy.so", "spank_energy.so"
ARGUMENTS = ["-p", "a100", "--gres=gpu:1", "-t", "5"]

# What an earlier version of ours was to Slurm: a plugin with a release of its own and no more.
EARLIER = """
#include <stdint.h>
const char plugin_name[] = "earlier", plugin_type[] = "job_submit/energy";
const uint32_t plugin_version = %#x;
int job_submit(void *job, uint32_t uid, char **message) { return 0; }
int job_modify(void *job, void *record, uint32_t uid, char **message) { return 0; }
"""


@pytest.fixture(scope="module")
def one_lab() -> Iterator[Lab]:
    require_lab(energy=True)
    spec = lab_spec(name=f"update-{os.getpid()}", partitions=SMALL, settings=EXACT, plugin_settings=PATIENT)
    with start_lab(spec, owned=True) as running:
        yield running


@pytest.fixture
def lab(one_lab: Lab) -> Iterator[Lab]:
    """A lab with files that a test may spoil; they are put right after it."""
    paths = [one_lab.layout.plugins / JOB_SUBMIT, one_lab.layout.plugins / SPANK, one_lab.layout.slurm_conf]
    right = {path: path.read_bytes() for path in [*paths, one_lab.layout.energy_config]}
    yield one_lab
    for path, content in right.items():
        path.unlink(missing_ok=True)
        path.write_bytes(content)
    (one_lab.layout.programs / "make").unlink(missing_ok=True)
    shutil.rmtree(one_lab.directory / "usr-local-lib", ignore_errors=True)
    one_lab.restart_slurmctld()


@pytest.fixture
def here(one_lab: Lab) -> Release:
    """The release of the lab's Slurm."""
    release = parse_release(one_lab.run(["slurmctld", "-V"], check=True).stdout)
    assert release is not None
    return release


def number(release: Release) -> int:
    return release.year << 16 | release.month << 8 | release.micro


def compiled_for(path: Path, release: Release) -> None:
    """Have a plugin's file say that it was compiled for a release: its word in the file's data is changed."""
    before = struct.pack("<I", number(read_plugin_file(path).release))
    raw = path.read_bytes()
    places = [at for at in range(0, len(raw) - 3, 4) if raw[at : at + 4] == before]
    for at in places:
        path.unlink()
        path.write_bytes(raw[:at] + struct.pack("<I", number(release)) + raw[at + 4 :])
        if read_plugin_file(path).release == release:
            return
    raise AssertionError(f"{path} has no such word")


def earlier_plugin(path: Path, release: Release) -> None:
    source = path.with_suffix(".c")
    source.write_text(EARLIER % number(release))
    path.unlink(missing_ok=True)
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", path, source], check=True)


def said(lab: Lab) -> str:
    """Return what slurmctld said since its last start."""
    log = (lab.layout.log / "slurmctld.log").read_text(errors="replace")
    return log[log.rindex("slurmctld version") :]


def command(lab: Lab, *words: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    """Run slurm-energy as root in the lab; what it keeps below /usr/local/lib lies in the lab's folder."""
    kept = lab.directory / "usr-local-lib"
    kept.mkdir(exist_ok=True)
    script = f'mount --bind {kept} /usr/local/lib && exec slurm-energy "$@"'
    return lab.run(["unshare", "--mount", "/bin/sh", "-c", script, "sh", *words], timeout=90, check=check)


def before_start(lab: Lab, *options: str) -> str:
    done = command(lab, "plugin", "check", "--before-start", *options)
    assert done.returncode == 0, done.stderr
    return done.stderr


def undecided(lab: Lab, arguments: Sequence[str] = ()) -> None:
    """A job is accepted and runs just as it came."""
    job = submit(lab, [*ARGUMENTS, *arguments], wrap="true")
    wait_for(lab, job, {"COMPLETED"})
    shown = show_job(lab, job)
    assert shown["Partition"] == "a100"
    assert "AdminComment" not in shown


def decided(lab: Lab) -> None:
    job = submit_decided(lab, ARGUMENTS, wrap="true")
    wait_for(lab, job, {"COMPLETED"})
    assert drained(lab) == {}


@pytest.mark.parametrize("step", [1, pytest.param(-1, marks=pytest.mark.long)])
def test_a_micro_update_of_slurm_changes_nothing(lab: Lab, here: Release, step: int) -> None:
    other = here._replace(micro=here.micro + step)
    compiled_for(lab.layout.plugins / JOB_SUBMIT, other)
    compiled_for(lab.layout.plugins / SPANK, other)
    lab.restart_slurmctld()
    assert "Incompatible Slurm plugin" not in said(lab)
    decided(lab)
    assert f"built for Slurm {other}, fits slurmctld {here}" in command(lab, "plugin", "check", check=True).stdout
    assert f"built for Slurm {other}, fits slurmctld {here}" in command(lab, "status", check=True).stdout


def test_after_another_update_jobs_go_through_unchanged_until_the_plugin_is_compiled(lab: Lab, here: Release) -> None:
    other = Release(here.year + 1, 2, 0)
    compiled_for(lab.layout.plugins / JOB_SUBMIT, other)
    lab.restart_slurmctld()
    assert f"compiled for Slurm {other}, this is {here}: jobs go through unchanged" in said(lab)
    undecided(lab, ["--energy=saver"])
    for words in (("plugin", "check"), ("status",), ("doctor",)):
        assert f"jobs go through slurmctld {here} unchanged" in command(lab, *words).stdout.replace("\n", " ")
    assert f"recompiled for Slurm {here}" in before_start(lab)
    lab.restart_slurmctld()
    decided(lab)


@pytest.mark.parametrize(
    "other", [Release(23, 2, 7), pytest.param(Release(21, 8, 8), marks=pytest.mark.long), Release(26, 5, 0)]
)
def test_options_of_sbatch_work_without_an_error_on_any_release(lab: Lab, other: Release) -> None:
    compiled_for(lab.layout.plugins / SPANK, other)
    done = lab.run(["sbatch", *ARGUMENTS, "--energy=off", "-o", "/dev/null", "--wrap", "true"], user="alice")
    assert (done.returncode, done.stderr) == (0, "")
    done = lab.run(["srun", *ARGUMENTS, "--energy=off", "printenv", "SLURM_JOB_ID"], user="alice")
    assert done.returncode == 0
    assert not any(word in done.stderr.lower() for word in ("error", "spank", "incompatible"))
    # The option reaches the plugin in slurmctld as well: without it, sbatch would show what was decided.
    decided(lab)
    done = lab.run(["sbatch", *ARGUMENTS, "--energy=fast", "--wrap", "true"], user="alice")
    assert "--energy=fast is not off, observe, balanced or saver" in done.stderr
    node = next(iter(lab.spec.node_names))
    assert "spank" not in (lab.layout.log / f"slurmd-{node}.log").read_text().lower()


def spoil(lab: Lab, how: str, here: Release) -> None:
    path = lab.layout.plugins / JOB_SUBMIT
    if how == "of an earlier version":
        earlier_plugin(path, here._replace(micro=here.micro + 1))
    elif how == "missing":
        path.unlink()
    elif how == "damaged":
        path.write_bytes(path.read_bytes()[:1000])


WAYS = ["of an earlier version", "missing", "damaged"]


@pytest.mark.parametrize("how", WAYS)
def test_without_the_step_slurmctld_stops(lab: Lab, here: Release, how: str) -> None:
    """What the step is for: should Slurm become more patient, it may go."""
    spoil(lab, how, here)
    with pytest.raises(LabError):
        lab.restart_slurmctld()
    if how != "damaged":  # of which slurmctld dies as it looks at it
        assert "fatal: failed to initialize job_submit plugin" in said(lab)
    assert "Running as primary controller" not in said(lab)
    assert f"slurmctld {here} will not start" in command(lab, "plugin", "check").stdout
    before_start(lab)
    lab.restart_slurmctld()
    decided(lab)


@pytest.mark.parametrize("how", [pytest.param(how, marks=() if how == "missing" else pytest.mark.long) for how in WAYS])
def test_a_kept_copy_is_put_back_where_nothing_can_be_compiled(lab: Lab, here: Release, how: str) -> None:
    before_start(lab)  # of a start before the update: it keeps the copy
    spoil(lab, how, here)
    without_compiler(lab)
    assert "restored from its copy" in before_start(lab)
    lab.restart_slurmctld()
    decided(lab)


def without_compiler(lab: Lab) -> None:
    """Have `make` fail in the lab as on a controller that has no headers."""
    program = lab.layout.programs / "make"
    program.write_text("#!/bin/sh\necho 'slurm/slurm.h not found' >&2\nexit 1\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("listed", "left"), [("energy", None), ("lua,energy", "lua"), ("energy,all_partitions", "all_partitions")]
)
def test_where_nothing_helps_energy_is_taken_out_of_the_list_and_put_back_later(
    lab: Lab, here: Release, listed: str, left: str | None
) -> None:
    conf, path = lab.layout.slurm_conf, lab.layout.plugins / JOB_SUBMIT
    (lab.layout.etc / "job_submit.lua").write_text(
        "function slurm_job_submit() return slurm.SUCCESS end function slurm_job_modify() return slurm.SUCCESS end"
    )
    original = conf.read_text().replace("JobSubmitPlugins=energy", f"JobSubmitPlugins={listed}")
    conf.write_text(original)
    right = path.read_bytes()
    spoil(lab, "of an earlier version", here)
    without_compiler(lab)

    done = before_start(lab)
    assert "energy is removed from JobSubmitPlugins" in done
    lab.restart_slurmctld()
    shown = lab.run(["scontrol", "show", "config"], check=True).stdout
    assert f"JobSubmitPlugins        = {left or '(null)'}" in shown
    undecided(lab)
    assert drained(lab) == {}
    for words in (("plugin", "check"), ("status",), ("doctor",)):
        assert "energy was removed from JobSubmitPlugins" in command(lab, *words).stdout.replace("\n", " ")
    # Nothing is lost by starts in between.
    assert "energy is removed" not in before_start(lab)
    lab.restart_slurmctld()

    path.unlink()
    path.write_bytes(right)
    assert "energy is back in JobSubmitPlugins" in before_start(lab)
    assert conf.read_text() == original
    lab.restart_slurmctld()
    if left != "all_partitions":  # it comes after us and widens what was chosen
        decided(lab)
    assert command(lab, "plugin", "check").returncode == 0


def test_the_step_never_fails_and_leaves_a_list_that_a_site_keeps_for_itself(lab: Lab, here: Release) -> None:
    before = lab.layout.slurm_conf.read_text()
    spoil(lab, "missing", here)
    without_compiler(lab)
    assert "remove energy from JobSubmitPlugins in" in before_start(lab, "--keep-slurm-conf")
    assert lab.layout.slurm_conf.read_text() == before
    lab.layout.energy_config.write_text("not = [toml")
    before_start(lab, "--keep-slurm-conf")
    before_start(lab, "--slurmctld", "/nonexistent/slurmctld", "--keep-slurm-conf")
