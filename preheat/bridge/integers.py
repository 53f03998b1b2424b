"""Calls that C takes plain ints for, by calls that take symbols.

    x.diagonal(n)             ->  x.narrow(1, n, w - n).diagonal()           w: the size of axis 1
    torch.diag_embed(x, n)    ->  diag_embed(x) padded by n
    x.new_tensor([n])         ->  torch.tensor([n], dtype=x.dtype, device=x.device)
    torch.rot90(x, n)         ->  torch.rot90(x, n % 4): each of four is captured
    max_pool2d(x, n)          ->  preheat.counted_max_pool2d_with_indices(x, [n, n], ..): recorded, and run, as torch's op

Each gives the same elements, sizes and strides as C does, and the same memory where that is a view.

Source: `diagonal`, `diag`, `diag_embed` of ATen/native/TensorShape.cpp and TensorAdvancedIndexing; `rot90` of
TensorTransformations.cpp; `new_tensor` of torch/csrc/utils/tensor_new.cpp.
"""

import inspect
import operator
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from preheat.base.identity import identity
from preheat.bridge.of_numbers import as_numbers, made_by_c, tensor_maker
from preheat.bridge.operators import Operator
from preheat.bridge.ops import overload, private
from preheat.bridge.resizing import RESIZED, resizing
from preheat.bridge.symint import is_safe
from preheat.bridge.tensors import PLAIN_TENSORS, Tensor

one_hot = private("_C._nn.one_hot")
_pad = torch.constant_pad_nd
_TYPES = frozenset(("dtype", "device"))


