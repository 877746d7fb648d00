"""A site for the doctor: a folder with configuration, programs and a daemon that answers."""

from collections.abc import Iterator
from pathlib import Path

from fake_sbatch import FakeSbatch

from slurm_energy.cli.doctor.command import situation_of
from slurm_energy.cli.doctor.finding import Finding, HostFacts, Verdict
from slurm_energy.config import Config, parse_config

LIVE = """Configuration data as of 2026-03-04T12:00:00
ClusterName             = north
JobSubmitPlugins        = lua,energy
PluginDir               = {root}/plugins
PlugStackConfig         = {root}/plugstack.conf
Prolog[0]               = {root}/prolog.d/*
Epilog[0]               = {root}/other.sh
Epilog[1]               = {root}/epilog.d/*
PrologFlags             = Alloc,X11
"""


class Site:
    """A host with Slurm's commands as scripts, and everything in order until a test breaks something."""

    def __init__(self, directory: Path) -> None:
        self.root = directory
        self.fake = FakeSbatch(directory / "fake")
        self.live = LIVE.format(root=directory)
        self.fake.with_plugin()
        self.fake.install("squeue", "#!/bin/sh\necho 5\n")
        self.write_scontrol()
        self.fake.install("slurmctld", "#!/bin/sh\necho slurm 22.05.8\n")
        (directory / "plugstack.conf").write_text(f"optional {directory}/plugins/spank_energy.so\n")
        (directory / "slurm.conf").write_text("ClusterName=north\n")
        (directory / "energy-plugin.conf").write_text(f"socket={directory}/d.sock.ctl\ndeadline_milliseconds=50\n")
        for name in ("prolog.d", "epilog.d"):
            (directory / name).mkdir()
            script = directory / name / "50-energy.sh"
            script.write_text("#!/bin/sh\npython -m slurm_energy.node.main\n")
            script.chmod(0o755)

    def write_scontrol(self) -> None:
        """Write `scontrol` anew from `live`."""
        (self.root / "live").write_text(self.live)
        self.fake.install(
            "scontrol",
            f'#!/bin/sh\ncase "$1" in --version) echo "slurm 22.05.8";; ping) echo "Slurmctld(primary) at c is UP";; '
            f'show) cat "{self.root}/live";; esac\n',
        )

    def config(self, **sections: dict[str, object]) -> Config:
        """Return settings of this site, with a test's own on top."""
        document: dict[str, dict[str, object]] = {
            "cluster": {
                "name": "north",
                "slurm_bin_directory": str(self.fake.bin),
                "slurm_conf": f"{self.root}/slurm.conf",
            },
            "daemon": {"socket_path": f"{self.root}/d.sock", "state_directory": str(self.root), "report_host": ""},
            "store": {"url": f"sqlite:///{self.root}/e.sqlite"},
            "node": {"spool_directory": f"{self.root}/spool"},
        }
        for name, values in sections.items():
            document.setdefault(name, {}).update(values)
        return parse_config(document, source="test", environment={})

    def situation(self, *roles: str, **sections: dict[str, object]) -> HostFacts:
        """Return what the checks see."""
        return situation_of(self.config(**sections), roles, {"SLURMD_NODENAME": "n1"})


def verdicts(findings: Iterator[Finding]) -> dict[str, Verdict]:
    return {finding.subject: finding.verdict for finding in findings}


def found(findings: Iterator[Finding], subject: str) -> Finding:
    return next(finding for finding in findings if finding.subject == subject)
