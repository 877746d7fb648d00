"""A stand-in for Slurm's commands: records how it was called, says and does what the test laid out for it."""

import stat
import sys
from pathlib import Path

_PROGRAM = """#!{python} -IS
import os, signal, sys, time
here = {directory!r}
def laid_out(name, default=b""):
    try:
        with open(os.path.join(here, name), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return default
words = [os.fsencode(word) for word in sys.argv[1:]]
if words == [b"--help"]:
    sys.stdout.buffer.write(laid_out("help", b"Usage: sbatch\\n"))
    sys.exit(0)
interrupts = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: interrupts.append(number))
number = len([name for name in os.listdir(here) if name.startswith("call.")])
with open(os.path.join(here, f"call.{{number}}"), "wb") as file:
    file.write(b"\\0".join(words))
if laid_out("read_stdin"):
    with open(os.path.join(here, "stdin"), "wb") as file:
        file.write(sys.stdin.buffer.read())
def write_all(descriptor, content):
    while content:
        content = content[os.write(descriptor, content):]
try:
    write_all(1, laid_out("stdout"))
except BrokenPipeError:
    pass
write_all(2, laid_out("stderr"))
if laid_out("background"):
    if not os.fork():
        while laid_out("background"):
            time.sleep(0.05)
        os._exit(0)
end = time.monotonic() + float(laid_out("linger", b"0"))
while time.monotonic() < end and not interrupts:
    time.sleep(0.01)
if laid_out("linger"):
    time.sleep(0.2)
    with open(os.path.join(here, "signals"), "w") as file:
        file.write(" ".join(str(int(number)) for number in interrupts))
fatal = laid_out("die_by_signal")
if fatal:
    if int(fatal) != signal.SIGKILL:
        signal.signal(int(fatal), signal.SIG_DFL)
    os.kill(os.getpid(), int(fatal))
os._exit(int(laid_out("rc", b"0")))
"""


class FakeSbatch:
    """A folder with `sbatch` in it, what it is to do, and what it was called with."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bin = directory / "bin"
        self.bin.mkdir(parents=True)
        self.install("sbatch", _PROGRAM.format(python=sys.executable, directory=str(directory)))
        self.lay_out("stdout", b"Submitted batch job 4242\n")

    def install(self, name: str, text: str) -> Path:
        """Write an executable into the folder."""
        path = self.bin / name
        path.write_text(text, encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def lay_out(self, name: str, content: bytes) -> None:
        """Say what the fake is to do: stdout, stderr, rc, help, linger, ..."""
        (self.directory / name).write_bytes(content)

    def with_plugin(self) -> None:
        """Let `sbatch --help` show the options of the SPANK plugin."""
        self.lay_out(
            "help",
            b"Usage: sbatch\n\nOptions provided by plugins:\n"
            b"      --energy=off|observe|balanced|saver\n      --energy-max-slowdown=PCT\n"
            b"      --energy-deadline=TIME\n      --energy-quiet\n",
        )

    def without_site_plugin(self) -> None:
        """Let `scontrol show config` name no energy plugin."""
        self.install("scontrol", "#!/bin/sh\necho 'JobSubmitPlugins        = lua'\n")

    def with_site_plugin(self) -> None:
        """Let `scontrol show config` name the energy plugin."""
        self.install("scontrol", "#!/bin/sh\necho 'JobSubmitPlugins        = lua,energy'\n")

    @property
    def calls(self) -> list[list[bytes]]:
        """Arguments of each call, calls for help left out."""
        return [path.read_bytes().split(b"\0") for path in sorted(self.directory.glob("call.*"))]

    def recorded(self, name: str) -> bytes:
        """Return what the fake wrote down: stdin, signals."""
        return (self.directory / name).read_bytes()
