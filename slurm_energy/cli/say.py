"""Messages on stderr, without the imports of a command-line library."""

import os

from slurm_energy.reporting.visible import visible


def say(text: str, program: str = "energy-sbatch") -> None:
    """Write one line on stderr; a closed stderr is no error."""
    try:
        os.write(2, f"{program}: {visible(text)}\n".encode("utf-8", "replace"))
    except OSError:
        return
