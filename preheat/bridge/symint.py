"""Symbolic numbers: how a number of the program goes through torch without being looked at.

    box(symbol("s3", "float"), 0.5)       a torch.SymFloat that C++ passes on, down to the op
    scalar_of(box(...))                   Scalar s3: the recorder takes it as the op's argument

A box stands for an int or float whose expression and present value are known. It exists only while a
torch function runs: the program itself holds the plain number. torch passes a box along, or asks its
node for arithmetic (`add`, `mul`, ...), which gives the node of an expression; whatever C++ or Python
cannot do with a symbolic number asks for the value (`guard_int`, `guard_float`), and the owner is
told: the expression is pinned. That is the catch-all that makes this sound. Of a comparison
(`guard_bool`) only the answer is told. A node's arithmetic is Python's (`ir.scalar`): what that table
lacks is pinned too.

Ops must not run on boxes: C++ would compute with a placeholder. Whoever boxes stands in front of
every op, puts the plain numbers back (`plain`), and boxes nothing that autograd would save.

Guarantees: with `is_available` False nothing of torch's private names is touched; then numbers stay
guards. Source: torch/csrc/utils/python_symnode.h, torch/fx/experimental/sym_node.py.
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch

from preheat.base.errors import InternalError, is_strict
from preheat.bridge.ops import private
from preheat.ir.dims import divided
from preheat.ir.scalar import EVALUATE, Number, Scalar, apply, symbol
from preheat.ir.types import TensorType

_CLASSES: dict[type, Any] = {int: private("SymInt"), float: private("SymFloat")}
_MARK_CONJUGATE, _MARK_NEGATIVE = private("_C._set_conj"), private("_C._set_neg")
_BOXES = tuple(cls for cls in (*_CLASSES.values(), private("SymBool")) if cls is not None)


class Owner(Protocol):
    """Who keeps the numbers of a program, and what C++ finds out of them."""

    def pin_scalar(self, scalar: Scalar) -> None:
        """The value of the expression was asked for."""

    def test(self, scalar: Number, answer: bool) -> None:
        """The answer of a comparison was asked for; it is `answer` now."""

    def normal(self, scalar: Number) -> Number:
        """The expression in the form that equal ones share; a known number where it is one."""


class Node:
    """What stands in a box: `scalar` (an expression, or a known number) and its value now."""

    __slots__ = ("scalar", "value", "owner")

    def __init__(self, scalar: Number, value: int | float | bool, owner: Owner):
        self.scalar, self.value, self.owner = scalar, value, owner

    # what torch asks of every node
    def is_int(self) -> bool:
        return type(self.value) is int

    def is_float(self) -> bool:
        return type(self.value) is float

    def is_bool(self) -> bool:
        return type(self.value) is bool

    def is_symbolic(self) -> bool:
        return True

    def has_hint(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    maybe_as_float = maybe_as_bool = constant_int = constant_bool = nested_int

    def maybe_as_int(self) -> int | None:
        return self.scalar if type(self.scalar) is int else None

    def clone(self) -> "Node":
        return self

    def wrap_int(self, value: int) -> "Node":
        return Node(value, value, self.owner)

    wrap_float = wrap_bool = wrap_int

    def guard(self, *place: Any) -> int | float | bool:
        """The value; from now on it is part of what the program was captured for."""
        if isinstance(self.scalar, Scalar):
            if type(self.value) is bool:
                self.owner.test(self.scalar, self.value)
            else:
                self.owner.pin_scalar(self.scalar)
        return self.value

    guard_int = guard_float = guard_bool = int_ = float_ = bool_ = guard
    guard_size_oblivious = guard_or_false = guard_or_true = expect_true = expect_size = guard

    def statically_known_true(self, *place: Any) -> bool:
        return self.scalar is True

    def str(self) -> str:
        return repr(self.guard())

    _graph_repr = str

    def calculate(self, op: str, *others: "Node") -> "Node":
        """The node of `op` on this one and `others`; a comparison is a known bool."""
        nodes = (self, *others)
        value = EVALUATE[op](*(node.value for node in nodes))
        scalars = [node.scalar for node in nodes]
        scalar = self._exact(op, nodes)
        if scalar is None and type(value) is bool:
            scalar = apply(op, *scalars)
        elif scalar is None:
            scalar = combined(op, scalars, [node.value for node in nodes], value)
        if scalar is None:
            for node in nodes:
                node.guard()
            scalar = value
        return Node(self.owner.normal(scalar), value, self.owner)

    def _exact(self, op: str, nodes: tuple["Node", ...]) -> Number | None:
        """The quotient of two sizes, where it is a polynomial, or their remainder, which is 0."""
        if op not in ("floordiv", "mod") or not isinstance(nodes[1].scalar, Scalar):
            return None
        quotient = divided(nodes[0].scalar, nodes[1].scalar) if nodes[1].value else None
        if quotient is None:
            return None
        self.owner.test(apply("ne", nodes[1].scalar, 0), True)
        return quotient if op == "floordiv" else 0


# The method of a node, and the operation it is.
_METHODS = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "truediv", "floordiv": "floordiv",
    "mod": "mod", "pow": "pow", "neg": "neg", "abs": "abs", "eq": "eq", "ne": "ne", "lt": "lt",
    "le": "le", "gt": "gt", "ge": "ge", "sym_float": "float", "int_truediv": "truediv",
    "float_truediv": "truediv", "int_floordiv": "floordiv", "pow_by_natural": "pow",
    "float_pow": "pow", "sym_min": "min", "sym_max": "max", "sym_not": "not", "sym_and": "and",
    "sym_or": "or", "and_": "and", "or_": "or",
}
for _name, _op in _METHODS.items():
    setattr(Node, _name, functools.partialmethod(Node.calculate, _op))

_ALWAYS = frozenset((
    "add", "sub", "mul", "neg", "abs", "float", "int", "floor", "ceil", "trunc", "round", "sqrt",
    "exp", "log", "log2", "log10", "sin", "cos", "tan", "tanh", "truediv", "floordiv", "mod",
    "fpow", "atan", "sinh", "cosh", "expm1", "atan2",
))


def combined(
    op: str, scalars: list[Number], values: list[int | float | bool], result: Any
) -> Number | None:
    """The expression of `op` on `scalars`, whose values now are `values` and give `result`.

    None where the type of the result would depend on the values (a power of a negative number, the
    smaller of an int and a float), or where the answer is a bool: that is a test.
    """
    if op in ("min", "max"):
        is_known = len({type(value) for value in values}) == 1
    elif op == "pow":
        is_known = _has_known_power(scalars, values)
    else:
        is_known = op in _ALWAYS
    if not is_known or type(result) not in (int, float):
        return None
    made = apply(op, *scalars)
    if isinstance(made, Scalar) and made.type != type(result).__name__:
        return None
    return made


def _has_known_power(scalars: list[Number], values: list[Any]) -> bool:
    """Whether a power is of the type that it is now whatever the numbers: never complex, and an int
    of ints only where no exponent is negative."""
    base, exponent = scalars
    if not isinstance(exponent, Scalar) and type(exponent) is int:
        return type(values[0]) is float or exponent >= 0
    is_positive = not isinstance(base, Scalar) and base > 0
    return is_positive and float in (type(values[0]), type(values[1]))


# ---------------------------------------------------------------------------- boxes
def box(scalar: Number, value: int | float, owner: Owner) -> Any:
    """A symbolic number for `scalar`, whose value is `value`; `owner` is told when it is looked at.
    """
    return _CLASSES[type(value)](Node(scalar, value, owner))


def is_box(value: Any) -> bool:
    return type(value) in _BOXES


def scalar_of(value: Any) -> Number:
    """The expression of a box."""
    return value.node.scalar


def plain(value: Any) -> int | float | bool:
    """The present value of a box; nobody is told."""
    return value.node.value


def pin(value: Any) -> int | float | bool:
    """The present value of a box; its owner is told."""
    return value.node.guard()


class Shown(torch.Tensor):
    """A tensor as C++ shall see it: sizes and strides are boxes, there is no memory. `meant` is the
    tensor that it stands for. Made by `show`.

    What C++ asks about its layout (`is_contiguous`) comes to the dispatch mode, as an op. It says that
    the first element is at the start of the storage, which need not be so: ops that are given an
    offset must not run on it (`has_offset`)."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    meant: torch.Tensor
    shown_type: TensorType