def of_integers(
    function: Any, args: tuple, kwargs: Mapping[str, Any], numbers: Mapping[int, Any], calculate: Callable,
) -> tuple[Any, tuple, dict] | None:
    """The call that does the same as `function` of `args`, a function of torch or a method of a tensor whose sizes
    are known, and takes symbols; None of any other function, or call.

    numbers     holds the ids of the objects that are runtime numbers
    calculate   computes with one, and answers a comparison, which holds from then on
    """
    owner = getattr(function, "__self__", None)
    is_method = type(owner) in PLAIN_TENSORS
    row = _ROWS.get(getattr(function, "__name__", ""))
    if row is None or not (is_method or function is getattr(torch, function.__name__, None)):
        return None
    given = (owner, *args) if is_method else args
    if not given or type(given[0]) not in PLAIN_TENSORS:
        return None
    try:
        bound = row[0].bind(*given, **kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    if not is_method and function.__name__ in _METHODS_ALONE:
        return None
    return row[1](numbers, calculate, *bound.args, **bound.kwargs)


def _is_changing(numbers: Mapping[int, Any], value: Any) -> bool:
    return type(value) is int and identity(value) in numbers


# ---------------------------------------------------------------------------- diagonals
def _diagonal(numbers, calculate, input, offset=0, dim1=0, dim2=1):
    rank = input.dim()
    if not _is_changing(numbers, offset) or not all(type(n) is int and -rank <= n < rank for n in (dim1, dim2)):
        return None
    dim1, dim2 = dim1 % rank, dim2 % rank
    if dim1 == dim2:
        return None
    is_above = calculate(operator.ge, (offset, 0))
    axis = dim2 if is_above else dim1
    if not is_above:
        offset = calculate(operator.neg, (offset,))
    if not calculate(operator.lt, (offset, input.size(axis))):
        return None  # C says what no element has for a place
    return _cut_diagonal, (input, axis, offset, dim1, dim2), {}


def _cut_diagonal(input, axis, offset, dim1, dim2):
    return input.narrow(axis, offset, input.size(axis) - offset).diagonal(0, dim1, dim2)


def _diag_embed(numbers, calculate, input, offset=0, dim1=-2, dim2=-1):
    if not _is_changing(numbers, offset) or (dim1, dim2) != (-2, -1) or input.dim() == 0:
        return None
    if calculate(operator.ge, (offset, 0)):
        return _padded_diagonal, (input, offset, 0), {}
    return _padded_diagonal, (input, 0, calculate(operator.neg, (offset,))), {}


def _padded_diagonal(input, above, below):
    return _pad(torch.diag_embed(input), [above, below, below, above])


def _diag(numbers, calculate, input, diagonal=0):
    if input.dim() == 1:
        return _diag_embed(numbers, calculate, input, diagonal)
    found = _diagonal(numbers, calculate, input, diagonal) if input.dim() == 2 else None
    return None if found is None else (_copied_diagonal, found[1], {})


def _copied_diagonal(*args):
    return _cut_diagonal(*args).clone(memory_format=torch.contiguous_format)


# ---------------------------------------------------------------------------- others
def _rot90(numbers, calculate, input, k=1, dims=(0, 1)):
    if not _is_changing(numbers, k):
        return None
    return torch.rot90, (input, calculate(operator.mod, (k, 4)), dims), {}


def _new_tensor(numbers, calculate, self, data, **kwargs):
    types = {"dtype": self.dtype, "device": self.device, **kwargs}
    made = tensor_maker(torch.tensor, (data,), types)
    return (partial(made_by_c, torch.tensor), (data,), types) if made is None else (made, (data,), {})


def _new(numbers, calculate, self, data, **kwargs):
    return (as_numbers(self.new, (data,)), (data,), kwargs) if isinstance(data, (list, tuple)) else None


def _new_full(numbers, calculate, self, size, fill_value, **kwargs):
    if not kwargs.keys() <= _TYPES or not isinstance(size, (tuple, list)):
        return None
    types = {"dtype": self.dtype, "device": self.device, **kwargs}
    return torch.full, (size, fill_value), types


_METHODS_ALONE = frozenset(("new_tensor", "new_full", "new"))
_ROWS: dict[str, tuple[inspect.Signature, Callable]] = {}
for _name, _row in {
    "diagonal": _diagonal, "diag_embed": _diag_embed, "diag": _diag, "rot90": _rot90, "new_tensor": _new_tensor,
    "new_full": _new_full, "new": _new,
}.items():
    _signature = inspect.signature(_row)
    _ROWS[_name] = _signature.replace(parameters=list(_signature.parameters.values())[2:]), _row


# ---------------------------------------------------------------------------- windows
_COUNTED = ("max_pool2d_with_indices.default", "avg_pool2d.default", "adaptive_max_pool2d.default", "im2col.default",
            "polygamma.default", "round.decimals", "unfold.default", "histc.default",
            *(f"{name}.default" for name in RESIZED))
_OPS = {f"preheat.counted_{name.split('.')[0]}.default": f"aten.{name}" for name in _COUNTED}


def meant(func: Any) -> Any:
    """The op that an operator of this module stands for; any other op itself."""
    name = _OPS.get(str(func)) if func.namespace == "preheat" else None
    return func if name is None else overload(name)


def _counted(name: str, *args: Any, **kwargs: Any) -> Any:
    return overload(f"preheat.counted_{name}.default")(*args, **kwargs)


def _pair(values: Any) -> list:
    return [] if values is None else list(values) if isinstance(values, (list, tuple)) else [values] * 2


def _max_pool(input, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
    return _counted("max_pool2d_with_indices", input, *map(_pair, (kernel_size, stride, padding, dilation)), ceil_mode)[0]


def _average_pool(input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
    return _counted("avg_pool2d", input, *map(_pair, (kernel_size, stride, padding)), ceil_mode, count_include_pad,
                    divisor_override)


def _adaptive_pool(input, output_size):
    return _counted("adaptive_max_pool2d", input, _pair(output_size))


def _windows(input, kernel_size, dilation, padding, stride):
    return _counted("im2col", input, *map(_pair, (kernel_size, dilation, padding, stride)))


def _polygamma(n, input):
    return _counted("polygamma", n, input)


def _unfolded(self, dimension, size, step):
    return _counted("unfold", self, dimension, size, step)


def _histogram(input, bins=100, min=0, max=0):
    return _counted("histc", input, bins, min, max)


def _rounded(input, *, decimals=0):
    return _counted("round", input, decimals=decimals)


_WINDOWS: dict[Any, Callable] = {
    torch.max_pool2d: _max_pool, private("_C._nn.avg_pool2d"): _average_pool,
    private("_C._nn.adaptive_max_pool2d"): _adaptive_pool, private("_C._nn.im2col"): _windows,
    torch.polygamma: _polygamma, torch.round: _rounded, torch.histc: _histogram, Tensor.unfold: _unfolded,
}
_METHODS = frozenset(getattr(function, "__name__", "") for function in (torch.round, torch.histc, Tensor.unfold))
_KINDS = frozenset(map(type, _WINDOWS))


def resized(
    function: Any, args: tuple, kwargs: Mapping[str, Any], numbers: Mapping[int, Any], calculate: Callable,
) -> tuple[Any, tuple, dict] | None:
    """The call that resizes by factors of which some change, as `of_integers`. Source: `compute_output_size` of UpSample.cpp."""
    found = resizing(function, args)
    if found is None or kwargs or not is_safe(args) or type(args[0]) not in PLAIN_TENSORS:
        return None
    name, axes = found
    x, wanted, *rest, factors = args
    if wanted is not None or not isinstance(factors, (list, tuple)) or len(factors) != axes or x.dim() != axes + 2:
        return None
    is_changing = [type(n) in (int, float) and identity(n) in numbers for n in factors]
    if not any(is_changing) or torch.is_autocast_enabled(x.device.type):
        return None
    sizes = []
    for size, factor, changes in zip(x.shape[2:], factors, is_changing):
        if not calculate(operator.gt, (factor, 0)):
            return None
        size = size if type(factor) is int else float(size)
        made = calculate(operator.mul, (size, factor)) if changes else size * factor
        sizes.append(calculate(int, (made,)) if type(made) is float and changes else int(made))
    return partial(_counted, name), (x, sizes, *rest, *factors), {}


def counted(function: Any, args: tuple, kwargs: Mapping[str, Any]) -> Callable | None:
    """What does the same as `function`, of windows or counts, and takes symbols for them; None of any other function,
    and where a gradient goes through it: what autograd saves of it are plain ints."""
    owner = getattr(function, "__self__", None)
    if type(owner) in PLAIN_TENSORS and function.__name__ in _METHODS:
        method = _WINDOWS.get(getattr(torch, function.__name__, None)) or _WINDOWS[getattr(Tensor, function.__name__)]
        args, made = (owner, *args), partial(method, owner)
    else:
        made = _WINDOWS.get(function) if type(function) in _KINDS else None
    if made is None or not is_safe(args, dict(kwargs)):
        return None
    inputs = [arg for arg in (*args, *kwargs.values()) if type(arg) in PLAIN_TENSORS]
    is_known = len(inputs) == 1 and inputs[0].is_floating_point() and not torch.is_autocast_enabled(inputs[0].device.type)
    return made if is_known else None


def _schema(name: str, op: Any) -> str:
    """That of `op`, with symbols for its ints and factors."""
    given, results = str(op._schema).split("::")[1].split("(", 1)[1].rsplit(") ->", 1)
    return f"{name.split('.')[1]}({re.sub(r'(?<![A-Za-z])int', 'SymInt', given).replace('float?', 'Scalar?')}) ->{results}"


def _operator(name: str) -> Operator:
    op = overload(_OPS[name])
    return Operator(_schema(name, op), lambda *args, **kwargs: op(*args, **kwargs))


OPERATORS = {name: partial(_operator, name) for name in _OPS}
