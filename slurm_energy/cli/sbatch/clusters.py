"""`energy-sbatch --energy-clusters=a,b`: ask each cluster's daemon, choose one, and submit there.

Whatever goes wrong here, the job is submitted as without the option: by plain sbatch, to the local cluster.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slurm_energy.cli.sbatch.dry_run import described_job, script_text
from slurm_energy.cli.sbatch.options import help_of_sbatch
from slurm_energy.config import Config
from slurm_energy.daemon.doors.callers import user_id_of
from slurm_energy.domain.cluster_offer import (
    ClusterChoice,
    InputData,
    PricedOffer,
    choose_cluster,
    parse_clusters,
    parse_input_data,
)
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.plain import to_plain
from slurm_energy.errors import AuthenticationError, SlurmEnergyError, ValueRangeError, WireError
from slurm_energy.forms import parse_addresses
from slurm_energy.policy.detail_text import joules_text
from slurm_energy.reporting.visible import visible
from slurm_energy.slurm.sbatch_options import (
    CLUSTER_OPTIONS,
    DRY_RUN,
    ENERGY_OPTIONS,
    GivenOption,
    SplitArguments,
    Takes,
    learned_options,
    script_directives,
    split_arguments,
)
from slurm_energy.wire.offers import Address, Asker, ask_all, offer_of_document

NONE = "off"
"""Name that stands for no cluster but the local one."""
_VARIABLES = ("SBATCH_CLUSTERS", "SLURM_CLUSTERS")
_TIED_TO_LOCAL = ("dependency", "nodelist", "nodefile", "reservation")
"""What they name is of the local cluster."""
_NEVER_SUBMITS = ("help", "version")


@dataclass(frozen=True, slots=True)
class ClusterWords:
    """What sbatch gets."""

    words: tuple[bytes, ...]
    cluster: str = ""
    """That was chosen, by the first of the words; empty: none was."""
    note: str = ""
    """To be said once sbatch has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """What is wanted of a choice."""

    names: tuple[str, ...]
    data: tuple[InputData, ...]
    is_own: bool
    """Whether the user said so, and not the site."""


def with_cluster(words: Sequence[bytes], sbatch: str, config: Config) -> ClusterWords | int:
    """Return sbatch's words with the cluster that costs the least, or the exit code of a dry run.

    Args:
        words: energy-sbatch's arguments.
        sbatch: Path of the real one.
        config: The site's settings.

    Raises:
        SlurmEnergyError: a dry run failed.
    """
    texts = [os.fsdecode(word) for word in words]
    known = {} if not any(text.startswith("--") for text in texts) else learned_options(help_of_sbatch(sbatch))
    table = {**known, **ENERGY_OPTIONS, DRY_RUN: Takes.NOTHING}
    is_json = "--json" in texts and f"--{DRY_RUN}" in texts
    try:
        split = split_arguments(texts, {**table, "json": Takes.NOTHING} if is_json else table)
    except ValueRangeError:  # sbatch refuses these words in its own way
        return ClusterWords(tuple(words))
    options = [option for component in split.components for option in component]
    rest = _without(words, options, CLUSTER_OPTIONS)
    given = {option.name: option.value for option in split.options}
    is_dry = any(option.name == DRY_RUN for option in options)
    unchanged = ClusterWords(rest)
    try:
        if any(name in given for name in _NEVER_SUBMITS):
            return unchanged
        wish = _wish(split, given, known, config)
        if wish is None:
            alone = "energy-data" in given and not _has_cluster(given)
            return replace(unchanged, note="--energy-data says nothing without --energy-clusters" if alone else "")
        reason = _stays(split, given)
        if reason:
            return replace(unchanged, note=reason if wish.is_own else "")
        choice = _choice(rest, wish, known, config)
    except SlurmEnergyError as error:
        if is_dry:
            raise
        return replace(unchanged, note=f"no cluster was chosen: {error}; sbatch was run for the local one")
    if is_dry:
        _show(choice, is_json=is_json)
        return 0 if choice.ranked else 1
    if not choice.ranked:
        return replace(
            unchanged, note=f"no cluster made an offer ({_left_out(choice)}): sbatch was run for the local one"
        )
    name = choice.best.offer.cluster
    return ClusterWords((f"--clusters={name}".encode(), *rest), name, explained(choice, config))


def explained(choice: ClusterChoice, config: Config) -> str:
    """Return the choice with the next best, in one line."""
    best, parts = choice.best, [f"cluster {choice.best.offer.cluster}: {_words(choice.best, choice.unit)}"]
    if len(choice.ranked) > 1:
        second = choice.ranked[1]
        more = f" ({second.cost / best.cost - 1.0:+.1%})" if best.cost > 0.0 else ""
        parts.append(f"next {second.offer.cluster}{more}: {_words(second, choice.unit)}")
    parts += choice.notes
    if choice.left_out:
        parts.append(f"left out: {_left_out(choice)}")
    if config.clusters.cost != "energy" and choice.unit != "J":
        parts.append(f"compared by {config.clusters.cost}")
    return "; ".join(parts)


