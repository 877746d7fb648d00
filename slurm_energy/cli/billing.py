"""`slurm-energy billing`: weights by which Slurm's fairshare counts energy."""

import os
import re
import time

import click

from slurm_energy.cli.context import moment, settings
from slurm_energy.cli.database import DATABASE_OPTION
from slurm_energy.cli.records import Filter, energy_report
from slurm_energy.errors import SlurmError
from slurm_energy.reporting.billing import MIN_GPU_HOURS, billing_weights, with_gpu_weight
from slurm_energy.reporting.visible import visible
from slurm_energy.slurm.command import run_command
from slurm_energy.slurm.json_client import CommandSettings, command_environment

DAYS = 30.0
_PRESENT = re.compile(r"TRESBillingWeights=(\S+)")


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
