"""Small world files for the tests of worlds."""

from pathlib import Path

from slurm_energy.twin.world import World
from slurm_energy.twin.world.file import load_world

DEVICE = """
[devices.gpu]
relative_clocks = [0.5, 1.0]
free_watts = 20
[devices.gpu.kinds.training]
power = [100, 50, 40]
runtime = [0.5, 1, 0.25]
"""


POOL = """
[pools.p]
device = "gpu"
nodes = 2
gpus_per_node = 4
"""


PARTITION = """
[partitions.main]
pools = ["p"]
"""


SMALL = DEVICE + POOL + PARTITION


def made(folder: Path, text: str = SMALL) -> World:
    """The world of a file with this text."""
    path = folder / "small.toml"
    path.write_text(text, encoding="utf-8")
    return load_world(path)
