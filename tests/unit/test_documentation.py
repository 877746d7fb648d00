"""The pages: links lead somewhere, and the project speaks of itself alone."""

import re
from collections.abc import Iterator
from pathlib import Path

import click

from slurm_energy.cli.main import cli

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
_COMMAND = re.compile(r"(?:`|^(?:[\w-]*[$#] )?(?:sudo )?)slurm-energy ([a-z][^`\n|&;<>()]*)", re.MULTILINE)
"""As inline code, or as a line of an example."""
_NAMED_TEST = re.compile(r"`((?:e2e|unit|integration|plugin)/[\w/]+\.(?:py|c))`")


def test_every_link_leads_to_a_file() -> None:
    targets = [(page, target) for page in PAGES for target in _LINK.findall(page.read_text(encoding="utf-8"))]
    assert [
        f"{page.relative_to(ROOT)}: {target}"
        for page, target in targets
        if "://" not in target and not (page.parent / target).exists()
    ] == []


def test_every_test_that_a_page_names_exists() -> None:
    named = [(page, name) for page in PAGES for name in _NAMED_TEST.findall(page.read_text(encoding="utf-8"))]
    assert [f"{page.relative_to(ROOT)}: {name}" for page, name in named if not (ROOT / "tests" / name).exists()] == []


def unknown_words(text: str) -> Iterator[str]:
    """Yield the words of a command line that are no command or option of ours."""
    command: click.Command = cli
    words = iter(text.partition("  #")[0].split())
    for word in words:
        # As it is run: click keeps a command's own --help as the first context asks for it, for every page after it.
        above = None if command is cli else click.Context(cli, **cli.context_settings)
        with click.Context(command, parent=above, **command.context_settings) as context:
            options = {name for param in command.get_params(context) for name in (*param.opts, *param.secondary_opts)}
            if isinstance(command, click.Group) and word[0] != "-":
                found = command.get_command(context, word)
                if found is None:
                    yield word
                    return
                command = found
            elif word.startswith("--") and word.split("=")[0] not in options:
                yield word


def test_a_command_and_an_option_that_do_not_exist_are_found() -> None:
    assert [*unknown_words("compare --seeds 2")] == ["compare"]
    assert [*unknown_words("report user --since 7d --no-such=1  # --nor this")] == ["--no-such=1"]


def test_every_command_and_option_that_a_page_names_exists() -> None:
    written = [
        (page, text)
        for page in PAGES
        if page.name not in {"CHANGELOG.md", "cli.md"}  # of earlier versions; written from the commands themselves
        for text in _COMMAND.findall(page.read_text(encoding="utf-8"))
    ]
    assert len(written) > 100
    assert [f"{page.relative_to(ROOT)}: {text}" for page, text in written if any(unknown_words(text))] == []


def test_the_pages_were_found() -> None:
    assert len(PAGES) >= 12
