"""A batch script's syntax tree, and the programs that its commands start once launchers are taken off.

tree-sitter gives a tree for whatever text there is, broken scripts too. Variables are followed where the script itself
or its environment says what they hold; what only running it could tell stays unknown.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING

from slurm_energy.estimation.script.reading import SourceReader
from slurm_energy.estimation.script.words import (
    LAUNCHING,
    PYTHON_LAUNCHER_MODULES,
    PYTHON_LAUNCHERS,
    SHELLS,
    SILENT,
    SUBCOMMANDS,
    TRANSPARENT,
    behind_subcommand,
    given_inline,
    known_program,
    program_index,
)

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MAX_SCRIPT_BYTES = 65_536
"""Of one script: what comes behind is not looked at."""
MAX_COMMANDS = 400
MAX_PROGRAMS = 8
MAX_DEPTH = 3
"""Of scripts that call or source scripts."""
_MAX_TREE_DEPTH = 60
_MAX_NODES = 40_000
_MAX_WORD = 4_096
_MAX_WORDS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedProgram:
    """A program that the script starts, with its words as far as they are known."""

    name: str
    """As written, with its folders."""
    arguments: tuple[str, ...] = ()
    launchers: tuple[str, ...] = ()
    source: str = ""
    """Python given in the script itself, by -c or a here-document."""
    is_python: bool = False
    directory: str = ""
    """Into which the script changed before; empty for where the job begins."""


@dataclass(slots=True)
class _State:
    """What is known while a script is walked through."""

    variables: dict[str, str]
    reader: SourceReader
    programs: list[StartedProgram] = field(default_factory=list)
    commands: int = 0
    nodes: int = 0
    directory: str = ""


def started_programs(
    text: str, arguments: Sequence[str], environment: Mapping[str, str], reader: SourceReader
) -> tuple[StartedProgram, ...]:
    """Return the programs that a script starts, in its order.

    Args:
        text: The batch script.
        arguments: The script's own, `$1` and so on.
        environment: Variables that it will find.
        reader: For scripts that it calls or sources.

    Raises:
        ImportError: tree-sitter is not installed.
    """
    variables = {name: value[:_MAX_WORD] for name, value in environment.items()}
    directory = str(reader.directory)
    variables |= {"SLURM_SUBMIT_DIR": directory, "PWD": directory}
    variables |= {str(number): word for number, word in enumerate(arguments[:_MAX_WORDS], start=1)}
    variables |= {name: " ".join(arguments[:_MAX_WORDS])[:_MAX_WORD] for name in ("@", "*")}
    state = _State(variables=variables, reader=reader)
    _script(text, state, MAX_DEPTH)
    return tuple(state.programs)


def _script(text: str, state: _State, depth: int) -> None:
    raw = text.encode("utf-8", "replace")
    if len(raw) > MAX_SCRIPT_BYTES:
        raw = raw[: raw.rfind(b"\n", 0, MAX_SCRIPT_BYTES) + 1]
    tree = _parser().parse(raw.replace(b"\r\n", b"\n"))
    _walk(tree.root_node, state, depth)


def _parser() -> "Parser":
    from tree_sitter import Language, Parser  # noqa: PLC0415  # an extra, and it takes some milliseconds

    return Parser(Language(_bash_grammar()))


def _bash_grammar() -> object:
    """Return the grammar, past its package, which imports importlib.resources and takes twice as long."""
    package = PathFinder.find_spec("tree_sitter_bash")
    where = None if package is None else package.submodule_search_locations
    binding = None if where is None else PathFinder.find_spec("tree_sitter_bash._binding", where)
    if binding is None or binding.loader is None:
        from tree_sitter_bash import language  # noqa: PLC0415  # as above

        return language()
    module = module_from_spec(binding)
    binding.loader.exec_module(module)
    return module.language()


def _walk(root: "Node", state: _State, depth: int) -> None:
    """Visit commands and assignments in the script's order, without recursion: trees can be deep on purpose."""
    stack: list[tuple[Node, int, str]] = [(root, 0, "")]
    while stack and len(state.programs) < MAX_PROGRAMS and state.commands < MAX_COMMANDS:
        node, level, document = stack.pop()
        state.nodes += 1
        if state.nodes > _MAX_NODES:
            return
        if node.type == "command":
            state.commands += 1
            _command(node, document, state, depth)
            continue
        if node.type == "variable_assignment":
            _assign(node, state)
            continue
        if node.type == "for_statement":
            _first_turn(node, state)
        if node.type == "redirected_statement":
            document = _here_document(node) or document
        if level < _MAX_TREE_DEPTH:
            stack.extend((child, level + 1, document) for child in reversed(node.named_children))


def _here_document(node: "Node") -> str:
    for redirect in node.named_children:
        if redirect.type == "heredoc_redirect":
            for part in redirect.named_children:
                if part.type == "heredoc_body":
                    return _text(part, _MAX_BODY)
    return ""


