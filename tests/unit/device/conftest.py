"""The fake GPUs of the hooks' tests serve here too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "node"))
