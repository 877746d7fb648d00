#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# slurm-energy's prolog; never fails a job. `slurm-energy install` writes the interpreter's path in place of @PYTHON@;
# else the file slurm-energy-hook.path beside slurm.conf may name the hook program.
set -- '@PYTHON@' -I -m slurm_energy.node.main; HOOK=/opt/slurm-energy/bin/slurm-energy-hook
[ ! -r "${SLURM_CONF%/*}/slurm-energy-hook.path" ] || read -r HOOK <"${SLURM_CONF%/*}/slurm-energy-hook.path"
[ -x "$1" ] || set -- "$HOOK"
if [ -x "$1" ]; then "$@" prolog; else echo "slurm-energy: $1 is missing: no prolog" >&2; fi
exit 0
