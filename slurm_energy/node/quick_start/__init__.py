"""What makes a hook's own process start fast: stand-ins for what the standard library does at every import.

`dataclasses` writes each class's methods as source text, compiles it, and imports `inspect` to do so: a third of a
hook's time. `typing` takes a tenth, for names that mean nothing to a running hook. Until Python 3.12 `pathlib` imports
`urllib.parse` and `ipaddress` for one method, which makes URIs; here it does without. Nothing but the hook's start
imports this package.
"""

import sys
from types import ModuleType

from slurm_energy.node.quick_start import data_classes


def install(*, without_typing: bool = False) -> None:
    """Let every later import of this process have the stand-ins, and import pathlib without its URIs.

    Args:
        without_typing: Whether `typing` has its stand-in too: for prolog and epilog, whose modules use it for nothing
            but annotations and the choices of a setting.
    """
    sys.modules.setdefault("dataclasses", data_classes)
    if without_typing:
        from slurm_energy.node.quick_start import typing_names  # noqa: PLC0415  # timers' hooks have the real one

        sys.modules.setdefault("typing", typing_names)
    if "urllib.parse" not in sys.modules:
        sys.modules["urllib.parse"] = empty = ModuleType("urllib.parse")
        empty.quote_from_bytes = None  # type: ignore[attr-defined]  # a module is open
        try:
            import pathlib  # noqa: F401, PLC0415  # that is what this is for
        finally:
            del sys.modules["urllib.parse"]
