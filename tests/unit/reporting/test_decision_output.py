import io
from dataclasses import replace

import pytest
from decision_results import make_bench, make_in_process, make_through_daemon
from rich.console import Console

from slurm_energy.reporting.decision_bench import bench_page, bench_tables, print_bench, remarks

ROWS = (make_in_process(16, 4.0), make_in_process(256, 8.0), make_in_process(256, 8.0, threads=2, peer=None))


def test_the_page_has_every_table_and_says_which_goals_are_missed() -> None:
    page = bench_page(make_bench(ROWS, (make_through_daemon(),)), "slurm-energy bench decision")
    assert page.startswith("# Benchmarks of decisions\n\nWritten by `slurm-energy bench decision`.")
    assert "2 cores, A processor" in page
    assert (
        "| 256 | 1,536 | 250 | 1 | 2.00 | 4.00 | 2.00 | 4.00 | 8.00 | 2.00 | 10.0 | 0.20 | 0.50 | 60.0 | 1,000 |"
        in page
    )
    assert (
        "| change and decision at 256 nodes over 16 nodes, 1 thread | 2.00 | ≤ 1.5 times | missed "
        "| the paper: 5.9, 47 ms over 8 ms |" in page
    )
    assert "| peak memory of all processes at 256 nodes | 450 | ≤ 500 MB | met | the paper: 2,400 MB |" in page
    assert page.endswith("\n")
    assert max(map(len, page.split("## How")[1].splitlines())) <= 120


def test_what_is_unknown_is_an_empty_cell() -> None:
    (alone, *_) = bench_tables(make_bench(ROWS))
    assert alone.rows[2][-6:] == ("", "10.0", "0.20", "0.50", "", "")
    oracle = make_through_daemon(policy="oracle", learned_share=None, network_share=None)
    (daemon, *_) = bench_tables(make_bench(daemon=(oracle,)))
    assert daemon.rows[0][8] == ""


def test_a_part_that_was_left_out_has_no_table() -> None:
    assert [table.title for table in bench_tables(make_bench(ROWS[:1]))] == ["In a process of its own", "Goals"]


def test_a_run_that_did_not_ask_the_network_or_fell_behind_says_so() -> None:
    slow = make_in_process(4096, network_share=0.5, changes_per_second=14.8)
    assert remarks(make_bench((slow,), (make_through_daemon(network_share=0.25),))) == (
        "At 4,096 nodes, 1 thread: the network was asked in 50% of the decisions only.",
        "At 4,096 nodes, 1 thread: 15 single changes a second were taken in, 32 were due.",
        "Daemon at 256 nodes: for 25% of the jobs only there was a choice.",
    )
    assert remarks(make_bench(ROWS, (make_through_daemon(),))) == ()


def test_the_terminal_shows_the_same_figures() -> None:
    stream = io.StringIO()
    print_bench(make_bench(ROWS, (make_through_daemon(),)), Console(file=stream, width=160, highlight=False))
    shown = stream.getvalue()
    assert "missed" in shown
    assert "99.5%" in shown
    assert "sum of peaks" in shown


@pytest.mark.parametrize(
    ("checkpoint", "words"),
    [("", "random weights"), ("shipped", "comes with the package"), ("/a/b", "those of /a/b."), (None, "a rule")],
)
def test_a_page_says_which_network_was_asked(checkpoint: str | None, words: str) -> None:
    assert words in bench_page(replace(make_bench(ROWS), checkpoint=checkpoint), "command")


def test_time_that_the_host_of_a_virtual_machine_took_is_told_where_it_matters() -> None:
    rows = [make_through_daemon(nodes, stolen_share=share) for nodes, share in ((16, None), (64, 0.01), (256, 0.124))]
    (told,) = remarks(make_bench((), tuple(rows)))
    assert told.startswith("Daemon at 256 nodes: the host of this virtual machine kept 12% of a processor")
