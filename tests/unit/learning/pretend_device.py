"""A device that there is not: its tensors are held by the CPU, and meeting others they are refused as on a GPU.

Torch takes the device for a real one, in forward and backward and in optimisers. It cannot be taken away again, and
autograd learns of devices once in a process: use it in a process of its own, inside `with Pretending():`.

What is not like a GPU: every operation exists, results are those of the CPU, and an index on the CPU is refused, too,
where a GPU would fetch it without a word.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("pretend")
PRETEND = torch.device("pretend:0")
_CPU = torch.device("cpu")
_BETWEEN_DEVICES = {torch.ops.aten.copy_, torch.ops.aten._to_copy}


class DevicesMixed(RuntimeError):
    """An operation was given tensors of both devices."""


class PretendTensor(Tensor):
    """A tensor of the device."""

    held: Tensor
    """The same on the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # torch's own way to have none

    @staticmethod
    def __new__(cls, held: Tensor) -> "PretendTensor":
        is_strided = held.layout == torch.strided
        made: PretendTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride() if is_strided else None,
            storage_offset=held.storage_offset() if is_strided else None,
            dtype=held.dtype,
            layout=held.layout,
            device=PRETEND,
        )
        made.held = held
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]  # torch declares a keyword that is none
        return f"PretendTensor({self.held!r})"

    def numpy(self, *, force: bool = False) -> NoReturn:
        raise TypeError("can't convert a tensor of a pretended device to numpy, copy it to the CPU first")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        self.numpy()

    def tolist(self) -> Any:
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares it without the class
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})


class Pretending(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it without types
    """Makes tensors on the device where one is asked for, and counts what is done there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the same
        self.operations = 0

    def __enter__(self) -> "Pretending":
        torch._C._set_only_lift_cpu_tensors(True)  # else `torch.tensor` asks a device for memory that it has not
        super().__enter__()  # type: ignore[no-untyped-call]  # the same
        return self

    def __exit__(self, *how: object) -> None:
        super().__exit__(*how)  # type: ignore[no-untyped-call]  # the same
        torch._C._set_only_lift_cpu_tensors(False)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.operations += any(isinstance(one, PretendTensor) for one in _tensors(args))
        return _run(func, args, kwargs or {})

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the guard against it takes half of the time


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do an operation on the CPU and say that its result is on the device, if that is where it belongs."""
    tensors = [*_tensors(args), *_tensors(kwargs.values())]
    _check(func, tensors)
    wrapper_of = {id(one.held): one for one in tensors if isinstance(one, PretendTensor)}
    wanted = kwargs.get("device")
    is_there = torch.device(wanted).type == PRETEND.type if wanted is not None else bool(wrapper_of)
    if wanted is not None:
        kwargs = {**kwargs, "device": _CPU}
    result = func(*_mapped(args, _held), **{name: _mapped(value, _held) for name, value in kwargs.items()})
    if not is_there:
        return result
    return _mapped(result, lambda one: wrapper_of[id(one)] if id(one) in wrapper_of else PretendTensor(one))


def _check(func: Any, tensors: list[Tensor]) -> None:
    """Refuse operations between devices; numbers as 0-dimensional CPU tensors are let through where a GPU does it."""
    elsewhere = [one for one in tensors if not isinstance(one, PretendTensor)]
    if not elsewhere or len(elsewhere) == len(tensors) or func._overloadpacket in _BETWEEN_DEVICES:
        return
    if torch.Tag.pointwise in func.tags and all(one.dim() == 0 for one in elsewhere):
        return
    shapes = ", ".join(f"{tuple(one.shape)} on {one.device}" for one in tensors)
    raise DevicesMixed(f"{func} was given tensors of both devices: {shapes}")


def _held(tensor: Tensor) -> Tensor:
    return tensor.held if isinstance(tensor, PretendTensor) else tensor


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    return type(value)(_mapped(one, change) for one in value) if isinstance(value, list | tuple) else value