def _wish(
    split: SplitArguments, given: Mapping[str, str | None], known: Mapping[str, Takes], config: Config
) -> _Wish | None:
    """Return what is wanted, by the command line, the script, then the site; None for no choice, or one made already.

    Raises:
        SlurmEnergyError: it cannot be read.
    """
    if _has_cluster(given):
        return None  # the user's own word on the cluster wins
    script = _script_options(
        split, given, known, is_wanted=bool(config.clusters.addresses) or "energy-clusters" in given
    )
    if "clusters" in script:
        return None
    own = given.get("energy-clusters") or script.get("energy-clusters")
    names = config.clusters.names if own is None else () if own == NONE else parse_clusters(own)
    data = given.get("energy-data") or script.get("energy-data")
    if not names:
        return None
    return _Wish(names=names, data=() if data is None else parse_input_data(data), is_own=own is not None)


def _has_cluster(given: Mapping[str, str | None]) -> bool:
    """Return whether the user names a cluster himself."""
    return "clusters" in given or any(os.environ.get(name) for name in _VARIABLES)


def _script_options(
    split: SplitArguments, given: Mapping[str, str | None], known: Mapping[str, Takes], *, is_wanted: bool
) -> Mapping[str, str | None]:
    """Return what the script's #SBATCH lines say; a script on standard input is kept, so that sbatch reads it too."""
    if "wrap" in given or not is_wanted:
        return {}
    if not split.rest:
        keep_standard_input()
    try:
        directives = script_directives(script_text(split.rest, given.get("chdir")))
        found = split_arguments(directives.components[0], {**known, **ENERGY_OPTIONS})
    except SlurmEnergyError:  # sbatch says what is wrong with it
        return {}
    finally:
        if not split.rest:
            os.lseek(0, 0, os.SEEK_SET)
    return {option.name: option.value for option in found.options}


def keep_standard_input() -> None:
    """Put what comes from standard input into a file in memory that several can read, each from its beginning."""
    kept = os.memfd_create("energy-sbatch", 0)
    while chunk := os.read(0, 1 << 20):
        os.write(kept, chunk)
    os.lseek(kept, 0, os.SEEK_SET)
    os.dup2(kept, 0)
    os.close(kept)


def _stays(split: SplitArguments, given: Mapping[str, str | None]) -> str:
    """Return why a job stays on the local cluster; empty where it may go."""
    if len(split.components) > 1:
        return "a heterogeneous job stays on the local cluster: --energy-clusters is left out"
    tied = next((name for name in _TIED_TO_LOCAL if given.get(name)), "")
    return f"--{tied} is of the local cluster, where the job stays: --energy-clusters is left out" if tied else ""


def _choice(words: Sequence[bytes], wish: _Wish, known: Mapping[str, Takes], config: Config) -> ClusterChoice:
    table = {**known, **ENERGY_OPTIONS, DRY_RUN: Takes.NOTHING, "json": Takes.NOTHING}
    split = split_arguments([os.fsdecode(word) for word in words], table)
    try:
        fields = described_job(words, split, known, config).fields
    finally:
        if not split.rest and "wrap" not in {option.name for option in split.options}:
            os.lseek(0, 0, os.SEEK_SET)
    addresses, left_out = cluster_addresses(wish.names, config)
    answers = ask_all(addresses, fields, asker_of(config), config.clusters.deadline_seconds)
    left_out |= answers.left_out
    offers = []
    for cluster, document in answers.documents.items():
        try:
            offers.append(offer_of_document(document))
        except WireError as error:
            left_out[cluster] = str(error)
    left_out = {name: left_out[name] for name in wish.names if name in left_out}
    if not offers:
        return ClusterChoice(ranked=(), unit="J", left_out=left_out)
    return choose_cluster(offers, config.clusters, wish.data, relative_types, left_out)


def cluster_addresses(names: Sequence[str], config: Config) -> tuple[dict[str, Sequence[Address]], dict[str, str]]:
    """Return where the daemons of clusters are, and why some have no address; the local one's nodes know it too."""
    found: dict[str, Sequence[Address]] = {}
    without: dict[str, str] = {}
    for name in names:
        text = config.clusters.addresses.get(name, "")
        if not text and name == config.cluster.name:
            text = config.node.daemon_address
        try:
            if not text:
                raise ValueRangeError(f"clusters.addresses has no {name}")
            found[name] = parse_addresses(text)
        except SlurmEnergyError as error:
            without[name] = str(error).replace("node.daemon_address", f"clusters.addresses.{name}")
    return found, without


