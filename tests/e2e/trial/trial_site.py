"""A Slurm of its own, on several hosts with files of their own, on which nothing of slurm-energy is installed yet.

Every host is a chroot in namespaces on top of this machine's own files: what is installed on one host is not on
another, and nothing of it reaches the machine. Node `bare` has no layer of the site's image: nobody ever prepared it.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from slurm_energy.lab.host import Host, inspect_host
from slurm_energy.lab.inside import namespace_argv
from slurm_energy.lab.products import cache_directory
from slurm_energy.lab.simgpu.build import build
from slurm_energy.lab.simgpu.specs import standard_gpus
from slurm_energy.lab.simgpu.state import NodeGpuState, create_state

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
CLONE = Path("/srv/slurm-energy")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
GPU_FOLDER = Path("/usr/lib/gpus")
"""Where the simulated NVML looks from /usr/lib/*/libnvidia-ml.so.1."""
NODES = ("gpu1", "bare")
HOSTS = ("ctl", "login", *NODES)
TIME_SCALE = 20.0

SLURM_CONF = """\
ClusterName=trial
SlurmctldHost=ctl(127.0.0.1)
SlurmUser=slurm
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld-trial.log
SlurmdLogFile=/var/log/slurmd-trial.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
MailProg=/bin/true
PropagateResourceLimits=NONE
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=1
KillWait=2
"""
NODE_LINES = """\
NodeName=gpu1 NodeAddr=127.0.0.1 Port=17001 CPUs=8 RealMemory=4000 Gres=gpu:a100:2 State=UNKNOWN
NodeName=bare NodeAddr=127.0.0.1 Port=17002 CPUs=8 RealMemory=4000 State=UNKNOWN
PartitionName=all Nodes=gpu1,bare Default=YES MaxTime=1440 DefaultTime=60 State=UP
"""
DEVICES = Path("/srv/devices")
GRES_CONF = "NodeName=gpu1 Name=gpu Type=a100 File={stem}[0-1]\n"
HOSTS_FILE = "127.0.0.1 localhost " + " ".join(HOSTS) + "\n"


class TrialSite:
    """A site that runs until `stop`."""

    def __init__(self, conf_lines: str = "") -> None:
        self.repository = REPOSITORY
        self.slurm_conf = SLURM_CONF + conf_lines + NODE_LINES
        self.running: set[str] = set()
        """Hosts whose daemons of Slurm were started."""
        self.directory = _own_folder()
        self.directory.chmod(0o755)
        self._host: Host = inspect_host(accounting=False, energy=True)
        self._pids: dict[str, int] = {}
        self._children: list[subprocess.Popen[bytes]] = []
        shared = ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"]
        argv = [*shared, "--propagation", "private", "/bin/sh", str(HERE / "hosts.sh"), "site", str(self.directory)]
        self._spawn([*argv, self._host.network])
        self._init = int(_eventually((self.directory / "pid").read_text, "the site's namespaces"))
        _eventually(lambda: self.inside("ready").stat(), "the site's network")

    def _spawn(self, argv: list[str]) -> None:
        """Start what ends with this process, even when this process is killed."""
        with (self.directory / "start.log").open("ab") as log:
            child = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": SYSTEM_PATH},
            )
        self._children.append(child)

    def inside(self, *parts: str) -> Path:
        """Return a path below the site's folder as it is seen from outside."""
        return Path(f"/proc/{self._init}/root{self.directory}").joinpath(*parts)

    def path(self, host: str, path: str | Path) -> Path:
        """Return a file of a host as it is seen from outside."""
        return Path(f"/proc/{self._pids[host]}/root{path}")

    def start_host(self, name: str, image: str = "-") -> None:
        """Start a host whose files are the machine's own, and on top of them those of another host."""
        entry = namespace_argv(self._init)
        alone = ["unshare", "--mount", "--uts", "--propagation", "private"]
        self._spawn([*entry, *alone, "/bin/sh", str(HERE / "hosts.sh"), "host", str(self.directory), name, image])
        self._pids[name] = int(_eventually(lambda: self.inside(name, "pid").read_text(), f"host {name}"))
        _eventually(lambda: self.path(name, "/run/systemd/system").stat(), f"root of {name}")

    def run(
        self,
        host: str,
        command: str,
        *,
        user: str | None = None,
        answer: str = "",
        network: bool = True,
        check: bool = True,
        limit_seconds: float = 300.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell line on a host, as a login would; with `network` false in the machine's own network."""
        entry = [word for word in namespace_argv(self._pids[host]) if network or word != "--net"]
        become = [] if user is None else ["setpriv", "--reuid", user, "--regid", user, "--init-groups", "--"]
        environment = {"PATH": SYSTEM_PATH, "HOME": f"/home/{user}" if user else "/root", "LANG": "C.UTF-8"}
        environment |= {"USER": user} if user else {"SLURM_ENERGY_SIM_GPU_STATE": f"{GPU_FOLDER}/{host}.state"}
        argv = [*entry, *become, "env", "-C", "/tmp" if user else str(CLONE.parent), "/bin/sh", "-c", command]
        done = subprocess.run(
            argv, input=answer, capture_output=True, text=True, env=environment, timeout=limit_seconds, check=False
        )
        if check and done.returncode != 0:
            raise AssertionError(
                f"on {host}: {command}: exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            )
        return done

    def write(self, host: str, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file on a host."""
        target = self.path(host, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_text(text)
        target.chmod(mode)

    def prepare(self, host: str, key: bytes) -> None:
        """Give a host what every host of the site has before slurm-energy comes: names, munge, Slurm's own files."""
        self.write(host, "/etc/hosts", HOSTS_FILE)
        self.write(host, "/usr/bin/systemctl", (HERE / "systemctl.py").read_text(), 0o755)
        self.run(host, "id alice >/dev/null 2>&1 || useradd -M alice; mkdir -p /home/alice && chown alice: /home/alice")
        stem = f"{DEVICES}/nvidia" if self._host.devices == "mknod" else "/dev/tty"
        self.write(host, "/etc/slurm/gres.conf", GRES_CONF.format(stem=stem))
        self.write(host, "/etc/slurm/slurm.conf", self.slurm_conf)
        # Debian puts both on one machine; here each host is one thing.
        others = {"ctl": "slurmd", "login": "slurmd slurmctld"}.get(host, "slurmctld")
        self.run(host, f"cd /usr/sbin && rm -f {others}")
        self.run(
            host, "rm -f /etc/slurm/plugstack.conf; install -d -o slurm /var/spool/slurmctld; mkdir -p /run/slurmd"
        )
        munge = self.path(host, "/etc/munge/munge.key")
        munge.parent.mkdir(exist_ok=True)
        munge.unlink(missing_ok=True)
        munge.write_bytes(key)
        self.run(
            host, "chown munge: /etc/munge /etc/munge/munge.key; chmod 700 /etc/munge; chmod 400 /etc/munge/munge.key"
        )
        for mode, folder in ((755, "/run/munge"), (711, "/var/lib/munge"), (700, "/var/log/munge")):
            self.run(host, f"install -d -o munge -m {mode} {folder}")
        self.run(host, "setpriv --reuid munge --regid munge --init-groups munged")

    def give_gpus(self, host: str) -> None:
        """Put the driver's library, two GPUs and a program that uses them into a node."""
        built = build(cache_directory())
        library = self._host.plugin_directory.parent / built.library.name
        self.path(host, library).unlink(missing_ok=True)
        shutil.copy2(built.library, self.path(host, library))
        shutil.copy2(built.workload, self.path(host, "/usr/bin/simgpu-workload"))
        self.path(host, GPU_FOLDER).mkdir()
        if self._host.devices == "mknod":
            self.path(host, DEVICES).mkdir()
            for minor in range(2):
                self.run(host, f"mknod -m 666 {DEVICES}/nvidia{minor} c 195 {minor}")
        create_state(
            self.path(host, GPU_FOLDER) / f"{host}.state",
            standard_gpus("a100", 2, host),
            time_scale=TIME_SCALE,
            library=built.library,
        )
        self.path(host, GPU_FOLDER).joinpath(f"{host}.state").chmod(0o666)

    def locked_clocks_mhz(self, host: str) -> list[int]:
        """Return the clocks to which GPUs of a node are locked."""
        with NodeGpuState(self.path(host, GPU_FOLDER) / f"{host}.state") as state:
            return [gpu.locked_clocks_mhz[1] for gpu in state.gpus if gpu.locked_clocks_mhz is not None]

    def stop(self) -> None:
        """End every process of the site and remove its folder."""
        for child in self._children[:1]:
            child.send_signal(signal.SIGKILL)
        for child in self._children:
            child.wait(timeout=120)
        shutil.rmtree(self.directory, ignore_errors=True)


def _own_folder() -> Path:
    """Return a new folder; those of test runs that were killed are removed."""
    for left in Path(tempfile.gettempdir()).glob("slurm-energy-trial-*-*"):
        if not Path("/proc", left.name.split("-")[3]).exists():
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"slurm-energy-trial-{os.getpid()}-"))


def _eventually(look: Callable[[], object], what: str, limit_seconds: float = 120.0) -> str:
    end = time.monotonic() + limit_seconds
    while True:
        try:
            found = look()
            if found or not isinstance(found, str):
                return str(found)
        except OSError:
            pass
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come up within {limit_seconds:g} s")
        time.sleep(0.05)
