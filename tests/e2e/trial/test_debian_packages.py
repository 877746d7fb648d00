"""The Debian packages, typed from the install page on a Slurm of its own: before, during and after jobs run."""

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from install_page import console_blocks
from lab_fixtures import require_lab
from test_install_page import (
    KEY,
    WORK,
    decided_job,
    drained,
    explained,
    hand_out_slurm_conf,
    run_job,
    until,
    well,
)
from trial_site import REPOSITORY, TrialSite

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(1500),
    pytest.mark.long,
]

HOSTS = {"gpu1": "node", "login": "login", "ctl": "controller"}
DEBS = Path("/srv/slurm-energy/dist")
NEWER = Path("/srv/slurm-energy/newer")
DATABASE = "/var/lib/slurm-energy/energy.sqlite"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """Build the packages once, in this version and in a newer one; by where a host has them."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not here")
    sys.path.insert(0, str(REPOSITORY / "packaging"))
    try:
        tree, deb = importlib.import_module("tree"), importlib.import_module("deb")
    finally:
        sys.path.pop(0)
    folder = tmp_path_factory.mktemp("packages")
    trees = tree.lay_out(folder / "trees", "0.1.0")
    deb.build_debs(trees, folder / "older", compression="none")
    deb.build_debs(replace(trees, version="0.1.1"), folder / "newer", compression="none")
    return {DEBS: folder / "older", NEWER: folder / "newer"}


@pytest.fixture(scope="module")
def site(packages: dict[Path, Path]) -> Iterator[TrialSite]:
    """A Slurm that runs jobs, and the packages' files on each host."""
    require_lab(energy=True)
    site = TrialSite()
    try:
        for host in (*HOSTS, "bare"):
            site.start_host(host)
            site.prepare(host, KEY)
            site.run(host, "rm -f /usr/sbin/policy-rc.d")  # a machine that builds images forbids what packages start
        for host in HOSTS:
            for place, folder in packages.items():
                shutil.copytree(folder, site.path(host, place), dirs_exist_ok=True)
        site.give_gpus("gpu1")
        site.run("ctl", "systemctl start slurmctld")
        for host in ("gpu1", "bare"):
            site.run(host, "systemctl start slurmd")
        until(
            lambda: site.run("ctl", "sinfo -h -N -o %T", check=False).stdout.split() == ["idle", "idle"], "idle nodes"
        )
        site.running.add("ctl")
        yield site
        print(site.run("ctl", "tail -n 30 /var/log/slurm-energyd.log", check=False).stdout)  # for a test that failed
    finally:
        site.stop()


def commands(section: str, word: str) -> str:
    """Return the command of the page's section that has a word in it."""
    (found,) = (command for command in console_blocks()[section] if word in command)
    return found


def install(site: TrialSite, host: str, folder: Path) -> str:
    command = commands("Install the packages", f"slurm-energy-{HOSTS[host]}")
    # apt would ask the archive, which a host of this trial does not reach: dpkg is what it calls.
    assert command.startswith("apt install ./")
    files = command.removeprefix("apt install ")
    said = site.run(host, f"cd {folder} && dpkg -i {files} 2>&1", limit_seconds=600)
    assert drained(site) == "", host
    return said.stdout


ROWS = """
import json, sqlite3
with sqlite3.connect("file:{database}?mode=ro", uri=True) as connection:
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    print(json.dumps({{name: connection.execute(f"SELECT count(*) FROM {{name}}").fetchone()[0] for name in names}}))
"""


def rows(site: TrialSite) -> dict[str, int]:
    """Return how many rows each table has; the database is whole."""
    site.write("ctl", "/srv/rows.py", ROWS.format(database=DATABASE))
    found: dict[str, int] = json.loads(site.run("ctl", "/usr/bin/python3 /srv/rows.py").stdout)
    return found


def reported(site: TrialSite, job: int) -> bool:
    """Return whether a job's energy is in the database."""
    return f"{job}" in site.run("ctl", f"slurm-energy report job {job}", check=False).stdout


def lost_rows(site: TrialSite, before: dict[str, int]) -> set[str]:
    """Return the tables that have fewer rows than before."""
    after = rows(site)
    return {name for name, count in before.items() if after.get(name, 0) < count}


