"""A host whose slurm-energy came as a distribution's package: what the package has, `install` does not write again."""

from dataclasses import replace
from pathlib import Path

from slurm_energy.cli.installing.files import PlannedFile
from slurm_energy.cli.installing.roles import JOB_SUBMIT_PLUGIN, SIGN_OF_ROLE, UNIT_DIRECTORY
from slurm_energy.cli.site import under
from slurm_energy.errors import SlurmError
from slurm_energy.resources import PACKAGE_FOLDER
from slurm_energy.slurm.plugin_file import Release, read_plugin_file

PACKAGE_UNITS = Path("/usr/lib/systemd/system")
"""Units as they are with the default settings; what `install` writes to /etc has precedence over them."""
PACKAGE_PLUGINS = PACKAGE_FOLDER / "plugins"
"""Slurm's plugins, compiled for the Slurm that the packages were built with."""


def is_packaged(python: Path) -> bool:
    """Return whether an interpreter belongs to a package."""
    return python.is_relative_to(PACKAGE_FOLDER)


def unit_of_package(path: Path, root: Path) -> Path:
    """Return where a package has the unit, or the drop-in, that `install` would write to `path`."""
    return under(root, PACKAGE_UNITS / path.relative_to(UNIT_DIRECTORY))


def has_role(role: str, root: Path) -> bool:
    """Return whether a host has a role, by the file that shows it."""
    sign = SIGN_OF_ROLE[role]
    places = [under(root, sign)]
    if sign.is_relative_to(UNIT_DIRECTORY):
        places.append(unit_of_package(sign, root))
    return any(place.exists() for place in places)


def without_packaged_unit(planned: PlannedFile, root: Path) -> PlannedFile:
    """Return a planned unit as one that should not be in /etc where the package has exactly the same."""
    if not planned.path.is_relative_to(UNIT_DIRECTORY):
        return planned
    try:
        same = unit_of_package(planned.path, root).read_bytes() == planned.content
    except OSError:
        return planned
    return replace(planned, absent=True, is_generated=True) if same else planned


def replaces_job_submit(built: Path, target: Path, slurmctld: Release | None) -> bool:
    """Return whether a package's job_submit plugin is better than the file that stands there.

    One that the site compiled for its own Slurm stays: with one for another release slurmctld leaves every job as it
    is.
    """
    try:
        ours, present = read_plugin_file(built / JOB_SUBMIT_PLUGIN), read_plugin_file(target)
    except SlurmError:
        return True
    if slurmctld is None or ours.release.series == present.release.series:
        return True
    return ours.release.series == slurmctld.series
