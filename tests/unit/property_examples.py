"""How many random examples a property is tried with: $SLURM_ENERGY_EXAMPLES, or few."""

import os

EXAMPLES = int(os.environ.get("SLURM_ENERGY_EXAMPLES", "20"))
