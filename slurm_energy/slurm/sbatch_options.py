"""sbatch's options as a table, and an argument vector split by it the way getopt_long does.

The table is what sbatch 22.05 answers when asked option by option, with the additions of releases up to 26.05.
Options of other SPANK plugins are learned from `sbatch --help`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from slurm_energy.errors import ValueRangeError


class Takes(StrEnum):
    """Whether an option takes an argument, in getopt's sense."""

    NOTHING = "nothing"
    REQUIRED = "required"
    OPTIONAL = "optional"
    """Only in the same word: `--nice=5`, `-k5`."""


ENERGY_OPTIONS: Final[Mapping[str, Takes]] = {
    "energy": Takes.REQUIRED,
    "energy-max-slowdown": Takes.REQUIRED,
    "energy-deadline": Takes.REQUIRED,
    "energy-start-before": Takes.REQUIRED,
    "energy-quiet": Takes.NOTHING,
    "energy-trials": Takes.REQUIRED,
    "energy-gpus": Takes.REQUIRED,
    "energy-redecide": Takes.REQUIRED,
    "energy-open": Takes.OPTIONAL,
    "energy-clusters": Takes.REQUIRED,
    "energy-data": Takes.REQUIRED,
}
"""Options that the SPANK plugin adds to sbatch."""
CLUSTER_OPTIONS: Final = ("energy-clusters", "energy-data")
"""Those that energy-sbatch carries out before sbatch runs: the plugin only knows that they exist."""
DRY_RUN: Final = "energy-dry-run"
"""The one option that only the wrapper knows."""


def _options(takes: Takes, names: str) -> dict[str, Takes]:
    return dict.fromkeys(names.split(), takes)


LONG_OPTIONS: Final[Mapping[str, Takes]] = {
    **_options(
        Takes.REQUIRED,
        """
        account acctg-freq array batch bb bbf begin chdir cluster cluster-constraint clusters comment constraint
        container container-id context core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline
        delay-boot dependency distribution error exclude export export-file extra extra-node-info gid gpu-bind
        gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint input job-name
        kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus
        network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket
        ntasks-per-tres open-mode output partition power prefer priority profile qos reservation segment signal
        sockets-per-node switches tasks-per-node thread-spec threads-per-core time time-min tmp tres-bind
        tres-per-task uid wait-all-nodes wckey wrap
        """,
    ),
    **_options(
        Takes.NOTHING,
        """
        consolidate-segments contiguous help hold ignore-pbs no-requeue overcommit oversubscribe parsable quiet
        reboot requeue spread-job spread-segments stepmgr test-only usage use-min-nodes verbose version wait
        """,
    ),
    **_options(Takes.OPTIONAL, "exclusive get-user-env nice no-kill oom-kill-step propagate resv-ports"),
}
SHORT_OPTIONS: Final[Mapping[str, str]] = {
    "a": "array", "A": "account", "b": "begin", "B": "extra-node-info", "c": "cpus-per-task", "C": "constraint",
    "d": "dependency", "D": "chdir", "e": "error", "F": "nodefile", "G": "gpus", "h": "help", "H": "hold",
    "i": "input", "J": "job-name", "k": "no-kill", "L": "licenses", "m": "distribution", "M": "clusters",
    "n": "ntasks", "N": "nodes", "o": "output", "O": "overcommit", "p": "partition", "q": "qos", "Q": "quiet",
    "s": "oversubscribe", "S": "core-spec", "t": "time", "v": "verbose", "V": "version", "w": "nodelist",
    "W": "wait", "x": "exclude",
}  # fmt: skip
_SAME_OPTION: Final[Mapping[str, str]] = {
    "cluster": "clusters",
    "tasks-per-node": "ntasks-per-node",
    "usage": "help",
}

