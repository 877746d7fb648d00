"""Text of Slurm's, MariaDB's and the accounts' files: pure functions of the lab's specification."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_energy.lab.host import Host
from slurm_energy.lab.layout import Layout
from slurm_energy.lab.simgpu.specs import SimulatedGpuSpec, mixed_gpus, standard_gpus
from slurm_energy.lab.spec import LabSpec, PartitionSpec

_FIRST_RELEASE_WITH_CGROUP_DISABLED = (24, 5)
_FIRST_USER_ID = 20001
CPUS_PER_NODE = 32
MEMORY_MIB_PER_NODE = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """TCP ports on the loopback interface."""

    slurmctld: int
    slurmdbd: int
    report: int
    slurmd: Mapping[str, int]


def private_ports(nodes: Sequence[str], *, number: int = 0) -> Ports:
    """Return the ports of a lab with a network of its own: the same ones in every lab.

    Args:
        nodes: Its nodes.
        number: 0, or how many labs have come into that network before; slurmdbd is that of the first.
    """
    return Ports(
        slurmctld=6817 + 100 * number,
        slurmdbd=6819,
        report=8470 + number,
        slurmd={name: 17001 + 1000 * number + at for at, name in enumerate(nodes)},
    )


def chosen_ports(nodes: Sequence[str], free: Sequence[int]) -> Ports:
    """Return the ports of a lab on the host's network, out of free ones (three more than nodes)."""
    return Ports(slurmctld=free[0], slurmdbd=free[1], report=free[2], slurmd=dict(zip(nodes, free[3:], strict=True)))


def slurm_conf(spec: LabSpec, layout: Layout, host: Host, ports: Ports, controller: str) -> str:
    """Return slurm.conf; `controller` is the host's own name inside the lab."""
    settings = _settings(spec, layout, host, ports, controller)
    if spec.has_accounting:
        settings |= {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "127.0.0.1",
            "AccountingStoragePort": str(ports.slurmdbd),
            "AccountingStorageTRES": ",".join(["gres/gpu", *_typed_tres(spec)]),
        }
    if spec.energy:
        settings |= {
            "JobSubmitPlugins": "energy",
            "PlugStackConfig": f"{layout.etc}/plugstack.conf",
            "Prolog": f"{layout.hooks}/prolog.d/*",
            "Epilog": f"{layout.hooks}/epilog.d/*",
        }
    extra = dict(line.split("=", 1) for line in spec.slurm_conf_lines)
    replaced = {key.lower() for key in extra}
    lines = [f"{key}={value}" for key, value in settings.items() if key.lower() not in replaced]
    lines += [f"{key}={value}" for key, value in extra.items()]
    for partition in spec.partitions:
        lines += _partition_lines(partition, ports, default=partition is spec.partitions[0])
    return "\n".join(lines) + "\n"


def _settings(spec: LabSpec, layout: Layout, host: Host, ports: Ports, controller: str) -> dict[str, str]:
    return {
        "ClusterName": spec.cluster_name,
        "SlurmctldHost": f"{controller}(127.0.0.1)",
        "SlurmctldPort": str(ports.slurmctld),
        "SlurmUser": "slurm",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "CredType": "cred/munge",
        "PluginDir": f"{host.plugin_directory}:{layout.plugins}",
        "StateSaveLocation": f"{layout.state}/slurmctld",
        "SlurmdSpoolDir": f"{layout.slurmd_spool}/%n",
        "SlurmctldPidFile": f"{layout.pids}/slurmctld.pid",
        "SlurmdPidFile": f"{layout.pids}/slurmd-%n.pid",
        "SlurmctldLogFile": f"{layout.log}/slurmctld.log",
        "SlurmdLogFile": f"{layout.log}/slurmd-%n.log",
        # One host stands for all nodes: what a slurmd finds there is not what its node has.
        "SlurmdParameters": "config_overrides",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "MpiDefault": "none",
        "MailProg": "/bin/true",
        # The caller's limits are no job's business, and raising them may be refused here.
        "PropagateResourceLimits": "NONE",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "GresTypes": "gpu",
        "PrologFlags": "Alloc",
        "ReturnToService": "2",
        "SchedulerType": "sched/backfill",
        # A real site waits longer between two passes; tests and the demo should not.
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=2,bf_interval=1,bf_resolution=60,"
        "default_queue_depth=1000,bf_max_job_test=1000",
        "PriorityType": "priority/basic",
        "SlurmctldTimeout": "60",
        "SlurmdTimeout": "60",
        "MessageTimeout": "20",
        "KillWait": "2",
        "CompleteWait": "0",
        "MinJobAge": "300",
        "InactiveLimit": "0",
        "Waittime": "0",
    }


