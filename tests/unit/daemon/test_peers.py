import os
import socket

from slurm_energy.daemon.doors.callers import Peer, peer_of, privileged_user_ids


def test_the_kernel_tells_who_is_at_the_other_end() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        me = os.getuid()
        assert peer_of(ours, frozenset({me})) == Peer(process_id=os.getpid(), user_id=me, privileged=True)
        assert not peer_of(ours, frozenset({me + 1})).privileged


def test_root_slurm_and_the_daemons_own_user_are_privileged_and_unknown_names_are_nobody() -> None:
    assert privileged_user_ids("root") == {0, os.geteuid()}
    assert privileged_user_ids("64030") == {0, os.geteuid(), 64030}
    assert privileged_user_ids("no such user") == {0, os.geteuid()}
