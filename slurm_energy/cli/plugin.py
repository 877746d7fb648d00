"""`slurm-energy plugin`: the plugin in slurmctld, checked, and repaired before slurmctld starts."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click

from slurm_energy.cli.context import JSON_OPTION, print_json, settings
from slurm_energy.cli.installing.plugin_check import (
    PluginCheck,
    Standing,
    built_plugins,
    check_plugin,
    headers_of,
    slurmctld_program,
)
from slurm_energy.cli.installing.roles import JOB_SUBMIT_PLUGIN, KEPT_PLUGIN
from slurm_energy.cli.installing.slurm_conf import put_back, take_out
from slurm_energy.cli.site import slurm_conf_path
from slurm_energy.config import Config
from slurm_energy.errors import ConfigError, SlurmEnergyError, SlurmError, SpoolError
from slurm_energy.files import write_atomically
from slurm_energy.slurm.plugin_file import machine_of, read_plugin_file

BEFORE_START_SECONDS = 45.0
"""The unit's own limit is 60 s, and systemd's for the whole start 90 s."""
_NO_CONTROLLER = "there is no slurmctld on this host, or no slurm.conf that can be read: nothing to check"


@click.group(epilog="Example: slurm-energy plugin check")
def plugin() -> None:
    """Check the plugin in slurmctld, and repair it before slurmctld starts."""


@plugin.command(epilog="Example: slurm-energy plugin check --before-start")
@click.option(
    "--before-start",
    is_flag=True,
    help="Repair it: restore the plugin's file or compile it, else remove energy from JobSubmitPlugins. "
    "Exit code 0 always.",
)
@click.option("--keep-slurm-conf", is_flag=True, help="With --before-start: never edit slurm.conf.")
@click.option(
    "--slurmctld",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The program that will be started; the unit's or the usual one when not given.",
)
@JSON_OPTION
def check(*, before_start: bool, keep_slurm_conf: bool, slurmctld: Path | None, as_json: bool) -> int:
    """Show whether slurmctld will start with the plugin, and whether the plugin will work.

    Exit code 1 when it will not.
    """
    if before_start:
        for line in _before_start(slurmctld, keep_slurm_conf):
            click.echo(f"slurm-energy: {line}", err=True)
        return 0
    found = check_plugin(settings(), os.environ, slurmctld=slurmctld)
    if as_json:
        print_json({"standing": None} if found is None else plugin_document(found))
    elif found is None:
        click.echo(_NO_CONTROLLER)
    else:
        click.echo(found.says)
        if found.fix:
            click.echo(f"fix: {found.fix}")
    return int(found is not None and (not found.works or found.taken_out))


def plugin_document(found: PluginCheck) -> dict[str, object]:
    """Return how the plugin stands, for scripts."""
    return {
        "standing": found.standing.value,
        "says": found.says,
        "fix": found.fix,
        "slurmctld_release": None if found.release is None else str(found.release),
        "compiled_for": None if found.file is None else str(found.file.release),
        "path": None if found.file is None else str(found.file.path),
        "taken_out": found.taken_out,
    }


def _before_start(slurmctld: Path | None, keep_slurm_conf: bool) -> Iterator[str]:
    """Yield what was done; nothing that fails here may keep slurmctld from starting."""
    try:
        config = settings()
    except SlurmEnergyError as error:
        yield f"{error}; the plugin is checked with the defaults"
        config = Config()
    try:
        program = slurmctld or slurmctld_program(config, os.environ)
        if program is None:
            yield _NO_CONTROLLER
            return
        yield from BeforeStart(config=config, program=program, keep_slurm_conf=keep_slurm_conf).run()
    except (SlurmEnergyError, OSError) as error:
        yield f"the plugin could not be checked: {error}"


@dataclass(slots=True, kw_only=True)
class BeforeStart:
    """One look before slurmctld starts.

    Attributes:
        config: The settings.
        program: The slurmctld that will be started.
        kept: The copy that no update of Slurm touches.
        keep_slurm_conf: Whether slurm.conf must stay as it is.
        clock: Seconds that only grow.
    """

    config: Config
    program: Path
    kept: Path = KEPT_PLUGIN
    keep_slurm_conf: bool = False
    clock: Callable[[], float] = time.monotonic
    _end: float = field(default=0.0, init=False)

    def run(self) -> Iterator[str]:
        """Repair the plugin, and yield what was done."""
        self._end = self.clock() + BEFORE_START_SECONDS
        found = self._look()
        if found.standing in {Standing.NOT_LISTED, Standing.LUA} and not found.taken_out:
            return
        if not found.loads:
            yield from self._restore(found)
            found = self._look()
        if found.problem:
            yield from self._compile(found)
            found = self._look()
        yield from self._settle(found)

    def _look(self) -> PluginCheck:
        found = check_plugin(self.config, os.environ, slurmctld=self.program)
        if found is None:
            raise SlurmError(_NO_CONTROLLER)
        return found

    def _settle(self, found: PluginCheck) -> Iterator[str]:
        """Have slurm.conf name the plugin if, and only if, slurmctld starts with it."""
        conf = slurm_conf_path(self.config, os.environ)
        if found.loads and found.taken_out:
            if self.keep_slurm_conf:
                yield f"the plugin can be loaded again: put energy back into JobSubmitPlugins in {conf}"
                return
            for path in put_back(conf):
                yield f"the plugin can be loaded again: energy is back in JobSubmitPlugins in {path}"
            found = self._look()
        if found.standing is Standing.FATAL:
            if self.keep_slurm_conf:
                yield f"{found.says}; remove energy from JobSubmitPlugins in {conf}"
                return
            for path in take_out(conf):
                yield (
                    f"{found.problem}: energy is removed from JobSubmitPlugins in {path}, so that slurmctld starts; "
                    f"jobs go through unchanged. Fix: {found.fix}"
                )
            if self._look().standing is Standing.FATAL:
                yield f"{found.says}, and energy could not be removed from JobSubmitPlugins in {conf}: edit it"
            return
        yield found.says
        if found.standing is Standing.RIGHT and found.file is not None and found.file.follows:
            yield from self._keep(found.file.path)

    def _keep(self, path: Path) -> Iterator[str]:
        """Keep a copy of a plugin that works, for an update that leaves none."""
        copy = self.kept
        try:
            if not copy.is_file() or copy.read_bytes() != path.read_bytes():
                copy.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                _place(path, copy)
        except OSError as error:
            yield f"no copy of the plugin could be kept at {copy}: {error.strerror}"

    def _restore(self, found: PluginCheck) -> Iterator[str]:
        """Put the kept copy where slurmctld looks for the plugin."""
        copy = self.kept
        try:
            usable = read_plugin_file(copy)
        except SlurmError:
            return
        if usable.follows and usable.machine == (machine_of(self.program.resolve()) or usable.machine):
            yield from self._put(copy, found, "restored from its copy")

    def _compile(self, found: PluginCheck) -> Iterator[str]:
        """Compile the plugin for this slurmctld, if the headers of its release are here."""
        if found.release is None:
            return
        include = headers_of(found.release, self.program)
        if include is None or shutil.which("make") is None:
            yield f"Slurm {found.release} has no headers or no make here: the plugin is not recompiled"
            return
        try:
            with built_plugins(include, max(1.0, self._end - self.clock())) as folder:
                yield from self._put(folder / JOB_SUBMIT_PLUGIN, found, f"recompiled for Slurm {found.release}")
        except ConfigError as error:
            yield str(error)

    def _put(self, source: Path, found: PluginCheck, how: str) -> Iterator[str]:
        """Write the file where slurmctld finds it first, else where it can be written."""
        present = [found.file.path] if found.file is not None else []
        targets = [*present, *(place / JOB_SUBMIT_PLUGIN for place in reversed(found.places))]
        problem = "no plugin folder of Slurm is known"
        for target in dict.fromkeys(targets):
            try:
                _place(source, target)
            except (OSError, SpoolError) as error:
                problem = str(error) if isinstance(error, SpoolError) else f"{target}: {error.strerror}"
                continue
            yield f"{target} is {how}"
            return
        yield f"the plugin could not be {how}: {problem}"


def _place(source: Path, target: Path) -> None:
    """Copy a file whole or not at all: slurmctld may have the old one loaded."""
    write_atomically(target, source.read_bytes(), mode=0o644)
