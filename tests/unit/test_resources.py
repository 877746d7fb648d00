"""How what is missing is installed, by where this installation came from."""

from pathlib import Path

import pytest

from slurm_energy.resources import PACKAGE_FOLDER, install_command


def test_a_clone_or_a_wheel_takes_the_extra_by_its_name() -> None:
    assert install_command("metrics", Path("/opt/slurm-energy")) == "pip install './slurm-energy[metrics]'"


@pytest.mark.parametrize(("through_apt", "program"), [(True, "apt-get install --reinstall"), (False, "dnf reinstall")])
def test_what_the_package_has_is_put_back_with_the_package(tmp_path: Path, through_apt: bool, program: str) -> None:
    listed = tmp_path / "slurm-energy.list"
    if through_apt:
        listed.touch()
    assert install_command("mariadb", PACKAGE_FOLDER, listed) == f"{program} slurm-energy"


def test_what_the_package_lacks_goes_beside_it_by_the_names_that_pip_knows() -> None:
    target = "pip install --target /usr/local/lib/slurm-energy/site-packages"
    assert install_command("metrics", PACKAGE_FOLDER).endswith(f"{target} 'prometheus-client>=0.20'")
    said = install_command("train", PACKAGE_FOLDER)
    assert "slurm-energy[" not in said
    for name in ("torch", "safetensors", "gymnasium", "torch-geometric"):
        assert f"'{name}" in said
    assert said.endswith("--extra-index-url https://download.pytorch.org/whl/cpu")
