"""From a batch script and what it names to the features of its work."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from slurm_energy.domain.script import MAX_NUMBER, MAX_WORDS, ScriptFeatures
from slurm_energy.estimation.job_groups import name_stem
from slurm_energy.estimation.script.python_source import (
    Literal,
    PythonFacts,
    command_line_values,
    python_facts,
)
from slurm_energy.estimation.script.reading import SourceReader
from slurm_energy.estimation.script.shell import StartedProgram, started_programs
from slurm_energy.estimation.script.words import (
    BATCH_KEYS,
    CONFIG_KEYS,
    DATASET_KEYS,
    EPOCH_KEYS,
    MODEL_KEYS,
    PRECISION_KEYS,
    STEP_KEYS,
    dataset_word,
    known_program,
    model_word,
    option_key,
    precision_word,
)

MAX_BESIDE = 4
"""Modules beside a program that are looked at with it."""
_CONFIG_LINE = re.compile(
    r"""^[\s,{]*["']?([A-Za-z_][\w-]{0,63})["']?\s*[:=]\s*["']?([\w.+/-]{1,128})["']?\s*[,}]?\s*(?:#.*)?$"""
)
_Values = Mapping[str, Literal]


def script_features(
    text: str, arguments: Sequence[str], environment: Mapping[str, str], reader: SourceReader
) -> Iterator[ScriptFeatures]:
    """Yield what is known of a script's work, better each time: from the script alone, then from each program's source.

    Args:
        text: The batch script.
        arguments: The script's own.
        environment: Variables that it will find.
        reader: For the files that it names.

    Raises:
        ImportError: tree-sitter is not installed.
    """
    if not reader.spend(len(text)):
        return
    programs = started_programs(text, arguments, environment, reader)
    settings = [list(_configurations(program, reader)) for program in programs]
    yield _put_together(programs, [None] * len(programs), settings)
    facts: list[PythonFacts | None] = [None] * len(programs)
    for number, program in enumerate(programs):
        if program.is_python:
            facts[number] = _facts(program, reader)
            yield _put_together(programs, facts, settings)


def _facts(program: StartedProgram, reader: SourceReader) -> PythonFacts | None:
    folder = reader.directory / program.directory if program.directory else reader.directory
    source: str | bytes | None = program.source or reader.read_bytes(program.name, folder)
    if source is None and program.name.endswith(".py"):
        source = reader.read_bytes(f"{program.name[:-3]}/__main__.py", folder)
    found = None if source is None else python_facts(source)
    if found is None:
        return None
    beside = (folder / program.name).parent
    for module in list(found.modules)[: 4 * MAX_BESIDE]:
        more = _module_facts(module, beside, reader)
        if more is not None:
            _add_facts(found, more)
    return found


def _module_facts(module: str, folder: Path, reader: SourceReader) -> PythonFacts | None:
    """Return the facts of a module that lies beside the program; those of the site's libraries are not looked for."""
    name = module.replace(".", "/")
    source = reader.read_bytes(f"{name}.py", folder) or reader.read_bytes(f"{name}/__init__.py", folder)
    return None if source is None else python_facts(source)


def _add_facts(found: PythonFacts, more: PythonFacts) -> None:
    found.frameworks.update(more.frameworks)
    found.model = found.model or more.model
    found.dataset = found.dataset or more.dataset
    found.is_mixed = found.is_mixed or more.is_mixed
    for name, value in more.defaults.items():
        found.defaults.setdefault(name, value)
    for name in more.positions:
        found.positions.append(name)
    found.short = {**more.short, **found.short}
    found.flags |= more.flags
    for name, value in more.values.items():
        found.values.setdefault(name, value)


def _put_together(
    programs: Sequence[StartedProgram], facts: Sequence[PythonFacts | None], settings: Sequence[Sequence[_Values]]
) -> ScriptFeatures:
    """Return the features of all programs; of each feature the first program that says it counts."""
    sources = [list(_sources(*known)) for known in zip(programs, facts, settings, strict=True)]
    frameworks = dict.fromkeys(name for fact in facts if fact is not None for name in fact.frameworks)
    frameworks |= dict.fromkeys(known for program in programs for known in _launched_frameworks(program))
    model = next(filter(None, (_model(*found) for found in zip(programs, facts, sources, strict=True))), "")
    dataset = next(filter(None, (_dataset(*found) for found in zip(facts, sources, strict=True))), "")
    precision = next(filter(None, (_precision(*found) for found in zip(facts, sources, strict=True))), "")
    return ScriptFeatures(
        programs=_first_words(_program_word(program) for program in programs),
        launchers=_first_words(
            launcher for program in programs for launcher in program.launchers if re.fullmatch(r"[a-z.]+", launcher)
        ),
        frameworks=_first_words(frameworks),
        model=model,
        dataset=dataset,
        precision=precision,
        batch_size=_number(sources, BATCH_KEYS),
        epochs=_number(sources, EPOCH_KEYS),
        steps=_number(sources, STEP_KEYS),
        code=_code(programs, facts),
    )


def _first_words(words: Iterator[str] | Mapping[str, None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, words)))[:MAX_WORDS]


