from pathlib import Path

import pytest

from slurm_energy.errors import LabError
from slurm_energy.lab.layout import Layout
from slurm_energy.lab.prepare import describe, recall
from slurm_energy.lab.root import prepare_in_root
from slurm_energy.lab.spec import LabSpec


def test_a_description_keeps_the_root() -> None:
    spec = LabSpec(root=Path("/srv/roots/trixie"))
    assert recall(describe(spec)) == spec
    assert recall(describe(LabSpec())).root is None


def test_a_folder_that_no_script_made_is_refused_and_the_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        LabError, match=r"has no /opt/slurm-energy-lab/bin/python: make a root with scripts/lab-root\.sh"
    ):
        prepare_in_root(tmp_path, Layout(Path("/tmp/lab")), describe(LabSpec()))
