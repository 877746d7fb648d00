"""Our words in slurm.conf: added where the site's own lines are, and removed again without touching those.

They go into slurm.conf itself and not into a file that it includes: slurmd does not start on a node that has the site's
slurm.conf and lacks an included file, and a key that stands twice makes each of Slurm's commands print an error.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_energy.cli.site import MAX_INCLUDES, under
from slurm_energy.errors import ConfigError, SpoolError
from slurm_energy.files import write_atomically
from slurm_energy.slurm.conf_file import included_path, stated_cluster_name

HOOK_PATH = Path("/bin/tru_")
"""The hook on the nodes. Its place and name follow from HOOK_PATTERN."""
HOOK_PATTERN = "/bin/tru[e_]"
"""Prolog= and Epilog=: a pattern without a match drains the node, and this one always matches /bin/true at least."""
MARK = "# slurm-energy"
"""At the end of a line: our word in it was added by `install`, and goes with `uninstall`."""
HEADER = (
    f"{MARK}: added by `slurm-energy install`, removed by `slurm-energy uninstall`.",
    f"{MARK}: Prolog and Epilog match our hook, {HOOK_PATH}, and /bin/true: a node without our files runs the latter.",
)
EARLIER_HEADER = f"{MARK}: added by `slurm-energy install`, taken away by `slurm-energy uninstall`."
TAKEN_OUT = "# slurm-energy took energy out, since slurmctld would not start with it; before: "
"""Begins the comment that keeps a JobSubmitPlugins line as it was before `plugin check --before-start` changed it."""
EARLIER_HOOK_PATTERNS = ("/etc/slurm-energy/prolog.d/*", "/etc/slurm-energy/epilog.d/*")
EARLIER_FRAGMENT = "slurm-energy.conf"
"""What an earlier version had Included."""

_JOB_SUBMIT = "energy"
_FLAG = "Alloc"
_JOB_SUBMIT_LINE = re.compile(
    r"^(?P<before>\s*JobSubmitPlugins\s*=\s*)(?P<value>\"[^\"]*\"|[^\s#]*)(?P<after>.*)$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfFile:
    """Slurm.conf, or a file that it includes."""

    path: Path
    text: str


@dataclass(frozen=True, slots=True)
class _ConfPlace:
    """One `Key=value` in a file."""

    file: int
    line: int
    value: str


def read_conf_files(path: Path, root: Path = Path("/")) -> tuple[ConfFile, ...]:
    """Return slurm.conf and the files that it includes; those that cannot be read are left out."""
    found: dict[Path, str] = {}
    cluster_name = ""

    def visit(file: Path) -> None:
        nonlocal cluster_name
        if file in found or len(found) > MAX_INCLUDES:
            return
        try:
            text = under(root, file).read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return
        found[file] = text
        for line in text.splitlines():
            cluster_name = cluster_name or stated_cluster_name(line)
            included = included_path(line, path.parent, cluster_name)
            if included is not None:
                visit(included)

    visit(path)
    return tuple(ConfFile(path=file, text=text) for file, text in found.items())


def is_our_hook(value: str) -> bool:
    """Return whether a value of Prolog or Epilog is what `install` writes, or an earlier version wrote."""
    return value in {HOOK_PATTERN, *EARLIER_HOOK_PATTERNS}


def hook_values(files: Iterable[ConfFile], key: str) -> tuple[str, ...]:
    """Return every value of Prolog or Epilog."""
    return tuple(place.value for place in _places(list(files), key))


def has_pattern(hook: str) -> bool:
    """Return whether a Prolog or Epilog runs every program that a pattern matches: ours joins the others there."""
    return any(letter in Path(hook).name for letter in "*?[")


def site_hooks(files: Iterable[ConfFile], key: str) -> tuple[str, ...]:
    """Return the site's own values of Prolog or Epilog."""
    return tuple(value for value in hook_values(files, key) if not is_our_hook(value))


