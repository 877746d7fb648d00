"""Build the RPM packages: python packaging/rpm.py --output dist [--version V]."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tree import PACKAGES, Package, Trees, lay_out, licence_text

from slurm_energy import __version__

_MAINTAIN = "/usr/lib/slurm-energy/maintain.sh"


def build_rpms(trees: Trees, output: Path) -> list[Path]:
    """Build every package and return the files.

    Raises:
        CalledProcessError: rpmbuild failed; it has said why.
    """
    output.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        folder = trees.of(package) / "usr" / "share" / "licenses" / package.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "LICENSE").write_text(licence_text(), encoding="utf-8")
    for old in output.glob("slurm-energy*.rpm"):  # of another version: the install page's patterns name one of each
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="slurm-energy-rpm-") as top:
        spec = Path(top) / "slurm-energy.spec"
        spec.write_text(spec_text(trees), encoding="utf-8")
        macros = {
            "_topdir": top,
            "_rpmdir": str(output.resolve()),
            "_build_name_fmt": "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
        }
        defines = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
        done = subprocess.run(
            ["rpmbuild", "-bb", "--quiet", *defines, str(spec)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            sys.stderr.write(done.stdout[-2000:] + done.stderr[-4000:])
            done.check_returncode()
    return sorted(output.glob("slurm-energy*.rpm"))


def spec_text(trees: Trees) -> str:
    """Return the spec file: it copies what is laid out already, and compiles nothing."""
    major, minor = trees.python
    sections = [
        "%global debug_package %{nil}",
        "%global __brp_mangle_shebangs %{nil}",
        "%global __brp_python_bytecompile %{nil}",
        "%global __os_install_post %{nil}",
        "%global _build_id_links none",
        f"Name: {PACKAGES[0].name}",
        f"Version: {trees.version}",
        f"Release: 1.slurm{trees.slurm}",
        "License: Apache-2.0 AND GPL-2.0-or-later",
        f"Requires: /usr/bin/python{major}.{minor}",
        "Conflicts: slurm-slurmctld < 22.05, slurm-slurmd < 22.05",
        # Its own modules and libraries are neither needed from, nor offered to, the rest of the system.
        "AutoReqProv: no",
        f"Summary: {PACKAGES[0].summary}",
        "",
        f"%description\n{_description(PACKAGES[0], trees)}",
    ]
    for package in PACKAGES[1:]:
        sections += [
            f"%package -n {package.name}",
            f"Summary: {package.summary}",
            "AutoReqProv: no",
            f"Requires: {PACKAGES[0].name} = %{{version}}-%{{release}}",
            "",
            f"%description -n {package.name}\n{_description(package, trees)}",
        ]
    copies = [f"cp -a {trees.of(package)}/. %{{buildroot}}/" for package in PACKAGES]
    # Debian's own folder of control files is no file of an RPM.
    sections += ["%install", "mkdir -p %{buildroot}", *copies, "rm -rf %{buildroot}/DEBIAN", ""]
    for package in PACKAGES:
        for name, text in scriptlets(package).items():
            sections += [f"%{name} -n {package.name}\n{text}"]
        sections += [f"%files -n {package.name}", "%defattr(-,root,root,-)", *_files(trees.of(package)), ""]
    return "".join(f"{line}\n" for line in sections)


def scriptlets(package: Package) -> dict[str, str]:
    """Return the scriptlets of a package; rpm counts in $1 how many versions of it there are afterwards."""
    if not package.role:
        return {}
    return {
        "post": f'when=first\n[ "$1" -lt 2 ] || when=again\n{_MAINTAIN} configure {package.role} "$when"\nexit 0\n',
        "preun": f'[ "$1" -eq 0 ] || exit 0\n{_MAINTAIN} remove {package.role}\nexit 0\n',
        "postun": "[ ! -d /run/systemd/system ] || systemctl daemon-reload || :\nexit 0\n",
    }


def _files(root: Path) -> list[str]:
    """Return every file, and the folders that are ours alone."""
    found = []
    for path in sorted(root.rglob("*")):
        name = f"/{path.relative_to(root)}"
        if name.startswith("/DEBIAN"):
            continue
        if not path.is_dir() or path.is_symlink():
            found.append(f'"{name}"')
        elif "slurm-energy" in path.name or "/slurm-energy/" in name:
            found.append(f'%dir "{name}"')
    return found


def _description(package: Package, trees: Trees) -> str:
    return (
        f"{package.text}\n"
        f"Its Slurm plugins are compiled for Slurm {trees.slurm}; another release than "
        f"{trees.slurm.year}.{trees.slurm.month:02d} loads them, and leaves jobs as they are.\n"
    )


def main() -> int:
    """Build the packages from the command line."""
    parser = argparse.ArgumentParser(description="Build the RPM packages for this host's Slurm and Python.")
    parser.add_argument("--output", type=Path, default=Path("dist"))
    parser.add_argument("--version", default=__version__, help="Version of the packages; the project's by default.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slurm-energy-rpm-") as folder:
        for file in build_rpms(lay_out(Path(folder) / "trees", given.version), given.output):
            print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
