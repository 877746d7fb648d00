"""Which clocks are locked, recorded a second time outside the spool: losing either place alone loses no lock.

One small file per GPU, written before the clock is locked and removed when it is given back. The folder is in /run: a
boot, which ends every lock, clears it, and no write waits for a disk.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.domain.ids import MAX_JOB_ID, GpuUuid, JobId
from slurm_energy.errors import SpoolError, WireError
from slurm_energy.files import make_private, read_whole, remove, require_private, write_atomically
from slurm_energy.wire.fields import Fields, loads


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRecord:
    """One GPU whose clock is about to be locked, or locked."""

    uuid: GpuUuid
    job_id: JobId | None
    """For whom; None when the file is damaged."""
    clock_mhz: int | None = None


class LockRecords:
    """The records of one node; without a folder none are kept."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def write(self, records: Iterable[LockRecord], boot_id: str) -> None:
        """Store records, each in place of an earlier one of its GPU.

        Raises:
            SpoolError: they cannot be written.
        """
        if self._folder is None:
            return
        for number, record in enumerate(records):
            if number == 0:
                make_private(self._folder)
            content = json.dumps({"boot_id": boot_id, "job_id": record.job_id, "clock_mhz": record.clock_mhz})
            write_atomically(self._path(self._folder, record.uuid), content.encode(), durable=False)

    def read(self, boot_id: str, events: list[str]) -> tuple[LockRecord, ...]:
        """Return the records of this boot; what cannot be used is named in `events`."""
        if self._folder is None:
            return ()
        try:
            require_private(self._folder)
            paths = sorted(self._folder.glob("[!.]*.json"))
        except FileNotFoundError:
            return ()
        except (SpoolError, OSError) as error:
            events.append(f"records of locked clocks: {error}")
            return ()
        found = []
        for path in paths:
            uuid = GpuUuid(path.name.removesuffix(".json"))
            try:
                content = read_whole(path)
                if content is None:
                    continue
                record = Fields(loads(content, path.name, 4096), "record of a lock")
                if record.text("boot_id", 64) != boot_id:
                    remove(path)
                    continue
                job_id = JobId(record.integer("job_id", 1, MAX_JOB_ID))
                found.append(LockRecord(uuid=uuid, job_id=job_id, clock_mhz=record.integer("clock_mhz", 1, 10_000)))
            except (SpoolError, WireError) as error:
                events.append(f"{path}: {error}")
                found.append(LockRecord(uuid=uuid, job_id=None))
        return tuple(found)

    def forget(self, uuid: GpuUuid) -> None:
        """Remove the record of a GPU whose clock is given back."""
        if self._folder is not None:
            with suppress(SpoolError):
                remove(self._path(self._folder, uuid))

    def remove_folder(self) -> None:
        """Remove the folder if no record is left in it."""
        if self._folder is not None:
            with suppress(OSError):
                self._folder.rmdir()

    @staticmethod
    def _path(folder: Path, uuid: GpuUuid) -> Path:
        return folder / f"{uuid.replace('/', '_')}.json"
