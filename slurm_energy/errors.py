"""Every error that this package raises on purpose.

SlurmEnergyError
├── ConfigError          a configuration file, option or environment value
├── DataFileError        a file of measurements
├── ValueRangeError      a value outside its bound, anywhere in the domain (also a ValueError)
├── WireError            a message that breaks the protocol
│   ├── DeadlineExceeded   no complete answer before the deadline
│   └── AuthenticationError  the sender could not be authenticated
├── DaemonUnavailable    nothing listens, or the daemon refuses for now
├── PermissionRefused    the caller may not see or do this
├── SlurmError           a Slurm command or answer
├── DeviceError          a GPU or energy counter
│   ├── DeviceNotSupported   the device lacks the function
│   └── DevicePermissionDenied
├── SpoolError           a state or report file on a node
├── StoreError           the database
│   ├── DatabaseReplaced     its file was moved, removed or restored
│   └── SchemaVersionError   the database is older or newer than this code
├── WorkloadError        a file of jobs for the simulator
├── PolicyError          a policy that does not exist or cannot decide
│   ├── CheckpointError    a learned policy's files
│   └── CandidateError     a candidate policy's folder
├── TrainingError        a training that cannot be made
├── EvaluationError      a comparison of policies that cannot be made, or an outcome that cannot be
└── LabError             the laboratory cluster

What Python and other packages raise beside them reaches people through `plain_words`, at each program's outermost call.
"""

import errno


class SlurmEnergyError(Exception):
    """Base of all errors of this package; the message names thing, value, bound and next step."""


class ConfigError(SlurmEnergyError):
    """A configuration file, option or environment value cannot be used."""


class DataFileError(SlurmEnergyError):
    """A file of measurements is missing or has a bad value; the message names file, line, column and value."""


class ValueRangeError(SlurmEnergyError, ValueError):
    """A value is outside its bound."""


class WireError(SlurmEnergyError):
    """A message breaks the protocol."""


class DeadlineExceeded(WireError):
    """No complete answer arrived before the deadline."""


class AuthenticationError(WireError):
    """The sender of a message could not be authenticated."""


class DaemonUnavailable(SlurmEnergyError):
    """No daemon answers."""


class PermissionRefused(SlurmEnergyError):
    """The caller may not see or do this."""


class SlurmError(SlurmEnergyError):
    """A Slurm command failed or its answer cannot be understood."""


class DeviceError(SlurmEnergyError):
    """A GPU or an energy counter failed."""


class DeviceNotSupported(DeviceError):
    """The device or its driver lacks the function."""


class DevicePermissionDenied(DeviceError):
    """The function needs more rights than this process has."""


class SpoolError(SlurmEnergyError):
    """A state or report file on a node cannot be used."""


class StoreError(SlurmEnergyError):
    """The database cannot be used."""


class DatabaseReplaced(StoreError):
    """The database file was moved, removed or restored while it is in use."""


class SchemaVersionError(StoreError):
    """The database's schema is older or newer than this code."""


class WorkloadError(SlurmEnergyError):
    """A file of jobs cannot be read or written as a workload."""


class PolicyError(SlurmEnergyError):
    """A policy does not exist or cannot decide."""


class CheckpointError(PolicyError):
    """The files of a learned policy cannot be used."""


class CandidateError(PolicyError):
    """The folder of a candidate policy cannot be read or written, or holds what cannot be used."""


class TrainingError(SlurmEnergyError):
    """There is nothing to learn from, or the training diverged."""


class EvaluationError(SlurmEnergyError):
    """Policies cannot be compared, or an outcome says what no policy can reach: somewhere energy or work is lost."""


class LabError(SlurmEnergyError):
    """The laboratory cluster cannot be started, reached or stopped."""


_NEXT_STEPS = {
    errno.EACCES: "run it as root or as the user that it belongs to, or have its rights changed",
    errno.EPERM: "run it as root",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path: a part of it is a file",
    errno.EISDIR: "name a file, not a folder",
    errno.EEXIST: "move it away first",
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room inside your quota",
    errno.EROFS: "choose a folder on another disk",
    errno.ELOOP: "check the path: its links lead round in a circle",
    errno.EMFILE: "raise the limit of open files: ulimit -n",
}


def plain_words(error: BaseException) -> str:
    """Return what an error of Python or of another package means to the person at the terminal, in one line.

    The last resort of each program: where an error is expected it is translated where it happens.
    """
    if isinstance(error, SlurmEnergyError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        step = _NEXT_STEPS.get(error.errno or 0)
        thing = f"{error.filename}: " if error.filename else ""
        return f"{thing}{error.strerror}{f'; {step}' if step else ''}"
    if isinstance(error, ImportError):
        return f"a part of the installation cannot be loaded: {error}; install slurm-energy again"
    if isinstance(error, MemoryError):
        return "there is not enough memory for this"
    kind = type(error).__name__
    return f"internal error {kind}: {error}; this is a fault of slurm-energy: report it with what --traceback shows"
