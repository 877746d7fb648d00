"""The compiled library as Python calls it: attach, lock, settle, and what tests switch."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_energy.errors import LabError
from slurm_energy.lab.simgpu.build import LIBRARY_NAME, build
from slurm_energy.lab.simgpu.layout import LoadStruct, OperatingPointStruct, StateStruct, check_layout

_STATE = ctypes.POINTER(StateStruct)
_loaded: dict[Path, ctypes.CDLL] = {}


def load_native(library: Path) -> ctypes.CDLL:
    """Return the library with its own functions declared; its structures are compared with ours at the first load.

    Raises:
        LabError: not a library, or built from other sources.
    """
    path = library.resolve()
    if path not in _loaded:
        _loaded[path] = _declare(path)
    return _loaded[path]


def find_library(state_path: Path) -> Path:
    """Return the library beside a state file (`../lib`, as in a laboratory), else one built into the user's cache."""
    beside = state_path.resolve().parent.parent / "lib" / LIBRARY_NAME
    if beside.is_file():
        return beside
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return build(cache / "slurm-energy").library


class MappedState:
    """A mapped state file and the library that works on it."""

    def __init__(self, path: Path, native: ctypes.CDLL) -> None:
        """Map the file.

        Raises:
            LabError: no state file, or one of another version.
        """
        self.path = path
        self.native = native
        self._pointer = ctypes.POINTER(StateStruct)()
        code = native.simgpu_attach(os.fsencode(path), ctypes.byref(self._pointer))
        if code:
            raise LabError(f"{path} is not a usable state of simulated GPUs: {os.strerror(code)}")

    def close(self) -> None:
        """Unmap the file."""
        if self._pointer:
            self.native.simgpu_detach(self._pointer)
            self._pointer = ctypes.POINTER(StateStruct)()

    @property
    def pointer(self) -> "ctypes._Pointer[StateStruct]":
        """The map, for the library's functions."""
        if not self._pointer:
            raise LabError(f"state {self.path} is closed")
        return self._pointer

    @contextmanager
    def locked(self) -> Iterator[StateStruct]:
        """Hold the node's lock; a holder that is killed gives it up."""
        pointer = self.pointer
        code = self.native.simgpu_lock(pointer)
        if code:
            raise LabError(f"state {self.path} is locked by another process: {os.strerror(code)}")
        try:
            yield pointer.contents
        finally:
            self.native.simgpu_unlock(pointer)


def _declare(path: Path) -> ctypes.CDLL:
    try:
        native = ctypes.CDLL(str(path))
        native.simgpu_layout_json.restype = ctypes.c_char_p
        check_layout(native.simgpu_layout_json())
        signatures = {
            "simgpu_initialise": (ctypes.c_int, _STATE),
            "simgpu_attach": (ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_STATE)),
            "simgpu_detach": (None, _STATE),
            "simgpu_lock": (ctypes.c_int, _STATE),
            "simgpu_unlock": (None, _STATE),
            "simgpu_changed": (None, _STATE),
            "simgpu_device_seconds": (ctypes.c_double, _STATE),
            "simgpu_settle": (None, _STATE, ctypes.c_uint32),
            "simgpu_evaluate": (None, ctypes.c_void_p, ctypes.POINTER(OperatingPointStruct)),
            "simgpu_counter_millijoules": (ctypes.c_uint64, ctypes.c_void_p),
            "simgpu_load_add": (ctypes.c_int, _STATE, ctypes.c_uint32, ctypes.POINTER(LoadStruct)),
            "simgpu_load_remove": (None, _STATE, ctypes.c_uint32, ctypes.c_int),
            "simgpu_fault_set": (ctypes.c_int, _STATE, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32),
            "simgpu_driver_reload": (None, _STATE, ctypes.c_uint32),
        }
        for name, (result, *arguments) in signatures.items():
            function = getattr(native, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise LabError(f"{path} is not a simulated NVML library: {error}") from error
    return native
