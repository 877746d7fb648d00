"""What every test shares: the laboratory's fixtures, the order of long files, and property tests without a clock."""

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from property_examples import ARE_MANY, EXAMPLES

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model import relative_speed
from slurm_energy.energy_model.data_sheets import DATA_SHEETS

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: beside other processes its threads only wait

pytest_plugins = ("lab_fixtures",)
TESTS = Path(__file__).parent

settings.register_profile(
    "steady",
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not ARE_MANY,  # a run is like the one before it; other examples come with the long form
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("steady")

LONG_FILES = (
    "test_trials_of_jobs.py",
    "test_gpu_count.py",
    "test_no_traceback.py",
    "test_planted_mistakes.py",
    "test_install_page.py",
    "test_published_world_rules.py",
    "test_slurm_update.py",
    "test_node_faults.py",
    "test_training_ranks.py",
    "test_partitions.py",
    "test_hooks_at_once.py",
    "test_fault_cells.py",
    "test_results_quick.py",
    "test_gpu_identity.py",
)
"""They are started first, so that none of them is what the other processes wait for at the end. Files that wait for a
Slurm stand beside files that compute, here and behind: together they keep all cores busy."""

# A run in the background inherits an ignored Ctrl-C, and so would every program that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out long forms; put long files first, then those of each folder in turn; inside a file nothing moves."""
    if os.environ.get("SLURM_ENERGY_TRIAL") != "long":
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    folders: dict[str, list[Path]] = {}
    for path in dict.fromkeys(item.path for item in items):
        if path.name not in LONG_FILES:
            folders.setdefault(path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else "", []).append(path)
    places = {path: len(LONG_FILES) + at / len(paths) for paths in folders.values() for at, path in enumerate(paths)}
    items.sort(key=lambda item: places[item.path] if item.path in places else LONG_FILES.index(item.path.name))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Look for garbage neither while tests are collected nor ever again among them: all of it stays to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Count no lines of slow tests: they run the lines of others many times over, and longer when they are counted.

    The mark `no_cover` does this in the first process only: in a worker a second tracer of coverage stays.
    """
    counting = sys.gettrace()
    if counting is None or not item.get_closest_marker("slow"):
        return (yield)
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(counting)


@pytest.fixture
def h100_without_sheet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take away what H100 is compared by: a catalogue type of which it is unknown how fast it is beside others."""
    known = {name: sheet for name, sheet in DATA_SHEETS.items() if name != GpuTypeName("h100-sxm5-80gb")}
    monkeypatch.setattr(relative_speed, "DATA_SHEETS", known)
    relative_speed._different.cache_clear()
    yield
    relative_speed._different.cache_clear()


@pytest.fixture
def runs_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the arena's runs take place here: a process for each comparison imports for longer than it runs."""
    from slurm_energy.evaluation.arena import comparison  # numpy and scipy, where they are installed

    monkeypatch.setattr(comparison, "_executor", ThreadPoolExecutor)
