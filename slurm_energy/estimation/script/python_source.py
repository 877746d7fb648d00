"""What a Python program says of its work: imports, calls and literal values of its syntax tree. Nothing is run."""

import ast
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from slurm_energy.estimation.script.words import (
    BATCH_KEYS,
    DATASET_KEYS,
    EPOCH_KEYS,
    FRAMEWORK_OF_MODULE,
    MODEL_KEYS,
    PRECISION_KEYS,
    STEP_KEYS,
    dataset_word,
    model_word,
    option_key,
)

MAX_NODES = 60_000
MAX_TEXT = 256
_MAX_DEPTH = 200
"""Of brackets in the text; Python's own parser has a bound too, but spends much memory on the way to it."""
_KNOWN_KEYS = BATCH_KEYS | EPOCH_KEYS | STEP_KEYS | MODEL_KEYS | DATASET_KEYS | PRECISION_KEYS
_OPTION_CALLS = frozenset({"add_argument", "option", "Option"})
_FLAG_CALLS = frozenset(
    ["DEFINE_string", "DEFINE_integer", "DEFINE_float", "DEFINE_boolean", "DEFINE_bool", "DEFINE_enum"]
)
_MIXED_CALLS = frozenset({"autocast", "GradScaler"})
Literal = str | int | float | bool


@dataclass(slots=True)
class PythonFacts:
    """What was found in one program; the first of each counts."""

    frameworks: dict[str, None] = field(default_factory=dict)
    modules: dict[str, None] = field(default_factory=dict)
    """Imported modules that are on no list: some lie beside the program."""
    calls: set[str] = field(default_factory=set)
    """Last parts of the names of what is called."""
    defaults: dict[str, Literal] = field(default_factory=dict)
    """By option: what the program's own command line takes where nothing is given."""
    positions: list[str] = field(default_factory=list)
    """Names of arguments without dashes, in order."""
    short: dict[str, str] = field(default_factory=dict)
    """Option by its one-letter form."""
    flags: set[str] = field(default_factory=set)
    """Options that take no value."""
    values: dict[str, Literal] = field(default_factory=dict)
    """By key: values given in calls, and assigned to names."""
    model: str = ""
    dataset: str = ""
    is_mixed: bool = False

    @property
    def digest(self) -> str:
        """8 hexadecimal digits of imports and calls: edits of values, comments and order leave it as it is.

        Of libraries on the list, only that they are used counts, and that is a feature of its own.
        """
        named = sorted({*self.modules, *self.calls})
        return hashlib.sha256("\n".join(named).encode("utf-8", "replace")).hexdigest()[:8] if named else ""


def python_facts(source: str | bytes) -> PythonFacts | None:
    """Return what a program says, None where it is no Python that can be read."""
    if _is_deep(source):
        return None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    facts = PythonFacts()
    for number, node in enumerate(_nodes(tree)):
        if number >= MAX_NODES:
            break
        _take(node, facts)
    return facts


def _is_deep(source: str | bytes) -> bool:
    text = source.decode("latin-1") if isinstance(source, bytes) else source
    depth = highest = 0
    for character in text:
        if character in "([{":
            depth += 1
            highest = max(highest, depth)
        elif character in ")]}":
            depth -= 1
    return highest > _MAX_DEPTH


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield nodes in the order of the text, without recursion."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(list(ast.iter_child_nodes(node))))


def _take(node: ast.AST, facts: PythonFacts) -> None:
    match node:
        case ast.Import():
            for alias in node.names:
                _take_module(alias.name, facts)
        case ast.ImportFrom():
            if node.module:
                _take_module(node.module, facts)
            for alias in node.names:
                facts.model = facts.model or (model_word(alias.name) if alias.name[:1].isupper() else "")
        case ast.Call():
            _take_call(node, facts)
        case ast.Assign():
            for target in node.targets:
                _take_assignment(target, node.value, facts)
        case ast.AnnAssign():
            if node.value is not None:
                _take_assignment(node.target, node.value, facts)
        case ast.ClassDef():
            facts.model = facts.model or model_word(node.name)


