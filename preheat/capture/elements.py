"""Elements: the number in a tensor without axes, as an expression of the numbers that such tensors held
when the node began.

    step += 1; step.item()          ->    float32(s7 + 1.0), where s7 is the element of source 6

Reading one is no look at the device and no host call: it is a runtime number (`numbers.py`), so a
branch on it is a guard, and what follows from it is computed anew by each call. Programs keep their
counters so (`torch.optim`).

Followed are the floats of the CPU that sums, products, negations and copies of numbers give; whatever else
writes to the memory ends that. Guarantees: an expression, evaluated in Python, has the very value
that torch's op gives (float32 is rounded once: the double that it is computed in is more than twice
as wide).
"""

from collections.abc import Callable
from typing import Any

from preheat.base.identity import identity
from preheat.bridge.overloads import Overload
from preheat.bridge.tensors import Tensor, dtype_name
from preheat.capture.sized_recorder import tensors_in
from preheat.ir.graph import Op, Ref
from preheat.ir.scalar import Number, Scalar, apply

_FOLLOWED = frozenset(("float32", "float64"))
_ARITHMETIC = {
    f"aten.{name}{suffix}.Tensor": op
    for name, op in (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("div", "truediv"))
    for suffix in ("", "_")
}
_UNARY = {"aten.neg.default": "neg", "aten.neg_.default": "neg"}
_MOVES = frozenset(("aten.copy_.default", "aten.fill_.Scalar", "aten.fill_.Tensor"))
_ZERO, _FULL = "aten.zero_.default", "aten.full.default"


class ElementRecorder:
    """The part of the recorder that follows elements.

    element_symbol(source, value)   the symbol of the element of source `source`, `value` when the node
                                    began; None: no numbers here
    element_divides(number)         whether it is not 0, which is guarded then
    """

    values: dict[int, Any]
    root: dict[int, int]
    scalars: dict[int, Scalar]
    is_fixed: Callable[[Tensor], bool]
    outside: Callable[[Tensor], int | None]
    _input: Callable[[Tensor], int]
    paused: Callable[[], Any]
    source_of_value: dict[int, int]

    def begin_elements(self) -> None:
        """A new graph, in which nothing is known so far."""
        self.element_symbol: Callable[[int, float], Scalar] | None = None
        self.element_divides: Callable[[Scalar], bool] | None = None
        self._elements: dict[int, Number] = {}  # value -> what it holds now
        self._holding: dict[int, dict[int, None]] = {}  # root -> the values of it that are there
        self._rewritten: set[int] = set()  # roots of which an input's first content is gone
        self._before: dict[int, float] = {}  # id of a tensor that is about to be written: its number
        self._first: dict[int, float] = {}  # input value that was written -> what it held at first

    def before_writes(self, facts: Overload, args: tuple) -> None:
        """`args` are about to be written: an input's number is taken while it is there."""
        for position, _ in facts.writes:
            given = args[position] if position < len(args) else None
            for tensor in given if type(given) in (list, tuple) else (given,):
                if is_followed(tensor) and identity(tensor) not in self.values:
                    self._before[identity(tensor)] = self._present(tensor)

    def follow(self, op: Op, args: tuple, kwargs: dict) -> None:
        """`op`, appended just now, was called with the tensors in `args`."""
        if self._before:
            for tensor in tensors_in((*args, *kwargs.values())):
                if identity(tensor) in self._before:
                    self._first[self.values[identity(tensor)].value] = self._before.pop(identity(tensor))
        written = op.writes[0] if len(op.writes) == 1 else -1
        number = self._calculated(op, args, kwargs) if written >= 0 or len(op.results) == 1 else None
        for value in op.writes:
            root = self.root[value]
            self._rewritten.add(root)
            for other in self._holding.pop(root, ()):
                del self._elements[other]
        if number is not None:
            self._hold(written if written >= 0 else op.results[0], number)

    def _hold(self, value: int, number: Number) -> None:
        self._elements[value] = number
        self._holding.setdefault(self.root[value], {})[value] = None

    def element_of(self, tensor: Tensor) -> tuple[Number, float] | None:
        """The number in `tensor`, and what it is now; None if nobody knows what it follows from."""
        if not is_followed(tensor):
            return None
        value = self._present(tensor)
        if self.is_fixed(tensor):
            return value, value
        known = self.values.get(identity(tensor))
        if known is None and not self._rewritten:  # as the node found it, whatever it shares
            source = self.outside(tensor)
            if source is None or self.element_symbol is None:
                return None
            return self.element_symbol(source, value), value
        place = known.value if known is not None else self._input(tensor)  # what is written is apart
        number = self._held(tensor, place) if place >= 0 else None
        return None if number is None else (number, value)

    def _calculated(self, op: Op, args: tuple, kwargs: dict) -> Number | None:
        if not op.types or getattr(op.types[0], "sizes", None) != ():
            return None
        if op.name == _FULL and op.types[0].dtype in _FOLLOWED and op.types[0].device == "cpu":
            return self._operand(args[1], op.args[1], op.types[0].dtype)
        if not is_followed(args[0]):
            return None
        dtype = dtype_name(args[0].dtype)
        if dtype != op.types[0].dtype:
            return None
        if op.name == _ZERO:
            return 0.0
        if op.name in _UNARY:
            number = self._operand(args[0], op.args[0], dtype)
            return None if number is None else apply(_UNARY[op.name], number)
        operation = _ARITHMETIC.get(op.name)
        if operation is None and op.name not in _MOVES:
            return None
        if kwargs.get("alpha", 1) != 1 or len(args) != 2 or set(kwargs) - {"alpha"}:
            return None
        numbers = [self._operand(*pair, dtype) for pair in zip(args, op.args)]
        if operation is None:
            return numbers[1]
        if None in numbers or operation == "truediv" and not self._divides(numbers[1]):
            return None
        made = apply(operation, *numbers)
        return _rounded(made, dtype)

    def _divides(self, number: Number) -> bool:
        """Whether Python divides by `number` as torch does: now, and in whatever call is served."""
        if isinstance(number, Scalar):
            return self.element_divides is not None and self.element_divides(number)
        return number != 0

    def _operand(self, given: Any, encoded: Any, dtype: str) -> Number | None:
        if isinstance(given, Tensor):
            if not is_followed(given) or dtype_name(given.dtype) != dtype:
                return None
            return self._held(given, encoded.id)
        if type(encoded) is Ref:
            encoded = self.scalars.get(encoded.id)
        if type(encoded) in (int, float):
            return _rounded(float(encoded), dtype)
        return _rounded(apply("float", encoded), dtype) if isinstance(encoded, Scalar) else None

    def _held(self, tensor: Tensor, value: int) -> Number | None:
        if value in self._elements:
            return self._elements[value]
        if self.root[value] in self._rewritten:
            return None
        if self.is_fixed(tensor):
            return self._present(tensor)
        source = self.source_of_value.get(value)
        if source is None or self.element_symbol is None:
            return None
        first = self._first.get(value)
        symbol = self.element_symbol(source, self._present(tensor) if first is None else first)
        self._hold(value, symbol)
        return symbol

    def _present(self, tensor: Tensor) -> float:
        with self.paused():
            return tensor.item()


def is_followed(tensor: Any) -> bool:
    """Whether the number in `tensor` may be followed."""
    return (
        isinstance(tensor, Tensor) and tensor.dim() == 0 and tensor.device.type == "cpu"
        and dtype_name(tensor.dtype) in _FOLLOWED)


def _rounded(number: Number, dtype: str) -> Number:
    return apply("float32", number) if dtype == "float32" else number
