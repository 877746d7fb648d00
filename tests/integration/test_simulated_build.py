"""The simulated NVML is compiled once, without a warning, and a compiler that fails is quoted."""

import shutil
from pathlib import Path

import pytest

from slurm_energy.errors import LabError
from slurm_energy.lab.simgpu import build as build_module
from slurm_energy.lab.simgpu.build import build


def test_sources_compile_without_a_warning_and_a_second_build_compiles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module, "_FLAGS", (*build_module._FLAGS, "-Werror"))
    first = build(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))

    assert build(tmp_path) == first
    assert sorted(path.name for path in first.directory.iterdir()) == ["libnvidia-ml.so.1", "simgpu-workload"]
    assert [path.name for path in tmp_path.iterdir()] == [first.directory.name]


def test_changed_source_is_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "native"
    shutil.copytree(build_module.SOURCE_DIRECTORY, sources)
    monkeypatch.setattr(build_module, "SOURCE_DIRECTORY", sources)
    monkeypatch.setattr(build_module, "_compile_all", lambda folder, missing: _touch_products(folder))
    before = build(tmp_path / "out")
    with (sources / "physics.c").open("a") as file:
        file.write("/* changed */\n")

    assert build(tmp_path / "out").directory != before.directory


def test_warning_of_a_compiler_keeps_no_lab_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "native"
    shutil.copytree(build_module.SOURCE_DIRECTORY, sources)
    with (sources / "physics.c").open("a") as file:
        file.write("static int never_called(void)\n{\n\tint unused = 1;\n\n\treturn 0;\n}\n")
    monkeypatch.setattr(build_module, "SOURCE_DIRECTORY", sources)

    assert build(tmp_path / "out").library.is_file()


def test_missing_compiler_is_named_with_the_package_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(LabError, match="apt-get install gcc"):
        build(tmp_path)


def test_source_that_does_not_compile_shows_the_compilers_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "native"
    shutil.copytree(build_module.SOURCE_DIRECTORY, sources)
    (sources / "state.c").write_text("int broken\n")
    monkeypatch.setattr(build_module, "SOURCE_DIRECTORY", sources)

    with pytest.raises(LabError, match=r"state\.c"):
        build(tmp_path / "out")


def _touch_products(folder: Path) -> None:
    (folder / "libnvidia-ml.so.1").touch()
    (folder / "simgpu-workload").touch()
