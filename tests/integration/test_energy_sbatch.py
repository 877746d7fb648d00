"""energy-sbatch before a stand-in for sbatch, and its reading of scripts beside the real sbatch."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from fake_daemon import FakeDaemon
from fake_sbatch import FakeSbatch
from measured_data import MEASURED

from slurm_energy.cli.energy_sbatch import _PLUGIN_LINE
from slurm_energy.cli.sbatch.process import EXPLAIN_VARIABLE, _HeldLines
from slurm_energy.slurm.sbatch_options import script_directives
from slurm_energy.wire.codec import Message

WRAPPER = [sys.executable, "-m", "slurm_energy.cli.energy_sbatch"]
HEADERS = MEASURED / "sbatch_headers" / "sbatch_headers.jsonl"
LINE = "a100 at 1275 of 1410 MHz: about 13 % less energy, 5 % longer; opt out with --energy=off"
UGLY = [
    b"--wrap",
    b"echo '$(id)'; a\"b\" `id` \\ $HOME",
    b"-J",
    b"x; rm -rf /\n\x1b[31mred",
    b"--comment=",
    b"--comment=\xff\xfe caf\xe9",
    b"--export=ALL,A=1",
    b"-p",
    b"a,b",
]


@pytest.fixture
def fake(tmp_path: Path) -> FakeSbatch:
    return FakeSbatch(tmp_path / "fake")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[[Message | None], FakeDaemon]]:
    started: list[FakeDaemon] = []

    def start(reply: Message | None) -> FakeDaemon:
        started.append(FakeDaemon(tmp_path / "energyd.sock", reply))
        return started[-1]

    yield start
    for one in started:
        one.close()


def environment(fake: FakeSbatch, more: Mapping[str, str] | None = None) -> dict[str, str]:
    return {
        "PATH": f"{fake.bin}:/usr/bin:/bin",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "SLURM_ENERGY_DAEMON_SOCKET_PATH": str(fake.directory.parent / "energyd.sock"),
        **(more or {}),
    }


def submit(
    fake: FakeSbatch, *words: bytes, stdin: bytes = b"", more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    command = [os.fsencode(word) for word in WRAPPER]
    return subprocess.run(
        [*command, *words], input=stdin, capture_output=True, timeout=60, env=environment(fake, more), check=False
    )


def explained(message: str, quiet: bool = False) -> Message:
    record = {"decision": {"message": message, "asked": {"options": {"quiet": quiet}}}}
    return Message("ok", {"json": json.dumps({"format": 1, "record": record})})


def test_every_argument_reaches_sbatch_byte_for_byte(fake: FakeSbatch) -> None:
    words = [*UGLY, b"--", b"job.sh", b"", b"two\nlines", b"--energy=off", b"--energy-dry-run", b":", b"\xc3\x28"]
    result = submit(fake, *words)
    assert fake.calls == [words]
    assert (result.returncode, result.stdout, result.stderr) == (0, b"Submitted batch job 4242\n", b"")


def test_energy_options_reach_an_sbatch_that_knows_them(fake: FakeSbatch) -> None:
    fake.with_plugin()
    words = [b"--energy=saver", b"--energy-max-slowdown", b"5%", b"--energy-quiet", *UGLY]
    submit(fake, *words)
    assert fake.calls == [words]


def test_a_script_on_standard_input_reaches_sbatch(fake: FakeSbatch) -> None:
    fake.lay_out("read_stdin", b"1")
    script = b"#!/bin/sh\n#SBATCH -N2\necho \xff\x00\n"
    assert submit(fake, b"-N1", stdin=script).returncode == 0
    assert fake.recorded("stdin") == script


@pytest.mark.parametrize(
    "output", [b"4243\n", b"4243;north\n", b"", b"no newline", b"\x00\xff\r\n\x1b[0m", b"x" * 3_000_000]
)
def test_stdout_is_what_sbatch_printed(fake: FakeSbatch, output: bytes) -> None:
    fake.lay_out("stdout", output)
    assert submit(fake, b"--parsable", b"job.sh").stdout == output


@pytest.mark.parametrize("code", [0, 1, 77, 255])
def test_the_exit_code_is_sbatchs(fake: FakeSbatch, code: int) -> None:
    fake.lay_out("rc", str(code).encode())
    assert submit(fake, b"job.sh").returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGINT])
def test_a_death_by_signal_is_passed_on(fake: FakeSbatch, number: signal.Signals) -> None:
    fake.lay_out("die_by_signal", str(int(number)).encode())
    assert submit(fake, b"job.sh").returncode == -number


@pytest.mark.parametrize(
    "complaint",
    [
        b"sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n",
        b"sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)\n",
    ],
)
def test_an_unclear_answer_is_never_submitted_again(fake: FakeSbatch, complaint: bytes) -> None:
    fake.lay_out("stdout", b"")
    fake.lay_out("stderr", complaint)
    fake.lay_out("rc", b"1")
    result = submit(fake, b"job.sh")
    assert len(fake.calls) == 1
    assert result.returncode == 1
    assert result.stderr.startswith(complaint)
    assert result.stderr[len(complaint) :].count(b"\n") == 1
    assert b"squeue --me" in result.stderr


def test_a_plain_refusal_gets_no_advice(fake: FakeSbatch) -> None:
    fake.lay_out("stderr", b"sbatch: error: invalid partition specified: nope\n")
    fake.lay_out("rc", b"1")
    assert submit(fake, b"job.sh").stderr == b"sbatch: error: invalid partition specified: nope\n"


def test_the_plugins_line_is_enough(fake: FakeSbatch, daemon: Callable[[Message | None], FakeDaemon]) -> None:
    asked = daemon(explained(LINE))
    fake.lay_out("stderr", b"sbatch: energy: " + LINE.encode() + b"\n")
    assert submit(fake, b"job.sh").stderr == b"energy-sbatch: " + LINE.encode() + b"\n"
    assert asked.requests == []


@pytest.mark.parametrize("stdout", [b"Submitted batch job 4242\n", b"4242\n", b"4242;north\n"])
def test_without_the_plugins_line_the_daemon_is_asked(
    fake: FakeSbatch, daemon: Callable[[Message | None], FakeDaemon], stdout: bytes
) -> None:
    fake.lay_out("stdout", stdout)
    asked = daemon(explained(LINE))
    result = submit(fake, b"job.sh")
    assert result.stderr == b"energy-sbatch: " + LINE.encode() + b"\n"
    assert asked.requests == [Message("query", {"what": "explain", "job": "4242"})]


def test_a_hostile_explanation_stays_one_harmless_line(
    fake: FakeSbatch, daemon: Callable[[Message | None], FakeDaemon]
) -> None:
    daemon(explained("a\nsbatch: error: no\x1b[31m\u202e"))
    result = submit(fake, b"job.sh").stderr.decode()
    assert result == "energy-sbatch: a\\x0asbatch: error: no\\x1b[31m\\u202e\n"


@pytest.mark.parametrize(
    ("words", "more", "quiet_in_script"),
    [
        ([b"--energy-quiet"], {}, False),
        ([b"-Q"], {}, False),
        ([], {"SLURM_ENERGY_PLUGIN_MESSAGE": "false"}, False),
        ([], {}, True),
    ],
)
def test_silence_is_kept_when_it_is_wanted(
    fake: FakeSbatch,
    daemon: Callable[[Message | None], FakeDaemon],
    words: list[bytes],
    more: dict[str, str],
    quiet_in_script: bool,
) -> None:
    fake.with_plugin()
    daemon(explained(LINE, quiet=quiet_in_script))
    assert submit(fake, *words, b"job.sh", more=more).stderr == b""


@pytest.mark.parametrize(
    "reply",
    [None, Message("error", {"reason": "no"}), Message("ok", {"json": "[1"}), Message("ok", {"json": '{"record":5}'})],
)
def test_a_daemon_that_cannot_explain_costs_half_a_second_and_no_message(
    fake: FakeSbatch, daemon: Callable[[Message | None], FakeDaemon], reply: Message | None
) -> None:
    daemon(reply)
    started = time.monotonic()
    result = submit(fake, b"job.sh")
    assert (result.returncode, result.stderr) == (0, b"")
    assert time.monotonic() - started < 5.0


def test_an_unreadable_configuration_is_no_reason_to_refuse_a_job(fake: FakeSbatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[nonsense]\n", encoding="utf-8")
    result = submit(fake, b"job.sh", more={"SLURM_ENERGY_CONFIG": str(broken)})
    assert (result.returncode, fake.calls) == (0, [[b"job.sh"]])


def test_installed_as_sbatch_it_finds_the_real_one(fake: FakeSbatch, tmp_path: Path) -> None:
    front = tmp_path / "front"
    front.mkdir()
    script = front / "sbatch"
    script.write_text(
        f"#!{sys.executable}\nfrom slurm_energy.cli.energy_sbatch import main\nraise SystemExit(main())\n"
    )
    script.chmod(0o755)
    other = tmp_path / "other"
    other.mkdir()
    (other / "sbatch").write_text('#!/bin/sh\nexec energy-sbatch "$@"\n')
    (other / "sbatch").chmod(0o755)
    path = {**environment(fake), "PATH": f"{front}:{other}:{fake.bin}:/usr/bin:/bin"}
    result = subprocess.run([script, "job.sh"], env=path, capture_output=True, timeout=60, check=False)
    assert (result.returncode, result.stdout, fake.calls) == (0, b"Submitted batch job 4242\n", [[b"job.sh"]])


def test_a_circle_through_a_script_ends_with_a_clear_error(fake: FakeSbatch, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.write_text("from slurm_energy.cli.energy_sbatch import main\nraise SystemExit(main())\n")
    fake.install("sbatch", f'#!/bin/sh\n"{sys.executable}" "{hidden}" "$@"\n')
    result = submit(fake, b"job.sh")
    assert result.returncode == 1
    assert b"was called by itself" in result.stderr
    assert b"cluster.slurm_bin_directory" in result.stderr


def test_no_sbatch_at_all_is_a_clear_error(fake: FakeSbatch, tmp_path: Path) -> None:
    result = submit(fake, b"job.sh", more={"PATH": str(tmp_path)})
    assert result.returncode == 1
    assert result.stderr.startswith(f"energy-sbatch: sbatch is not found in {tmp_path}: set cluster.".encode())


def test_the_configured_folder_wins_over_path(fake: FakeSbatch, tmp_path: Path) -> None:
    more = {"SLURM_ENERGY_CLUSTER_SLURM_BIN_DIRECTORY": str(fake.bin), "PATH": str(tmp_path)}
    assert submit(fake, b"job.sh", more=more).returncode == 0
    assert fake.calls == [[b"job.sh"]]


def test_a_process_left_behind_by_sbatch_does_not_hold_the_wrapper(fake: FakeSbatch) -> None:
    fake.lay_out("background", b"1")
    started = time.monotonic()
    result = subprocess.Popen([*WRAPPER, "job.sh"], stdout=subprocess.PIPE, env=environment(fake))
    assert result.wait(timeout=15) == 0
    assert time.monotonic() - started < 15
    assert result.stdout is not None
    assert result.stdout.readline() == b"Submitted batch job 4242\n"
    result.stdout.close()


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_do_not_stop_a_submission(fake: FakeSbatch, redirection: str) -> None:
    command = ["/bin/sh", "-c", f'exec "$@" {redirection}', "sh", *WRAPPER, "job.sh"]
    result = subprocess.run(command, env=environment(fake), capture_output=True, timeout=60, check=False)
    assert (result.returncode, fake.calls) == (0, [[b"job.sh"]])


def test_output_can_go_to_a_reader_that_left(fake: FakeSbatch) -> None:
    fake.lay_out("stdout", b"y\n" * 500_000)
    process = subprocess.Popen([*WRAPPER, "job.sh"], stdout=subprocess.PIPE, env=environment(fake))
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 0


def wait_for_call(fake: FakeSbatch) -> None:
    end = time.monotonic() + 30
    while not fake.calls and time.monotonic() < end:
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_wrapper_reaches_sbatch_once(fake: FakeSbatch, number: signal.Signals) -> None:
    fake.lay_out("linger", b"20")
    process = subprocess.Popen([*WRAPPER, "--wait", "job.sh"], env=environment(fake), start_new_session=True)
    wait_for_call(fake)
    process.send_signal(number)
    assert process.wait(timeout=30) == 0
    assert fake.recorded("signals") == str(int(number)).encode()


def test_ctrl_c_on_a_terminal_reaches_sbatch_once(fake: FakeSbatch) -> None:
    fake.lay_out("linger", b"20")
    child, terminal = pty.fork()
    if child == 0:
        os.execve(WRAPPER[0], [*WRAPPER, "--wait", "job.sh"], environment(fake))
    try:
        wait_for_call(fake)
        os.write(terminal, b"\x03")
        _, status = os.waitpid(child, 0)
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    assert fake.recorded("signals") == b"2"


def test_with_no_plugin_here_and_none_at_the_site_the_options_are_left_out(fake: FakeSbatch) -> None:
    fake.without_site_plugin()
    result = submit(fake, b"-N2", b"--energy=off", b"--energy-max-slowdown", b"5", b"-pa", b"job.sh", b"--energy=off")
    assert fake.calls == [[b"-N2", b"-pa", b"job.sh", b"--energy=off"]]
    assert result.returncode == 0
    assert result.stderr == (
        b"energy-sbatch: this cluster has no energy plugin: submitted without --energy=off --energy-max-slowdown 5\n"
    )


@pytest.mark.parametrize(
    "option", [b"--energy=off", b"--energy=observe", b"--energy-max-slowdown=1", b"--energy-dead=noon"]
)
def test_a_limit_that_could_not_be_kept_is_never_dropped(fake: FakeSbatch, option: bytes) -> None:
    fake.with_site_plugin()
    result = submit(fake, option, b"job.sh")
    assert (result.returncode, fake.calls) == (1, [])
    assert result.stderr.startswith(b"energy-sbatch: nothing was submitted: ")
    assert option in result.stderr


def test_a_wish_that_could_not_be_kept_is_left_out_and_told(fake: FakeSbatch) -> None:
    fake.with_site_plugin()
    result = submit(fake, b"--energy=saver", b"--energy-quiet", b"job.sh")
    assert (result.returncode, fake.calls) == (0, [[b"job.sh"]])
    assert b"submitted without --energy=saver --energy-quiet" in result.stderr


def test_an_energy_line_in_the_script_is_explained_where_the_plugin_is_missing(fake: FakeSbatch) -> None:
    fake.lay_out("stderr", b"sbatch: unrecognized option '--energy=off'\n")
    fake.lay_out("rc", b"1")
    result = submit(fake, b"job.sh")
    assert result.returncode == 1
    assert b"remove the #SBATCH --energy lines" in result.stderr


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        (b"--energy-maxslowdown=5", b"there is no option --energy-maxslowdown: did you mean --energy-max-slowdown?"),
        (b"--energy-dead-line=noon", b"there is no option --energy-dead-line: did you mean --energy-deadline?"),
        (b"--enregy=saver", b"there is no option --enregy: did you mean --energy?"),
        (b"--energy-xyzzy", b"there is no option --energy-xyzzy: There are --energy, --energy-max-slowdown"),
    ],
)
def test_a_misspelt_option_is_not_blamed_on_a_missing_plugin(fake: FakeSbatch, line: bytes, advice: bytes) -> None:
    fake.with_plugin()
    fake.lay_out("stderr", b"sbatch: unrecognized option '" + line + b"'\n")
    fake.lay_out("rc", b"1")
    result = submit(fake, line, b"job.sh")
    assert result.returncode == 1
    assert advice in result.stderr
    assert b"plugin" not in result.stderr


def test_an_unknown_option_of_somebody_else_is_left_to_sbatch(fake: FakeSbatch) -> None:
    fake.lay_out("stderr", b"sbatch: unrecognized option '--gpuz=2'\n")
    fake.lay_out("rc", b"1")
    assert submit(fake, b"--gpuz=2", b"job.sh").stderr == b"sbatch: unrecognized option '--gpuz=2'\n"


def test_the_plugins_line_comes_behind_the_jobs_number_and_not_for_a_refused_job(fake: FakeSbatch) -> None:
    fake.lay_out("stderr", b"sbatch: other\nsbatch: energy: a100 at 1275\nsbatch: 1: energy: a40 at 1455\nsbatch: x")
    done = subprocess.run(
        [*WRAPPER, "job.sh"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        env=environment(fake, None),
        check=False,
    )
    found = re.search(rb"\d+", done.stdout.replace(b"sbatch: other", b""))
    assert found is not None and found.group() == b"4242"
    assert b"energy-sbatch: a100 at 1275\nenergy-sbatch: 1: a40 at 1455\n" in done.stdout
    assert b"sbatch: other\nsbatch: x" in done.stdout
    fake.lay_out("rc", b"1")
    assert submit(fake, b"job.sh").stderr == b"sbatch: other\nsbatch: x"


def test_the_plugin_learns_that_its_line_is_wanted(fake: FakeSbatch) -> None:
    """It asks for a line with figures where its parent left its own number, and takes the variable away."""
    program = f"#!{sys.executable} -IS\nimport os\nprint(os.environ.get('{EXPLAIN_VARIABLE}') == str(os.getppid()))\n"
    fake.install("sbatch", program)
    assert submit(fake, b"job.sh").stdout == b"True\n"
    assert submit(fake, b"--quiet", b"job.sh").stdout == b"False\n"
    assert submit(fake, b"-Q", b"job.sh", more={EXPLAIN_VARIABLE: "1"}).stdout == b"False\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_lines_are_held_back_however_they_arrive(size: int) -> None:
    text = b"sbatch: energy: one\nsb\nsbatch\nsbatch: 0: energy: two\nsbatch: energetic\nsbatch: energy: three"
    lines = _HeldLines(_PLUGIN_LINE)
    passed = b"".join(lines.feed(text[at : at + size]) for at in range(0, len(text), size)) + lines.rest()
    assert passed == b"sb\nsbatch\nsbatch: energetic\n"
    assert lines.held == [b"sbatch: energy: one", b"sbatch: 0: energy: two", b"sbatch: energy: three"]


def test_what_is_no_line_of_sbatchs_goes_on_at_once() -> None:
    lines = _HeldLines(_PLUGIN_LINE)
    assert lines.feed(b"password: ") == b"password: "
    assert lines.feed(b"sbatch: " + b"x" * 700) == b"sbatch: " + b"x" * 700


def test_what_was_left_out_is_said_behind_the_jobs_number(fake: FakeSbatch) -> None:
    fake.without_site_plugin()
    command = [*WRAPPER, "--energy-max-slowdown=5", "job.sh"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, env=environment(fake, None), check=False
    )
    found = re.search(rb"\d+", done.stdout)
    assert found is not None and found.group() == b"4242"


def test_under_the_name_of_sbatch_nothing_is_added_for_a_program_that_reads(
    fake: FakeSbatch, daemon: Callable[[Message | None], FakeDaemon], tmp_path: Path
) -> None:
    daemon(explained(LINE))
    wrapper = tmp_path / "wrapper" / "sbatch"
    wrapper.parent.mkdir()
    wrapper.write_text(
        f"#!{sys.executable}\nimport sys\nfrom slurm_energy.cli.energy_sbatch import main\nsys.exit(main())\n"
    )
    wrapper.chmod(0o755)
    done = subprocess.run(
        [wrapper, "job.sh"], capture_output=True, timeout=60, env=environment(fake, None), check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"Submitted batch job 4242\n", b"")
    terminal, end = os.openpty()
    try:
        subprocess.run(
            [wrapper, "job.sh"],
            stdout=subprocess.PIPE,
            stderr=end,
            timeout=60,
            env=environment(fake, None),
            check=True,
        )
        assert LINE.encode() in os.read(terminal, 4096)
    finally:
        os.close(terminal)
        os.close(end)


def test_an_sbatch_without_help_is_left_to_say_what_is_wrong(fake: FakeSbatch) -> None:
    fake.lay_out("help", b"")
    submit(fake, b"--energy=off", b"job.sh")
    assert fake.calls == [[b"--energy=off", b"job.sh"]]


def test_help_ends_with_the_wrappers_own_option(fake: FakeSbatch) -> None:
    result = submit(fake, b"--help")
    assert (result.returncode, result.stdout) == (0, b"Usage: sbatch\n")
    assert b"--energy-dry-run" in result.stderr


def test_words_that_sbatch_will_refuse_are_left_to_sbatch(fake: FakeSbatch) -> None:
    submit(fake, b"--bogus", b"--energy=off", b"job.sh")
    assert fake.calls == [[b"--bogus", b"--energy=off", b"job.sh"]]


PREVIEW = {
    "decision": {
        "policy": "oracle",
        "policy_version": "1",
        "partitions": None,
        "clocks": [
            {
                "gpu_type": "a100-sxm4-80gb",
                "sm_clock_mhz": 1275,
                "default_clock_mhz": 1410,
                "predicted_slowdown": 0.05,
                "predicted_energy_change": -0.13,
            }
        ],
        "reasons": ["POLICY", "ROUTING_CLOSED", "NEW_REASON"],
        "notes": ["from 12 earlier runs\x1b[2J"],
    },
    "gpu_count": 8,
    "time_limit_minutes": 60,
}


def test_a_dry_run_shows_the_decision_and_submits_nothing(
    fake: FakeSbatch, daemon: Callable[[Message | None], FakeDaemon], tmp_path: Path
) -> None:
    fake.with_plugin()
    asked = daemon(Message("ok", {"message": LINE, "json": json.dumps(PREVIEW)}))
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH -t 1:00:00 -N2\n#SBATCH --gres=gpu:a100:4 # eight\ntrain\n", encoding="utf-8")
    words = b"--energy=saver", b"--energy-dry-run", b"-J", b"x\n\x1b[31m", os.fsencode(script), b"-N9"
    result = submit(fake, *words, more={"SLURM_ENERGY_SCRIPT_READ": "off"})
    assert fake.calls == []
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.decode().splitlines() == [
        "Dry run of x\\x0a\\x1b[31m: nothing was submitted.",
        f"  message:       {LINE}",
        "  asked for:     8 GPUs, 60 min at most",
        "  partition:     as you or Slurm choose",
        "  clock:         a100-sxm4-80gb at 1275 of 1410 MHz (about 13 % less energy, 5 % longer)",
        "  because:       The policy chose this setting.",
        "  because:       The site does not let the policy choose partitions.",
        "  because:       NEW_REASON",
        "  note:          from 12 earlier runs\\x1b[2J",
        "  policy:        oracle 1",
        "  script:        not read (script.read is off)",
    ]
    sent = dict(asked.requests[0].fields)
    assert asked.requests[0].verb == "preview"
    assert sent.pop("client").startswith("energy-sbatch/")
    assert sent == {
        "uid": str(os.getuid()),
        "gid": str(os.getgid()),
        "submit_uid": str(os.getuid()),
        "name": "x\n\x1b[31m",
        "min_nodes": "2",
        "max_nodes": "2",
        "time_limit": "60",
        "tres_per_node": "gres/gpu:a100:4",
        "energy_mode": "saver",
    }


def test_a_dry_run_reads_a_script_on_standard_input(
    fake: FakeSbatch, daemon: Callable[[Message | None], FakeDaemon]
) -> None:
    fake.with_plugin()
    asked = daemon(Message("ok", {"json": "{}"}))
    result = submit(fake, b"--energy-dry-run", stdin=b"#!/bin/sh\n#SBATCH -G a100:2 -J caf\xe9\n")
    assert (result.returncode, fake.calls) == (0, [])
    assert asked.requests[0].fields["tres_per_job"] == "gres/gpu:a100:2"
    assert asked.requests[0].fields["name"] == "caf\udce9"


@pytest.mark.parametrize(
    ("words", "stdin", "message"),
    [
        ([b"/nonexistent/job.sh"], b"", b"script /nonexistent/job.sh cannot be read: No such file or directory"),
        ([b"/dev/zero"], b"", b"script /dev/zero is not a file"),
        ([], b"", b"the script on standard input is empty"),
        ([], b"#!/bin/sh\n\x00", b"contains a NUL byte"),
        ([], b"#!/bin/sh\n#SBATCH --energy=loud\n", b"--energy=loud is not off, observe, balanced or saver"),
    ],
)
def test_a_dry_run_that_cannot_be_done_says_why(
    fake: FakeSbatch, words: list[bytes], stdin: bytes, message: bytes
) -> None:
    fake.with_plugin()
    result = submit(fake, b"--energy-dry-run", *words, stdin=stdin)
    assert (result.returncode, result.stdout, fake.calls) == (1, b"", [])
    assert message in result.stderr
    assert result.stderr.count(b"\n") == 1


def test_a_dry_run_without_a_daemon_shows_what_is_sent_of_the_script_alone(fake: FakeSbatch) -> None:
    fake.with_plugin()
    result = submit(fake, b"--energy-dry-run", b"--wrap=x")
    assert (result.returncode, fake.calls) == (1, [])
    assert result.stdout.startswith(b"  script:  ") and b"clock" not in result.stdout
    assert b"is slurm-energyd running?; nothing was submitted" in result.stderr


def test_the_wrapper_starts_without_heavy_modules(fake: FakeSbatch) -> None:
    probe = (
        "import sys, slurm_energy.cli.energy_sbatch, slurm_energy.cli.sbatch.options, "
        "slurm_energy.cli.sbatch.dry_run, slurm_energy.cli.daemon_line\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'click', 'rich', 'torch', 'sqlalchemy', "
        "'jinja2', 'asyncio', 'pynvml', 'alembic'}))"
    )
    result = subprocess.run([sys.executable, "-c", probe], env=environment(fake), capture_output=True, check=True)
    assert result.stdout == b"[]\n"


SLURM_CONF = """ClusterName=c
SlurmctldHost=localhost(127.0.0.1)
AuthType=auth/munge
NodeName=n CPUs=1
PartitionName=a Nodes=n
"""


def words_that_sbatch_found(script: Path, slurm_conf: Path) -> list[str]:
    """Return the words of #SBATCH lines from the real sbatch's debug output; it is ended before it calls anybody."""
    process = subprocess.Popen(
        ["sbatch", "-vvv", "--test-only", str(script)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin:/usr/local/bin", "SLURM_CONF": str(slurm_conf)},
    )
    assert process.stderr is not None
    words: list[str] = []
    with process:
        for raw in process.stderr:
            line = raw.decode("utf-8", "surrogateescape").rstrip("\n")
            found = re.match(r'sbatch: debug2: Found in script, argument "(.*)"\Z', line)
            if found is not None:
                words.append(found.group(1))
            if line.startswith(("sbatch: defined options", "sbatch: fatal", "sbatch: error")):
                break
        process.kill()
    return words


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="Slurm's sbatch is not installed")
def test_real_headers_give_the_words_that_the_real_sbatch_finds(tmp_path: Path) -> None:
    slurm_conf = tmp_path / "slurm.conf"
    slurm_conf.write_text(SLURM_CONF, encoding="utf-8")
    script = tmp_path / "job.sh"
    compared = 0
    for line in HEADERS.read_text(encoding="utf-8").splitlines():
        header = json.loads(line)
        text = "\n".join([header["shebang"], *header["directives"], ""])
        script.write_text(text, encoding="utf-8")
        assert list(script_directives(text).components[0]) == words_that_sbatch_found(script, slurm_conf), header[
            "path"
        ]
        compared += 1
    assert compared == 149
