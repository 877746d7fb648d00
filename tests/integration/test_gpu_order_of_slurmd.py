"""What we take for slurmd's order is what this machine's slurmd counts, over random configurations and device files."""

import os
import random
import stat
from pathlib import Path

import pytest

from slurm_energy.device.gpu import GpuIdentity
from slurm_energy.domain.ids import GpuUuid
from slurm_energy.node.allocation import device_minor, gpu_mapping
from slurm_energy.node.gpu_order import SLURMD_PATHS, GpuOrder, OrderFinder, order_files
from slurm_energy.node.slurm_gpus import ask_slurmd, configured_gpus

SLURM_CONF = """\
ClusterName=X
SlurmctldHost=localhost(127.0.0.1)
SlurmdUser={user}
SlurmdSpoolDir={root}/spool
SlurmdPidFile={root}/pid
SlurmdLogFile=/dev/null
StateSaveLocation={root}/state
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
GresTypes=gpu
SlurmdDebug=error
{node}
PartitionName=p Nodes=n1 Default=YES
"""
NODE = "NodeName=n1 NodeAddr=127.0.0.1 Port=17001 CPUs=2 RealMemory=1000"
TYPES = ("a100", "a40", "3090", "A100", "1g.10gb")
SOCKETS = ("", "", "(S:0)", "(S:0-1)", "(S:0,1)")
CASES = int(os.environ.get("SLURM_ENERGY_ORDER_CASES", "60"))


class Slurm:
    """slurm.conf, gres.conf and four device files, whose minor numbers run against their names where that is asked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "dev").mkdir()
        self.conf = root / "slurm.conf"

    def file(self, number: int) -> str:
        path = self.root / "dev" / f"nvidia{number}"
        if not path.exists():
            try:
                os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(195, number))
            except OSError:
                path.symlink_to(f"/dev/tty{number}")
        return str(path)

    def write(self, node: str, gres_conf: str) -> None:
        text = SLURM_CONF.format(root=self.root, user="root" if os.geteuid() == 0 else os.geteuid(), node=node)
        self.conf.write_text(text)
        (self.root / "gres.conf").write_text(gres_conf)

    def ask(self) -> GpuOrder:
        return ask_slurmd(SLURMD_PATHS, self.conf, "n1", 20.0)


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    if not any(os.access(path, os.X_OK) for path in SLURMD_PATHS):
        pytest.skip("this machine has no slurmd")
    return Slurm(tmp_path)


def random_case(rng: random.Random, slurm: Slurm) -> None:
    """Write a configuration with the freedoms that Slurm's parser gives: order, blanks, case, Include, DEFAULT."""
    minors = rng.sample(range(4), 4)
    names = rng.sample(TYPES, rng.randint(1, 3))
    typed = rng.random() < 0.8
    lines: list[str] = []
    included: list[str] = []
    while minors:
        count = rng.randint(1, len(minors))
        taken, minors = minors[:count], minors[count:]
        files = ",".join(slurm.file(number) for number in taken)
        files_key = rng.choice(["File", "file", *(["MultipleFiles"] if count > 1 else [])])
        equal = rng.choice(["=", " = ", "= "])
        kind = f" Type{equal}{rng.choice(names)}" if typed else ""
        start = rng.choice(["NodeName=n1 ", "NodeName=n[1-3] ", "nodename=x,n1 ", ""])
        line = f"{start}{rng.choice(['Name', 'NAME'])}{equal}gpu{kind} {files_key}{equal}{files}"
        counted = [] if files_key == "MultipleFiles" else [f" Count={count}"]
        line += rng.choice(["", *counted, " Cores=0", " # a word"])
        (included if rng.random() < 0.3 else lines).append(line)
    if included:
        (slurm.root / "more.conf").write_text("\n".join(included) + "\n")
        lines.insert(rng.randint(0, len(lines)), rng.choice(["Include more.conf", f"include {slurm.root}/more.conf"]))
    lines.append("NodeName=n2 Name=gpu Type=other File=/dev/null")
    order = rng.sample(names, len(names))
    gres = (
        ",".join(f"gpu:{name}:{rng.randint(1, 3)}{rng.choice(SOCKETS)}" for name in order)
        if typed
        else f"gpu:{rng.randint(1, 4)}"
    )
    node = rng.choice([f"{NODE} Gres={gres}", f"NodeName=DEFAULT Gres={gres}\n{NODE}"])
    if rng.random() < 0.3:
        (slurm.root / "nodes-x.conf").write_text(f"{node}\n")
        node = "Include nodes-%c.conf"
    slurm.write(node, "\n".join(lines) + "\n")


def test_order_that_the_files_state_is_slurmds(slurm: Slurm) -> None:
    rng = random.Random(7)
    compared = 0
    for _ in range(CASES):
        random_case(rng, slurm)
        real, stated = slurm.ask(), configured_gpus(slurm.conf, "n1")
        text = "".join(path.read_text() for path in slurm.root.glob("*.conf"))
        if stated.gpus is None:  # a device of several GPUs has one place: which of them a job gets is not known
            assert "one device of gres.conf has several GPUs" in (stated.problem or ""), stated.problem
            assert "MultipleFiles" in text
            continue
        context = f"{text}\n{real}"
        assert order_files(real.gpus) == order_files(stated.gpus), context
        compared += bool(real.gpus)
    assert compared > CASES // 2


def test_gpus_that_slurmd_detects_come_in_the_order_of_their_links(slurm: Slurm) -> None:
    slurm.write(f"{NODE} Gres=gpu:a100:4", "")
    lines = [
        f"a100|2|0-1|{','.join('-1' if at == 3 - number else '0' for at in range(4))}|{slurm.file(number)}|(null)|"
        for number in range(4)
    ]
    (slurm.root / "fake_gpus.conf").write_text("".join(f"{line}nvidia_gpu_env\n" for line in lines))
    finder = OrderFinder(path=slurm.root / "order.json", node="n1", boot_id="b", slurm_conf=str(slurm.conf))
    order = finder.order(20.0)
    assert order_files(order.gpus) == tuple(slurm.file(number) for number in (3, 2, 1, 0))
    assert order.ways == ("slurmd -G",)
    devices = [
        GpuIdentity(index=index, uuid=GpuUuid(f"GPU-{index}"), name="x", minor_number=index, gpu_type=None)
        for index in range(4)
    ]
    if device_minor(slurm.file(0)) == 0:
        assert [gpu.uuid for gpu in gpu_mapping(devices, order).gpus] == ["GPU-3", "GPU-2", "GPU-1", "GPU-0"]


def test_node_that_slurmd_does_not_know_has_no_order(slurm: Slurm) -> None:
    slurm.write(f"{NODE} Gres=gpu:1", f"Name=gpu File={slurm.file(0)}\n")
    order = ask_slurmd(SLURMD_PATHS, slurm.conf, "n9", 20.0)
    assert order.gpus == () and "exit code 1" in order.problem
