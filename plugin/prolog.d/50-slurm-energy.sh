#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# slurm-energy's prolog. Never fails a job. `slurm-energy install` puts the interpreter's path in place of @PYTHON@.
PYTHON='@PYTHON@'
[ -x "$PYTHON" ] || PYTHON=/opt/slurm-energy/bin/python
if [ -x "$PYTHON" ]; then "$PYTHON" -I -m slurm_energy.node.main prolog; else echo "slurm-energy: no $PYTHON: no prolog" >&2; fi
exit 0
