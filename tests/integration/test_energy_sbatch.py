"""energy-sbatch before a stand-in for sbatch: what reaches sbatch, what users read, and dry runs."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_daemon import FakeDaemon
from fake_sbatch import FakeSbatch
from sbatch_wrapper import WRAPPER, environment, submit

from slurm_energy.cli.energy_sbatch import _PLUGIN_LINE
from slurm_energy.cli.sbatch.process import EXPLAIN_VARIABLE, _HeldLines
from slurm_energy.wire.codec import Message

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
    result = submit(fake, b"job.sh", more={"SLURM_ENERGY_CLUSTER_NAME": "north"})
    assert result.stderr == b"energy-sbatch: " + LINE.encode() + b"\n"
    assert asked.requests == [Message("query", {"what": "explain", "job": "4242"})]


@pytest.mark.parametrize("stdout", [b"Submitted batch job 4242 on cluster south\n", b"4242;south\n"])
def test_the_daemon_here_is_not_asked_about_a_job_of_another_cluster(
    fake: FakeSbatch, daemon: Callable[[Message | None], FakeDaemon], stdout: bytes
) -> None:
    fake.lay_out("stdout", stdout)
    asked = daemon(explained(LINE))
    result = submit(fake, b"-Msouth", b"job.sh", more={"SLURM_ENERGY_CLUSTER_NAME": "north"})
    assert (result.stderr, asked.requests) == (b"", [])


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
    assert time.monotonic() - started < 60.0


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
        (
            "  clock:         a100-sxm4-80gb at 1275 of 1410 MHz (at most 5 % longer; "
            "what this job saves is not known, 13 % less energy in the mean of other programs)"
        ),
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
