"""Slurm's side: version, plugins, their settings, hooks."""

import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from slurm_energy.cli.doctor.finding import Finding, HostFacts, fail, ok, skip, warn
from slurm_energy.cli.installing.plugin_check import Standing, asks_by_lua, check_plugin
from slurm_energy.cli.installing.roles import (
    CONFIG_DIRECTORY,
    PLUGIN_CONF_NAME,
    SPANK_PLUGIN,
)
from slurm_energy.cli.installing.slurm_conf import HOOK_PATH
from slurm_energy.cli.site import SYSTEM_PATH, plugin_directory, run_command, slurm_command, under
from slurm_energy.errors import SlurmError
from slurm_energy.node.settings import (
    MIN_LIMIT_SECONDS,
    NO_TIMEOUT,
    SHARE_OF_SLURMDS,
    hook_limit_seconds,
    slurmd_limit_seconds,
)
from slurm_energy.node.status import matching_scripts, script_problem
from slurm_energy.slurm.plugin_file import Release, parse_release, read_plugin_file

INSTALL = "slurm-energy install"


def slurm_checks(situation: HostFacts) -> Iterator[Finding]:
    """Yield what concerns Slurm on every host."""
    if not situation.conf and _exists(situation.slurm_conf) and not os.access(situation.slurm_conf, os.R_OK):
        text = f"{situation.slurm_conf} is closed to this user: Slurm cannot be checked"
        yield skip("slurm.conf", text, "run slurm-energy doctor as root")
        return
    yield _commands(situation)
    yield _controller_answers(situation)
    yield _cluster_name(situation)
    if situation.is_controller:
        yield _job_submit_line(situation)
        yield _job_submit_plugin(situation)
        yield from _plugin_settings(situation)
        yield from _node_hints(situation)
    yield _spank_plugin(situation)
    yield _plugstack(situation)
    yield _energy_options(situation)
    yield _prolog_flags(situation)
    yield _time_of_hooks(situation)
    for name in ("prolog", "epilog"):
        yield _hook(situation, name)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder above it is closed to this user
        return True


def _commands(situation: HostFacts) -> Finding:
    if situation.slurm_version is None:
        complaint = slurm_command(situation.config, "scontrol", "--version").complaint
        return fail(
            "Slurm's commands",
            complaint or "scontrol does not tell its version",
            "install Slurm's client commands, or set cluster.slurm_bin_directory and cluster.slurm_conf",
        )
    if situation.slurm_version.series < (22, 5):
        return warn(
            "Slurm's commands", f"Slurm {situation.slurm_version}", "22.05 is the oldest release that was tried"
        )
    return ok("Slurm's commands", f"Slurm {situation.slurm_version}")


def _controller_answers(situation: HostFacts) -> Finding:
    result = slurm_command(situation.config, "scontrol", "ping")
    if result.ok and "UP" in result.stdout:
        return ok("slurmctld", result.stdout.strip().splitlines()[0])
    said = (result.stdout.strip().splitlines() or [result.complaint or "no answer"])[0]
    return fail("slurmctld", said, "start slurmctld, or set cluster.slurm_conf to the cluster's slurm.conf")


def _cluster_name(situation: HostFacts) -> Finding:
    name, ours = situation.conf.get("clustername"), situation.config.cluster.name
    if name is None:
        return skip("cluster name", f"{situation.slurm_conf} does not tell it", "set cluster.slurm_conf")
    if name != ours:
        return fail(
            "cluster name",
            f"Slurm's is {name}, cluster.name is {ours}: reports would not find their jobs",
            f'set name = "{name}" under [cluster] in slurm-energy.toml, on every host',
        )
    return ok("cluster name", name)


def _job_submit_line(situation: HostFacts) -> Finding:
    line = situation.conf.get("jobsubmitplugins", "")
    names = [name for name in re.split(r"[\s,]+", line) if name]
    if "energy" in names and names[-1] != "energy":
        return fail(
            "JobSubmitPlugins",
            f"{line}: {names[-1]} runs after energy; what it changes was not decided on, and the message is wrong then",
            f"write energy last in JobSubmitPlugins in {situation.slurm_conf} and restart slurmctld",
        )
    if "energy" in names or ("lua" in names and asks_by_lua(situation.slurm_conf, situation.root)):
        return ok("JobSubmitPlugins", line)
    return fail(
        "JobSubmitPlugins",
        f"{line or 'empty'}: slurmctld does not ask",
        f"add energy to JobSubmitPlugins in {situation.slurm_conf} and restart slurmctld ({INSTALL} shows the lines)",
    )


def _job_submit_plugin(situation: HostFacts) -> Finding:
    subject = "job_submit plugin"
    check = check_plugin(situation.config, situation.environment, conf=situation.conf, root=situation.root)
    if check is None:
        return skip(subject, "slurmctld is not installed here", "run slurm-energy doctor on the controller")
    running = parse_release(situation.conf.get("slurm_version", ""))
    said = check.says
    if running is not None and check.release is not None and running != check.release:
        said = f"{said} (slurmctld {running} runs until it is restarted)"
    if check.standing in {Standing.RIGHT, Standing.LUA} and not check.fix:
        return ok(subject, said)
    if check.standing in {Standing.RIGHT, Standing.NOT_LISTED} and not check.taken_out:
        return warn(subject, said, check.fix or f"{INSTALL} --role controller")
    return fail(subject, said, check.fix)


