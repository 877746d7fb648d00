"""The example of docs/tutorials/train-an-agent.md runs as it stands."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "masked_ppo.py"


@pytest.mark.slow
def test_the_example_trains_and_measures(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed")
    spec = importlib.util.spec_from_file_location("masked_ppo", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    monkeypatch.setattr("sys.argv", ["masked_ppo.py", "--hours", "0.1", "--steps", "2048"])
    example.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "masked-random",
        "greedy",
        "price:V=20",
        "MaskablePPO, untrained",
        lines[4],
        "MaskablePPO, trained",
    ]
    assert lines[4].startswith("trained on 2048 decisions")
