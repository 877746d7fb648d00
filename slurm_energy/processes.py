"""Worker processes that do not outlive the process that started them."""

import multiprocessing
import os
import threading
from multiprocessing.connection import wait


def end_with_parent() -> None:
    """Let this worker process end as soon as the process that started it is gone, however that came to its end."""
    threading.Thread(target=_end_with_parent, daemon=True, name="end with parent").start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