_MAX_BODY = 32_768


def _first_turn(node: "Node", state: _State) -> None:
    """Let a loop's variable hold its first value: one turn stands for all."""
    variable, value = node.child_by_field_name("variable"), node.child_by_field_name("value")
    if variable is not None and value is not None:
        words = _expanded(value, state).split()
        if words:
            state.variables[_text(variable)] = words[0]


def _assign(node: "Node", state: _State) -> None:
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    if name is None or name.type != "variable_name":
        return
    held = "" if value is None else _expanded(value, state)
    if value is not None and value.type == "array":
        held = " ".join(_expanded(item, state) for item in value.named_children[:_MAX_WORDS])[:_MAX_WORD]
    key = _text(name)
    is_added = any(child.type == "+=" for child in node.children)
    if len(state.variables) < 2_000 or key in state.variables:
        state.variables[key] = ((state.variables.get(key, "") if is_added else "") + held)[:_MAX_WORD]


def _command(node: "Node", document: str, state: _State, depth: int) -> None:
    words: list[str] = []
    for child in node.named_children:
        if child.type in {"variable_assignment", "file_redirect", "herestring_redirect"}:
            continue
        if child.type == "heredoc_redirect":
            continue
        expanded = _expanded(child, state)
        is_list = child.type == "string" and any(mark in (child.text or b"")[:256] for mark in (b"[@]", b"$@"))
        is_quoted = child.type in {"string", "raw_string", "ansi_c_string"} and not is_list
        words += [expanded] if is_quoted else expanded.split()
        if len(words) > _MAX_WORDS:
            break
    _words(words, document, (), state, depth)


def _words(words: Sequence[str], document: str, launchers: tuple[str, ...], state: _State, depth: int) -> None:
    """Take what one command starts: launchers off, scripts followed, the rest a program."""
    while words:
        base = words[0].rpartition("/")[2]
        if base not in LAUNCHING:
            _start(words, document, launchers, state, depth)
            return
        launchers = launchers if base in TRANSPARENT else (*launchers, base)
        words = behind_subcommand(words, SUBCOMMANDS.get(base))
        begin = program_index(words)
        if begin is None:
            return
        words = words[begin:]
        if base in PYTHON_LAUNCHERS and words[0].endswith(".py"):
            _add(state, name=words[0], arguments=words[1:], launchers=launchers, is_python=True)
            return


def _start(words: Sequence[str], document: str, launchers: tuple[str, ...], state: _State, depth: int) -> None:
    name, base = words[0], words[0].rpartition("/")[2]
    if base in {"cd", "pushd"}:
        _change_directory(words[1:], state)
    elif base in SHELLS or base in {"source", ".", "eval"}:
        _shell(words, launchers, state, depth)
    elif base in SILENT:
        return
    elif known_program(base) == "python":
        _python(words, document, launchers, state)
    elif base.endswith(".py"):
        _add(state, name=name, arguments=words[1:], launchers=launchers, is_python=True)
    elif "/" in name and base.endswith((".sh", ".bash", ".slurm", ".sbatch")):
        if not _follow(words, state, depth, launchers):
            _add(state, name=name, arguments=words[1:], launchers=launchers)
    elif "/" in name or launchers or known_program(base):
        _add(state, name=name, arguments=words[1:], launchers=launchers)
    # Else a command of the system, or a function of the script, whose body is walked through by itself.


def _shell(words: Sequence[str], launchers: tuple[str, ...], state: _State, depth: int) -> None:
    """Walk through what a shell is given: a file, the text behind -c, the words of eval."""
    inline = " ".join(words[1:]) if words[0] == "eval" else given_inline(words)
    if not inline:
        _follow([word for word in words[1:] if not word.startswith("-")], state, depth, launchers)
    elif depth > 0:
        _script_with_launchers(inline[:_MAX_WORD], launchers, state, depth - 1)


def _python(words: Sequence[str], document: str, launchers: tuple[str, ...], state: _State) -> None:
    index = 1
    while index < len(words):
        word = words[index]
        rest = words[index + 1 :]
        if word == "-m":
            if rest and rest[0] in PYTHON_LAUNCHER_MODULES:
                begin = program_index(rest)
                launchers = (*launchers, "torchrun")
                if begin is not None:
                    _add(state, name=rest[begin], arguments=rest[begin + 1 :], launchers=launchers, is_python=True)
            elif rest:
                name = rest[0].replace(".", "/") + ".py"
                _add(state, name=name, arguments=rest[1:], launchers=launchers, is_python=True)
            return
        if word == "-c":
            _add(state, name="python", launchers=launchers, source=rest[0] if rest else "", is_python=True)
            return
        if word in {"-W", "-X"}:
            index += 2
            continue
        if word.startswith("-") and word != "-":
            index += 1
            continue
        if word != "-":
            _add(state, name=word, arguments=rest, launchers=launchers, is_python=True)
            return
        break
    if document:
        _add(state, name="python", launchers=launchers, source=document, is_python=True)


