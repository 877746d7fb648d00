#!/usr/bin/python3
"""Stand-in for systemctl on a trial's hosts: starts what the units say, as the user that they name.

It knows the units in /etc/systemd/system, ours in /usr/lib/systemd/system, and slurmctld and slurmd with drop-ins.
Its state is in /run/units.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

UNITS = Path("/etc/systemd/system")
PACKAGED = Path("/usr/lib/systemd/system")
STATE = Path("/run/units")
SLURM = {"slurmctld": "slurmctld -i -D", "slurmd": f"slurmd -D -N {os.uname().nodename}"}
TIMER_SECONDS = 3
STOP_SECONDS = 20

Settings = dict[str, list[str]]


def main(words: list[str]) -> int:
    now = "--now" in words
    verb, *units = [word for word in words if not word.startswith("-")]
    STATE.mkdir(exist_ok=True)
    if verb == "daemon-reload":
        return 0
    for unit in units:
        found = settings(unit)
        if found is None:
            sys.stderr.write(f"Failed to {verb} unit: Unit file {unit} does not exist.\n")
            return 1
        enabled = STATE / f"{unit}.enabled"
        if verb in {"is-active", "is-enabled"}:
            return 0 if (pid_of(unit) if verb == "is-active" else enabled.exists()) else 3
        if verb == "enable":
            enabled.touch()
        if verb == "disable":
            enabled.unlink(missing_ok=True)
        if verb == "try-restart":
            if pid_of(unit) is None:
                continue
            verb = "restart"
        if verb in {"stop", "restart"} or (verb == "disable" and now):
            stop(unit)
        if verb in {"start", "restart"} or (verb == "enable" and now):
            code = start(unit, found)
            if code:
                sys.stderr.write(f"Job for {unit} failed because the control process exited with error code.\n")
                return code
    return 0


def settings(unit: str) -> Settings | None:
    base = unit.removesuffix(".service")
    name = unit if "." in unit else f"{unit}.service"
    path = UNITS / name
    if not path.exists() and name.startswith("slurm-energy"):
        path = PACKAGED / name
    if base not in SLURM and not path.exists():
        return None
    files = [path] if path.exists() else []
    lines = [f"ExecStart={SLURM[base]}"] if base in SLURM and not files else []
    drop_ins = {
        file.name: file for folder in (PACKAGED, UNITS) for file in (folder / f"{base}.service.d").glob("*.conf")
    }
    for file in (*files, *(drop_ins[key] for key in sorted(drop_ins))):
        lines += file.read_text().splitlines()
    found: Settings = {}
    for line in lines:
        key, equals, value = line.partition("=")
        if equals and not line.startswith(("#", ";")):
            found.setdefault(key.strip(), []).append(value.strip())
    return found


def pid_file(unit: str) -> Path:
    return STATE / f"{unit.removesuffix('.service')}.pid"


def pid_of(unit: str) -> int | None:
    try:
        pid = int(pid_file(unit).read_text())
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else pid


def stop(unit: str) -> None:
    pid = pid_of(unit)
    if pid is None:
        return
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + STOP_SECONDS
    while pid_of(unit) is not None and time.monotonic() < end:
        time.sleep(0.05)
    if pid_of(unit) is not None:
        os.kill(pid, signal.SIGKILL)


def start(unit: str, found: Settings) -> int:
    user = found.get("User", ["root"])[-1]
    become = [] if user == "root" else ["setpriv", "--reuid", user, "--regid", user, "--init-groups", "--"]
    environment = dict(os.environ)
    for line in found.get("Environment", []):
        key, _, value = shlex.split(line)[0].partition("=")
        environment[key] = value
    for key, parent in (("StateDirectory", "/var/lib"), ("RuntimeDirectory", "/run")):
        for name in found.get(key, []):
            subprocess.run(["install", "-d", "-o", user, f"{parent}/{name}"], check=True)
    name = unit.removesuffix(".service")
    with Path(f"/var/log/{name}.log").open("a") as log:
        for line in found.get("ExecStartPre", []):
            code = subprocess.run(words_of(line), check=False, env=environment, stdout=log, stderr=log).returncode
            if code and not line.startswith("-"):
                return code
        if unit.endswith(".timer"):
            service = f"{Path(__file__)} start {name.removesuffix('.timer')}.service"
            argv = ["/bin/sh", "-c", f"while sleep {TIMER_SECONDS}; do {service}; done"]
        else:
            argv = [*become, *words_of(found["ExecStart"][-1])]
        if found.get("Type") == ["oneshot"]:
            return subprocess.run(argv, check=False, env=environment, stdout=log, stderr=log).returncode
        process = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    pid_file(unit).write_text(str(process.pid))
    time.sleep(1)
    return 0 if pid_of(unit) is not None else process.wait()


def words_of(line: str) -> list[str]:
    return shlex.split(line.lstrip("-+!").replace("%%", "%"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
