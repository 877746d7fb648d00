"""The page's figures of the outcome network in the simulated cluster are those of the kept runs."""

import json
from pathlib import Path

from research.outcomes.reached import FILE, ROWS, SLURM, STATIC, reached_table

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/explanation/outcomes.md"


def run(joules: float, seconds: float) -> dict[str, float | str]:
    return {
        "joules_per_unit": joules,
        "mean_turnaround_seconds": seconds,
        "slurm_place_slowdown_percent": 2.0,
        "jobs_beyond_bound_percent": 10.0,
        "revision": "0",
    }


def test_energy_is_against_the_static_set_up_and_turnaround_against_slurm_seed_by_seed() -> None:
    network = "the same, network"
    runs = {
        STATIC: {"1": run(100.0, 90.0), "2": run(200.0, 90.0)},
        SLURM: {"1": run(110.0, 100.0), "2": run(220.0, 100.0)},
        network: {"1": run(90.0, 105.0), "2": run(180.0, 103.0), "3": run(1.0, 1.0)},
    }
    (line,) = [line for line in reached_table(runs) if line.startswith(f"| {network} |")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1].startswith("-10.0 [") and cells[2:] == ["2.0", "10.0", "+4.0", "2"]


def test_a_row_without_runs_is_left_out() -> None:
    assert len(list(reached_table({}))) == 2


def test_the_page_has_the_table_of_the_kept_runs_and_each_run_its_revision() -> None:
    runs = json.loads((ROOT / FILE).read_text(encoding="utf-8"))
    assert set(runs) <= set(ROWS)
    assert all(run["revision"] for rows in runs.values() for run in rows.values())
    assert "\n".join(reached_table(runs)) in PAGE.read_text(encoding="utf-8")