def _typed_tres(spec: LabSpec) -> list[str]:
    return [
        f"gres/gpu:{name}" for name in dict.fromkeys(name for partition in spec.partitions for name in partition.types)
    ]


def _partition_lines(partition: PartitionSpec, ports: Ports, *, default: bool) -> list[str]:
    lines = [
        f"NodeName={node} NodeAddr=127.0.0.1 NodeHostname=localhost Port={ports.slurmd[node]} CPUs={CPUS_PER_NODE} "
        f"RealMemory={MEMORY_MIB_PER_NODE} Gres={partition.slurm_gres} State=UNKNOWN"
        for node in partition.node_names
    ]
    lines.append(
        f"PartitionName={partition.name} Nodes={','.join(partition.node_names)} Default={'YES' if default else 'NO'} "
        f"MaxTime={partition.max_time_minutes} DefaultTime=60 State=UP"
    )
    return lines


def gres_conf(spec: LabSpec, layout: Layout, host: Host) -> str:
    """Return gres.conf: each node's GPUs by type, those of a type in the order of their device files."""
    return "".join(
        f"NodeName={node} Name=gpu Type={name} File={_device_stem(layout, host)}{_numbers(minors)}\n"
        for partition in spec.partitions
        if not partition.detected
        for node in partition.node_names
        for name, minors in _minors_by_type(partition, node).items()
    )


def fake_gpus_conf(spec: LabSpec, layout: Layout, host: Host) -> str:
    """Return the GPUs that slurmd is to find, each with its links in the driver's order, as AutoDetect has them."""
    (partition,) = spec.partitions
    gpus = node_gpus(partition, partition.node_names[0])
    lines = []
    for index, (gpu, name) in enumerate(zip(gpus, partition.types, strict=True)):
        links = ",".join("-1" if other == index else "0" for other in range(len(gpus)))
        file = f"{_device_stem(layout, host)}{gpu.minor_number}"
        unique = gpu.uuid if partition.detected == "uuids" else "(null)"
        cpus = f"{CPUS_PER_NODE}|0-{CPUS_PER_NODE - 1}"
        lines.append(f"{name}|{cpus}|{links}|{file}|{unique}|nvidia_gpu_env\n")
    return "".join(lines)


def node_gpus(partition: PartitionSpec, node: str) -> tuple[SimulatedGpuSpec, ...]:
    """Return a node's GPUs in the driver's order, each with the position where Slurm will count it."""
    gpus = standard_gpus(partition.types[0], partition.gpus_per_node, node)
    if partition.gpu_types or partition.minor_numbers:
        minors = partition.minor_numbers or tuple(gpu.minor_number for gpu in gpus)
        gpus = mixed_gpus(partition.types, node, minors)
    if partition.detected:
        counted = list(range(len(gpus)))
    else:
        names = [item.split(":")[1] for item in partition.slurm_gres.split(",")]
        order = sorted(range(len(gpus)), key=lambda at: (names.index(partition.types[at]), gpus[at].minor_number))
        counted = [order.index(at) for at in range(len(gpus))]
    return tuple(replace(gpu, slurm_position=position) for gpu, position in zip(gpus, counted, strict=True))


