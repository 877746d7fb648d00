"""The install page, typed literally on a Slurm of its own: no node is drained on the way, with or without our files."""

import re
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from install_page import console_blocks
from lab_fixtures import require_lab
from trial_site import CLONE, TrialSite

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1200)]

HOST_OF_SECTION = {
    "With Debian packages": (),  # their trial is test_debian_packages.py
    "Build the packages": (),
    "Install the packages": (),
    "Switch it on": (),
    "Learned policies": (),
    "Update and remove the packages": (),
    "RPM packages": (),
    "From a clone": (),
    "1. The package": ("image",),
    "2. The nodes with GPUs": ("gpu1",),
    "3. The login nodes": ("login",),
    "4. The controller": ("ctl",),
    "5. Check": (),
    "6. Begin without changing anything": (),
    "Updates of Slurm": (),
    "Settings that NVML cannot report": (),
    "A node without our files": (),
    "Prolog and Epilog of your own": (),
    "Uninstall": (),
    "On the nodes": ("gpu1",),
    "On the controller": ("ctl",),
    "On the login nodes": ("login",),
    "What is left": ("gpu1", "login", "ctl"),
}
"""Who types what stands under a heading: a heading that is new here must be given a place first."""
KEY = bytes(range(256)) * 4
WORK = "SLURM_ENERGY_SIM_GPU_DIR=/usr/lib/gpus simgpu-workload --profile training --seconds-at-default {seconds}"
_SETTINGS = {"/etc/slurm-energy", "/etc/slurm-energy/slurm-energy.toml", "spank_energy.so"}
LEFT = {
    "gpu1": _SETTINGS,
    "login": _SETTINGS,
    "ctl": _SETTINGS | {"/var/lib/slurm-energy", "/var/lib/slurm-energy/slurm-energyd.lock"},
}
"""What the page says is left after `uninstall`: settings, the options of sbatch without effect, the daemon's state."""


def follow(site: TrialSite, sections: Iterator[str] | list[str]) -> None:
    for section in sections:
        for host in HOST_OF_SECTION[section]:
            for command in console_blocks()[section]:
                if command == "scontrol reconfigure":
                    hand_out_slurm_conf(site)
                site.run(host, command, answer="y\n", network=host != "image", limit_seconds=600)
                assert drained(site) == "", f"after {command} on {host}"


def hand_out_slurm_conf(site: TrialSite) -> None:
    """Do what the site's own tools do."""
    text = site.path("ctl", "/etc/slurm/slurm.conf").read_text()
    for host in ("login", "gpu1", "bare"):
        site.write(host, "/etc/slurm/slurm.conf", text)


def drained(site: TrialSite) -> str:
    """Return the nodes that are not well, with the reason; nothing before Slurm runs."""
    if "ctl" not in site.running:
        return ""
    said = site.run("ctl", "timeout 20 sinfo -h -N -o '%N %T %E'", check=False).stdout
    return "".join(line for line in said.splitlines(keepends=True) if "drain" in line or "down" in line)


def well(site: TrialSite, host: str) -> bool:
    """Return whether doctor finds no fault but that these boards have another power limit than the catalogue's."""
    said = site.run(host, "slurm-energy doctor", check=False).stdout
    found = re.findall(r"^fail (?!GPU power limits).*", said, re.MULTILINE)
    if found:
        print(said)
    return not found


def run_job(site: TrialSite, options: str, command: str = "true", *, wait: bool = True) -> int:
    done = site.run("login", f"sbatch --parsable -o /tmp/job-%j.out {options} --wrap '{command}'", user="alice")
    job = int(done.stdout.strip())
    if wait:
        await_state(site, job, "COMPLETED")
    return job