def with_energy(
    files: Iterable[ConfFile], *, several_hooks: bool, job_submit: str = _JOB_SUBMIT
) -> tuple[ConfFile, ...]:
    """Return the files with the plugin, the flag and the hooks in them.

    Args:
        files: slurm.conf first.
        several_hooks: Whether ours may stand beside the site's own, in a line of its own.
        job_submit: The plugin that asks: our own, or Slurm's `lua`.

    Raises:
        ConfigError: a line that has to change goes on in the next one.
    """
    texts = _without_fragment(files)
    added: list[str] = []
    for key, word in (("JobSubmitPlugins", job_submit), ("PrologFlags", _FLAG)):
        _add_word(texts, key, word, added)
    for key in ("Prolog", "Epilog"):
        _add_hook(texts, key, several_hooks, added)
    if added:
        main = texts[0]
        text = main.text if main.text.endswith("\n") or not main.text else main.text + "\n"
        present = text.splitlines()
        header = [line for line in HEADER if line not in present and EARLIER_HEADER not in present]
        texts[0] = replace(main, text=text + "".join(f"{line}\n" for line in [*header, *added]))
    return tuple(texts)


def without_energy(files: Iterable[ConfFile]) -> tuple[ConfFile, ...]:
    """Return the files as they would be without us: a line that held nothing else goes as a whole.

    Alloc stays in PrologFlags. A slurmd that has it waits for slurmctld's word before a job's prolog; from a slurmctld
    without it that word never comes, and the node is drained after twice MessageTimeout. No order of restarts avoids
    that everywhere: configless nodes have the flag until slurmctld has lost it.
    """
    texts = _without_fragment(files)
    for key in ("JobSubmitPlugins", "Prolog", "Epilog"):
        for place in reversed(list(_places(texts, key))):
            _take_away(texts, key, place)
    return tuple(
        replace(
            file,
            text="".join(
                line for line in file.text.splitlines(keepends=True) if line.rstrip() not in (*HEADER, EARLIER_HEADER)
            ),
        )
        for file in texts
    )


def keeps_alloc(files: Iterable[ConfFile]) -> bool:
    """Return whether PrologFlags has an Alloc that `install` put there."""
    found = list(files)
    return any(
        found[place.file].text.splitlines()[place.line].rstrip().endswith(MARK)
        for place in _places(found, "PrologFlags")
    )


def names_energy(files: Iterable[ConfFile]) -> bool:
    """Return whether slurmctld would load the plugin, and not start without its file."""
    return any(_is_plugin(word) for place in _places(list(files), "JobSubmitPlugins") for word in _words(place.value))


def rules_for_lua(files: Iterable[ConfFile]) -> dict[str, bool]:
    """Return what Slurm does not tell a Lua script, by its names there; all strict where nothing can be read."""
    lines = [line.partition("#")[0] for file in files for line in file.text.splitlines()]

    def says(pattern: str) -> bool:
        return not lines or any(re.search(pattern, line, re.IGNORECASE) for line in lines)

    scheduling = [line for line in lines if re.search(r"(?<!\S)SchedulerParameters\s*=", line, re.IGNORECASE)]
    hints = [re.search(r"=\s*\S*\bignore_prefer_validation\b", line, re.IGNORECASE) for line in scheduling]
    return {
        "ENFORCES_ALL_LIMITS": says(r'(?<!\S)EnforcePartLimits\s*=\s*"?ALL\b'),
        "HAS_JOB_DEFAULTS": says(r"(?<!\S)JobDefaults\s*="),
        "VALIDATES_PREFERENCES": not hints or not all(hints),  # of several lines Slurm takes one
    }


def _is_plugin(word: str) -> bool:
    return word.lower().removeprefix("job_submit/") == _JOB_SUBMIT


def _words(value: str) -> list[str]:
    return [word for word in re.split(r"[\s,]+", value) if word]


def _pair(key: str) -> re.Pattern[str]:
    return re.compile(rf'(?<![^\s])({key}\s*=\s*)("[^"]*"|[^\s"#]*)', re.IGNORECASE)


