"""The cluster's GPUs: which board each one is, what the catalogue takes each type for, and power limits."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slurm_energy.cli.doctor.finding import Finding, fail, ok, several, skip, warn
from slurm_energy.config import Config
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.job import GpuDemand
from slurm_energy.domain.node_status import GpuStatus, NodeStatus
from slurm_energy.energy_model.catalog import LIMIT_TOLERANCE
from slurm_energy.energy_model.curves import curve_source, curves_of
from slurm_energy.energy_model.operating_point import clock_table_of, mean_measured_watts
from slurm_energy.errors import ConfigError
from slurm_energy.node.allocation import GpuMapping, MappedGpu
from slurm_energy.policy.site.candidates import UNTYPED_GRES, catalogue_name
from slurm_energy.policy.site.clock_terms import measured_by, site_terms, worth_their_time
from slurm_energy.policy.site.settings import site_board_limits
from slurm_energy.policy.site.static_order import static_order

POWER_LIMITS = "GPU power limits"
IDENTITY = "GPU identity"
MAX_SHOWN = 16
GPU_TYPES = "GPU types"
SAVING = "possible saving"
ORDER = "order of GPU types"
AFTERWARDS = "under [gpu_types] in slurm-energy.toml on every host, then systemctl reload slurm-energyd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One local GPU and the power limit in force; None when it does not tell."""

    gpu_type: GpuTypeName | None
    limit_watts: float | None


def board_checks(config: Config, boards: Mapping[str, Sequence[Board]]) -> Iterator[Finding]:
    """Yield a finding for each GPU type for which clocks are chosen.

    Args:
        config: That of this host.
        boards: Of each node by its name; this host's own under an empty one.
    """
    try:
        limits = site_board_limits(config)
    except ConfigError as error:
        yield fail(POWER_LIMITS, str(error), "fix [gpu_power_limits_watts] in slurm-energy.toml, on every host")
        return
    for gpu_type, found in sorted(_by_type(boards).items()):
        assumed = limits.known_watts(gpu_type)
        if assumed is not None and clock_table_of(gpu_type) is not None:
            yield _finding(gpu_type, assumed, found)


def status_boards(status: NodeStatus) -> tuple[Board, ...]:
    """Return the boards that a node has reported."""
    return tuple(Board(gpu_type=gpu.gpu_type, limit_watts=gpu.power_limit_watts) for gpu in status.gpus or ())


def mapping_checks(mapping: GpuMapping) -> Iterator[Finding]:
    """Yield what is known of Slurm's numbers: which GPU each is, by what it is proven, and where orders differ."""
    counted = sorted(mapping.positions.values(), key=lambda gpu: gpu.position or 0)
    lost = next((gpu for gpu in counted if not gpu.proven), None)
    if mapping.problem or lost is not None or not counted:
        why = mapping.problem or (
            "Slurm counts no GPU here" if lost is None else f"position {lost.position}: {lost.problem}"
        )
        yield fail(
            IDENTITY,
            f"{why}: no clock is set and no energy billed for jobs on it",
            "compare `slurmd -G` with /dev/nvidia*, restart slurmd, then slurm-energy-hook repair (as root)",
        )
        return
    yield ok(IDENTITY, f"{_mapped(counted)} (by {' and '.join(counted[0].ways)})")
    moved = [gpu for gpu in counted if gpu.minor_number != gpu.index]
    if moved:
        text = (
            f"/dev/nvidia{moved[0].minor_number} is the driver's index {moved[0].index}, and {len(moved)} GPUs are so"
        )
        yield warn(
            IDENTITY, f"minor numbers are not the driver's order: {text}", "none: `nvidia-smi -i` takes the index"
        )
    forgotten = [gpu for gpu in mapping.gpus if gpu.position is None]
    if forgotten:
        names = ", ".join(f"{gpu.uuid}" for gpu in forgotten[:4])
        yield warn(IDENTITY, f"Slurm does not count {len(forgotten)} GPUs of this node: {names}", "add them to Gres=")


def _mapped(counted: Sequence[MappedGpu]) -> str:
    shown = [_line(gpu) for gpu in counted[:MAX_SHOWN]]
    return "; ".join([*shown, *(["..."] if len(counted) > MAX_SHOWN else [])])


def _line(gpu: MappedGpu) -> str:
    place = f"/dev/nvidia{gpu.minor_number}, index {gpu.index}, {gpu.pci_bus_id or 'bus unknown'}"
    return f"{gpu.position} = {gpu.slurm_type or 'gpu'}: {place}, {gpu.uuid}"


def _by_type(boards: Mapping[str, Sequence[Board]]) -> Mapping[GpuTypeName, list[tuple[str, float | None]]]:
    found: dict[GpuTypeName, list[tuple[str, float | None]]] = {}
    for node, of_node in boards.items():
        for board in of_node:
            if board.gpu_type is not None:
                found.setdefault(board.gpu_type, []).append((node, board.limit_watts))
    return found


