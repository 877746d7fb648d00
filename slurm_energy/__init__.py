"""Energy-aware scheduling for Slurm: ask once at submission, apply on the nodes, measure every joule.

The names in `__all__` are the public Python API (docs/reference/api.md); each is imported when it is first used.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:  # a hook, which imports this too, does without
    from typing import Any

__version__ = "0.1.0"

_MODULES = {
    "slurm_energy.config": ("Config", "StoreConfig", "load_config"),
    "slurm_energy.domain.cluster": ("ClusterSnapshot", "JobState", "NodeGpus", "NodeState", "PartitionState"),
    "slurm_energy.domain.decision": ("ClockChoice", "EnergyDecision", "PolicyAnswer", "Reason", "RuntimeEstimate"),
    "slurm_energy.domain.job": ("EnergyMode", "EnergyOptions", "GpuDemand", "JobRequest"),
    "slurm_energy.domain.report": ("EnergyReport", "GroupEnergyRecord", "JobEnergyRecord"),
    "slurm_energy.errors": ("SlurmEnergyError",),
    "slurm_energy.policy.base": ("Case", "Policy"),
    "slurm_energy.policy.site.comparison": ("Candidate",),
    "slurm_energy.store.reports": ("job_energy", "report_jobs", "report_partitions", "report_users"),
    "slurm_energy.store.session": ("open_engine", "store_session"),
    "slurm_energy.store.summaries": ("JobFilter",),
    "slurm_energy.twin.environment": ("ENVIRONMENT_ID", "ClusterEnvironment"),
}
"""Public names by the module that has them."""
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = ["__version__", *sorted(_MODULE_OF)]  # noqa: PLE0604  # all of them are strings


def __getattr__(name: str) -> "Any":
    """Return a public name from the module that has it."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415  # only a user of the API pays for it

    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return what the module offers, imported or not."""
    return sorted({*globals(), *__all__})
