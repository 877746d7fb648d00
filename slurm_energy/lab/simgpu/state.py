"""The state file of one node: create it and open it."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from slurm_energy.errors import LabError, SpoolError
from slurm_energy.files import write_atomically
from slurm_energy.lab.simgpu.gpu import SimulatedGpu, encode_gpu
from slurm_energy.lab.simgpu.layout import MAX_GPUS, Call, Fault, StateStruct
from slurm_energy.lab.simgpu.native import MappedState, find_library, load_native
from slurm_energy.lab.simgpu.specs import SimulatedGpuSpec, standard_gpus

__all__ = ["Call", "Fault", "NodeGpuState", "SimulatedGpu", "SimulatedGpuSpec", "create_state", "standard_gpus"]

DEFAULT_COUNTER_INTERVAL_SECONDS = 0.1
"""Device time between two steps of the energy counter; a real H100 has 0.05 to 0.10 s."""
DRIVER_VERSION = "580.159.04"


def create_state(
    path: Path,
    gpus: Sequence[SimulatedGpuSpec],
    *,
    time_scale: float = 60.0,
    library: Path | None = None,
    node_name: str | None = None,
    counter_interval_seconds: float = DEFAULT_COUNTER_INTERVAL_SECONDS,
) -> None:
    """Write a node's state file, readable and writable by everyone, in place of one that is there.

    Args:
        path: `NODE.state`; its name without suffix is the node's name unless `node_name` says otherwise.
        gpus: In the driver's order.
        time_scale: Device seconds per wall second; 0 stops time, which then only `NodeGpuState.advance` moves.
        library: The compiled library; None: found or built by `native.find_library`.
        node_name: Slurm's name of the node.
        counter_interval_seconds: Device time between two steps of the energy counter; 0: it moves all the time.

    Raises:
        LabError: too many GPUs, equal UUIDs or minor numbers, a negative time, a file that cannot be written.
    """
    _check_node(gpus, time_scale, counter_interval_seconds)
    native = load_native(library or find_library(path))
    state = StateStruct()
    state.gpu_count = len(gpus)
    state.time_scale = time_scale
    state.counter_interval_seconds = counter_interval_seconds
    state.node_name = (node_name or path.stem).encode()[:63]
    state.driver_version = DRIVER_VERSION.encode()
    for index, spec in enumerate(gpus):
        encode_gpu(spec, state.gpus[index])
    if native.simgpu_initialise(ctypes.byref(state)):
        raise LabError(f"state {path}: its lock cannot be made")
    try:
        write_atomically(path, bytes(state), mode=0o666, durable=False)  # ordinary users' jobs load the GPUs
    except SpoolError as error:
        raise LabError(f"state {error}") from error


def _check_node(gpus: Sequence[SimulatedGpuSpec], time_scale: float, counter_interval_seconds: float) -> None:
    if not 0 <= len(gpus) <= MAX_GPUS:
        raise LabError(f"{len(gpus)} simulated GPUs on one node, at most {MAX_GPUS}")
    for thing in ("uuid", "minor_number", "pci_bus"):
        if len({getattr(gpu, thing) for gpu in gpus}) != len(gpus):
            raise LabError(f"simulated GPUs of one node need different values of {thing}")
    if not 0.0 <= time_scale <= 1e6 or not 0.0 <= counter_interval_seconds <= 3600.0:
        raise LabError(
            f"time scale {time_scale} (0 to 1e6) or counter interval {counter_interval_seconds} s (0 to 3600)"
        )


class NodeGpuState:
    """An open state file; a context manager, safe beside any number of other processes."""

    def __init__(self, path: Path, library: Path | None = None) -> None:
        """Map the file.

        Raises:
            LabError: no state file, or one of another version.
        """
        self.path = path
        self._mapped = MappedState(path, load_native(library or find_library(path)))
        count = self._mapped.pointer.contents.gpu_count
        self.gpus = tuple(SimulatedGpu(self._mapped, index) for index in range(count))

    def __enter__(self) -> "NodeGpuState":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the file."""
        self._mapped.close()

    @property
    def time_scale(self) -> float:
        """Device seconds per wall second."""
        return float(self._mapped.pointer.contents.time_scale)

    @property
    def device_seconds(self) -> float:
        """Device time since the state was made."""
        return float(self._mapped.native.simgpu_device_seconds(self._mapped.pointer))

    def average_power_over(self, seconds: float) -> None:
        """Let the power reading follow with this time constant, as boards since Ampere do (1 s); 0: at once.

        The field of instant power is never averaged.
        """
        with self._mapped.locked() as state:
            state.power_averaging_seconds = seconds

    def by_minor(self, minor_number: int) -> "SimulatedGpu":
        """Return the GPU behind /dev/nvidiaN."""
        return next(gpu for gpu in self.gpus if gpu.minor_number == minor_number)

    def by_uuid(self, uuid: str) -> "SimulatedGpu":
        """Return the GPU of a UUID."""
        return next(gpu for gpu in self.gpus if gpu.uuid == uuid)

    def advance(self, device_seconds: float) -> None:
        """Move the time of a state with time scale 0 forward, and bring every GPU's account there."""
        if self.time_scale > 0.0 or device_seconds < 0.0:
            raise LabError(f"time of {self.path} runs by itself or would go back by {device_seconds} s")
        with self._mapped.locked() as state:
            state.manual_seconds += device_seconds
            for index in range(state.gpu_count):
                self._mapped.native.simgpu_settle(self._mapped.pointer, index)
            self._mapped.native.simgpu_changed(self._mapped.pointer)
