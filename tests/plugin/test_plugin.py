"""The C plugins: built without warnings, tested under the sanitizers, held against the Python protocol."""

import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from slurm_energy.errors import WireError
from slurm_energy.wire.codec import Message, decode, encode

REPO = Path(__file__).resolve().parents[2]
PLUGIN = REPO / "plugin"
SANITIZERS = {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
PROGRAMS = sorted(path.stem for path in Path(__file__).parent.glob("test_*.c"))
FROM_SLURMCTLD = {"slurm_xcalloc", "slurm_xrecalloc", "slurm_xfree", "slurm_info", "slurm_error"}
# Weak: where a release lacks one, partitions stay as they were. The two that move a buffer's data stand for each other.
ABOUT_PARTITIONS = {
    "slurm_conf", "default_part_loc", "acct_db_conn", "find_part_record", "pack_part", "slurm_init_buf", "slurm_pack32",
    "assoc_mgr_fill_in_assoc", "assoc_mgr_fill_in_qos", "assoc_mgr_lock", "assoc_mgr_unlock",
}  # fmt: skip
EITHER_OF_THEM = {"slurm_xfer_buf_data", "slurm_xfer_buf_data_ptr"}
FROM_SPANK = {
    "spank_context", "spank_job_control_setenv", "spank_option_register", "spank_getenv", "spank_setenv",
    "spank_get_item", "slurm_error", "slurm_info",
}  # fmt: skip

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or not Path("/usr/include/slurm/slurm.h").exists(),
    reason="needs a C compiler and libslurm-dev",
)


