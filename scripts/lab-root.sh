#!/bin/sh
# Make a root file system with a Debian suite's own Slurm, for `slurm-energy lab up --root`, and print its folder.
# Usage: scripts/lab-root.sh SUITE [PYTHON]     SUITE such as trixie (Slurm 24.11) or forky (26.05)
# It is made once for each content of this script and of what the package depends on, below build/roots. The mirror is
# the one that apt is set to; PYTHON (default: .venv/bin/python) is this project's, whose pip gets the wheels.
set -eu

suite=${1:?usage: scripts/lab-root.sh SUITE [PYTHON]}
project=$(cd "$(dirname "$0")/.." && pwd)
pip_python=${2:-$project/.venv/bin/python}
packages=slurmctld,slurmd,slurm-client,slurm-wlm-basic-plugins,munge,libslurm-dev,gcc,libc6-dev,make
packages=$packages,python3,python3-dev,python3-venv,iproute2,procps,util-linux,lua-socket,slurmrestd,slurm-wlm-jwt-plugin
packages=$packages,slurmdbd,slurm-wlm-mysql-plugin,mariadb-server-core,mariadb-client-core
say() { echo "lab-root: $*" >&2; }

requirements() { "$pip_python" -c '
import tomllib, sys
print("\n".join(tomllib.load(open(sys.argv[1], "rb"))["project"]["dependencies"]))' "$project/pyproject.toml"; }

wanted=$({ cat "$0"; requirements; } | sha256sum | cut -c1-12)
roots=${SLURM_ENERGY_ROOTS:-$project/build/roots}
root=$roots/$suite-$wanted
if [ -e "$root.complete" ]; then
    echo "$root"
    exit 0
fi
# Another process may be making it at this moment.
mkdir -p "$roots"
exec 9>"$roots/.lock-$suite"
flock 9
if [ -e "$root.complete" ]; then
    echo "$root"
    exit 0
fi
[ "$(id -u)" = 0 ] || { say "root is needed: devices and owners of files"; exit 1; }
command -v mmdebstrap >/dev/null || { say "mmdebstrap is missing: apt-get install mmdebstrap"; exit 1; }

# shellcheck disable=SC2016  # apt's own variable
archives() { apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages'; }
mirror=${SLURM_ENERGY_MIRROR:-$(archives | grep -v security | sort -u | head -n 1)}
[ -n "$mirror" ] || { say "apt names no archive: set SLURM_ENERGY_MIRROR"; exit 1; }
# A run that was killed may have left /proc and /dev of this machine mounted in it.
awk -v below="$root/" 'index($2, below) == 1 { print $2 }' /proc/self/mounts | sort -r | xargs -r umount -l
rm -rf --one-file-system "$root"
if [ -d "${SLURM_ENERGY_BASE_ROOT:-}" ]; then
    say "copying $SLURM_ENERGY_BASE_ROOT"
    cp -a "$SLURM_ENERGY_BASE_ROOT" "$root"
else
    say "installing $suite from $mirror (some minutes)"
    # A testing suite's index may be older than it says it is valid.
    mmdebstrap --quiet --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' --include="$packages" \
        "$suite" "$root" "$mirror" >&2
fi
release=$(chroot "$root" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
say "wheels for Python $release"
wheels=$root/opt/wheels-for-lab
requirements >"$root/opt/requirements.txt"
"$pip_python" -m pip download --quiet --disable-pip-version-check --only-binary=:all: --python-version "$release" \
    -c "$project/constraints.txt" -r "$root/opt/requirements.txt" -d "$wheels" >&2
chroot "$root" python3 -m venv /opt/slurm-energy-lab
chroot "$root" env PIP_CONFIG_FILE=/dev/null /opt/slurm-energy-lab/bin/python -m pip install --quiet --no-index \
    --find-links /opt/wheels-for-lab -r /opt/requirements.txt >&2
rm -rf "$wheels"
: >"$root.complete"
echo "$root"
