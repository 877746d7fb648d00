"""Identifiers, as types of their own so that they cannot be mixed up; node list expressions."""

import re
from collections.abc import Iterator
from typing import NewType

from slurm_energy.errors import ValueRangeError
from slurm_energy.forms import is_plain

ClusterName = NewType("ClusterName", str)
JobId = NewType("JobId", int)
"""Slurm's own number of a job; each array task has one."""
Sluid = NewType("Sluid", str)
"""Slurm's own id of a job that never comes again, from 25.11 on: `s` and 13 digits or letters."""
DecisionId = NewType("DecisionId", str)
"""Made before a job id exists; joins decision, job, energy and policy."""
NodeName = NewType("NodeName", str)
PartitionName = NewType("PartitionName", str)
GpuTypeName = NewType("GpuTypeName", str)
"""Key of the GPU catalogue, such as `a100-sxm4-80gb`."""
GpuUuid = NewType("GpuUuid", str)
MAX_GPU_TYPE_NAME = 63

_IN_COMMENT = r"(?:^|[^0-9A-Za-z])energy:([0-9a-z]{8,32})(?![0-9A-Za-z])"
MAX_JOB_ID = 0xFFFFFFFF
MAX_HOSTS = 65_536
_BRACKETS = r"\[([0-9,-]+)\]"
_RANGE = r"(\d{1,12})(?:-(\d{1,12}))?\Z"


def parse_decision_id(text: str) -> DecisionId:
    """Return the id if it has the one allowed form: 8 to 32 digits or lower-case letters."""
    if len(text) < 8 or not is_plain(text, "", 32) or text != text.lower():
        raise ValueRangeError(f"decision id {text[:64]!r} is not 8 to 32 digits or lower-case letters")
    return DecisionId(text)


def decision_in_comment(comment: str) -> DecisionId | None:
    """Return the decision that a job's admin comment names, None when it names none."""
    found = re.search(_IN_COMMENT, comment)
    return None if found is None else DecisionId(found.group(1))


def is_gpu_type_name(text: str) -> bool:
    """Return whether a text can be a catalogue name: lower-case letters, digits, `.`, `_` and `-`."""
    return is_plain(text, "._-", MAX_GPU_TYPE_NAME) and text[0].isalnum() and text == text.lower()


def parse_job_id(value: object) -> JobId:
    """Return a job id from an int or its decimal text: 1 to 4294967295."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueRangeError(f"job id {value!r} is not a number")
    if isinstance(value, str) and not (value.isascii() and value.lstrip("-").isdigit()):
        raise ValueRangeError(f"job id {value[:64]!r} is not a number")  # 7_1 is a task, and int() takes it for 71
    try:
        number = int(value)
    except ValueError:
        raise ValueRangeError(f"job id {value!r} is not a number") from None
    if not 0 < number <= MAX_JOB_ID:
        raise ValueRangeError(f"job id {number} is not between 1 and {MAX_JOB_ID}")
    return JobId(number)


def expand_hostlist(text: str) -> tuple[str, ...]:
    """Return the names of a node list expression such as `gpu[01-03,7],login1`, in order.

    Raises:
        ValueRangeError: the expression is malformed or names more than 65536 nodes.
    """
    names: list[str] = []
    for item in _split(text):
        for name in _expand(item):
            names.append(name)
            if len(names) > MAX_HOSTS:
                raise ValueRangeError(f"node list {text[:64]!r} names more than {MAX_HOSTS} nodes")
    return tuple(names)


def _split(text: str) -> list[str]:
    """Split at commas that are not in brackets."""
    items, depth, begin = [], 0, 0
    for position, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            items.append(text[begin:position])
            begin = position + 1
    return [item.strip() for item in (*items, text[begin:]) if item.strip()]


def _expand(item: str) -> Iterator[str]:
    match = re.search(_BRACKETS, item)
    if match is None:
        if "[" in item or "]" in item:
            raise ValueRangeError(f"node list {item[:64]!r} has brackets that do not match")
        yield item
        return
    head, tail = item[: match.start()], item[match.end() :]
    for part in match.group(1).split(","):
        bounds = re.match(_RANGE, part)
        if bounds is None:
            raise ValueRangeError(f"node list {item[:64]!r} has the range {part[:32]!r}, N or N-M is needed")
        low = bounds.group(1)
        for number in range(int(low), int(bounds.group(2) or low) + 1):
            for rest in _expand(tail):
                yield f"{head}{number:0{len(low)}d}{rest}"
