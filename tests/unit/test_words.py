"""Plain words: what people read, and names, hold no word that needs a second reading."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "slurm_energy"

INSTEAD = {
    r"nobody|somebody|anybody|whoever": "no user, another user, any policy, the caller: say who",
    r"stranger'?s?": "another user, an unauthenticated host",
    r"mend(?:s|ed|ing)?": "fix",
    r"told": "reported, known, given",
    r"anew": "again, or a verb with re-",
    r"meanwhile": "in the meantime",
    r"shall": "must",
    r"astray": "diverges",
    r"in vain": "without effect",
    r"gone on with|(?:go|goes|went) on": "continue, resume with",
    r"tak(?:e|es|en) away": "remove",
    r"refuse with": "opt out with",
    r"all the same": "anyway",
    r"is it well|it does not choose": "a heading that says the task",
}
"""Words that are not used, and what stands in their place."""
BANNED = re.compile(rf"\b(?:{'|'.join(INSTEAD)})\b", re.IGNORECASE)

ALLOWED = {
    # Lines that earlier versions wrote on hosts: uninstall has to recognise them.
    "# slurm-energy: added by `slurm-energy install`, taken away by `slurm-energy uninstall`.",
    ": added by `slurm-energy install`, taken away by `slurm-energy uninstall`.",
    "# A host without that file submits all the same, without these options.",
}

NOT_A_BOUND = frozenset({"most_common", "least_squares"})
"""Names of the standard library and of numpy."""
_BOUND = re.compile(r"(?:^|_)(?:most|least)_", re.IGNORECASE)


def pages() -> Iterator[Path]:
    yield REPOSITORY / "README.md"
    yield from sorted((REPOSITORY / "docs").rglob("*.md"))
    yield from sorted((REPOSITORY / "templates").rglob("*.j2"))


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "_shared" not in path.parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(path)))


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module that people can come to read: all but its docstrings."""
    sentences = {id(node.value) for node in nodes_of(path) if isinstance(node, ast.Expr)}
    for node in nodes_of(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in sentences:
            yield node.lineno, node.value
    for node in nodes_of(path):  # of click's commands the docstring is the help
        if isinstance(node, ast.FunctionDef) and any("click" in ast.dump(one) for one in node.decorator_list):
            yield node.lineno, ast.get_docstring(node) or ""


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every name that a module gives."""
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def banned_in(text: str) -> list[str]:
    return [found.group() for found in BANNED.finditer(text)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("opt out with --energy=off", []),
        ("refuse with --energy=off; nobody is Told", ["refuse with", "nobody", "Told"]),
        ("The job goes on unchanged, amended and untold", ["goes on"]),
    ],
)
def test_the_list_finds_whole_words_only(text: str, words: list[str]) -> None:
    assert banned_in(text) == words


def test_pages_and_templates_use_plain_words() -> None:
    found = [
        f"{page.relative_to(REPOSITORY)}:{number}: {word}"
        for page in pages()
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1)
        for word in banned_in(line)
    ]
    assert found == []


def test_messages_and_help_use_plain_words() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {word}"
        for path in modules()
        for line, text in messages(path)
        if text not in ALLOWED
        for word in banned_in(text)
    ]
    assert found == []


def test_bounds_are_named_max_and_min() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for path in modules()
        for line, name in names(path)
        if _BOUND.search(name) and name not in NOT_A_BOUND
    ]
    assert found == []


def test_no_two_classes_share_a_name() -> None:
    where: dict[str, list[str]] = {}
    for path in modules():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    assert {name: places for name, places in where.items() if len(places) > 1} == {}