def _places(files: list[ConfFile], key: str) -> Iterator[_ConfPlace]:
    pattern = _pair(key)
    for number, file in enumerate(files):
        lines = file.text.splitlines()
        for at, line in enumerate(lines):
            match = pattern.search(line.partition("#")[0])
            if match is None:
                continue
            if line.endswith("\\") or (at and lines[at - 1].endswith("\\")):
                raise ConfigError(
                    f"{file.path}, line {at + 1}: write {key} in a line of its own, without \\ at its end"
                )
            yield _ConfPlace(number, at, match.group(2).strip('"'))


def _add_word(files: list[ConfFile], key: str, word: str, added: list[str]) -> None:
    places = list(_places(files, key))
    if not places:
        added.append(f"{key}={word} {MARK}")
        return
    for place in places:  # whichever of them is in force
        present = _words(place.value)
        if not any(_is_plugin(item) if word == _JOB_SUBMIT else item.lower() == word.lower() for item in present):
            _set_value(files, key, place, ",".join([*present, word]), mark=True)


def _add_hook(files: list[ConfFile], key: str, several: bool, added: list[str]) -> None:
    places = list(_places(files, key))
    ours = [place for place in places if is_our_hook(place.value)]
    if ours:
        _set_value(files, key, ours[0], HOOK_PATTERN, mark=False)
    elif not places:
        added.append(f"{key}={HOOK_PATTERN} {MARK}")
    elif several and not any(has_pattern(place.value) for place in places):
        # The site's prologs first, so that the GPUs are as its jobs find them; our epilog first, so that clocks are
        # put back even where one of the site's epilogs fails.
        place = places[-1] if key == "Prolog" else places[0]
        lines = files[place.file].text.splitlines(keepends=True)
        if not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        lines.insert(place.line + (key == "Prolog"), f"{key}={HOOK_PATTERN} {MARK}\n")
        files[place.file] = replace(files[place.file], text="".join(lines))


def _take_away(files: list[ConfFile], key: str, place: _ConfPlace) -> None:
    if key in {"Prolog", "Epilog"}:
        if is_our_hook(place.value):
            _set_value(files, key, place, "", mark=False)
        return
    present = _words(place.value)
    kept = [word for word in present if not _is_plugin(word)]
    if kept != present:
        _set_value(files, key, place, ",".join(kept), mark=False)


def _set_value(files: list[ConfFile], key: str, place: _ConfPlace, value: str, *, mark: bool) -> None:
    """Write another value; an empty one takes the pair away, and its line when nothing else stands there."""
    file = files[place.file]
    lines = file.text.splitlines(keepends=True)
    line = lines[place.line]
    end = line[len(line.rstrip("\r\n")) :]
    body = line.rstrip("\r\n")
    marked = body.rstrip().endswith(MARK)
    if marked:
        body = body.rstrip()[: -len(MARK)].rstrip()
    body = _pair(key).sub(lambda match: _new_pair(match, value), body, count=1)
    flag_beside = key != "PrologFlags" and _pair("PrologFlags").search(body.partition("#")[0]) is not None
    keep_mark = mark or (marked and (flag_beside or is_our_hook(value)))
    if not body.partition("#")[0].strip() and not value:
        lines[place.line] = ""
    else:
        lines[place.line] = f"{body.rstrip()} {MARK}{end}" if keep_mark else f"{body.rstrip()}{end}"
    files[place.file] = replace(file, text="".join(lines))


def _new_pair(match: re.Match[str], value: str) -> str:
    if not value:
        return ""
    return match[1] + (f'"{value}"' if match[2].startswith('"') else value)


def _without_fragment(files: Iterable[ConfFile]) -> list[ConfFile]:
    """Return the files without the one that an earlier version had included, and without the line that included it."""
    kept = []
    for file in files:
        if file.path.name == EARLIER_FRAGMENT:
            continue
        lines = file.text.splitlines(keepends=True)
        included = [included_path(line, Path(), "") for line in lines]
        ours = [
            line.startswith(TAKEN_OUT) or (path is not None and path.name == EARLIER_FRAGMENT)
            for line, path in zip(lines, included, strict=True)
        ]
        text = "".join(line for line, is_ours in zip(lines, ours, strict=True) if not is_ours)
        kept.append(replace(file, text=text))
    return kept


