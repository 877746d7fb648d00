"""Energy taken out of JobSubmitPlugins and put back: nothing of the site's own is lost."""

from pathlib import Path

import pytest

from slurm_energy.cli.installing.slurm_conf import (
    is_taken_out,
    put_back,
    read_conf_files,
    take_out,
    with_energy,
    without_energy,
)
from slurm_energy.cli.site import read_slurm_conf

CONF = Path("/etc/slurm/slurm.conf")


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "etc/slurm/slurm.conf"
    path.parent.mkdir(parents=True)
    return path


def plugins(root: Path) -> str | None:
    return read_slurm_conf(CONF, root).get("jobsubmitplugins")


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("JobSubmitPlugins=energy", None),
        ("JobSubmitPlugins=energy # slurm-energy", None),
        ("JobSubmitPlugins=lua,energy", "lua"),
        ("  jobsubmitplugins = energy,lua  # ours", "lua"),
        ('JobSubmitPlugins="lua,energy,require_timelimit"', "lua,require_timelimit"),
        ("JobSubmitPlugins=job_submit/energy,all_partitions", "all_partitions"),
    ],
)
def test_energy_goes_and_comes_back_with_every_byte(tmp_path: Path, conf: Path, line: str, left: str | None) -> None:
    before = f"ClusterName=north\n{line}\n\x0cNodeName=n1 Weight=5\r\n# no end"
    conf.write_bytes(before.encode())
    conf.chmod(0o640)
    assert take_out(CONF, tmp_path) == [CONF]
    assert plugins(tmp_path) == left
    assert is_taken_out(CONF, tmp_path)
    # An empty list would stop slurmctld just as well.
    assert "JobSubmitPlugins=\n" not in conf.read_text()
    assert take_out(CONF, tmp_path) == []
    assert put_back(CONF, tmp_path) == [CONF]
    assert conf.read_bytes() == before.encode()
    assert conf.stat().st_mode & 0o777 == 0o640
    assert not is_taken_out(CONF, tmp_path)


def test_the_line_is_found_in_an_included_file_behind_a_link(tmp_path: Path, conf: Path) -> None:
    conf.write_text("Include submit.conf\n")
    real = tmp_path / "shared.conf"
    real.write_text("JobSubmitPlugins=lua,energy\n")
    (conf.parent / "submit.conf").symlink_to(real)
    take_out(CONF, tmp_path)
    assert plugins(tmp_path) == "lua"
    assert (conf.parent / "submit.conf").is_symlink()
    put_back(CONF, tmp_path)
    assert real.read_text() == "JobSubmitPlugins=lua,energy\n"


@pytest.mark.parametrize(
    ("before", "changed_to", "after"),
    [
        ("JobSubmitPlugins=lua,energy", "JobSubmitPlugins=lua,all_partitions", "lua,all_partitions,energy"),
        ("JobSubmitPlugins=energy", "JobSubmitPlugins=all_partitions", "all_partitions,energy"),
        ("JobSubmitPlugins=energy", "JobSubmitPlugins=energy", "energy"),
    ],
)
def test_what_a_person_changed_meanwhile_stays(
    tmp_path: Path, conf: Path, before: str, changed_to: str, after: str
) -> None:
    conf.write_text(before + "\n")
    take_out(CONF, tmp_path)
    kept = [line for line in conf.read_text().splitlines() if not line.startswith("JobSubmitPlugins")]
    conf.write_text("\n".join([*kept, changed_to, ""]))
    put_back(CONF, tmp_path)
    assert plugins(tmp_path) == after
    assert conf.read_text().count("JobSubmitPlugins") == 1


@pytest.mark.parametrize("edit", [lambda files: with_energy(files, several_hooks=True), without_energy])
def test_install_and_uninstall_leave_no_trace_of_what_was_taken_out(tmp_path: Path, conf: Path, edit: object) -> None:
    conf.write_text("JobSubmitPlugins=lua,energy\n")
    take_out(CONF, tmp_path)
    (file,) = edit(read_conf_files(CONF, tmp_path))  # type: ignore[operator]  # either of two functions
    assert "took energy out" not in file.text
