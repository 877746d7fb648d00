"""Number of operations that a piece of torch code really does: the measure of what sampling saves."""

from collections.abc import Callable
from math import ceil, log2
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

_aten = torch.ops.aten
_SOFTMAX_PASSES = 5
"""Largest, difference, exponential, sum, quotient; log-softmax needs as many."""
_NORM_PASSES = 8
"""Mean 1, variance 3, standardising 2, scale and shift 2."""

_FREE = {
    _aten._unsafe_view,
    _aten.empty,
    _aten.empty_like,
    _aten.empty_strided,
    _aten.new_empty,
    _aten.new_empty_strided,
    _aten.zeros,
    _aten.zeros_like,
    _aten.new_zeros,
    _aten.ones,
    _aten.ones_like,
    _aten.new_ones,
    _aten.full,
    _aten.full_like,
    _aten.new_full,
    _aten.fill,
    _aten.fill_,
    _aten.zero_,
    _aten.arange,
    _aten.scalar_tensor,
    _aten._local_scalar_dense,
}
"""Memory and constants."""
_PASSES = {
    _aten._softmax: _SOFTMAX_PASSES,
    _aten._log_softmax: _SOFTMAX_PASSES,
    _aten.native_layer_norm: _NORM_PASSES,
}
_PRODUCTS = {_aten.mm, _aten.addmm, _aten._sparse_addmm}
_WITH_BIAS = {_aten.addmm, _aten.baddbmm, _aten._sparse_addmm}
"""Products whose bias the registry leaves out."""
_ATTENTION_ON_CPU = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _aten._scaled_dot_product_flash_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _aten._scaled_dot_product_flash_attention_backward,
}
"""Kernels that the registry does not know, and those with the same arguments that it knows."""
_SCATTERED = {
    _aten.index_add,
    _aten.index_add_,
    _aten.index_copy,
    _aten.index_copy_,
    _aten.index_fill,
    _aten.index_fill_,
    _aten.index_reduce,
    _aten.index_reduce_,
    _aten.scatter,
    _aten.scatter_,
    _aten.scatter_add,
    _aten.scatter_add_,
    _aten.scatter_reduce,
    _aten.scatter_reduce_,
    _aten.index_put,
    _aten.index_put_,
    _aten._index_put_impl_,
}
"""Their work is that of their source, or of their indices where these are more; not of what they write into."""
_GATHERED = {_aten.index, _aten.index_select, _aten.gather, _aten.embedding}
_SORTED = {_aten.sort, _aten.argsort, _aten.topk}


class OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it without types
    """Counts the operations of everything that runs inside `with`.

    A matrix product [m, k] x [k, n] is 2 m n k operations, m n k multiplications and as many additions; one of a sparse
    matrix with s stored elements is 2 s n; attention and convolution follow torch's own formulas for their products.
    Everywhere else one element is one operation, be it
    added, exponentiated, compared or moved: an elementwise operator or a gather costs its result, a scatter its source,
    a reduction its input, a softmax 5 and a layer norm 8 times its input, a sort n log2 n. Views, allocation and
    constants cost nothing. What does not go through torch is not seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the same
        self.operations = 0
        """So far."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator and add what it costs."""
        named = kwargs or {}
        # In inference mode composite operators arrive whole; it is their parts that are counted.
        with self:
            parts = func.decompose(*args, **named)
        if parts is not NotImplemented:
            return parts
        result = func(*args, **named)
        self.operations += _cost(func, args, named, result)
        return result


def count_operations(work: Callable[[], object]) -> int:
    """Return how many operations a call does, as `OperationCounter` defines them."""
    counter = OperationCounter()
    with counter:
        work()
    return counter.operations


def _cost(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    packet = _ATTENTION_ON_CPU.get(func._overloadpacket, func._overloadpacket)
    if packet in _PRODUCTS and (sparse := [one for one in args if _is_sparse(one)]):
        bias = _elements(result) if packet in _WITH_BIAS else 0
        return 2 * _elements(sparse) * int(result.shape[-1]) + bias
    if packet in flop_registry:
        bias = _elements(result) if packet in _WITH_BIAS else 0
        return int(flop_registry[packet](*args, **kwargs, out_val=result)) + bias
    if func.is_view or packet in _FREE:
        return 0
    if packet in _SCATTERED:
        return _elements(args[1:])
    if packet in _GATHERED:
        return _elements(result)
    largest = max(_elements(args), _elements(result))
    if packet in _SORTED:
        return largest * ceil(log2(max(2, largest)))
    return largest * _PASSES.get(packet, 1)


def _is_sparse(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout != torch.strided


def _elements(value: object) -> int:
    """Return the stored elements of the largest tensor in nested tuples and lists, 0 where there is none."""
    if isinstance(value, Tensor):
        return value._nnz() if _is_sparse(value) else value.numel()
    if isinstance(value, tuple | list):
        return max((_elements(one) for one in value), default=0)
    return 0
