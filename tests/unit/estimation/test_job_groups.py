import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.estimation.job_groups import job_group, name_stem


@pytest.mark.parametrize(
    "name",
    [
        "",
        "train",
        "train_17",
        "train_lr0.1_seed3",
        "run.sh",
        "wrap",
        "job",
        "exp_a1b2c3d4",
        "train-2024-01-02",
        "lr1e-4",
        "Run-3.slurm",
        "test",
        "main.py",
        "007",
        "python train.py",
    ],
)
def test_names_that_say_nothing_are_grouped_by_script(name: str) -> None:
    assert name_stem(name) == ""
    assert job_group(name, "k1") == "script:k1" != job_group(name, "k2")


@pytest.mark.parametrize("name", ["resnet50", "lammps_water", "gpt2", "训练", "t5"])
def test_names_that_say_something_stay(name: str) -> None:
    assert job_group(name, "k1") == name


def test_names_that_differ_in_parameters_alone_are_one_with_a_script() -> None:
    assert job_group("bert_lr0.1", "k1") == job_group("bert_lr0.2_seed4", "k1") == "bert script:k1"
    assert job_group("bert_lr0.1", "k1") != job_group("bert_lr0.1", "k2")
    assert job_group("bert_lr0.1", "k1") != job_group("vit_lr0.1", "k1")


@given(st.text(max_size=2_000))
def test_without_a_script_every_name_is_its_own_group(name: str) -> None:
    assert job_group(name, None) == job_group(name, "") == name


@given(st.text(max_size=600))
def test_any_name_has_a_group(name: str) -> None:
    assert len(job_group(name, "k1")) <= len(name) + 32 + len(name.lower())


@pytest.mark.parametrize(
    "name", ["a" * 10_000, "1." * 5_000, "lr" * 5_000, "_" * 10_000, "0123456789abcdef" * 600, "é" * 10_000]
)
def test_a_name_of_ten_thousand_characters_has_a_group(name: str) -> None:
    assert job_group(name, "k1").endswith("script:k1") or job_group(name, "k1") == name
