"""Every file of fitted coefficients: what makes it, where it lies in the package, and what is out of date in it."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_energy.energy_model.calibration.clocks import fit_clocks
from slurm_energy.energy_model.calibration.files import Document, Tell, differences, text_of
from slurm_energy.energy_model.calibration.mig_fit import fit_mig
from slurm_energy.energy_model.calibration.saturation_fit import fit_saturation
from slurm_energy.energy_model.coefficients import FOLDER, FitError, errors_of
from slurm_energy.errors import ConfigError, DataFileError

TOLERANCE = 1e-6
"""Relative difference up to which packaged and fresh coefficients count as equal."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file of coefficients."""

    name: str
    """Without `.json`."""
    fit: Callable[[Path, Tell], Document]
    """Makes the document from the folder of data sets."""
    folder: Path
    """Where it is kept."""

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / f"{self.name}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshFit:
    """One part as it was fitted now."""

    name: str
    document: Document
    differences: tuple[tuple[str, Any, Any], ...]
    """Place, packaged value and fresh value of each coefficient that the package has otherwise."""

    @property
    def errors(self) -> tuple[FitError, ...]:
        """The fit errors that the document states."""
        return errors_of(self.document)

    @property
    def source(self) -> str:
        """Where its measurements come from."""
        return str(self.document["source"])


PACKAGED_PARTS = (
    Part("curves", fit_clocks, FOLDER),
    Part("saturation", fit_saturation, FOLDER),
    Part("mig", fit_mig, FOLDER),
)


def fit_parts(parts: Sequence[Part], data: Path, names: Iterable[str], tell: Tell) -> list[FreshFit]:
    """Fit the named parts, all when none is named, and compare each with what is kept.

    Raises:
        DataFileError: the folder or a file in it cannot be used.
        ConfigError: a part has no such name.
    """
    wanted = set(names)
    unknown = sorted(wanted - {part.name for part in parts})
    if unknown:
        raise ConfigError(f"part {unknown[0][:40]!r} does not exist; parts: {', '.join(part.name for part in parts)}")
    if not data.is_dir():
        raise DataFileError(f"{data} is no folder: the data sets are needed, each in a folder of its own")
    fresh = []
    for part in parts:
        if not wanted or part.name in wanted:
            found = part.fit(data, tell)
            changed = tuple(differences(packaged(part), json.loads(text_of(found)), TOLERANCE))
            fresh.append(FreshFit(name=part.name, document=found, differences=changed))
    return fresh


def packaged(part: Part) -> Mapping[str, Any]:
    """Return the document in the package, empty when there is none that can be read."""
    try:
        document: Mapping[str, Any] = json.loads(part.path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document


def write_fits(fits: Iterable[FreshFit], output: Path) -> list[Path]:
    """Write the documents and return the files: one for all if `output` ends in .json, else one each into a folder.

    Raises:
        ConfigError: it cannot be written.
    """
    found = list(fits)
    if output.suffix == ".json":
        texts = {output: text_of({fit.name: fit.document for fit in found})}
    else:
        texts = {output / f"{fit.name}.json": text_of(fit.document) for fit in found}
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"coefficients cannot be written to {output}: {error}") from error
    return list(texts)
