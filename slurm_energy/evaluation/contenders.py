"""What can be put into the arena: placement rules by name, and the daemon's own policies behind its guard."""

from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

from slurm_energy.config import Config
from slurm_energy.errors import ConfigError, PolicyError
from slurm_energy.policy.placement import PlacementRule
from slurm_energy.policy.registry import known_policy_names
from slurm_energy.policy.rules.registry import create_rule
from slurm_energy.twin.learned import LearnedRule
from slurm_energy.twin.served import served_policy

SERVED = "daemon/"
"""Before the name of a policy as the daemon serves it."""
SETTINGS = {
    "max_slowdown": "slowdown bound of jobs that name none, 0 to 2 (default: the configuration's)",
    "checkpoint": "folder of the learned policy, for gnn",
    "open": "1 lets jobs that name no partition be sent to any (default 0)",
}
"""What may be set of each, with its meaning."""
SUMMARY = "as the daemon serves it: asked at submission with a snapshot, behind the guard"


LEARNED = "gnn"
LEARNED_SETTINGS = {
    "checkpoint": "folder of the learned policy",
    "clocks": "1 lets the network choose clocks too (default 0: the exact oracle)",
    "sampling": "share of the nodes that it works out, 0.01 to 1 (default: as it was trained)",
}
"""What may be set of a network, with its meaning."""
LEARNED_SUMMARY = "a network from a checkpoint, asked at every start; needs torch"


def served_names() -> tuple[str, ...]:
    """Return the daemon's policies as the arena names them."""
    return tuple(SERVED + name for name in known_policy_names())


def create_contender(text: str) -> PlacementRule:
    """Return what a policy's text means, `NAME[:KEY=VALUE,…]`.

    Raises:
        PolicyError: there is no such policy.
        ConfigError: a setting is unknown or cannot be used.
    """
    if text.partition(":")[0] == LEARNED:
        return _learned(text.partition(":")[2])
    if not text.startswith(SERVED):
        return create_rule(text)
    name, _, settings = text.removeprefix(SERVED).partition(":")
    if name not in known_policy_names():
        known = ", ".join(known_policy_names())
        raise PolicyError(f"policy {SERVED}{name[:40]!r} does not exist; the daemon has {known}")
    return served_policy(name, _configured(name, settings))


def _configured(name: str, settings: str) -> Config:
    config = Config()
    for item in settings.split(",") if settings else ():
        key, separator, value = item.partition("=")
        if not separator or key not in SETTINGS:
            known = "; ".join(f"{known}: {meaning}" for known, meaning in SETTINGS.items())
            raise ConfigError(f"policy {SERVED}{name} has no setting {item[:64]!r}; it has {known}")
        if key == "checkpoint":
            config = replace(config, policy=replace(config.policy, checkpoint=value))
            continue
        try:
            number = float(value)
        except ValueError:
            raise ConfigError(f"setting {key}={value[:64]!r} of {SERVED}{name} is not a number") from None
        if key == "open" and number in (0.0, 1.0):
            config = replace(config, routing=replace(config.routing, open=bool(number)))
        elif key == "max_slowdown" and 0.0 <= number <= 2.0:
            config = replace(config, policy=replace(config.policy, max_slowdown=number))
        else:
            raise ConfigError(f"setting {key}={value[:64]} of {SERVED}{name} is out of bound: {SETTINGS[key]}")
    return config


def _learned(settings: str) -> PlacementRule:
    given = dict(item.partition("=")[::2] for item in settings.split(",") if item)
    unknown = sorted(given.keys() - LEARNED_SETTINGS.keys())
    if unknown or not given.get("checkpoint"):
        known = "; ".join(f"{known}: {meaning}" for known, meaning in LEARNED_SETTINGS.items())
        wrong = f"has no setting {unknown[0][:64]!r}" if unknown else "needs checkpoint=FOLDER"
        raise ConfigError(f"policy {LEARNED} {wrong}; it has {known}")
    if given.get("clocks", "0") not in {"0", "1"}:
        raise ConfigError(f"setting clocks={given['clocks'][:64]} of {LEARNED} is neither 0 nor 1")
    try:
        rate = float(given["sampling"]) if "sampling" in given else None
    except ValueError:
        raise ConfigError(f"setting sampling={given['sampling'][:64]!r} of {LEARNED} is not a number") from None
    try:
        loading = import_module("slurm_energy.policy.gnn.loading")
    except ImportError as error:
        raise ConfigError(f"policy {LEARNED} needs the extra `daemon` (torch): {error}") from error
    loading.use_threads(1)
    network, metadata = loading.load_network(Path(given["checkpoint"]), rate)
    return LearnedRule(
        partial(loading.chooser_of, network), version=metadata.version, learned_clocks=given.get("clocks") == "1"
    )