def _device_stem(layout: Layout, host: Host) -> str:
    return f"{layout.devices}/nvidia" if host.devices == "mknod" else "/dev/tty"


def _minors_by_type(partition: PartitionSpec, node: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for gpu, name in zip(node_gpus(partition, node), partition.types, strict=True):
        found.setdefault(name, []).append(gpu.minor_number)
    return found


def _numbers(minors: Sequence[int]) -> str:
    ordered = sorted(minors)
    if len(ordered) == 1:
        return str(ordered[0])
    if ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"[{ordered[0]}-{ordered[-1]}]"
    return f"[{','.join(map(str, ordered))}]"


def cgroup_conf(version: tuple[int, int]) -> str | None:
    """Return cgroup.conf, or None where the release does not know CgroupPlugin=disabled."""
    return "CgroupPlugin=disabled\n" if version >= _FIRST_RELEASE_WITH_CGROUP_DISABLED else None


def slurmdbd_conf(layout: Layout, ports: Ports) -> str:
    """Return slurmdbd.conf; MariaDB is reached over its default socket, in the lab's own /run."""
    settings = {
        "AuthType": "auth/munge",
        "DbdHost": "localhost",
        "DbdAddr": "127.0.0.1",
        "DbdPort": str(ports.slurmdbd),
        "SlurmUser": "slurm",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageLoc": "slurm_acct_db",
        "StorageUser": "slurm",
        "StoragePass": "slurm",
        "LogFile": f"{layout.log}/slurmdbd.log",
        "PidFile": f"{layout.pids}/slurmdbd.pid",
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def mariadb_conf(layout: Layout) -> str:
    """Return MariaDB's configuration: a small server on a folder of its own, without a network."""
    return (
        "[mariadbd]\n"
        f"datadir={layout.state}/mariadb\n"
        "socket=/run/mysqld/mysqld.sock\n"
        "pid-file=/run/mysqld/mysqld.pid\n"
        "skip-networking\n"
        "innodb-buffer-pool-size=64M\n"
        "innodb-log-file-size=16M\n"
        "innodb-lock-wait-timeout=900\n"
        "innodb-flush-log-at-trx-commit=0\n"
        # On by default from 11.8, and slurmdbd wants it off; before 11.4 it is unknown, which "loose" allows.
        "loose-innodb-snapshot-isolation=OFF\n"
    )


def shadow(passwd: str) -> str:
    """Return a shadow file without passwords: slurmd runs `su - USER` for --export=NONE, which asks it."""
    names = (line.partition(":")[0] for line in passwd.splitlines() if ":" in line)
    return "".join(f"{name}:*:19000:0:99999:7:::\n" for name in names)


def accounts(passwd: str, group: str, layout: Layout, users: Sequence[str]) -> tuple[str, str]:
    """Return the host's passwd and group with the lab's users; their homes lie in the lab.

    A user that the host has already keeps his numbers.
    """
    passwd_lines = passwd.splitlines()
    group_lines = group.splitlines()
    taken = {int(fields[2]) for line in passwd_lines + group_lines if len(fields := line.split(":")) > 2}
    known = {line.split(":", 1)[0]: line.split(":") for line in passwd_lines}
    for user in users:
        if user in known:
            uid, gid = known[user][2], known[user][3]
            passwd_lines = [line for line in passwd_lines if line.split(":", 1)[0] != user]
        else:
            uid = gid = str(next(n for n in range(_FIRST_USER_ID, _FIRST_USER_ID + 10_000) if n not in taken))
            taken.add(int(uid))
            group_lines = [line for line in group_lines if line.split(":", 1)[0] != user] + [f"{user}:x:{gid}:"]
        passwd_lines.append(f"{user}:x:{uid}:{gid}:{user} of the lab:{layout.home(user)}:/bin/bash")
    return "\n".join(passwd_lines) + "\n", "\n".join(group_lines) + "\n"
