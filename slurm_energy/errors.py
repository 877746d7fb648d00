"""Every error that this package raises on purpose.

SlurmEnergyError
├── ConfigError          a configuration file, option or environment value
├── ValueRangeError      a value outside its bound, anywhere in the domain (also a ValueError)
├── WireError            a message that breaks the protocol
│   ├── DeadlineExceeded   no complete answer before the deadline
│   └── AuthenticationError  the sender is not who the message needs
├── DaemonUnavailable    nothing listens, or the daemon refuses for now
├── PermissionRefused    the caller may not see or do this
├── SlurmError           a Slurm command or answer
├── DeviceError          a GPU or energy counter
│   ├── DeviceNotSupported   the device lacks the function
│   └── DevicePermissionDenied
├── SpoolError           a state or report file on a node
├── StoreError           the database
│   └── SchemaVersionError   the database is older or newer than this code
├── PolicyError          a policy that does not exist or cannot decide
└── LabError             the laboratory cluster
"""


class SlurmEnergyError(Exception):
    """Base of all errors of this package; the message names thing, value, bound and next step."""


class ConfigError(SlurmEnergyError):
    """A configuration file, option or environment value cannot be used."""


class ValueRangeError(SlurmEnergyError, ValueError):
    """A value is outside its bound."""


class WireError(SlurmEnergyError):
    """A message breaks the protocol."""


class DeadlineExceeded(WireError):
    """No complete answer arrived before the deadline."""


class AuthenticationError(WireError):
    """The sender of a message could not be proven."""


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


class SchemaVersionError(StoreError):
    """The database's schema is older or newer than this code."""


class PolicyError(SlurmEnergyError):
    """A policy does not exist or cannot decide."""


class LabError(SlurmEnergyError):
    """The laboratory cluster cannot be started, reached or stopped."""