def _stray(cls: type, function: Any, *args: Any) -> Any:
    raise InternalError(f"{function} was called on a tensor that only stands for another")


Shown.__torch_dispatch__ = classmethod(_stray)  # in the class body it would load torch's own compiler


def show(real: torch.Tensor, type: TensorType, owner: Owner) -> Shown:
    """`real` with the sizes and strides of `type`, which are those of `real` now."""
    sizes, strides = (
        tuple(box(dim, value, owner) if isinstance(dim, Scalar) else value
              for dim, value in zip(dims, values))
        for dims, values in ((type.sizes, real.shape), (type.strides, real.stride()))
    )
    shown = torch.Tensor._make_wrapper_subclass(
        Shown, sizes, strides=strides, dtype=real.dtype, device=real.device, requires_grad=False,
        dispatch_sizes_strides_policy="strides")
    shown.meant, shown.shown_type = real, type
    if real.is_conj():  # C would take its elements as they lie
        _MARK_CONJUGATE(shown, True)
    if real.is_neg():
        _MARK_NEGATIVE(shown, True)
    return shown


def reshaped_copy(tensor: torch.Tensor, sizes: tuple) -> torch.Tensor:
    """What `reshape` gives where it cannot be a view."""
    copy = tensor.clone(memory_format=torch.contiguous_format)
    return torch.ops.aten._unsafe_view.default(copy, sizes)


