"""`slurm-energy billing`: what a GPU of each partition draws, as Slurm's TRESBillingWeights.

Slurm's fairshare counts billing units: with these weights an hour on a GPU costs in proportion to the joules that an
hour on a GPU of its partition has been measured to take.
"""

import os
import re
import time
from dataclasses import dataclass

import click

from slurm_energy.cli.context import moment, settings
from slurm_energy.cli.database import DATABASE_OPTION
from slurm_energy.cli.records import Filter, energy_report
from slurm_energy.domain.report import EnergyReport
from slurm_energy.errors import SlurmError
from slurm_energy.reporting.visible import visible
from slurm_energy.slurm.command import run_command
from slurm_energy.slurm.json_client import CommandSettings, command_environment

DAYS = 30.0
_PRESENT = re.compile(r"TRESBillingWeights=(\S+)")
MIN_GPU_HOURS = 10.0
"""Measured, under which a partition gets no weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BillingWeight:
    """What a GPU hour of one partition is to count, in hours on the partition that draws least."""

    partition: str
    weight: float
    mean_watts: float
    gpu_hours: float


def billing_weights(report: EnergyReport) -> tuple[list[BillingWeight], list[str]]:
    """Return the weights by a report of partitions, and the partitions of which too little was measured."""
    known: list[tuple[str, float, float]] = []
    left_out: list[str] = []
    for group in report.groups:
        joules, seconds = group.gpu.joules, group.use.covered_gpu_seconds
        if joules and seconds and seconds >= MIN_GPU_HOURS * 3600.0:
            known.append((group.group, joules / seconds, seconds / 3600.0))
        else:
            left_out.append(group.group)
    least = min((watts for _, watts, _ in known), default=1.0)
    weights = [
        BillingWeight(partition=name, weight=round(watts / least, 2), mean_watts=watts, gpu_hours=hours)
        for name, watts, hours in sorted(known)
    ]
    return weights, sorted(left_out)


def with_gpu_weight(present: str, weight: float) -> str:
    """Return a partition's TRESBillingWeights with another weight of GPUs; the others stay as they are.

    Weights of single GPU types are left out: they would count beside the weight of all GPUs.
    """
    kept = [
        part
        for part in present.split(",")
        if part and part != "(null)" and not part.partition("=")[0].strip().lower().startswith("gres/gpu")
    ]
    return ",".join([*kept, f"GRES/gpu={weight:g}"])


@click.command(epilog="Example: slurm-energy billing --since 30d")
@click.option("--since", metavar="TIME", callback=moment, help="Measured since: 2026-03-05, 30d; without it 30 days.")
@click.option("--apply", is_flag=True, help="Set them in the running slurmctld; without it they are printed alone.")
@DATABASE_OPTION
def billing(since: float | None, apply: bool, database: str | None) -> int:
    """Print the billing weight of each partition's GPUs by their measured power, or set it.

    With PriorityType=priority/multifactor, an account's share then falls with the energy of its GPUs. What --apply sets
    lasts until slurmctld reads slurm.conf again: put the printed lines there to keep it.
    """
    config = settings()
    since = time.time() - DAYS * 86_400.0 if since is None else since
    weights, left_out = billing_weights(
        energy_report(config, "report-partition", Filter(since_seconds=since), database)
    )
    slurm = CommandSettings.of(config)
    for one in weights:
        present = _present(slurm, one.partition)
        wanted = with_gpu_weight(present or "", one.weight)
        click.echo(f"# {visible(one.partition)}: {one.mean_watts:.0f} W a GPU over {one.gpu_hours:.0f} GPU hours")
        click.echo(f'PartitionName={visible(one.partition)} TRESBillingWeights="{wanted}"')
        if present is None and apply:
            raise SlurmError(f"partition {one.partition}: scontrol does not say its present weights, nothing is set")
        if present is None:
            click.echo(f"# {visible(one.partition)}: scontrol does not say its present weights: add them", err=True)
        if apply and wanted != present:
            _scontrol(slurm, "update", f"PartitionName={one.partition}", f"TRESBillingWeights={wanted}")
    for name in left_out:
        click.echo(f"# {visible(name)}: under {MIN_GPU_HOURS:g} measured GPU hours, left as it is")
    click.echo("Set in slurmctld." if apply else "Nothing was changed: --apply sets them.", err=True)
    return 0


def _present(slurm: CommandSettings, partition: str) -> str | None:
    """Return what slurmctld counts now, None where it cannot be asked."""
    try:
        found = _PRESENT.search(_scontrol(slurm, "show", "partition", partition))
    except (SlurmError, OSError):
        return None
    return "" if found is None or found.group(1) == "(null)" else found.group(1)


def _scontrol(slurm: CommandSettings, *words: str) -> str:
    program = os.path.join(slurm.bin_directory, "scontrol") if slurm.bin_directory else "scontrol"  # noqa: PTH118  # text
    printed: list[bytes] = []
    environment = command_environment(slurm, os.environ)
    run_command([program, *words], printed.append, environment=environment, timeout_seconds=slurm.timeout_seconds)
    return b"".join(printed).decode("utf-8", "replace")
