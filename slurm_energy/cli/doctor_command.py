"""`slurm-energy doctor`."""

from collections import Counter
from dataclasses import asdict

import click

from slurm_energy.cli.context import JSON_OPTION, print_json, settings_path
from slurm_energy.cli.doctor.finding import Finding, Verdict
from slurm_energy.cli.doctor.run import examine
from slurm_energy.cli.installation import ROLES
from slurm_energy.reporting.visible import visible

_COLOURS = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red", Verdict.SKIP: "blue"}


@click.command(epilog="Example: sudo slurm-energy doctor --role node")
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice([*ROLES, "all"]),
    help="What this host is; found out when not given.",
)
@JSON_OPTION
def doctor(roles: tuple[str, ...], as_json: bool) -> int:
    """Check every assumption and say how to mend what does not hold.

    Run it as root: some things only root can see. Exit code 1 when anything fails.
    """
    findings = examine(settings_path(), ROLES if "all" in roles else tuple(dict.fromkeys(roles)))
    seen: list[Finding] = []
    for finding in findings:
        seen.append(finding)
        if not as_json:
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
    if finding.mend:
        click.echo(f"{'':<5}{'':<28}-> {visible(finding.mend)}")