def _program_word(program: StartedProgram) -> str:
    return "python" if program.is_python else known_program(PurePath(program.name).name)


def _launched_frameworks(program: StartedProgram) -> Iterator[str]:
    by_launcher = {"torchrun": "pytorch", "accelerate": "accelerate", "deepspeed": "deepspeed", "horovodrun": "horovod"}
    for launcher in program.launchers:
        if launcher in by_launcher:
            yield by_launcher[launcher]


def _sources(program: StartedProgram, facts: PythonFacts | None, settings: Sequence[_Values]) -> Iterator[_Values]:
    """Yield known values of a program, the strongest source first: command line, configuration file, the program."""
    yield command_line_values(facts, program.arguments)
    yield from settings
    if facts is not None:
        yield facts.defaults
        yield facts.values


def _configurations(program: StartedProgram, reader: SourceReader) -> Iterator[_Values]:
    """Yield what files say that the command line names as configuration: flat lines `key: value` of known keys."""
    for index, word in enumerate(program.arguments if reader.reads_configurations else ()):
        name, equals, value = word.partition("=")
        if not name.startswith("-") or option_key(name) not in CONFIG_KEYS:
            continue
        file = value if equals else (program.arguments[index + 1] if index + 1 < len(program.arguments) else "")
        if file.endswith((".yaml", ".yml", ".json", ".toml")):
            folder = reader.directory / program.directory if program.directory else None
            text = reader.read(file, folder)
            lines = (_CONFIG_LINE.match(line[:256]) for line in (text or "").splitlines()[:2_000])
            yield {option_key(line[1]): line[2] for line in lines if line is not None}


def _lookup(sources: Sequence[_Values], keys: frozenset[str]) -> Iterator[tuple[str, Literal]]:
    for source in sources:
        for key, value in source.items():
            if key in keys:
                yield key, value


def _model(program: StartedProgram, facts: PythonFacts | None, sources: Sequence[_Values]) -> str:
    for _, value in _lookup(sources, MODEL_KEYS):
        found = model_word(str(value))
        if found:
            return found
    own = "" if facts is None else facts.model
    return own or model_word(PurePath(program.name).name)


def _dataset(facts: PythonFacts | None, sources: Sequence[_Values]) -> str:
    for _, value in _lookup(sources, DATASET_KEYS):
        found = dataset_word(str(value))
        if found:
            return found
    return "" if facts is None else facts.dataset


def _precision(facts: PythonFacts | None, sources: Sequence[_Values]) -> str:
    for key, value in _lookup(sources, PRECISION_KEYS):
        if str(value).lower() in {"false", "none", "0"}:
            continue
        found = precision_word(key if str(value).lower() in {"true", "1"} else str(value))
        if found:
            return found
    return "mixed" if facts is not None and facts.is_mixed else ""


def _number(all_sources: Sequence[Sequence[_Values]], keys: frozenset[str]) -> int | None:
    for sources in all_sources:
        for _, value in _lookup(sources, keys):
            text = str(value).replace("_", "")
            if not isinstance(value, bool) and re.fullmatch(r"\d{1,9}", text) and 1 <= int(text) <= MAX_NUMBER:
                return int(text)
    return None


def _code(programs: Sequence[StartedProgram], facts: Sequence[PythonFacts | None]) -> str:
    """Return a digest of the first program whose calls are known, else of the first name that says something."""
    known = next((fact.digest for fact in facts if fact is not None and fact.digest), "")
    if known:
        return known
    for program in programs:
        name = re.sub(r"\d+", "", PurePath(program.name).name)
        if name_stem(name) and not known_program(name):
            return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
    return ""
