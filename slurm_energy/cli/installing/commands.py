"""Commands on PATH, their manual pages and what completes them in a shell."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from slurm_energy import __version__
from slurm_energy.cli.installing.files import PlannedFile
from slurm_energy.cli.installing.roles import is_packaged
from slurm_energy.cli.main import NOUNS, PROGRAM, cli
from slurm_energy.cli.site import under
from slurm_energy.reporting.templates import render

COMMAND_FOLDER = Path("/usr/local/bin")
MAN_FOLDER = Path("/usr/local/share/man")
COMMANDS = {
    "slurm-energy": ("controller", "node", "login"),
    "energy-sbatch": ("controller", "node", "login"),
    "slurm-energy-hook": ("node",),
    "slurm-energyd": ("controller",),
    "slurm-energy-mail": ("controller",),
}
"""Which role has which command."""
_COMPLETIONS: Mapping[Path, type[ShellComplete]] = {
    Path("/usr/local/share/bash-completion/completions") / PROGRAM: BashComplete,
    Path("/usr/local/share/zsh/site-functions") / f"_{PROGRAM}": ZshComplete,
    Path("/usr/local/share/fish/vendor_completions.d") / f"{PROGRAM}.fish": FishComplete,
}
_PAGES = {
    "energy-sbatch": "energy-sbatch.1",
    "slurm-energy-hook": "slurm-energy-hook.8",
    "slurm-energyd": "slurm-energyd.8",
}


def command_files(roles: tuple[str, ...], python: Path, root: Path, remarks: list[str]) -> Iterator[PlannedFile]:
    """Yield links, pages and completions; a command of another package stays, with a line in `remarks`.

    A distribution's package has its own in /usr: those that an earlier `install` wrote to /usr/local are removed.
    """
    if is_packaged(python):
        yield from _removed_for_package(root)
        return
    for name, where in COMMANDS.items():
        if not set(where) & set(roles):
            continue
        link = COMMAND_FOLDER / name
        is_there = root != Path("/") or (python.parent / name).exists()
        if link != python.parent / name and is_there:
            if _is_foreign(under(root, link), name):
                remarks.append(f"{link} is not ours and stays: call {python.parent / name}, or move {link} away")
                continue
            yield PlannedFile(path=link, link_to=python.parent / name)
        if name in _PAGES:
            yield page_of_command(name)
    yield from shared_files()


def shared_files() -> Iterator[PlannedFile]:
    """Yield the pages and completions that every role has."""
    yield from _pages_of_the_program()
    for path, shell in _COMPLETIONS.items():
        complete = shell(cli, {}, PROGRAM, f"_{PROGRAM.upper().replace('-', '_')}_COMPLETE")
        text = ShellComplete.source(complete)  # bash's own method would start bash to learn its version
        yield PlannedFile(path=path, content=f"{text.strip()}\n".encode(), is_generated=True)


def page_of_command(name: str) -> PlannedFile:
    """Return the manual page of a command that is written by hand."""
    page = _PAGES[name]
    text = render(f"man/{page}.j2", {"version": __version__})
    return PlannedFile(path=MAN_FOLDER / f"man{page[-1]}" / page, content=text.encode(), is_generated=True)


def _removed_for_package(root: Path) -> Iterator[PlannedFile]:
    for name in COMMANDS:
        link = COMMAND_FOLDER / name
        if under(root, link).is_symlink() and not _is_foreign(under(root, link), name):
            yield PlannedFile(path=link, link_to=under(root, link).readlink(), absent=True)
    for planned in (*map(page_of_command, _PAGES), *shared_files()):
        yield PlannedFile(path=planned.path, absent=True)


def _is_foreign(path: Path, name: str) -> bool:
    """Return whether a file stands there that is neither our link nor a link to where ours once was."""
    if not path.is_symlink():
        return path.exists()
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return path.readlink().name != name
    return path.readlink().name != name or "slurm_energy" not in text


def _pages_of_the_program() -> Iterator[PlannedFile]:
    """Yield a page for the program and one for each of its nouns; those whose packages are missing have none."""
    width: dict[str, Any] = {"max_content_width": 78, "terminal_width": 78}
    root = click.Context(cli, info_name=PROGRAM, **{**cli.context_settings, **width})
    see_also = []
    for noun in sorted(NOUNS):
        try:
            command = cli.get_command(root, noun)
        except ModuleNotFoundError:
            continue
        assert command is not None
        see_also.append(f"{PROGRAM}-{noun}")
        yield _page(f"{PROGRAM}-{noun}", NOUNS[noun].summary, _sections(command, root, noun), [PROGRAM])
    yield _page(PROGRAM, "energy of Slurm jobs", _sections(cli, root, ""), see_also)


def _sections(command: click.Command, parent: click.Context, words: str) -> list[dict[str, str]]:
    """Return a command's help and, below it, that of its sub-commands."""
    context = parent if command is cli else click.Context(command, parent=parent, info_name=words.rpartition(" ")[2])
    sections = [{"name": f"{PROGRAM} {words}".strip(), "help": command.get_help(context)}]
    if command is not cli and isinstance(command, click.Group):
        for name in command.list_commands(context):
            member = command.get_command(context, name)
            if member is not None:
                sections += _sections(member, context, f"{words} {name}")
    return sections


def _page(name: str, summary: str, sections: list[dict[str, str]], see_also: list[str]) -> PlannedFile:
    values: dict[str, Any] = {
        "name": name,
        "summary": summary.rstrip("."),
        "sections": sections,
        "see_also": see_also,
        "version": __version__,
    }
    text = render("man/command.1.j2", values)
    return PlannedFile(path=MAN_FOLDER / "man1" / f"{name}.1", content=text.encode(), is_generated=True)
