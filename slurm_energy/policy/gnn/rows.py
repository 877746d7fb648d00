"""What pending jobs ask of their partitions, row by row, with rows used again."""

from collections.abc import Iterable

import torch
from torch import Tensor

from slurm_energy.policy.gnn.levels import Contributions, add_up, largest_by


class RowPool:
    """One row for each (job, partition); sums by partition are taken over all rows, so nothing drifts."""

    def __init__(self, hidden: int, heads: int) -> None:
        self._partitions = 0
        self._rows_of: dict[int, list[int]] = {}
        self._free: list[int] = []
        self._size = 0
        self._owner = torch.zeros(0, dtype=torch.int64)
        """Partition of each row; one past the last for rows that are free."""
        self._weight = torch.zeros(0, heads)
        self._value = torch.zeros(0, hidden)
        self._critical = torch.zeros(0)

    @torch.inference_mode()
    def clear(self, partitions: int) -> None:
        """Forget all rows."""
        self._partitions = partitions
        self._rows_of.clear()
        self._free.clear()
        self._size = 0
        self._owner.fill_(partitions)

    @torch.inference_mode()
    def remove(self, tasks: Iterable[int]) -> None:
        """Free the rows of some jobs; jobs without rows are no fault."""
        rows = [row for task in tasks for row in self._rows_of.pop(task, ())]
        if rows:
            self._owner[rows] = self._partitions
            self._free += rows

    @torch.inference_mode()
    def put(
        self, tasks: list[int], task_of_row: list[int], owner: Tensor, asked: Contributions, critical: Tensor
    ) -> None:
        """Replace the rows of some jobs.

        Args:
            tasks: Slots of the jobs.
            task_of_row: For each row, the position of its job in `tasks`.
            owner: Partition of each row, [rows].
            asked: Contributions, [rows].
            critical: Critical path of the job of each row, [rows].
        """
        self.remove(tasks)
        rows = [self._free.pop() if self._free else self._fresh() for _ in task_of_row]
        for row, position in zip(rows, task_of_row, strict=True):
            self._rows_of.setdefault(tasks[position], []).append(row)
        self._grow()
        if rows:
            where = torch.tensor(rows)
            self._owner[where], self._critical[where] = owner, critical
            self._weight[where], self._value[where] = asked.weight, asked.value

    @torch.inference_mode()
    def sums(self) -> tuple[Contributions, Tensor]:
        """Return the sums by partition, and the longest critical path by partition."""
        partitions, size = self._partitions, self._size
        owner = self._owner[:size]
        total = add_up(Contributions(self._weight[:size], self._value[:size]), owner, partitions + 1)
        critical = largest_by(self._critical[:size], owner, partitions + 1)
        return Contributions(total.weight[:partitions], total.value[:partitions]), critical[:partitions]

    def _fresh(self) -> int:
        self._size += 1
        return self._size - 1

    def _grow(self) -> None:
        short = self._size - len(self._owner)
        if short <= 0:
            return
        more = max(short, len(self._owner))
        self._owner = torch.cat([self._owner, self._owner.new_full((more,), self._partitions)])
        self._critical = torch.cat([self._critical, self._critical.new_zeros(more)])
        self._weight = torch.cat([self._weight, self._weight.new_zeros(more, self._weight.shape[1])])
        self._value = torch.cat([self._value, self._value.new_zeros(more, self._value.shape[1])])
