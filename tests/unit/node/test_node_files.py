import os
from pathlib import Path

import pytest

from slurm_energy.domain.ids import JobId
from slurm_energy.errors import SpoolError
from slurm_energy.files import MAX_FILE_BYTES, read_whole, remove, write_atomically
from slurm_energy.node.log import MAX_LOG_BYTES, HookLog, append_line, one_line
from slurm_energy.node.settings import load_settings
from slurm_energy.node.spool import MAX_DONE_MARKS, Spool


def test_write_replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomically(path, b"one")
    write_atomically(path, b"two", durable=False)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"two", 0o600)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_file_gets_the_mode_and_the_owner_that_are_asked_for(tmp_path: Path) -> None:
    before, path = tmp_path / "before", tmp_path / "f"
    before.write_bytes(b"old")
    if os.geteuid() == 0:
        os.chown(before, 12, 34)
    write_atomically(path, b"new", mode=0o644, owner=before.stat())
    found = path.stat()
    assert found.st_mode & 0o7777 == 0o644
    assert (found.st_uid, found.st_gid) == (before.stat().st_uid, before.stat().st_gid)
    write_atomically(path, b"newer")
    assert path.stat().st_mode & 0o7777 == 0o600


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SpoolError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / f".a.{os.getpid()}.tmp").symlink_to(victim)
    with pytest.raises(SpoolError):
        write_atomically(tmp_path / "a", b"x")
    assert victim.read_bytes() == b"precious"


def test_missing_file_is_none_and_an_endless_one_an_error(tmp_path: Path) -> None:
    assert read_whole(tmp_path / "none") is None
    (tmp_path / "big").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    with pytest.raises(SpoolError, match="over"):
        read_whole(tmp_path / "big")
    remove(tmp_path / "none")


def test_log_line_holds_no_control_characters() -> None:
    assert one_line("a\nb\x1b[31m\u2028c") == "a\\x0ab\\x1b[31m\\x2028c"


def test_log_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (MAX_LOG_BYTES + 1))
    append_line(str(path), "last of the old")
    append_line(str(path), "first of the new")
    assert path.read_text().endswith("Z first of the new\n") and path.stat().st_size < 100
    assert (tmp_path / "log.1").read_bytes().endswith(b"Z last of the old\n")


def test_log_never_raises(tmp_path: Path) -> None:
    def broken(text: str) -> None:
        raise BrokenPipeError

    HookLog("/nonexistent/folder/log", "prolog", broken).write("x")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    append_line(str(tmp_path / "link"), "x")
    assert not (tmp_path / "target").exists()


def test_configuration_beside_slurm_conf_is_found(tmp_path: Path) -> None:
    (tmp_path / "slurm-energy.toml").write_text('[node]\nspool_directory = "/spool/%n"\nlog_path = "/log/%n.log"\n')
    settings = load_settings({"SLURM_CONF": str(tmp_path / "slurm.conf"), "SLURMD_NODENAME": "n7"})
    assert (str(settings.spool_directory), settings.log_path, settings.node_name) == ("/spool/n7", "/log/n7.log", "n7")
    assert load_settings({"SLURM_CONF": str(tmp_path / "slurm.conf")}, "n8").node_name == "n8"


def test_a_timer_names_the_node_as_slurm_does(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"NodeName=gpu07 NodeHostname={os.uname().nodename}\n")
    environment = {"SLURM_ENERGY_CONFIG": str(tmp_path / "energy.toml"), "SLURM_CONF": str(conf)}
    (tmp_path / "energy.toml").write_text('[node]\nspool_directory = "/var/spool/energy/%n"\n')
    settings = load_settings(environment)
    assert (settings.node_name, settings.spool_directory) == ("gpu07", Path("/var/spool/energy/gpu07"))
    assert load_settings(environment, "other").node_name == "other"
    conf.unlink()
    assert load_settings(environment).node_name == os.uname().nodename.partition(".")[0]


def test_marks_and_leftovers_are_bounded(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.prepare()
    for number in range(MAX_DONE_MARKS + 5):
        mark = spool.done / str(number)
        mark.touch()
        os.utime(mark, (number, number))
    leftovers = [spool.active / f".7.json.{pid}.tmp" for pid in (os.getpid(), 1 << 30)]
    for leftover in leftovers:
        leftover.touch()
    spool.sweep()
    assert not spool.is_done(JobId(4)) and spool.is_done(JobId(5))
    assert [path.exists() for path in leftovers] == [True, False]
