"""Questions asked as the user of a service: root may open what the service may not."""

import os
import pwd
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from slurm_energy.errors import SlurmEnergyError

ANSWER_SECONDS = 20.0
MAX_ANSWER_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceUser:
    """An account that a service runs as."""

    name: str
    user_id: int
    group_id: int

    @property
    def can_be_asked(self) -> bool:
        """Whether this process may ask as this user: it is root, or the user itself."""
        return os.geteuid() in (0, self.user_id)

    def ask(self, question: Callable[[], str]) -> str:
        """Return what a question answers when it is asked as this user, in a process of its own.

        The question returns nothing when all is well, and what is wrong in words otherwise; an OSError or an error of
        this package is an answer as well. One that hangs is ended, and that is the answer.
        """
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _answer(self, question, writer)
        os.close(writer)
        try:
            answer = _read(reader)
        finally:
            os.close(reader)
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if not answer:
            return f"no answer within {ANSWER_SECONDS:g} s: a file system that hangs?"
        return answer[1:]


def service_user(name: str) -> ServiceUser | None:
    """Return an account by name or number, None when there is none."""
    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except (KeyError, OverflowError):
        return None
    return ServiceUser(name=entry.pw_name, user_id=entry.pw_uid, group_id=entry.pw_gid)


def _answer(user: ServiceUser, question: Callable[[], str], writer: int) -> None:
    """Be the child: become the user, answer, and leave without Python's own end."""
    text = "it could not be asked"
    try:
        if os.geteuid() != user.user_id:
            os.setgroups(os.getgrouplist(user.name, user.group_id))
            os.setresgid(user.group_id, user.group_id, user.group_id)
            os.setresuid(user.user_id, user.user_id, user.user_id)
        text = question()
    except OSError as error:
        text = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
    except SlurmEnergyError as error:
        text = str(error)
    except Exception as error:  # noqa: BLE001  # the child must answer whatever happens: silence would mean a hang
        text = f"{type(error).__name__}: {error}"
    finally:
        with suppress(OSError):
            os.write(writer, b"=" + text.encode("utf-8", "replace")[:MAX_ANSWER_BYTES])
        os._exit(0)


def _read(reader: int) -> str:
    end = time.monotonic() + ANSWER_SECONDS
    answer = b""
    while (left := end - time.monotonic()) > 0 and select.select([reader], [], [], left)[0]:
        chunk = os.read(reader, MAX_ANSWER_BYTES + 1)
        if not chunk:
            break
        answer += chunk
    return answer.decode("utf-8", "replace")
