"""What energy-sbatch reads of a job's script and sends with it, before a stand-in for sbatch."""

import json
import mmap
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_daemon import FakeDaemon
from fake_sbatch import FakeSbatch

from slurm_energy.cli.sbatch.process import FEATURES_VARIABLE
from slurm_energy.cli.sbatch.script_features import last_line_within, sent_features
from slurm_energy.config import Config, ScriptConfig
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.wire.codec import Message

PATIENT = 10_000
SCRIPT = "#!/bin/bash\nsrun python train.py --epochs 5 --token=hf_SECRET\n"
PROGRAM = "import torch\nfrom torchvision.models import resnet50\nresnet50()\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.sh").write_text(SCRIPT)
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


@pytest.fixture
def fake(tmp_path: Path) -> FakeSbatch:
    fake = FakeSbatch(tmp_path / "fake")
    text = f"import os\nprint(os.getppid(), os.environ.get({FEATURES_VARIABLE!r}, ''))\n"
    fake.install("sbatch", f"#!{sys.executable} -IS\n{text}")
    return fake


def submit(
    fake: FakeSbatch, folder: Path, *words: str, stdin: str | Path = "", **settings: str
) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": f"{fake.bin}:/usr/bin:/bin",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "SLURM_ENERGY_DAEMON_SOCKET_PATH": str(fake.directory.parent / "energyd.sock"),
        "SLURM_ENERGY_SCRIPT_TIME_LIMIT_MILLISECONDS": "1000",
        **settings,
    }
    command = [sys.executable, "-m", "slurm_energy.cli.energy_sbatch", *words]
    given = {"input": stdin} if isinstance(stdin, str) else {"stdin": stdin.open()}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False, **given
    )


def sent(result: subprocess.CompletedProcess[str]) -> ScriptFeatures | None:
    caller, _, given = result.stdout.strip().partition(" ")
    number, _, features = given.partition(" ")
    assert given == "" or number == caller
    return ScriptFeatures.decode(features) if features else None


