"""What a job's script says of its work: words of fixed lists, numbers and digests, never its text."""

import hashlib
import re
from dataclasses import dataclass, fields
from math import log2

from slurm_energy.errors import ValueRangeError

MAX_FEATURES_BYTES = 512
MAX_WORDS = 4
"""In each list of words."""
MAX_NUMBER = 10**9
_WORD = re.compile(r"[a-z0-9][a-z0-9_.+-]{0,31}\Z")
_DIGEST = re.compile(r"[0-9a-f]{8}\Z")
_LISTS = ("programs", "launchers", "frameworks")
_WORDS = ("model", "dataset", "precision")
_NUMBERS = ("batch_size", "epochs", "steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFeatures:
    """Features of one job's script; empty and None where it says nothing.

    The wrapper takes words from fixed lists only, so that no path, token or name of a person can be among them. Who
    submits can send others in their form: only that user's own estimates rest on them.
    """

    programs: tuple[str, ...] = ()
    """Known programs in the order in which they run, such as `python` or `gromacs`."""
    launchers: tuple[str, ...] = ()
    """What starts them: `srun`, `torchrun`."""
    frameworks: tuple[str, ...] = ()
    """Libraries that a Python program imports: `pytorch`, `transformers`."""
    model: str = ""
    """Family of the network with its size, where it is known: `resnet50`, `bert-large`."""
    dataset: str = ""
    precision: str = ""
    """`fp64`, `fp32`, `tf32`, `fp16`, `bf16`, `fp8`, `int8`, or `mixed`."""
    batch_size: int | None = None
    epochs: int | None = None
    steps: int | None = None
    code: str = ""
    """Digest of a program's imports and calls, or of the name of a program that is on no list; 8 hexadecimal digits."""

    def __post_init__(self) -> None:
        for name in _LISTS:
            words = getattr(self, name)
            if len(words) > MAX_WORDS or not all(_WORD.match(word) for word in words):
                raise ValueRangeError(f"script feature {name} is not up to {MAX_WORDS} words of up to 32 characters")
        for name in _WORDS:
            if getattr(self, name) and not _WORD.match(getattr(self, name)):
                raise ValueRangeError(f"script feature {name} is not a word of up to 32 characters")
        for name in _NUMBERS:
            number = getattr(self, name)
            if number is not None and not 1 <= number <= MAX_NUMBER:
                raise ValueRangeError(f"script feature {name} is not from 1 to {MAX_NUMBER}")
        if self.code and not _DIGEST.match(self.code):
            raise ValueRangeError("script feature code is not 8 hexadecimal digits")
        if len(self.encode()) > MAX_FEATURES_BYTES:
            raise ValueRangeError(f"script features together are over {MAX_FEATURES_BYTES} bytes")

    @property
    def is_telling(self) -> bool:
        """Whether they tell one kind of work from another; that something runs under srun does not."""
        return bool(self.model or self.code or any(program not in _INTERPRETERS for program in self.programs))

    @property
    def key(self) -> str:
        """What runs of the same work share; empty where the features do not tell the work.

        Learning rates, seeds and paths are no features, so that a sweep has one key. Numbers count by powers of two:
        10 and 12 epochs are alike, 10 and 100 are not. The code counts only where no model is known: a change of the
        program that leaves the model as it is leaves the key too.
        """
        if not self.is_telling:
            return ""
        parts = [",".join(sorted(set(getattr(self, name)))) for name in ("programs", "frameworks")]
        parts += [self.model, self.dataset, self.precision]
        parts += [_magnitude(getattr(self, name)) for name in _NUMBERS]
        parts.append("" if self.model else self.code)
        return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]

    def encode(self) -> str:
        """Return `v=1;programs=…;model=…`, ASCII of at most 512 bytes without blanks; what is empty is left out."""
        parts = ["v=1"]
        for name in (item.name for item in fields(self)):
            value = getattr(self, name)
            if value:
                parts.append(f"{name}={','.join(value) if isinstance(value, tuple) else value}")
        return ";".join(parts)

    @classmethod
    def decode(cls, text: str) -> "ScriptFeatures":
        """Return the features that `encode` wrote; keys that this version does not know are left out.

        Raises:
            ValueRangeError: it is none; the text may come from a forger.
        """
        if len(text) > MAX_FEATURES_BYTES or not text.isascii():
            raise ValueRangeError(
                f"script features of {len(text)} characters are over {MAX_FEATURES_BYTES} or not ASCII"
            )
        given: dict[str, str] = {}
        for part in text.split(";"):
            name, separator, value = part.partition("=")
            if not separator or not value or name in given:
                raise ValueRangeError(f"script features have a bad or repeated part {part[:64]!r}")
            given[name] = value
        if given.pop("v", "") != "1":
            raise ValueRangeError("script features are not of version 1")
        values: dict[str, tuple[str, ...] | str | int] = {}
        for name, value in given.items():
            if name in _LISTS:
                values[name] = tuple(value.split(","))
            elif name in _NUMBERS:
                values[name] = _whole(name, value)
            elif name in (*_WORDS, "code"):
                values[name] = value
        return cls(**values)  # type: ignore[arg-type]  # each has the type of its field

    def sentence(self) -> str:
        """Return what a person reads: `python under torchrun, pytorch, resnet50 on imagenet, batch size 256`."""
        parts = []
        if self.programs:
            under = f" under {', '.join(self.launchers)}" if self.launchers else ""
            parts.append(f"{', '.join(self.programs)}{under}")
        parts += [", ".join(self.frameworks)] if self.frameworks else []
        if self.model or self.dataset:
            on = f" on {self.dataset}" if self.dataset else ""
            parts.append(f"{self.model or 'a model'}{on}")
        parts += [self.precision] if self.precision else []
        numbers = (("batch size", self.batch_size), ("epochs", self.epochs), ("steps", self.steps))
        parts += [f"{word} {number}" for word, number in numbers if number is not None]
        if not parts and self.code:
            parts.append(f"a program with digest {self.code}")
        return ", ".join(parts)


_INTERPRETERS = frozenset({"python", "bash"})
"""What they run says what the job does; they do not."""


def _magnitude(number: int | None) -> str:
    return "" if number is None else str(round(log2(number)))


def _whole(name: str, text: str) -> int:
    if not text.isdigit() or len(text) > 10:
        raise ValueRangeError(f"script feature {name}={text[:32]!r} is not a whole number from 1 to {MAX_NUMBER}")
    return int(text)
