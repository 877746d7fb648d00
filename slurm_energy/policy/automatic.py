"""What `policy.name = "auto"` and `policy.checkpoint` stand for: the learned policy where it can be served.

A new installation has `auto`; it is never an error. Whether torch is there is looked up, not tried: importing it takes
seconds, and a daemon without it must start as if it had not been asked for.
"""

import importlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_energy.config import Config
from slurm_energy.errors import CheckpointError
from slurm_energy.policy.checkpoint_files import DOCUMENT_FILE, WEIGHTS_FILE, check_files
from slurm_energy.resources import install_command

AUTOMATIC = "auto"
LEARNED_POLICY = "gnn"
NEEDED_MODULES = ("numpy", "safetensors", "torch")
"""What a learned policy imports beyond the base installation."""
INSTALL = install_command("daemon")
SHIPPED = "shipped"
"""Value of `policy.checkpoint` that stands for it; a folder of that name is `./shipped`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """A configuration whose policy has a name of its own."""

    config: Config
    note: str = ""
    """Why the baseline was chosen and what would change that; empty where nothing is to be said."""


def chosen_policy(config: Config, *, is_serving: bool = False) -> PolicyChoice:
    """Return the configuration with the policy that `auto` stands for; any other name stays as it is.

    Args:
        config: As the site wrote it.
        is_serving: Whether a learned policy serves now: it stays where the checkpoint that follows it is refused.
    """
    if config.policy.name != AUTOMATIC:
        return PolicyChoice(config=config)
    learned = replace(config, policy=replace(config.policy, name=LEARNED_POLICY))
    missing = missing_modules()
    if missing:
        reason = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        fix = f"to use the learned policy, run: {INSTALL}, then: systemctl reload slurm-energyd"
    else:
        setting_fault = next(_setting_faults(learned), None)
        fault = setting_fault or next(_checkpoint_faults(learned), None)
        if fault is None:
            return PolicyChoice(config=learned)
        if is_serving and setting_fault is None:
            note = f"the learned policy cannot be loaded again, the previous one stays: {fault}"
            return PolicyChoice(config=learned, note=note)
        reason, fix = "the learned policy cannot be served", f"fix: {fault}"
    baseline = config.policy.baseline
    return PolicyChoice(
        config=replace(config, policy=replace(config.policy, name=baseline)),
        note=f"policy {baseline} decides, because {reason}; {fix}",
    )


def missing_modules() -> tuple[str, ...]:
    """Return what a learned policy needs and this installation lacks; nothing is imported."""
    importlib.invalidate_caches()  # it may have been installed since this process began
    return tuple(name for name in NEEDED_MODULES if importlib.util.find_spec(name) is None)


def learned_faults(config: Config) -> Iterator[str]:
    """Yield what is wrong with a policy that answers from a process of its own, its checkpoint or its settings."""
    yield from _checkpoint_faults(config)
    yield from _setting_faults(config)


def _checkpoint_faults(config: Config) -> Iterator[str]:
    if config.policy.checkpoint:
        try:
            check_files(checkpoint_folder(config))
        except CheckpointError as error:
            yield f"policy.checkpoint: {error}"


def _setting_faults(config: Config) -> Iterator[str]:
    if not config.policy.checkpoint:
        yield (
            f"policy.checkpoint is empty, policy {config.policy.name} needs one: name the folder that holds its "
            f"{DOCUMENT_FILE} and {WEIGHTS_FILE}, or choose another policy.name"
        )
    wait, deadline = config.policy.timeout_milliseconds, config.plugin.deadline_milliseconds
    if wait >= deadline:
        yield (
            f"policy.timeout_milliseconds is {wait}, it must be below the {deadline} of plugin.deadline_milliseconds: "
            "else the plugin is gone before the baseline answers"
        )


def shipped_folder() -> Path:
    """Return the folder of the checkpoint that comes with the package."""
    return Path(__file__).resolve().parent / SHIPPED


def named_folder(text: str) -> Path:
    """Return the folder that a checkpoint's name means."""
    return shipped_folder() if text == SHIPPED else Path(text)


def checkpoint_folder(config: Config) -> Path:
    """Return the folder that `policy.checkpoint` means."""
    return named_folder(config.policy.checkpoint)
