"""What can be put into the arena: placement rules by name, and the daemon's own policies behind its guard."""

from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

from slurm_energy.config import Config
from slurm_energy.domain.job import EnergyMode
from slurm_energy.errors import ConfigError, PolicyError
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.policy.automatic import AUTOMATIC, chosen_policy, named_folder
from slurm_energy.policy.placement import Knowledge, PlacementRule
from slurm_energy.policy.prices import MODE_WEIGHTS
from slurm_energy.policy.registry import EXACT, create_rule, known_policy_names, policy_fault, rule_settings
from slurm_energy.policy.rules.settings import (
    TOTAL_COST,
    Setting,
    policy_name,
    read_settings,
    split_text,
    total_cost_settings,
)
from slurm_energy.twin.adapters.served import served_policy

KNOWLEDGE_PREFIXES: dict[str, Knowledge] = {"clairvoyant/": "truth", "neighbours/": "neighbours"}
"""Before the name of a rule, for what it knows in a world that hides what jobs do; else it is what a site knows."""
KNOWLEDGE_MEANING = {
    "clairvoyant/": "any rule, with each job's true kind and length in a world that hides them: a yardstick",
    "neighbours/": "any rule, with run times by the user's runs that are most alike, in such a world",
}
SERVED = "daemon/"
"""Before the name of a policy as the daemon serves it."""
SETTINGS = {
    "max_slowdown": "slowdown bound of jobs that name none, 0 to 2 (default: the configuration's)",
    "mean": "1 holds that bound against the mean over programs, and not against each (default 0)",
    "exchange": "per cent of energy that a clock must save for 1 % of time, 0 to 100 (default: the configuration's)",
    "type_slowdown": "most that a job may be slower on another GPU type than where Slurm starts it, 0 to 10 (default: "
    "the configuration's)",
    "assumed": "1 lets GPU types without any clock curve take the A100's in proportion (default 0)",
    "checkpoint": "folder of the learned policy, for gnn",
    "open": "1 lets jobs that name no partition be sent to any (default 0)",
    "open_default": "1 makes a named partition a preference among those that the user may use, with open=1 (default 0)",
    "redecide": "seconds between two decisions on each waiting job, 1 to 86400 (default: none after submission)",
    "gpu_count": "on lets jobs that name several numbers of GPUs be given one of them, off does not (default: the "
    "configuration's)",
    "learn": "0 keeps runs of a job's name from saying how its work compares between GPU types (default 1)",
    "predictions": "network takes what a graph network expects of lower clocks, tables does not (default: the "
    "configuration's)",
    "trials": "on lets clocks be tried while jobs run, off does not (default: the configuration's)",
}
"""What may be set of each, with its meaning."""
SUMMARY = "as the daemon serves it: asked at submission with a snapshot, behind the guard"


LEARNED = "gnn"
LEARNED_SETTINGS = {
    "checkpoint": "folder of the learned policy",
    "clocks": "1 lets the network choose clocks too (default 0: the exact oracle)",
    "mode": "saver or balanced: what time and energy are worth to every job (default balanced)",
    "sampling": "share of the nodes that it works out, 0.01 to 1 (default: as it was trained)",
}
"""What may be set of a network, with its meaning."""
LEARNED_SUMMARY = "a network from a checkpoint, asked at every start; needs torch"
PRICED = "learned-price"
PRICED_SETTINGS = {
    "checkpoint": "folder of the learned prices, or shipped",
    "refresh": "seconds between two looks at the cluster, 1 to 86400 (default 600)",
    "by_mode": "1 pays by the mode of each job, as the daemon does, and not by the settings below (default 0)",
    **{setting.name: f"{setting.meaning} (default {setting.default:g})" for setting in TOTAL_COST},
}
"""What may be set of learned prices, with its meaning."""
_BY_MODE = Setting(name="by_mode", default=0, low=0, high=1, whole=True, meaning="1 pays by the mode of each job")
_REFRESH = Setting(name="refresh", default=600.0, low=1.0, high=86_400.0, meaning="seconds between two looks")