def _spank_plugin(situation: HostFacts) -> Finding:
    subject = "SPANK plugin"
    folder = plugin_directory(situation.conf, situation.root)
    places = [Path(part) for part in situation.conf.get("plugindir", "").split(":") if part]
    places += [folder] if folder is not None and folder not in places else []
    named = _plugstack_line(situation)
    places = [named.parent, *places] if named is not None and named.is_absolute() else places
    for place in places:
        path = under(situation.root, place / SPANK_PLUGIN)
        if path.is_file():
            return _spank_release(situation, subject, path)
    return fail(
        subject,
        f"{SPANK_PLUGIN} is not in {', '.join(map(str, places)) or 'any known plugin folder'}",
        f"{INSTALL} --build-plugin (needs make, gcc and libslurm-dev)",
    )


def _spank_release(situation: HostFacts, subject: str, path: Path) -> Finding:
    """Judge by the release of what loads it here: sbatch, and slurmd on a node."""
    try:
        built = read_plugin_file(path)
    except SlurmError as error:
        return fail(subject, f"{error}: each sbatch prints an error", f"{INSTALL} --build-plugin")
    text = f"{path}, built for Slurm {built.release}"
    others = [release for release in _loading_releases(situation) if release.series != built.release.series]
    if built.follows:
        return ok(subject, f"{text}, fits Slurm {others[0]}" if others else text)
    if others:
        return fail(subject, f"{text}, this is {others[0]}: each sbatch prints an error", f"{INSTALL} --build-plugin")
    return warn(
        subject,
        f"{text} by an earlier slurm-energy: after an update of Slurm each sbatch will print an error",
        f"{INSTALL} --build-plugin",
    )


def _loading_releases(situation: HostFacts) -> Iterator[Release]:
    if situation.slurm_version is not None:
        yield situation.slurm_version
    if situation.is_node:
        slurmd = shutil.which("slurmd", path=f"{situation.environment.get('PATH', '')}:{SYSTEM_PATH}") or "slurmd"
        release = parse_release(run_command([slurmd, "-V"]).stdout)
        if release is not None:
            yield release


def _plugstack_path(situation: HostFacts) -> Path:
    named = situation.conf.get("plugstackconfig")
    return Path(named) if named else situation.slurm_conf.parent / "plugstack.conf"


def _plugstack_words(situation: HostFacts) -> list[str] | None:
    """Return the words of our line, None without one; drop-in files of an `include` line are read, too."""
    return _plugstack_words_and_file(situation)[0]


def _plugstack_words_and_file(situation: HostFacts) -> tuple[list[str] | None, Path]:
    """Return the same with the file that has the line, else with the file in which all begins."""
    first = under(situation.root, _plugstack_path(situation))
    waiting, seen = [first], 0
    while waiting and seen < 64:
        seen += 1
        file = waiting.pop()
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) > 1 and words[0] == "include":
                pattern = under(situation.root, _plugstack_path(situation).parent / words[1])
                waiting.extend(sorted(pattern.parent.glob(pattern.name)))
            elif len(words) > 1 and words[0] in {"optional", "required"} and words[1].endswith(SPANK_PLUGIN):
                return words, file
    return None, first


def _plugstack_line(situation: HostFacts) -> Path | None:
    words = _plugstack_words(situation)
    return None if words is None else Path(words[1])


def _plugstack(situation: HostFacts) -> Finding:
    path, (words, file) = _plugstack_path(situation), _plugstack_words_and_file(situation)
    for closed in (under(situation.root, path), file):
        if closed.is_file() and not closed.stat().st_mode & stat.S_IROTH:
            said = f"{closed} is closed to users: their sbatch knows no option --energy, or prints an error"
            return fail("plugstack.conf", said, f"chmod 644 {closed}")
    if words is None:
        return fail("plugstack.conf", f"{path} has no line for {SPANK_PLUGIN}", f"{INSTALL} (on every host)")
    if words[0] != "optional":
        return warn("plugstack.conf", " ".join(words), "write optional instead: a missing file must not stop jobs")
    return ok("plugstack.conf", " ".join(words))


def _energy_options(situation: HostFacts) -> Finding:
    result = slurm_command(situation.config, "sbatch", "--help")
    if not result.ok:
        return skip("sbatch options", result.complaint or "sbatch gives no help", "see Slurm's commands")
    if "--energy=" in result.stdout:
        return ok("sbatch options", "--energy and its kin are known here")
    return fail("sbatch options", "sbatch here does not know --energy", "see SPANK plugin and plugstack.conf above")


def plugin_settings_path(situation: HostFacts) -> Path:
    """Return where the plugin looks for its settings."""
    named = situation.environment.get("SLURM_ENERGY_PLUGIN_CONF")
    if named:
        return Path(named)
    beside = situation.slurm_conf.parent / PLUGIN_CONF_NAME
    return beside if under(situation.root, beside).is_file() else CONFIG_DIRECTORY / PLUGIN_CONF_NAME


