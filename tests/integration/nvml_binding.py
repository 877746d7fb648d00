"""The real binding (nvidia-ml-py) in a process of its own that answers one call at a time, and what its tests share."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from slurm_energy.lab.simgpu.state import NodeGpuState

_CHILD = """
import ctypes, json, os, sys
import pynvml

def plain(value):
    if isinstance(value, ctypes.Structure):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, pynvml.nvmlFriendlyObject):
        return {name: plain(inner) for name, inner in vars(value).items()}
    if isinstance(value, ctypes.Union):
        return value.ullVal
    if isinstance(value, (list, tuple, ctypes.Array)):
        return [plain(inner) for inner in value]
    if isinstance(value, ctypes._SimpleCData):
        return value.value
    if isinstance(value, ctypes._Pointer):
        handles.append(value)
        return {"handle": len(handles) - 1}
    return value.decode() if isinstance(value, bytes) else value

handles = []
by_index = {}

def answer(function, index, arguments):
    if function == "setuid":
        return os.setuid(*arguments)
    arguments = [handles[word["handle"]] if isinstance(word, dict) else word for word in arguments]
    if index is not None:
        if index not in by_index:
            by_index[index] = pynvml.nvmlDeviceGetHandleByIndex(index)
        arguments.insert(0, by_index[index])
    return plain(getattr(pynvml, function)(*arguments))

for line in sys.stdin:
    try:
        reply = {"value": answer(*json.loads(line))}
    except pynvml.NVMLError as error:
        reply = {"error": type(error).__name__.removeprefix("NVMLError_"), "text": str(error)}
    print(json.dumps(reply), flush=True)
"""


class BindingError(Exception):
    """What the binding raised: the name after `NVMLError_`, and its text."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name)
        self.name = name
        self.text = text


class NvmlBinding:
    """A context manager; the library is found through LD_LIBRARY_PATH, as on a real node."""

    def __init__(self, library_directory: Path, environment: dict[str, str], *, initialise: bool = True) -> None:
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "LD_"))}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD],
            env=keep | {"LD_LIBRARY_PATH": str(library_directory)} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._initialise = initialise

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> "NvmlBinding":
        if self._initialise:
            try:
                self.call("nvmlInit")
            except BindingError:
                self.__exit__(None, None, None)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=120)
        self._process.stdout.close()

    def send(self, function: str, *arguments: object, gpu: int | None = None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([function, gpu, arguments]) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        assert self._process.stdout is not None
        reply = json.loads(self._process.stdout.readline())
        if "error" in reply:
            raise BindingError(reply["error"], reply["text"])
        return reply["value"]

    def call(self, function: str, *arguments: object, gpu: int | None = None) -> Any:
        """Return the function's answer as plain values; `gpu` is a driver index whose handle comes first."""
        self.send(function, *arguments, gpu=gpu)
        return self.receive()

    def error(self, function: str, *arguments: object, gpu: int | None = None) -> str:
        """Return the name of the error that the call must raise."""
        try:
            value = self.call(function, *arguments, gpu=gpu)
        except BindingError as error:
            return error.name
        raise AssertionError(f"{function} answered {value!r}, an error was expected")


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="settings of a GPU are root's, also in the simulation")

MakeNode = Callable[..., NodeGpuState]
Bind = Callable[..., NvmlBinding]

SETTINGS = (
    ("nvmlDeviceSetGpuLockedClocks", 1065, 1065),
    ("nvmlDeviceResetGpuLockedClocks",),
    ("nvmlDeviceSetPowerManagementLimit", 300_000),
    ("nvmlDeviceSetApplicationsClocks", 1593, 1410),
    ("nvmlDeviceResetApplicationsClocks",),
)
"""Calls that change an A100, with arguments that it takes."""