def test_installing_leaves_slurm_as_it_is(site: TrialSite) -> None:
    run_job(site, "-w gpu1 --gres=gpu:1")  # before anything of ours is there
    before = {host: site.path(host, "/etc/slurm/slurm.conf").read_text() for host in HOSTS}
    for host in HOSTS:
        install(site, host, DEBS)
        assert site.path(host, "/etc/slurm/slurm.conf").read_text() == before[host]
        for command in ("slurm-energy", "energy-sbatch"):
            assert site.run(host, f"command -v {command}").stdout == f"/usr/bin/{command}\n"
        assert site.run(host, "slurm-energy --version").stdout.strip()
    run_job(site, "-w gpu1 --gres=gpu:1")
    assert "--energy=" in site.run("login", "sbatch --help").stdout
    for unit in ("slurm-energy-flush.timer", "slurm-energy-repair.timer"):
        site.run("gpu1", f"systemctl is-enabled {unit}")
    site.run("ctl", "systemctl is-active slurm-energyd")
    assert site.run("ctl", "ls /etc/systemd/system | grep energy", check=False).stdout == ""


def test_switched_on_by_the_page_jobs_are_measured(site: TrialSite) -> None:
    for command in console_blocks()["Switch it on"]:
        if command == "slurm-energy doctor":
            continue  # below, when the first reports are there
        if command == "scontrol reconfigure":
            hand_out_slurm_conf(site)
        site.run("ctl", command, answer="y\n", limit_seconds=300)
        assert drained(site) == "", command
    for host in ("gpu1", "ctl"):
        until(partial(well, site, host), f"doctor without faults on {host}", limit_seconds=90.0)
        text = site.path(host, "/etc/slurm-energy/slurm-energy.toml").read_text()
        site.write(host, "/etc/slurm-energy/slurm-energy.toml", f'{text}\n"a100-sxm4-80gb" = 500\n')
    site.run("ctl", "systemctl restart slurm-energyd")
    site.run(
        "ctl", "sed -i s/^deadline_milliseconds=.*/deadline_milliseconds=500/ /etc/slurm-energy/energy-plugin.conf"
    )
    job = run_job(site, "-w gpu1 --gres=gpu:1", WORK.format(seconds=60))
    until(lambda: reported(site, job), "a report")


def test_upgraded_while_a_job_holds_a_clock_the_job_is_measured_to_its_end(site: TrialSite) -> None:
    before = rows(site)
    job = decided_job(site, WORK.format(seconds=900))
    until(lambda: site.locked_clocks_mhz("gpu1"), "a locked clock")
    for host in HOSTS:
        install(site, host, NEWER)
        version = site.run(host, "dpkg-query -W -f '${Version}' slurm-energy").stdout
        assert version.startswith("0.1.1+slurm")
    site.run("ctl", f"timeout 150 sh -c 'while squeue -h -j {job} | grep -q .; do sleep 1; done'", limit_seconds=200)
    until(lambda: reported(site, job), "a report of the job that an upgrade met")
    assert site.locked_clocks_mhz("gpu1") == []
    assert lost_rows(site, before) == set()
    site.run("ctl", "systemctl is-active slurm-energyd")


def test_removed_while_a_job_holds_a_clock_nothing_is_locked_and_slurm_goes_on(site: TrialSite) -> None:
    job = decided_job(site, WORK.format(seconds=3000))
    until(lambda: site.locked_clocks_mhz("gpu1"), "a locked clock")
    for host, role in HOSTS.items():
        command = commands("Update and remove the packages", f"apt remove slurm-energy-{role}")
        assert command.startswith("apt remove ")
        said = site.run(host, f"dpkg -r {command.removeprefix('apt remove ')} slurm-energy 2>&1", limit_seconds=300)
        assert drained(site) == "", said.stdout
        if host == "gpu1":
            assert site.locked_clocks_mhz("gpu1") == []
            until(lambda: "slurm-energy was uninstalled while the job ran" in explained(site, job), "its report")
            kept = rows(site)
    site.run("ctl", f"scancel {job}")
    # slurm.conf names energy still: slurmctld must start all the same.
    assert "energy" in site.path("ctl", "/etc/slurm/slurm.conf").read_text()
    site.run("ctl", "systemctl restart slurmctld")
    for node in ("gpu1", "bare"):
        run_job(site, f"-w {node}")
    assert lost_rows(site, kept) == set()
    for host in HOSTS:
        assert not site.path(host, "/usr/lib/slurm-energy/bin").exists()
        assert not site.path(host, "/bin/tru_").exists()


def test_purged_the_database_stays_and_is_named(site: TrialSite) -> None:
    kept = rows(site)
    for host, role in HOSTS.items():
        said = site.run(host, f"dpkg -P slurm-energy-{role} slurm-energy 2>&1").stdout
        assert not site.path(host, "/etc/slurm-energy").exists()
        if host == "ctl":
            assert "/var/lib/slurm-energy stays" in said
            assert "job_submit_energy.so stays: slurm.conf names it" in said
    assert rows(site) == kept
    site.run("ctl", "systemctl restart slurmctld")
    run_job(site, "-w gpu1")
    assert drained(site) == ""