def served_names() -> tuple[str, ...]:
    """Return the daemon's policies as the arena names them; `auto` is what a new installation has."""
    return tuple(SERVED + name for name in (AUTOMATIC, *known_policy_names()))


def create_contender(text: str) -> PlacementRule:
    """Return what a policy's text means, `[clairvoyant/ | neighbours/ | daemon/]NAME[:KEY=VALUE,…]`.

    A policy that is asked at submissions alone runs as the daemon serves it, with or without the prefix.

    Raises:
        PolicyError: there is no such policy.
        ConfigError: a setting is unknown or cannot be used.
    """
    if text.startswith(SERVED):
        return _served(text)
    if policy_name(text) == EXACT:
        return _served(SERVED + text)
    for prefix, knowledge in KNOWLEDGE_PREFIXES.items():
        if text.startswith(prefix):
            rule = create_rule(text.removeprefix(prefix))
            rule.knowledge = knowledge
            return rule
    made = {LEARNED: _learned, PRICED: _priced}.get(policy_name(text), create_rule)
    return made(text)


def _served(text: str) -> PlacementRule:
    text = text.removeprefix(SERVED)
    name = policy_name(text)
    if name == AUTOMATIC:
        name = chosen_policy(Config()).config.policy.name
    if name not in known_policy_names():
        known = ", ".join((AUTOMATIC, *known_policy_names()))
        raise PolicyError(f"policy {SERVED}{name[:40]!r} does not exist; the daemon has {known}")
    config, own = Config(), list[str]()
    takes = rule_settings(name)
    for key, value in split_text(text)[1].items():
        if key in SETTINGS:
            config = _configured(config, name, key, value)
        elif takes(key):
            own.append(f"{key}={value}")
        else:
            known = "; ".join(f"{known}: {meaning}" for known, meaning in SETTINGS.items())
            raise ConfigError(f"policy {SERVED}{name} has no setting {f'{key}={value}'[:64]!r}; it has {known}")
    text = f"{name}:{','.join(own)}" if own else name
    fault = policy_fault(text)
    if fault is not None:
        raise ConfigError(f"policy {SERVED}{name}: {fault}")
    return served_policy(text, config)


_WORDS = {
    "trials": ("clock_trials", ("on", "off")),
    "gpu_count": ("gpu_count", ("on", "off")),
    "predictions": ("clock_predictions", ("tables", "network")),
}
"""Settings of the policy that are words, with what each may be."""


def _configured(config: Config, name: str, key: str, value: str) -> Config:  # one for each setting
    """Return the configuration with one of `SETTINGS`."""
    if key == "checkpoint":
        return replace(config, policy=replace(config.policy, checkpoint=value))
    if key in _WORDS and value in _WORDS[key][1]:
        changes: Any = {_WORDS[key][0]: value}
        return replace(config, policy=replace(config.policy, **changes))
    try:
        number = float(value)
    except ValueError:
        raise ConfigError(f"setting {key}={value[:64]!r} of {SERVED}{name} is not a number") from None
    if key == "redecide" and 1.0 <= number <= 86_400.0:
        return replace(config, routing=replace(config.routing, redecide="on", redecide_seconds=number))
    if key == "open_default" and number in (0.0, 1.0):
        return replace(config, routing=replace(config.routing, open_by_default=bool(number)))
    if key == "open" and number in (0.0, 1.0):
        # In the twin a job is only ever allowed where its devices' memory suffices.
        return replace(config, routing=replace(config.routing, open=bool(number), less_gpu_memory=bool(number)))
    if key == "learn" and number in (0.0, 1.0):
        return replace(config, policy=replace(config.policy, learn_from_runs=bool(number)))
    if key == "type_slowdown" and 0.0 <= number <= 10.0:
        return replace(config, routing=replace(config.routing, max_type_slowdown=number))
    if key == "assumed" and number in (0.0, 1.0):
        return replace(config, policy=replace(config.policy, assumed_curves=bool(number)))
    if key == "mean" and number in (0.0, 1.0):
        return replace(config, policy=replace(config.policy, slowdown_bound="mean" if number else "each-job"))
    if key == "exchange" and 0.0 <= number <= 100.0:
        return replace(config, policy=replace(config.policy, min_saving_per_slowdown=number))
    if key == "max_slowdown" and 0.0 <= number <= 2.0:
        return replace(config, policy=replace(config.policy, max_slowdown=number))
    raise ConfigError(f"setting {key}={value[:64]} of {SERVED}{name} is out of bound: {SETTINGS[key]}")