_HELP_OPTION = re.compile(r"^ {1,6}(?:-\w, )?--([a-zA-Z0-9][\w-]*)(\[=|=|\[)?", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOption:
    """One option as it was given: its full name, its argument, and the words it fills."""

    name: str
    value: str | None
    first: int
    """Index of its first word."""
    end: int
    """Index after its last word; a short option may share its word with others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitArguments:
    """sbatch's arguments: options of each component of a heterogeneous job, then script and script arguments."""

    components: tuple[tuple[GivenOption, ...], ...]
    rest_index: int
    """Index of the script's name; the number of arguments when there is none."""
    rest: tuple[str, ...]

    @property
    def options(self) -> tuple[GivenOption, ...]:
        """Options of the first component."""
        return self.components[0]


def learned_options(help_text: str) -> dict[str, Takes]:
    """Return the long options that the text of `sbatch --help` shows and the table lacks."""
    found: dict[str, Takes] = {}
    for name, mark in _HELP_OPTION.findall(help_text):
        if name not in LONG_OPTIONS:
            found[name] = {"=": Takes.REQUIRED, "": Takes.NOTHING}.get(mark, Takes.OPTIONAL)
    return found


def split_arguments(words: Sequence[str], extra: Mapping[str, Takes]) -> SplitArguments:
    """Return what sbatch makes of its arguments (without the command's own name).

    Args:
        words: Arguments, with undecodable bytes as surrogates.
        extra: Long options beyond the table.

    Raises:
        ValueRangeError: unknown or ambiguous option, argument missing or not allowed.
    """
    table = {**LONG_OPTIONS, **extra}
    components: list[tuple[GivenOption, ...]] = []
    index = 0
    while True:
        options, index = _leading_options(words, index, table)
        components.append(options)
        if index < len(words) and words[index] == ":":
            index += 1
            continue
        return SplitArguments(components=tuple(components), rest_index=index, rest=tuple(words[index:]))


def keeps_others_out(exclusive: str | None) -> bool:
    """Return whether the argument of --exclusive keeps all other jobs from the nodes: `user` and `mcs` admit some."""
    return (exclusive or "").lower() not in {"user", "mcs"}


def _leading_options(
    words: Sequence[str], index: int, table: Mapping[str, Takes]
) -> tuple[tuple[GivenOption, ...], int]:
    options: list[GivenOption] = []
    while index < len(words):
        word = words[index]
        if word == "--":
            return tuple(options), index + 1
        if word.startswith("--"):
            given = _long_option(words, index, table)
            options.append(given)
            index = given.end
        elif word.startswith("-") and word != "-":
            cluster = _short_options(words, index)
            options.extend(cluster)
            index = cluster[-1].end
        else:
            break
    return tuple(options), index


def _long_option(words: Sequence[str], index: int, table: Mapping[str, Takes]) -> GivenOption:
    typed, equals, value = words[index][2:].partition("=")
    name = full_name(typed, table)
    takes = table[name]
    if equals:
        if takes is Takes.NOTHING:
            raise ValueRangeError(f"option --{name} does not allow an argument: {words[index][:80]!r}")
        return GivenOption(name=canonical_name(name), value=value, first=index, end=index + 1)
    if takes is not Takes.REQUIRED:
        return GivenOption(name=canonical_name(name), value=None, first=index, end=index + 1)
    if index + 1 >= len(words):
        raise ValueRangeError(f"option --{name} requires an argument")
    return GivenOption(name=canonical_name(name), value=words[index + 1], first=index, end=index + 2)


def full_name(typed: str, table: Mapping[str, Takes]) -> str:
    """Return the option that a full or abbreviated name means; an exact name wins over longer ones.

    Raises:
        ValueRangeError: no option or several begin so.
    """
    if typed in table:
        return typed
    matches = sorted({name for name in table if name.startswith(typed)}) if typed else []
    if len({canonical_name(name) for name in matches}) == 1:
        return matches[0]
    if not matches:
        raise ValueRangeError(f"unrecognized option --{typed[:80]}")
    raise ValueRangeError(f"option --{typed[:80]} is ambiguous: --{', --'.join(matches)}")


def canonical_name(name: str) -> str:
    """Return the one name of options that have two."""
    return _SAME_OPTION.get(name, name)


def _short_options(words: Sequence[str], index: int) -> list[GivenOption]:
    word = words[index]
    cluster: list[GivenOption] = []
    for position, letter in enumerate(word[1:], start=1):
        name = SHORT_OPTIONS.get(letter)
        if name is None:
            raise ValueRangeError(f"invalid option -{letter} in {word[:80]!r}")
        takes = LONG_OPTIONS[name]
        attached = word[position + 1 :]
        if takes is Takes.NOTHING:
            cluster.append(GivenOption(name=name, value=None, first=index, end=index + 1))
            continue
        if attached or takes is Takes.OPTIONAL:
            cluster.append(GivenOption(name=name, value=attached or None, first=index, end=index + 1))
        elif index + 1 < len(words):
            cluster.append(GivenOption(name=name, value=words[index + 1], first=index, end=index + 2))
        else:
            raise ValueRangeError(f"option -{letter} (--{name}) requires an argument")
        break
    return cluster


_MAGIC = "#SBATCH"
_SEPARATORS = frozenset({"hetjob", "packjob"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptDirectives:
    """Words of the #SBATCH lines, one list for each component of a heterogeneous job."""

    components: tuple[tuple[str, ...], ...]
    dos_line_breaks: bool
    """sbatch refuses such a script."""
    is_script: bool
    """Whether the first line is `#!`, as sbatch demands."""


def script_directives(text: str) -> ScriptDirectives:
    """Return the option words in the script's head: up to the first line that is neither empty nor a comment.

    Raises:
        ValueRangeError: a quote is not closed, or a word begins with ':'; sbatch refuses both.
    """
    components: list[list[str]] = [[]]
    for number, line in enumerate(text.split("\n"), start=1):
        plain = line.removesuffix("\r")
        if plain.startswith(_MAGIC):
            words = directive_words(plain[len(_MAGIC) :], number)
            if words and words[0] in _SEPARATORS:
                components.append([])
            else:
                components[-1].extend(words)
        elif plain.strip() and not plain.lstrip().startswith("#"):
            break
    return ScriptDirectives(
        components=tuple(tuple(words) for words in components),
        dos_line_breaks="\r\n" in text,
        is_script=text.startswith("#!"),
    )


def directive_words(text: str, line_number: int) -> tuple[str, ...]:
    """Return the words behind #SBATCH: quotes group, a backslash takes the next character as it is, # ends the line.

    Raises:
        ValueRangeError: a quote is not closed, or a word begins with ':'.
    """
    words: list[str] = []
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        if text[position] == ":":
            raise ValueRangeError(f"line {line_number} of the script: unexpected ':' in {text[:80]!r}")
        word, position, ended = _word(text, position, line_number)
        if not word:  # sbatch stops at an empty word, `""` or a comment
            break
        words.append(word)
        if ended:
            break
    return tuple(words)


def _word(text: str, position: int, line_number: int) -> tuple[str, int, bool]:
    """Return the word that begins here, the position after it, and whether a comment ends the line there."""
    letters: list[str] = []
    quote = ""
    while position < len(text):
        letter = text[position]
        if letter == "\\" and position + 1 < len(text):
            position += 1
            letter = text[position]
            if letter.isspace() and not quote:  # sbatch lets a space separate even behind a backslash
                break
            letters.append(letter)
        elif quote:
            if letter == quote:
                quote = ""
            else:
                letters.append(letter)
        elif letter in "'\"":
            quote = letter
        elif letter.isspace():
            break
        elif letter == "#":
            return "".join(letters), position, True
        else:
            letters.append(letter)
        position += 1
    if quote:
        raise ValueRangeError(f"line {line_number} of the script: quote {quote} is not closed in {text[:80]!r}")
    return "".join(letters), position, False
