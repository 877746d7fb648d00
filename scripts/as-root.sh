#!/bin/sh
# Run a command as root: a laboratory cluster needs mounts and namespaces of its own.
set -eu
if [ "$(id -u)" = 0 ]; then
    exec "$@"
elif command -v sudo >/dev/null 2>&1; then
    exec sudo --preserve-env=CI,PYTEST_FLAGS,SLURM_ENERGY_RELEASE,SLURM_ENERGY_ROOTS,SLURM_ENERGY_MIRROR,ALLOW_MISSING_RELEASES "$@"
fi
echo "root is needed to run a laboratory cluster: run as root, or install sudo" >&2
exit 1