def describe_changes(before: Mapping[Path, str], after: Iterable[ConfFile]) -> Iterator[str]:
    """Yield, for people who edit slurm.conf themselves, the lines to add and to remove."""
    for file in after:
        old, new = before.get(file.path, "").splitlines(), file.text.splitlines()
        for line in old:
            if line not in new:
                yield f"{file.path}: remove  {line}"
        for line in new:
            if line not in old and not line.startswith("#"):
                yield f"{file.path}: add     {line.removesuffix(MARK).rstrip()}"


def plugin_words(value: str) -> list[str]:
    """Return the plugins of a list as Slurm reads it: `job_submit/energy` is `energy`."""
    return [word.removeprefix("job_submit/") for word in re.split(r"[\s,]+", value.strip('"')) if word]


def is_taken_out(slurm_conf: Path, root: Path = Path("/")) -> bool:
    """Return whether `take_out` has changed slurm.conf, or a file that it includes."""
    files = read_conf_files(slurm_conf, root)
    return any(line.startswith(TAKEN_OUT) for file in files for line in file.text.splitlines())


def take_out(slurm_conf: Path, root: Path = Path("/")) -> list[Path]:
    """Take energy out of every JobSubmitPlugins line; a line that named nothing else becomes a comment.

    What stood there is kept in a comment above, for `put_back`.

    Raises:
        ConfigError: a file cannot be written.
    """
    return _change_files(slurm_conf, root, _without_plugin)


def put_back(slurm_conf: Path, root: Path = Path("/")) -> list[Path]:
    """Put back every line that `take_out` changed, just as it was.

    Raises:
        ConfigError: a file cannot be written.
    """
    return _change_files(slurm_conf, root, _with_plugin)


def _without_plugin(lines: list[str]) -> Iterator[str]:
    for line in lines:
        words = _plugins_of(line)
        if "energy" not in words:
            yield line
            continue
        yield f"{TAKEN_OUT}{line}"
        kept = [word for word in words if word != "energy"]
        if kept:
            yield _with_plugins(line, kept)


def _with_plugin(lines: list[str]) -> Iterator[str]:
    """Yield the lines as they were; a list that a person changed meanwhile gets energy at its end."""
    originals = [line.removeprefix(TAKEN_OUT) for line in lines if line.startswith(TAKEN_OUT)]
    left = [",".join(word for word in _plugins_of(line) if word != "energy") for line in originals]
    others = [line for line in lines if _plugins_of(line)]
    for line in lines:
        if line.startswith(TAKEN_OUT):
            if not others:
                yield line.removeprefix(TAKEN_OUT)
        elif originals and _plugins_of(line) and "energy" not in _plugins_of(line):
            as_left = ",".join(_plugins_of(line)) in left
            yield (
                originals[left.index(",".join(_plugins_of(line)))]
                if as_left
                else _with_plugins(line, [*_plugins_of(line), "energy"])
            )
        else:
            yield line


def _plugins_of(line: str) -> list[str]:
    match = _JOB_SUBMIT_LINE.match(line)
    return [] if match is None else plugin_words(match["value"])


def _with_plugins(line: str, words: list[str]) -> str:
    match = _JOB_SUBMIT_LINE.match(line)
    return line if match is None else f"{match['before']}{','.join(words)}{match['after']}"


def _change_files(slurm_conf: Path, root: Path, edit: Callable[[list[str]], Iterator[str]]) -> list[Path]:
    changed = []
    for file in read_conf_files(slurm_conf, root):
        path = under(root, file.path).resolve()
        before = path.read_bytes().decode("utf-8", "surrogateescape")
        after = "\n".join(edit(before.split("\n")))
        if after != before:
            _rewrite(path, after)
            changed.append(file.path)
    return changed


def _rewrite(path: Path, text: str) -> None:
    """Write a file whole or not at all, with the owner and the mode that it had."""
    try:
        status = path.stat()
        write_atomically(path, text.encode("utf-8", "surrogateescape"), mode=status.st_mode & 0o7777, owner=status)
    except SpoolError as error:
        raise ConfigError(f"{error}: are you root?") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
