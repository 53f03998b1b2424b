"""Held numbers: those of a body under autograd that are elements of its tensors (`transform/held.py`), as symbols.

    %2 = leaky_relu(%0, item %4)       the formula is given a symbol for the element of %4
    backward: x * (1 - w)              %9 = full((), 1.0), %10 = sub(%9, %4), mul(x, item %10)

What a formula computes with numbers becomes ops on tensors of one element of 64 bits, which round as Python does.
"""

from collections.abc import Callable
from typing import Any

from preheat.base.errors import Unsupported
from preheat.bridge.symint import box
from preheat.ir.graph import Ref, Token
from preheat.ir.scalar import Number, Scalar, symbol, symbols, type_of
from preheat.ir.types import NUMBER_DTYPES, tensor

_NAME = "held{}"  # as no source is called
_OPS = {"add": "aten.add.Tensor", "sub": "aten.sub.Tensor", "mul": "aten.mul.Tensor", "truediv": "aten.div.Tensor",
        "neg": "aten.neg.default"}


class Held:
    """fail   told, with a reason, of a number that a formula has looked at. The owner of the symbols
    (`bridge/symint.Owner`)."""

    def __init__(self, fail: Callable[[str, str], None]) -> None:
        self._fail = fail
        self._values: dict[str, int] = {}  # by symbol: what the record calls the tensor

    def box(self, value: int, number: int | float) -> Any:
        """A symbol for the element of the recorded `value`, which is `number` now."""
        name = _NAME.format(value)
        self._values[name] = value
        return box(symbol(name, type(number).__name__), number, self)

    def holds(self, scalar: Scalar) -> bool:
        """Whether `scalar` is made of such numbers."""
        return self._values.keys() >= set(symbols(scalar))

    def value(self, recorder: Any, scalar: Number) -> int:
        """The recorded value of which `scalar` is the element."""
        if isinstance(scalar, Scalar) and scalar.op == "sym":
            return self._values[scalar.args[0]]
        dtype = NUMBER_DTYPES[type_of(scalar)]
        if not isinstance(scalar, Scalar):
            factory = (("dtype", Token("dtype", dtype)), ("device", Token("device", "cpu")))
            return recorder.emit("aten.full.default", ((), scalar), tensor(dtype, ()), factory)
        is_exact = scalar.op in _OPS and (dtype == "int64" or "float" in map(type_of, scalar.args))
        if not is_exact:  # of two ints the quotient has 32 bits in torch
            raise Unsupported("number_with_gradient", str(scalar))
        args = tuple(Ref(self.value(recorder, arg)) for arg in scalar.args)
        return recorder.emit(_OPS[scalar.op], args, tensor(dtype, ()))

    # ------------------------------------------------------------------ what C may ask
    def pin_scalar(self, scalar: Scalar) -> None:
        self._fail("number_with_gradient", f"a formula looks at {scalar}")

    def test(self, scalar: Number, answer: bool) -> None:
        self._fail("number_with_gradient", f"a formula asks whether {scalar}")

    def normal(self, scalar: Number) -> Number:
        return scalar
