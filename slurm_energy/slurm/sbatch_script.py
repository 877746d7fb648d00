"""The #SBATCH lines of a batch script, read as sbatch reads them (compared with sbatch 22.05's own debug output)."""

from dataclasses import dataclass

from slurm_energy.errors import ValueRangeError

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