def features_of(
    words: list[str], config: Config, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> ScriptFeatures | None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PWD", str(folder))
    text = sent_features([os.fsencode(word) for word in words], config)
    return ScriptFeatures.decode(text) if text else None


@pytest.mark.parametrize(
    "words",
    [
        ["job.sh"],
        ["-p", "a100", "--site-option=x", "job.sh", "argument"],
        ["--wrap", "srun python train.py --epochs 5"],
    ],
)
def test_features_travel_to_the_spank_plugin(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = features_of(words, Config(script=ScriptConfig(time_limit_milliseconds=PATIENT)), folder, monkeypatch)
    assert features is not None
    assert (features.programs, features.launchers, features.epochs) == (("python",), ("srun",), 5)
    assert (features.frameworks, features.model) == (("pytorch", "torchvision"), "resnet50")


def test_a_caller_with_much_mapped_memory_reads_scripts_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mmap.mmap(-1, 3 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ):
        features = features_of(
            ["job.sh"], Config(script=ScriptConfig(time_limit_milliseconds=PATIENT)), folder, monkeypatch
        )
    assert features is not None and features.epochs == 5


def test_the_wrapper_puts_them_into_sbatchs_environment_with_its_own_number(fake: FakeSbatch, folder: Path) -> None:
    for _ in range(5):  # a machine under load may not be done within the limit's upper bound of a second
        features = sent(submit(fake, folder, "job.sh"))
        if features is not None and features.frameworks:
            break
    assert features is not None and features.epochs == 5
    assert "hf_SECRET".lower() not in features.encode()


def test_what_was_left_by_another_submission_does_not_travel(fake: FakeSbatch, folder: Path) -> None:
    result = submit(fake, folder, "missing.sh", **{FEATURES_VARIABLE: "1 v=1;model=forged"})
    assert sent(result) is None


def test_the_site_and_the_user_can_switch_it_off(fake: FakeSbatch, folder: Path) -> None:
    assert sent(submit(fake, folder, "job.sh", SLURM_ENERGY_SCRIPT_READ="off")) is None


def test_a_script_in_a_file_on_standard_input_is_looked_at_and_left_to_sbatch(folder: Path, fake: FakeSbatch) -> None:
    fake.install("sbatch", "#!/bin/sh\nexec cat\n")
    assert submit(fake, folder, stdin=folder / "job.sh").stdout == SCRIPT


def test_a_script_through_a_pipe_is_left_to_sbatch(fake: FakeSbatch, folder: Path) -> None:
    fake.install("sbatch", "#!/bin/sh\nexec cat\n")
    assert submit(fake, folder, stdin=SCRIPT).stdout == SCRIPT


@pytest.mark.parametrize("kind", ["fifo", "binary", "empty", "folder", "missing", "huge"])
def test_a_script_that_cannot_be_read_is_submitted_without(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "odd"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "binary":
            path.write_bytes(b"#!/bin/sh\n\x00\x01")
        case "empty":
            path.touch()
        case "folder":
            path.mkdir()
        case "huge":
            with path.open("wb") as file:
                file.truncate(1 << 30)
    config = Config(script=ScriptConfig(time_limit_milliseconds=PATIENT))
    assert features_of(["odd"], config, folder, monkeypatch) is None


def hanging() -> Iterator[str]:
    yield "first"
    time.sleep(300.0)
    yield "second"


def failing() -> Iterator[str]:
    yield "first"
    raise RuntimeError


def devouring() -> Iterator[str]:
    yield "first"
    yield str(len(bytearray(8 << 30)))


@pytest.mark.parametrize("lines", [hanging, failing, devouring])
def test_what_was_known_before_it_went_wrong_is_sent(lines: object) -> None:
    began = time.monotonic()
    assert last_line_within(lines, 2.0) == "first"  # type: ignore[arg-type]  # a function of those above
    assert time.monotonic() - began < 150.0


def test_a_process_that_cannot_be_had_leaves_the_job_without(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", none_left)
    assert features_of(["job.sh"], Config(), folder, monkeypatch) is None


def test_callers_with_many_files_open_are_served() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2_000:
        pytest.skip("this system lets no process open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_000), hard))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1_100)]
    try:
        assert last_line_within(lambda: iter(["done"]), 10.0) == "done"
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_reader_that_hangs_holds_none_of_the_callers_streams(capfd: pytest.CaptureFixture[str]) -> None:
    def printing() -> Iterator[str]:
        os.write(1, b"from the child")
        yield "done"

    assert last_line_within(printing, 10.0) == "done"
    assert capfd.readouterr().out == ""


def test_a_dry_run_shows_what_is_sent_and_asks_with_it(fake: FakeSbatch, folder: Path) -> None:
    fake.install("sbatch", "#!/bin/sh\necho 'Usage: sbatch'\n")
    reply = {"decision": {"policy": "oracle", "estimate": {"seconds": 60.0, "upper_seconds": 90.0, "source": "history",
                                                            "gpu_type": None, "runs": 7}}}  # fmt: skip
    daemon = FakeDaemon(
        fake.directory.parent / "energyd.sock", Message("ok", {"message": "", "json": json.dumps(reply)})
    )
    try:
        result = submit(fake, folder, "--energy-dry-run", "job.sh")
    finally:
        daemon.close()
    lines = result.stdout.splitlines()
    assert "  run time:      known from 7 runs" in lines
    asked = daemon.requests[0].fields.get("script")
    if asked is None:  # a machine under load was not done within a second
        assert lines[-1] == "  script:        nothing is sent: it was not understood, or not read in time"
    else:
        assert lines[-1] == f"  sent of it:    {asked}"
        assert lines[-2] == f"  script:        {ScriptFeatures.decode(asked).sentence()}"


def test_a_dry_run_shows_what_is_sent_also_where_no_daemon_answers(fake: FakeSbatch, folder: Path) -> None:
    result = submit(fake, folder, "--energy-dry-run", "job.sh")
    assert result.returncode == 1
    assert "model=resnet50" in result.stdout
    assert "nothing was submitted" in result.stderr
