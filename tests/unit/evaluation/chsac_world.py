"""The published geo-distributed world, built from its printed coefficients, independently of the shipped one."""

from dataclasses import replace

from slurm_energy.energy_model.curves import PowerCurve, RuntimeCurve
from slurm_energy.twin.world import Partition, Pool, World
from slurm_energy.twin.world.device_model import DeviceModel, Scaling, load_from_curves

MEAN_UNITS = 54_164.35
"""Mean of the log-normal sizes, 50000 exp(0.4^2 / 2)."""
CLOCKS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

# site, device, count, asleep W, idle W, a_p, b_p, g_p [W], a_t, b_t, g_t [s]
SITES = (
    ("us-west", "H100-PCIe", 16, 28, 45, 75, 80, 110, 0.0045, 0.032, 0.0012),
    ("us-east", "A100-PCIe", 32, 28, 45, 65, 60, 90, 0.0050, 0.038, 0.0014),
    ("eu-west", "L40S", 256, 25, 40, 55, 40, 70, 0.0060, 0.045, 0.0018),
    ("eu-central", "H100-SXM5", 16, 35, 55, 90, 85, 120, 0.0042, 0.030, 0.0011),
    ("ap-southeast", "L4", 128, 8, 15, 45, 20, 40, 0.0065, 0.060, 0.0022),
    ("ap-northeast", "H200-PCIe", 16, 35, 55, 95, 90, 125, 0.0040, 0.029, 0.0010),
    ("sa-east", "A30", 512, 12, 25, 50, 35, 65, 0.0062, 0.050, 0.0019),
    ("me-central", "A10", 512, 10, 20, 40, 25, 50, 0.0068, 0.055, 0.0023),
)


def chsac_world() -> World:
    devices, pools = {}, []
    for site, name, count, asleep, _, a_p, b_p, g_p, a_t, b_t, g_t in SITES:
        load = load_from_curves(
            PowerCurve(cubic_watts=a_p, linear_watts=b_p, constant_watts=g_p),
            RuntimeCurve(memory_seconds=0.0, compute_seconds=b_t, fixed_seconds=a_t),
            CLOCKS,
            scaling=Scaling(seconds_per_device=g_t),
        )
        devices[name] = DeviceModel(
            name=name,
            relative_clocks=CLOCKS,
            loads={"training": load},
            free_watts=float(asleep),
            context_watts=float(asleep),
        )
        pools.append(Pool(name=site, device=name, nodes=1, gpus_per_node=count))
    partitions = tuple(Partition(name=pool.name, pools=(pool.name,), max_gpus_per_job=8) for pool in pools)
    return World(name="chsac", devices=devices, pools=tuple(pools), partitions=partitions)


def with_free_watts(world: World, watts_by_device: dict[str, float]) -> World:
    """Return the world with other powers of free devices."""
    devices = {
        name: replace(device, free_watts=watts_by_device[name], context_watts=watts_by_device[name])
        for name, device in world.devices.items()
    }
    return replace(world, devices=devices)
