"""Files of another user, as only root can make them: such a spool is refused, and an edit keeps owners."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from node_bench import Bench, entry

from slurm_energy.cli.doctor.storage_checks import ServiceUser, service_user
from slurm_energy.cli.installing.files import PlannedFile, file_change, write
from slurm_energy.domain.ids import JobId
from slurm_energy.errors import SpoolError
from slurm_energy.files import read_whole
from slurm_energy.node.flush import run_flush
from slurm_energy.node.hooks import run_epilog, run_prolog
from slurm_energy.node.repair import run_repair
from slurm_energy.node.spool import Spool

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def open_to_all(spool: Spool) -> None:
    spool.root.chmod(0o777)


def open_to_a_group(spool: Spool) -> None:
    (spool.root / "reports").chmod(0o770)


def owned_by_a_user(spool: Spool) -> None:
    os.chown(spool.root, 12_345, -1)


def folder_owned_by_a_user(spool: Spool) -> None:
    os.chown(spool.active, 12_345, -1)


def folder_that_is_a_link(spool: Spool) -> None:
    elsewhere = spool.root.parent / "elsewhere"
    spool.active.rename(elsewhere)
    spool.active.symlink_to(elsewhere)


def parent_open_to_all(spool: Spool) -> None:
    spool.root.parent.chmod(0o777)


UNSAFE = [
    open_to_all,
    open_to_a_group,
    owned_by_a_user,
    folder_owned_by_a_user,
    folder_that_is_a_link,
    parent_open_to_all,
]


@needs_root
@pytest.mark.parametrize("spoil", UNSAFE)
def test_unsafe_spool_is_refused_by_every_hook_and_no_clock_is_set(
    bench: Bench, spoil: Callable[[Spool], None]
) -> None:
    bench.spool.prepare()
    spoil(bench.spool)
    hook = bench.hook(7, "0", entry())
    for run in (
        lambda: run_prolog(bench.context(), hook),
        lambda: run_epilog(bench.context(), hook),
        lambda: run_repair(bench.context(), everything=True),
        lambda: run_flush(bench.context()),
    ):
        with pytest.raises(SpoolError, match="is refused"):
            run()
    assert bench.locks() == [None] * 4
    assert all("lock_sm_clock" not in gpu.calls for gpu in bench.gpus)


@needs_root
@pytest.mark.parametrize("spoil", UNSAFE)
def test_clock_that_is_locked_when_the_spool_becomes_unsafe_comes_back(
    bench: Bench, spoil: Callable[[Spool], None]
) -> None:
    run_prolog(bench.context(), bench.hook(7, "0,1", entry()))
    run_prolog(bench.context(), bench.hook(8, "2", entry()))
    bench.live = frozenset({JobId(8)})
    spoil(bench.spool)
    with pytest.raises(SpoolError, match="is refused"):
        run_epilog(bench.context(), bench.hook(7, "0,1"))
    assert bench.locks() == [None, None, (210, 1275), None]
    bench.live = frozenset()
    with pytest.raises(SpoolError, match="is refused"):
        run_repair(bench.context(), everything=False)
    assert bench.locks() == [None] * 4


@needs_root
def test_file_of_another_user_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{}")
    os.chown(tmp_path / "file", 12_345, -1)
    with pytest.raises(SpoolError, match="belongs to user 12345"):
        read_whole(tmp_path / "file")


@needs_root
def test_an_edited_file_and_its_copy_stay_their_owners_and_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text("ClusterName=lab\n")
    path.chmod(0o640)
    os.chown(path, 64030, 64031)
    planned = PlannedFile(path=Path("/slurm.conf"), content=b"ClusterName=lab\nX=1\n", mode=0o640)
    backup = write(file_change(tmp_path, planned), 0.0)
    assert backup is not None
    for written in (path, backup):
        found = written.stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (64030, 64031, 0o640)


def test_a_question_is_asked_as_the_user_and_a_failure_is_an_answer(tmp_path: Path) -> None:
    me = ServiceUser(name="me", user_id=os.geteuid(), group_id=os.getegid())
    assert me.ask(lambda: "") == ""
    assert me.ask(lambda: f"uid {os.geteuid()}") == f"uid {os.geteuid()}"
    assert me.ask((tmp_path / "none").read_text) == f"{tmp_path}/none: No such file or directory"
    assert me.ask(lambda: str(1 // 0)) == "ZeroDivisionError: integer division or modulo by zero"
    assert service_user("no-such-user") is None and service_user("99999999999999999999") is None


@needs_root
def test_root_asks_as_the_services_user_what_that_user_may_open(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    nobody = service_user("nobody")
    assert nobody is not None
    assert nobody.ask(lambda: f"{os.geteuid()} {os.getgroups()}") == f"{nobody.user_id} [{nobody.group_id}]"
    assert "Permission denied" in nobody.ask(secret.read_text)
    assert os.geteuid() == 0 and secret.read_text() == "x"
