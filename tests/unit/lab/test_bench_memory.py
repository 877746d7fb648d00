import os
from pathlib import Path

from slurm_energy.lab.bench.daemon_process import memory_of, process_tree, stolen_seconds

STATUS = "Name:\tpython\nVmPeak:\t  999999 kB\nVmHWM:\t  100000 kB\nVmRSS:\t   90000 kB\n"
CHILD = (
    "/usr/bin/python\0-P\0-c\0import sys; from slurm_energy.daemon.policy.process import main; sys.exit(main())\0007\0"
)


def write_process(proc: Path, process_id: int, parent: int, command: str, *, rollup: bool = True) -> None:
    folder = proc / str(process_id)
    folder.mkdir()
    (folder / "stat").write_text(f"{process_id} (a (strange) name) S {parent} 1 1\n")
    (folder / "status").write_text(STATUS)
    (folder / "cmdline").write_text(command)
    if rollup:
        (folder / "smaps_rollup").write_text("5555-6666 ---p 0 00:00 0 [rollup]\nRss:  90000 kB\nPss:  50000 kB\n")


def test_memory_is_told_in_millions_of_bytes_under_the_name_of_the_part(tmp_path: Path) -> None:
    write_process(tmp_path, 7, 1, "python\0-m\0slurm_energy.daemon.app\0")
    write_process(tmp_path, 8, 7, CHILD, rollup=False)
    daemon, child = memory_of(7, tmp_path), memory_of(8, tmp_path)
    assert daemon is not None and child is not None
    assert (daemon.name, daemon.peak_megabytes, daemon.proportional_megabytes) == ("daemon", 102.4, 51.2)
    assert (child.name, child.peak_megabytes, child.proportional_megabytes) == ("policy", 102.4, None)


def test_the_tree_has_all_under_a_process_and_no_other(tmp_path: Path) -> None:
    for process_id, parent in ((5, 1), (7, 5), (8, 7), (9, 5), (10, 1)):
        write_process(tmp_path, process_id, parent, "x")
    (tmp_path / "meminfo").write_text("")
    assert process_tree(5, tmp_path) == (5, 7, 9, 8)


def test_a_process_that_has_gone_has_no_memory(tmp_path: Path) -> None:
    assert memory_of(7, tmp_path) is None
    write_process(tmp_path, 7, 1, "x")
    (tmp_path / "7" / "status").write_text("Name:\tzombie\n")
    assert memory_of(7, tmp_path) is None


def test_a_real_process_is_found_with_more_than_a_megabyte() -> None:
    assert os.getpid() in process_tree(os.getppid())
    found = memory_of(os.getpid())
    assert found is not None and found.peak_megabytes > 1.0


def test_stolen_time_is_told_in_seconds_where_the_kernel_tells_it(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "stat").write_text(f"cpu  1 2 3 4 5 6 7 {3 * ticks} 9 10\ncpu0 1\n")
    assert stolen_seconds(tmp_path) == 3.0
    for text in ("cpu  1 2 3\n", "", "cpu a b c d e f g h i j\n"):
        (tmp_path / "stat").write_text(text)
        assert stolen_seconds(tmp_path) is None
    assert stolen_seconds(tmp_path / "nowhere") is None
