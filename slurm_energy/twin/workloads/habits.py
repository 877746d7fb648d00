"""Users with habits: how they name jobs, how much a batch script tells of the work, which limit and partition they ask.

Nothing of it is measured: shares are assumptions of this package, drawn with a seed. Scripts are in the forms that
sites see (headers and launch lines of BLOOM's training on Jean Zay, common training launchers, MPI, a container), and
their features are found in them by what reads real scripts.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil, exp
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.errors import ConfigError
from slurm_energy.estimation.script.features import script_features
from slurm_energy.estimation.script.reading import SourceReader
from slurm_energy.resources import install_command
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.workloads.generating import ROUND_SECONDS, round_limit_seconds

LONGEST_LIMIT_SECONDS = ROUND_SECONDS[-3]
"""What users ask for who always ask for the longest: 7 days."""
TIGHT_STEP_SECONDS = 600.0
GENERIC_NAMES = ("train", "job", "run.sh", "wrap", "test", "main")

Naming = Literal["telling", "parameters", "generic"]
Telling = Literal["much", "little", "nothing"]
Limit = Literal["tight", "round", "longest"]
Word = TypeVar("Word", bound=str)
_OTHER_NAMING: dict[Naming, float] = {"telling": 4.0, "parameters": 3.0}
_TELLING_SHARES: dict[Telling, float] = {"much": 0.4, "little": 0.35, "nothing": 0.25}
LIMITS: dict[str, dict[Limit, float]] = {
    "mixed": {"tight": 0.2, "round": 0.5, "longest": 0.3},
    "margins": {"round": 1.0},
    "longest": {"round": 0.4, "longest": 0.6},
}
"""Shares of users by how they set limits, under the name of the mixture."""
_TOO_SHORT_SHARE = 0.05
"""Of tight limits, that the run does not keep."""
GENERIC_SHARE = 0.3
"""Of users whose job names say nothing, where none is given."""

_HEAD = "#!/bin/bash\n#SBATCH --job-name={name}\n#SBATCH --nodes=1\n#SBATCH --gres=gpu:{gpus}\n"
_HEADS = (
    _HEAD,
    _HEAD + "#SBATCH --cpus-per-task=40           # number of cores per tasks\n#SBATCH --hint=nomultithread\n",
    _HEAD + "#SBATCH --output=%x-%j.out           # output file name\n##SBATCH --qos=qos_gpu-t3\n\nset -x -e\n",
)
"""As in scripts of sites: options alone, with comments behind them, one of them switched off."""
_TRAINING_FORMS = (
    "module purge\nmodule load pytorch-gpu\nsrun python -u train.py {options}\n",
    "export MASTER_PORT=6000\ntorchrun --nproc_per_node={gpus} --nnodes=1 train.py {options} 2>&1 | tee log.txt\n",
    (
        "export LAUNCHER='python -m torch.distributed.launch --nproc_per_node {gpus}'\n"
        "export CMD='train.py {options}'\nsrun bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD'\n"
    ),
    "apptainer exec --nv image.sif python train.py {options}\n",
    "accelerate launch --num_processes {gpus} --mixed_precision bf16 train.py {options}\n",
    "deepspeed --num_gpus {gpus} train.py {options} --deepspeed ds_config.json\n",
    "source activate pl\nsrun python train_lightning.py fit --trainer.devices {gpus} {options}\n",
    "horovodrun -np {gpus} python train.py {options}\n",
    "mpirun -np {gpus} --bind-to none python train.py {options}\n",
    "python train.py {options}\n",
)
"""Launch lines of training programs; each user keeps to one."""
_SIMULATION_PROGRAMS = {
    "lammps": "lmp -in in.{size}",
    "namd": "namd2 +p8 +devices 0 run{size}.namd",
    "dgemm": "./dgemm_cuda --repeat {size}",
    "stream": "./stream_cuda --repeat {size}",
}
_SIMULATION_FORMS = ("srun {command}\n", "mpirun -np {gpus} {command}\n", "module load {kind}\n{command} > out.log\n")
"""Launch lines of programs whose own name tells the kind."""


MAX_RANGE = 8
"""Most GPUs of a job whose user leaves their number open: those of one node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """What one user always does."""

    user: str
    naming: Naming
    telling: Telling
    limit: Limit
    form: int
    """Which of the launch lines the user writes."""
    generic_name: str
    partition: str = ""
    """That the user names in every job; empty for none."""
    leaves_open: bool = False
    """Whether he says --energy-open of it in every job."""
    gives_range: bool = False
    """Whether his jobs say --energy-gpus: any power of two up to `MAX_RANGE`, beside their own number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HabitShares:
    """How many users do what."""

    generic_names: float = GENERIC_SHARE
    """Share of users whose job names say nothing."""
    limits: str = "mixed"
    """A key of `LIMITS`."""
    named_partitions: float = 0.0
    """Share of users who name one partition in all their jobs."""
    partitions: Mapping[str, float] = field(default_factory=dict)
    """Which partitions those users name, with weights."""
    open_partitions: float = 0.0
    """Share of those users who leave it open."""
    gpu_ranges: float = 0.0
    """Share of the users whose jobs may run with other numbers of GPUs."""


def drawn_habits(
    users: int,
    random: np.random.Generator,
    shares: HabitShares = HabitShares(),
) -> tuple[Habit, ...]:
    """Return the habits of so many users: those with names that say nothing, and with a partition, at even shares.

    One user's draws are the same whatever the shares are, so that cases that differ in one share differ in that alone.
    """
    return tuple(
        _habit(f"user{number:03d}", draws, shares) for number, draws in enumerate(_habit_draws(users, random), start=1)
    )


def _habit_draws(users: int, random: np.random.Generator) -> list[list[float]]:
    """Return numbers in [0, 1) by user; the first two are evenly spread over the users, so that shares are met."""
    draws = random.random((users, 8))
    for column in (0, 1):
        draws[:, column] = (random.permutation(users) + 0.5) / max(1, users)
    found: list[list[float]] = draws.tolist()
    return found


def _habit(user: str, draws: Sequence[float], shares: HabitShares) -> Habit:
    generic, partition, naming, telling, limit, form, name, which = draws
    return Habit(
        user=user,
        naming="generic" if generic < shares.generic_names else _picked(_OTHER_NAMING, naming),
        telling=_picked(_TELLING_SHARES, telling),
        limit=_picked(LIMITS[shares.limits], limit),
        form=int(form * len(_TRAINING_FORMS)),
        generic_name=GENERIC_NAMES[int(name * len(GENERIC_NAMES))],
        partition=_picked(dict(shares.partitions), which) if partition < shares.named_partitions else "",
    )


def _picked(shares: dict[Word, float], draw: float) -> Word:
    """Return the word in whose part of the shares a draw in [0, 1) falls."""
    left = draw * sum(shares.values())
    for word, share in shares.items():
        left -= share
        if left < 0.0:
            return word
    return next(reversed(shares))


def give_habits(
    jobs: Sequence[Job],
    users: int,
    stream: np.random.SeedSequence,
    *,
    shares: HabitShares = HabitShares(),
    seconds_of: Callable[[Job], float] | None = None,
) -> None:
    """Give jobs users, and the names, scripts, limits and partitions of those users; who comes is not changed by it.

    A job's name, else its kind, is the program that it runs. A program is one user's; users have about as many.

    Args:
        jobs: Changed in place.
        users: How many there are.
        stream: Of what is drawn.
        shares: How many users do what.
        seconds_of: Run time of a job at the default clock, for limits; None leaves limits as they are.

    Raises:
        ConfigError: scripts cannot be read, since tree-sitter is not installed.
    """
    random = np.random.default_rng(stream)
    habits = _with_levers(drawn_habits(users, random, shares), shares, stream)
    programs = sorted({job.name or job.kind for job in jobs})
    owners = dict(zip(programs, random.permutation(np.arange(len(programs)) % users).tolist(), strict=True))
    draws = random.random((len(jobs), 2)).tolist()
    for number, (job, (name_draw, limit_draw)) in enumerate(zip(jobs, draws, strict=True)):
        program = job.name or job.kind
        habit = habits[owners[program]]
        job.user = habit.user
        job.script = script_of(habit, program, job.kind, job.gpu_counts[0])
        job.name = _name(habit, program, number, name_draw)
        if habit.partition:
            job.partitions = (habit.partition,)
            job.is_plain = False
        if habit.leaves_open:
            job.open = True
        if seconds_of is not None:
            job.time_limit_seconds = limit_seconds(habit, seconds_of(job), limit_draw)
            job.is_plain = False
        if habit.gives_range and len(job.gpu_counts) == 1 and job.gpu_counts[0] <= MAX_RANGE:
            job.asked_gpus = job.gpu_counts[0]
            job.gpu_counts = tuple(sorted({1 << power for power in range(MAX_RANGE.bit_length())} | {job.asked_gpus}))
            job.is_plain = False


def _with_levers(habits: tuple[Habit, ...], shares: HabitShares, stream: np.random.SeedSequence) -> tuple[Habit, ...]:
    """Return the habits with what users leave to the site, at even shares, and nothing else changed by it."""
    if not shares.open_partitions and not shares.gpu_ranges:
        return habits
    random = np.random.default_rng(stream.generate_state(4))
    order, ranges = random.permutation(len(habits)).tolist(), random.permutation(len(habits)).tolist()
    naming = [number for number in order if habits[number].partition]
    opening = set(naming[: round(shares.open_partitions * len(naming))])
    ranging = set(ranges[: round(shares.gpu_ranges * len(habits))])
    return tuple(
        replace(habit, leaves_open=number in opening, gives_range=number in ranging)
        for number, habit in enumerate(habits)
    )


def _name(habit: Habit, program: str, number: int, draw: float) -> str:
    match habit.naming:
        case "telling":
            return program
        case "parameters":
            return f"train_lr{10.0 ** -ceil(4.0 * draw):g}_seed{number % 10}"
        case "generic":
            return habit.generic_name


def script_of(habit: Habit, program: str, kind: str, gpus: int) -> ScriptFeatures | None:
    """Return what energy-sbatch would send of the script that a user writes for a program; None where none is read.

    Raises:
        ConfigError: tree-sitter is not installed.
    """
    if habit.telling == "nothing":
        return None
    return _features(batch_script(habit, program, kind, gpus))


def batch_script(habit: Habit, program: str, kind: str, gpus: int) -> str:
    """Return the batch script that a user writes for a program; it tells of the kind as much as the user's do."""
    head = _HEADS[habit.form % len(_HEADS)].format(name=habit.generic_name, gpus=gpus)
    if habit.telling != "much":
        return f"{head}cd $SLURM_SUBMIT_DIR\nsrun ./{_binary(program)} input.dat\n"
    size = int.from_bytes(program.encode()[-2:], "big") % 8
    if kind in _SIMULATION_PROGRAMS:
        command = _SIMULATION_PROGRAMS[kind].format(size=size)
        form = _SIMULATION_FORMS[habit.form % len(_SIMULATION_FORMS)]
        return head + form.format(command=command, gpus=gpus, kind=kind)
    options = f"--model {kind} --batch-size {8 << size % 4} --epochs {3 << size} --lr 0.1"
    return head + _TRAINING_FORMS[habit.form % len(_TRAINING_FORMS)].format(options=options, gpus=gpus)