def decided_job(site: TrialSite, command: str) -> int:
    """Return a job with a lower clock, as soon as the daemon knows the cluster."""
    for _ in range(4):
        job = run_job(site, "-w gpu1 --gres=gpu:1 --energy=saver", command, wait=False)
        end = time.monotonic() + 30.0
        while "Decided" not in (said := explained(site, job)) and time.monotonic() < end:
            time.sleep(0.5)
        if "Decided" in said and "nothing was changed" not in said:
            return job
        site.run("ctl", f"scancel {job}")
    raise AssertionError(f"four submissions in a row got no lower clock:\n{said}")


def explained(site: TrialSite, job: int) -> str:
    return site.run("ctl", f"slurm-energy explain {job}", check=False).stdout


def joules(site: TrialSite, job: int) -> float:
    """Return what the database has of a job, 0 while it has nothing."""
    said = site.run("ctl", f"slurm-energy report job {job} --json", check=False)
    found = re.search(r'"(?:gpu_)?(?:energy_)?joules": ([0-9.]+)', said.stdout)
    return float(found[1]) if found else 0.0


def await_state(site: TrialSite, job: int, state: str, limit_seconds: float = 180.0) -> None:
    ended = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")

    def found() -> bool:
        said = site.run("ctl", f"scontrol show job {job}").stdout
        if any(f"JobState={other} " in said for other in ended if other != state):
            raise AssertionError(said + site.run("gpu1", f"cat /tmp/job-{job}.out", check=False).stdout)
        return f"JobState={state} " in said

    until(found, f"job {job} {state}", limit_seconds)


def until(look: Callable[[], object], what: str, limit_seconds: float = 180.0) -> None:
    end = time.monotonic() + limit_seconds
    while not look():
        assert time.monotonic() < end, f"no {what} within {limit_seconds:g} s"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def site() -> Iterator[TrialSite]:
    """A Slurm that runs jobs on two nodes, and a folder with the package, made by the page, for all hosts but one."""
    require_lab(energy=True)
    site = TrialSite()
    try:
        site.start_host("image")
        site.path("image", CLONE).symlink_to(site.repository)
        follow(site, ["1. The package"])
        for host in ("ctl", "login", "gpu1"):
            site.start_host(host, "image")
        site.start_host("bare")
        for host in ("ctl", "login", "gpu1", "bare"):
            site.prepare(host, KEY)
        site.give_gpus("gpu1")
        site.run("ctl", "systemctl start slurmctld")
        for host in ("gpu1", "bare"):
            site.run(host, "systemctl start slurmd")
        until(
            lambda: site.run("ctl", "sinfo -h -N -o %T", check=False).stdout.split() == ["idle", "idle"], "idle nodes"
        )
        site.running.add("ctl")
        yield site
    finally:
        site.stop()


def test_every_heading_of_the_page_has_its_place_in_this_trial() -> None:
    assert list(console_blocks()) == ["Install on a cluster", *HOST_OF_SECTION][1:]


def test_installed_by_the_page_jobs_run_on_nodes_with_and_without_our_files(site: TrialSite) -> None:
    follow(site, [name for name in HOST_OF_SECTION if name[0] in "2345"])
    assert site.run("gpu1", "command -v slurm-energy").stdout == "/usr/local/bin/slurm-energy\n"
    assert not site.path("bare", "/bin/tru_").exists()
    assert "--energy=" in site.run("login", "sbatch --help").stdout
    # What doctor finds here, and the page has under "Settings that NVML cannot report".
    for host in ("gpu1", "ctl"):
        until(partial(well, site, host), f"doctor without faults on {host}", limit_seconds=90.0)
        text = site.path(host, "/etc/slurm-energy/slurm-energy.toml").read_text()
        site.write(host, "/etc/slurm-energy/slurm-energy.toml", f'{text}\n"a100-sxm4-80gb" = 500\n')
    site.run("ctl", "systemctl restart slurm-energyd")
    # A machine that runs other tests may miss 50 ms; what counts here is not how fast an answer comes.
    site.run(
        "ctl", "sed -i s/^deadline_milliseconds=.*/deadline_milliseconds=500/ /etc/slurm-energy/energy-plugin.conf"
    )
    run_job(site, "-w bare")
    measured = run_job(site, "-w gpu1 --gres=gpu:1 --energy=saver", WORK.format(seconds=60))
    until(
        lambda: f"{measured}" in site.run("ctl", f"slurm-energy report job {measured}", check=False).stdout, "a report"
    )
    assert drained(site) == ""


