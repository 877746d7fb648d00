#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# slurm-energy's prolog and epilog in one: slurmd names in SLURM_SCRIPT_CONTEXT the one it runs. Never fails a job.
# `slurm-energy install` writes the interpreter's path in place of @PYTHON@; else the file slurm-energy-hook.path
# beside slurm.conf may name the hook program.
case ${SLURM_SCRIPT_CONTEXT:-} in prolog_slurmd) VERB=prolog ;; epilog_slurmd) VERB=epilog ;; *) exit 0 ;; esac
set -- '@PYTHON@' -I -m slurm_energy.node.main; HOOK=/opt/slurm-energy/bin/slurm-energy-hook
[ ! -r "${SLURM_CONF%/*}/slurm-energy-hook.path" ] || read -r HOOK <"${SLURM_CONF%/*}/slurm-energy-hook.path"
[ -x "$1" ] || set -- "$HOOK"
if [ -x "$1" ]; then "$@" "$VERB"; exit 0; fi
TEXT="slurm-energy: $1 is missing: no $VERB for job ${SLURM_JOB_ID:-}; run slurm-energy install again"
echo "$TEXT" >&2
# slurmd shows the output of a hook that succeeds to nobody but its debug log.
[ ! -x /usr/bin/logger ] || /usr/bin/timeout 2 /usr/bin/logger -t slurm-energy -- "$TEXT" </dev/null >/dev/null 2>&1
exit 0