def _plugin_settings(situation: HostFacts) -> Iterator[Finding]:
    path = plugin_settings_path(situation)
    subject = "plugin settings"
    try:
        text = under(situation.root, path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        yield warn(subject, f"{path}: {error.strerror}; defaults are used", f"{INSTALL} --role controller")
        return
    given = dict(line.strip().split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    socket = given.get("socket", "/run/slurm-energy/energyd.sock").strip()
    if socket != situation.config.daemon.plugin_socket_path:
        yield fail(
            subject,
            f"{path} has socket {socket}, the daemon listens for it at {situation.config.daemon.plugin_socket_path}",
            f"{INSTALL} --role controller",
        )
        return
    plugin = situation.config.plugin
    deadline = given.get("deadline_milliseconds", "50").strip()
    if deadline != str(plugin.deadline_milliseconds) or given.get("message", "yes") != (
        "yes" if plugin.message else "no"
    ):
        yield warn(subject, f"{path} says otherwise than [plugin] in slurm-energy.toml", f"{INSTALL} --role controller")
        return
    yield ok(subject, f"{path}, deadline {deadline} ms")


def _node_hints(situation: HostFacts) -> Iterator[Finding]:
    if not situation.config.routing.node_hints:
        return
    parameters = situation.conf.get("schedulerparameters", "")
    if "ignore_prefer_validation" in parameters.lower():
        yield ok("node hints", "Slurm refuses no job for a preferred feature")
        return
    yield warn(
        "node hints",
        "routing.node_hints is on, but Slurm would refuse jobs whose preferred feature no node has: no hint is given",
        f"add ignore_prefer_validation to SchedulerParameters in {situation.slurm_conf}, then scontrol reconfigure",
    )


def _prolog_flags(situation: HostFacts) -> Finding:
    flags = situation.conf.get("prologflags", "")
    if "alloc" in {flag.lower() for flag in re.split(r"[\s,]+", flags)}:
        return ok("PrologFlags", flags)
    return fail(
        "PrologFlags",
        f"{flags or 'empty'}: a node's prolog would wait for the first step",
        f"add Alloc to PrologFlags in {situation.slurm_conf}, then scontrol reconfigure",
    )


def _time_of_hooks(situation: HostFacts) -> Finding:
    """Return whether hooks give up before slurmd kills them, which drains the node."""
    subject, limit = "time of hooks", situation.config.node.time_limit_seconds
    keys = [f"{name}timeout" for name in ("prologepilog", "prolog", "epilog")]
    said = [re.match(r"\d+", situation.conf.get(key, "")) for key in keys]
    seconds = [float(match[0]) for match in said if match is not None and float(match[0]) not in NO_TIMEOUT]
    if not seconds or limit <= hook_limit_seconds(limit, min(seconds)):
        return ok(subject, f"at most {limit:g} s")
    slurm_conf = under(situation.root, situation.slurm_conf)
    seen = [found for verb in ("prolog", "epilog") if (found := slurmd_limit_seconds(slurm_conf, verb)) is not None]
    if seen and min(seen) <= min(seconds) and SHARE_OF_SLURMDS * min(seconds) > MIN_LIMIT_SECONDS:
        return ok(
            subject, f"at most {hook_limit_seconds(limit, min(seconds)):g} s: slurmd gives them {min(seconds):g} s"
        )
    wanted = max(MIN_LIMIT_SECONDS, SHARE_OF_SLURMDS * min(seconds))
    return fail(
        subject,
        f"slurmd kills a hook after {min(seconds):g} s and drains the node; ours may take {limit:g} s",
        f"set time_limit_seconds = {wanted:g} under [node] in slurm-energy.toml on the nodes, or give hooks more time",
    )


def _hook(situation: HostFacts, name: str) -> Finding:
    subject, pattern = name.capitalize(), situation.conf.get(name, "")
    if pattern in {"", "(null)"}:
        return fail(
            subject,
            f"{subject} is not set: nothing is measured",
            f"{INSTALL} shows the line for {situation.slurm_conf}",
        )
    if not situation.is_node:
        return ok(subject, pattern)
    places = [str(under(situation.root, Path(place))) for place in pattern.split(",") if place]
    scripts = sorted(script for place in places for script in matching_scripts(place))
    ours = [script for script in scripts if _is_ours(script)]
    if not ours:
        return fail(
            subject, f"{pattern} runs none of our scripts", f"{INSTALL} --role node, and see what it says of {name}"
        )
    broken = [script for script in scripts if not os.access(script, os.X_OK)]
    if broken:
        return fail(subject, f"{broken[0]} is not executable: Slurm drains the node", f"chmod 755 {broken[0]}")
    problems = [problem for script in ours if (problem := script_problem(script)) is not None]
    if problems:
        return fail(subject, problems[0], f"{INSTALL} --role node, with the interpreter that slurm-energy is in")
    return ok(subject, ", ".join(map(str, ours)))


def _is_ours(script: Path) -> bool:
    try:
        text = script.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "slurm_energy" in text or str(HOOK_PATH) in text