def test_a_node_whose_files_go_while_it_runs_goes_on_running_jobs(site: TrialSite) -> None:
    away = "/opt/slurm-energy/bin/python3"
    for spoil, back in (
        (f"mv {away} {away}-away", f"mv {away}-away {away}"),
        ("mv /opt/slurm-energy /opt/away", "mv /opt/away /opt/slurm-energy"),
        (
            "mv /etc/slurm-energy /etc/away && mkdir /etc/slurm-energy",
            "rmdir /etc/slurm-energy && mv /etc/away /etc/slurm-energy",
        ),
        ("mv /bin/tru_ /root/", "mv /root/tru_ /bin/"),
    ):
        site.run("gpu1", spoil)
        run_job(site, "-w gpu1 --gres=gpu:1")
        assert drained(site) == "", spoil
        site.run("gpu1", back)


def test_uninstalled_by_the_page_nothing_is_locked_and_scripts_with_our_options_run(site: TrialSite) -> None:
    job = decided_job(site, WORK.format(seconds=3000))
    until(lambda: site.locked_clocks_mhz("gpu1"), "a locked clock")
    follow(site, ["On the nodes"])
    assert site.locked_clocks_mhz("gpu1") == []
    await_state(site, job, "RUNNING")
    until(lambda: "slurm-energy was uninstalled while the job ran" in explained(site, job), "its report")
    follow(site, ["On the controller"])
    for node in ("gpu1", "bare"):  # whose slurmd still has the slurm.conf with our lines
        run_job(site, f"-w {node}")
    assert drained(site) == ""
    hand_out_slurm_conf(site)
    site.run("ctl", "scontrol reconfigure")
    conf = site.path("ctl", "/etc/slurm/slurm.conf").read_text()
    assert conf == f"{site.slurm_conf}PrologFlags=Alloc # slurm-energy\n"
    follow(site, ["On the login nodes"])
    assert site.run("ctl", "scontrol ping").stdout.startswith("Slurmctld(primary) at ctl is UP")
    site.write(
        "login", "/home/alice/job.sh", "#!/bin/sh\n#SBATCH --energy=saver\n#SBATCH --energy-max-slowdown=5\ntrue\n"
    )
    for node in ("gpu1", "bare"):
        done = site.run("login", f"sbatch --parsable -o /tmp/job-%j.out -w {node} /home/alice/job.sh", user="alice")
        assert done.stderr == ""
        await_state(site, int(done.stdout), "COMPLETED")
    for host, names in LEFT.items():
        assert left_on(site, host) == names, host
    follow(site, ["What is left"])
    for host in LEFT:
        assert {name for name in left_on(site, host) if "plugstack" not in name} <= {"spank_energy.so"}, host
    assert drained(site) == ""


def left_on(site: TrialSite, host: str) -> set[str]:
    """Return our files on a host, without copies of the site's own, the package itself and what this trial brought."""
    elsewhere = " -o ".join(
        f"-path {folder}" for folder in ("/opt", "/proc", "/root", "/srv", "/tmp", "/var/log", "/work")
    )
    ours = " -o ".join(
        f"-name '{name}'" for name in ("*slurm-energy*", "*slurm_energy*", "*energy*.so*", "*energy*.conf", "tru_")
    )
    said = site.run(host, f"find / -xdev \\( {elsewhere} \\) -prune -o \\( {ours} \\) -newer /etc/hosts -print").stdout
    return {path.rpartition("/")[2] if path.endswith(".so") else path for path in said.split()}