def _finding(gpu_type: GpuTypeName, assumed_watts: float, found: Sequence[tuple[str, float | None]]) -> Finding:
    known = [watts for _node, watts in found if watts is not None]
    above = [node for node, watts in found if watts is not None and watts > assumed_watts * (1.0 + LIMIT_TOLERANCE)]
    if not known:
        return skip(POWER_LIMITS, f"{gpu_type}: no board reports its own; clocks are chosen for {assumed_watts:g} W")
    highest, lowest = max(known), min(known)
    place = "under [gpu_power_limits_watts] in slurm-energy.toml, on the controller and these nodes"
    setting = f'"{gpu_type}" = {highest:g} {place}'
    if above:
        where = f"on {several(above)}" if all(above) else "here"
        text = f"{gpu_type}: {highest:g} W, clocks are chosen for {assumed_watts:g} W: the default clock stays {where}"
        return fail(POWER_LIMITS, text, f"set {setting}, then systemctl reload slurm-energyd")
    if lowest < assumed_watts * (1.0 - LIMIT_TOLERANCE):
        text = f"{gpu_type}: {lowest:g} W, clocks are chosen for {assumed_watts:g} W: less is saved than predicted"
        return warn(POWER_LIMITS, text, f"set {setting}, unless other boards of this type have {assumed_watts:g} W")
    return ok(POWER_LIMITS, f"{gpu_type}: {assumed_watts:g} W, as clocks are chosen for")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpuTypes:
    """One node's GPUs as Slurm counts them and, where it has reported, as its driver shows them."""

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
            text = f"{_word(slurm_type)}: none until it is known which GPU it is; energy is measured anyway"
            yield ok(SAVING, text)
    for model, words in models.items():
        yield _saving(config, model, words)
    if len(models) > 1:
        yield _order(config, models)


def _word(slurm_type: str | None) -> str:
    return UNTYPED_GRES if slurm_type is None else slurm_type


def _identity(config: Config, slurm_type: str | None, nodes: Sequence[NodeGpuTypes]) -> Finding:
    """Return whether a GRES type is taken for the model that the drivers of its nodes show."""
    word = _word(slurm_type)
    taken = catalogue_name(slurm_type, config.gpu_types)
    shown = _reported_names(config, slurm_type, nodes)
    names = Counter(gpu.name for gpus in shown.values() for gpu in gpus)
    real = {gpu.gpu_type for gpus in shown.values() for gpu in gpus}
    if len(real) > 1:
        text = f"{word} stands for different models: {several(f'{count} x {name}' for name, count in names.items())}"
        return fail(GPU_TYPES, text, "give each model a GRES type of its own in gres.conf and slurm.conf")
    model = next(iter(real), None)
    if shown and model is None:
        text = f"{word}: {several(names)} is not in the catalogue: energy is measured, the clock stays at its default"
        if taken is None:
            return warn(GPU_TYPES, text, "nothing to set: a row in energy_model/catalog, with its source, adds a model")
        return fail(GPU_TYPES, f"{text}; but it is taken for {taken}", f"remove {word} {AFTERWARDS}")
    if taken is None:
        known = f'"{word}" = "{model}"' if model else f'"{word}" = "CATALOGUE-NAME" (see slurm-energy config check)'
        text = f"{word} is not in the catalogue: no clock is chosen for it"
        return fail(GPU_TYPES, f"{text}; it is {several(names)}" if names else text, f"set {known} {AFTERWARDS}")
    if model is not None and model != taken:
        text = f"{word} is taken for {taken}, and the drivers of {several(shown)} show {several(names)}"
        return fail(GPU_TYPES, text, f'set "{word}" = "{model}" {AFTERWARDS}')
    if model is None:
        return ok(GPU_TYPES, f"{word} is taken for {taken}; no node has reported what it is")
    return ok(GPU_TYPES, f"{word} is {taken}, as the drivers show")


def _reported_names(
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


def _order(config: Config, models: Mapping[GpuTypeName, Sequence[str]]) -> Finding:
    """Return the order in which partitions and nodes of these types cost the least: advice, never a fault."""
    try:
        found = static_order(models, config)
    except ConfigError as error:
        return skip(ORDER, str(error), "correct the setting")
    if not found:
        return ok(ORDER, "no table compares the site's GPU types: slurm-energy twin replay --orders tries every order")
    parts = [
        f"{'/'.join(models[one.gpu_type])} ({one.energy_ratio:.2f} of the energy, {one.time_ratio:.2f} of the time"
        f"{', by data sheets' if one.by_sheets else ''})"
        for one in found
    ]
    return ok(
        ORDER,
        f"least energy for the same work first: {', '.join(parts)}; PriorityTier descending for partitions that jobs "
        "list together, Weight ascending for nodes of one partition; slurm-energy twin replay --orders tries every "
        "order on your own jobs",
    )


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
    terms, watts = site_terms(config), mean_measured_watts(model, limit_watts)
    every = measured_by(table, terms)
    best, inside = (some.best(config.policy.max_slowdown) for some in (worth_their_time(every, terms, watts), every))
    saved = 0.0 if best is None else -best.energy_change
    of = " in the mean of programs" if terms.by_mean else ""
    bound = f"a slowdown of at most {config.policy.max_slowdown:.0%}{of}"
    if best is not None and inside is not None and best.sm_clock_mhz == best.default_clock_mhz != inside.sm_clock_mhz:
        text = f"{name}: none with {bound}: {inside.sm_clock_mhz} MHz saves {-inside.energy_change:.1%} for "
        return ok(SAVING, f"{text}{inside.mean_slowdown:.1%} of time; {terms.sentence(watts)}")
    if saved < config.guard.min_energy_saving or best is None:
        return ok(SAVING, f"{name}: none with {bound}: the best clock saves {saved:.1%} (policy.max_slowdown)")
    clock = f"{best.sm_clock_mhz} of {best.default_clock_mhz} MHz"
    if curves[0].source == "measured":
        where = " on this site's boards" if curve_source(model) == "measured here" else ""
        return ok(SAVING, f"{name}: clock curve measured{where}: about {saved:.0%} fewer joules with {bound} ({clock})")
    text = f"{name}: clock curve assumed, from another GPU: {clock} with {bound}; what it saves is unknown"
    return ok(SAVING, text)
