"""Words: how constants, scalars and types are spelled in the text of the IR, and read back.

    (1, -1, 'abc', 0.5, None, %3, dtype:float32)      arguments; item %3: the number in %3
    (s0 * 8), s1!float                                scalars; an unmarked symbol is an int
    f32[8, 128]{1, 8}@cuda:0                          types

`show_*` give text, `Reader` reads it: a cursor over tokens that raises UserError with the place
when the text is not what it should be. Before: text. After: nouns equal to those that were shown.
"""

import ast
import math
import re
from collections.abc import Callable

from preheat.base.errors import UserError
from preheat.ir.graph import Arg, Item, Ref, Token
from preheat.ir.scalar import INFIX, Number, Scalar, apply
from preheat.ir.types import SHORT, NoneType, ScalarType, TensorType, Type, contiguous_strides

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<token>(?:dtype|device|layout|memory_format):[\w.:]+)
    | (?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<number>-?(?:\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\d+|inf\b|nan\b))
    | (?P<name>[A-Za-z_]\w*)
    | (?P<sign><-|->|//|\*\*|==|!=|<=|>=|[%()\[\]{},:=@+\-*/<>!.])
    )""",
    re.VERBOSE,
)
_SIGNS = {sign: op for op, sign in INFIX.items()}


# ---------------------------------------------------------------------------- nouns to text
def show_arg(arg: Arg) -> str:
    """`arg` as text; a string is quoted, a tuple in parentheses."""
    if isinstance(arg, (Ref, Item, Token)):
        return str(arg)
    if isinstance(arg, Scalar):
        return show_number(arg)
    if isinstance(arg, tuple):
        inner = ", ".join(show_arg(part) for part in arg)
        return f"({inner},)" if len(arg) == 1 else f"({inner})"
    if isinstance(arg, complex):
        return f"complex({show_arg(arg.real)}, {show_arg(arg.imag)})"
    return repr(arg)


def show_number(number: Number) -> str:
    """A number or scalar expression as text."""
    if not isinstance(number, Scalar):
        return repr(number)
    if number.op == "sym":
        return number.args[0] if number.type == "int" else f"{number.args[0]}!{number.type}"
    parts = [show_number(a) for a in number.args]
    if number.op in INFIX:
        return f"({parts[0]} {INFIX[number.op]} {parts[1]})"
    return f"{number.op}({', '.join(parts)})"


def show_type(type: Type) -> str:
    """A type as text: `f32[8, 128]`; strides only when they are not the contiguous ones."""
    if not isinstance(type, TensorType):
        return str(type)
    text = f"{short(type.dtype)}[{', '.join(map(show_number, type.sizes))}]"
    if type.strides != contiguous_strides(type.sizes):
        text += "{" + ", ".join(map(show_number, type.strides)) + "}"
    return text if type.device == "cpu" else f"{text}@{type.device}"


def short(dtype: str) -> str:
    """The short name of a dtype, or its own where it has none."""
    return next((key for key, name in SHORT.items() if name == dtype), dtype)


# ---------------------------------------------------------------------------- text to nouns
class Reader:
    """A cursor over the tokens of `text`."""

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0

    def peek(self) -> str:
        """The next token, "" at the end."""
        return self._match()[0]

    def take(self, expected: str = "") -> str:
        """The next token, consumed. Raises UserError if it is not `expected`."""
        token, end = self._match()
        if not token or (expected and token != expected):
            self.fail(f"expected {expected or 'more'!r}, found {token!r}")
        self.place = end
        return token

    def accept(self, token: str) -> bool:
        """Consumes `token` if it is next."""
        if self.peek() != token:
            return False
        self.take()
        return True

    def fail(self, why: str) -> None:
        line = self.text.count("\n", 0, self.place) + 1
        raise UserError(f"IR text, line {line}: {why}")

    def _match(self) -> tuple[str, int]:
        found = _TOKEN.match(self.text, self.place)
        if found is None:
            if self.text[self.place :].strip():
                self.fail(f"cannot read {self.text[self.place:].strip()[:20]!r}")
            return "", len(self.text)
        return found[found.lastgroup], found.end()

    def many(self, read: Callable, close: str) -> tuple:
        """What `read` yields, separated by commas, up to the token `close`, which is consumed."""
        found = []
        while not self.accept(close):
            found.append(read())
            if not self.accept(","):
                self.take(close)
                break
        return tuple(found)

    def integer(self) -> int:
        return int(self.take())

    def value(self) -> int:
        """A value's number: `%3`."""
        self.take("%")
        return self.integer()

    def arg(self) -> Arg:
        """An argument, the inverse of `show_arg`."""
        token = self.peek()
        if token == "%":
            return Ref(self.value())
        if token == "item":
            self.take()
            return Item(self.value())
        if token[:1] in "'\"":
            return ast.literal_eval(self.take())
        if ":" in token and len(token) > 1:
            kind, name = self.take().split(":", 1)
            return Token(kind, name)
        if token in ("None", "True", "False"):
            return ast.literal_eval(self.take())
        if token == "complex":
            self.take(), self.take("(")
            return complex(*self.many(self.number, ")"))
        if token == "(":
            return self._parenthesis(self.arg)
        return self.number()

    def number(self) -> Number:
        """A number or scalar, the inverse of `show_number`."""
        token = self.peek()
        if token in ("inf", "-inf", "nan", "-nan"):
            return float(self.take())
        if token[0].isdigit() or (token[0] == "-" and len(token) > 1):
            return ast.literal_eval(self.take())
        if token in ("True", "False"):
            return self.take() == "True"
        if token == "(":
            return self._parenthesis(self.number)
        name = self.take()
        if self.accept("("):
            return apply(name, *self.many(self.number, ")"))
        return Scalar("sym", (name,), self.take() if self.accept("!") else "int")

    def _parenthesis(self, read: Callable):
        """A tuple, or an infix scalar: both begin with a parenthesis."""
        self.take("(")
        if self.accept(")"):
            return ()
        first = read()
        if self.peek() in _SIGNS:
            sign = _SIGNS[self.take()]
            second = self.number()
            self.take(")")
            return apply(sign, first, second)
        if self.accept(")"):
            return first
        self.take(",")
        return (first, *self.many(read, ")"))

    def type(self) -> Type:
        """A type, the inverse of `show_type`."""
        name = self.take()
        if not self.accept("["):
            return NoneType() if name == "none" else ScalarType(name)
        sizes = self.many(self.number, "]")
        strides = self.many(self.number, "}") if self.accept("{") else contiguous_strides(sizes)
        return TensorType(
            SHORT.get(name, name), sizes, strides, self._device() if self.accept("@") else "cpu"
        )

    def _device(self) -> str:
        """`cuda:0`: a colon belongs to the device only before a digit."""
        found = re.compile(r"\w+(:\d+)?").match(self.text, self.place)
        self.place = found.end()
        return found[0]


def is_same(a: object, b: object) -> bool:
    """Equality by type and bits: 1 is not True, 0.0 is not -0.0, NaN is NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    return a == b
