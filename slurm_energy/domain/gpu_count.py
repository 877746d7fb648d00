"""Numbers of GPUs that a job may run with, and how much faster its work goes on more of them."""

from dataclasses import dataclass
from math import exp, isfinite

from slurm_energy.errors import ValueRangeError

MAX_GPU_COUNTS = 32
MAX_GPU_COUNT = 4096


def parse_gpu_counts(text: str) -> tuple[int, ...]:
    """Return the numbers of `2-8` or `2,4,8`, ascending, each once.

    Raises:
        ValueRangeError: it is no list of numbers and ranges from 1 to 4096, or one of more than 32 numbers.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        low, high = _count(first, text), _count(last if dash else first, text)
        if low > high or high - low >= MAX_GPU_COUNTS:
            raise _no_counts(text)
        found.update(range(low, high + 1))
    if len(found) > MAX_GPU_COUNTS:
        raise _no_counts(text)
    return tuple(sorted(found))


def _count(digits: str, text: str) -> int:
    if not digits.isascii() or not digits.isdigit() or len(digits) > 4 or not 1 <= int(digits) <= MAX_GPU_COUNT:
        raise _no_counts(text)
    return int(digits)


def _no_counts(text: str) -> ValueRangeError:
    return ValueRangeError(f"numbers of GPUs {text[:64]!r} are not up to {MAX_GPU_COUNTS} such as 2-8 or 2,4,8")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCountOption:
    """A number of GPUs that Slurm's side can give a job, and what the job then asks of each node."""

    gpus: int
    nodes: int = 0
    """0: Slurm chooses."""
    cpus_per_node: int = 0
    """0: not known."""
    memory_per_node_mib: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.gpus <= MAX_GPU_COUNT:
            raise ValueRangeError(f"number of GPUs {self.gpus} is not between 1 and {MAX_GPU_COUNT}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuScaling:
    """How much faster a job's work runs on more GPUs.

    What n GPUs lose is n / speed-up - 1: 0 without any loss, 1 where half of them are wasted. It is about a straight
    line over n - 1 on logarithmic scales, of nearly the same slope for every application measured; applications differ
    in where the line begins.
    """

    log_loss: float
    """Logarithm of what two GPUs lose, in the middle of what it may be."""
    doubt: float
    """Its standard deviation."""
    counts: tuple[int, ...] = ()
    """Numbers of GPUs of the job's own ended runs behind it."""

    def __post_init__(self) -> None:
        if not (isfinite(self.log_loss) and isfinite(self.doubt) and self.doubt >= 0.0):
            raise ValueRangeError(f"scaling loss exp({self.log_loss} +- {self.doubt}) is not finite")

    @property
    def is_measured(self) -> bool:
        """Whether the job's own runs tell it: they had at least two numbers of GPUs."""
        return len(self.counts) > 1

    def speedup(self, gpus: int, deviations: float = 0.0) -> float:
        """Return how many times as fast the work goes as on one GPU.

        Args:
            gpus: How many.
            deviations: How many standard deviations more it loses than in the middle.
        """
        return speedup_at(gpus, self.log_loss + deviations * self.doubt)


LOSS_EXPONENT = 1.07
"""Mean slope of 13 curves on A100 with a fixed total batch (ElasticFlow, ASPLOS 2023); from 0.97 to 1.16."""
UNKNOWN_SCALING = GpuScaling(log_loss=-1.7, doubt=1.0)
"""Of work without runs: mean and spread of the same five applications."""


def speedup_at(gpus: int, log_loss: float) -> float:
    """Return the speed-up over one GPU of work of which two GPUs lose exp(`log_loss`)."""
    return 1.0 if gpus <= 1 else gpus / (1.0 + exp(log_loss) * float(gpus - 1) ** LOSS_EXPONENT)
