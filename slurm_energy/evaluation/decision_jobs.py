"""The jobs that a measurement asks decisions for, as a policy sees them and as Slurm's plugin sends them."""

from dataclasses import dataclass

from slurm_energy.domain.job import EnergyMode, EnergyOptions, GpuDemand, JobRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedJob:
    """A job without a partition of its own, only observed.

    A job that is observed stays in the default partition: thousands of jobs that never reach the queue then do not
    promise away the room that the policy chooses among.
    """

    user_id: int
    name: str
    gpus: int
    minutes: int
    max_slowdown: float

    def request(self) -> JobRequest:
        """Return what a policy is asked."""
        return JobRequest(
            user_id=self.user_id,
            name=self.name,
            time_limit_minutes=float(self.minutes),
            gpus=(GpuDemand(count=self.gpus),),
            options=EnergyOptions(mode=EnergyMode.OBSERVE, max_slowdown=self.max_slowdown),
        )

    def fields(self) -> dict[str, str]:
        """Return the fields of a `decide` message."""
        return {
            "client": "bench",
            "uid": str(self.user_id),
            "name": self.name,
            "time_limit": str(self.minutes),
            "min_nodes": "1",
            "tres_per_node": f"gres:gpu:{self.gpus}",
            "energy_mode": "observe",
            "energy_max_slowdown": f"{100.0 * self.max_slowdown:g}%",
        }


def asked_jobs() -> tuple[AskedJob, ...]:
    """Return jobs of one or two GPUs with small and large bounds on their slowdown."""
    return tuple(
        AskedJob(
            user_id=2000 + number,
            name=f"train-{number:02d}",
            gpus=1 + number % 2,
            minutes=(30, 240, 1440)[number % 3],
            max_slowdown=(0.05, 0.2, 2.0)[number // 2 % 3],
        )
        for number in range(24)
    )