def _priced(text: str) -> PlacementRule:
    _, given = split_text(text)
    folder = given.pop("checkpoint", "")
    if not folder:
        known = "; ".join(f"{known}: {meaning}" for known, meaning in PRICED_SETTINGS.items())
        raise ConfigError(f"policy {PRICED} needs checkpoint=FOLDER; it has {known}")
    values = read_settings(PRICED, (*TOTAL_COST, _REFRESH, _BY_MODE), given)
    refresh_seconds, by_mode = values.pop("refresh"), bool(values.pop("by_mode"))
    unused = sorted(given.keys() - {_REFRESH.name, _BY_MODE.name}) if by_mode else []
    if unused:
        raise ConfigError(f"policy {PRICED}: by_mode=1 pays by the mode of each job, so that {unused[0]} has no effect")
    serving, policy = _networks(PRICED)
    network, metadata = serving.load_network(named_folder(folder))
    rule: PlacementRule = policy.PricedRule(
        partial(serving.ServedPrices if by_mode else serving.NetworkPrices, network),
        EnergyMode.BALANCED if by_mode else total_cost_settings(values),
        name=PRICED,
        version=metadata.version,
        refresh_seconds=refresh_seconds,
    )
    return rule


def _networks(policy: str) -> tuple[Any, Any]:
    """Return the module that loads networks, with one thread for each run, and that of the policy."""
    module = "policy" if policy == LEARNED else "priced_answers"
    try:
        serving, policies = (import_module(f"slurm_energy.policy.gnn.{name}") for name in ("serving", module))
    except ImportError as error:
        raise ConfigError(f"policy {policy} needs the extra `daemon` (torch): {error}") from error
    serving.use_threads(1)
    return serving, policies


def _learned(text: str) -> PlacementRule:
    _, given = split_text(text)
    unknown = sorted(given.keys() - LEARNED_SETTINGS.keys())
    if unknown or not given.get("checkpoint"):
        known = "; ".join(f"{known}: {meaning}" for known, meaning in LEARNED_SETTINGS.items())
        wrong = f"has no setting {unknown[0][:64]!r}" if unknown else "needs checkpoint=FOLDER"
        raise ConfigError(f"policy {LEARNED} {wrong}; it has {known}")
    if given.get("clocks", "0") not in {"0", "1"}:
        raise ConfigError(f"setting clocks={given['clocks'][:64]} of {LEARNED} is neither 0 nor 1")
    modes = [mode.value for mode in MODE_WEIGHTS]
    mode = given.get("mode", EnergyMode.BALANCED.value)
    if mode not in modes:
        raise ConfigError(f"setting mode={mode[:64]} of {LEARNED} is none of {', '.join(sorted(modes))}")
    try:
        rate = float(given["sampling"]) if "sampling" in given else None
    except ValueError:
        raise ConfigError(f"setting sampling={given['sampling'][:64]!r} of {LEARNED} is not a number") from None
    serving, policy = _networks(LEARNED)
    network, metadata = serving.load_network(named_folder(given["checkpoint"]), rate)
    rule: PlacementRule = policy.GnnPolicy(
        network,
        ClusterGraph(),
        version=metadata.version,
        clocks="learned" if given.get("clocks") == "1" else "oracle",
        default_mode=EnergyMode(mode),
    )
    return rule
