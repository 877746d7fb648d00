"""What `slurm-energy calibrate` does with a site's own boards: list what is known, sweep a node."""

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurm_energy.cli.context import print_json
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.energy_model.curves import curve_source, curves_of
from slurm_energy.errors import ConfigError, DeviceError, ValueRangeError
from slurm_energy.files import write_atomically
from slurm_energy.reporting.visible import say
from slurm_energy.resources import install_command

if TYPE_CHECKING:
    from slurm_energy.node.board_sweep import BoardSweep, StartLoad, SweepSettings

_MEANING = {
    "measured here": "measured on this site's boards",
    "measured": "measured, by the package's data",
    "assumed": "assumed, from a GPU of the same chip: what a clock saves is not known",
    "none": "none: the clock stays at its default, energy is measured nevertheless",
}


def known_types() -> list[dict[str, Any]]:
    """Return every GPU type with how its clock curves are known."""
    return [
        {
            "gpu_type": name,
            "clock_curves": curve_source(name),
            "workloads": [curve.workload for curve in curves_of(name)],
            "power_limit_watts": row.power_limit_watts,
        }
        for name, row in CATALOG.items()
    ]


def list_types() -> None:
    """Print every GPU type with how its clock curves are known."""
    for row in known_types():
        number = len(row["workloads"])
        behind = f" ({number} workload{'' if number == 1 else 's'})" if number else ""
        click.echo(f"{row['gpu_type']:<18} {_MEANING[row['clock_curves']]}{behind}")
    click.echo(
        "To measure your own boards: slurm-energy calibrate --node, on a drained node or in a job with its GPUs."
    )


def measure_node(output: Path, given: Sequence[str], settings: "SweepSettings") -> int:
    """Sweep this node's boards, fit the curves and add them to a file; return 1 when nothing could be used.

    Raises:
        ConfigError: what is needed is not installed; nothing was touched.
        DeviceError: the GPUs are not reserved, or cannot be reached.
    """
    fitting = _fitting()
    starts = _loads(given)
    from slurm_energy.node.board_sweep import node_state, reserved_gpus, swept_boards  # noqa: PLC0415  # a node's doors
    from slurm_energy.node.commands import make_context  # noqa: PLC0415  # likewise
    from slurm_energy.node.log import HookLog  # noqa: PLC0415  # likewise
    from slurm_energy.node.settings import load_settings  # noqa: PLC0415  # likewise

    if os.geteuid() != 0:
        raise DeviceError("clocks can be locked by root alone: run it as root")
    hook_settings = load_settings(os.environ)
    context = make_context(hook_settings, HookLog("", "calibrate", _discard), _discard)
    slurm = hook_settings.slurm_bin_directory, hook_settings.slurm_conf
    reservation = reserved_gpus(context, os.environ, lambda: node_state(hook_settings.node_name, *slurm))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    sweeps = swept_boards(context, reservation, starts, settings, lambda text: say(text, "slurm-energy"))
    document, used = _document(output), 0
    for sweep in sweeps:
        for problem in sweep.problems:
            say(f"{sweep.device_name}: {problem}", "slurm-energy")
        used += _add(document, sweep, fitting, hook_settings.node_name)
    if not used:
        say("nothing was measured that can be used: no file is written", "slurm-energy")
        return 1
    write_atomically(output, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode(), mode=0o644)
    say(f"wrote {output}: copy it to the controller, set policy.curves_file, restart slurm-energyd", "slurm-energy")
    return 0


def fit_history(output: Path, database: str | None, days: float, *, as_json: bool) -> int:
    """Fit curves from the clocks that were tried in jobs and add them to a file; return 1 when none could be.

    Raises:
        ConfigError: what is needed is not installed.
        StoreError: the database cannot be read.
    """
    try:
        from slurm_energy.estimation.trial_curves import history_of_types  # noqa: PLC0415  # needs scipy
    except ImportError as error:
        raise ConfigError(f"fitting needs {error.name}, nothing was read: {install_command('twin')}") from error
    from slurm_energy.cli.records import read_database  # noqa: PLC0415  # SQL only when it is needed
    from slurm_energy.config import load_config  # noqa: PLC0415  # only for people
    from slurm_energy.domain.ids import ClusterName  # noqa: PLC0415  # only here
    from slurm_energy.store.clock_trials import trials_of_names  # noqa: PLC0415  # SQL only when it is needed

    config = load_config()
    store = config.store if database is None else replace(config.store, url=database)
    cluster, now = ClusterName(config.cluster.name), time.time()
    trials = read_database(store, lambda session: list(trials_of_names(session, cluster, now - 86_400.0 * days)))
    found = history_of_types(trials, now)
    document = _document(output)
    document["gpu_types"] |= {one.gpu_type: dict(one.entry) for one in found if one.entry is not None}
    fitted = [one for one in found if one.entry is not None]
    if fitted:
        write_atomically(output, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode(), mode=0o644)
    if as_json:
        print_json([{**asdict(replace(one, entry=None)), "is_fitted": one.entry is not None} for one in found])
    for one in () if as_json else found:
        jobs = f"{one.jobs} job{'' if one.jobs == 1 else 's'} of {one.names} name{'' if one.names == 1 else 's'}"
        if one.entry is None:
            click.echo(f"{one.gpu_type:<18} too little in {jobs}: {one.lacks}")
            continue
        low, high = one.entry["low_clock_mhz"], one.entry["high_clock_mhz"]
        click.echo(
            f"{one.gpu_type:<18} {one.used_names} curves, {low} to {high} MHz, from {jobs}; slowdowns with a standard "
            f"error of {100.0 * one.slowdown_error:.1f} points"
        )
    if not found:
        say(
            f"no clock was tried in a job of cluster {cluster} in {days:g} days: set policy.clock_trials",
            "slurm-energy",
        )
    if not fitted:
        say("nothing can be fitted yet: no file is written", "slurm-energy")
        return 1
    say(f"wrote {output}: set policy.curves_file, restart slurm-energyd", "slurm-energy")
    return 0


