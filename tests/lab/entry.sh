#!/bin/sh
# Process 1 of the lab's container: entry.sh [OPTIONS OF slurm_energy.lab.prepare]
# Fills /lab at the first start, then runs the same script as the lab in namespaces does.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
rm -f /lab/run/up
[ -e /lab/etc/lab.json ] || "$root/.venv/bin/python" -m slurm_energy.lab.prepare /lab "$@"
exec /bin/sh "$root/slurm_energy/lab/entry.sh" /lab
