"""How many jobs share each GPU, and the node."""

import os

from slurm_energy.domain.ids import GpuUuid
from slurm_energy.node.spool import Spool


class JobTable:
    """How many active jobs hold each GPU; states are read again only when their files change."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._seen: frozenset[tuple[str, int, int]] = frozenset()
        self._holders: dict[GpuUuid, int] = {}
        self.count = 0

    def holders(self) -> dict[GpuUuid, int]:
        """Return the number of active jobs by GPU."""
        try:
            with os.scandir(self._spool.active) as entries:
                files = [entry for entry in entries if entry.name.endswith(".json") and entry.name[0] != "."]
                stats = {(entry.name, entry.inode(), entry.stat(follow_symlinks=False).st_mtime_ns) for entry in files}
        except OSError:
            return self._holders
        if stats != self._seen:
            self._seen = frozenset(stats)
            self._holders = {}
            jobs = self._spool.active_jobs([])
            self.count = len(jobs)
            for job in jobs:
                for uuid in job.uuids:
                    self._holders[uuid] = self._holders.get(uuid, 0) + 1
        return self._holders
