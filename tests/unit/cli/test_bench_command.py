from pathlib import Path

import pytest

from slurm_energy.cli.main import main


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--nodes", "3"], 2, "3 is not in the range 4<=x<=16384"),
        (["--threads", "0"], 2, "--threads"),
        (["--policy", "magic"], 2, "--policy"),
        (["--nodes", "16", "--nodes", "16"], 1, "nodes 16, 16: one of them is there twice"),
        (["--nodes", "16", "--json", "/nonexistent/b.json"], 1, "folder '/nonexistent' does not exist"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(
    words: list[str], code: int, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "decision", *words]) == code
    said = capfd.readouterr()
    assert message in said.err
    assert said.out == ""


def test_a_run_with_both_parts_left_out_measures_nothing_and_writes_both_files(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = ["--json", str(tmp_path / "b.json"), "--markdown", str(tmp_path / "b.md")]
    assert main(["bench", "decision", "--policy", "oracle", "--decisions", "0", "--seconds", "0", *files]) == 0
    assert capfd.readouterr().out == ""
    assert '"in_process": []' in (tmp_path / "b.json").read_text()
    assert (tmp_path / "b.md").read_text().startswith("# Benchmarks of decisions")
