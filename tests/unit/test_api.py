"""The public Python API: its names, what importing it costs, and its page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import slurm_energy

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
NAMES = {
    "Candidate", "Case", "ClockChoice", "ClusterEnvironment", "ClusterSnapshot", "Config",
    "ENVIRONMENT_ID", "EnergyDecision", "EnergyMode", "EnergyOptions", "EnergyReport", "GpuDemand",
    "GroupEnergyRecord", "JobEnergyRecord", "JobFilter", "JobRequest", "JobState", "NodeGpus", "NodeState",
    "PartitionState", "Policy", "PolicyAnswer", "Reason", "RuntimeEstimate", "SlurmEnergyError", "StoreConfig",
    "__version__", "job_energy", "load_config", "open_engine", "report_jobs", "report_partitions", "report_users",
    "store_session",
}  # fmt: skip
"""Promised: to remove one, announce it in a release and raise the major version."""


def test_every_promised_name_is_there_and_no_other_is_promised() -> None:
    assert set(slurm_energy.__all__) == NAMES
    for name in NAMES - {"ENVIRONMENT_ID", "ClusterEnvironment"}:
        assert getattr(slurm_energy, name) is not None
    assert set(dir(slurm_energy)) >= NAMES
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        slurm_energy.nothing  # noqa: B018  # looked up for its error


def test_the_environment_can_be_made_by_its_id() -> None:
    gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed: the twin extra has it")
    made = gymnasium.make(slurm_energy.ENVIRONMENT_ID, world="chsac", horizon_seconds=600.0)
    assert isinstance(made.unwrapped, slurm_energy.ClusterEnvironment)


def test_importing_the_package_imports_none_of_its_modules_and_nothing_heavy() -> None:
    look = (
        "import sys; before = set(sys.modules); import slurm_energy; new = set(sys.modules) - before; "
        "print(sorted(name for name in new if name.startswith('slurm_energy.')"
        " or name in {'torch', 'numpy', 'sqlalchemy', 'gymnasium'}))"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_page_names_every_name_and_its_examples_compile() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", "\n".join(line for line in text.splitlines() if line.startswith("|"))))
    assert NAMES - {"__version__"} <= named
    examples = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        compile(example, "api.md", "exec")