def _binary(program: str) -> str:
    """Return the name of a binary that says nothing of what it computes."""
    return "".join(chr(ord("k") + int(sign, 16) % 15) for sign in hashlib.sha256(program.encode()).hexdigest()[:6])


@cache
def _features(text: str) -> ScriptFeatures:
    try:
        *_, found = script_features(text, (), {}, SourceReader(Path("/nonexistent"), reads_programs=False))
    except ImportError as error:
        raise ConfigError(f"workload setting users needs tree-sitter: {install_command('script')}") from error
    return found


def limit_seconds(habit: Habit, run_seconds: float, draw: float) -> float:
    """Return the limit that a user asks for a run of so many seconds at the default clock.

    Args:
        habit: The user's.
        run_seconds: By the truth.
        draw: In [0, 1).
    """
    match habit.limit:
        case "longest":
            return max(LONGEST_LIMIT_SECONDS, round_limit_seconds(run_seconds, 0.0))
        case "round":
            return round_limit_seconds(run_seconds, draw)
        case "tight":
            if draw < _TOO_SHORT_SHARE:
                return max(TIGHT_STEP_SECONDS, 0.9 * run_seconds)
            return TIGHT_STEP_SECONDS * max(1, ceil(exp(0.3 * draw) * run_seconds / TIGHT_STEP_SECONDS))
