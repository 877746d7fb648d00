"""Calls with an `--energy…` option: a dry run, or a host whose sbatch lacks the SPANK plugin that knows them."""

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.config import Config
from slurm_energy.errors import ValueRangeError
from slurm_energy.forms import nearest
from slurm_energy.reporting.visible import say
from slurm_energy.slurm.sbatch_options import (
    DRY_RUN,
    ENERGY_OPTIONS,
    GivenOption,
    Takes,
    learned_options,
    split_arguments,
)

_HELP_SECONDS = 10.0
_CONTROLLER_SECONDS = 10.0
_HARMLESS_MODES = frozenset({"balanced", "saver"})


@dataclass(frozen=True, slots=True)
class SbatchWords:
    """The words that sbatch gets."""

    words: tuple[bytes, ...]
    note: str = ""
    """To be said once sbatch has ended."""


def unknown_option_advice(name: str) -> str:
    """Return what to do about an option that sbatch does not know; empty where it is none of ours, nor like one."""
    ours = (*ENERGY_OPTIONS, DRY_RUN)
    if any(known.startswith(name) for known in ours):
        return (
            f"sbatch on this host lacks the energy plugin, so it does not know --{name}: remove the #SBATCH --energy "
            "lines, or report it to your administrators"
        )
    close = nearest(name, ours, cutoff=0.75)
    if close is None and not name.startswith("energy"):
        return ""
    meant = f"did you mean --{close}? " if close else ""
    return f"there is no option --{name}: {meant}There are --{', --'.join(ours)}"


def help_of_sbatch(sbatch: str) -> str:
    """Return what `sbatch --help` says: its options and those of the site's plugins; empty where it says nothing."""
    return _output([sbatch, "--help"], _HELP_SECONDS)


def prepare(words: Sequence[bytes], sbatch: str, config: Config) -> SbatchWords | int:
    """Return what sbatch is to get, or the exit code when nothing is submitted.

    Raises:
        SlurmEnergyError: a dry run failed.
    """
    texts = [os.fsdecode(word) for word in words]
    help_text = help_of_sbatch(sbatch)
    known = learned_options(help_text)
    try:
        split = split_arguments(texts, {**known, **ENERGY_OPTIONS, DRY_RUN: Takes.NOTHING})
    except ValueRangeError:  # sbatch refuses these words in its own way
        return SbatchWords(tuple(words))
    options = [option for component in split.components for option in component]
    if any(option.name == DRY_RUN for option in options):
        from slurm_energy.cli.sbatch.dry_run import dry_run  # noqa: PLC0415  # only a dry run needs the parsers

        return dry_run(words, split, known, config)
    energy = [option for option in options if option.name in ENERGY_OPTIONS]
    if not energy or "energy" in known or not help_text:  # without its help, sbatch itself will say what is wrong
        return SbatchWords(tuple(words))
    return _without_plugin(words, energy, config)


def _without_plugin(words: Sequence[bytes], energy: Sequence[GivenOption], config: Config) -> SbatchWords | int:
    """Leave out options that sbatch here would stumble over, unless one of them limits what may be done to the job."""
    left_out = {index for option in energy for index in range(option.first, option.end)}
    named = " ".join(os.fsdecode(words[index]) for index in sorted(left_out))
    rest = tuple(word for index, word in enumerate(words) if index not in left_out)
    if _site_decides(config) is False:
        return SbatchWords(rest, f"this cluster has no energy plugin: submitted without {named}")
    if any(_limits(option) for option in energy):
        say(
            f"nothing was submitted: sbatch on this host lacks the energy plugin (no line in plugstack.conf), so "
            f"{named} would not be kept; submit from another host, or without it to accept the site's default"
        )
        return 1
    note = f"sbatch on this host lacks the energy plugin: submitted without {named}, the site's default holds"
    return SbatchWords(rest, note)


def _limits(option: GivenOption) -> bool:
    """Return whether the option is a limit that its user set: dropping it could do to the job what he refused."""
    if option.name == "energy":
        return option.value not in _HARMLESS_MODES
    if option.name in {"energy-trials", "energy-redecide", "energy-open"}:
        return option.value == "off"
    return option.name in {"energy-max-slowdown", "energy-deadline"}


def _site_decides(config: Config) -> bool | None:
    """Return whether slurmctld runs the energy plugin, None when it does not say."""
    scontrol = (
        Path(config.cluster.slurm_bin_directory, "scontrol") if config.cluster.slurm_bin_directory else "scontrol"
    )
    text = _output([str(scontrol), "show", "config"], _CONTROLLER_SECONDS)
    line = re.search(r"^JobSubmitPlugins\s*=\s*(.*)$", text, re.MULTILINE)
    return None if line is None else "energy" in re.split(r"[\s,]+", line.group(1))


def _output(command: list[str], limit_seconds: float) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")
