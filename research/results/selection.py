"""Sections and cases by their keys."""

from collections.abc import Sequence
from dataclasses import replace

from research.results.cases import Section
from slurm_energy.errors import EvaluationError


def selected_sections(sections: Sequence[Section], keys: Sequence[str]) -> tuple[Section, ...]:
    """Return the sections, or the parts of them, that keys of sections and cases name; all without a key.

    Raises:
        EvaluationError: a key is unknown.
    """
    if not keys:
        return tuple(sections)
    known = {section.key for section in sections} | {case.key for section in sections for case in section.cases}
    unknown = [key for key in keys if key not in known]
    if unknown:
        raise EvaluationError(f"{unknown[0][:64]!r} is no section or case; there are {', '.join(sorted(known))}")
    found = []
    for section in sections:
        cases = section.cases if section.key in keys else tuple(case for case in section.cases if case.key in keys)
        if cases:
            found.append(replace(section, cases=cases))
    return tuple(found)
