"""How many random examples a property is tried with: $SLURM_ENERGY_EXAMPLES, others each time, or few and the same."""

import os

ARE_MANY = "SLURM_ENERGY_EXAMPLES" in os.environ
EXAMPLES = int(os.environ.get("SLURM_ENERGY_EXAMPLES", "20"))
