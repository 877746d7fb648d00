"""Each GPU type of the cluster: what the catalogue takes it for, what the drivers show, and whether it can save."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slurm_energy.cli.doctor.finding import Finding, fail, ok, several, warn
from slurm_energy.config import Config
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.job import GpuDemand
from slurm_energy.domain.node_status import GpuStatus, NodeStatus
from slurm_energy.energy_model.curves import curves_of
from slurm_energy.energy_model.operating_point import clock_table_of
from slurm_energy.errors import ConfigError
from slurm_energy.policy.candidates import UNTYPED_GRES, catalogue_name
from slurm_energy.policy.site_limits import site_board_limits

SUBJECT = "GPU types"
SAVING = "possible saving"
AFTERWARDS = "under [gpu_types] in slurm-energy.toml on every host, then systemctl reload slurm-energyd"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpuTypes:
    """One node's GPUs as Slurm counts them and, where it has told, as its driver shows them."""

    node: str
    demands: tuple[GpuDemand, ...]
    status: NodeStatus | None


def gpu_type_checks(config: Config, nodes: Sequence[NodeGpuTypes]) -> Iterator[Finding]:
    """Yield for each GRES type whether it is taken for what it is, and for each model whether it can save."""
    types = dict.fromkeys(demand.slurm_type for node in nodes for demand in node.demands)
    models: dict[GpuTypeName, list[str]] = {}
    for slurm_type in types:
        yield _identity(config, slurm_type, nodes)
        name = catalogue_name(slurm_type, config.gpu_types)
        if name is not None:
            models.setdefault(name, []).append(_word(slurm_type))
        else:
            text = f"{_word(slurm_type)}: none until it is known which GPU it is; energy is measured all the same"
            yield ok(SAVING, text)
    for model, words in models.items():
        yield _saving(config, model, words)


def _word(slurm_type: str | None) -> str:
    return UNTYPED_GRES if slurm_type is None else slurm_type


def _identity(config: Config, slurm_type: str | None, nodes: Sequence[NodeGpuTypes]) -> Finding:
    """Return whether a GRES type is taken for the model that the drivers of its nodes show."""
    word = _word(slurm_type)
    taken = catalogue_name(slurm_type, config.gpu_types)
    shown = _shown(config, slurm_type, nodes)
    names = Counter(gpu.name for gpus in shown.values() for gpu in gpus)
    real = {gpu.gpu_type for gpus in shown.values() for gpu in gpus}
    if len(real) > 1:
        text = f"{word} stands for different models: {several(f'{count} x {name}' for name, count in names.items())}"
        return fail(SUBJECT, text, "give each model a GRES type of its own in gres.conf and slurm.conf")
    model = next(iter(real), None)
    if shown and model is None:
        text = f"{word}: {several(names)} is not in the catalogue: energy is measured, the clock stays at its default"
        if taken is None:
            return warn(SUBJECT, text, "nothing to set: a row in energy_model/catalog, with its source, adds a model")
        return fail(SUBJECT, f"{text}; yet it is taken for {taken}", f"remove {word} {AFTERWARDS}")
    if taken is None:
        known = f'"{word}" = "{model}"' if model else f'"{word}" = "CATALOGUE-NAME" (see slurm-energy config check)'
        text = f"{word} is not in the catalogue: no clock is chosen for it"
        return fail(SUBJECT, f"{text}; it is {several(names)}" if names else text, f"set {known} {AFTERWARDS}")
    if model is not None and model != taken:
        text = f"{word} is taken for {taken}, and the drivers of {several(shown)} show {several(names)}"
        return fail(SUBJECT, text, f'set "{word}" = "{model}" {AFTERWARDS}')
    if model is None:
        return ok(SUBJECT, f"{word} is taken for {taken}; no node has reported what it is")
    return ok(SUBJECT, f"{word} is {taken}, as the drivers show")


def _shown(
    config: Config, slurm_type: str | None, nodes: Sequence[NodeGpuTypes]
) -> Mapping[str, tuple[GpuStatus, ...]]:
    """Return by node the GPUs that are surely of this GRES type."""
    found = {}
    for node in nodes:
        if node.status is None or not node.status.gpus or slurm_type not in {one.slurm_type for one in node.demands}:
            continue
        gpus = node.status.gpus
        if len(node.demands) > 1:
            gpus = _of_several(config, slurm_type, node, gpus)
        if gpus:
            found[node.node] = gpus
    return found


def _of_several(
    config: Config, slurm_type: str | None, node: NodeGpuTypes, gpus: tuple[GpuStatus, ...]
) -> tuple[GpuStatus, ...]:
    """Return a type's GPUs on a node with several types: as the node says, else those that no other type can be."""
    if all(gpu.slurm_type is not None for gpu in gpus):
        return tuple(gpu for gpu in gpus if gpu.slurm_type == slurm_type)
    others = {
        catalogue_name(demand.slurm_type, config.gpu_types)
        for demand in node.demands
        if demand.slurm_type != slurm_type
    }
    return () if None in others else tuple(gpu for gpu in gpus if gpu.gpu_type not in others)


def _saving(config: Config, model: GpuTypeName, words: Sequence[str]) -> Finding:
    """Return whether a lower clock can save energy on a model, and how that is known: a fact, never a fault."""
    name = model if list(words) == [model] else f"{', '.join(words)} ({model})"
    try:
        limit_watts = site_board_limits(config).known_watts(model)
    except ConfigError:
        limit_watts = None
    table = clock_table_of(model, None, limit_watts)
    curves = curves_of(model)
    if table is None or not curves:
        text = f"{name}: none by clocks: no clock curve is known, so the clock stays at its default; energy is measured"
        return ok(SAVING, text)
    best = table.best(config.policy.max_slowdown)
    saved = 0.0 if best is None else -best.energy_change
    bound = f"a slowdown of at most {config.policy.max_slowdown:.0%}"
    if saved < config.guard.min_energy_saving or best is None:
        return ok(SAVING, f"{name}: none with {bound}: the best clock saves {saved:.1%} (policy.max_slowdown)")
    amount = f"about {saved:.0%} fewer joules with {bound} ({best.sm_clock_mhz} of {best.default_clock_mhz} MHz)"
    if curves[0].source == "measured":
        return ok(SAVING, f"{name}: clock curve measured: {amount}")
    return ok(SAVING, f"{name}: clock curve assumed, from a GPU of the same chip: {amount}")