def _discard(text: str) -> None:
    """Drop a line: what counts is said by the sweep."""


def _end(number: int, frame: object) -> None:  # noqa: ARG001  # a signal's form
    sys.exit(128 + number)


def _fitting() -> Any:
    try:
        from slurm_energy.energy_model.calibration import site_fit  # noqa: PLC0415  # needs scipy
    except ImportError as error:
        raise ConfigError(f"fitting needs {error.name}, nothing was measured: {install_command('twin')}") from error
    return site_fit


def _loads(given: Sequence[str]) -> "Mapping[str, StartLoad]":
    """Return what starts each load: those that were named, else the built-in ones.

    Raises:
        ConfigError: a name or command is missing, or there is no compute library for the built-in ones.
    """
    from slurm_energy.device.loads import (  # noqa: PLC0415  # only here
        BUILT_IN,
        built_in_command,
        has_compute_library,
        program_load,
    )

    commands: dict[str, Sequence[str]] = {}
    for text in given:
        name, separator, command = text.partition("=")
        if not separator or not name.strip() or not command.strip():
            raise ConfigError(f"--load {text[:64]!r} is not of the form NAME=COMMAND")
        commands[name.strip()] = shlex.split(command)
    if not commands:
        if not has_compute_library():
            raise ConfigError(
                "no compute library is installed here, so there is nothing to load the GPUs with and nothing was "
                "measured: pip install torch (a build with CUDA), or give a program of your own with "
                "--load NAME=COMMAND"
            )
        commands = {name: built_in_command(name) for name in BUILT_IN}
    return {name: program_load(command, time.sleep) for name, command in commands.items()}


def _document(output: Path) -> dict[str, Any]:
    from slurm_energy.energy_model.site_curves import empty_document, read_site_curves  # noqa: PLC0415  # only here

    if output.exists():
        return read_site_curves(output)
    return json.loads(json.dumps(empty_document()))  # type: ignore[no-any-return]  # a copy of it


def _add(document: dict[str, Any], sweep: "BoardSweep", fitting: Any, node: str) -> int:
    """Add a board's curves to the document; return 1 if there was anything to add."""
    from slurm_energy.energy_model.calibration.clocks import SweepPoint  # noqa: PLC0415  # needs scipy

    if sweep.gpu_type is None:
        say(f"{sweep.device_name} is not in the catalogue: its curves could not be used", "slurm-energy")
        return 0
    points = {
        name: [SweepPoint(sm_clock_mhz=one.sm_clock_mhz, watts=one.watts, seconds=one.seconds) for one in clocks]
        for name, clocks in sweep.clocks_by_load.items()
    }
    measured = {"node": node, "device_name": sweep.device_name, "gpu": sweep.uuid, "at_seconds": round(time.time())}
    try:
        entry = fitting.type_entry(points, sweep.supported_clocks_mhz, sweep.power_limit_watts, measured)
    except ValueRangeError as error:
        say(f"{sweep.device_name}: {error}", "slurm-energy")
        return 0
    document["gpu_types"][sweep.gpu_type] = entry
    for name, curve in entry["curves"].items():
        low, high = curve["readings"][0], curve["readings"][-1]
        say(
            f"{sweep.device_name}, {name}: {high[1]:.0f} W at {high[0]} MHz; at {low[0]} MHz {low[1]:.0f} W and "
            f"{low[2] / high[2] - 1.0:.0%} longer",
            "slurm-energy",
        )
    return 1


def use_configured_curves() -> None:
    """Let what is printed rest on the site's own curves, where the configuration names a file that can be read."""
    from slurm_energy.config import load_config  # noqa: PLC0415  # only for people
    from slurm_energy.policy.site.settings import site_board_limits  # noqa: PLC0415  # likewise

    with suppress(ConfigError):
        site_board_limits(load_config())
