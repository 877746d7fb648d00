"""`slurm-energy policy`."""

from dataclasses import replace

import click

from slurm_energy.cli.context import JSON_OPTION, print_json, settings
from slurm_energy.config import Config
from slurm_energy.policy.automatic import AUTOMATIC, checkpoint_folder, chosen_policy
from slurm_energy.policy.checkpoint_files import check_files
from slurm_energy.policy.registry import LEARNED, create_policy, known_policy_names, masked_parts, policy_summary
from slurm_energy.policy.rules.settings import policy_name

LEARNED_SUMMARY = "The hierarchical graph network of policy.checkpoint; it comes with the package."


@click.group(epilog="Example: slurm-energy policy list")
def policy() -> None:
    """List the policies or show one."""


@policy.command(name="list", epilog="Example: slurm-energy policy list --json")
@JSON_OPTION
def list_policies(as_json: bool) -> int:
    """List every policy; the configured one is marked."""
    config = settings()
    configured = policy_name(chosen_policy(config).config.policy.name)
    if as_json:
        print_json([{"name": name, "configured": name == configured} for name in known_policy_names()])
        return 0
    for name in known_policy_names():
        summary = LEARNED_SUMMARY if name in LEARNED else policy_summary(name)
        click.echo(f"{'*' if name == configured else ' '} {name:<15} {summary}")
    return 0


@policy.command(epilog="Example: slurm-energy policy show oracle")
@click.argument("name", required=False)
@JSON_OPTION
def show(name: str | None, as_json: bool) -> int:
    """Show a policy's version and what it does; without a name the configured one.

    Under policy.name = "auto" that is the policy that auto selects on this host.
    """
    config = settings()
    choice = chosen_policy(config)
    configured = choice.config.policy.name
    chosen = configured if name is None or name == AUTOMATIC else name
    version, summary = _version_and_summary(config, chosen)
    facts = {
        "name": chosen,
        "version": version,
        "configured": chosen == configured,
        "automatic": config.policy.name == AUTOMATIC,
        "summary": summary,
        "masked": masked_parts(chosen),
        "default_mode": config.policy.default_mode,
        "max_slowdown": config.policy.max_slowdown,
        "saver_max_slowdown": config.policy.saver_max_slowdown,
        "slowdown_bound": config.policy.slowdown_bound,
        "min_saving_per_slowdown": config.policy.min_saving_per_slowdown,
        "routing_open": config.routing.open,
    }
    if as_json:
        print_json(facts)
        return 0
    for key, value in facts.items():
        if value == "":
            continue
        click.echo(f"{key.replace('_', ' '):<20}{value}")
    if choice.note:
        click.echo(choice.note, err=True)
    return 0


def _version_and_summary(config: Config, name: str) -> tuple[str, str]:
    """Return version and summary; of a learned policy from its files, since torch is for whoever serves it."""
    if name not in LEARNED:
        built = create_policy(replace(config, policy=replace(config.policy, name=name)))
        return built.version, policy_summary(policy_name(name))
    if not config.policy.checkpoint:
        return "none: policy.checkpoint is empty", LEARNED_SUMMARY
    return check_files(checkpoint_folder(config)).version, LEARNED_SUMMARY