def has_offset(function: Any, args: tuple, kwargs: dict) -> bool:
    """Whether an op is told where in the storage to begin, and that may follow from a `Shown`."""
    names = [parameter.name for parameter in function._schema.arguments]
    if "storage_offset" not in names or not isinstance(args[0], Shown):
        return False
    place = names.index("storage_offset")
    given = args[place] if place < len(args) else kwargs.get("storage_offset")
    return given is not None and args[0].meant.storage_offset() != 0


_NUMBER_PARAMETERS = frozenset((
    "number", "Optional[number]", "float", "Optional[float]", "Tensor", "Optional[Tensor]",
    "List[number]",
))
_SIZE_PARAMETERS = frozenset(("int", "Optional[int]", "List[int]", "Optional[List[int]]"))


def taken(
    function: Any, args: tuple, kwargs: dict, size_of: Callable[[Any], Any] | None = None,
) -> tuple[tuple, dict]:
    """The arguments of the op `function` as it may be recorded: boxes stay where it takes numbers;
    where it takes sizes, `size_of(box)`, if that is given; axes and flags are pinned and plain."""
    parameters = function._schema.arguments
    by_name = {parameter.name: parameter for parameter in parameters}

    def allowed(arg: Any, parameter: Any) -> Any:
        kind = str(parameter.type)
        if kind in _NUMBER_PARAMETERS:
            return arg
        is_size = size_of is not None and kind in _SIZE_PARAMETERS
        return unboxed(arg, size_of if is_size else pin)

    return (
        tuple(allowed(arg, parameters[place]) for place, arg in enumerate(args)),
        {name: allowed(arg, by_name[name]) for name, arg in kwargs.items()},
    )


_COUNTING = frozenset(("aten::arange", "aten::range"))


def has_boxed_size(function: Any, args: tuple, kwargs: dict) -> bool:
    """Whether a box stands where the op takes a size, or numbers that a size follows from."""
    if function._schema.name in _COUNTING:
        return _holds_box(args) or _holds_box(tuple(kwargs.values()))
    parameters = function._schema.arguments
    by_name = {parameter.name: parameter for parameter in parameters}
    given = (*zip(args, parameters), *((arg, by_name[name]) for name, arg in kwargs.items()))
    return any(
        str(parameter.type) in _SIZE_PARAMETERS and _holds_box(arg) for arg, parameter in given)


def _holds_box(value: Any) -> bool:
    return any(map(_holds_box, value)) if type(value) in (list, tuple) else is_box(value)


def unboxed(value: Any, value_of: Callable[[Any], Any] = plain) -> Any:
    """`value` with the number in place of each box, in lists, tuples and dicts too."""
    kind = type(value)
    if kind in _BOXES:
        return value_of(value)
    if kind is Shown:
        return value.meant
    if kind in (list, tuple):
        return kind([unboxed(part, value_of) for part in value])
    if kind is dict:
        return {key: unboxed(part, value_of) for key, part in value.items()}
    return value


def is_safe(*values: Any) -> bool:
    """Whether a function of torch may be given boxes beside `values`: autograd saves none of them."""
    return is_available() and not (torch.is_grad_enabled() and any(map(_needs_grad, values)))


def _needs_grad(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_needs_grad, value))
    if isinstance(value, dict):
        return any(map(_needs_grad, value.values()))
    return isinstance(value, torch.Tensor) and value.requires_grad


@functools.cache
def is_available() -> bool:
    """Whether this torch passes boxes on as this file expects. Tried once, on real ops."""
    try:
        names = (*_CLASSES.values(), _MARK_CONJUGATE, _MARK_NEGATIVE)
        return None not in names and _is_passed_on()
    except Exception:  # private names: any surprise means that numbers stay guards
        if is_strict():
            raise
        return False


class _Listener:
    """An owner that notes what it is told."""

    def __init__(self) -> None:
        self.asked: list[Number] = []

    def pin_scalar(self, scalar: Scalar) -> None:
        self.asked.append(scalar)

    def test(self, scalar: Number, answer: bool) -> None:
        self.asked.append(scalar)

    def normal(self, scalar: Number) -> Number:
        return scalar


def _is_passed_on() -> bool:
    seen: list[Any] = []
    owner = _Listener()
    mode_class = private("utils._python_dispatch.TorchDispatchMode")

    class Mode(mode_class):
        pass

    def dispatch(mode: Any, function: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        seen.extend(arg for arg in args if is_box(arg))
        return function(*(plain(arg) if is_box(arg) else arg for arg in args), **(kwargs or {}))

    Mode.__torch_dispatch__ = dispatch  # in the class body it would load torch's own compiler
    x = torch.ones(2, device="cpu")
    integer, fraction = symbol("s0", "int"), symbol("s1", "float")
    with torch.no_grad(), Mode():
        product = x * box(integer, 3, owner)
        total = torch.add(product, box(fraction, 0.5, owner))
        filled = torch.full((2,), box(fraction, 0.5, owner))
    is_same = total.tolist() == [3.5, 3.5] and filled.tolist() == [0.5, 0.5]
    return is_same and not owner.asked and [scalar_of(s) for s in seen] == [integer, fraction, fraction]