def _take_module(name: str, facts: PythonFacts) -> None:
    top = name.partition(".")[0]
    framework = FRAMEWORK_OF_MODULE.get(top)
    if framework is not None:
        facts.frameworks[framework] = None
    elif len(facts.modules) < 200:
        facts.modules[name[:MAX_TEXT]] = None


def _take_call(node: ast.Call, facts: PythonFacts) -> None:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if not name:
        return
    facts.calls.add(name[:64])
    if name in _OPTION_CALLS:
        _take_option(node, facts)
        return
    first = _literal(node.args[0]) if node.args else None
    if name in _FLAG_CALLS and isinstance(first, str) and len(node.args) > 1:
        default = _literal(node.args[1])
        if default is not None:
            facts.defaults.setdefault(option_key(first), default)
        return
    facts.is_mixed = facts.is_mixed or name in _MIXED_CALLS
    loads = name in {"from_pretrained", "create_model", "get_model", "load_model", "from_config", "YOLO"}
    if loads and isinstance(first, str):
        facts.model = model_word(first) or facts.model
    else:
        facts.model = facts.model or model_word(name)
    if name == "load_dataset" and isinstance(first, str):
        facts.dataset = dataset_word(first) or facts.dataset
    facts.dataset = facts.dataset or dataset_word(name)
    for keyword in node.keywords:
        if keyword.arg is not None:
            _take_value(keyword.arg, keyword.value, facts)


def _take_option(node: ast.Call, facts: PythonFacts) -> None:
    names = [word for word in map(_literal, node.args) if isinstance(word, str)]
    long_names = [word for word in names if word.startswith("--")] or [word for word in names if word.startswith("-")]
    given = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    if not names:
        return
    if not long_names:
        facts.positions.append(option_key(names[0]))
    key = option_key(long_names[0] if long_names else names[0])
    for word in names:
        if word.startswith("-") and not word.startswith("--"):
            facts.short[word] = key
    action = _literal(given["action"]) if "action" in given else None
    if action in {"store_true", "store_false"} or "is_flag" in given:
        facts.flags.add(key)
    default = _literal(given["default"]) if "default" in given else None
    if default is not None and key in _KNOWN_KEYS:
        facts.defaults.setdefault(key, default)


def _take_assignment(target: ast.expr, value: ast.expr, facts: PythonFacts) -> None:
    if isinstance(target, ast.Name):
        _take_value(target.id, value, facts)


def _take_value(name: str, value: ast.expr, facts: PythonFacts) -> None:
    key = option_key(name)
    if key not in _KNOWN_KEYS:
        return
    found = _literal(value)
    if found is None and key in PRECISION_KEYS and isinstance(value, ast.Attribute):
        found = value.attr
    if found is None and isinstance(value, ast.Name):
        found = facts.values.get(option_key(value.id))
    if found is not None:
        facts.values.setdefault(key, found)


def _literal(node: ast.expr) -> Literal | None:
    value: object = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, str):
        return value[:MAX_TEXT]
    return value if isinstance(value, bool | int | float) else None


def command_line_values(facts: PythonFacts | None, arguments: tuple[str, ...]) -> Mapping[str, Literal]:
    """Return known options of a program's command line; those that it has not are read by their names alone."""
    found: dict[str, Literal] = {}
    positions = list(facts.positions) if facts is not None else []
    index = 0
    while index < len(arguments):
        word = arguments[index]
        following = arguments[index + 1] if index + 1 < len(arguments) else ""
        index += 1
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            if equals:  # key=value without dashes, as Hydra takes them
                _put(found, name.lstrip("+").rpartition(".")[2], value)
            elif positions:
                _put(found, positions.pop(0), word)
            continue
        if not word.startswith("--") and facts is not None:
            name = facts.short.get(name, name)
        key = option_key(name)
        if equals:
            _put(found, key, value)
        elif (facts is not None and key in facts.flags) or not following or _is_option(following):
            _put(found, key, True)
        else:
            _put(found, key, following)
            index += 1
    return found


def _is_option(word: str) -> bool:
    return word.startswith("-") and not word[1:2].isdigit()


def _put(found: dict[str, Literal], name: str, value: Literal) -> None:
    key = option_key(name)
    if key in _KNOWN_KEYS:
        found[key] = value if isinstance(value, bool) else str(value)[:MAX_TEXT]
