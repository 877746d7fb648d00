"""`slurm-energy doctor`."""

from collections import Counter
from dataclasses import asdict

import click

from slurm_energy.cli.context import JSON_OPTION, print_json, settings_path
from slurm_energy.cli.doctor.finding import Finding, Verdict, by_severity
from slurm_energy.cli.doctor.run import examine
from slurm_energy.cli.installation import ROLES
from slurm_energy.reporting.visible import visible

_COLOURS = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red", Verdict.SKIP: "blue"}


@click.command(epilog="Example: sudo slurm-energy doctor")
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice([*ROLES, "all"]),
    help="What this host is; found out when not given.",
)
@JSON_OPTION
def doctor(roles: tuple[str, ...], as_json: bool) -> int:
    """Check every assumption and say how to fix what does not hold.

    Run it as root on the controller: it then asks as the daemon's user, and judges every node by what the node told
    the daemon. What does not work comes first. Exit code 1 when anything fails.
    """
    seen = by_severity(examine(settings_path(), ROLES if "all" in roles else tuple(dict.fromkeys(roles))))
    if not as_json:
        for finding in seen:
            _show(finding)
    counts = Counter(finding.verdict for finding in seen)
    if as_json:
        print_json([asdict(finding) for finding in seen])
    else:
        words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
        click.echo(f"\n{len(seen)} checks: {words}", err=True)
    return 1 if counts[Verdict.FAIL] else 0


def _show(finding: Finding) -> None:
    mark = click.style(f"{finding.verdict:<5}", fg=_COLOURS[finding.verdict])
    click.echo(f"{mark}{finding.subject:<28}{visible(finding.found)}")
    if finding.fix:
        click.echo(f"{'':<5}{'':<28}-> {visible(finding.fix)}")