def asker_of(config: Config) -> Asker:
    """Return who asks here.

    Raises:
        AuthenticationError: by a key that this user may not read.
    """
    key = None
    if config.node.authentication == "hmac":
        from slurm_energy.wire.authentication import load_key  # noqa: PLC0415  # loads subprocess and hmac

        try:
            key = load_key(Path(config.node.hmac_key_path))
        except AuthenticationError as error:
            raise AuthenticationError(f"{error}; clusters are asked by users through munge") from error
    slurm_user = user_id_of(config.cluster.slurm_user)
    daemons = frozenset({0} if slurm_user is None else {0, slurm_user})
    return Asker(key=key, daemon_user_ids=daemons, user_id=os.getuid())


def relative_types(gpu_type: GpuTypeName, reference: GpuTypeName) -> tuple[float, float] | None:
    """Return time and energy of the same work on a type relative to another, by tables."""
    from slurm_energy.energy_model.relative_speed import relative_cost  # noqa: PLC0415  # loads the curves

    cost = relative_cost(gpu_type, reference)
    return None if cost is None else (cost.time_ratio, cost.energy_ratio)


def _without(words: Sequence[bytes], options: Sequence[GivenOption], names: Sequence[str]) -> tuple[bytes, ...]:
    left_out = {index for option in options if option.name in names for index in range(option.first, option.end)}
    return tuple(word for index, word in enumerate(words) if index not in left_out)


def _left_out(choice: ClusterChoice) -> str:
    return "; ".join(f"{name}: {visible(reason)}" for name, reason in choice.left_out.items())


def cost_text(cost: float, unit: str) -> str:
    """Return a cost with its unit."""
    if unit == "J":
        return joules_text(cost)
    return f"{cost:.0f} g CO2" if unit == "g" else f"{cost:.2f} {unit}"


def _words(priced: PricedOffer, unit: str) -> str:
    """Return an offer as a person reads it."""
    offer = priced.offer
    gpu_type = offer.gpu_type or "GPUs of an unknown type"
    clock = "" if offer.clock_mhz is None else f" at {offer.clock_mhz} MHz"
    end = priced.end_seconds
    when = "start not known" if end is None or offer.wait_seconds is None else f"ends in {_duration(end)}"
    wait = f", starts in {_duration(offer.wait_seconds)}" if offer.wait_seconds else ""
    cost = f"{cost_text(priced.cost, unit)} = " + " + ".join(
        f"{name} {cost_text(part, unit)}" for name, part in priced.parts.items() if part
    )
    return (
        f"{joules_text(offer.joules)}, {offer.gpus} x {gpu_type}{clock} in {offer.partition}{wait}, {when}; cost {cost}"
    )


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60.0)
    return f"{seconds:.0f} s" if seconds < 90.0 else f"{minutes} min" if minutes < 120 else f"{seconds / 3600.0:.1f} h"


def _show(choice: ClusterChoice, *, is_json: bool) -> None:
    if is_json:
        sys.stdout.write(json.dumps(choice_document(choice), allow_nan=False) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in choice_lines(choice)))
    sys.stdout.flush()


def choice_document(choice: ClusterChoice) -> dict[str, Any]:
    """Return the offers as programs read them."""
    offers = [
        {
            **to_plain(one.offer),
            "joules": one.offer.joules,
            "run_seconds": one.offer.run_seconds,
            "transfer_seconds": one.transfer_seconds,
            "end_seconds": one.end_seconds,
            "cost": one.cost,
            "parts": dict(one.parts),
        }
        for one in choice.ranked
    ]
    return {
        "format": 1,
        "chosen": choice.best.offer.cluster if choice.ranked else None,
        "unit": choice.unit,
        "offers": offers,
        "left_out": dict(choice.left_out),
        "notes": list(choice.notes),
    }


def choice_lines(choice: ClusterChoice) -> list[str]:
    """Return the table of all offers, the chosen one first."""
    head = ("", "cluster", "cost", "energy", "starts in", "ends in", "partition", "GPUs", "run time by", "power by")
    rows = [head]
    for at, one in enumerate(choice.ranked):
        offer, end = one.offer, one.end_seconds
        wait = offer.wait_seconds
        clock = "" if offer.clock_mhz is None else f" at {offer.clock_mhz} MHz"
        rows.append(
            (
                "" if at else "*",
                offer.cluster,
                cost_text(one.cost, choice.unit),
                joules_text(offer.joules),
                "not known" if wait is None else _duration(wait + one.transfer_seconds),
                "not known" if end is None else _duration(end),
                offer.partition,
                f"{offer.gpus} x {offer.gpu_type or 'unknown type'}{clock}",
                f"{offer.runs} runs" if offer.runs else visible(offer.seconds_source, 24),
                "its runs" if offer.is_measured else "other programs",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["Dry run: nothing was submitted."]
    if choice.ranked:
        lines += [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
    lines += [f"left out: {name}: {visible(reason)}" for name, reason in choice.left_out.items()]
    lines += [f"note: {note}" for note in choice.notes]
    if not choice.ranked:
        lines.append("no cluster made an offer: the job would go to the local one")
    return lines
