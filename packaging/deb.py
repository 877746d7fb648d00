"""Build the Debian packages: python packaging/deb.py --output dist [--version V]."""

import argparse
import gzip
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from tree import HERE, PACKAGES, Package, Trees, lay_out, licence_text

from slurm_energy import __version__

MAINTAINER = "slurm-energy <slurm-energy@localhost>"


def build_debs(trees: Trees, output: Path, compression: str = "xz") -> list[Path]:
    """Build every package and return the files; without compression it takes seconds."""
    output.mkdir(parents=True, exist_ok=True)
    for old in output.glob("slurm-energy*.deb"):  # of another version: the install page's patterns name one of each
        old.unlink()
    architecture = _said(["dpkg", "--print-architecture"])
    built = []
    for package in PACKAGES:
        root = trees.of(package)
        zsh = root / "usr" / "share" / "zsh"
        if (zsh / "site-functions").exists():  # where Debian's zsh does not look
            (zsh / "site-functions").rename(zsh / "vendor-completions")
        documents = root / "usr" / "share" / "doc" / package.name
        documents.mkdir(parents=True, exist_ok=True)
        (documents / "copyright").write_text(licence_text(), encoding="utf-8")
        changes = (HERE.parent / "CHANGELOG.md").read_bytes()
        (documents / "changelog.gz").write_bytes(gzip.compress(changes, mtime=0))
        control = root / "DEBIAN"
        control.mkdir(exist_ok=True)
        (control / "control").write_text(_control(package, trees, architecture, _kibibytes(root)), encoding="utf-8")
        for name, text in scripts(package).items():
            (control / name).write_text(text, encoding="utf-8")
            (control / name).chmod(0o755)
        file = output / f"{package.name}_{deb_version(trees)}_{architecture}.deb"
        # xz at its default level takes minutes for an environment of Python.
        level = ["-Zxz", "-z3"] if compression == "xz" else [f"-Z{compression}"]
        argv = ["dpkg-deb", "--root-owner-group", *level, "--build", str(root), str(file)]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        built.append(file)
    return built


def deb_version(trees: Trees) -> str:
    """Return the version, with the Slurm that the plugins were compiled for: a newer Slurm makes a newer package."""
    return f"{trees.version}+slurm{trees.slurm}"


def _control(package: Package, trees: Trees, architecture: str, kibibytes: int) -> str:
    version = deb_version(trees)
    major, minor = trees.python
    lines = [
        f"Package: {package.name}",
        f"Version: {version}",
        f"Architecture: {architecture}",
        f"Maintainer: {MAINTAINER}",
        "Section: admin",
        "Priority: optional",
        f"Installed-Size: {kibibytes}",
        f"Depends: {f'slurm-energy (= {version})' if package.role else f'python{major}.{minor}, libc6'}",
    ]
    if package.recommends:
        lines.append(f"Suggests: {', '.join(package.recommends)}")
    if not package.role:
        # Not a dependency: many sites have a Slurm that no package installed.
        lines.append("Breaks: slurmctld (<< 22.05), slurmd (<< 22.05)")
    lines += [f"Slurm-Version: {trees.slurm}", f"Description: {package.summary}"]
    plugins = (
        f"Its Slurm plugins are compiled for Slurm {trees.slurm}. They work with every {trees.slurm.year}."
        f"{trees.slurm.month:02d}; another release loads them, and leaves jobs as they are until the package of that "
        f"release is installed or `slurm-energy install --build-plugin` was run."
    )
    for number, paragraph in enumerate((package.text, plugins)):
        lines += [" ."] if number else []
        lines += [f" {line}" for line in textwrap.wrap(paragraph, 78)]
    return "".join(f"{line}\n" for line in lines)


def scripts(package: Package) -> dict[str, str]:
    """Return the maintainer scripts of a package, by their names."""
    if not package.role:
        purge = (HERE / "scripts" / "purge.sh").read_text(encoding="utf-8")
        return {"postrm": f'#!/bin/sh\nset -u\n[ "$1" = purge ] || exit 0\n{purge}exit 0\n'}
    maintain = "/usr/lib/slurm-energy/maintain.sh"
    role = package.role
    configure = (
        f'#!/bin/sh\nset -u\n[ "$1" = configure ] || exit 0\nwhen=first\n[ -z "${{2:-}}" ] || when=again\n'
        f'{maintain} configure {role} "$when"\nexit 0\n'
    )
    remove = (
        f'#!/bin/sh\nset -u\n[ "$1" = remove ] || exit 0\n[ ! -x {maintain} ] || {maintain} remove {role}\nexit 0\n'
    )
    after = "#!/bin/sh\nset -u\n[ ! -d /run/systemd/system ] || systemctl daemon-reload || :\nexit 0\n"
    return {"postinst": configure, "prerm": remove, "postrm": after}


def _kibibytes(root: Path) -> int:
    return sum(path.lstat().st_size for path in root.rglob("*") if not path.is_dir()) // 1024 + 1


def _said(argv: list[str]) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    """Build the packages from the command line."""
    parser = argparse.ArgumentParser(description="Build the Debian packages for this host's Slurm and Python.")
    parser.add_argument("--output", type=Path, default=Path("dist"))
    parser.add_argument("--version", default=__version__, help="Version of the packages; the project's by default.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slurm-energy-deb-") as folder:
        for file in build_debs(lay_out(Path(folder) / "trees", given.version), given.output):
            print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