def make(build: Path, *targets: str) -> str:
    command = ["make", "--no-print-directory", "-C", str(PLUGIN), f"BUILD={build}", *targets]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both plugins and the test programs outside the source tree."""
    folder = tmp_path_factory.mktemp("plugin")
    assert make(folder, "all", "test-programs") == ""
    return folder


def run(program: Path, *arguments: str, given: bytes = b"") -> bytes:
    environment = {**os.environ, **SANITIZERS}
    done = subprocess.run(
        [program, *arguments], input=given, capture_output=True, env=environment, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")
    return done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_unit_tests_pass_under_the_sanitizers(build: Path, name: str) -> None:
    assert b"ok test_" in run(build / "asan/bin" / name)


def test_every_unit_test_program_is_known_to_the_makefile() -> None:
    text = (PLUGIN / "Makefile").read_text()
    listed = re.search(r"^TEST_PROGRAMS := (.*)$", text.replace("\\\n", " "), re.MULTILINE)
    assert listed is not None
    assert sorted(listed.group(1).split()) == PROGRAMS


def symbols(library: Path, *flags: str) -> set[str]:
    done = subprocess.run(["nm", "-D", *flags, library], capture_output=True, text=True, check=True)
    return {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines()}


def test_the_plugins_export_what_slurm_looks_for_and_nothing_else(build: Path) -> None:
    assert symbols(build / "job_submit_energy.so", "--defined-only") == {
        "plugin_name", "plugin_type", "plugin_version", "init", "fini", "job_submit", "job_modify",
        "slurm_energy_follows_release",
    }  # fmt: skip
    assert symbols(build / "spank_energy.so", "--defined-only") == {
        "plugin_name", "plugin_type", "plugin_version", "spank_plugin_version", "slurm_spank_init",
        "slurm_spank_init_post_opt", "slurm_spank_task_init", "slurm_energy_follows_release",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("library", "from_slurm"), [("job_submit_energy.so", FROM_SLURMCTLD), ("spank_energy.so", FROM_SPANK)]
)
def test_what_is_undefined_comes_from_slurm_or_libc(build: Path, library: str, from_slurm: set[str]) -> None:
    done = subprocess.run(["nm", "-D", "--undefined-only", build / library], capture_output=True, text=True, check=True)
    others = set()
    for line in done.stdout.splitlines():
        kind, name = line.split()[-2:]
        if kind == "U" and "@GLIBC" not in name:
            others.add(name)
    assert others == from_slurm


def test_what_no_public_header_declares_is_needed_weakly(build: Path) -> None:
    library = build / "job_submit_energy.so"
    done = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
    lines = [line.split()[-2:] for line in done.stdout.splitlines()]
    weak = {name for kind, name in lines if kind.lower() in {"w", "v"}}
    assert weak >= ABOUT_PARTITIONS | EITHER_OF_THEM


def test_slurms_own_binaries_provide_what_the_plugins_need() -> None:
    slurmctld = Path("/usr/sbin/slurmctld")
    libraries = list(Path("/usr/lib").glob("*/slurm-wlm/libslurmfull.so"))
    if not slurmctld.exists() or not libraries:
        pytest.skip("needs slurmctld")
    provided = symbols(slurmctld, "--defined-only") | symbols(libraries[0], "--defined-only")
    assert provided >= FROM_SLURMCTLD | FROM_SPANK | ABOUT_PARTITIONS
    assert provided & EITHER_OF_THEM


def test_the_analyzer_finds_nothing(build: Path) -> None:
    assert make(build, "check") == ""


def commands(build: Path, target: str) -> str:
    """Return what make would run for a target, without running it."""
    command = ["make", "--no-print-directory", "-n", "-B", "-C", str(PLUGIN), f"BUILD={build}", target]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize(("target", "strict"), [("all", False), ("install", False), ("test", True), ("check", True)])
def test_warnings_are_errors_in_the_tests_and_never_at_a_site(tmp_path: Path, target: str, strict: bool) -> None:
    compiled = [line for line in commands(tmp_path, target).splitlines() if " -c -o " in line]
    assert compiled
    assert {"-Werror" in line.split() for line in compiled} == {strict}


def test_install_puts_both_plugins_into_the_folder(build: Path, tmp_path: Path) -> None:
    make(build, "install", f"DESTDIR={tmp_path}", "PLUGINDIR=/opt/slurm")
    assert {path.name for path in (tmp_path / "opt/slurm").iterdir()} == {"job_submit_energy.so", "spank_energy.so"}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_damaged_replies_never_break_the_parser(build: Path, seed: int) -> None:
    report = run(build / "asan/bin/fuzz_reply", "5000", str(seed)).decode()
    assert re.fullmatch(r"ok fuzz_reply: 5000 damaged replies, \d+ still well-formed\n", report)


def framed(inputs: Iterable[bytes]) -> bytes:
    return b"".join(b"%d\n%s" % (len(one), one) for one in inputs)


def random_bytes(source: random.Random) -> bytes:
    special = [b"%", b"%41", b"\n", b"end\n", "\u2028\x85\x9f\xa0€🔋".encode(), b"\xed\xa0\x80", b"\xc0\xaf"]
    pieces = []
    for _ in range(source.randrange(0, 8)):
        pieces.append(source.choice([*special, b"plain text"]))
        pieces.append(source.randbytes(source.randrange(0, 6)))
        pieces.append(chr(source.randrange(1, 0xD800)).encode())
    return b"".join(pieces).replace(b"\0", b"")


def test_escaping_equals_pythons_for_any_bytes(build: Path) -> None:
    source = random.Random(7)
    values = [b"", *(bytes([byte]) for byte in range(1, 256)), *(random_bytes(source) for _ in range(2000))]
    written = run(build / "asan/bin/wire_tool", "write", given=framed(values)).split(b"\0")[:-1]
    assert len(written) == len(values)
    for value, raw in zip(values, written, strict=True):
        text = value.decode("utf-8", "surrogateescape")
        assert raw == encode(Message("decide", {"name": text}))
        assert decode(raw).fields["name"].encode("utf-8", "surrogateescape") == value


def reply(**fields: str) -> bytes:
    return encode(Message("ok", {"decision_id": "abcdefgh1", **fields}))


def read(build: Path, replies: list[bytes]) -> list[dict[str, str]]:
    out = run(build / "asan/bin/wire_tool", "read", given=framed(replies)).split(b"\0")[:-1]
    return [dict(line.split("\t", 1) for line in one.decode().split("\n") if line) for one in out]


def test_replies_that_python_writes_are_read_as_meant(build: Path) -> None:
    source = random.Random(11)
    messages = [
        "".join(source.choice("abc %=;€é🔋\"'<>&$(){}\xa0") for _ in range(source.randrange(1, 100)))
        for _ in range(500)
    ]
    messages = [message for message in messages if len(message.encode()) <= 512]
    entry = "v=1;id=abcdefgh1;mode=balanced;clocks=a100-sxm4-80gb:1275,a40:1410;limit=90"
    plain = {"entry": entry, "partition": "a100,a40", "prefer": "rack:3"}
    answers = read(build, [reply(message=message, **plain) for message in messages])
    assert len(answers) == len(messages)
    for message, fields in zip(messages, answers, strict=True):
        assert fields["message"] == message
        assert plain.items() <= fields.items()
        assert fields["decision_id"] == "abcdefgh1"


def damage(good: bytes, source: random.Random) -> bytes:
    raw = bytearray(good)
    for _ in range(source.randrange(1, 4)):
        at = source.randrange(len(raw))
        raw[at : at + source.randrange(0, 3)] = source.randbytes(source.randrange(0, 3))
    return bytes(raw)


def test_what_python_calls_malformed_is_garbage_in_c_too(build: Path) -> None:
    source = random.Random(13)
    good = reply(entry="v=1;id=abcdefgh1;mode=balanced", message="13 % less €", partition="a100")
    damaged = [damage(good, source) for _ in range(3000)]
    refused = 0
    for raw, fields in zip(damaged, read(build, damaged), strict=True):
        try:
            message = decode(raw)
        except WireError:
            refused += 1
            assert "garbage" in fields, raw
            continue
        if "garbage" not in fields and fields["status"] == "ok":
            assert message.fields.get("entry", "") == fields["entry"]
            assert message.fields.get("message", "") == fields["message"]
    assert refused > 500