def _add(
    state: _State,
    *,
    name: str,
    arguments: Sequence[str] = (),
    launchers: tuple[str, ...] = (),
    source: str = "",
    is_python: bool = False,
) -> None:
    """Note a program, with these of its fields."""
    if len(state.programs) < MAX_PROGRAMS:
        program = StartedProgram(
            name=name[:_MAX_WORD],
            arguments=tuple(arguments[:_MAX_WORDS]),
            launchers=tuple(dict.fromkeys(launchers)),
            source=source,
            is_python=is_python,
            directory=state.directory,
        )
        state.programs.append(program)


def _change_directory(words: Sequence[str], state: _State) -> None:
    names = [word for word in words if not word.startswith("-")]
    if names:
        target = names[0]
        state.directory = target if target.startswith("/") else f"{state.directory}/{target}".lstrip("/")
        if len(state.directory) > 1024:
            state.directory = ""


def _follow(words: Sequence[str], state: _State, depth: int, launchers: tuple[str, ...] = ()) -> bool:
    """Walk through another script; return whether it could be read and is one."""
    if depth <= 0 or not words:
        return False
    text = state.reader.read(words[0], state.reader.directory / state.directory if state.directory else None)
    if text is None:
        return False
    first = text[:256].partition("\n")[0]
    if first.startswith("#!") and not any(shell in first for shell in SHELLS):
        if "python" not in first:
            return False
        _add(state, name=words[0], arguments=words[1:], launchers=launchers, source=text, is_python=True)
        return True
    outer = {name: state.variables.get(name) for name in map(str, range(1, 10))}
    state.variables |= {str(number): word for number, word in enumerate(words[1:10], start=1)}
    _script_with_launchers(text, launchers, state, depth - 1)
    for name, value in outer.items():
        if value is None:
            state.variables.pop(name, None)
        else:
            state.variables[name] = value
    return True


def _script_with_launchers(text: str, launchers: tuple[str, ...], state: _State, depth: int) -> None:
    begun = len(state.programs)
    _script(text, state, depth)
    for index in range(begun, len(state.programs)):
        program = state.programs[index]
        state.programs[index] = replace(program, launchers=tuple(dict.fromkeys((*launchers, *program.launchers))))


def _text(node: "Node", limit: int = _MAX_WORD) -> str:
    raw = node.text or b""
    return raw[:limit].decode("utf-8", "replace")


def _expanded(node: "Node", state: _State) -> str:
    """Return a word's text with the variables that are known; unknown ones are empty."""
    return "".join(_pieces(node, state, 0))[:_MAX_WORD]


def _pieces(node: "Node", state: _State, level: int) -> Iterator[str]:
    state.nodes += 1
    if level > 8 or state.nodes > _MAX_NODES:
        return
    match node.type:
        case "raw_string":
            yield _text(node)[1:-1]
        case "word":
            yield _text(node).replace("\\\n", "").replace("\\", "")
        case "simple_expansion" | "expansion":
            yield _held(node, state)
        case "command_substitution" if (node.text or b"")[:16].strip(b"$()` ") == b"pwd":
            yield str(state.reader.directory / state.directory)
        case "command_substitution" | "process_substitution" | "arithmetic_expansion":
            return
        case "string":
            yield from _between(node, state, level, skipped=1)
        case "concatenation" | "command_name" | "array":
            yield from _between(node, state, level, skipped=0)
        case _:
            yield _text(node)


def _between(node: "Node", state: _State, level: int, skipped: int) -> Iterator[str]:
    """Yield a composite's parts with the text between them, such as blanks in a quoted string."""
    raw, begin = node.text or b"", node.start_byte
    at = skipped
    for child in node.named_children[:_MAX_WORDS]:
        if child.type == "string_content":
            continue
        yield _plain(raw[at : child.start_byte - begin])
        yield from _pieces(child, state, level + 1)
        at = child.end_byte - begin
    yield _plain(raw[at : len(raw) - skipped])


def _plain(raw: bytes) -> str:
    return raw[:_MAX_WORD].decode("utf-8", "replace").replace("\\\n", "")


def _held(node: "Node", state: _State) -> str:
    """Return what a variable holds; of `${NAME:-default}` the default where it holds nothing."""
    names = [child for child in node.named_children if child.type in {"variable_name", "special_variable_name"}]
    if not names and node.named_children and node.named_children[0].type == "subscript":
        names = [child for child in node.named_children[0].named_children if child.type == "variable_name"]
    if not names:
        return ""
    value = state.variables.get(_text(names[0]), "")
    marks = {child.type for child in node.children}
    if not value and marks & {":-", "-", ":=", "="}:
        return "".join(_expanded(child, state) for child in node.named_children[1:2])
    return value
