#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# slurm-energy's prolog and epilog in one: slurmd names in SLURM_SCRIPT_CONTEXT the one it runs. Never fails a job.
# `slurm-energy install` writes the interpreter's path in place of @PYTHON@; else the file slurm-energy-hook.path
# beside slurm.conf may name the hook program.
case ${SLURM_SCRIPT_CONTEXT:-} in prolog_slurmd) VERB=prolog ;; epilog_slurmd) VERB=epilog ;; *) exit 0 ;; esac
# -S: Python starts without its site module, a twentieth of the hook's time; what is not found then is found with it.
START='import sys
sys.path.append("%s/lib/python%d.%d/site-packages" % (sys.executable.rpartition("/bin/")[0], *sys.version_info[:2]))
try: from slurm_energy.node.main import main
except ImportError:
    import site; site.main()
    sys.modules.pop("slurm_energy", None)  # a folder of that name without the code, as beside an editable install
    from slurm_energy.node.main import main
main()'
set -- '@PYTHON@' -I -S -c "$START"
if [ ! -x "$1" ]; then  # only then: the folder of slurm.conf may hang, and a pipe would
    HOOK=/opt/slurm-energy/bin/slurm-energy-hook NAMED="${SLURM_CONF%/*}/slurm-energy-hook.path"
    [ ! -f "$NAMED" ] || [ ! -r "$NAMED" ] || read -r HOOK <"$NAMED"
    set -- "$HOOK"
fi
if [ -x "$1" ]; then "$@" "$VERB"; exit 0; fi
TEXT="slurm-energy: $1 is missing: no $VERB for job ${SLURM_JOB_ID:-}; run slurm-energy install again"
echo "$TEXT" >&2
# slurmd shows the output of a hook that succeeds in its debug log only.
[ ! -x /usr/bin/logger ] || /usr/bin/timeout 2 /usr/bin/logger -t slurm-energy -- "$TEXT" </dev/null >/dev/null 2>&1
exit 0
