#!/bin/sh
# Build pyslurm 25.11 for the Slurm 26.05 of a root file system that scripts/lab-root.sh made, and install it there.
# Usage: scripts/pyslurm-for-root.sh ROOT [PYTHON]
# Neither pyslurm's distribution nor Slurm's headers are changed: packaging/pyslurm goes first in the include path.
# What was built says for which Slurm in a file `slurm-series` of its installed distribution.
# PYTHON (default: .venv/bin/python) is this project's, whose pip gets the distribution. Some minutes, once.
set -eu

root=${1:?usage: scripts/pyslurm-for-root.sh ROOT [PYTHON]}
project=$(cd "$(dirname "$0")/.." && pwd)
pip_python=${2:-$project/.venv/bin/python}
pyslurm='pyslurm==25.11.2'
say() { echo "pyslurm-for-root: $*" >&2; }

wanted=$({ cat "$0" && cat "$project"/packaging/pyslurm/slurm/*.h; } | sha256sum | cut -c1-12)
mark=$root/opt/pyslurm-$wanted.complete
[ ! -e "$mark" ] || exit 0
exec 9>"$root.lock-pyslurm"
flock 9
[ ! -e "$mark" ] || exit 0
[ "$(id -u)" = 0 ] || { say "root is needed: it changes into the folder"; exit 1; }

release=$(chroot "$root" /opt/slurm-energy-lab/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
work=$root/opt/pyslurm-build
rm -rf --one-file-system "$work"
mkdir -p "$work/wheels"
pip() { "$pip_python" -m pip download --quiet --disable-pip-version-check --dest "$work/wheels" "$@" >&2; }
pip --python-version "$release" --only-binary=:all: 'cython>=3.1,<4' setuptools wheel packaging
pip --no-deps --no-binary=pyslurm --no-build-isolation "$pyslurm"
cp -R "$project/packaging/pyslurm" "$work/include"
say "compiling $pyslurm (some minutes)"
# shellcheck disable=SC2016  # for the shell in the root
chroot "$root" sh -eu -c '
    cd /opt/pyslurm-build
    python3 -m venv build-environment
    build-environment/bin/python -m pip install --quiet --no-index --find-links wheels cython setuptools wheel packaging
    library=$(find /usr/lib -name libslurmfull.so | head -n 1)
    export SLURM_INCLUDE_DIR=/opt/pyslurm-build/include SLURM_LIB_DIR="${library%/*}"
    export CFLAGS="-I/opt/pyslurm-build/include -O1" PIP_CONFIG_FILE=/dev/null
    export PATH=/opt/pyslurm-build/build-environment/bin:$PATH PYSLURM_BUILD_JOBS=2
    build-environment/bin/python -m pip wheel --quiet --no-deps --no-build-isolation -w built wheels/pyslurm-*.tar.gz
    /opt/slurm-energy-lab/bin/python -m pip install --quiet --no-index --no-deps --force-reinstall built/pyslurm-*.whl
    installed=$(find /opt/slurm-energy-lab -type d -name "pyslurm-*.dist-info")
    echo 26.05 >"$installed/slurm-series"
' >&2
rm -rf --one-file-system "$work"
: >"$mark"
