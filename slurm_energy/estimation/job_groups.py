"""Which jobs of a user are taken to do the same work: by name, or by script where a name says nothing."""

import re
from math import log2
from typing import Protocol

from slurm_energy.domain.script import ScriptFeatures

MAX_CHARACTERS = 512
"""Of a name that are looked at; the database holds no more."""
GROUP_MARK = "script:"
"""Before a script's key. A user who names a job so mixes up the user's own estimates alone."""
_GENERIC = frozenset(
    """
    a b batch bash cmd command debug demo eval exp experiment exps file fit gpu gpus finetune inference infer
    interactive it job jobs jupyter launch launcher main myjob mytest new notebook pipeline pretrain process
    program python run runner runs sbatch script search sh sim simulation singularity slurm start submit sweep
    task temp test test_gpu tmp torch torchrun train trainer training tune untitled wandb work worker wrap x
    """.split()  # noqa: SIM905  # reads better as text
)
_ENDING = re.compile(r"\.(?:sh|bash|slurm|slrm|sbatch|job|batch|py|cmd|sub|run)\Z")
_SEPARATOR = re.compile(r"[\s_\-:/=,+@#()\[\]{}]+|\.(?!\d)|(?<!\d)\.")
_NUMBER = re.compile(r"[\d.]+(?:e-?\d+)?[a-z]?|\d*e-?\d+|[0-9a-f]*\d[0-9a-f]{5,}")
_PARAMETER = re.compile(
    r"(?:lr|learningrate|seed|s|bs|b|batch|batchsize|ep|epoch|epochs|wd|drop|dropout|n|np|nodes?|gpus?|ngpus?|fold|f|"
    r"trial|v|ver|version|k|d|dim|h|hidden|l|layers?|rank|r|size|alpha|beta|gamma|eps|step|steps|iter|iters|part|p|"
    r"id|i|idx|no|num|rep|round|try|attempt|split|cv|param|arg|cfg|config)(?:[\d.]*(?:e-?\d+)?|\d+[a-z]?)"
)


class NamedRun(Protocol):
    """What of a run says to which group it belongs."""

    @property
    def user_id(self) -> int:
        """Who ran it."""
        ...

    @property
    def name(self) -> str:
        """The job's name."""
        ...

    @property
    def script_key(self) -> str | None:
        """What its script shared with others of the same work."""
        ...


def name_stem(name: str) -> str:
    """Return what a job's name says apart from numbers, dates, digests and parameters; empty where that is nothing.

    `train_lr0.1_seed3` and `run-17.sh` say nothing, `bert_lr0.1` says `bert`.
    """
    lowered = _ENDING.sub("", name[:MAX_CHARACTERS].lower().strip())
    said = []
    for word in _SEPARATOR.split(lowered):
        if not word or _NUMBER.fullmatch(word) or _PARAMETER.fullmatch(word):
            continue
        if word.rstrip("0123456789.") not in _GENERIC:
            said.append(word)
    return "_".join(said)


def job_group(name: str, script_key: str | None) -> str:
    """Return the word under which a job's runs are put together with those of the same user.

    Without a script that says something it is the name, as it is. With one, the script speaks for names that say
    nothing, and names that differ in parameters alone are one.
    """
    if not script_key:
        return name
    stem = name_stem(name)
    if not stem:
        return f"{GROUP_MARK}{script_key}"
    return name if stem == name.lower() else f"{stem} {GROUP_MARK}{script_key}"


def script_family(script: ScriptFeatures) -> str:
    """Return what jobs of one kind of work share, of any user: the model, else the code, else the programs."""
    programs = [program for program in script.programs if program not in _INTERPRETERS]
    return script.model or script.code or ",".join(sorted(programs))


def alike_groups(script: ScriptFeatures) -> tuple[str, ...]:
    """Return the words under which first estimates of like jobs are kept, the most telling first."""
    family = script_family(script)
    if not family:
        return ()
    whole = f"{GROUP_MARK}{family}"
    return (whole,) if script.batch_size is None else (f"{whole} {round(log2(script.batch_size))}", whole)


_INTERPRETERS = frozenset({"bash", "python"})
