"""Plants faults in functions: one change of one node of the syntax tree, in force for as long as a block takes."""

import ast
import copy
import importlib
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any, NamedTuple

_COMPARISONS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_WORDS = frozenset({"note", "notes", "clock", "longer", "runs", "source", "why", "refusals"})
"""Names of what is only said."""


class Mutant(NamedTuple):
    """A planted fault."""

    function: str
    line: int
    text: str
    code: CodeType


def mutants_of(path: str) -> list[Mutant]:
    """Return every fault that can be planted in a function, `module:qualified.name`."""
    function = _function(path)
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    found = []
    for number in range(len(list(_places(definition)))):
        changed = copy.deepcopy(tree)
        place = list(_places(changed.body[0]))[number]
        text = _change(place)
        if text is None:
            continue
        ast.fix_missing_locations(changed)
        if function.__closure__:
            continue
        code = _compiled(changed, function)
        found.append(Mutant(path, first + getattr(place.node, "lineno", 1) - 1, text, code))
    return found


class _Place(NamedTuple):
    node: ast.AST
    kind: str


def _places(tree: ast.AST) -> Iterator[_Place]:
    """Yield what can be changed, but for what is only said."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.JoinedStr | ast.arguments):
            continue
        if isinstance(child, ast.keyword) and child.arg in _WORDS:
            continue
        if isinstance(child, ast.Assign) and any(
            isinstance(name, ast.Name) and name.id in _WORDS for name in child.targets
        ):
            continue
        if isinstance(child, ast.Compare) and type(child.ops[0]) in _COMPARISONS:
            yield _Place(child, "compare")
        elif isinstance(child, ast.BoolOp):
            yield _Place(child, "bool")
        elif isinstance(child, ast.BinOp) and type(child.op) in _OPERATORS:
            yield _Place(child, "operator")
        elif isinstance(child, ast.UnaryOp) and isinstance(child.op, ast.Not):
            yield _Place(child, "not")
        elif isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id in _CALLS:
            yield _Place(child, "call")
        elif isinstance(child, ast.If | ast.IfExp):
            yield _Place(child, "if")
        elif isinstance(child, ast.Constant) and isinstance(child.value, int | float):
            yield _Place(child, "constant")
        yield from _places(child)


def _change(place: _Place) -> str | None:
    node: Any = place.node
    before = ast.unparse(node)[:60]
    if place.kind == "compare":
        node.ops[0] = _COMPARISONS[type(node.ops[0])]()
    elif place.kind == "bool":
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif place.kind == "operator":
        node.op = _OPERATORS[type(node.op)]()
    elif place.kind == "not":
        node.operand = ast.UnaryOp(op=ast.Not(), operand=node.operand)
    elif place.kind == "call":
        node.func.id = _CALLS[node.func.id]
    elif place.kind == "if":
        node.test = ast.UnaryOp(op=ast.Not(), operand=node.test)
    elif isinstance(node.value, bool):
        node.value = not node.value
    else:
        node.value = node.value + 1
    return f"{place.kind}: {before} -> {ast.unparse(node)[:60]}"


def _function(path: str) -> FunctionType:
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    if isinstance(found, property):
        found = found.fget
    assert isinstance(found, FunctionType), path
    return found


def _compiled(tree: ast.Module, function: FunctionType) -> CodeType:
    module = compile(tree, inspect.getfile(function), "exec")
    return next(one for one in module.co_consts if isinstance(one, CodeType) and one.co_name == function.__name__)


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Put a fault in its function's place for as long as the block takes."""
    function = _function(mutant.function)
    before = function.__code__
    function.__code__ = mutant.code
    try:
        yield
    finally:
        function.__code__ = before


def functions(module: str, names: str) -> Sequence[str]:
    """Return paths of functions of a module."""
    return [f"slurm_energy.policy.{module}:{name}" for name in names.split()]
