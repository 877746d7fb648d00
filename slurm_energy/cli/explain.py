"""`slurm-energy explain`."""

import click

from slurm_energy.cli.context import JSON_OPTION, job_number, settings
from slurm_energy.cli.database import DATABASE_OPTION
from slurm_energy.cli.records import explanation
from slurm_energy.cli.report import terminal
from slurm_energy.reporting.explanation import render_explain
from slurm_energy.reporting.machine import render_explain_json


@click.command(epilog="Example: slurm-energy explain 4242")
@click.argument("job_id", metavar="JOB", callback=job_number)
@JSON_OPTION
@DATABASE_OPTION
def explain(job_id: int, as_json: bool, database: str | None) -> int:
    """Tell a job's whole story, from what was asked to what was measured.

    What was asked, what was decided and why, what was applied and observed, and what was predicted against what
    came. Works while the daemon is away if the database can be read.
    """
    record = explanation(settings(), job_id, database)
    if as_json:
        click.echo(render_explain_json(record))
    else:
        render_explain(record, terminal())
    return 0
